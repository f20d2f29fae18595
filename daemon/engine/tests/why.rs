//! The engine says why: the reasons that it names are those that the program shows.

#![allow(clippy::unwrap_used)]

mod model;

use model::programs::{self, Op};
use model::{Device, Machine};
use oversub_engine::{
    BLOCK_BYTES, BlockId, BreakerState, Bytes, Cause, Command, Config, Decision, Direction, Engine,
    Event, Fate, FunctionId, Launch, Micros, Operation, Place, PolicyKind, Range, Reason, Seq,
    Standing, Step, Stop, StreamId,
};

const CAPACITY: u64 = 128;
const FIRST: u64 = 0x7000_0000_0000 / BLOCK_BYTES;

fn device(policy: PolicyKind, decisions: usize) -> Device {
    let mut config = Config::new(policy, Bytes(CAPACITY * BLOCK_BYTES));
    config.decisions = decisions;
    config.link_bytes_per_us = 1e3;
    let engine = Engine::new(config).unwrap();
    Device::with_engine(Machine::soft(CAPACITY), engine)
}

fn after(program: Vec<Op>) -> Device {
    let mut device = device(PolicyKind::Foresight, 1 << 20);
    device.run_mut(program);
    device
}

fn decisions(device: &Device) -> Vec<Decision> {
    device.engine().decisions(0).0.copied().collect()
}

fn ordered(decisions: &[Decision], operation: Operation) -> Vec<(Reason, Decision)> {
    let reason = |decision: &Decision| match decision.step {
        Step::Ordered(given, reason) if given == operation => Some((reason, *decision)),
        Step::Ordered(..) | Step::Came(_) => None,
    };
    decisions.iter().filter_map(reason).collect()
}

/// Twelve sweeps over half as much again as fits.
fn sweep() -> Vec<Op> {
    programs::sweep(192, 4, 12, 300_000)
}

#[test]
fn a_block_goes_for_one_that_is_needed_sooner() {
    let evicted = ordered(&decisions(&after(sweep())), Operation::Evict);
    let exchanged: Vec<Decision> = evicted
        .iter()
        .filter(|(reason, _)| *reason == Reason::Exchange)
        .map(|(_, decision)| *decision)
        .collect();
    assert!(exchanged.len() > 100, "{}", exchanged.len());
    for decision in exchanged {
        let rival = decision.rival_use.unwrap();
        assert!(rival >= decision.launch, "{decision:?}");
        // A block of which no next use is known goes for any, and one that a launch comes to
        // late for one that it comes to early.
        assert!(
            decision.next_use.is_none_or(|own| own >= rival),
            "{decision:?}"
        );
        assert!(decision.cost_us > 0);
    }
}

#[test]
fn a_block_is_fetched_for_the_launch_that_uses_it_next() {
    let launches = 12 * 192 / 4;
    let fetched = ordered(&decisions(&after(sweep())), Operation::Prefetch);
    assert!(fetched.len() > 100, "{}", fetched.len());
    for (reason, decision) in fetched {
        assert_eq!(reason, Reason::Needed);
        let launch = decision.next_use.unwrap();
        assert!(launch >= decision.launch, "{decision:?}");
        // Four blocks to a launch, in order, again and again.
        if launch <= launches {
            let used = (decision.block.0 - FIRST) / 4;
            assert_eq!((launch - 1) % 48, used, "{decision:?}");
        }
    }
}

#[test]
fn what_came_of_a_fetch_follows_it() {
    let device = after(sweep());
    let all = decisions(&device);
    let came = |fate| all.iter().filter(|d| d.step == Step::Came(fate)).count() as u64;
    let stats = device.engine().stats();
    assert_eq!(
        came(Fate::Useful) * BLOCK_BYTES,
        stats.prefetch_useful_bytes
    );
    assert_eq!(came(Fate::Late) * BLOCK_BYTES, stats.prefetch_late_bytes);
    assert_eq!(
        came(Fate::Wasted) * BLOCK_BYTES,
        stats.prefetch_wasted_bytes
    );
    let of_one: Vec<Step> = device
        .engine()
        .why(BlockId(FIRST))
        .unwrap()
        .decisions
        .iter()
        .map(|d| d.step)
        .collect();
    for pair in of_one.windows(2) {
        if let Step::Came(_) = pair[1] {
            assert!(
                matches!(pair[0], Step::Ordered(Operation::Prefetch, _)),
                "{of_one:?}"
            );
        }
    }
}

