//! What holds for every program and for every sequence of events, true or made up.

#![allow(clippy::unwrap_used)]

mod model;

use model::programs::Op;
use model::{Device, Machine, Outcome, programs};
use oversub_engine::{
    BLOCK_BYTES, Bytes, Cause, Command, Config, Copy, Direction, Engine, Event, FunctionId, Launch,
    Micros, PolicyKind, Queue, Range, Seq, StreamId,
};
use proptest::prelude::*;

const POLICIES: [PolicyKind; 4] = [
    PolicyKind::Foresight,
    PolicyKind::Deepum,
    PolicyKind::Demand,
    PolicyKind::Driver,
];

#[derive(Clone, Debug)]
struct Shape {
    total: u64,
    chunk: u64,
    parts: u64,
    picks: Vec<u8>,
    probes: bool,
    run_ahead: usize,
}

fn shape() -> impl Strategy<Value = Shape> {
    let picks = prop::collection::vec(any::<u8>(), 4..60);
    (
        16u64..160,
        1u64..5,
        1u64..24,
        picks,
        any::<bool>(),
        1usize..24,
    )
        .prop_map(|(total, chunk, parts, picks, probes, run_ahead)| Shape {
            total,
            chunk,
            parts,
            picks,
            probes,
            run_ahead,
        })
}

fn machine(shape: &Shape, budget: bool) -> Machine {
    Machine {
        budget_blocks: budget.then_some(64),
        probes: shape.probes,
        run_ahead: shape.run_ahead,
        ..Machine::soft(if budget { 1024 } else { 64 })
    }
}

fn program(shape: &Shape) -> Vec<Op> {
    programs::mixture(shape.total, shape.chunk, shape.parts, 4, &shape.picks)
}

fn run(shape: &Shape, policy: PolicyKind, budget: bool) -> Outcome {
    Device::new(machine(shape, budget), policy).run(program(shape))
}

/// A client that claims more than any machine has costs the engine no time.
#[test]
fn huge_pool_parts_cost_only_what_is_tracked() {
    let (address, bytes) = (0x7000_0000_0000, 1 << 60);
    let events = [
        Wild::Alloc(address, bytes, true, false),
        Wild::Use(address, bytes, 1),
        Wild::Launch(1, 0, 0, vec![address]),
        Wild::Progress(0, 1),
        Wild::Unuse(address, 0, 2),
        Wild::Free(address),
    ];
    feed(&events, PolicyKind::Foresight, false, false);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_block_of_the_running_launch_is_evicted_and_no_live_content_discarded(
        shape in shape(),
        budget in any::<bool>(),
    ) {
        for policy in POLICIES {
            let outcome = run(&shape, policy, budget);
            prop_assert_eq!(&outcome.violations, &[""; 0], "{:?}", policy);
        }
    }

    #[test]
    fn a_budget_is_never_exceeded_where_only_commands_bring_content(shape in shape()) {
        for policy in [PolicyKind::Foresight, PolicyKind::Deepum] {
            let machine = Machine { remote: true, ..machine(&shape, true) };
            let outcome = Device::new(machine, policy).run(program(&shape));
            prop_assert!(outcome.peak_blocks <= 64, "{policy:?}: {}", outcome.peak_blocks);
            prop_assert_eq!(&outcome.violations, &[""; 0], "{:?}", policy);
        }
    }

    #[test]
    fn the_same_events_give_the_same_commands(shape in shape(), budget in any::<bool>()) {
        for policy in POLICIES {
            prop_assert_eq!(run(&shape, policy, budget), run(&shape, policy, budget));
        }
    }

    #[test]
    fn no_events_however_wrong_break_the_engine(
        events in prop::collection::vec(wild(), 1..400),
        policy in 0usize..4,
        enforce in any::<bool>(),
        remote in any::<bool>(),
    ) {
        let first = feed(&events, POLICIES[policy], enforce, remote);
        prop_assert_eq!(first, feed(&events, POLICIES[policy], enforce, remote));
    }
}

