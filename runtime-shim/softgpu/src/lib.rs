//! The soft GPU: a `libcuda.so.1` that runs on the CPU, with a real, paged,
//! capacity-limited device memory.
//!
//! A program that speaks the CUDA driver API runs on it unchanged, as long as its kernels
//! are among [`kernels::KERNELS`]. The way of a launch: [`api`] checks the call, [`stream`]
//! orders it, an engine takes it to `sm`, which runs its pieces over [`memory`].

pub mod abi;
pub mod allocations;
pub mod api;
pub mod config;
pub mod context;
pub mod counters;
pub mod driver;
pub mod handle;
pub mod kernels;
pub mod memory;
pub mod module;
pub mod probes;
pub mod sm;
pub mod stats;
pub mod stream;
