//! Kernel probes: what the driver does with the program's memory, as typed events.
//!
//! The only crate that knows libbpf. It goes in three steps: what the host can do
//! ([`host`]), which probes to use and why not the others, a pure choice ([`plan`]), and
//! the effects ([`load`], [`uvm`], [`intake`]). Records are decoded apart from libbpf
//! ([`event`]); where nvidia-uvm keeps things is a table ([`offsets`]), which is tried on
//! ourselves before it is believed ([`selftest`]). What the events mean for prediction is
//! the engine's business.

mod bench;
pub mod driver;
pub mod event;
pub mod gpus;
pub mod host;
pub mod intake;
pub mod load;
pub mod offsets;
pub mod plan;
pub mod probe;
pub mod selftest;
mod source;
pub mod spaces;
pub mod target;
pub mod uvm;

pub use bench::{BenchError, ProbeLatency, probe_latency};
pub use event::{Cause, Direction, Eviction, Payer, ProbeEvent, Source, What};
pub use host::{HostFacts, Loading};
pub use intake::{AttachError, Attached, Intake, QueueError};
pub use load::{ProbeReport, ProbeState};
pub use plan::{PlanOptions, Probe, ProbePlan};
pub use uvm::Trust;

/// Made by the build from `programs/softgpu.bpf.c`.
#[allow(missing_docs, unused, clippy::all)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
#[allow(clippy::undocumented_unsafe_blocks)]
mod softgpu_skeleton {
    include!(concat!(env!("OUT_DIR"), "/softgpu.skel.rs"));
}

/// Made by the build from `programs/spaces.bpf.c`.
#[allow(missing_docs, unused, clippy::all)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
#[allow(clippy::undocumented_unsafe_blocks)]
mod spaces_skeleton {
    include!(concat!(env!("OUT_DIR"), "/spaces.skel.rs"));
}

/// Made by the build from `programs/uvm.bpf.c`.
#[allow(missing_docs, unused, clippy::all)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
#[allow(clippy::undocumented_unsafe_blocks)]
mod uvm_skeleton {
    include!(concat!(env!("OUT_DIR"), "/uvm.skel.rs"));
}
