//! The two messages at the start of a session, one each way, over `SOCK_SEQPACKET`.
//!
//! The program sends [`Hello`]; the daemon answers [`Welcome`], with four descriptors
//! (`SCM_RIGHTS`) when the status is [`Status::ACCEPTED`]: events memfd, commands memfd,
//! events eventfd (written by the program), commands eventfd (written by the daemon).
//! The socket then stays open and silent: its end is the end of the session.

use core::fmt;

use crate::PROTOCOL_VERSION;
use crate::layout::{SlotCountError, check_slots};
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
    /// [`Hello::SOFT_DEVICE`] and the like.
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
    /// The program has registered for barriers from other processes
    /// (`MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED`): see [`crate::fences`].
    pub const HAS_BARRIER: u32 = 8;
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

/// Why a message is not a handshake message of this version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandshakeError {
    /// The message does not begin with [`MAGIC`] and a version.
    NotOversub,
    /// The other side speaks another version.
    Version {
        /// Its version.
        theirs: u32,
    },
    /// The message has the wrong length for this version.
    Length {
        /// Bytes that it must have.
        expected: usize,
        /// Bytes that it has.
        found: usize,
    },
    /// A ring of the offered size is impossible.
    Slots(SlotCountError),
}

impl HandshakeError {
    /// What the daemon answers to it.
    pub fn status(&self) -> Status {
        match self {
            HandshakeError::Version { .. } => Status::VERSION_MISMATCH,
            _ => Status::MALFORMED,
        }
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeError::NotOversub => f.write_str("not an oversub handshake message"),
            HandshakeError::Version { theirs } => write!(
                f,
                "the other side speaks protocol version {theirs}, this one {PROTOCOL_VERSION}: \
                 install the same oversub on both sides"
            ),
            HandshakeError::Length { expected, found } => {
                write!(
                    f,
                    "handshake message of {found} bytes instead of {expected}"
                )
            }
            HandshakeError::Slots(error) => write!(f, "the daemon offered {error}"),
        }
    }
}

impl core::error::Error for HandshakeError {}

/// What both messages begin with, in every version.
const PREFIX_BYTES: usize = MAGIC.len() + size_of::<u32>();

fn check_prefix(message: &[u8], expected: usize) -> Result<(), HandshakeError> {
    let (magic, version) = match message.first_chunk::<PREFIX_BYTES>() {
        Some(prefix) => prefix.split_at(MAGIC.len()),
        None => return Err(HandshakeError::NotOversub),
    };
    if magic != MAGIC {
        return Err(HandshakeError::NotOversub);
    }
    // The version comes before the length: another version's message may be longer.
    let theirs = u32::read_from_bytes(version).unwrap_or_default();
    if theirs != PROTOCOL_VERSION {
        return Err(HandshakeError::Version { theirs });
    }
    let found = message.len();
    if found != expected {
        return Err(HandshakeError::Length { expected, found });
    }
    Ok(())
}

impl Hello {
    /// The message, checked for magic, version and exact length.
    ///
    /// # Errors
    /// [`HandshakeError::status`] says what to answer.
    pub fn from_message(message: &[u8]) -> Result<Hello, HandshakeError> {
        let expected = size_of::<Hello>();
        check_prefix(message, expected)?;
        let found = message.len();
        Hello::read_from_bytes(message).map_err(|_| HandshakeError::Length { expected, found })
    }

    /// The policy asked for; empty: the daemon's default.
    pub fn policy(&self) -> &str {
        text(&self.policy)
    }

    /// The device's name.
    pub fn device_name(&self) -> &str {
        text(&self.device_name)
    }

    /// The path of libcuda as the program sees it, as bytes: paths need not be UTF-8.
    pub fn driver_path(&self) -> &[u8] {
        until_zero(&self.driver_path)
    }
}

impl Welcome {
    /// An answer of this build.
    pub fn new(status: Status, session: u64, event_slots: u32, command_slots: u32) -> Welcome {
        let version = PROTOCOL_VERSION;
        Welcome {
            magic: MAGIC,
            version,
            status,
            session,
            event_slots,
            command_slots,
        }
    }

    /// The message, checked for magic, version and exact length, and, when the session was
    /// accepted, for possible ring sizes.
    ///
    /// # Errors
    /// The session cannot be used.
    pub fn from_message(message: &[u8]) -> Result<Welcome, HandshakeError> {
        let expected = size_of::<Welcome>();
        check_prefix(message, expected)?;
        let found = message.len();
        let welcome = Welcome::read_from_bytes(message)
            .map_err(|_| HandshakeError::Length { expected, found })?;
        if welcome.status == Status::ACCEPTED {
            check_slots(welcome.event_slots).map_err(HandshakeError::Slots)?;
            check_slots(welcome.command_slots).map_err(HandshakeError::Slots)?;
        }
        Ok(welcome)
    }
}

/// `source` cut to fit and padded with zeros, at least one of them.
pub fn padded<const N: usize>(source: &[u8]) -> [u8; N] {
    let mut field = [0; N];
    let room = N.saturating_sub(1);
    for (target, byte) in field.iter_mut().take(room).zip(source) {
        *target = *byte;
    }
    field
}

fn until_zero(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn text(field: &[u8]) -> &str {
    crate::decode::valid_text(until_zero(field))
}
