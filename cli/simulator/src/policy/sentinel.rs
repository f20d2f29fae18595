//! Sentinel: moves tensors at the borders of migration intervals.
//!
//! Ren et al., HPCA'21, sections III and IV; its GPU port moves with
//! `cudaMemPrefetchAsync` (section VI). A profiled iteration gives each tensor's lifetime and
//! number of accesses. Tensors that live no longer than a layer are short-lived (here: that
//! no interval boundary but one lies within their life): fast memory keeps a reserve for
//! them and they never move. Layers are grouped into migration
//! intervals of equal length. When an interval begins, the long-lived tensors of the next
//! one are prefetched, largest first; tensors that the next interval does not use leave as
//! soon as their last operation of this one is over, where their memory is needed, the
//! least accessed first, so that hot tensors stay. The length is searched offline: longer
//! intervals hide more but need room for two intervals' tensors at once.
//!
//! What it knows: sizes, lifetimes and access counts of tensors, layers, and the time of
//! each, from the profiled iteration.
//!
//! Choices: lengths 1, 2, 4, ... layers are tried; for each an interval is predicted to
//! take the longest of its computation and its copies in either direction, and what is
//! still beyond the device when all that can has left is copied both ways, exposed; the
//! least sum wins, the shorter length where equal. The reserve is not set apart: short-lived
//! tensors count as what is alive, and are never chosen. False
//! sharing of pages, which the paper removes by its own allocator, is left as the trace has
//! it. Intervals run on from one iteration into the next.

use super::plan::Levels;
use super::swap::{Plan, Planned, budget};
use super::tensors::{Gap, TensorId, Tensors};
use super::{Entry, Make};
use crate::class::{Future, FuturePolicy};
use crate::machine::Machine;
use crate::trace::Launch;
use crate::units::Nanos;

pub(super) const ENTRY: Entry = Entry {
    name: "sentinel",
    about: "Sentinel (HPCA'21): tensors moved at migration intervals of searched length",
    make: Make::Future(make),
};

fn make<'p>(machine: &Machine, future: Future<'p>) -> Box<dyn FuturePolicy + 'p> {
    Planned::make(machine, future, plan)
}

fn plan(machine: &Machine, tensors: &Tensors<'_>) -> Plan {
    let layers: Vec<Launch> = (0..tensors.iterations().len())
        .flat_map(|iteration| tensors.layers(iteration))
        .collect();
    let longest = layers.len() / tensors.iterations().len().max(1);
    let mut length = 1;
    let mut best: Option<(Nanos, Plan)> = None;
    while length <= longest.max(1) {
        let intervals = Intervals::new(&layers, length);
        let moves = Moves::new(machine, tensors, &intervals);
        let time = moves.predict(machine, tensors, &intervals);
        if best.as_ref().is_none_or(|(least, _)| time < *least) {
            best = Some((time, moves.plan(&intervals)));
        }
        length *= 2;
    }
    best.map(|(_, plan)| plan).unwrap_or_default()
}

/// The migration intervals: consecutive layers, set-up before the first.
struct Intervals {
    starts: Vec<Launch>,
}

impl Intervals {
    fn new(layers: &[Launch], length: usize) -> Self {
        let starts = layers.iter().step_by(length).copied().collect();
        Self { starts }
    }

    fn len(&self) -> usize {
        self.starts.len()
    }

    /// Which interval a launch is in; what comes before all of them counts as the first.
    fn of(&self, launch: Launch) -> usize {
        self.starts
            .partition_point(|&start| start <= launch)
            .saturating_sub(1)
    }

    /// The launches of an interval.
    fn launches(&self, interval: usize, end: u32) -> std::ops::Range<u32> {
        let next = self.starts.get(interval + 1).map_or(end, |start| start.0);
        self.starts[interval].0..next
    }
}

/// What leaves and comes back under one length of interval.
struct Moves {
    gaps: Vec<Gap>,
    /// By launch: bytes alive on the device beyond what it holds, when all that can has left.
    excess: Vec<u64>,
}

