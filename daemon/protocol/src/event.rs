//! Records from the shim to the daemon: what the program allocates, frees and launches.
//!
//! Every record begins with a [`Head`] and fills one or more [`Slot`]s of the event ring.
//! A reader must treat each field as hostile: another process wrote it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Payload bytes of one ring slot; the slot's first eight bytes are its sequence number.
pub const SLOT_PAYLOAD_BYTES: usize = 56;
/// Eight-byte words that a continuation slot holds.
pub const WORDS_PER_SLOT: usize = SLOT_PAYLOAD_BYTES / 8;
/// Most slots that one record may take.
pub const MAX_SLOTS: usize = 75;
/// Most argument words that a launch record carries; further ones are cut off and
/// [`LaunchRecord::FLAG_TRUNCATED`] is set. The 4 KiB that kernels before CUDA 12.1 may have,
/// and that those take which work on lists of tensors: their pointers are in one parameter.
pub const MAX_LAUNCH_WORDS: usize = 2 + (MAX_SLOTS - 1) * WORDS_PER_SLOT;
/// Longest function name carried, in bytes; a longer one is cut and told apart by its hash.
pub const MAX_NAME_BYTES: usize = 7 * SLOT_PAYLOAD_BYTES;

/// The payload of one slot as words, which is how it is moved.
pub type Words = [u64; WORDS_PER_SLOT];
/// The payload of one slot.
pub type Slot = [u8; SLOT_PAYLOAD_BYTES];

/// What a record says. Open: an unknown kind from another build is skipped and counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Kind(pub u16);

impl Kind {
    /// [`FunctionRecord`]: a kernel is launched for the first time.
    pub const FUNCTION: Kind = Kind(1);
    /// [`LaunchRecord`].
    pub const LAUNCH: Kind = Kind(2);
    /// [`MemoryRecord`]: memory was obtained from the driver.
    pub const ALLOC: Kind = Kind(3);
    /// [`MemoryRecord`]: and given back.
    pub const FREE: Kind = Kind(4);
    /// [`MemoryRecord`]: the stream-ordered pool handed out a part of a pool segment.
    pub const USE: Kind = Kind(5);
    /// [`MemoryRecord`]: and took it back; its content is dead once `stream` has passed `seq`.
    pub const UNUSE: Kind = Kind(6);
    /// [`CopyRecord`]: a copy that touches managed memory.
    pub const COPY: Kind = Kind(7);
    /// [`CopyRecord`]: a memset (`src` is unused).
    pub const MEMSET: Kind = Kind(8);
    /// [`MemoryRecord`]: the host waited for `stream` (or for all: stream 255).
    pub const SYNC: Kind = Kind(9);
    /// [`MemoryRecord`]: the command with id `seq` of the queue in `flags` had no effect: the
    /// driver refused it with status `bytes`, or the executor declined it (`bytes` 0).
    pub const COMMAND_FAILED: Kind = Kind(10);
}

/// The first eight bytes of every record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Head {
    /// What follows.
    pub kind: Kind,
    /// Slots that this record fills, 1 to [`MAX_SLOTS`].
    pub slots: u8,
    /// Stream slot, index into [`crate::layout::DevicePage::progress`]; 255: none.
    pub stream: u8,
    /// Meaning depends on the kind.
    pub flags: u32,
}

/// A kernel seen for the first time. Its name fills the following slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FunctionRecord {
    /// `flags`: parameters of the kernel, `u32::MAX` where the driver cannot say.
    pub head: Head,
    /// Index by which launches name this kernel; unique in the session.
    pub function: u32,
    /// Bytes of the name that follow, at most [`MAX_NAME_BYTES`].
    pub name_bytes: u32,
    /// 64-bit hash of the whole name.
    pub name_hash: u64,
    /// Explicit padding, zero.
    pub reserved: [u64; 4],
}

/// One kernel launch. Argument words beyond the first two fill the following slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LaunchRecord {
    /// `flags`: [`LaunchRecord::FLAG_TRUNCATED`].
    pub head: Head,
    /// Position in program order, over all streams; starts at 1.
    pub seq: u64,
    /// Grid in thread blocks.
    pub grid: [u32; 3],
    /// Index from a [`FunctionRecord`].
    pub function: u32,
    /// Thread block in threads (each at most 1,024).
    pub block: [u16; 3],
    /// Argument words of this launch, at most [`MAX_LAUNCH_WORDS`]. Each parameter begins
    /// a new word; one shorter than eight bytes is extended with zeros.
    pub words: u16,
    /// The first two argument words.
    pub first_words: [u64; 2],
}

impl LaunchRecord {
    /// Not all argument words fitted.
    pub const FLAG_TRUNCATED: u32 = 1;
    /// The launch was captured into a graph rather than run.
    pub const FLAG_CAPTURED: u32 = 2;
}

/// Memory came, went, was handed out or taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MemoryRecord {
    /// `flags`: for ALLOC, [`MemoryRecord::MANAGED`] and the others.
    pub head: Head,
    /// Every launch with a smaller sequence number was made before this.
    pub seq: u64,
    /// Device address, bytes.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Explicit padding, zero.
    pub reserved: [u64; 3],
}

impl MemoryRecord {
    /// Managed memory: may be steered.
    pub const MANAGED: u32 = 1;
    /// A segment of the shim's stream-ordered pool: USE and UNUSE tell lives within it.
    pub const POOL: u32 = 2;
    /// The shim prefetched it to the device at allocation: as many blocks of 2 MiB from its
    /// start as the bits of `flags` from [`MemoryRecord::PART_SHIFT`] on say, all of it
    /// where they say 0.
    pub const PREFETCHED: u32 = 4;
    /// First bit of that number in `flags`.
    pub const PART_SHIFT: u32 = 8;
    /// The shim populated it on the host, since it does not fit the residency budget.
    pub const ON_HOST: u32 = 16;
    /// The program itself asked for managed memory.
    pub const BY_PROGRAM: u32 = 8;
}

/// A copy or memset that touches managed memory, an ordinary item of its stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CopyRecord {
    /// `flags`: [`CopyRecord::DST_MANAGED`], [`CopyRecord::SRC_MANAGED`].
    pub head: Head,
    /// Position in program order, from the same counter as launches.
    pub seq: u64,
    /// Destination address.
    pub dst: u64,
    /// Source address; 0 for a memset.
    pub src: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Explicit padding, zero.
    pub reserved: [u64; 2],
}

impl CopyRecord {
    /// The destination is managed memory.
    pub const DST_MANAGED: u32 = 1;
    /// The source is managed memory.
    pub const SRC_MANAGED: u32 = 2;
}

const _: () = assert!(size_of::<Head>() == 8);
const _: () = assert!(size_of::<FunctionRecord>() == SLOT_PAYLOAD_BYTES);
const _: () = assert!(size_of::<LaunchRecord>() == SLOT_PAYLOAD_BYTES);
const _: () = assert!(size_of::<MemoryRecord>() == SLOT_PAYLOAD_BYTES);
const _: () = assert!(size_of::<CopyRecord>() == SLOT_PAYLOAD_BYTES);
