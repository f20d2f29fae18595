//! The probes by name, what they are attached to and how.

use std::fmt;

/// One probe. Each is attached by itself and has a state of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Probe {
    /// All five probe points of the soft GPU.
    SoftGpu,
    /// nvidia-uvm: faults and migrations.
    UvmEvents,
    /// nvidia-uvm: the fault service loop begins.
    UvmServiceBegin,
    /// nvidia-uvm: and ends.
    UvmServiceEnd,
    /// nvidia-uvm: a batch of faults was served.
    UvmReplay,
    /// nvidia-uvm: an eviction begins.
    UvmEvictionBegin,
    /// nvidia-uvm: and ends.
    UvmEvictionEnd,
    /// nvidia-uvm: processors fight for pages.
    UvmThrashing,
    /// nvidia-uvm: one of them has to wait.
    UvmThrottle,
    /// nvidia-uvm: a process makes a managed range.
    UvmRange,
    /// nvidia-uvm: an address space ends.
    UvmSpaceEnd,
    /// nvidia-uvm in scalar mode: a block faulted.
    UvmBlockFault,
    /// nvidia-uvm in scalar mode: pages of a block are moved.
    UvmBlockMigration,
}

impl Probe {
    /// Every probe, in the order of reports.
    pub const ALL: [Probe; 13] = [
        Probe::SoftGpu,
        Probe::UvmEvents,
        Probe::UvmServiceBegin,
        Probe::UvmServiceEnd,
        Probe::UvmReplay,
        Probe::UvmEvictionBegin,
        Probe::UvmEvictionEnd,
        Probe::UvmThrashing,
        Probe::UvmThrottle,
        Probe::UvmRange,
        Probe::UvmSpaceEnd,
        Probe::UvmBlockFault,
        Probe::UvmBlockMigration,
    ];

    /// Its name in reports and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Probe::SoftGpu => "softgpu",
            Probe::UvmEvents => "uvm_events",
            Probe::UvmServiceBegin => "uvm_service_begin",
            Probe::UvmServiceEnd => "uvm_service_end",
            Probe::UvmReplay => "uvm_replay",
            Probe::UvmEvictionBegin => "uvm_eviction_begin",
            Probe::UvmEvictionEnd => "uvm_eviction_end",
            Probe::UvmThrashing => "uvm_thrashing",
            Probe::UvmThrottle => "uvm_throttle",
            Probe::UvmRange => "uvm_range",
            Probe::UvmSpaceEnd => "uvm_space_end",
            Probe::UvmBlockFault => "uvm_block_fault",
            Probe::UvmBlockMigration => "uvm_block_migration",
        }
    }

    /// The functions that it may be attached to, the preferred one first.
    pub const fn symbols(self) -> &'static [&'static str] {
        match self {
            Probe::SoftGpu => &[],
            Probe::UvmEvents => &["uvm_perf_event_notify"],
            // The first from 560.28 on.
            Probe::UvmServiceBegin | Probe::UvmServiceEnd => &[
                "uvm_parent_gpu_service_replayable_faults",
                "uvm_gpu_service_replayable_faults",
            ],
            Probe::UvmReplay => &["uvm_tools_broadcast_replay"],
            Probe::UvmEvictionBegin | Probe::UvmEvictionEnd => &["uvm_va_block_evict_chunks"],
            Probe::UvmThrashing => &["uvm_tools_record_thrashing"],
            Probe::UvmThrottle => &["uvm_tools_record_throttling_start"],
            Probe::UvmRange => &["uvm_va_range_create_mmap"],
            Probe::UvmSpaceEnd => &["uvm_va_space_destroy"],
            Probe::UvmBlockFault => &["uvm_va_block_find_create_in_range"],
            // The first from 580.65 on.
            Probe::UvmBlockMigration => &[
                "uvm_tools_record_migration_begin",
                "uvm_tools_record_block_migration_begin",
            ],
        }
    }

    /// Attached to a function's return.
    pub const fn at_return(self) -> bool {
        matches!(self, Probe::UvmServiceEnd | Probe::UvmEvictionEnd)
    }

    /// Used only while the driver's structures are not read.
    pub const fn scalar(self) -> bool {
        matches!(self, Probe::UvmBlockFault | Probe::UvmBlockMigration)
    }

    /// There is a program for it that is attached by the module's own type information.
    pub const fn has_fentry(self) -> bool {
        matches!(
            self,
            Probe::UvmEvents
                | Probe::UvmServiceBegin
                | Probe::UvmServiceEnd
                | Probe::UvmReplay
                | Probe::UvmEvictionBegin
                | Probe::UvmEvictionEnd
        )
    }
}

/// Every function of nvidia-uvm that some probe may want.
pub fn uvm_symbols() -> impl Iterator<Item = &'static str> {
    Probe::ALL.iter().flat_map(|probe| probe.symbols()).copied()
}

/// How a probe is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// All probe points of a file by one attachment.
    UprobeMulti,
    /// One attachment for each probe point.
    Uprobe,
    /// At the entry of a kernel function.
    Kprobe(&'static str),
    /// At its return.
    Kretprobe(&'static str),
    /// At the entry, by the module's type information; the module cannot be unloaded then.
    Fentry(&'static str),
    /// At the return, likewise.
    Fexit(&'static str),
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            How::UprobeMulti => f.write_str("uprobe.multi"),
            How::Uprobe => f.write_str("uprobe"),
            How::Kprobe(function) => write!(f, "kprobe {function}"),
            How::Kretprobe(function) => write!(f, "kretprobe {function}"),
            How::Fentry(function) => write!(f, "fentry {function}"),
            How::Fexit(function) => write!(f, "fexit {function}"),
        }
    }
}
