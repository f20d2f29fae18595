//! Where nvidia-uvm keeps what the probes read, by driver version.
//!
//! The payload of `uvm_perf_event_notify` and the fault entry contain no kernel types, so
//! their layout depends on the driver's version alone, not on the kernel's configuration:
//! checked with the debug information of 535.183.01, 550.163.01, 570.211.01, 580.142,
//! 590.48.01 and 595.45.04 built here, and with the sources of the public tags between
//! them for where a row begins. A version older than the table is refused; of a newer one
//! the newest row is a guess, which has to pass the self-test.

use std::fmt;
use std::str::FromStr;

use crate::uvm_skeleton::types::ovs_uvm_layout;

/// A driver version: branch, minor and patch (0 where there is none), as in `535.183.01`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DriverVersion(pub u32, pub u32, pub u32);

impl FromStr for DriverVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<DriverVersion, String> {
        let wrong = || format!("`{text}` is no driver version such as 580.142 or 535.183.01");
        let mut numbers = text.trim().split('.').map(|part| part.parse::<u32>().ok());
        let mut next = || numbers.next();
        let branch = next().flatten().ok_or_else(wrong)?;
        let minor = next().flatten().ok_or_else(wrong)?;
        let patch = match next() {
            Some(patch) => patch.ok_or_else(wrong)?,
            None => 0,
        };
        if next().is_some() {
            return Err(wrong());
        }
        Ok(DriverVersion(branch, minor, patch))
    }
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DriverVersion(branch, minor, 0) => write!(f, "{branch}.{minor:02}"),
            DriverVersion(branch, minor, patch) => write!(f, "{branch}.{minor}.{patch:02}"),
        }
    }
}

/// Offsets in bytes; see `include/uvm_layout.h` for what each one is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UvmLayout {
    /// Fault: pointer to the block.
    pub fault_block: u32,
    /// Fault: processor.
    pub fault_processor: u32,
    /// Fault: pointer to the entry (device), or the address (host).
    pub fault_entry: u32,
    /// Fault: batch.
    pub fault_batch: u32,
    /// Migration: pointer to the block.
    pub migration_block: u32,
    /// Migration: destination.
    pub migration_dst: u32,
    /// Migration: source.
    pub migration_src: u32,
    /// Migration: address.
    pub migration_address: u32,
    /// Migration: bytes.
    pub migration_bytes: u32,
    /// Migration: cause.
    pub migration_cause: u32,
    /// Fault entry: address.
    pub entry_address: u32,
    /// Fault entry: merged faults.
    pub entry_instances: u32,
    /// Fault entry: how the memory was accessed, as bits.
    pub entry_access: u32,
    /// Block: first byte; 0: not known.
    pub block_start: u32,
    /// Block: last byte; 0: not known.
    pub block_end: u32,
    /// Event list: its address space; 0: not known.
    pub events_space: u32,
    /// The driver is newer than every checked one: the newest row, as a guess.
    pub guessed: bool,
}

/// Which arguments, counted from 0, of the function that begins a migration are what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BeginArguments {
    /// Destination.
    pub dst: u32,
    /// Source.
    pub src: u32,
    /// First byte.
    pub address: u32,
    /// Cause.
    pub cause: u32,
}

impl BeginArguments {
    /// Those of `function` in a driver of that version; `None`: not known.
    pub fn of(function: &str, version: Option<DriverVersion>) -> Option<BeginArguments> {
        /// From here on both processors come with a node of the host.
        const WITH_NODES: DriverVersion = DriverVersion(565, 57, 0);
        let plain = BeginArguments {
            dst: 2,
            src: 3,
            address: 4,
            cause: 5,
        };
        let with_nodes = BeginArguments {
            dst: 2,
            src: 4,
            address: 6,
            cause: 7,
        };
        match (function, version) {
            ("uvm_tools_record_migration_begin", _) => Some(with_nodes),
            ("uvm_tools_record_block_migration_begin", Some(version)) => {
                Some(if version < WITH_NODES {
                    plain
                } else {
                    with_nodes
                })
            }
            _ => None,
        }
    }
}

/// First version with a row's layout, and the row.
struct Row {
    from: DriverVersion,
    fault: [u32; 3],
    migration: [u32; 3],
}

