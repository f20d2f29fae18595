//! The oversub daemon: sessions, probe intake, one engine thread per GPU, metrics.
//!
//! One launch comes in through [`channel`], is judged and told to the engine by
//! [`session`], whose commands go back through [`channel`]; [`gpu`] gives each session its
//! turns; [`attached`] steers programs that run without oversub's library, from outside.
//! [`serve`] lets programs in and answers questions, whose types are in [`control`].

pub mod args;
pub mod attached;
pub mod barrier;
pub mod channel;
pub mod clock;
pub mod config;
pub mod control;
pub mod daemon;
pub mod driver_metrics;
pub mod gpu;
pub mod limiter;
pub mod logging;
pub mod metrics;
pub mod privileges;
pub mod probes;
pub mod profiles;
pub mod schedule;
pub mod serve;
pub mod session;
pub mod socket;
