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
        let steady = &program.iterations()[program.steady()];
        let launches = match (steady.first(), steady.last()) {
            (Some(first), Some(last)) => first.start..last.end,
            // No iterations are marked: the whole program is one.
            _ => 0..program.launches().len() as u32,
        };
        let ranges = if steady.is_empty() {
            vec![launches.clone()]
        } else {
            steady.to_vec()
        };
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

fn leaves_of(program: &Program, launch: u32) -> u64 {
    let accesses = program.accesses(Launch(launch)).iter();
    accesses
        .map(|access| u64::from(access.leaves.count()))
        .sum()
}
