//! AutoSwap: swaps the variables whose absence frees most memory around the peak.
//!
//! Zhang et al., "Efficient Memory Management for GPU-based Deep Learning Systems"
//! (arXiv 1903.06631), section IV, and the authors' prototype in SINGA (`swap_gpu.cc` and
//! its offline scripts, from which the formulas are). One iteration is profiled; the peak
//! of the load is found. Candidates are variables of at least 1 MiB with an access before
//! and one after the peak and none between; the time between is the absence. Scores:
//!
//! - DOA, duration of absence: the time between, less the time to copy out and back;
//! - AOA, area of absence: DOA times size (over size where DOA is negative);
//! - WDOA, weighted duration: the load summed over the absence;
//! - SWDOA, submodular: as WDOA, anew after each choice with the load that it leaves.
//!
//! Variables are taken by descending score until the load's peak is within the limit.
//! Copies out begin after the access, one after the other; copies in end by the next
//! access, planned backward one before the other; what is late waits.
//!
//! Choices: the paper mixes the four scores by Bayesian optimisation of the overhead that
//! its schedule predicts, beginning with each score alone; here the best of those four
//! beginnings is taken, by the same prediction (ties: in the order above). The loads are
//! weighted by time, not by operation count. It plans each iteration from that iteration's
//! own accesses, as all are alike for it. A next access that overwrites ends no absence.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::plan::Levels;
use super::swap::{Plan, Planned, budget};
use super::tensors::{Gap, Iteration, Tensors};
use super::{Entry, Make};
use crate::class::{Future, FuturePolicy};
use crate::machine::Machine;
use crate::trace::Launch;
use crate::units::Nanos;

pub(super) const ENTRY: Entry = Entry {
    name: "autoswap",
    about: "AutoSwap (Zhang et al. 2019): variables absent around the peak, by four scores",
    make: Make::Future(make),
};

/// Smallest variable that is swapped (`smallest_block` in the prototype).
const SMALLEST: u64 = 1 << 20;

fn make<'p>(machine: &Machine, future: Future<'p>) -> Box<dyn FuturePolicy + 'p> {
    Planned::make(machine, future, plan)
}

fn plan(machine: &Machine, tensors: &Tensors<'_>) -> Plan {
    let mut candidates: Vec<Vec<Absence>> = vec![Vec::new(); tensors.iterations().len()];
    for id in tensors.ids() {
        if tensors.get(id).bytes() < SMALLEST {
            continue;
        }
        for gap in tensors.gaps(id) {
            let Some(at) = tensors.iteration_of(gap.from) else {
                continue;
            };
            let iteration = &tensors.iterations()[at];
            let peak = iteration.turn;
            if gap.from < peak && peak < gap.to && iteration.contains(gap.to) {
                candidates[at].push(Absence::new(machine, tensors, gap));
            }
        }
    }
    let limit = budget(machine);
    let mut plan = Plan::default();
    for (iteration, candidates) in tensors.iterations().iter().zip(&candidates) {
        let best = SCORES
            .iter()
            .map(|score| {
                let order = score(&Loads::new(tensors, iteration), candidates);
                Schedule::new(
                    tensors,
                    iteration,
                    select(tensors, iteration, order, limit),
                    limit,
                )
            })
            .min_by_key(|schedule| schedule.overhead);
        if let Some(schedule) = best {
            for (absence, fetch) in schedule.swaps {
                plan.outs.push((absence.gap.from, absence.gap.tensor));
                plan.ins.push((fetch, absence.gap.tensor));
            }
        }
    }
    plan
}

/// A candidate: its gap, size, and how long the copies take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Absence {
    gap: Gap,
    bytes: u64,
    start: Nanos,
    end: Nanos,
    out: Nanos,
    back: Nanos,
}

impl Absence {
    fn new(machine: &Machine, tensors: &Tensors<'_>, gap: Gap) -> Self {
        let bytes = tensors.get(gap.tensor).bytes();
        Self {
            gap,
            bytes,
            start: tensors.end(gap.from),
            end: tensors.start(gap.to),
            out: machine.call + machine.link_out.time(bytes),
            back: machine.call + machine.link_in.time(bytes),
        }
    }

