//! All schedules of small programs that use blocks in part, again by a simulator of its own.
//!
//! As `exhaustive`, but a block is two halves that are used, moved and kept by themselves, a tick
//! is the time that a half takes over the link, and a block holds a frame while either half is on
//! the device. Launches use a half, a block, or every other page of a block by an index. An access
//! on the host takes twice the time of a copy of as much.

use std::collections::{BTreeSet, HashSet};

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::super::counts::Counted;
use super::super::gaps::Gaps;
use super::super::price::{Prices, Stretch};
use super::*;
use crate::units::{LEAF_PAGES, LEAVES};

/// Blocks of the programs; half `h` of block `b` is bit `2 b + h`.
const BLOCKS: u8 = 3;
/// Slots of a stretch that is cut coarsely.
const FEW: usize = 4;
/// Ticks in the transfer of a block.
const TICKS: u64 = 2;

/// A machine on which an access takes twice the time of a copy.
fn machine() -> Machine {
    Machine {
        access_percent: 50,
        ..test_machine()
    }
}

/// What a launch uses of its block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Half(u8),
    All,
    /// Half of the pages of each leaf, by an index.
    Indexed,
}

/// A launch.
#[derive(Clone, Copy, Debug)]
struct Use {
    block: u8,
    part: Part,
    reads: bool,
    writes: bool,
    ticks: u8,
}

impl Use {
    /// The halves that it uses.
    fn halves(self) -> u8 {
        let halves = match self.part {
            Part::Half(half) => 1 << half,
            Part::All | Part::Indexed => 0b11,
        };
        halves << (2 * self.block)
    }

    /// Ticks of the link that its access to so many halves on the host takes, one way.
    fn on_host(self, halves: u32) -> u8 {
        let each = if self.part == Part::Indexed { 1 } else { 2 };
        each * halves as u8
    }
}

#[derive(Clone, Debug)]
struct Case {
    iterations: Vec<Vec<Use>>,
    frames: u32,
    deaths: Deaths,
    reach: Reach,
}

