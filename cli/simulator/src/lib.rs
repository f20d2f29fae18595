//! A discrete-event model of nvidia-uvm, and everything that can be asked of it: how any
//! policy does on a recorded trace, and how far that is from a bound that none can beat.
//!
//! Deterministic: integer time, no clock, no randomness that is not seeded. The way of the
//! data: [`trace`] reads a file into a `Program`; [`run`] plays it on a [`machine`] through
//! the [`model`] under one entry of [`policy`], which sees what its [`class`] may see;
//! [`bound`] says what no policy can beat.

pub mod bound;
pub mod class;
pub mod explain;
pub mod machine;
pub mod model;
pub mod policy;
pub mod recovery;
pub mod run;
pub mod timeline;
pub mod trace;
pub mod units;
