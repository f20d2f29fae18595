//! A small deterministic device that drives the engine through its public interface.
//!
//! One compute engine, one link per direction, a fault path that evicts by the driver's
//! order (unused, discarded, least recently migrated), and a host that runs ahead by some
//! launches. Integer nanoseconds; the same program gives the same run, whatever the
//! machine. It checks the engine's promises while it runs.

#![allow(dead_code, clippy::unwrap_used)] // each test file uses its own part

pub mod device;
pub mod programs;

#[allow(unused_imports)]
pub use device::{Device, Machine, Outcome};
