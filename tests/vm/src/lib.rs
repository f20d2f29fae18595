//! The real, unmodified nvidia-uvm.ko in a QEMU guest, on a Debian kernel, with a software
//! GPU (`device/`) in the place of nvidia.ko: the driver's own faults, migrations,
//! evictions and page tables on a machine without a GPU.
//!
//! On the host: [`packages`] fetches kernels and driver sources, [`modules`] builds them,
//! [`image`] packs a root file system, [`boot`] runs it and tells what became of it. In the
//! guest: `oversub-guest` is init; [`plan`] is what it is told and what it answers.
//!
//! A combination has up to two guests that run at the same time; the product's rounds are
//! shared out among them (`rounds::of_product`). Each boots once and does *rounds*: each
//! round loads the modules, does one piece of [`plan::Work`] in a process of its own, and
//! unloads them. To add a test:
//!
//! 1. a variant of [`plan::Work`] with what it is told, and unless one fits a variant of
//!    [`plan::Outcome`]; [`plan::Checked`] is for tests that judge themselves;
//! 2. a module of `src/bin/oversub-guest/` with a function `run`, and its arm in
//!    `work_alone` of `main.rs` there. `daemon.rs` and `program.rs` start what it needs;
//! 3. its round in `src/rounds.rs`, and in `rounds::programs` what of oversub must be in the
//!    guest for it;
//! 4. where it has an outcome of its own, its arm in `src/judge.rs`, and its figures in
//!    `src/report.rs`.
//!
//! What runs a workload with another kind of steering is shorter: a variant of
//! [`plan::Steering`], its arm in the guest's `program.rs`, its rounds in `rounds::product`
//! and the figure that they give in `judge::FIGURES`.
//!
//! `tests/vm/run --rounds TEXT` does only the rounds whose name contains the text.

pub mod asked;
pub mod boot;
pub mod cache;
pub mod chosen;
pub mod combination;
pub mod image;
pub mod interface;
pub mod kernel;
pub mod layouts;
pub mod modules;
pub mod packages;
pub mod plan;
