//! Addresses mean nothing: a program whose memory lies elsewhere gets the same plan, within
//! a session and from one run to the next.

#![allow(clippy::unwrap_used)]

mod model;

use model::programs::Op;
use model::{Device, Machine, Outcome, programs};
use oversub_engine::{
    BLOCK_BYTES, Bytes, Command, Config, Engine, Event, FunctionId, Launch, Micros, Operation,
    PolicyKind, Profile, Queue, Range, Seq, StreamId,
};
use proptest::prelude::*;

/// Where each allocation of a program lies instead: `(old start, bytes, new start)`.
type Places = Vec<(u64, u64, u64)>;

/// The allocations of a program in reverse order of their addresses, far from the old
/// place, with gaps between them.
fn elsewhere(program: &[Op]) -> Places {
    let mut end = 0x4000_0000_0000;
    let allocations = program.iter().filter_map(|op| match op {
        Op::Alloc { range, .. } => Some(range),
        _ => None,
    });
    let mut allocations: Vec<&Range> = allocations.collect();
    allocations.sort_by_key(|range| std::cmp::Reverse(range.address));
    let place = |range: &&Range| {
        let new = end;
        end += (range.bytes.div_ceil(BLOCK_BYTES) + 37) * BLOCK_BYTES;
        (range.address, range.bytes, new)
    };
    allocations.iter().map(place).collect()
}

fn moved(places: &Places, address: u64) -> u64 {
    let held = places
        .iter()
        .find(|(old, bytes, _)| (*old..old + bytes).contains(&address));
    held.map_or(address, |(old, _, new)| address - old + new)
}

fn relocated(program: &[Op], places: &Places) -> Vec<Op> {
    let range = |range: Range| Range {
        address: moved(places, range.address),
        ..range
    };
    let each = |op: &Op| match op.clone() {
        Op::Alloc { range: old, pool } => Op::Alloc {
            range: range(old),
            pool,
        },
        Op::Free { address } => Op::Free {
            address: moved(places, address),
        },
        Op::Use { range: old } => Op::Use { range: range(old) },
        Op::Unuse { address } => Op::Unuse {
            address: moved(places, address),
        },
        Op::Launch(mut kernel) => {
            for word in &mut kernel.words {
                *word = moved(places, *word);
            }
            for block in &mut kernel.touches {
                *block = moved(places, *block * BLOCK_BYTES) / BLOCK_BYTES;
            }
            Op::Launch(kernel)
        }
    };
    program.iter().map(each).collect()
}

/// What was ordered, block by block, with addresses as `places` turns them.
fn plan(outcome: &Outcome, places: &Places) -> Vec<(Queue, Operation, u64)> {
    let commands = outcome.commands.iter();
    let blocks = commands.flat_map(|(_, command)| {
        command.range.blocks().map(|id| {
            let block = moved(places, id.address()) / BLOCK_BYTES;
            (command.queue, command.operation, block)
        })
    });
    blocks.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_program_at_other_addresses_gets_the_same_plan(
        total in 80u64..160,
        chunk in 1u64..5,
        parts in 1u64..24,
        picks in prop::collection::vec(any::<u8>(), 4..60),
        probes in any::<bool>(),
    ) {
        let machine = Machine { probes, ..Machine::soft(64) };
        let program = programs::mixture(total, chunk, parts, 4, &picks);
        let places = elsewhere(&program);
        let here = Device::new(machine, PolicyKind::Foresight).run(program.clone());
        let there = Device::new(machine, PolicyKind::Foresight).run(relocated(&program, &places));
        prop_assert_eq!(plan(&here, &places), plan(&there, &Places::new()));
        prop_assert_eq!(here.launch_ends_ns, there.launch_ends_ns);
    }
}

/// `iterations` of a sweep over two allocations, freed and taken again at other addresses,
/// in the other order, before iteration `again`.
fn taken_again(iterations: u64, again: Option<u64>) -> Vec<Op> {
    let (small, large) = (60, 90);
    let at = |turn: u64| {
        let base = 0x5000_0000_0000 + turn * 1000 * BLOCK_BYTES;
        let (first, second) = if turn == 0 {
            (small, large)
        } else {
            (large, small)
        };
        let range = |address, blocks| Range {
            address,
            bytes: blocks * BLOCK_BYTES,
        };
        let ranges = [
            range(base, first),
            range(base + (first + 5) * BLOCK_BYTES, second),
        ];
        if turn == 0 {
            ranges
        } else {
            [ranges[1], ranges[0]]
        }
    };
    let mut program = Vec::new();
    let mut turn = 0;
    let allocate = |program: &mut Vec<Op>, turn: u64| {
        let mut ranges = at(turn);
        ranges.sort_by_key(|range| range.address);
        program.extend(ranges.map(|range| Op::Alloc { range, pool: false }));
    };
    allocate(&mut program, 0);
    let sweep = programs::sweep(150, 5, iterations, 300_000);
    let (first, launches) = sweep.split_first().unwrap();
    let Op::Alloc { range: whole, .. } = first else {
        unreachable!("a sweep begins with its memory")
    };
    let each = launches.len() as u64 / iterations;
    for (index, op) in launches.iter().enumerate() {
        if Some(index as u64) == again.map(|again| again * each) {
            program.extend(at(turn).map(|range| Op::Free {
                address: range.address,
            }));
            turn += 1;
            allocate(&mut program, turn);
        }
        let [a, b] = at(turn);
        let split = whole.address + small * BLOCK_BYTES;
        let places = vec![
            (whole.address, small * BLOCK_BYTES, a.address),
            (split, large * BLOCK_BYTES, b.address),
        ];
        program.extend(relocated(std::slice::from_ref(op), &places));
    }
    program
}