#[test]
fn an_engine_is_calm_while_all_memory_is_on_the_device_and_not_otherwise() {
    let base = 0x7000_0000_0000;
    let mut engine =
        Engine::new(Config::new(PolicyKind::Foresight, Bytes(24 * BLOCK_BYTES))).unwrap();
    let mut now = Micros(0);
    let mut tell = |event: Event<'_>| {
        now.0 += 500;
        engine.step(now, &event);
        engine.decide(now, &mut Vec::new());
        (engine.is_calm(), engine.mark_stride())
    };
    let alloc = |first: u64, blocks: u64, prefetched| Event::Alloc {
        range: Range {
            address: base + first * BLOCK_BYTES,
            bytes: blocks * BLOCK_BYTES,
        },
        pool: false,
        prefetched,
        on_host: false,
    };
    let (calm, stride) = tell(alloc(0, 20, true));
    assert!(calm && stride < 64, "more memory may be to come");
    let (stream, function) = (StreamId(0), FunctionId(0));
    for seq in (1..=1024).map(Seq) {
        tell(Event::Launch(Launch {
            seq,
            stream,
            function,
            grid: [1; 3],
            block: [1; 3],
            words: &[base],
        }));
        tell(Event::Progress { stream, seq });
    }
    assert_eq!(tell(Event::Tick), (true, 64), "marks are rare");
    let (calm, stride) = tell(alloc(20, 4, false));
    assert!(!calm && stride < 64, "a first touch is to come");
    let second = Event::Free {
        address: base + 20 * BLOCK_BYTES,
    };
    assert!(tell(second).0);
    assert!(!tell(alloc(32, 8, true)).0, "it does not all fit");
}

/// An event that a hostile client could cause, on few addresses so that they meet.
#[derive(Clone, Debug)]
enum Wild {
    Alloc(u64, u64, bool, bool),
    Free(u64),
    Use(u64, u64, u64),
    Unuse(u64, u8, u64),
    Launch(u64, u8, u32, Vec<u64>),
    Copy(u64, u8, Option<(u64, u64)>),
    Progress(u8, u64),
    Reached(u8, u64),
    Completed(u8, u32, bool),
    Fault(u64, bool),
    Migration(u64, u64, u8),
}

impl Wild {
    /// A calm engine need not hear of it at once.
    fn may_wait(&self) -> bool {
        matches!(
            self,
            Wild::Use(..)
                | Wild::Unuse(..)
                | Wild::Launch(..)
                | Wild::Copy(..)
                | Wild::Progress(..)
                | Wild::Reached(..)
        )
    }
}

fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => (0u64..64).prop_map(|n| 0x7000_0000_0000 + n * BLOCK_BYTES),
        2 => (0u64..64 * BLOCK_BYTES).prop_map(|n| 0x7000_0000_0000 + n),
        1 => any::<u64>(),
    ]
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => (0u64..16).prop_map(|n| n * BLOCK_BYTES),
        2 => 0u64..64 * BLOCK_BYTES,
        1 => any::<u64>(),
    ]
}

fn seq() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0u64..300, 1 => any::<u64>()]
}

fn wild() -> impl Strategy<Value = Wild> {
    let stream = prop_oneof![4 => Just(0u8), 1 => any::<u8>()];
    let streams = stream.clone();
    let words = prop::collection::vec(prop_oneof![address(), any::<u64>()], 0..6);
    prop_oneof![
        3 => (address(), size(), any::<bool>(), any::<bool>())
            .prop_map(|(a, b, pool, prefetched)| Wild::Alloc(a, b, pool, prefetched)),
        1 => address().prop_map(Wild::Free),
        3 => (address(), size(), seq()).prop_map(|(a, b, s)| Wild::Use(a, b, s)),
        3 => (address(), stream.clone(), seq()).prop_map(|(a, s, q)| Wild::Unuse(a, s, q)),
        8 => (seq(), stream.clone(), 0u32..6, words).prop_map(|(q, s, f, w)| Wild::Launch(q, s, f, w)),
        1 => (seq(), stream.clone(), prop::option::of((address(), size())))
            .prop_map(|(q, s, d)| Wild::Copy(q, s, d)),
        6 => (streams.clone(), seq()).prop_map(|(s, q)| Wild::Progress(s, q)),
        2 => (streams, seq()).prop_map(|(s, q)| Wild::Reached(s, q)),
        6 => (0u8..3, prop_oneof![8 => 0u32..200, 1 => any::<u32>()], any::<bool>())
            .prop_map(|(q, id, refused)| Wild::Completed(q, id, refused)),
        3 => (address(), any::<bool>()).prop_map(|(a, host)| Wild::Fault(a, host)),
        3 => (address(), size(), 0u8..12).prop_map(|(a, b, kind)| Wild::Migration(a, b, kind)),
    ]
}