#[test]
fn a_block_is_kept_because_others_are_needed_later() {
    let device = after(sweep());
    let blocks = FIRST..FIRST + 192;
    let standing = blocks.filter_map(|block| device.engine().why(BlockId(block)));
    let mut kept = 0;
    for why in standing.filter(|why| why.place == Place::Device) {
        let Standing::Kept {
            before,
            victim,
            victim_use,
            ..
        } = why.standing
        else {
            panic!("{why:?}");
        };
        kept += 1;
        assert_eq!(before == 0, victim == why.block, "{why:?}");
        let own = why.next_use.unwrap_or(u64::MAX);
        assert!(victim_use.unwrap_or(u64::MAX) >= own, "{why:?}");
    }
    assert!(kept > CAPACITY / 2, "{kept}");
}

#[test]
fn dead_content_is_dropped_for_what_is_needed_before_its_block_is_born_again() {
    let device = after(programs::train(16, 2, 6, 12, 300_000));
    let all = decisions(&device);
    let dropped = ordered(&all, Operation::Discard);
    assert!(dropped.iter().any(|(reason, _)| *reason == Reason::Dead));
    for (reason, decision) in dropped {
        assert!(
            matches!(reason, Reason::Dead | Reason::Stale),
            "{decision:?}"
        );
        let pool = decision.block.0 >= FIRST + 16 * 3 * 2 + 16;
        assert!(pool, "only the pool knows deaths: {decision:?}");
        if let (Some(own), Some(rival)) = (decision.next_use, decision.rival_use) {
            assert!(rival <= own, "{decision:?}");
        }
        assert_eq!(decision.cost_us, 0);
    }
    let born = ordered(&all, Operation::Populate);
    assert!(!born.is_empty() && born.iter().all(|(reason, _)| *reason == Reason::Born));
}

#[test]
fn what_the_driver_would_evict_before_its_use_is_touched() {
    let machine = Machine {
        probes: true,
        ..Machine::soft(CAPACITY)
    };
    let mut config = Config::new(PolicyKind::Foresight, Bytes(CAPACITY * BLOCK_BYTES));
    config.decisions = 1 << 20;
    let mut device = Device::with_engine(machine, Engine::new(config).unwrap());
    device.run_mut(programs::train(16, 4, 6, 12, 100_000));
    let touched = ordered(&decisions(&device), Operation::Touch);
    assert!(!touched.is_empty());
    for (reason, decision) in touched {
        assert_eq!((reason, decision.cost_us), (Reason::Kept, 0));
        assert!(decision.next_use.is_some(), "{decision:?}");
    }
}

#[test]
fn no_frame_is_kept_free_once_all_that_is_used_fits_though_not_all_memory_does() {
    let evictions = |turns| {
        let mut program = programs::sweep(192, 4, 6, 300_000);
        let all = program.len() as u64;
        // As much as there are frames of the same memory, again and again.
        program.extend(programs::sweep(CAPACITY, 4, turns, 300_000).split_off(1));
        let evicted = ordered(&decisions(&after(program)), Operation::Evict);
        let turn = CAPACITY / 4;
        let late = all + turn * (turns - 4);
        let late = evicted.iter().filter(move |(_, d)| d.launch > late);
        (evicted.len(), late.count())
    };
    let (all, late) = evictions(12);
    assert!(all > 100, "{all}");
    assert_eq!(late, 0);
}

