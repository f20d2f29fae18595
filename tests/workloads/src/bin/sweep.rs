//! Reads and writes a large state from end to end, again and again, as stencils, solvers
//! and optimizers do.

use std::process::ExitCode;

use clap::Parser;
use oversub_workloads::args::{self, Common, check_bytes};
use oversub_workloads::report::{Footprint, Report, timed_loop};
use oversub_workloads::size::MIB;
use oversub_workloads::sweep::{CHUNK_BYTES, Step, chunks, fill_seed, reference, state_words};

/// Reads and writes a large state from end to end in every iteration
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    common: Common,

    /// Keep the state in managed memory, as programs do that oversubscribe by themselves
    #[arg(long)]
    managed: bool,

    /// Bytes of the state that one launch takes
    #[arg(long, default_value_t = CHUNK_BYTES)]
    chunk_bytes: u64,
}

fn main() -> ExitCode {
    args::run(|arguments: &Arguments| &arguments.common, sweep)
}

fn sweep(arguments: &Arguments) -> anyhow::Result<Report> {
    let Common {
        seed,
        iterations,
        bytes,
        ..
    } = arguments.common;
    let words = state_words(bytes.unwrap_or(768 * MIB))?;
    let iterations = iterations.unwrap_or(10);
    let chunk = check_bytes(arguments.chunk_bytes, 4, 1 << 50)? / 4;
    let device = arguments.common.open_device()?;
    let state = if arguments.managed {
        device.allocate_managed(words * 4)?
    } else {
        device.allocate(words * 4)?
    };
    for (first, count) in chunks(words, chunk) {
        device.fill_u32(state.word(first), count, first as u32, fill_seed(seed))?;
    }
    device.synchronize()?;

    let times = timed_loop("sweep", iterations, |iteration| {
        let step = Step::of(iteration, seed);
        for (first, count) in chunks(words, chunk) {
            device.sweep_step(state.word(first), count, step)?;
        }
        device.synchronize()?;
        Ok(None)
    })?;

    let checksum = device.checksum(&state, words, 0)?;
    let footprint = Footprint {
        bytes: device.peak_bytes(),
        persistent_bytes: device.peak_bytes(),
        born_bytes_per_iteration: 0,
        carried_bytes: device.peak_bytes(),
    };
    Ok(Report::new(
        "sweep",
        footprint,
        times,
        checksum,
        reference(words, iterations, seed),
    ))
}
