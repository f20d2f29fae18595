//! What the device did: plain sums, read at any time, written by the parts that did it.

use std::sync::atomic::{AtomicU64, Ordering};

/// One sum.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The sum so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Keeps the larger of the present value and `n`.
    pub fn raise(&self, n: u64) {
        self.0.fetch_max(n, Ordering::Relaxed);
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// All sums of one device. Bytes, nanoseconds and plain numbers, as named.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub $name: Counter),+ }

        /// The sums at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Snapshot { $($(#[$doc])* pub $name: u64),+ }

        impl Counters {
            /// Reads all sums (each by itself, not as one atomic whole).
            pub fn snapshot(&self) -> Snapshot {
                Snapshot { $($name: self.$name.get()),+ }
            }
        }
    };
}

counters! {
    /// Faulting pages of kernels, duplicates merged.
    faults,
    /// Faulting accesses of the CPU.
    host_faults,
    /// Batches of GPU faults served.
    batches,
    /// Migrated to the device because a kernel faulted on the 64 KiB page.
    bytes_in_fault,
    /// Migrated to the device by the density prefetcher.
    bytes_in_density,
    /// Migrated to the device by a prefetch call.
    bytes_in_call,
    /// Migrated to the device because a copy or memset wrote a part of the page.
    bytes_in_copy,
    /// Migrated to the host by eviction.
    bytes_out_eviction,
    /// Migrated to the host by a prefetch call.
    bytes_out_call,
    /// Migrated to the host because the CPU faulted.
    bytes_out_host_fault,
    /// Bytes of copies that crossed the link to the device.
    copied_in_bytes,
    /// Bytes of copies that crossed the link to the host.
    copied_out_bytes,
    /// Content that kernels, copies and memsets accessed on the host, over the link.
    remote_bytes,
    /// Populated on the device without a transfer.
    populated_bytes,
    /// Chunks taken that held nothing.
    evictions_unused,
    /// Chunks taken that held discarded content.
    evictions_discarded,
    /// Chunks taken whose content was moved to the host.
    evictions_used,
    /// Most managed bytes that were on the device at once.
    managed_peak_resident_bytes,
    /// Wall time in which a kernel had nothing to run because all of it waited for faults.
    stall_ns,
    /// Wall time in which kernels ran, without stalls.
    compute_ns,
    /// Kernels run.
    kernels,
    /// Copies and memsets done.
    copies,
}

impl Snapshot {
    /// All bytes migrated to the device.
    pub fn bytes_in(&self) -> u64 {
        self.bytes_in_fault + self.bytes_in_density + self.bytes_in_call + self.bytes_in_copy
    }

    /// All bytes migrated to the host.
    pub fn bytes_out(&self) -> u64 {
        self.bytes_out_eviction + self.bytes_out_call + self.bytes_out_host_fault
    }
}
