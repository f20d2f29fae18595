//! The policy core of oversub: events in, commands out.
//!
//! No I/O, no clock, no threads, no randomness: time comes with the events, so that the
//! same events give the same commands, live, in the simulator and in replay. One
//! [`Engine`] steers one session on one device.

mod access;
mod agreement;
mod breaker;
mod command;
mod config;
mod decision;
mod engine;
mod event;
mod from_faults;
mod functions;
mod hash;
mod identity;
mod pace;
mod policy;
mod profile;
mod run_ahead;
mod scatter;
mod stats;
mod table;
mod units;
mod usefulness;
mod warm;
mod without;
mod world;

pub use command::{Command, Operation, Queue};
pub use config::{Config, ConfigError, DeepumConfig, PolicyKind};
pub use decision::{Decision, Fate, Place, Reason, Standing, Step, Stop, Why};
pub use engine::Engine;
pub use event::{Cause, Copy, Direction, Event, Launch};
pub use from_faults::{FaultConfig, FaultEngine, FaultStats};
pub use policy::Stops;
pub use profile::{PROFILE_BYTES, PROFILE_VERSION, Profile, ProfileError};
pub use stats::{BreakerState, Snapshot, Stats};
pub use units::{BLOCK_BYTES, BlockId, Bytes, FunctionId, Micros, Range, Seq, StreamId};
pub use without::Without;
