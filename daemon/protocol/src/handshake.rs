//! The two messages at the start of a session, one each way, over `SOCK_SEQPACKET`.
//!
//! The program sends [`Hello`]; the daemon answers [`Welcome`], with four descriptors
//! (`SCM_RIGHTS`) when the status is [`Status::ACCEPTED`]: events memfd, commands memfd,
//! events eventfd (written by the program), commands eventfd (written by the daemon).
//! The socket then stays open and silent: its end is the end of the session.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of both messages.
pub const MAGIC: [u8; 8] = *b"oversub\0";
/// Bytes of [`Hello::driver_path`].
pub const PATH_BYTES: usize = 256;

/// From the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Hello {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`crate::PROTOCOL_VERSION`] of the sender.
    pub version: u32,
    /// CUDA device ordinal in the program.
    pub device: u32,
    /// `cuDeviceGetUuid`; all zero where the driver gives none.
    pub uuid: [u8; 16],
    /// Device memory in bytes.
    pub device_bytes: u64,
    /// Free device memory in bytes when the session began.
    pub free_bytes: u64,
    /// Residency budget that the program was started with, bytes; 0: none.
    pub budget_bytes: u64,
    /// `cuDriverGetVersion`.
    pub driver_version: u32,
    /// [`Hello::SOFT_DEVICE`], [`Hello::HAS_DISCARD`].
    pub flags: u32,
    /// Policy asked for, as zero-padded text; empty: the daemon's default.
    pub policy: [u8; 32],
    /// Zero-padded name of the device.
    pub device_name: [u8; 64],
    /// Zero-padded path of the loaded libcuda, as the program sees it.
    pub driver_path: [u8; PATH_BYTES],
}

impl Hello {
    /// The driver is oversub's soft GPU: its device belongs to this process alone.
    pub const SOFT_DEVICE: u32 = 1;
    /// The driver has `cuMemDiscardBatchAsync`.
    pub const HAS_DISCARD: u32 = 2;
    /// Progress marks will be written.
    pub const HAS_PROGRESS: u32 = 4;
}

/// How the daemon answered. Open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Status(pub u32);

impl Status {
    /// The session stands; descriptors follow.
    pub const ACCEPTED: Status = Status(0);
    /// The versions differ; [`Welcome::version`] has the daemon's.
    pub const VERSION_MISMATCH: Status = Status(1);
    /// The message was not a valid [`Hello`].
    pub const MALFORMED: Status = Status(2);
    /// The daemon has as many sessions as its configuration allows.
    pub const FULL: Status = Status(3);
    /// The policy asked for is unknown.
    pub const UNKNOWN_POLICY: Status = Status(4);
    /// The daemon is shutting down.
    pub const CLOSING: Status = Status(5);
}

/// From the daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Welcome {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`crate::PROTOCOL_VERSION`] of the daemon.
    pub version: u32,
    /// Whether the session stands.
    pub status: Status,
    /// Number of this session, for logs and metrics.
    pub session: u64,
    /// Slots in the event ring, a power of two.
    pub event_slots: u32,
    /// Slots in the command ring, a power of two.
    pub command_slots: u32,
}

const _: () = assert!(size_of::<Hello>() == 416);
const _: () = assert!(size_of::<Welcome>() == 32);