fn feed(events: &[Wild], policy: PolicyKind, enforce: bool, remote: bool) -> Vec<Command> {
    let mut config = Config::new(policy, Bytes(24 * BLOCK_BYTES));
    config.enforce = enforce;
    config.remote = remote;
    config.use_on_host = !enforce;
    config.blocks = 512;
    config.history_launches = 128;
    config.execution_ids = 16;
    let mut engine = Engine::new(config).unwrap();
    let mut commands = Vec::new();
    for (turn, event) in events.iter().enumerate() {
        let now = Micros(turn as u64 * 100);
        let (calm, before) = (engine.is_calm(), commands.len());
        tell(&mut engine, now, event);
        engine.decide(now, &mut commands);
        assert!(
            !(calm && event.may_wait()) || commands.len() == before,
            "calm, and yet something is to be done: {event:?}"
        );
        let snapshot = engine.snapshot();
        assert!(snapshot.history_launches <= 128);
        assert!(snapshot.execution_ids <= 16);
        assert!(snapshot.resident_bytes <= 512 * BLOCK_BYTES);
        assert!(
            snapshot.table_bytes < 4 << 20,
            "{} bytes",
            snapshot.table_bytes
        );
        assert!((1..=64).contains(&engine.mark_stride()));
    }
    commands
}

fn tell(engine: &mut Engine, now: Micros, event: &Wild) {
    let queue = |n: u8| Queue::ALL[usize::from(n)];
    let event = match event {
        Wild::Alloc(address, bytes, pool, prefetched) => Event::Alloc {
            range: Range {
                address: *address,
                bytes: *bytes,
            },
            pool: *pool,
            prefetched: *prefetched,
            on_host: !*prefetched && bytes.is_multiple_of(2),
        },
        Wild::Free(address) => Event::Free { address: *address },
        Wild::Use(address, bytes, seq) => Event::Use {
            range: Range {
                address: *address,
                bytes: *bytes,
            },
            seq: Seq(*seq),
        },
        Wild::Unuse(address, stream, seq) => Event::Unuse {
            address: *address,
            stream: StreamId(*stream),
            seq: Seq(*seq),
        },
        Wild::Launch(seq, stream, function, words) => Event::Launch(Launch {
            seq: Seq(*seq),
            stream: StreamId(*stream),
            function: FunctionId(*function),
            grid: [u32::MAX, u32::MAX >> (function * 5), 1],
            block: [1024, 1, 1],
            words,
        }),
        Wild::Copy(seq, stream, dst) => Event::Copy(Copy {
            seq: Seq(*seq),
            stream: StreamId(*stream),
            dst: dst.map(|(address, bytes)| Range { address, bytes }),
            src: None,
        }),
        Wild::Reached(stream, seq) => Event::Reached {
            stream: StreamId(*stream),
            seq: Seq(*seq),
        },
        Wild::Progress(stream, seq) => Event::Progress {
            stream: StreamId(*stream),
            seq: Seq(*seq),
        },
        Wild::Completed(n, id, false) => Event::Completed {
            queue: queue(*n),
            id: *id,
        },
        Wild::Completed(n, id, true) => Event::Refused {
            queue: queue(*n),
            id: *id,
        },
        Wild::Fault(address, by_host) => Event::Fault {
            address: *address,
            faults: 1,
            by_host: *by_host,
        },
        Wild::Migration(address, bytes, kind) => {
            let causes = [Cause::Fault, Cause::Density, Cause::Eviction, Cause::Call];
            let range = Range {
                address: *address,
                bytes: *bytes,
            };
            let direction = if kind % 2 == 0 {
                Direction::In
            } else {
                Direction::Out
            };
            match kind {
                0..8 => Event::Migration {
                    range,
                    direction,
                    cause: causes[usize::from(kind / 2)],
                },
                8 => Event::Populated { range },
                _ => Event::Tick,
            }
        }
    };
    engine.step(now, &event);
}