#[test]
fn memory_that_is_freed_and_taken_again_keeps_its_launches() {
    // Every launch is over before the next thing happens.
    let run = |program: Vec<Op>| {
        let mut engine = Engine::new(engine(100)).unwrap();
        let mut commands = Vec::new();
        let mut passed = Seq(0);
        for op in program {
            let now = Micros(passed.0 * 100);
            match op {
                Op::Alloc { range, pool } => engine.step(
                    now,
                    &Event::Alloc {
                        range,
                        pool,
                        prefetched: false,
                        on_host: false,
                    },
                ),
                Op::Free { address } => engine.step(now, &Event::Free { address }),
                Op::Launch(kernel) => {
                    passed.0 += 1;
                    let stream = StreamId(0);
                    let launch = Launch {
                        seq: passed,
                        stream,
                        function: FunctionId(kernel.function),
                        grid: kernel.grid,
                        block: [256, 1, 1],
                        words: &kernel.words,
                    };
                    engine.step(now, &Event::Launch(launch));
                    engine.step(
                        now,
                        &Event::Progress {
                            stream,
                            seq: passed,
                        },
                    );
                }
                Op::Use { .. } | Op::Unuse { .. } => unreachable!("no pool in it"),
            }
            engine.decide(now, &mut commands);
            for Command { queue, id, .. } in commands.drain(..) {
                engine.step(now, &Event::Completed { queue, id });
            }
        }
        let snapshot = engine.snapshot();
        (snapshot.execution_ids, snapshot.cycle_launches)
    };
    let never = run(taken_again(6, None));
    assert_eq!(never.1, Some(30));
    assert_eq!(run(taken_again(6, Some(3))), never);
}

fn engine(device_blocks: u64) -> Config {
    let mut config = Config::new(PolicyKind::Foresight, Bytes(device_blocks * BLOCK_BYTES));
    config.link_bytes_per_us = 1_000.0;
    config
}

/// A sweep whose launches also touch a block that no pointer leads to.
fn indirect() -> Vec<Op> {
    let mut program = programs::sweep(160, 4, 8, 1_400_000);
    let hidden = 0x7100_0000_0000;
    let range = Range {
        address: hidden,
        bytes: 40 * BLOCK_BYTES,
    };
    for (index, op) in program.iter_mut().enumerate() {
        if let Op::Launch(kernel) = op {
            kernel.declared = false;
            kernel
                .touches
                .push(hidden / BLOCK_BYTES + index as u64 % 40);
        }
    }
    program.insert(0, Op::Alloc { range, pool: false });
    program
}

#[test]
fn a_second_run_elsewhere_begins_with_what_the_first_one_learned() {
    let machine = Machine::soft(128);
    for program in [programs::train(16, 2, 6, 8, 1_400_000), indirect()] {
        let run = |config: Config, profile: Option<&Profile>, program: Vec<Op>| {
            let engine = match profile {
                Some(profile) => Engine::with_profile(config, profile),
                None => Engine::new(config),
            };
            let mut device = Device::with_engine(machine, engine.unwrap());
            device.run_mut(program);
            (device.outcome.clone(), device.engine().profile())
        };
        let config = engine(128);
        let (_, learned) = run(config.clone(), None, program.clone());
        let bytes = learned.encode();
        let profile = Profile::decode(&bytes, &config).unwrap();
        assert_eq!(profile, learned);
        let program = relocated(&program, &elsewhere(&program));
        let (cold, _) = run(config.clone(), None, program.clone());
        let (warm, _) = run(config, Some(&profile), program.clone());
        assert_eq!(warm.violations, [""; 0]);
        let (first_cold, first_warm) = (cold.iteration_ends_ns[0], warm.iteration_ends_ns[0]);
        let (faults, cold_faults) = (warm.faults, cold.faults);
        println!("first {first_warm} after {first_cold}, faults {faults} after {cold_faults}");
        assert!(first_warm as f64 <= 1.02 * first_cold as f64);
        if program
            .iter()
            .any(|op| matches!(op, Op::Launch(kernel) if !kernel.declared))
        {
            assert!(faults < cold_faults, "{faults} faults after {cold_faults}");
        }
    }
}

#[test]
fn a_profile_of_another_program_changes_no_promise() {
    let machine = Machine::soft(128);
    let mut device = Device::with_engine(machine, Engine::new(engine(128)).unwrap());
    device.run_mut(programs::sweep(192, 4, 6, 300_000));
    let foreign = device.engine().profile();
    let program = programs::train(16, 2, 6, 12, 300_000);
    let run = |engine: Engine| Device::with_engine(machine, engine).run(program.clone());
    let cold = run(Engine::new(engine(128)).unwrap());
    let misled = run(Engine::with_profile(engine(128), &foreign).unwrap());
    assert_eq!(misled.violations, [""; 0]);
    let (steady, cold) = (misled.steady_ns(4), cold.steady_ns(4));
    assert!(steady < cold * 1.02, "{steady} after {cold}");
}
