//! Probe points: functions that do nothing, for uprobes to attach to.
//!
//! The first instruction of each is the five-byte nop, which the kernel turns into a call
//! instead of a trap, and each is called from one place. Addresses are the program's
//! (CPU view). They own no behaviour: who listens reads the argument registers.

use core::arch::naked_asm;
use core::sync::atomic::AtomicU32;

/// Not 0: this library serves faults itself, and the points below tell of them. 0: the real
/// nvidia-uvm serves them, and they are silent.
#[unsafe(no_mangle)]
pub static oversub_softgpu_serves: AtomicU32 = AtomicU32::new(1);

/// Cause of a migration: a replayable GPU fault, or a CPU fault in the other direction
/// (`UvmEventMigrationCauseUser`'s siblings, uvm_types.h of nvidia-uvm).
pub const CAUSE_FAULT: u64 = 0;
/// Cause of a migration: the density prefetcher.
pub const CAUSE_DENSITY: u64 = 3;
/// Cause of a migration: eviction.
pub const CAUSE_EVICTION: u64 = 4;
/// Cause of a migration: a prefetch call.
pub const CAUSE_CALL: u64 = 6;

macro_rules! probe {
    ($(#[$doc:meta])* $name:ident($($arg:ident),+)) => {
        $(#[$doc])*
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: u64),+) {
            naked_asm!(".balign 16", ".byte 0x0f,0x1f,0x44,0x00,0x00", "ret")
        }
    };
}

probe! {
    /// Faults of one block in one batch, before they are served. `address` is the first
    /// faulting page, `by_host` 1 for an access by the CPU.
    oversub_softgpu_fault(address, faults, by_host, batch)
}
probe! {
    /// End of a batch of GPU faults.
    oversub_softgpu_batch(batch, faults, service_ns)
}
probe! {
    /// Bytes moved: `direction` 0 to the device, 1 to the host; `cause` one of `CAUSE_*`.
    oversub_softgpu_migration(address, bytes, direction, cause)
}
probe! {
    /// Bytes populated on the device without a transfer.
    oversub_softgpu_populate(address, bytes)
}
probe! {
    /// A device chunk taken from a block: `kind` 0 unused, 1 discarded, 2 used.
    oversub_softgpu_eviction(address, bytes, kind)
}