#[test]
fn frames_are_kept_free_for_faults_that_nobody_foretells() {
    let device = after(programs::gather(192, 40, 8, 300_000, 7));
    let evicted = ordered(&decisions(&device), Operation::Evict);
    assert!(evicted.iter().any(|(reason, _)| *reason == Reason::Reserve));
    for (_, decision) in evicted
        .iter()
        .filter(|(reason, _)| *reason == Reason::Reserve)
    {
        assert_eq!(
            decision.rival_use, None,
            "for no need in particular: {decision:?}"
        );
    }
}

/// An engine with 48 launches queued, of four blocks each, all of which lie on the host; none
/// of them ends.
fn queued() -> Engine {
    let config = Config::new(PolicyKind::Foresight, Bytes(CAPACITY * BLOCK_BYTES));
    let mut engine = Engine::new(config).unwrap();
    for launch in 1..=48 {
        let address = (FIRST + launch * 8) * BLOCK_BYTES;
        let bytes = 4 * BLOCK_BYTES;
        engine.step(
            Micros(launch),
            &Event::Alloc {
                range: Range { address, bytes },
                pool: false,
                prefetched: false,
                on_host: true,
            },
        );
        engine.step(
            Micros(launch),
            &Event::Launch(Launch {
                seq: Seq(launch),
                stream: StreamId(0),
                function: FunctionId(launch as u32),
                grid: [8192, 1, 1],
                block: [256, 1, 1],
                words: &[address],
            }),
        );
    }
    engine
}

/// Kernels on lists of tensors take hundreds of words.
#[test]
fn a_pointer_behind_hundreds_of_words_is_looked_at() {
    let mut engine = queued();
    let (address, bytes) = ((FIRST + 1000) * BLOCK_BYTES, 4 * BLOCK_BYTES);
    let range = Range { address, bytes };
    let alloc = Event::Alloc {
        range,
        pool: false,
        prefetched: false,
        on_host: true,
    };
    engine.step(Micros(100), &alloc);
    let queued = |engine: &Engine| engine.why(BlockId(FIRST + 1000)).unwrap().queued;
    assert!(!queued(&engine));
    let words: Vec<u64> = (0..500).chain([address]).collect();
    let launch = Launch {
        seq: Seq(49),
        stream: StreamId(0),
        function: FunctionId(49),
        grid: [8192, 1, 1],
        block: [256, 1, 1],
        words: &words,
    };
    engine.step(Micros(101), &Event::Launch(launch));
    assert!(queued(&engine));
}

/// Carries out at once whatever the engine asks for; what was fetched.
fn carry_out(engine: &mut Engine, now: u64) -> Vec<Range> {
    let (mut commands, mut fetched) = (Vec::new(), Vec::new());
    loop {
        engine.decide(Micros(now), &mut commands);
        if commands.is_empty() {
            return fetched;
        }
        for Command {
            queue, id, range, ..
        } in commands.drain(..)
        {
            engine.step(Micros(now), &Event::Completed { queue, id });
            fetched.push(range);
        }
    }
}

#[test]
fn what_holds_prefetches_back_is_named() {
    let mut engine = queued();
    let fetched = carry_out(&mut engine, 100);
    assert_eq!(engine.stops().fetch, Stop::Trust, "none has helped so far");
    let last = BlockId(FIRST + 48 * 8);
    let waits = |engine: &Engine| match engine.why(last).unwrap().standing {
        Standing::Waits { before, stop } => (before > 0, stop),
        other => panic!("{other:?}"),
    };
    assert_eq!(waits(&engine), (true, Stop::Trust));
    assert!(engine.why(last).unwrap().queued);
    for &range in fetched.iter().skip(4) {
        engine.step(
            Micros(200),
            &Event::Migration {
                range,
                direction: Direction::Out,
                cause: Cause::Eviction,
            },
        );
    }
    carry_out(&mut engine, 300);
    assert_eq!(engine.snapshot().breaker, BreakerState::Open);
    assert_eq!(engine.stops().fetch, Stop::Breaker);
    assert_eq!(waits(&engine), (true, Stop::Breaker));
    let wasted = fetched.last().unwrap().blocks().next().unwrap();
    let steps = engine.why(wasted).unwrap().decisions;
    let steps: Vec<Step> = steps.iter().map(|decision| decision.step).collect();
    let fetched = Step::Ordered(Operation::Prefetch, Reason::Needed);
    assert_eq!(steps, [fetched, Step::Came(Fate::Wasted)]);
}

