//! Requests to attach to processes, and what came of them: what a guest is told to ask for
//! and what it answers.

use serde::{Deserialize, Serialize};

use crate::plan::ProgramLoad;

/// The user of the programs that are attached to.
pub const OWNER: u32 = 1000;
/// Another ordinary user.
pub const STRANGER: u32 = 1001;
/// A user that only daemons run as.
pub const SERVICE: u32 = 1002;

/// Capabilities by their numbers (linux/capability.h).
pub mod capability {
    /// Reads and searches whatever its permissions.
    pub const DAC_READ_SEARCH: u32 = 2;
    /// Looks into other users' processes.
    pub const SYS_PTRACE: u32 = 19;
    /// Many things.
    pub const SYS_ADMIN: u32 = 21;
    /// Raises priorities.
    pub const SYS_NICE: u32 = 23;
    /// Observes the kernel.
    pub const PERFMON: u32 = 38;
    /// Loads BPF programs.
    pub const BPF: u32 = 39;
}

/// As whom a program runs, and what it may do beyond.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    /// Its user and group.
    pub user: u32,
    /// All capabilities that it has and can get, by number; none: as its user has them.
    pub capabilities: Option<Vec<u32>>,
}

impl Rights {
    /// Root, with everything.
    pub const ROOT: Self = Self {
        user: 0,
        capabilities: None,
    };
}

/// Daemons that are asked, one after the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AttachLoad {
    /// A program of [`OWNER`], which stands still except where a request steers it.
    pub program: ProgramLoad,
    /// The daemons.
    pub daemons: Vec<AttachDaemon>,
}

/// A daemon, and what is asked of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AttachDaemon {
    /// `attach.processes` of its configuration; none: the default.
    pub processes: Option<String>,
    /// `kernel.perf_event_paranoid` meanwhile.
    pub perf_event_paranoid: u32,
    /// Its rights; none: none runs, and `oversub attach` starts one of its own.
    pub rights: Option<Rights>,
    /// What is asked, in order.
    pub requests: Vec<AttachRequest>,
}

/// `oversub attach`, run by a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachRequest {
    /// `kernel.yama.ptrace_scope` meanwhile.
    pub ptrace_scope: u32,
    /// The user who asks.
    pub asker: u32,
    /// For what.
    pub target: Target,
    /// What is done where it is granted.
    pub then: Then,
}

/// A process to attach to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The program of [`OWNER`].
    Program,
    /// A process of [`OWNER`] that holds managed memory and does nothing.
    Plain,
    /// The same, which hides itself (`PR_SET_DUMPABLE` 0).
    Hidden,
    /// A set-user-ID program of root, started by [`OWNER`].
    SetUser,
    /// Of [`OWNER`], with root as its saved user.
    TwoUsers,
}

impl Target {
    /// Those that only hold memory.
    pub const HOLDERS: [Self; 4] = [Self::Plain, Self::Hidden, Self::SetUser, Self::TwoUsers];
}

/// What follows a request that is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// It is let go.
    LetGo,
    /// The program runs until something was moved for it, and is let go.
    Steer,
    /// The program runs to its end.
    SteerToEnd,
}

/// What came of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachAnswer {
    /// It was attached to.
    pub granted: bool,
    /// What the command said.
    pub said: String,
    /// Where the driver's events came from.
    pub source: String,
    /// Bytes that were moved for it.
    pub moved_bytes: u64,
    /// Why it was let go.
    pub ended: String,
    /// Descriptors of the driver that the daemon held while it was attached.
    pub held: u64,
    /// And once it was let go, or refused.
    pub left: u64,
    /// What another ordinary user was told who wanted it to be let go; empty: nobody did.
    pub stranger_told: String,
}

/// What came of all requests, and of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachCounts {
    /// Of each request, in the order of the plan.
    pub answers: Vec<AttachAnswer>,
    /// The program's result was right.
    pub ok: bool,
    /// The driver could be unloaded, with the last daemon still there.
    pub unloaded: bool,
}
