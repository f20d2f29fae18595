//! Where the daemon takes the driver's events from by its own choice, where BPF cannot be
//! used: what a guest is told and what it answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::plan::{ProgramCounts, ProgramLoad};

/// A program, by itself and steered without BPF.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SourceLoad {
    /// On the driver alone.
    pub alone: ProgramLoad,
    /// With oversub.
    pub steered: ProgramLoad,
}

/// Why BPF cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hindrance {
    /// The daemon has no CAP_BPF, CAP_PERFMON or CAP_SYS_ADMIN.
    Capabilities,
    /// The kernel is locked down (`confidentiality`).
    Lockdown,
    /// And nothing may look into another process (`kernel.yama.ptrace_scope` 3).
    Sealed,
}

/// What one daemon and `oversub doctor` beside it say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Why it cannot use BPF.
    pub hindrance: Hindrance,
    /// `probes.mode` of its configuration; none: the default.
    pub mode: Option<String>,
    /// Exit status of `oversub doctor`.
    pub status: Option<i32>,
    /// The doctor's line on the driver's events.
    pub events: String,
    /// Source, tier and reason of each signal of the driver.
    pub signals: BTreeMap<String, (String, String, String)>,
    /// The doctor's level and finding of lockdown.
    pub lockdown: (String, String),
    /// And of Yama.
    pub yama: (String, String),
    /// The first lines of `oversub status`.
    pub told_status: String,
}

/// All of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SourceCounts {
    /// Each daemon, in order.
    pub sources: Vec<Source>,
    /// The program on the driver alone.
    pub alone: ProgramCounts,
    /// The program steered by the daemon's own choice of source, under lockdown.
    pub steered: ProgramCounts,
    /// Processes whose event queue that daemon had open while it ran.
    pub observed: u64,
    /// The kernel's lockdown mode at the end, by the kernel.
    pub lockdown: String,
    /// What `oversub attach` said where nothing may look into another process.
    pub sealed: String,
}
