//! G10: a plan of evictions and prefetches for a whole iteration from tensor vitality.
//!
//! Zhang et al., MICRO'23, sections 4.2 to 4.4, with the constants of the public artifact
//! (commit de2c8c6, `analysis.cc`): the line at 0.99 of the device, a period must exceed
//! two and a half times the cost of its transfers, fault latency 45 us for the host and 65
//! us for the SSD. While the estimated use of the device exceeds the line, the idle period
//! with the largest size times time above the line leaves, its usable part shortened by
//! the time that half of the transfers takes within the bandwidth already promised;
//! prefetches then move from their latest safe time to the earliest at which the estimate
//! stays within the line.
//!
//! Choices: the plan is made over the whole trace, not one iteration repeated; a period
//! whose transfers do not fit its launches is left alone; what the plan misses faults and
//! evicts in the driver's order (the artifact's `prefetch_lru`). On a machine with an SSD a
//! long period goes there first and to the host where the SSD's time is promised already.
//!
//! On the `g10` machine the artifact's own planner is followed where it differs from its
//! paper: see `artifact`.

mod artifact;

use std::collections::BinaryHeap;
use std::ops::Range;

use crate::class::{Future, FuturePolicy};
use crate::machine::{Machine, Rules};
use crate::model::Room;
use crate::trace::Program;
use crate::units::{BLOCK_BYTES, Nanos, Rate};

use super::plan::{
    Excess, Fallback, Gap, Gaps, Levels, Script, Scripted, Timed, Way, hasten, script, times,
};
use super::{Entry, Make};

pub(super) const ENTRY: Entry = Entry {
    name: "g10",
    about: "G10 (MICRO'23): evictions and prefetches planned from tensors' idle periods",
    make: Make::Future(make),
};

fn make<'p>(machine: &Machine, future: Future<'p>) -> Box<dyn FuturePolicy + 'p> {
    let gaps = Gaps::of(future);
    let script = plan(machine, &gaps, future.program);
    Box::new(Scripted::new(
        future.program,
        gaps,
        script,
        Room::Take,
        Fallback::Driver,
    ))
}

/// Percent of the device that the plan fills.
const LINE: u64 = 99;
const HOST_LATENCY: Nanos = Nanos::from_micros(45);
const SSD_LATENCY: Nanos = Nanos::from_micros(65);

fn plan(machine: &Machine, gaps: &Gaps, program: &Program) -> Script {
    let times = times(gaps);
    let line = u32::try_from(machine.memory_bytes / BLOCK_BYTES * LINE / 100).unwrap_or(u32::MAX);
    if machine.rules == Rules::G10
        && let Some(ssd) = machine.ssd
    {
        return artifact::plan(machine, ssd, gaps, program, line);
    }
    let mut ways = Paper::new(machine, gaps, &times);
    let chosen = choose(gaps, &times, line, &mut ways);
    script(gaps, &hasten(gaps, chosen, line))
}

/// What a planner reckons with.
trait Ways {
    /// The launches in which a period's memory is free, for its benefit.
    fn usable(&mut self, gap: &Gap) -> Option<Range<u32>>;

    /// The period's times, which are promised; none where it stays.
    fn place(&mut self, gap: &Gap) -> Option<Placed>;
}

/// When a period leaves and comes back.
struct Placed {
    /// The launch during which the eviction ends.
    gone: u32,
    /// The launch at whose start it is asked for again.
    begin: u32,
    /// It goes to the SSD.
    deep: bool,
}

/// The paper's: exact rates, and the SSD first where there is one.
struct Paper<'g> {
    gaps: &'g Gaps,
    host: Way,
    ssd: Option<Way>,
    /// Frames' worth of content on the host during each launch, and how much it takes.
    host_levels: Levels,
    host_frames: i64,
}

impl<'g> Paper<'g> {
    fn new(machine: &Machine, gaps: &'g Gaps, times: &[Nanos]) -> Self {
        let rest = |link: Rate, ssd: Rate| Rate(link.0.saturating_sub(ssd.0).max(1));
        let (mut out_rate, mut in_rate) = (machine.link_out, machine.link_in);
        if let Some(ssd) = machine.ssd {
            out_rate = rest(out_rate, ssd.write);
            in_rate = rest(in_rate, ssd.read);
        }
        let frames = machine.host_bytes.unwrap_or(u64::MAX) / BLOCK_BYTES;
        Self {
            gaps,
            host: Way::new(out_rate, in_rate, HOST_LATENCY, times),
            ssd: machine
                .ssd
                .map(|ssd| Way::new(ssd.write, ssd.read, SSD_LATENCY, times)),
            host_levels: Levels::new((0..gaps.launches()).map(|_| 0)),
            host_frames: i64::try_from(frames).unwrap_or(i64::MAX),
        }
    }

    /// A period long enough to be worth its transfers.
    fn pays(&self, way: &Way, gap: &Gap) -> bool {
        let cost = way.cost(gap);
        self.gaps.idle(gap).0 > cost.0 + cost.0 / 4
    }

