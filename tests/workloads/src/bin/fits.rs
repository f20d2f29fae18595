//! A program that needs no more memory than there is: what runs beneath it must not be
//! felt.

use std::process::ExitCode;

use clap::Parser;
use oversub_workloads::args::{self, Common};
use oversub_workloads::fits::{
    CHUNK_WORDS, LONG_ROUNDS, Launch, SMALL_ROUNDS, SMALL_WORDS, fill_seeds, launches, reference,
    state_words,
};
use oversub_workloads::report::{Footprint, Report, timed_loop};
use oversub_workloads::size::MIB;
use oversub_workloads::sweep::chunks;

/// Runs many short kernels on a working set that fits in device memory
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    common: Common,
}

fn main() -> ExitCode {
    args::run(|arguments: &Arguments| &arguments.common, fits)
}

fn fits(arguments: &Arguments) -> anyhow::Result<Report> {
    let Common {
        seed,
        iterations,
        bytes,
        ..
    } = arguments.common;
    let words = state_words(bytes.unwrap_or(320 * MIB))?;
    let iterations = iterations.unwrap_or(180);
    let [state_seed, small_seed] = fill_seeds(seed);
    let device = arguments.common.open_device()?;
    let state = device.allocate(words * 4)?;
    let small = device.allocate(SMALL_WORDS * 4)?;
    for (first, count) in chunks(words, CHUNK_WORDS) {
        device.fill_u32(state.word(first), count, first as u32, state_seed)?;
    }
    device.fill_u32(small.address(), SMALL_WORDS, 0, small_seed)?;
    device.synchronize()?;

    let times = timed_loop("fits", iterations, |iteration| {
        for launch in launches(words, iteration, seed) {
            match launch {
                Launch::Sweep(first, count, step) => {
                    device.sweep_step(state.word(first), count, step)?;
                }
                Launch::Long(first, count, key) => {
                    device.mix_rounds(state.word(first), count, LONG_ROUNDS, key)?;
                }
                Launch::Small(key) => {
                    device.mix_rounds(small.address(), SMALL_WORDS, SMALL_ROUNDS, key)?;
                }
            }
        }
        device.synchronize()?;
        Ok(None)
    })?;

    let checksum = device
        .checksum(&state, words, 0)?
        .wrapping_add(device.checksum(&small, SMALL_WORDS, words)?);
    let footprint = Footprint {
        bytes: device.peak_bytes(),
        persistent_bytes: device.peak_bytes(),
        born_bytes_per_iteration: 0,
        carried_bytes: device.peak_bytes(),
    };
    Ok(Report::new(
        "fits",
        footprint,
        times,
        checksum,
        reference(words, iterations, seed),
    ))
}
