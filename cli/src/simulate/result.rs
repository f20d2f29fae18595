//! What a simulated run came to, as `--json` prints it and `report` reads it.

use serde::{Deserialize, Serialize};

/// One trace under one policy with one size of device memory. Figures without another
/// word are means over the steady iterations: from the third to the last but one, each taken
/// to begin where most memory is handed out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// The trace file's stem.
    pub trace: String,
    /// The policy's name.
    pub policy: String,
    /// Device memory.
    pub memory_bytes: u64,
    /// Time of an iteration.
    pub iteration_us: f64,
    /// Time of iteration 0, in which nothing is learned yet.
    pub first_iteration_us: f64,
    /// Time of each iteration, where the program marks it to begin.
    #[serde(default)]
    pub iterations_us: Vec<f64>,
    /// Time of an iteration with everything resident.
    pub ideal_us: f64,
    /// Time that no policy of its class can beat.
    pub bound_us: f64,
    /// Time that no policy of any class can beat, not even one that knows the future.
    #[serde(default)]
    pub future_bound_us: f64,
    /// Which bound that is.
    pub bound: String,
    /// The class of schedules that it holds for.
    #[serde(default)]
    pub bound_class: String,
    /// Bytes to the device.
    pub bytes_in: u64,
    /// Bytes to the host.
    pub bytes_out: u64,
    /// Bytes that launches read and wrote on the host, over the link, without moving them.
    #[serde(default)]
    pub host_read: u64,
    /// See `host_read`.
    #[serde(default)]
    pub host_written: u64,
    /// Faults of the device, 64 KiB each.
    pub faults: u64,
    /// What became of prefetched blocks.
    pub prefetch: Prefetch,
    /// What the engine costs; none for policies that are no engine.
    pub engine: Option<Engine>,
}

/// What became of prefetched bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Prefetch {
    /// Ordered.
    pub issued: u64,
    /// Of these, used before they were evicted.
    pub useful: u64,
    /// Of the useful ones, still under way when they were needed.
    pub late: u64,
    /// Evicted or lost unused.
    pub wasted: u64,
}

/// What an engine costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Engine {
    /// Time for one event, decisions included: the median over groups of 64. Measured, so
    /// only where it was asked for.
    pub ns_per_event: Option<u64>,
    /// Most bytes that its tables took.
    pub table_bytes: u64,
}

impl RunResult {
    /// Time over the bound.
    pub fn over_bound(&self) -> f64 {
        quotient(self.iteration_us, self.bound_us)
    }

    /// Time over the time with everything resident.
    pub fn slowdown(&self) -> f64 {
        quotient(self.iteration_us, self.ideal_us)
    }
}

/// `a / b`; one where both are nothing (a trace without launches).
fn quotient(a: f64, b: f64) -> f64 {
    if a == b { 1.0 } else { a / b }
}