impl Moves {
    fn new(machine: &Machine, tensors: &Tensors<'_>, intervals: &Intervals) -> Self {
        let mut moves = Self {
            gaps: Vec::new(),
            excess: Vec::new(),
        };
        if intervals.len() == 0 {
            return moves;
        }
        let mut candidates: Vec<(usize, Gap)> = Vec::new();
        for id in tensors.ids() {
            let uses = tensors.uses(id);
            if is_short(tensors, id, intervals) {
                continue;
            }
            for gap in tensors.gaps(id) {
                if intervals.of(gap.to) > intervals.of(gap.from) + 1 {
                    candidates.push((uses.len(), gap));
                }
            }
        }
        moves.choose(machine, tensors, intervals, candidates);
        moves
    }

    /// The least accessed leave, until at no time more is alive than the device holds.
    fn choose(
        &mut self,
        machine: &Machine,
        tensors: &Tensors<'_>,
        intervals: &Intervals,
        mut candidates: Vec<(usize, Gap)>,
    ) {
        // Rare first; of equals those that stay away longer.
        candidates.sort_by_key(|(uses, gap)| {
            (
                *uses,
                std::cmp::Reverse(gap.to.0 - gap.from.0),
                gap.tensor,
                gap.from,
            )
        });
        let limit = budget(machine) as i64;
        let launches = 0..tensors.program().launches().len() as u32;
        let loads: Vec<i64> = launches.map(|at| tensors.load(Launch(at)) as i64).collect();
        let mut levels = Levels::new(loads.into_iter());
        for (_, gap) in candidates {
            let back = fetch(intervals, &gap);
            let over = levels.last_above(back.0, limit);
            if over.is_none_or(|over| over <= gap.from.0) {
                continue;
            }
            let bytes = tensors.get(gap.tensor).bytes() as i64;
            levels.add(gap.from.0 + 1, back.0, -bytes);
            self.gaps.push(gap);
        }
        let mut away = vec![0i64; tensors.program().launches().len() + 1];
        for gap in &self.gaps {
            let bytes = tensors.get(gap.tensor).bytes() as i64;
            away[gap.from.index() + 1] += bytes;
            away[fetch(intervals, gap).index()] -= bytes;
        }
        let mut now = 0;
        let launches = 0..tensors.program().launches().len();
        self.excess = launches
            .map(|at| {
                now += away[at];
                let left = tensors.load(Launch(at as u32)) as i64 - now - limit;
                left.max(0) as u64
            })
            .collect();
        self.gaps.sort_by_key(|gap| {
            let bytes = tensors.get(gap.tensor).bytes();
            (fetch(intervals, gap), std::cmp::Reverse(bytes), gap.tensor)
        });
    }

    /// Time of all intervals.
    fn predict(&self, machine: &Machine, tensors: &Tensors<'_>, intervals: &Intervals) -> Nanos {
        let mut into = vec![0; intervals.len()];
        let mut out = vec![0; intervals.len()];
        for gap in &self.gaps {
            let bytes = tensors.get(gap.tensor).bytes();
            into[intervals.of(fetch(intervals, gap))] += bytes;
            out[intervals.of(gap.from)] += bytes;
        }
        let end = tensors.program().launches().len() as u32;
        (0..intervals.len())
            .map(|interval| {
                let launches = intervals.launches(interval, end);
                let compute =
                    tensors.start(Launch(launches.end)) - tensors.start(Launch(launches.start));
                let back = machine.link_in.time(into[interval]);
                let away = machine.link_out.time(out[interval]);
                let over = &self.excess[launches.start as usize..launches.end as usize];
                let excess = over.iter().copied().max().unwrap_or(0);
                let exposed = machine.link_in.time(excess) + machine.link_out.time(excess);
                compute.max(back).max(away) + exposed
            })
            .sum()
    }

    fn plan(&self, intervals: &Intervals) -> Plan {
        let outs = self.gaps.iter().map(|gap| (gap.from, gap.tensor)).collect();
        let ins = self
            .gaps
            .iter()
            .map(|gap| (fetch(intervals, gap), gap.tensor))
            .collect();
        Plan { outs, ins }
    }
}

