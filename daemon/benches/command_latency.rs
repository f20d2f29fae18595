//! How long a program waits from an event in the ring to the command in its hands.
//!
//! Plays a program that sweeps cyclically over half as much again as its device holds, one
//! block a launch, and executes each command at once. Measured: from before the launch's
//! record is pushed to after the first command is popped, with the executor asleep
//! meanwhile; wake-ups of both sides are in it. No device takes the processors' time here, as
//! the soft GPU does in `oversub bench`. Prints one JSON object: medians over five runs, each
//! with a daemon of its own, and their least and greatest.
#![allow(clippy::unwrap_used)] // a benchmark may end

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::{Client, Daemon, block};
use oversub_protocol::BLOCK_BYTES;

const BLOCKS: u64 = 48;
const ROUNDS: u64 = 40;
const LEARNING_ROUNDS: u64 = 6;
const RUNS: usize = 5;

fn main() {
    let runs: Vec<Vec<f64>> = (0..RUNS).map(|_| run()).collect();
    let over_runs = |share: f64| {
        let quantile = |samples: &Vec<f64>| {
            let index = (samples.len() as f64 * share) as usize;
            samples[index.min(samples.len() - 1)]
        };
        let mut quantiles: Vec<f64> = runs.iter().map(quantile).collect();
        quantiles.sort_unstable_by(f64::total_cmp);
        serde_json::json!({
            "median": quantiles[RUNS / 2],
            "spread": [quantiles[0], quantiles[RUNS - 1]],
        })
    };
    let result = serde_json::json!({
        "command_latency_us": {
            "p50": over_runs(0.5),
            "p90": over_runs(0.9),
            "p99": over_runs(0.99),
        },
        "runs": RUNS,
        "samples": runs.iter().map(Vec::len).sum::<usize>(),
    });
    println!("{result}");
}

/// Microseconds of all launches that were answered, least first.
fn run() -> Vec<f64> {
    let daemon = Daemon::start_with(&["--no-probes"], "");
    let mut client = Client::connect(&daemon);
    client.function(0, "sweep");
    client.alloc(block(0), BLOCKS * BLOCK_BYTES);
    let mut samples = Vec::new();
    for round in 0..ROUNDS {
        for index in 0..BLOCKS {
            client.passed(client.seq);
            let start = Instant::now();
            client.launch(0, block(index));
            let mut first = None;
            while let Some(command) = client.wait_command(Duration::from_millis(2)) {
                first.get_or_insert_with(|| start.elapsed());
                client.done(&command);
            }
            if round >= LEARNING_ROUNDS {
                samples.extend(first.map(|time| time.as_nanos() as f64 / 1e3));
            }
        }
    }
    assert!(!samples.is_empty(), "no launch was answered");
    samples.sort_unstable_by(f64::total_cmp);
    samples
}
