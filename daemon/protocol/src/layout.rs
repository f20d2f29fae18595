//! The shared memory: one sealed memfd for events, one for commands.
//!
//! Events memfd: [`DevicePage`], [`ControlPage`], [`RingHead`], then the slots.
//! Commands memfd: [`RingHead`], then the slots. Pages are 4 KiB. The daemon creates both
//! and seals their size; the rings themselves are in [`crate::ring`].

use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::sync;

/// Bytes of a page here.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of one slot: sequence number and payload.
pub const SLOT_BYTES: usize = 64;
/// Stream slots; the last one is shared by all streams that got none of their own and
/// never has a progress mark.
pub const STREAM_SLOTS: usize = 64;

/// Words that the device writes (`cuStreamWriteValue32`), registered with the driver by
/// the shim. Readers treat a value as a hint that may be stale, never as proof of more.
#[repr(C, align(4096))]
pub struct DevicePage {
    /// Per stream slot: low 32 bits of the sequence number that the device has passed.
    pub progress: [AtomicU32; STREAM_SLOTS],
    /// Per executor queue: id of the last command executed.
    pub done: [AtomicU32; crate::command::queue::COUNT],
}

/// Words that shim and daemon write for one another.
#[repr(C, align(4096))]
pub struct ControlPage {
    /// Daemon: a progress mark is wanted after this many launches in a stream (at least 1).
    pub mark_stride: AtomicU32,
    /// Daemon: 1 once it wants nothing more from this program (shutting down).
    pub closing: AtomicU32,
    /// Shim: last sequence number given out.
    pub last_seq: AtomicU64,
    /// Shim: commands executed, by operation (index: operation number, 0 for unknown).
    pub commands_executed: [AtomicU64; 8],
    /// Shim: commands that the driver refused.
    pub commands_failed: AtomicU64,
    /// Shim: discards not made because the range was no longer free.
    pub discards_declined: AtomicU64,
    /// Shim: `CLOCK_MONOTONIC` nanoseconds when the last command was handed to the driver.
    pub last_issue_ns: AtomicU64,
    /// Shim: sum and count of nanoseconds from [`crate::command::CommandRecord::cause_ns`]
    /// to the hand-over to the driver, over commands that carry one.
    pub latency_sum_ns: AtomicU64,
    /// See `latency_sum_ns`.
    pub latency_count: AtomicU64,
    /// Shim: that latency on the scale of [`crate::latency`].
    pub latency_buckets: [AtomicU64; crate::latency::BUCKETS],
    /// Shim: `CLOCK_MONOTONIC` nanoseconds when it last wrote the daemon's eventfd: the
    /// record that it did so for was published then.
    pub woken_ns: AtomicU64,
    /// Daemon: 1 while it has nothing to steer; streams that went quiet need no mark soon.
    pub calm: AtomicU32,
    /// Daemon: who launches had better wait while the device has more launches of the stream
    /// than this before it; 0: any number is right. Older daemons leave it 0.
    pub run_ahead: AtomicU32,
    /// Shim: launches after which it waited for that.
    pub held_launches: AtomicU64,
    /// Shim: nanoseconds that it waited.
    pub held_ns: AtomicU64,
}

/// One cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct CacheLine<T>(pub T);

/// How a ring's reader is.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ReaderState {
    /// Not 0 while it sleeps and wants the eventfd written: 1 for any record, 2 for a prompt
    /// one or for many.
    pub sleeping: sync::AtomicU32,
    /// Not 0 while it makes the writers' half of the fence, too, before it sleeps
    /// ([`crate::fences`]).
    pub barrier: sync::AtomicU32,
}