fn case() -> impl Strategy<Value = Case> {
    let part = prop_oneof![
        Just(Part::Half(0)),
        Just(Part::Half(1)),
        Just(Part::All),
        Just(Part::Indexed),
    ];
    let one = (0..BLOCKS, part, 0u8..4, 0u8..3).prop_map(|(block, part, mode, ticks)| Use {
        block,
        part,
        // What is used by an index is never overwritten whole.
        reads: mode != 3 || part == Part::Indexed,
        writes: mode >= 2,
        ticks,
    });
    let iterations = prop::collection::vec(prop::collection::vec(one, 3..7), 4..8);
    let deaths = prop_oneof![Just(Deaths::Foreseen), Just(Deaths::Told)];
    let reach = prop_oneof![
        Just(Reach::Nothing),
        Just(Reach::Indexed),
        Just(Reach::Everything)
    ];
    let all = (iterations, 1u32..3, deaths, reach);
    all.prop_map(|(iterations, frames, deaths, reach)| Case {
        iterations,
        frames,
        deaths,
        reach,
    })
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct State {
    /// The launch that begins next.
    at: usize,
    /// Ticks that the one before it still takes.
    left: u8,
    /// Ticks for which its accesses to the host still take each direction of the link.
    busy: [u8; 2],
    device: u8,
    host: u8,
}

/// Blocks of which either half is in a set.
fn frames(halves: u8) -> u32 {
    ((halves | halves >> 1) & 0b01_0101).count_ones()
}

/// One of a set, or none.
fn one_of(set: u8) -> impl Iterator<Item = u8> {
    let single = (0..8).map(|half| 1 << half);
    single.filter(move |bit| set & bit != 0).chain([0])
}

impl Case {
    fn program(&self) -> Program {
        let mut builder = ProgramBuilder::new("halves");
        let memory = u64::from(BLOCKS) * BLOCK_BYTES;
        builder.alloc(BASE, memory).expect("alloc");
        let all = [Region {
            address: BASE,
            bytes: memory,
        }];
        builder.host(&[], &all).expect("host");
        for (number, iteration) in self.iterations.iter().enumerate() {
            builder.iteration(number as u64).expect("iteration");
            for launch in iteration {
                let block = BASE + u64::from(launch.block) * BLOCK_BYTES;
                let half = BLOCK_BYTES / 2;
                let (address, bytes) = match launch.part {
                    Part::Half(which) => (block + u64::from(which) * half, half),
                    Part::All | Part::Indexed => (block, BLOCK_BYTES),
                };
                let region = [Region { address, bytes }];
                let reads: &[Region] = if launch.reads { &region } else { &[] };
                let writes: &[Region] = if launch.writes { &region } else { &[] };
                let time = Nanos(u64::from(launch.ticks) * BLOCK_TIME / TICKS);
                let mut spec = LaunchSpec::kernel("use", time, reads, writes);
                spec.indexed = (launch.part == Part::Indexed).then_some(Indexed {
                    pages: u64::from(LEAVES * LEAF_PAGES / 2),
                    leaves: u64::from(LEAVES),
                    bytes: None,
                });
                builder.launch(spec).expect("launch");
            }
        }
        builder.finish()
    }

    fn bounds(&self, program: &Program) -> Bounds {
        Bounds::reaching(program, &machine(), (true, self.deaths), self.reach)
    }

    /// The same where the stretch has few slots.
    fn coarse_bounds(&self, program: &Program) -> Bounds {
        let class = (true, self.deaths);
        Bounds::cut(program, &machine(), class, self.reach, FEW)
    }

    /// Whether launches may use a block on the host.
    fn reaches(&self, block: u8) -> bool {
        let by_index = |one: &Use| one.block == block && one.part == Part::Indexed;
        match self.reach {
            Reach::Nothing => false,
            Reach::Indexed => self.iterations.iter().flatten().any(by_index),
            Reach::Everything => true,
        }
    }

    /// The ways in which a launch can begin in a state.
    fn begin(&self, one: Use, state: State) -> Vec<State> {
        let used = one.halves();
        let away = used & !state.device;
        let fresh = away & !state.host;
        let begun = State {
            at: state.at + 1,
            left: one.ticks,
            ..state
        };
        let mut ways = Vec::new();
        if away == fresh && frames(state.device | used) <= self.frames {
            ways.push(State {
                device: state.device | used,
                ..begun
            });
        }
        if away != 0 && self.reaches(one.block) {
            let content = (away & !fresh).count_ones();
            let ticks = [
                if one.reads { one.on_host(content) } else { 0 },
                if one.writes {
                    one.on_host(away.count_ones())
                } else {
                    0
                },
            ];
            ways.push(State {
                left: one.ticks.max(ticks[0]).max(ticks[1]),
                busy: ticks,
                host: state.host | away,
                ..begun
            });
        }
        ways
    }

    /// Fewest ticks.
    fn shortest(&self) -> u64 {
        let uses: Vec<Use> = self.iterations.concat();
        let steady = self.program().steady();
        let (first, end) = (steady[0].start, steady[steady.len() - 1].end);
        let (first, end) = (first as usize, end as usize);
        // The halves whose content is to be kept before launch `at`.
        let kept = |at: usize| -> u8 {
            let needed = |half: &u8| {
                let next = uses[at..].iter().find(|one| one.halves() & half != 0);
                self.deaths == Deaths::Told || next.is_some_and(|one| one.reads)
            };
            let halves = (0..2 * BLOCKS).map(|half| 1 << half);
            halves.filter(needed).fold(0, |set, half| set | half)
        };
        let mut states: HashSet<State> = HashSet::new();
        let content = kept(first);
        for device in 0u8..1 << (2 * BLOCKS) {
            if device & !content == 0 && frames(device) <= self.frames {
                states.insert(State {
                    at: first,
                    left: 0,
                    busy: [0; 2],
                    device,
                    host: content & !device,
                });
            }
        }
        let mut ticks = 0;
        loop {
            let mut reached = BTreeSet::new();
            let mut open: Vec<State> = states.into_iter().collect();
            while let Some(state) = open.pop() {
                if !reached.insert(state) || state.left > 0 {
                    continue;
                }
                if state.at == end {
                    return ticks;
                }
                for mut next in self.begin(uses[state.at], state) {
                    next.device &= kept(next.at);
                    next.host &= kept(next.at);
                    open.push(next);
                }
            }
            states = HashSet::new();
            for state in reached {
                for inward in one_of(state.host) {
                    for outward in one_of(state.device) {
                        let busy = state.busy.map(|ticks| ticks > 0);
                        let blocked = busy[0] && inward != 0 || busy[1] && outward != 0;
                        if blocked || frames(state.device | inward) > self.frames {
                            continue;
                        }
                        states.insert(State {
                            at: state.at,
                            left: state.left.saturating_sub(1),
                            busy: state.busy.map(|ticks| ticks.saturating_sub(1)),
                            device: (state.device | inward) & !outward,
                            host: (state.host | outward) & !inward,
                        });
                    }
                }
            }
            ticks += 1;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_schedule_of_partly_used_blocks_beats_a_bound(case in case()) {
        let program = case.program();
        let bounds = case.bounds(&program);
        let capacity = u64::from(case.frames) * BLOCK_BYTES;
        let iterations = bounds.slots.iterations as u64;
        let shortest = Nanos(case.shortest() * BLOCK_TIME / TICKS / iterations);
        let mut all = vec![bounds.lb0(), bounds.lb2(capacity)];
        all.extend(bounds.every_lb3(capacity));
        all.extend(case.coarse_bounds(&program).every_lb3(capacity));
        all.push(bounds.strongest(capacity, Effort::Full));
        if case.reach == Reach::Nothing {
            all.push(bounds.lb1_streaming(capacity));
        }
        for bound in all {
            prop_assert!(bound.time <= shortest, "{bound:?} over {shortest:?}");
        }
    }
}

/// Prices that are mostly nothing: what is charged once too often shows where all else is free.
fn sparse(most: f64) -> impl Strategy<Value = f64> {
    prop_oneof![3 => Just(0.0), 1 => 0.0..most]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn no_schedule_of_partly_used_blocks_beats_the_bound_of_any_prices(
        case in case(),
        frame in prop::collection::vec(sparse(3e5), 64),
        link in prop::collection::vec([sparse(2.0), sparse(2.0), sparse(0.0001)], 64),
    ) {
        let program = case.program();
        let machine = machine();
        let slots = Slots::cut(&program, machine.rules, 64);
        let rates = Rates::of(&machine);
        let class = (true, case.deaths);
        let gaps = Gaps::of(&program, &slots, class, case.reach, rates.access_percent);
        let count = slots.len();
        let mut prices = Prices::free(count);
        prices.frame.copy_from_slice(&frame[..=count]);
        prices.link.copy_from_slice(&link[..count + 2]);
        let shortest = case.shortest() * BLOCK_TIME / TICKS;
        let ways = [Counted::leaves(&gaps), Counted::frames(&gaps), Counted::blocks(&gaps)];
        for counted in ways {
            let stretch = Stretch {
                times: &slots.times,
                wanted: &counted.wanted,
                cells: &counted.cells,
                frames: u64::from(case.frames),
                leaf: rates.leaf(),
            };
            prop_assert!(stretch.bound(prices.clone()) <= shortest as f64);
        }
    }
}

/// How near the strongest bound comes to the truth.
#[test]
fn the_bound_is_often_near_the_truth_where_blocks_are_used_in_part() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut near, mut stalls) = (0, 0);
    for _ in 0..200 {
        let case = case().new_tree(&mut runner).expect("a case").current();
        let program = case.program();
        let bounds = case.bounds(&program);
        let iterations = bounds.slots.iterations as u64;
        let shortest = case.shortest() * BLOCK_TIME / TICKS / iterations;
        if shortest > bounds.lb0().time.0 {
            stalls += 1;
            let capacity = u64::from(case.frames) * BLOCK_BYTES;
            let bound = bounds.strongest(capacity, Effort::Full);
            near += u32::from(bound.time.0 * 100 >= shortest * 75);
        }
    }
    assert!(
        stalls >= 60 && near * 3 >= stalls,
        "{near} of {stalls} within 25 percent"
    );
}