/// Payload of faults (processor, entry, batch) and of migrations (address, bytes, cause).
const ROWS: [Row; 4] = [
    Row {
        from: DriverVersion(530, 0, 0),
        fault: [16, 24, 32],
        migration: [24, 32, 44],
    },
    Row {
        from: DriverVersion(550, 40, 0),
        fault: [16, 24, 32],
        migration: [32, 40, 52],
    },
    Row {
        from: DriverVersion(565, 57, 0),
        fault: [16, 24, 32],
        migration: [32, 40, 52],
    },
    Row {
        from: DriverVersion(580, 65, 0),
        fault: [8, 16, 24],
        migration: [32, 40, 56],
    },
];

/// From here on a fault entry names its GPU, which moves what follows.
const ENTRY_WITH_GPU: DriverVersion = DriverVersion(560, 28, 0);
/// The last branch whose layout was checked.
pub const LAST_BRANCH: u32 = 595;
/// `struct list_head subscribers[]` of the event list before its address space pointer:
/// nine events of sixteen bytes, after a `struct rw_semaphore`.
const EVENT_LISTS_BYTES: u32 = 9 * 16;

/// What lies before `start` in a block besides its mutex.
const BLOCK_BEFORE_BYTES: u32 = 16;

/// Sizes of kernel structures that lie inside the driver's; they depend on the kernel's
/// configuration (lockdep, real-time), so the running kernel's BTF is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelSizes {
    /// `struct rw_semaphore`, bytes.
    pub rw_semaphore: u32,
    /// `struct mutex`, bytes.
    pub mutex: u32,
}

/// `uvm_perf_event_t`, from 530 on.
pub(crate) const EVENT_FAULT: u32 = 6;
/// See [`EVENT_FAULT`].
pub(crate) const EVENT_MIGRATION: u32 = 7;

impl UvmLayout {
    /// The layout of that driver, on a kernel with these sizes. Without them the fields that
    /// lie behind kernel structures are 0: not known.
    ///
    /// # Errors
    /// The version is older than all that were checked.
    pub fn of(version: DriverVersion, kernel: Option<KernelSizes>) -> Result<UvmLayout, String> {
        let row = ROWS
            .iter()
            .rev()
            .find(|row| row.from <= version)
            .ok_or_else(|| {
                format!(
                    "driver {version} is older than {}, the first one checked",
                    ROWS[0].from
                )
            })?;
        let [fault_processor, fault_entry, fault_batch] = row.fault;
        let [migration_address, migration_bytes, migration_cause] = row.migration;
        let with_gpu = version >= ENTRY_WITH_GPU;
        Ok(UvmLayout {
            // The processor follows the pointer, before and after 580.65.
            fault_block: fault_processor - 8,
            fault_processor,
            fault_entry,
            fault_batch,
            migration_block: 8,
            migration_dst: 16,
            migration_src: 20,
            migration_address,
            migration_bytes,
            migration_cause,
            entry_address: 0,
            entry_instances: if with_gpu { 92 } else { 84 },
            entry_access: if with_gpu { 88 } else { 80 },
            guessed: version.0 > LAST_BRANCH,
            // struct uvm_va_block_struct: eight bytes, a mutex, eight bytes.
            block_start: kernel.map_or(0, |sizes| BLOCK_BEFORE_BYTES + sizes.mutex),
            block_end: kernel.map_or(0, |sizes| BLOCK_BEFORE_BYTES + sizes.mutex + 8),
            events_space: kernel.map_or(0, |sizes| sizes.rw_semaphore + EVENT_LISTS_BYTES),
        })
    }

    /// As the programs want it.
    pub(crate) fn to_raw(self) -> ovs_uvm_layout {
        ovs_uvm_layout {
            fault_block: self.fault_block,
            fault_processor: self.fault_processor,
            fault_entry: self.fault_entry,
            fault_batch: self.fault_batch,
            migration_block: self.migration_block,
            migration_dst: self.migration_dst,
            migration_src: self.migration_src,
            migration_address: self.migration_address,
            migration_bytes: self.migration_bytes,
            migration_cause: self.migration_cause,
            entry_address: self.entry_address,
            entry_instances: self.entry_instances,
            entry_access: self.entry_access,
            block_start: self.block_start,
            block_end: self.block_end,
            events_space: self.events_space,
            ..constants()
        }
    }
}

