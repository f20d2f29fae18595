//! The logic of the preloaded library, without its exports: what can be decided without
//! calling the driver.
//!
//! Owns the tables (allocations, functions, streams), the stream-ordered pool, the answers
//! about capacity, the environment's meaning. Knows nothing of symbols, sockets or threads.
//! `no_std`, never allocates: tables live in memory that is mapped once and never grows;
//! what does not fit is counted and left to the driver.
#![cfg_attr(not(test), no_std)]

pub mod abi;
pub mod allocations;
pub mod capacity;
pub mod commands;
pub mod environment;
pub mod functions;
pub mod holding;
pub mod launch;
pub mod lock;
pub mod mapped;
pub mod pool;
pub mod streams;
pub mod threads;

/// Bytes in a block, the unit of every decision.
pub use oversub_protocol::BLOCK_BYTES;
