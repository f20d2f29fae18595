//! What a guest is told to do, and what it answers: the only things that pass between the
//! host and the guest, as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::asked::{AttachCounts, AttachLoad};
use crate::chosen::{SourceCounts, SourceLoad};
use crate::combination::Model;

/// Where the guest finds its plan.
pub const PLAN_PATH: &str = "/plan.json";
/// Where programs lie in the guest.
pub const PROGRAMS_PATH: &str = "/opt/oversub";
/// The daemon's configuration in the guest.
pub const DAEMON_CONFIG_PATH: &str = "/etc/oversubd.toml";
/// Where the modules lie in the guest.
pub const MODULES_PATH: &str = "/lib/modules";

/// How the line of the guest's console begins that ends a round.
pub const ROUND: &str = "round ";

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
    /// Launches that fault, observed by the product's probes on the driver.
    Probes(ProbeLoad),
    /// Programs whose daemon is killed and started again, on a driver that is loaded anew.
    Restarts(RestartLoad),
    /// Processes that misuse the driver under observation.
    Hostile(HostileLoad),
    /// The daemon's metrics of launches that evict, thrash and wait.
    Metrics,
    /// `oversub doctor`, where everything works and where nothing can.
    Doctor(DoctorLoad),
    /// What advice and migrations do.
    Advice,
    /// Who may have which process steered from outside.
    Attach(AttachLoad),
    /// Steering where BPF cannot be used. Locks the kernel down: the last of a boot.
    Source(SourceLoad),
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
    /// After so many of them everything is learned: the others are counted by themselves.
    pub settled_after: u32,
    /// Who moves memory.
    pub steering: Steering,
    /// More arguments.
    pub arguments: Vec<String>,
    /// Kernels last so many times what they take of the guest's processor.
    pub compute_scale: u32,
}

/// Who moves memory while a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Steering {
    /// nvidia-uvm by itself: the shim makes memory managed and does nothing else.
    Driver,
    /// The shim and the daemon, as a user runs them.
    Oversub,
    /// nvidia-uvm by itself: the program's own managed memory, with nothing around it.
    Alone,
    /// The daemon alone, attached to the program while it runs.
    Attached,
    /// As [`Steering::Oversub`], with the driver's event queue in the place of the probes.
    Queued,
}

/// A program, and how often its daemon is killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RestartLoad {
    /// The program.
    pub program: ProgramLoad,
    /// Times.
    pub kills: u32,
}

/// What `oversub doctor` must find.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DoctorLoad {
    /// Version of the driver.
    pub driver: String,
    /// Its flavour: open or closed.
    pub flavour: String,
    /// The kernel's version, as much of it as is asked for.
    pub kernel: String,
    /// nvidia-uvm comes with BTF.
    pub btf: bool,
}

/// How long processes misuse the driver.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostileLoad {
    /// So long.
    pub seconds: u32,
    /// Of what they do.
    pub seed: u64,
}

/// What is done with the product's probes on the driver.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProbeLoad {
    /// Managed memory, in parts of the GPU's memory.
    pub ratio: f64,
    /// Sweeps over it.
    pub sweeps: u32,
    /// Bytes from one access to the next.
    pub stride: u64,
    /// Take the layout of another driver version: it must be noticed.
    pub layout_of: Option<String>,
    /// Attach by the module's types, which pins it.
    pub pin_driver: bool,
    /// Load the driver anew while the probes are attached.
    pub reload: bool,
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
    /// What it took of the host's processors, which the guest cannot know.
    #[serde(default)]
    pub processor_seconds: f64,
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
    Program(Box<ProgramCounts>),
    /// Of [`Work::Probes`].
    Probes(Box<ProbeCounts>),
    /// Of work that judges itself.
    Checked(Checked),
    /// Of [`Work::Attach`].
    Attach(AttachCounts),
    /// Of [`Work::Source`].
    Source(Box<SourceCounts>),
}

/// What work found that judges itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// What was not as it must be.
    pub wrong: Vec<String>,
    /// What was counted, by name, to be shown.
    pub counts: BTreeMap<String, u64>,
}

