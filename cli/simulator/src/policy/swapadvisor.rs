//! SwapAdvisor: a search for the swap plan that a simulator finds fastest.
//!
//! Huang et al., ASPLOS 2020, sections 4 and 5: a genetic algorithm over operator schedules
//! and memory pools; for each candidate a swap plan is derived (swap out by the furthest
//! next use, swap in as early as is safe), and a dataflow simulator says how long the
//! iteration takes.
//!
//! Choices: the trace fixes the schedule and the addresses, so the search is over the swap
//! plan. A candidate is five weights (see [`Genes`]): how much an idle period's length, its
//! size, the time for which it lies where the device is too full, and the slack that its
//! transfers have count for its rank, and how much earlier than necessary it comes back.
//! Plans are compared by an own estimate over the launches of [`SAMPLE`] at most (in the
//! middle of the trace): each direction of the link serves one transfer at a time, a launch
//! waits for what it needs. The random choices come from the seed of the run.

use crate::class::{Future, FuturePolicy};
use crate::machine::Machine;
use crate::model::Room;
use crate::trace::Random;
use crate::units::{BLOCK_BYTES, Nanos};

use super::plan::{
    Excess, Fallback, Gaps, Scripted, Timed, Way, hasten, latest, relieve, script, times,
};
use super::{Entry, Make};

pub(super) const ENTRY: Entry = Entry {
    name: "swapadvisor",
    about: "SwapAdvisor (ASPLOS 2020): genetic search for the swap plan in a simulator",
    make: Make::Search(make),
};

/// Percent of the device that stays free.
const SPARE: u64 = 2;
const POPULATION: usize = 8;
const GENERATIONS: u32 = 5;
/// Most launches by which plans are compared, and most in which a plan is searched at all.
const SAMPLE: u32 = 8_192;

/// A candidate: weights from 0 to 8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Genes {
    idle: u8,
    size: u8,
    relief: u8,
    slack: u8,
    /// 0: back at the latest safe time; 8: at the earliest.
    early: u8,
}

impl Genes {
    /// The paper's own rule: furthest next use out, earliest safe time in.
    const FURTHEST: Self = Self {
        idle: 8,
        size: 0,
        relief: 0,
        slack: 0,
        early: 8,
    };

    fn random(random: &mut Random) -> Self {
        let mut gene = || random.below(9) as u8;
        Self {
            idle: gene(),
            size: gene(),
            relief: gene(),
            slack: gene(),
            early: gene(),
        }
    }

    /// Each weight from one parent or the other, one in eight drawn anew.
    fn child(a: Self, b: Self, random: &mut Random) -> Self {
        let mut gene = |a: u8, b: u8| match random.below(8) {
            0 => random.below(9) as u8,
            1..=3 => a,
            _ => b,
        };
        Self {
            idle: gene(a.idle, b.idle),
            size: gene(a.size, b.size),
            relief: gene(a.relief, b.relief),
            slack: gene(a.slack, b.slack),
            early: gene(a.early, b.early),
        }
    }
}

fn make<'p>(machine: &Machine, future: Future<'p>, seed: u64) -> Box<dyn FuturePolicy + 'p> {
    let gaps = Gaps::of(future);
    let frames = machine.memory_bytes / BLOCK_BYTES * (100 - SPARE) / 100;
    let line = u32::try_from(frames).unwrap_or(u32::MAX);
    let search = Search::new(machine, &gaps, line);
    let chosen = search.plan(search.best(seed));
    let script = script(&gaps, &chosen);
    Box::new(Scripted::new(
        future.program,
        gaps,
        script,
        Room::Take,
        Fallback::Furthest,
    ))
}

struct Search<'g> {
    machine: &'g Machine,
    gaps: &'g Gaps,
    times: Vec<Nanos>,
    line: u32,
    /// By gap: logarithms of what the weights count, in 1/16.
    features: Vec<[i64; 4]>,
}

impl<'g> Search<'g> {
    fn new(machine: &'g Machine, gaps: &'g Gaps, line: u32) -> Self {
        let times = times(gaps);
        let excess = Excess::new(gaps.occupied(), &times, line);
        let way = Way::link(machine, &times);
        let features = gaps.list().iter().map(|gap| {
            let idle = gaps.idle(gap);
            [
                log(idle.0),
                log(gap.bytes),
                log(excess.time(gap.from + 1, gap.to).0),
                log(idle.0) - log(way.cost(gap).0),
            ]
        });
        let features = features.collect();
        Self {
            machine,
            gaps,
            times,
            line,
            features,
        }
    }

    /// The plan that a candidate stands for.
    fn plan(&self, genes: Genes) -> Vec<Timed> {
        let weights = [genes.idle, genes.size, genes.relief, genes.slack].map(i64::from);
        let score = |number: &u32| -> i64 {
            let features = &self.features[*number as usize];
            features.iter().zip(weights).map(|(f, w)| f * w).sum()
        };
        let mut order: Vec<u32> = (0..self.gaps.list().len() as u32).collect();
        order.sort_by_cached_key(|number| (std::cmp::Reverse(score(number)), *number));
        let chosen = relieve(self.gaps, order, &self.times, self.line);
        let mut way = Way::link(self.machine, &self.times);
        let late = latest(self.gaps, chosen, &mut way);
        let mut early = hasten(self.gaps, late.clone(), self.line);
        early.sort_by_key(|one| one.gap);
        let begin = |(late, early): (&Timed, &Timed)| Timed {
            begin: late.begin - (late.begin - early.begin) * u32::from(genes.early) / 8,
            ..*late
        };
        late.iter().zip(&early).map(begin).collect()
    }