    fn doa(&self) -> i128 {
        i128::from(self.end.0) - i128::from((self.start + self.out + self.back).0)
    }

    fn aoa(&self) -> i128 {
        match self.doa() {
            duration if duration >= 0 => duration * i128::from(self.bytes),
            duration => duration / i128::from(self.bytes),
        }
    }
}

/// The candidates, best first.
type Score = fn(&Loads, &[Absence]) -> Vec<Absence>;

const SCORES: [Score; 4] = [
    |_, candidates| by(candidates, Absence::doa),
    |_, candidates| by(candidates, Absence::aoa),
    |loads, candidates| by(candidates, |a| i128::from(loads.over(a.gap))),
    |loads, candidates| submodular(loads, candidates),
];

fn by(candidates: &[Absence], score: impl Fn(&Absence) -> i128) -> Vec<Absence> {
    let mut order = candidates.to_vec();
    order.sort_by_cached_key(|absence| (Reverse(score(absence)), absence.gap.tensor));
    order
}

/// Takes the best, takes its bytes off the load while it is absent, and scores the rest
/// anew. Scores only sink, so a stale best that is still best when scored anew is the best.
fn submodular(loads: &Loads, candidates: &[Absence]) -> Vec<Absence> {
    let mut loads = loads.clone();
    let key = |loads: &Loads, at: usize| (loads.over(candidates[at].gap), Reverse(at));
    let mut heap: BinaryHeap<(i64, Reverse<usize>)> =
        (0..candidates.len()).map(|at| key(&loads, at)).collect();
    let mut order = Vec::with_capacity(candidates.len());
    while let Some((_, Reverse(at))) = heap.pop() {
        let now = key(&loads, at);
        if heap.peek().is_some_and(|next| *next > now) {
            heap.push(now);
            continue;
        }
        let absence = candidates[at];
        loads.relieve(absence.gap, absence.bytes);
        order.push(absence);
    }
    order
}

/// The load of an iteration over time: MiB times microseconds, in a tree over its launches.
#[derive(Clone, Debug)]
struct Loads {
    first: u32,
    /// Fenwick trees: sum over `from..to` of load times time.
    area: Vec<i64>,
    /// Sums of the launches' times, microseconds.
    times: Vec<i64>,
    /// Taken off so far: by launch, in a tree of differences and of differences weighted.
    relief: Vec<i64>,
    weighted: Vec<i64>,
}

impl Loads {
    fn new(tensors: &Tensors<'_>, iteration: &Iteration) -> Self {
        let (mut area, mut times) = (vec![0], vec![0]);
        let (mut sum, mut time) = (0, 0);
        for launch in iteration.launches.clone().map(Launch) {
            let micros = (tensors.end(launch) - tensors.start(launch))
                .0
                .div_ceil(1_000) as i64;
            sum += (tensors.load(launch) >> 20) as i64 * micros;
            time += micros;
            area.push(sum);
            times.push(time);
        }
        Self {
            first: iteration.launches.start,
            relief: vec![0; area.len() + 1],
            weighted: vec![0; area.len() + 1],
            area,
            times,
        }
    }

    fn span(&self, gap: Gap) -> (usize, usize) {
        let from = (gap.from.0 + 1 - self.first) as usize;
        (from, (gap.to.0 - self.first) as usize)
    }

    /// The load summed over an absence.
    fn over(&self, gap: Gap) -> i64 {
        let (from, to) = self.span(gap);
        let until = |at: usize| {
            let (mut slope, mut offset, mut node) = (0, 0, at);
            while node > 0 {
                slope += self.relief[node];
                offset += self.weighted[node];
                node &= node - 1;
            }
            self.area[at] - (slope * self.times[at] - offset)
        };
        until(to) - until(from)
    }

    fn relieve(&mut self, gap: Gap, bytes: u64) {
        let (from, to) = self.span(gap);
        let size = (bytes >> 20) as i64;
        for (at, size) in [(from, size), (to, -size)] {
            let mut node = at + 1;
            while node < self.relief.len() {
                self.relief[node] += size;
                self.weighted[node] += size * self.times[at];
                node += node & node.wrapping_neg();
            }
        }
    }
}