    /// Whether a period goes to the SSD; none where it is too short for either.
    fn deep(&mut self, gap: &Gap) -> Option<bool> {
        if let Some(ssd) = &self.ssd
            && self.pays(ssd, gap)
        {
            let window = self.gaps.start(gap.from + 1) + ssd.out_time(gap);
            let end = self.gaps.launch_at(window) + 1;
            let room = self.host_frames - i64::from(gap.frames());
            let full = self.host_levels.last_above(gap.to, room);
            let host_has_room = full.is_none_or(|launch| launch <= gap.from);
            let ssd = self.ssd.as_mut()?;
            return Some(!(ssd.taken(gap, end.min(gap.to)) && host_has_room));
        }
        self.pays(&self.host, gap).then_some(false)
    }

    fn fit(&mut self, gap: &Gap, deep: bool, share: u64, take: bool) -> Option<(u32, u32)> {
        match &mut self.ssd {
            Some(ssd) if deep => ssd.fit(gap, share, take),
            _ => self.host.fit(gap, share, take),
        }
    }
}

impl Ways for Paper<'_> {
    fn usable(&mut self, gap: &Gap) -> Option<Range<u32>> {
        let deep = self.deep(gap)?;
        let (gone, begin) = self.fit(gap, deep, 2, false)?;
        Some(gone + 1..begin)
    }

    fn place(&mut self, gap: &Gap) -> Option<Placed> {
        let deep = self.deep(gap)?;
        let (gone, begin) = self.fit(gap, deep, 1, true)?;
        if !deep {
            let frames = i64::from(gap.frames());
            self.host_levels.add(gap.from + 1, gap.to, frames);
        }
        Some(Placed { gone, begin, deep })
    }
}

/// Greedy choice of periods by benefit; the benefit of a period hardly ever rises while
/// others are chosen, so an old value serves as an upper bound and the heap need not be
/// rebuilt.
fn choose(gaps: &Gaps, times: &[Nanos], line: u32, ways: &mut impl Ways) -> Vec<Timed> {
    let mut excess = Excess::new(gaps.occupied(), times, line);
    let mut chosen = Vec::new();
    if !excess.any() {
        return chosen;
    }
    let mut heap: BinaryHeap<(u128, Nanos, u32)> = gaps
        .list()
        .iter()
        .zip(0..)
        .map(|(gap, number)| (u128::MAX, gaps.idle(gap), number))
        .collect();
    while let Some((old, idle, number)) = heap.pop() {
        if !excess.any() {
            break;
        }
        let gap = &gaps.list()[number as usize];
        let Some(usable) = ways.usable(gap) else {
            continue;
        };
        let time = excess.time(usable.start, usable.end);
        let benefit = u128::from(gap.frame_bytes()) * u128::from(time.0);
        if benefit == 0 {
            continue;
        }
        if benefit < old
            && heap
                .peek()
                .is_some_and(|next| (next.0, next.1) > (benefit, idle))
        {
            heap.push((benefit, idle, number));
            continue;
        }
        if let Some(Placed { gone, begin, deep }) = ways.place(gap) {
            excess.relieve(gone + 1, begin, gap.frames());
            chosen.push(Timed {
                gap: number,
                gone,
                begin,
                deep,
            });
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::checks::{contract, machine, outcome};
    use crate::policy::samples::Training;

    /// Launches of 5 ms, blocks of 0.1 ms: everything can be hidden.
    const SLOW: Training = Training {
        layers: 24,
        launch_us: 5_000,
        ..Training::SMALL
    };

    #[test]
    fn keeps_the_contract() {
        contract(&ENTRY);
    }

    #[test]
    fn transfers_are_hidden_where_the_link_can_carry_them() {
        let run = outcome(&SLOW.program(), &ENTRY, 80);
        let last = run.iterations[2];
        assert!(last.totals.bytes_in > 0);
        assert!(last.time.0 < last.ideal.0 + last.ideal.0 / 50);
    }

    #[test]
    fn the_plan_holds_the_line_and_moves_the_longest_periods() {
        let program = SLOW.program();
        let gaps = Gaps::of(Future {
            program: &program,
            lifetimes: true,
        });
        let script = plan(&machine(100), &gaps, &program);
        let mut levels: Vec<i64> = gaps.occupied().iter().map(|&f| i64::from(f)).collect();
        for &(_, number) in &script.evictions {
            let gap = gaps.list()[number as usize];
            let back = script
                .prefetches
                .iter()
                .find(|prefetch| prefetch.1 == number)
                .map_or(gap.to, |prefetch| prefetch.0);
            assert!(back <= gap.to);
            for level in &mut levels[gap.from as usize + 2..back as usize] {
                *level -= i64::from(gap.frames());
            }
        }
        assert!(levels.iter().all(|&level| level <= 99), "{levels:?}");
    }

    #[test]
    fn nothing_is_planned_where_everything_fits() {
        let program = SLOW.program();
        let gaps = Gaps::of(Future {
            program: &program,
            lifetimes: true,
        });
        assert_eq!(plan(&machine(1000), &gaps, &program), Script::default());
    }
}
