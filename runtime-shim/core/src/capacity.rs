//! How much memory there is, for the program, for the pool, for prefetches at allocation.

use crate::BLOCK_BYTES;

/// What the answers depend on, bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    /// Device memory, as the driver says.
    pub device_total: u64,
    /// Device memory in use before the program allocated anything.
    pub baseline: u64,
    /// Managed memory that stands for the program's device memory.
    pub managed: u64,
    /// The same with the program's own managed memory.
    pub all_managed: u64,
    /// Of it, what was prefetched to the device at allocation.
    pub prefetched: u64,
    /// The program's allocations that stayed device memory.
    pub device_kind: u64,
    /// Host memory that managed memory may spill into.
    pub host_room: u64,
}

/// How far the program may go beyond the device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Limit {
    /// Device memory times this.
    Ratio(f64),
    /// As far as host memory reaches; the program is told the truth about the device.
    HostMemory,
}

impl Limit {
    /// Bytes that the program may have allocated in all.
    pub fn bytes(self, facts: &Facts) -> u64 {
        match self {
            Limit::Ratio(ratio) => scaled(facts.device_total, ratio),
            Limit::HostMemory => facts.device_total.saturating_add(facts.host_room),
        }
    }

    /// Whether `bytes` more may be allocated.
    pub fn allows(self, facts: &Facts, bytes: u64) -> bool {
        let taken = facts.managed.saturating_add(facts.device_kind);
        taken.saturating_add(bytes) <= self.bytes(facts)
    }

    /// What `cuDeviceTotalMem` answers.
    pub fn total(self, device_total: u64) -> u64 {
        match self {
            Limit::Ratio(ratio) => scaled(device_total, ratio),
            Limit::HostMemory => device_total,
        }
    }

    /// What `cuMemGetInfo` answers, free and total, where the driver says `driver_free`.
    pub fn memory_info(self, facts: &Facts, driver_free: u64) -> (u64, u64) {
        match self {
            Limit::HostMemory => (driver_free, facts.device_total),
            Limit::Ratio(_) => {
                let total = self.total(facts.device_total);
                let taken = facts.baseline.saturating_add(facts.managed);
                let taken = taken.saturating_add(facts.device_kind);
                (total.saturating_sub(taken), total)
            }
        }
    }
}

/// `total` times `ratio`, never less than `total`.
fn scaled(total: u64, ratio: f64) -> u64 {
    // A float holds every byte count up to 2^53 exactly, and the ratio is inexact anyway.
    ((total as f64 * ratio) as u64).max(total)
}

/// Where new memory is put at its allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Prefetched to the device.
    Device,
    /// So many bytes of it, whole blocks from its start, prefetched to the device.
    Part(u64),
    /// Prefetched to the host: a first touch on the device then arrives at the link's speed
    /// and not at once, so that the budget can be kept.
    Host,
    /// Left to its first touch.
    FirstTouch,
}

/// What is to be kept within on the device, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Budget {
    /// Nothing but the device's own size.
    None,
    /// By evictions that follow what faults bring in.
    Chased(u64),
    /// By leaving memory on the host until it is prefetched: faults bring nothing in.
    Kept(u64),
}

/// Chooses for `bytes` of new memory.
pub fn place(facts: &Facts, budget: Budget, bytes: u64, driver_free: u64) -> Placement {
    let wanted = facts.prefetched.saturating_add(bytes);
    match budget {
        Budget::Chased(limit) if wanted > limit => return Placement::Host,
        // What of the rest is on the device, the daemon decides, so all of it may be.
        Budget::Kept(limit) if facts.all_managed.saturating_add(bytes) > limit => {
            let room = limit.saturating_sub(facts.all_managed).min(driver_free);
            return match room / BLOCK_BYTES * BLOCK_BYTES {
                0 => Placement::FirstTouch,
                part => Placement::Part(part),
            };
        }
        _ => {}
    }
    // Earlier prefetches may still be under way and not be counted by the driver yet.
    let taken = facts.baseline.saturating_add(facts.device_kind);
    let room = facts.device_total.saturating_sub(taken);
    if wanted <= room && bytes <= driver_free {
        Placement::Device
    } else {
        Placement::FirstTouch
    }
}

