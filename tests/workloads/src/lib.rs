//! CUDA programs that need a lot of device memory and check their own results.
//!
//! `sweep`, `train`, `gemm`, `gather` and `fits` are ordinary programs on the CUDA driver
//! API: they allocate, launch the kernels of `kernels/kernels.cu` and copy back, and know
//! nothing of what may run beneath them. Each compares what the device computed with a
//! computation of its own on the CPU, bit for bit.
//!
//! This library is what they share ([`args`], [`device`], [`report`], [`checksum`]) and,
//! by workload, the pure part: its shape and its reference.

pub mod args;
pub mod caching;
pub mod checksum;
pub mod device;
pub mod fits;
pub mod gather;
pub mod gemm;
pub mod mlp;
pub mod parallel;
pub mod report;
pub mod sequence;
pub mod size;
pub mod sweep;
