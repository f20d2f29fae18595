//! Where nvidia-uvm keeps what the probes read, by driver version.
//!
//! The payload of `uvm_perf_event_notify` and the fault entry contain no kernel types, so
//! their layout depends on the driver's version alone, not on the kernel's configuration:
//! checked with the debug information of 535.183.01, 550.163.01, 570.211.01, 580.142,
//! 590.48.01 and 595.45.04 built here, and with the sources of the public tags between
//! them for where a row begins. A version outside the table is refused.

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
    /// Fault: processor.
    pub fault_processor: u32,
    /// Fault: pointer to the entry (device), or the address (host).
    pub fault_entry: u32,
    /// Fault: batch.
    pub fault_batch: u32,
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
    /// Block: first byte; 0: not known.
    pub block_start: u32,
    /// Block: last byte; 0: not known.
    pub block_end: u32,
    /// Event list: its address space; 0: not known.
    pub events_space: u32,
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
    /// Nobody checked this version; the text says which were.
    pub fn of(version: DriverVersion, kernel: Option<KernelSizes>) -> Result<UvmLayout, String> {
        if version.0 > LAST_BRANCH {
            return Err(format!(
                "driver {version} is newer than {LAST_BRANCH}, the last branch whose structures \
                 were checked"
            ));
        }
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
        Ok(UvmLayout {
            fault_processor,
            fault_entry,
            fault_batch,
            migration_dst: 16,
            migration_src: 20,
            migration_address,
            migration_bytes,
            migration_cause,
            entry_address: 0,
            entry_instances: if version < ENTRY_WITH_GPU { 84 } else { 92 },
            // struct uvm_va_block_struct: eight bytes, a mutex, eight bytes.
            block_start: kernel.map_or(0, |sizes| BLOCK_BEFORE_BYTES + sizes.mutex),
            block_end: kernel.map_or(0, |sizes| BLOCK_BEFORE_BYTES + sizes.mutex + 8),
            events_space: kernel.map_or(0, |sizes| sizes.rw_semaphore + EVENT_LISTS_BYTES),
        })
    }

    /// As the programs want it.
    pub(crate) fn to_raw(self) -> ovs_uvm_layout {
        ovs_uvm_layout {
            fault_processor: self.fault_processor,
            fault_entry: self.fault_entry,
            fault_batch: self.fault_batch,
            migration_dst: self.migration_dst,
            migration_src: self.migration_src,
            migration_address: self.migration_address,
            migration_bytes: self.migration_bytes,
            migration_cause: self.migration_cause,
            entry_address: self.entry_address,
            entry_instances: self.entry_instances,
            block_start: self.block_start,
            block_end: self.block_end,
            events_space: self.events_space,
            event_fault: EVENT_FAULT,
            event_migration: EVENT_MIGRATION,
            cause_eviction: u32::from(crate::event::Cause::EVICTION.0),
        }
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

    /// From the debug information of six builds: version, fault processor, entry, batch;
    /// migration address, bytes, cause; entry instances.
    const BUILT: [(&str, [u32; 7]); 6] = [
        ("535.183.01", [16, 24, 32, 24, 32, 44, 84]),
        ("550.163.01", [16, 24, 32, 32, 40, 52, 84]),
        ("570.211.01", [16, 24, 32, 32, 40, 52, 92]),
        ("580.142", [8, 16, 24, 32, 40, 56, 92]),
        ("590.48.01", [8, 16, 24, 32, 40, 56, 92]),
        ("595.45.04", [8, 16, 24, 32, 40, 56, 92]),
    ];

    #[test]
    fn the_rows_agree_with_the_builds() {
        for (version, expected) in BUILT {
            let l = layout(version);
            let found = [
                l.fault_processor,
                l.fault_entry,
                l.fault_batch,
                l.migration_address,
                l.migration_bytes,
                l.migration_cause,
                l.entry_instances,
            ];
            assert_eq!(found, expected, "{version}");
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
    fn versions_that_nobody_checked_are_refused() {
        for version in ["525.60.11", "600.10", "515.43.04"] {
            let version: DriverVersion = version.parse().unwrap();
            assert!(UvmLayout::of(version, SIZES).is_err(), "{version}");
        }
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
