//! Multiplies matrices that do not fit in device memory, tile by tile, row by row.

use std::process::ExitCode;

use clap::Parser;
use oversub_workloads::args::{self, Common};
use oversub_workloads::gemm::{
    DEFAULT_BYTES, Shape, TILE_K, TILE_M, TILE_N, fill_seeds, reference,
};
use oversub_workloads::report::{Footprint, Report, timed_loop};
use oversub_workloads::sweep::{CHUNK_WORDS, chunks};

/// Multiplies a short matrix by a wide one, tile by tile; each iteration adds the product
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    common: Common,
}

fn main() -> ExitCode {
    args::run(|arguments: &Arguments| &arguments.common, gemm)
}

fn gemm(arguments: &Arguments) -> anyhow::Result<Report> {
    let Common {
        seed,
        iterations,
        bytes,
        ..
    } = arguments.common;
    let shape = Shape::within(bytes.unwrap_or(DEFAULT_BYTES))?;
    let iterations = iterations.unwrap_or(6);
    let [a_words, b_words, c_words] = shape.words();
    let device = arguments.common.open_device()?;
    let a = device.allocate(a_words * 4)?;
    let b = device.allocate(b_words * 4)?;
    let c = device.allocate(c_words * 4)?;
    for ((matrix, words), seed) in [(&a, a_words), (&b, b_words)]
        .into_iter()
        .zip(fill_seeds(seed))
    {
        for (first, count) in chunks(words, CHUNK_WORDS) {
            device.fill_u32(matrix.word(first), count, first as u32, seed)?;
        }
    }
    device.clear(c.address(), c_words * 4)?;
    device.synchronize()?;

    let sizes = [TILE_M, TILE_K, TILE_N].map(|size| size as u32);
    let times = timed_loop("gemm", iterations, |_| {
        for [tile_a, tile_b, tile_c] in shape.launches() {
            device.gemm_tile(a.word(tile_a), b.word(tile_b), c.word(tile_c), sizes)?;
        }
        device.synchronize()?;
        Ok(None)
    })?;

    let checksum = device.checksum(&c, c_words, 0)?;
    let footprint = Footprint {
        bytes: device.peak_bytes(),
        persistent_bytes: device.peak_bytes(),
        born_bytes_per_iteration: 0,
        carried_bytes: device.peak_bytes(),
    };
    Ok(Report::new(
        "gemm",
        footprint,
        times,
        checksum,
        reference(shape, iterations, seed),
    ))
}
