//! Reads a large table at random, as embedding look-ups and graph walks do. Nothing can
//! tell beforehand where.

use std::process::ExitCode;

use clap::Parser;
use oversub_workloads::args::{self, Common};
use oversub_workloads::gather::{Launch, ROW_WORDS, SLOTS, reference, table_rows, table_seed};
use oversub_workloads::report::{Footprint, Report, timed_loop};
use oversub_workloads::size::MIB;
use oversub_workloads::sweep::{CHUNK_WORDS, chunks};

/// Reads rows of a large table at random places that nothing can predict
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    common: Common,

    /// Launches in an iteration, of 4096 rows each
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    launches: u32,
}

fn main() -> ExitCode {
    args::run(|arguments: &Arguments| &arguments.common, gather)
}

fn gather(arguments: &Arguments) -> anyhow::Result<Report> {
    let Common {
        seed,
        iterations,
        bytes,
        ..
    } = arguments.common;
    let rows = table_rows(bytes.unwrap_or(768 * MIB))?;
    let iterations = iterations.unwrap_or(6);
    let words = u64::from(rows) * ROW_WORDS;
    let out_words = u64::from(SLOTS) * ROW_WORDS;
    let device = arguments.common.open_device()?;
    let table = device.allocate(words * 4)?;
    let out = device.allocate(out_words * 4)?;
    for (first, count) in chunks(words, CHUNK_WORDS) {
        device.fill_u32(table.word(first), count, first as u32, table_seed(seed))?;
    }
    device.clear(out.address(), out_words * 4)?;
    device.synchronize()?;

    let times = timed_loop("gather", iterations, |iteration| {
        for launch in 0..arguments.launches {
            let launch = Launch::of(iteration * arguments.launches + launch, seed);
            device.gather_rows(table.address(), out.address(), rows, launch)?;
        }
        device.synchronize()?;
        Ok(None)
    })?;

    let checksum = device.checksum(&out, out_words, 0)?;
    let footprint = Footprint {
        bytes: device.peak_bytes(),
        persistent_bytes: device.peak_bytes(),
        born_bytes_per_iteration: 0,
        // What a launch reads may all be there already.
        carried_bytes: 0,
    };
    let expected = reference(rows, iterations.saturating_mul(arguments.launches), seed);
    Ok(Report::new("gather", footprint, times, checksum, expected))
}
