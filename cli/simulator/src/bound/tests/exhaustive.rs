//! All schedules of small programs, by a simulator of its own that shares nothing with the
//! model: time in ticks of one block's transfer, a launch touches one block at its start,
//! each direction moves at most one block in a tick. The fewest ticks from any state that
//! the device may be in when the steady iterations begin.

use std::collections::{BTreeSet, HashSet};

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::super::counts::Counted;
use super::super::gaps::Gaps;
use super::super::price::{Prices, Stretch};
use super::*;

/// Slots of a stretch that is cut coarsely.
const FEW: usize = 4;

/// A machine on which an access takes as long as a copy.
fn machine() -> Machine {
    Machine {
        access_percent: 100,
        ..test_machine()
    }
}

/// A launch: which block, whether it overwrites it (or updates it) and whether that is a fill,
/// the block that is given back afterwards if it is in use, and its ticks of compute.
#[derive(Clone, Copy, Debug)]
struct Use {
    block: u8,
    overwrites: bool,
    /// It reads it only.
    reads: bool,
    fills: bool,
    dies: Option<u8>,
    ticks: u8,
}

/// A program of iterations that are not alike.
#[derive(Clone, Debug)]
struct Case {
    iterations: Vec<Vec<Use>>,
    frames: u32,
    lifetimes: bool,
    deaths: Deaths,
    reach: Reach,
}

fn case() -> impl Strategy<Value = Case> {
    let dies = prop_oneof![3 => Just(None), 2 => (0u8..4).prop_map(Some)];
    let one = (0u8..4, 0u8..7, dies, 0u8..3).prop_map(|(block, kind, dies, ticks)| Use {
        block,
        overwrites: kind == 3 || kind == 4,
        reads: kind >= 5,
        fills: kind == 4,
        dies,
        ticks,
    });
    let deaths = prop_oneof![Just(Deaths::Foreseen), Just(Deaths::Told)];
    let iteration = prop::collection::vec(one, 3..7);
    let iterations = prop::collection::vec(iteration, 4..6);
    let reach = prop_oneof![Just(Reach::Nothing), Just(Reach::Everything)];
    let all = (iterations, 1u32..4, any::<bool>(), deaths, reach);
    all.prop_map(|(iterations, frames, lifetimes, deaths, reach)| Case {
        iterations,
        frames,
        lifetimes,
        deaths,
        reach,
    })
}

impl Case {
    fn program(&self) -> Program {
        let mut builder = ProgramBuilder::new("case");
        builder.alloc(BASE, 4 * BLOCK_BYTES).expect("alloc");
        let mut used = [false; 4];
        for (number, iteration) in self.iterations.iter().enumerate() {
            builder.iteration(number as u64).expect("iteration");
            for launch in iteration {
                let block = usize::from(launch.block);
                let region = [Region {
                    address: BASE + block as u64 * BLOCK_BYTES,
                    bytes: BLOCK_BYTES,
                }];
                if !std::mem::replace(&mut used[block], true) {
                    builder.use_(region[0].address, BLOCK_BYTES).expect("use");
                }
                let time = Nanos(u64::from(launch.ticks) * BLOCK_TIME);
                let reads: &[Region] = if launch.overwrites { &[] } else { &region };
                let name = if launch.fills { "memset" } else { "use" };
                let writes: &[Region] = if launch.reads { &[] } else { &region };
                let spec = LaunchSpec::kernel(name, time, reads, writes);
                builder.launch(spec).expect("launch");
                if let Some(dies) = launch.dies
                    && std::mem::replace(&mut used[usize::from(dies)], false)
                {
                    let address = BASE + u64::from(dies) * BLOCK_BYTES;
                    builder.unuse(address).expect("unuse");
                }
            }
        }
        builder.finish()
    }

    fn bounds(&self, program: &Program) -> Bounds {
        let class = (self.lifetimes, self.deaths);
        Bounds::reaching(program, &machine(), class, self.reach)
    }

    /// The same where the stretch has few slots.
    fn coarse_bounds(&self, program: &Program) -> Bounds {
        let class = (self.lifetimes, self.deaths);
        Bounds::cut(program, &machine(), class, self.reach, FEW)
    }

    /// The launches of the steady iterations.
    fn stretch(&self) -> std::ops::Range<usize> {
        let steady = self.program().steady();
        let (begin, end) = (steady[0].start, steady[steady.len() - 1].end);
        begin as usize..end as usize
    }

