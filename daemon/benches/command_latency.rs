//! How long a program waits from an event in the ring to the command in its hands.
//!
//! Plays a program that sweeps cyclically over half as much again as its device holds, one
//! block a launch, and executes each command at once. Measured: from before the launch's
//! record is pushed to after the first command is popped, with the executor asleep
//! meanwhile; wake-ups of both sides are in it. Prints one JSON object.
#![allow(clippy::unwrap_used)] // a benchmark may end

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::{Client, Daemon, block};
use oversub_protocol::BLOCK_BYTES;

const BLOCKS: u64 = 48;
const ROUNDS: u64 = 60;
const LEARNING_ROUNDS: u64 = 6;

fn main() {
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
                samples.extend(first);
            }
        }
    }
    samples.sort_unstable();
    let quantile = |share: f64| {
        let index = ((samples.len() as f64 * share) as usize).min(samples.len().saturating_sub(1));
        samples
            .get(index)
            .map(|sample| sample.as_nanos() as f64 / 1e3)
    };
    let result = serde_json::json!({
        "command_latency_us": {"p50": quantile(0.5), "p90": quantile(0.9), "p99": quantile(0.99)},
        "samples": samples.len(),
        "launches": (ROUNDS - LEARNING_ROUNDS) * BLOCKS,
    });
    println!("{result}");
}
