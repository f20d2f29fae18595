//! Records from the daemon to the shim: what to do with blocks. One slot each.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What to do. Open: the shim counts an unknown operation and skips it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Operation(pub u16);

impl Operation {
    /// Prefetch the range to the device.
    pub const PREFETCH: Operation = Operation(1);
    /// Prefetch the range to the host.
    pub const EVICT: Operation = Operation(2);
    /// Drop the content of the range. The shim does so only where its own pool says that
    /// the range is free, and the device has passed the point where it became so.
    pub const DISCARD: Operation = Operation(3);
    /// Prefetch a range that has no content to transfer (unpopulated or discarded), on a
    /// stream of its own, so that it does not wait behind transfers; or one that is on the
    /// device as a whole, which puts it at the young end of the driver's list of blocks.
    pub const POPULATE: Operation = Operation(4);
    /// Advise that the range is preferred on the host: the device uses it there.
    pub const USE_ON_HOST: Operation = Operation(5);
    /// Take that advice back, and the device's mappings of what lies on the host.
    pub const LET_MIGRATE: Operation = Operation(6);
}

/// One command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CommandRecord {
    /// What to do.
    pub operation: Operation,
    /// Queue that executes it: index into [`crate::layout::DevicePage::done`].
    pub queue: u8,
    /// Explicit padding, zero.
    pub reserved: u8,
    /// Position in its queue, from 1, without gaps. When the device has executed it, the
    /// queue's word in [`crate::layout::DevicePage::done`] has reached this number.
    pub id: u32,
    /// Start, a multiple of 2 MiB.
    pub address: u64,
    /// Size in bytes, a multiple of 2 MiB.
    pub bytes: u64,
    /// `CLOCK_MONOTONIC` nanoseconds at which the event that led to this command was put
    /// into the event ring, as far as the daemon knows; 0: unknown. For latency figures.
    pub cause_ns: u64,
    /// Explicit padding, zero.
    pub reserved_words: [u64; 3],
}

const _: () = assert!(size_of::<CommandRecord>() == crate::event::SLOT_PAYLOAD_BYTES);

/// Queues of the executor in the shim, each one CUDA stream of its own.
pub mod queue {
    /// Host to device.
    pub const IN: u8 = 0;
    /// Device to host.
    pub const OUT: u8 = 1;
    /// Nothing to transfer: populate and discard.
    pub const LOCAL: u8 = 2;
    /// How many there are.
    pub const COUNT: usize = 3;
}
