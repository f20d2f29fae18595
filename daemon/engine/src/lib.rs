//! The policy core of oversub: events in, commands out.
//!
//! No I/O, no clock, no threads, no randomness: time comes with the events, so that the
//! same events give the same commands, live, in the simulator and in replay. One
//! [`Engine`] steers one session on one device.

mod command;
mod config;
mod engine;
mod event;
mod stats;
mod units;

pub use command::{Command, Operation, Queue};
pub use config::{Config, DeepumConfig, ConfigError, PolicyKind};
pub use engine::Engine;
pub use event::{Cause, Copy, Direction, Event, Launch};
pub use stats::{BreakerState, Snapshot, Stats};
pub use units::{BlockId, Bytes, FunctionId, Micros, Range, Seq, StreamId, BLOCK_BYTES};