/// What no driver's version changes; all that the programs need in scalar mode.
pub(crate) fn constants() -> ovs_uvm_layout {
    ovs_uvm_layout {
        event_fault: EVENT_FAULT,
        event_migration: EVENT_MIGRATION,
        cause_eviction: u32::from(crate::event::Cause::EVICTION.0),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Debian's 6.1 kernel, for which the six were built.
    const SIZES: Option<KernelSizes> = Some(KernelSizes {
        rw_semaphore: 40,
        mutex: 32,
    });

    fn layout(version: &str) -> UvmLayout {
        UvmLayout::of(version.parse().unwrap(), SIZES).unwrap()
    }

    /// From the debug information of six builds: version; fault block, processor, entry,
    /// batch; migration block, address, bytes, cause; entry instances, access.
    const BUILT: [(&str, [u32; 10]); 6] = [
        ("535.183.01", [8, 16, 24, 32, 8, 24, 32, 44, 84, 80]),
        ("550.163.01", [8, 16, 24, 32, 8, 32, 40, 52, 84, 80]),
        ("570.211.01", [8, 16, 24, 32, 8, 32, 40, 52, 92, 88]),
        ("580.142", [0, 8, 16, 24, 8, 32, 40, 56, 92, 88]),
        ("590.48.01", [0, 8, 16, 24, 8, 32, 40, 56, 92, 88]),
        ("595.45.04", [0, 8, 16, 24, 8, 32, 40, 56, 92, 88]),
    ];

    #[test]
    fn the_rows_agree_with_the_builds() {
        for (version, expected) in BUILT {
            let l = layout(version);
            let found = [
                l.fault_block,
                l.fault_processor,
                l.fault_entry,
                l.fault_batch,
                l.migration_block,
                l.migration_address,
                l.migration_bytes,
                l.migration_cause,
                l.entry_instances,
                l.entry_access,
            ];
            assert_eq!(found, expected, "{version}");
            assert!(!l.guessed, "{version}");
            assert_eq!((l.block_start, l.block_end, l.events_space), (48, 56, 184));
        }
    }

    #[test]
    fn rows_begin_where_the_sources_changed() {
        assert_eq!(layout("550.39").migration_address, 24);
        assert_eq!(layout("550.40.07").migration_address, 32);
        assert_eq!(layout("560.27").entry_instances, 84);
        assert_eq!(layout("560.28.03").entry_instances, 92);
        assert_eq!(layout("580.64").fault_entry, 24);
        assert_eq!(layout("580.65.06").fault_entry, 16);
    }

    #[test]
    fn versions_older_than_the_table_are_refused_and_newer_ones_are_a_guess() {
        for version in ["525.60.11", "515.43.04"] {
            let version: DriverVersion = version.parse().unwrap();
            assert!(UvmLayout::of(version, SIZES).is_err(), "{version}");
        }
        let (guess, newest) = (layout("600.10"), layout("595.45.04"));
        assert!(guess.guessed);
        let unmarked = UvmLayout {
            guessed: false,
            ..guess
        };
        assert_eq!(unmarked, newest);
    }

    #[test]
    fn the_arguments_that_begin_a_migration_moved_when_nodes_came() {
        let block = "uvm_tools_record_block_migration_begin";
        let of = |function, version: &str| {
            BeginArguments::of(function, version.parse().ok()).map(|arguments| {
                (
                    arguments.dst,
                    arguments.src,
                    arguments.address,
                    arguments.cause,
                )
            })
        };
        assert_eq!(of(block, "535.183.01"), Some((2, 3, 4, 5)));
        assert_eq!(of(block, "560.35.03"), Some((2, 3, 4, 5)));
        assert_eq!(of(block, "565.57.01"), Some((2, 4, 6, 7)));
        let renamed = "uvm_tools_record_migration_begin";
        assert_eq!(of(renamed, "no version"), Some((2, 4, 6, 7)));
        assert_eq!(of(block, "no version"), None);
        assert_eq!(of("another", "580.142"), None);
    }

    #[test]
    fn without_the_kernels_sizes_what_lies_behind_them_is_unknown() {
        let version = "580.142".parse().unwrap();
        let layout = UvmLayout::of(version, None).unwrap();
        assert_eq!(
            (layout.events_space, layout.block_start, layout.block_end),
            (0, 0, 0)
        );
    }

    #[test]
    fn versions_are_read_and_written_as_the_driver_does() {
        for text in ["535.183.01", "580.142", "550.54.14"] {
            assert_eq!(text.parse::<DriverVersion>().unwrap().to_string(), text);
        }
        assert_eq!("580.142\n".parse(), Ok(DriverVersion(580, 142, 0)));
        for text in ["", "580", "580.x", "1.2.3.4", "580.142-beta"] {
            assert!(text.parse::<DriverVersion>().is_err(), "{text}");
        }
    }
}