impl Checked {
    /// Notes what is wrong unless it holds.
    pub fn must(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.wrong.push(otherwise());
        }
    }

    /// Notes a count.
    pub fn count(&mut self, name: &str, count: u64) {
        self.counts.insert(name.to_owned(), count);
    }
}

/// The counts.
impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.counts.iter();
        let mut counts = counts.map(|(name, count)| format!("{name} {count}"));
        counts.try_for_each(|count| write!(f, "; {count}"))
    }
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
    /// Of all that, what its last iterations did, by the driver's procfs.
    pub settled: Settled,
    /// What the daemon's metrics say of it, where there is a daemon.
    pub metrics: Option<MetricCounts>,
}

/// What the daemon's metrics say of a program, and the driver's procfs of the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricCounts {
    /// The metrics, of all processes.
    pub metrics: DriverCounts,
    /// Procfs, which does not tell everything.
    pub procfs: DriverCounts,
    /// Batches of faults in the histogram of their latency.
    pub timed_batches: u64,
    /// Evictions with a copy of which it is known for whose sake.
    pub paid_evictions: u64,
    /// Faults of the device under the program's number, its control group and its GPU, while
    /// it was not waited for.
    pub labelled_faults: u64,
    /// The same under those that ended, once it was.
    pub ended_faults: u64,
    /// Events that were lost.
    pub drops: u64,
}

/// What the driver did in the last iterations of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Settled {
    /// So many.
    pub iterations: u32,
    /// GPU faults, raw.
    pub faults: u64,
    /// Bytes moved to the device and from it, for any cause.
    pub bytes: u64,
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

/// What the driver did, as one of those who count it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverCounts {
    /// Faults of the device, before merging.
    pub faults: u64,
    /// And after it.
    pub merged_faults: u64,
    /// Faults of the host.
    pub host_faults: u64,
    /// Batches of faults.
    pub batches: u64,
    /// Pages to the device, for faults and what the driver adds to them.
    pub fault_pages_in: u64,
    /// Pages from it, likewise.
    pub fault_pages_out: u64,
    /// Pages to the device, for any cause.
    pub pages_in: u64,
    /// Pages from it, for any cause.
    pub pages_out: u64,
    /// Of those, evicted.
    pub evicted_pages: u64,
    /// Blocks that lost device memory and were copied.
    pub evictions: u64,
    /// Blocks that faulted, where faults are not counted.
    pub blocks_faulted: u64,
    /// Moves of unknown size.
    pub blocks_moved: u64,
    /// Events of which nobody knows the process.
    pub of_nobody: u64,
}

impl DriverCounts {
    /// What came to the driver's procfs since it said `before`.
    pub fn procfs_since(self, before: Self) -> Self {
        Self {
            faults: self.faults - before.faults,
            merged_faults: self.merged_faults - before.merged_faults,
            batches: self.batches - before.batches,
            fault_pages_in: self.fault_pages_in - before.fault_pages_in,
            fault_pages_out: self.fault_pages_out - before.fault_pages_out,
            pages_in: self.pages_in - before.pages_in,
            pages_out: self.pages_out - before.pages_out,
            ..Self::default()
        }
    }
}

/// What the probes, the event queue and the driver's procfs say of the same launches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeCounts {
    /// The probes.
    pub probes: DriverCounts,
    /// The event queue.
    pub queue: DriverCounts,
    /// Procfs, which does not tell everything.
    pub procfs: DriverCounts,
    /// How the probes on the driver are attached, by their names; what is off is not there.
    pub attached: BTreeMap<String, String>,
    /// Packets that the device wrote.
    pub device_faults: u64,
    /// The driver's structures proved to be as expected.
    pub verified: bool,
    /// They were not read, or not any more.
    pub scalar: bool,
    /// Structures that were checked.
    pub checked: u64,
    /// Of them, with impossible contents.
    pub implausible: u64,
    /// Events of probes that were lost.
    pub probe_drops: u64,
    /// Events of the queue that were lost.
    pub queue_drops: u64,
    /// Words of memory that were wrong.
    pub wrong_words: u64,
}