#[test]
fn a_command_that_the_driver_refused_leaves_the_block_alone() {
    let mut engine = queued();
    let mut commands = Vec::new();
    engine.decide(Micros(100), &mut commands);
    let Command {
        queue, id, range, ..
    } = *commands.last().unwrap();
    engine.step(Micros(200), &Event::Refused { queue, id });
    let why = engine.why(range.blocks().next().unwrap()).unwrap();
    assert_eq!(why.standing, Standing::LeftAlone);
    assert_eq!(
        why.decisions.last().unwrap().step,
        Step::Came(Fate::Refused)
    );
}

#[test]
fn a_fetch_that_came_too_late_is_named() {
    let mut engine = queued();
    let mut commands = Vec::new();
    engine.decide(Micros(100), &mut commands);
    let block = commands[0].range.blocks().next().unwrap();
    let fault = Event::Fault {
        address: block.address(),
        faults: 1,
        by_host: false,
    };
    engine.step(Micros(101), &fault);
    let why = engine.why(block).unwrap();
    assert_eq!(
        (why.standing, why.place),
        (Standing::UnderWay, Place::Incoming)
    );
    assert_eq!(why.decisions.last().unwrap().step, Step::Came(Fate::Late));
}

#[test]
fn the_other_policies_name_their_own_reasons() {
    let reasons = |policy| {
        let mut device = device(policy, 1 << 20);
        device.run_mut(sweep());
        let all = decisions(&device);
        let mut reasons: Vec<&str> = all
            .iter()
            .filter_map(|decision| match decision.step {
                Step::Ordered(_, reason) => Some(reason.name()),
                Step::Came(_) => None,
            })
            .collect();
        reasons.sort_unstable();
        reasons.dedup();
        reasons
    };
    assert_eq!(reasons(PolicyKind::Deepum), ["correlated", "least-recent"]);
    assert!(reasons(PolicyKind::Driver).is_empty(), "it decides nothing");
}

#[test]
fn the_record_keeps_its_limit_and_the_last_decision_on_each_block() {
    let mut device = device(PolicyKind::Foresight, 16);
    device.run_mut(sweep());
    let (kept, next) = device.engine().decisions(0);
    assert_eq!(kept.count(), 16);
    assert!(next > 1000, "{next}");
    assert_eq!(device.engine().decisions(next - 3).0.count(), 3);
    assert_eq!(device.engine().decisions(next).0.count(), 0);
    let moved = (FIRST..FIRST + 192)
        .filter_map(|block| device.engine().why(BlockId(block)))
        .filter(|why| !why.decisions.is_empty());
    assert!(
        moved.count() > 64,
        "blocks that moved long ago are remembered"
    );
}

#[test]
fn nothing_is_remembered_where_nothing_shall_be() {
    let mut device = device(PolicyKind::Foresight, 0);
    device.run_mut(sweep());
    assert_eq!(device.engine().decisions(0).0.count(), 0);
    let why = device.engine().why(BlockId(FIRST)).unwrap();
    assert!(why.decisions.is_empty());
    assert_ne!(why.standing, Standing::Unsaid, "what holds now is known");
}

#[test]
fn of_memory_that_is_not_managed_there_is_nothing_to_say() {
    let device = after(sweep());
    assert_eq!(device.engine().why(BlockId(FIRST - 1)), None);
    assert_eq!(device.engine().why(BlockId(FIRST + 192)), None);
}