/// It is used in one interval, or across the border to the next, and then no more.
fn is_short(tensors: &Tensors<'_>, id: TensorId, intervals: &Intervals) -> bool {
    let uses = tensors.uses(id);
    match (uses.first(), uses.last()) {
        (Some(first), Some(last)) if !tensors.get(id).persistent => {
            intervals.of(last.launch) <= intervals.of(first.launch) + 1
        }
        _ => false,
    }
}

/// The start of the interval before the one that needs it.
fn fetch(intervals: &Intervals, gap: &Gap) -> Launch {
    let before = intervals.of(gap.to).saturating_sub(1);
    intervals.starts[before].max(Launch(gap.from.0 + 1))
}

#[cfg(test)]
mod tests {
    use super::super::checks::{self, machine};
    use super::super::samples::Training;
    use super::*;
    use crate::trace::Program;

    fn of(program: &Program) -> Tensors<'_> {
        Tensors::of(Future {
            program,
            lifetimes: true,
        })
    }

    fn intervals(tensors: &Tensors<'_>, length: usize) -> Intervals {
        let iterations = 0..tensors.iterations().len();
        let layers: Vec<Launch> = iterations.flat_map(|at| tensors.layers(at)).collect();
        Intervals::new(&layers, length)
    }

    #[test]
    fn what_an_interval_needs_is_asked_for_when_the_one_before_it_begins() {
        let program = Training::SMALL.program();
        let tensors = of(&program);
        let intervals = intervals(&tensors, 2);
        let moves = Moves::new(&machine(32), &tensors, &intervals);
        assert!(!moves.gaps.is_empty());
        for gap in &moves.gaps {
            let at = fetch(&intervals, gap);
            assert_eq!(intervals.of(at) + 1, intervals.of(gap.to));
            assert!(at > gap.from && intervals.starts.contains(&at));
        }
    }

    #[test]
    fn tensors_of_neighbouring_intervals_never_move() {
        let program = Training::SMALL.program();
        let tensors = of(&program);
        let intervals = intervals(&tensors, 2);
        let moves = Moves::new(&machine(24), &tensors, &intervals);
        for gap in &moves.gaps {
            assert!(intervals.of(gap.to) > intervals.of(gap.from) + 1);
            assert!(!is_short(&tensors, gap.tensor, &intervals));
        }
        // Gradients are short-lived.
        let short = tensors
            .ids()
            .filter(|&id| is_short(&tensors, id, &intervals));
        assert!(short.count() >= 3 * 8);
    }

    #[test]
    fn larger_tensors_of_an_interval_are_asked_for_first() {
        let program = Training::SMALL.program();
        let tensors = of(&program);
        let intervals = intervals(&tensors, 2);
        let plan = Moves::new(&machine(24), &tensors, &intervals).plan(&intervals);
        for pair in plan.ins.windows(2) {
            let bytes = |at: usize| tensors.get(pair[at].1).bytes();
            assert!(pair[0].0 < pair[1].0 || bytes(0) >= bytes(1));
        }
    }

    #[test]
    fn more_memory_moves_fewer_tensors_and_enough_moves_none() {
        let program = Training::SMALL.program();
        let tensors = of(&program);
        let outs = |frames| plan(&machine(frames), &tensors).outs.len();
        assert!(outs(48) <= outs(32));
        assert!(outs(32) > 0);
        assert_eq!(outs(100), 0);
    }

    #[test]
    fn it_takes_less_time_than_demand_paging() {
        let program = Training::SMALL.program();
        let ours = checks::outcome(&program, &ENTRY, 32).steady();
        let driver = checks::outcome(&program, &super::super::driver::ENTRY, 32).steady();
        assert!(ours.time < driver.time, "{ours:?} {driver:?}");
    }

    #[test]
    fn it_keeps_the_contract_of_every_policy() {
        checks::contract(&ENTRY);
    }
}