/// Where births are no faster than the link, a budget holds from the beginning; the
/// tolerance is three hundredths.
#[test]
fn a_budget_is_kept() {
    let machine = Machine {
        budget_blocks: Some(256),
        fault_ns: 2_500_000,
        ..Machine::soft(1024)
    };
    let cases = [
        programs::sweep(384, 4, 3, 100_000),
        programs::train(16, 6, 11, 3, 300_000),
        programs::gather(384, 40, 3, 100_000, 3),
    ];
    for (case, program) in cases.into_iter().enumerate() {
        for policy in [
            PolicyKind::Foresight,
            PolicyKind::Deepum,
            PolicyKind::Demand,
        ] {
            let outcome = Device::new(machine, policy).run(program.clone());
            assert!(
                outcome.peak_blocks * 100 <= 256 * 103,
                "program {case} under {policy:?}: {:?} of 256 blocks",
                outcome.iteration_peaks
            );
        }
    }
}

/// Launches that were queued before anyone told of launches fault on blocks of which nothing
/// is known: to evict any of them could be to evict what runs, again and again.
#[test]
fn nothing_is_evicted_while_what_runs_began_before_anyone_told() {
    let capacity = Bytes(32 * BLOCK_BYTES);
    let mut engine = Engine::new(Config::new(PolicyKind::Foresight, capacity)).unwrap();
    let (address, blocks) = (0x7000_0000_0000, 48);
    let block = |number: u64| Range {
        address: address + number * BLOCK_BYTES,
        bytes: BLOCK_BYTES,
    };
    let range = Range {
        address,
        bytes: blocks * BLOCK_BYTES,
    };
    let alloc = Event::Alloc {
        range,
        pool: false,
        prefetched: false,
        on_host: true,
    };
    engine.step(Micros(0), &alloc);
    let mut now = 0;
    let mut served = |engine: &mut Engine, number: u64| {
        now += 1_000;
        let range = block(number);
        let fault = Event::Fault {
            address: range.address,
            faults: 8,
            by_host: false,
        };
        engine.step(Micros(now), &fault);
        let migration = Event::Migration {
            range,
            direction: Direction::In,
            cause: Cause::Fault,
        };
        engine.step(Micros(now), &migration);
        let mut commands = Vec::new();
        engine.decide(Micros(now), &mut commands);
        commands
    };
    for number in 0..32 {
        assert_eq!(served(&mut engine, number), [], "block {number}");
    }
    // One more is used than fits, so the driver evicts one.
    let evicted = Event::Migration {
        range: block(0),
        direction: Direction::Out,
        cause: Cause::Eviction,
    };
    engine.step(Micros(40_000), &evicted);
    assert_eq!(served(&mut engine, 32), [], "block 32");
    let launch = |seq| {
        Event::Launch(Launch {
            function: FunctionId(1),
            grid: [1, 1, 1],
            block: [1, 1, 1],
            stream: StreamId(0),
            seq: Seq(seq),
            words: &[],
        })
    };
    engine.step(Micros(50_000), &launch(1));
    let progress = Event::Progress {
        stream: StreamId(0),
        seq: Seq(1),
    };
    engine.step(Micros(51_000), &progress);
    let mut commands = Vec::new();
    engine.decide(Micros(51_000), &mut commands);
    assert!(!commands.is_empty(), "what was queued before is over");
}
