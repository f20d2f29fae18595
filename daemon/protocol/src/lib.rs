//! The wire between the shim (in the program) and the daemon.
//!
//! Owns: the handshake messages ([`handshake`]), the records in the two rings
//! ([`event`], [`command`]) with the ways into slots and back ([`encode`], [`decode`]), the
//! rings themselves ([`ring`]) and the shared memory that holds them ([`layout`]).
//! Knows nothing of sockets, CUDA or policy, and is `no_std`, because the shim is.
#![cfg_attr(not(loom), no_std)]

pub mod command;
pub mod decode;
pub mod encode;
pub mod event;
pub mod fences;
pub mod handshake;
pub mod latency;
pub mod layout;
pub mod ring;
pub mod sync;

/// Version of everything in this crate. Two sides of different versions do not talk:
/// the daemon says so in its [`handshake::Welcome`] and the program runs on alone.
pub const PROTOCOL_VERSION: u32 = 5;

/// Bytes in one block, nvidia-uvm's `UVM_VA_BLOCK_SIZE` (uvm_va_block_types.h, 580.142).
pub const BLOCK_BYTES: u64 = 2 << 20;
