//! What the tests of policies share: running one, and the contract that each keeps.

use super::Entry;
use super::samples::{BASE, Training, blocks, launch};
use crate::machine::{self, Machine};
use crate::model::Totals;
use crate::run::{Options, Outcome, run};
use crate::trace::families::{Family, Shape};
use crate::trace::{Program, ProgramBuilder};
use crate::units::{BLOCK_BYTES, Nanos};

/// The default machine with so many frames.
pub(super) fn machine(frames: u32) -> Machine {
    Machine {
        memory_bytes: u64::from(frames) * BLOCK_BYTES,
        ..machine::named(machine::DEFAULT).unwrap()
    }
}

/// One run with lifetimes known.
pub(super) fn outcome(program: &Program, entry: &Entry, frames: u32) -> Outcome {
    of(program, entry, &machine(frames), true)
}

pub(super) fn of(program: &Program, entry: &Entry, on: &Machine, lifetimes: bool) -> Outcome {
    let options = Options {
        lifetimes,
        timeline: false,
        explain: None,
        seed: 0,
        engine_cost: false,
        without: Default::default(),
    };
    run(program, on, entry, options).unwrap_or_else(|stopped| {
        let frames = on.memory_bytes / BLOCK_BYTES;
        panic!(
            "{} on {} with {frames} frames: {stopped}",
            entry.name,
            program.name()
        )
    })
}

/// Bytes moved to the device, in blocks.
pub(super) fn blocks_in(totals: &Totals) -> u64 {
    totals.bytes_in / BLOCK_BYTES
}

/// `count` blocks, updated one after the other in every iteration.
pub(super) fn sweep(count: u64, iterations: u64) -> Program {
    let mut builder = ProgramBuilder::new("sweep");
    builder.alloc(BASE, count * BLOCK_BYTES).unwrap();
    for iteration in 0..iterations {
        builder.iteration(iteration).unwrap();
        let all = blocks(0, count);
        launch(
            &mut builder,
            "sweep",
            Nanos(count * 100_000),
            &[all],
            &[all],
        );
    }
    builder.finish()
}

/// Completes on every kind of program in any memory that can run it, loses nothing, does
/// the same when run again, and where all fits moves nothing out and nothing in twice.
pub(super) fn contract(entry: &Entry) {
    let mut programs: Vec<Program> = Family::ALL
        .iter()
        .flat_map(|family| {
            [(0, false), (1, true), (2, true)].map(|(seed, partial)| {
                let shape = Shape {
                    seed,
                    partial,
                    noise_percent: 20 * seed as u32,
                    ..Shape::default()
                };
                family.program(&shape).unwrap()
            })
        })
        .collect();
    programs.push(Training::SMALL.program());
    programs.push(sweep(32, 3));
    for program in &programs {
        for lifetimes in [true, false] {
            let footprint = (program.footprint_bytes() / BLOCK_BYTES) as u32;
            for frames in [footprint * 9 / 10, footprint * 2 / 3, footprint / 2] {
                let first = of(program, entry, &machine(frames), lifetimes);
                let again = of(program, entry, &machine(frames), lifetimes);
                assert_eq!(first.iterations, again.iterations, "{}", program.name());
            }
            // Room for what a system keeps spare, too.
            let roomy = of(program, entry, &machine(2 * footprint + 64), lifetimes);
            let out: u64 = roomy.iterations.iter().map(|i| i.totals.bytes_out).sum();
            assert_eq!(out, 0, "{} on {}", entry.name, program.name());
            // What the CPU wrote comes once, when it is first touched.
            let brought: u64 = roomy.iterations.iter().map(|i| i.totals.bytes_in).sum();
            let all = program.blocks() as u64 * BLOCK_BYTES;
            assert!(
                brought <= all,
                "{} on {}: {brought}",
                entry.name,
                program.name()
            );
        }
    }
}
