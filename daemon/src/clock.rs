//! The one clock: `CLOCK_MONOTONIC`, the same that the shim stamps its figures with.
//!
//! The engine gets its time from here and from nowhere else, so that a recorded session
//! can be replayed with the times it was given.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use oversub_engine::Micros;

/// Nanoseconds since boot, without time asleep.
pub fn monotonic_ns() -> u64 {
    match clock_gettime(ClockId::CLOCK_MONOTONIC) {
        Ok(time) => u64::try_from(Duration::from(time).as_nanos()).unwrap_or(u64::MAX),
        // The kernel has had this clock since 2.6 and the pointer is ours: cannot fail.
        Err(_) => 0,
    }
}

/// The same in the engine's unit.
pub fn now() -> Micros {
    Micros(monotonic_ns() / 1_000)
}