    /// Fewest ticks.
    fn shortest(&self) -> u64 {
        let uses: Vec<Use> = self.iterations.concat();
        let stretch = self.stretch();
        // Whether a block's content is to be kept before launch `at`.
        let kept = |block: u8, at: usize| {
            let used = uses[..at].iter().rposition(|one| one.block == block);
            let Some(used) = used.filter(|_| self.lifetimes) else {
                // Preserved for ever: the memory is never given back.
                return used.is_some();
            };
            let gives_back = |one: &Use| one.dies == Some(block);
            if uses[used..at].iter().any(gives_back) {
                return false;
            }
            let next = uses[at..].iter().position(|one| one.block == block);
            let next = next.filter(|&next| !uses[at..at + next].iter().any(gives_back));
            let next = next.map(|next| uses[at + next]);
            match self.deaths {
                Deaths::Foreseen => next.is_some_and(|one| !one.overwrites),
                Deaths::Told => next.is_none_or(|one| !one.fills),
            }
        };
        let mut states: HashSet<State> = HashSet::new();
        for device in 0u8..16 {
            let content = (0..4).filter(|block| kept(*block, stretch.start));
            let content = content.fold(0, |set, block| set | 1 << block);
            if device & !content == 0 && device.count_ones() <= self.frames {
                states.insert(State {
                    at: stretch.start,
                    left: 0,
                    busy: [false; 2],
                    device,
                    host: content & !device,
                });
            }
        }
        let mut ticks = 0;
        loop {
            // What happens in no time: launches that begin, content that need not be kept.
            let mut reached = BTreeSet::new();
            let mut open: Vec<State> = states.into_iter().collect();
            while let Some(state) = open.pop() {
                if !reached.insert(state) {
                    continue;
                }
                if state.left > 0 {
                    continue;
                }
                if state.at == stretch.end {
                    return ticks;
                }
                let one = uses[state.at];
                let bit = 1 << one.block;
                let fresh = state.host & bit == 0;
                let room = (state.device | bit).count_ones() <= self.frames;
                let begun = State {
                    at: state.at + 1,
                    left: one.ticks,
                    ..state
                };
                let mut ways = Vec::new();
                if state.device & bit != 0 || (fresh && room) {
                    ways.push(State {
                        device: state.device | bit,
                        ..begun
                    });
                }
                // On the host: it takes the link of either direction for the next tick, and
                // lasts as long.
                let busy = [!fresh && !one.overwrites, !one.reads];
                if self.reach == Reach::Everything && state.device & bit == 0 {
                    ways.push(State {
                        left: one.ticks.max(u8::from(busy != [false; 2])),
                        busy,
                        host: state.host | bit,
                        ..begun
                    });
                }
                for mut next in ways {
                    for block in (0..4).filter(|block| !kept(*block, next.at)) {
                        next.device &= !(1 << block);
                        next.host &= !(1 << block);
                    }
                    open.push(next);
                }
            }
            // A tick: each direction moves a block or none.
            states = HashSet::new();
            for state in reached {
                for inward in moves(state.host) {
                    for outward in moves(state.device) {
                        let busy = state.busy[0] && inward != 0 || state.busy[1] && outward != 0;
                        if busy || (state.device | inward).count_ones() > self.frames {
                            continue;
                        }
                        states.insert(State {
                            at: state.at,
                            left: state.left.saturating_sub(1),
                            busy: [false; 2],
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

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct State {
    /// The launch that begins next.
    at: usize,
    /// Ticks that the one before it still takes.
    left: u8,
    /// Directions of the link that the launch's own accesses take in the next tick.
    busy: [bool; 2],
    device: u8,
    host: u8,
}

/// One of a set, or none.
fn moves(set: u8) -> impl Iterator<Item = u8> {
    let single = (0..4)
        .map(|block| 1 << block)
        .filter(move |bit| set & bit != 0);
    single.chain([0])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    #[test]
    fn no_schedule_beats_a_bound(case in case()) {
        let program = case.program();
        let capacity = u64::from(case.frames) * BLOCK_BYTES;
        let bounds = case.bounds(&program);
        let iterations = bounds.slots.iterations as u64;
        let shortest = Nanos(case.shortest() * BLOCK_TIME / iterations);
        let mut all = vec![bounds.lb0(), bounds.lb2(capacity)];
        all.extend(bounds.lb3(capacity));
        all.push(case.coarse_bounds(&program).strongest(capacity, Effort::Full));
        if case.reach == Reach::Nothing {
            all.push(bounds.lb1_streaming(capacity));
            // One block to a launch: all launches are atomic.
            all.extend(bounds.lb1_atomic(capacity));
        }
        all.push(bounds.strongest(capacity, Effort::Full));
        for bound in all {
            prop_assert!(bound.time <= shortest, "{bound:?} over {shortest:?}");
        }
    }

    #[test]
    fn no_schedule_beats_the_bound_of_any_prices(
        case in case(),
        frame in prop::collection::vec(0.0..3e5, 64),
        link in prop::collection::vec([0.0..2.0, 0.0..2.0, 0.0..0.0001], 64),
    ) {
        let program = case.program();
        let machine = machine();
        let slots = Slots::cut(&program, machine.rules, 64);
        let class = (case.lifetimes, case.deaths);
        let gaps = Gaps::of(&program, &slots, class, case.reach, 100);
        let count = slots.len();
        let mut prices = Prices::free(count);
        prices.frame.copy_from_slice(&frame[..=count]);
        prices.link.copy_from_slice(&link[..count + 2]);
        let shortest = case.shortest() * BLOCK_TIME;
        let ways = [Counted::leaves(&gaps), Counted::frames(&gaps), Counted::blocks(&gaps)];
        for counted in ways {
            let stretch = Stretch {
                times: &slots.times,
                wanted: &counted.wanted,
                cells: &counted.cells,
                frames: u64::from(case.frames),
                leaf: Rates::of(&machine).leaf(),
            };
            prop_assert!(stretch.bound(prices.clone()) <= shortest as f64);
        }
    }
}

/// A bound of nothing would be a bound too: the strongest must come near.
#[test]
fn the_bound_is_often_near_the_truth_on_small_programs() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut near, mut stalls) = (0, 0);
    for _ in 0..150 {
        let case = case().new_tree(&mut runner).expect("a case").current();
        let program = case.program();
        let bounds = case.bounds(&program);
        let iterations = bounds.slots.iterations as u64;
        let shortest = case.shortest() * BLOCK_TIME / iterations;
        if shortest > bounds.lb0().time.0 {
            stalls += 1;
            let capacity = u64::from(case.frames) * BLOCK_BYTES;
            let bound = bounds.strongest(capacity, Effort::Full);
            near += u32::from(bound.time.0 * 100 >= shortest * 75);
        }
    }
    assert!(
        stalls >= 40 && near * 3 >= stalls,
        "{near} of {stalls} within 25 percent"
    );
}
