//! The measured stretch of a program, cut into slots of time.
//!
//! Owns where the cuts lie. A slot is a run of consecutive accesses; its time is what the
//! device computes in it. Cuts fall between accesses, as the model does: an access is due
//! when the share of its launch's time has passed that the leaves before it have of all its
//! leaves, so the instant of each cut is well defined and slots are disjoint in time. Under
//! the rules of G10 a launch has no such order, and cuts fall between launches.

use std::ops::Range;

use crate::machine::Rules;
use crate::trace::{Launch, Program};

/// The end of a slot: before access `access` of launch `launch`; past its last access, the
/// launch's end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Cut {
    pub launch: u32,
    pub access: u32,
}

/// The slots of the steady iterations, numbered from 1. Slot 0 is everything before them,
/// slot `len() + 1` everything after. Boundary `j` ends slot `j`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Slots {
    /// The launches of the steady iterations.
    pub launches: Range<u32>,
    /// How many iterations they are.
    pub iterations: usize,
    /// Compute time by slot, nanoseconds; 0 for slots 0 and `len() + 1`.
    pub times: Vec<u64>,
    cuts: Vec<Cut>,
}

impl Slots {
    /// Cuts each steady iteration into at most `total / iterations` slots (at least one) of
    /// like amounts of compute and of leaves touched.
    pub fn cut(program: &Program, rules: Rules, total: usize) -> Self {
        let mut ranges = program.steady();
        if ranges.is_empty() {
            // No iterations are marked: the whole program is one.
            ranges.push(0..program.launches().len() as u32);
        }
        let launches = ranges[0].start..ranges[ranges.len() - 1].end;
        let mut slots = Self {
            iterations: ranges.len(),
            times: vec![0],
            cuts: Vec::new(),
            launches,
        };
        let each = (total / ranges.len()).max(1) as u64;
        for range in ranges {
            slots.cut_iteration(program, rules, range, each);
        }
        slots.times.push(0);
        slots
    }

    /// How many slots.
    pub fn len(&self) -> usize {
        self.cuts.len()
    }

    fn cut_iteration(&mut self, program: &Program, rules: Rules, range: Range<u32>, each: u64) {
        let time = u128::from(program.ideal(range.clone()).0.max(1));
        let touched = range
            .clone()
            .map(|launch| leaves_of(program, launch))
            .sum::<u64>();
        let touched = u128::from(touched.max(1));
        // Work done so far of 2^32, half of it time and half of it leaves.
        let share = |time_done: u64, leaves_done: u64| {
            (u128::from(time_done) << 31) / time + (u128::from(leaves_done) << 31) / touched
        };
        let target = |cuts: u64| (u128::from(cuts + 1) << 32) / u128::from(each);
        let (mut time_done, mut leaves_done, mut cuts) = (0, 0, 0);
        let mut slot_time = 0;
        for launch in range.clone() {
            let info = program.launch(Launch(launch));
            let accesses = program.accesses(Launch(launch));
            let all = leaves_of(program, launch).max(1);
            let (mut at, mut here) = (0, 0);
            if rules == Rules::Uvm {
                for index in 1..accesses.len() {
                    here += u64::from(accesses[index - 1].leaves.count());
                    let due = (u128::from(info.time.0) * u128::from(here) / u128::from(all)) as u64;
                    if share(time_done + due, leaves_done + here) < target(cuts) {
                        continue;
                    }
                    self.cuts.push(Cut {
                        launch,
                        access: index as u32,
                    });
                    self.times.push(slot_time + due - at);
                    slot_time = 0;
                    at = due;
                    while share(time_done + due, leaves_done + here) >= target(cuts) {
                        cuts += 1;
                    }
                }
            }
            slot_time += info.time.0 - at;
            time_done += info.time.0;
            leaves_done += leaves_of(program, launch);
            let last = launch + 1 == range.end;
            if last || share(time_done, leaves_done) >= target(cuts) {
                self.cuts.push(Cut {
                    launch,
                    access: u32::MAX,
                });
                self.times.push(slot_time);
                slot_time = 0;
                while share(time_done, leaves_done) >= target(cuts) {
                    cuts += 1;
                }
            }
        }
    }