/// Nine tenths of the host memory that `/proc/meminfo` calls available, bytes; `None`
/// where the text does not say.
pub fn host_room(meminfo: &[u8]) -> Option<u64> {
    let line = meminfo
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(b"MemAvailable:"))?;
    let mut kib: u64 = 0;
    let digits = line.iter().filter(|byte| byte.is_ascii_digit());
    for digit in digits {
        kib = kib.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    Some(kib.checked_mul(1024)? / 10 * 9)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn facts() -> Facts {
        Facts {
            device_total: 512 * MIB,
            baseline: 12 * MIB,
            ..Facts::default()
        }
    }

    #[test]
    fn without_a_ratio_the_program_is_told_the_truth() {
        let facts = Facts {
            managed: 300 * MIB,
            ..facts()
        };
        assert_eq!(Limit::HostMemory.memory_info(&facts, 77), (77, 512 * MIB));
        assert_eq!(Limit::HostMemory.total(512 * MIB), 512 * MIB);
    }

    #[test]
    fn a_ratio_scales_what_is_free_and_what_there_is() {
        let facts = Facts {
            managed: 600 * MIB,
            device_kind: 8 * MIB,
            ..facts()
        };
        let (free, total) = Limit::Ratio(2.0).memory_info(&facts, 1);
        assert_eq!(total, 1024 * MIB);
        assert_eq!(free, (1024 - 12 - 600 - 8) * MIB);
        let facts = Facts {
            managed: 4096 * MIB,
            ..facts
        };
        assert_eq!(Limit::Ratio(2.0).memory_info(&facts, 1).0, 0);
    }

    #[test]
    fn the_limit_counts_managed_and_device_memory() {
        let facts = Facts {
            managed: 600 * MIB,
            device_kind: 100 * MIB,
            ..facts()
        };
        assert!(Limit::Ratio(1.5).allows(&facts, 68 * MIB));
        assert!(!Limit::Ratio(1.5).allows(&facts, 69 * MIB));
        assert!(!Limit::HostMemory.allows(&facts, MIB));
        let facts = Facts {
            host_room: 189 * MIB,
            ..facts
        };
        assert!(Limit::HostMemory.allows(&facts, MIB));
        assert!(!Limit::HostMemory.allows(&facts, 2 * MIB));
        assert!(!Limit::HostMemory.allows(&facts, u64::MAX));
    }

    #[test]
    fn a_ratio_below_one_does_not_take_the_device_away() {
        assert_eq!(Limit::Ratio(0.5).total(512 * MIB), 512 * MIB);
        assert_eq!(Limit::Ratio(f64::NAN).total(512 * MIB), 512 * MIB);
    }

    #[test]
    fn memory_goes_to_the_device_while_it_fits() {
        let facts = Facts {
            prefetched: 400 * MIB,
            ..facts()
        };
        assert_eq!(
            place(&facts, Budget::None, 100 * MIB, 512 * MIB),
            Placement::Device
        );
        assert_eq!(
            place(&facts, Budget::None, 101 * MIB, 512 * MIB),
            Placement::FirstTouch
        );
        assert_eq!(
            place(&facts, Budget::None, 100 * MIB, 99 * MIB),
            Placement::FirstTouch
        );
    }

    #[test]
    fn what_exceeds_a_budget_goes_to_the_host() {
        let facts = Facts {
            prefetched: 200 * MIB,
            ..facts()
        };
        assert_eq!(
            place(&facts, Budget::Chased(256 * MIB), 56 * MIB, 512 * MIB),
            Placement::Device
        );
        assert_eq!(
            place(&facts, Budget::Chased(256 * MIB), 57 * MIB, 512 * MIB),
            Placement::Host
        );
    }

    #[test]
    fn a_kept_budget_takes_what_fits_beside_all_managed_memory() {
        let placed = |all_managed, bytes| {
            let facts = Facts {
                prefetched: 100 * MIB,
                all_managed,
                ..facts()
            };
            place(&facts, Budget::Kept(256 * MIB), bytes, 512 * MIB)
        };
        assert_eq!(placed(200 * MIB, 56 * MIB), Placement::Device);
        assert_eq!(placed(200 * MIB, 58 * MIB), Placement::Part(56 * MIB));
        assert_eq!(placed(256 * MIB, 2 * MIB), Placement::FirstTouch);
        assert_eq!(placed(300 * MIB, 2 * MIB), Placement::FirstTouch);
    }

    #[test]
    fn host_memory_is_read_from_meminfo() {
        let text = b"MemTotal:  2000 kB\nMemFree: 5 kB\nMemAvailable:   1000 kB\nBuffers: 7 kB\n";
        assert_eq!(host_room(text), Some(1000 * 1024 / 10 * 9));
        assert_eq!(host_room(b"MemTotal: 1 kB\n"), None);
        assert_eq!(
            host_room(b"MemAvailable: 99999999999999999999999 kB\n"),
            None
        );
    }
}