/// The first candidates that together bring the peak within the limit.
fn select(
    tensors: &Tensors<'_>,
    iteration: &Iteration,
    order: Vec<Absence>,
    limit: u64,
) -> Vec<Absence> {
    let first = iteration.launches.start;
    let loads: Vec<i64> = iteration
        .launches
        .clone()
        .map(|at| tensors.load(Launch(at)) as i64)
        .collect();
    let mut levels = Levels::new(loads.into_iter());
    let mut selected = Vec::new();
    for absence in order {
        if levels.highest() <= limit as i64 {
            break;
        }
        let (from, to) = (absence.gap.from.0 + 1 - first, absence.gap.to.0 - first);
        levels.add(from, to, -(absence.bytes as i64));
        selected.push(absence);
    }
    selected
}

/// When the selected ones move, and what that is predicted to cost.
struct Schedule {
    /// With the launch at whose start the copy in is ordered.
    swaps: Vec<(Absence, Launch)>,
    overhead: Nanos,
}

impl Schedule {
    fn new(
        tensors: &Tensors<'_>,
        iteration: &Iteration,
        mut selected: Vec<Absence>,
        limit: u64,
    ) -> Self {
        selected.sort_by_key(|absence| (absence.gap.to, absence.gap.tensor));
        let mut latest = Nanos::NEVER;
        let mut swaps: Vec<(Absence, Launch)> = Vec::with_capacity(selected.len());
        for absence in selected.into_iter().rev() {
            latest = latest.min(absence.end) - absence.back;
            let after = Launch(absence.gap.from.0 + 1);
            let fetch = tensors.launch_at(latest).max(after).min(absence.gap.to);
            swaps.push((absence, fetch));
        }
        swaps.reverse();
        Self {
            overhead: predict(tensors, iteration, &swaps, limit),
            swaps,
        }
    }
}

/// Time that an iteration loses by these swaps: it waits where it would be over the limit
/// until a copy out is over, and for copies in that are not there in time.
fn predict(
    tensors: &Tensors<'_>,
    iteration: &Iteration,
    swaps: &[(Absence, Launch)],
    limit: u64,
) -> Nanos {
    let first = iteration.launches.start;
    let mut absent = vec![0i64; iteration.len() + 1];
    for (absence, _) in swaps {
        absent[(absence.gap.from.0 + 1 - first) as usize] += absence.bytes as i64;
        absent[(absence.gap.to.0 - first) as usize] -= absence.bytes as i64;
    }
    let mut outs: Vec<&Absence> = swaps.iter().map(|(absence, _)| absence).collect();
    outs.sort_by_key(|absence| (absence.gap.from, absence.gap.tensor));
    let mut state = Prediction::default();
    let (mut gone, mut fetched, mut used) = (0, 0, 0);
    let mut arrivals: Vec<Nanos> = Vec::with_capacity(swaps.len());
    let mut missing = 0i64;
    for launch in iteration.launches.clone().map(Launch) {
        missing += absent[(launch.0 - first) as usize];
        let ideal = tensors.load(launch) as i64 - missing;
        while let Some(absence) = outs.get(gone)
            && absence.gap.from < launch
        {
            state.leave(absence);
            gone += 1;
        }
        state.settle(ideal, limit as i64);
        while let Some((absence, fetch)) = swaps.get(fetched)
            && *fetch <= launch
        {
            arrivals.push(state.fetch(absence));
            fetched += 1;
        }
        while let Some((absence, _)) = swaps.get(used)
            && absence.gap.to <= launch
        {
            state.now = state.now.max(arrivals[used]);
            state.extra -= absence.bytes as i64;
            used += 1;
        }
        state.now += tensors.end(launch) - tensors.start(launch);
    }
    let end = tensors.start(Launch(iteration.launches.end)) - tensors.start(Launch(first));
    state.now - end
}

/// A little machine: a clock, two directions, and what is on the device beyond the ideal.
#[derive(Default)]
struct Prediction {
    now: Nanos,
    out: Nanos,
    back: Nanos,
    extra: i64,
    leaving: std::collections::VecDeque<(Nanos, i64)>,
}