    /// The same stretch in fewer, longer slots: cut only at these boundaries, and at its end.
    /// `boundaries` are in order.
    pub fn only(self, boundaries: impl Iterator<Item = usize>) -> Self {
        let count = self.len();
        let (mut times, mut cuts) = (vec![0], Vec::new());
        let mut before = 0;
        for boundary in boundaries.filter(|at| *at < count).chain([count]) {
            if boundary > before {
                times.push(self.times[before + 1..=boundary].iter().sum());
                cuts.push(self.cuts[boundary - 1]);
                before = boundary;
            }
        }
        times.push(0);
        Self {
            times,
            cuts,
            ..self
        }
    }

    /// A walk through the program in order.
    pub fn walk(&self) -> Walk<'_> {
        Walk { slots: self, at: 0 }
    }
}

/// Finds the slot of one access after the other.
pub(super) struct Walk<'s> {
    slots: &'s Slots,
    at: usize,
}

impl Walk<'_> {
    /// The slot of an access; accesses must come in program order.
    pub fn slot(&mut self, launch: Launch, access: usize) -> u32 {
        if launch.0 < self.slots.launches.start {
            return 0;
        }
        let place = Cut {
            launch: launch.0,
            access: access as u32,
        };
        while self
            .slots
            .cuts
            .get(self.at)
            .is_some_and(|cut| place >= *cut)
        {
            self.at += 1;
        }
        self.at as u32 + 1
    }
}

/// Boundaries to keep where slots are to be fewer: of each of so many even parts of the stretch
/// the first at which most is wanted of the device. Between two boundaries nothing holds a
/// schedule to what there is, so that a short peak between them would count for nothing.
pub(super) fn fullest(wanted: &[u64], parts: usize) -> impl Iterator<Item = usize> {
    let count = wanted.len() - 1;
    (0..parts).filter_map(move |part| {
        let boundaries = part * count / parts + 1..=(part + 1) * count / parts;
        // Of equal ones the last is the greatest.
        boundaries.rev().max_by_key(|boundary| wanted[*boundary])
    })
}

fn leaves_of(program: &Program, launch: u32) -> u64 {
    let accesses = program.accesses(Launch(launch)).iter();
    accesses
        .map(|access| u64::from(access.leaves.count()))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_are_kept_where_most_is_wanted() {
        let wanted = [9, 1, 5, 2, 2, 3, 3, 0, 0, 7];
        assert_eq!(fullest(&wanted, 3).collect::<Vec<_>>(), [2, 5, 9]);
        assert_eq!(
            fullest(&wanted, 100).collect::<Vec<_>>(),
            [1, 2, 3, 4, 5, 6, 7, 8, 9]
        );
        assert_eq!(fullest(&wanted, 0).count(), 0);
        assert_eq!(fullest(&[4], 3).count(), 0);
    }

    #[test]
    fn longer_slots_take_the_time_of_those_that_they_are_made_of() {
        let cut = |launch| Cut {
            launch,
            access: u32::MAX,
        };
        let slots = Slots {
            launches: 3..8,
            iterations: 2,
            times: vec![0, 1, 2, 4, 8, 16, 0],
            cuts: (3..8).map(cut).collect(),
        };
        let fewer = slots.clone().only([2, 4].into_iter());
        assert_eq!(fewer.times, [0, 3, 12, 16, 0]);
        assert_eq!(fewer.cuts, [cut(4), cut(6), cut(7)]);
        assert_eq!(slots.clone().only([5].into_iter()).times, [0, 31, 0]);
        assert_eq!(slots.clone().only(1..6), slots);
    }
}
