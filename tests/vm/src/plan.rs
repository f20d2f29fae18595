//! What a guest is told to do, and what it answers: the only things that pass between the
//! host and the guest, as JSON.

use serde::{Deserialize, Serialize};

use crate::combination::Model;

/// Where the guest finds its plan.
pub const PLAN_PATH: &str = "/plan.json";
/// Where programs lie in the guest.
pub const PROGRAMS_PATH: &str = "/opt/oversub";
/// The daemon's configuration in the guest.
pub const DAEMON_CONFIG_PATH: &str = "/etc/oversubd.toml";
/// Where the modules lie in the guest.
pub const MODULES_PATH: &str = "/lib/modules";

/// Everything that one boot does, in order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Rounds; each loads the modules and unloads them again.
    pub rounds: Vec<Round>,
}

/// One load of the modules and what is done with them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Round {
    /// For the report.
    pub name: String,
    /// Model of the GPU.
    pub model: Model,
    /// Its memory, MiB.
    pub memory_mib: u64,
    /// Negative control: the copy engine leaves copies out.
    pub drop_copies: bool,
    /// What is done.
    pub work: Work,
}

/// What a round does.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Launches write and read managed memory larger than the GPU's, by faults alone, with
    /// an event queue attached; the CPU checks what came out.
    Faults(FaultLoad),
    /// A workload program on the soft CUDA driver, whose memory nvidia-uvm keeps.
    Program(ProgramLoad),
}

/// A workload program and what is around it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProgramLoad {
    /// Its name below [`PROGRAMS_PATH`].
    pub program: String,
    /// Working set, bytes.
    pub bytes: u64,
    /// Iterations.
    pub iterations: u32,
    /// Who moves memory.
    pub steering: Steering,
}

/// Who moves memory while a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Steering {
    /// nvidia-uvm by itself: the shim makes memory managed and does nothing else.
    Driver,
    /// The shim and the daemon, as a user runs them.
    Oversub,
}

/// How much of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FaultLoad {
    /// Managed memory, in parts of the GPU's memory.
    pub ratio: f64,
    /// Sweeps over it.
    pub sweeps: u32,
    /// Bytes from one access to the next.
    pub stride: u64,
}

/// What the guest says at its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Its kernel's release.
    pub kernel: String,
    /// Version of nvidia-uvm, by the module itself.
    pub driver: String,
    /// nvidia-uvm had BTF.
    pub btf: bool,
    /// Seconds from the kernel's start to the first round.
    pub boot_seconds: f64,
    /// What the rounds gave.
    pub rounds: Vec<Rounded>,
    /// Lines of the kernel's log that must not be there.
    pub kernel_trouble: Vec<String>,
}

/// What one round gave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rounded {
    /// The round's name.
    pub name: String,
    /// How long it took, in the guest.
    pub seconds: f64,
    /// What came out, or why it could not be done.
    pub outcome: Result<Outcome, String>,
}

/// What came out of a round.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Of [`Work::Faults`].
    Faults(FaultCounts),
    /// Of [`Work::Program`].
    Program(ProgramCounts),
}

/// What a workload program did, by itself and by the driver's events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgramCounts {
    /// The result was right.
    pub ok: bool,
    /// Seconds of its loop.
    pub seconds: f64,
    /// GPU faults, raw.
    pub faults: u64,
    /// Bytes moved to the device, for any cause.
    pub bytes_in: u64,
    /// Bytes moved from the device, for any cause.
    pub bytes_out: u64,
    /// Of those to the device, by a call.
    pub called_in: u64,
}

/// Faults as everybody counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultCounts {
    /// Packets that the device wrote.
    pub device: u64,
    /// `replayable_faults` in the driver's procfs.
    pub procfs: u64,
    /// GPU faults in the tools event queue.
    pub tools: u64,
    /// Events that the queue had no room for.
    pub tools_dropped: u64,
    /// Bytes that eviction moved out, by the queue.
    pub evicted_bytes: u64,
    /// Pages moved to the device, by procfs.
    pub procfs_pages_in: u64,
    /// Pages moved from the device, by procfs.
    pub procfs_pages_out: u64,
    /// Bytes moved to the device, by the queue.
    pub tools_bytes_in: u64,
    /// Bytes moved from the device, by the queue.
    pub tools_bytes_out: u64,
    /// Words that were checked.
    pub words: u64,
    /// Words that were wrong.
    pub wrong_words: u64,
    /// Copies that the negative control left out.
    pub dropped_copies: u64,
}