/// Head of a ring; its capacity was told in the handshake.
#[derive(Debug, Default)]
#[repr(C, align(4096))]
pub struct RingHead {
    /// Next slot to be written.
    pub head: CacheLine<sync::AtomicU64>,
    /// Next slot to be read (the reader's hint to the writer; the reader keeps its own).
    pub tail: CacheLine<sync::AtomicU64>,
    /// What writers look at after every record.
    pub reader: CacheLine<ReaderState>,
    /// Records that a writer could not write because the ring was full.
    pub dropped: CacheLine<sync::AtomicU64>,
}

/// One slot of a ring.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct SlotCell {
    /// Position of the record in it plus one; 0: never written. See [`crate::ring`].
    pub sequence: sync::AtomicU64,
    /// What it carries.
    pub payload: sync::Payload,
}

/// Fewest slots that a ring may have. A record that is longer than its ring is dropped: the
/// daemon's rings hold the longest one ([`crate::event::MAX_SLOTS`]).
pub const MIN_RING_SLOTS: u32 = if cfg!(loom) {
    // The model's rings are smaller, to keep its state space finite in practice.
    1
} else {
    8
};
/// Most slots that a ring may have.
pub const MAX_RING_SLOTS: u32 = 1 << 20;

/// A ring cannot have this many slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotCountError(pub u32);

impl fmt::Display for SlotCountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a ring of {} slots: not a power of two from {MIN_RING_SLOTS} to {MAX_RING_SLOTS}",
            self.0
        )
    }
}

impl core::error::Error for SlotCountError {}

/// `slots`, if a ring may have that many: a power of two, [`MIN_RING_SLOTS`] to
/// [`MAX_RING_SLOTS`].
///
/// # Errors
/// It may not.
pub const fn check_slots(slots: u32) -> Result<u32, SlotCountError> {
    if slots.is_power_of_two() && slots >= MIN_RING_SLOTS && slots <= MAX_RING_SLOTS {
        Ok(slots)
    } else {
        Err(SlotCountError(slots))
    }
}

const _: () = assert!(size_of::<DevicePage>() == PAGE_BYTES);
const _: () = assert!(size_of::<ControlPage>() == PAGE_BYTES);
#[cfg(not(loom))]
const _: () = assert!(size_of::<RingHead>() == PAGE_BYTES);
#[cfg(not(loom))]
const _: () = assert!(size_of::<SlotCell>() == SLOT_BYTES);

const fn memfd_bytes(slots_offset: usize, slots: u32) -> Result<usize, SlotCountError> {
    match check_slots(slots) {
        Ok(slots) => {
            let bytes = slots_offset + slots as usize * SLOT_BYTES;
            Ok(bytes.next_multiple_of(PAGE_BYTES))
        }
        Err(error) => Err(error),
    }
}

/// Offsets in the events memfd, bytes.
pub mod events_memfd {
    use super::PAGE_BYTES;
    /// [`super::DevicePage`].
    pub const DEVICE_PAGE: usize = 0;
    /// [`super::ControlPage`].
    pub const CONTROL_PAGE: usize = PAGE_BYTES;
    /// [`super::RingHead`].
    pub const RING_HEAD: usize = 2 * PAGE_BYTES;
    /// The slots.
    pub const SLOTS: usize = 3 * PAGE_BYTES;

    /// Size of the memfd for that many slots, bytes, a multiple of the page.
    ///
    /// # Errors
    /// A ring cannot have this many slots.
    pub const fn bytes(slots: u32) -> Result<usize, super::SlotCountError> {
        super::memfd_bytes(SLOTS, slots)
    }
}

/// Offsets in the commands memfd, bytes.
pub mod commands_memfd {
    use super::PAGE_BYTES;
    /// [`super::RingHead`].
    pub const RING_HEAD: usize = 0;
    /// The slots.
    pub const SLOTS: usize = PAGE_BYTES;

    /// Size of the memfd for that many slots, bytes, a multiple of the page.
    ///
    /// # Errors
    /// A ring cannot have this many slots.
    pub const fn bytes(slots: u32) -> Result<usize, super::SlotCountError> {
        super::memfd_bytes(SLOTS, slots)
    }
}
