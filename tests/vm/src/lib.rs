//! The real, unmodified nvidia-uvm.ko in a QEMU guest, on a Debian kernel, with a software
//! GPU (`device/`) in the place of nvidia.ko: the driver's own faults, migrations,
//! evictions and page tables on a machine without a GPU.
//!
//! On the host: [`packages`] fetches kernels and driver sources, [`modules`] builds them,
//! [`image`] packs a root file system, [`boot`] runs it and tells what became of it. In the
//! guest: `oversub-guest` is init; [`plan`] is what it is told and what it answers.

pub mod boot;
pub mod cache;
pub mod combination;
pub mod image;
pub mod interface;
pub mod kernel;
pub mod layouts;
pub mod modules;
pub mod packages;
pub mod plan;