impl Prediction {
    fn leave(&mut self, absence: &Absence) {
        self.out = self.out.max(self.now) + absence.out;
        self.extra += absence.bytes as i64;
        self.leaving.push_back((self.out, absence.bytes as i64));
    }

    /// Lets go what has left, and waits for more where memory is over the limit.
    fn settle(&mut self, ideal: i64, limit: i64) {
        while let Some(&(end, bytes)) = self.leaving.front()
            && (end <= self.now || ideal + self.extra > limit)
        {
            self.leaving.pop_front();
            self.extra -= bytes;
            self.now = self.now.max(end);
        }
    }

    fn fetch(&mut self, absence: &Absence) -> Nanos {
        self.back = self.back.max(self.now) + absence.back;
        self.extra += absence.bytes as i64;
        self.back
    }
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

    fn absences(tensors: &Tensors<'_>) -> Vec<Absence> {
        let machine = machine(40);
        let gaps = tensors.feature_maps().into_iter();
        let first = gaps.filter(|gap| tensors.iteration_of(gap.from) == Some(0));
        first
            .map(|gap| Absence::new(&machine, tensors, gap))
            .collect()
    }

    #[test]
    fn absence_counts_less_the_copies_and_area_times_the_size() {
        let training = Training::SMALL;
        let program = training.program();
        let tensors = of(&program);
        let absence = absences(&tensors)[0];
        let machine = machine(40);
        // From the end of forward launch 1 to the start of backward launch 1.
        let between = (training.backward(0, 1).0 - training.forward(0, 1).0 - 1) * 2_000_000;
        let copies = machine.link_out.time(absence.bytes).0
            + machine.link_in.time(absence.bytes).0
            + 2 * machine.call.0;
        assert_eq!(absence.doa(), i128::from(between) - i128::from(copies));
        assert_eq!(absence.aoa(), absence.doa() * i128::from(absence.bytes));
    }

    #[test]
    fn the_submodular_score_counts_only_the_load_that_is_left() {
        let program = Training::SMALL.program();
        let tensors = of(&program);
        let mut loads = Loads::new(&tensors, &tensors.iterations()[0]);
        let candidates = absences(&tensors);
        let (outer, inner) = (candidates[0].gap, candidates[3].gap);
        let before = loads.over(inner);
        loads.relieve(outer, candidates[0].bytes);
        let micros = (tensors.start(inner.to) - tensors.end(inner.from)).0 as i64 / 1_000;
        let mib = (candidates[0].bytes >> 20) as i64;
        assert_eq!(before - loads.over(inner), mib * micros);
        // What lies outside the absence is untouched.
        loads.relieve(inner, candidates[3].bytes);
        let tail = Gap {
            from: inner.to,
            ..outer
        };
        let left = loads.over(tail);
        loads.relieve(inner, candidates[3].bytes);
        assert_eq!(loads.over(tail), left);
    }

    #[test]
    fn as_many_are_swapped_as_bring_the_peak_within_the_limit() {
        let training = Training::SMALL;
        let program = training.program();
        let tensors = of(&program);
        let swapped = |frames| {
            let plan = plan(&machine(frames), &tensors);
            let first = plan
                .outs
                .iter()
                .filter(|(at, _)| at.0 < training.launches());
            first.map(|&(_, id)| tensors.get(id).bytes()).sum::<u64>()
        };
        // 48 blocks at the peak.
        let block = crate::units::BLOCK_BYTES;
        for frames in [48, 44, 40] {
            let least = 48 * block - budget(&machine(frames));
            assert!(swapped(frames) >= least && swapped(frames) < least + 4 * block);
        }
    }

    #[test]
    fn only_what_is_not_used_at_the_peak_and_large_enough_is_a_candidate() {
        let training = Training::SMALL;
        let program = training.program();
        let tensors = of(&program);
        let plan = plan(&machine(24), &tensors);
        assert_eq!(plan.outs.len(), plan.ins.len());
        for (&(from, id), &(fetch, _)) in plan.outs.iter().zip(&plan.ins) {
            let iteration = &tensors.iterations()[tensors.iteration_of(from).unwrap()];
            assert!(from < iteration.turn && tensors.get(id).bytes() >= SMALLEST);
            assert!(fetch > from);
        }
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