    fn best(&self, seed: u64) -> Genes {
        let mut random = Random::new(seed);
        let fits = self.gaps.occupied().iter().all(|&f| f <= self.line);
        if fits || self.gaps.launches() > 16 * SAMPLE {
            return Genes::FURTHEST;
        }
        let mut all: Vec<(Nanos, Genes)> = vec![self.judged(Genes::FURTHEST)];
        while all.len() < POPULATION {
            all.push(self.judged(Genes::random(&mut random)));
        }
        for _ in 0..GENERATIONS {
            all.sort_by_key(|one| one.0);
            all.truncate(POPULATION / 2);
            for _ in 0..POPULATION / 2 {
                let a = all[random.below(POPULATION as u64 / 2) as usize].1;
                let b = all[random.below(POPULATION as u64 / 2) as usize].1;
                all.push(self.judged(Genes::child(a, b, &mut random)));
            }
        }
        all.into_iter()
            .min_by_key(|one| one.0)
            .map_or(Genes::FURTHEST, |one| one.1)
    }

    fn judged(&self, genes: Genes) -> (Nanos, Genes) {
        (self.estimate(&self.plan(genes)), genes)
    }

    /// Time of the sampled launches under a plan.
    fn estimate(&self, plan: &[Timed]) -> Nanos {
        let all = self.gaps.launches();
        let first = all.saturating_sub(SAMPLE) / 2;
        let end = (first + SAMPLE).min(all);
        let in_order = |key: fn(&Timed, &Gaps) -> u32| {
            let mut order: Vec<&Timed> = plan.iter().collect();
            order.sort_by_key(|one| (key(one, self.gaps), one.gap));
            order.retain(|one| (first..end).contains(&key(one, self.gaps)));
            order
        };
        let outs = in_order(|one, gaps| gaps.list()[one.gap as usize].from + 1);
        let ins = in_order(|one, _| one.begin);
        let (mut outs, mut ins) = (outs.into_iter().peekable(), ins.into_iter().peekable());
        let mut gone = vec![Nanos(0); self.gaps.list().len()];
        // When a launch's last operand arrives.
        let mut due = vec![Nanos(0); (end - first) as usize];
        let (mut now, mut out_free, mut in_free) = (Nanos(0), Nanos(0), Nanos(0));
        for launch in first..end {
            while let Some(one) =
                outs.next_if(|one| self.gaps.list()[one.gap as usize].from + 1 == launch)
            {
                let gap = &self.gaps.list()[one.gap as usize];
                out_free = out_free.max(now) + self.machine.link_out.time(gap.bytes);
                gone[one.gap as usize] = out_free;
            }
            while let Some(one) = ins.next_if(|one| one.begin == launch) {
                let gap = &self.gaps.list()[one.gap as usize];
                let start = in_free.max(now).max(gone[one.gap as usize]);
                in_free = start + self.machine.link_in.time(gap.bytes);
                if (first..end).contains(&gap.to) {
                    let due = &mut due[(gap.to - first) as usize];
                    *due = in_free.max(*due);
                }
            }
            now = now.max(due[(launch - first) as usize]) + self.times[launch as usize];
        }
        now
    }
}

/// Binary logarithm in sixteenths.
fn log(value: u64) -> i64 {
    let value = value.max(1);
    let whole = u64::from(value.ilog2());
    let rest = if whole >= 4 {
        (value >> (whole - 4)) & 15
    } else {
        (value << (4 - whole)) & 15
    };
    (16 * whole + rest) as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::checks::{contract, machine};
    use crate::policy::samples::Training;

    #[test]
    fn keeps_the_contract() {
        contract(&ENTRY);
    }

    #[test]
    fn the_search_never_ends_worse_than_it_began() {
        for launch_us in [100, 500, 2_000] {
            let training = Training {
                layers: 16,
                launch_us,
                ..Training::SMALL
            };
            let program = training.program();
            let gaps = Gaps::of(Future {
                program: &program,
                lifetimes: true,
            });
            let machine = machine(60);
            let search = Search::new(&machine, &gaps, 58);
            let began = search.estimate(&search.plan(Genes::FURTHEST));
            let best = search.best(0);
            assert!(search.estimate(&search.plan(best)) <= began);
            assert_eq!(best, search.best(0));
        }
    }

    #[test]
    fn a_plan_without_swaps_takes_the_launches_time() {
        let program = Training::SMALL.program();
        let gaps = Gaps::of(Future {
            program: &program,
            lifetimes: true,
        });
        let machine = machine(1000);
        let search = Search::new(&machine, &gaps, 1000);
        assert_eq!(search.estimate(&[]), gaps.start(gaps.launches()));
    }

    #[test]
    fn the_logarithm_rises() {
        let values = [
            1,
            2,
            3,
            7,
            8,
            9,
            100,
            1 << 20,
            (1 << 20) + (1 << 17),
            1 << 40,
        ];
        assert!(values.windows(2).all(|pair| log(pair[0]) < log(pair[1])));
        assert_eq!(log(1 << 20), 320);
    }
}
