//! What is known of one block of managed memory: which of its 64 KiB granules are where.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use super::density::{GRANULE_BYTES, Mask};
use super::pool::ChunkId;
use super::{Location, lock};

/// State of a block. A granule is in `host`, in `device` or in neither (never touched, or
/// discarded); never in both.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockState {
    /// Granules that the allocation covers; 0: no allocation.
    pub valid: Mask,
    /// Content is on the host.
    pub host: Mask,
    /// The CPU sees it: the host frame's page is in C unless lent; within `host`.
    pub mapped: Mask,
    /// Content is on the device, its page is in V.
    pub device: Mask,
    /// Kernels may access the content where it is, over the link; within `host`.
    pub remote: Mask,
    /// The running kernel has the host frame's page in V; within `remote`.
    pub lent: Mask,
    /// Content was given up: undefined until written.
    pub discarded: Mask,
    /// Host frame's pages that have held something.
    pub host_dirty: Mask,
    /// There is a host frame; its pages are in V where `lent`, in C where `mapped`, else in H.
    pub host_frame: bool,
    /// Device frame; its pages are in V where `device`, else in P.
    pub chunk: Option<ChunkId>,
    /// Preferred location.
    pub preferred: Option<Location>,
    /// Where the last prefetch call sent it.
    pub last_prefetch: Option<Location>,
    /// Advised as accessed by the device.
    pub accessed_by_device: bool,
}

/// A locked block.
pub type BlockGuard<'a> = MutexGuard<'a, BlockState>;

/// All blocks of the managed window, and what their frames hold in sum.
pub struct Blocks {
    states: Box<[Mutex<BlockState>]>,
    /// Pages of each chunk that have held something.
    dirty: Box<[AtomicU32]>,
    resident_granules: AtomicU64,
}

impl Blocks {
    /// So many blocks and chunks.
    pub fn new(blocks: usize, chunks: usize) -> Self {
        Self {
            states: (0..blocks).map(|_| Mutex::default()).collect(),
            dirty: (0..chunks).map(|_| AtomicU32::new(0)).collect(),
            resident_granules: AtomicU64::new(0),
        }
    }

    /// Locks a block.
    pub fn lock(&self, block: u32) -> BlockGuard<'_> {
        lock(&self.states[block as usize])
    }

    /// Locks a block if nobody has it.
    pub fn try_lock(&self, block: u32) -> Option<BlockGuard<'_>> {
        match self.states[block as usize].try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Pages of a chunk that are not known to be zero.
    pub fn dirty(&self, chunk: ChunkId) -> Mask {
        self.dirty[chunk as usize].load(Ordering::Relaxed)
    }

    /// Notes that pages of a chunk may hold anything now.
    pub fn mark_dirty(&self, chunk: ChunkId, mask: Mask) {
        self.dirty[chunk as usize].fetch_or(mask, Ordering::Relaxed);
    }

    /// Counts granules that came to the device; answers all bytes now there.
    pub fn add_resident(&self, mask: Mask) -> u64 {
        let n = u64::from(mask.count_ones());
        (self.resident_granules.fetch_add(n, Ordering::Relaxed) + n) * GRANULE_BYTES
    }

    /// Counts granules that left the device.
    pub fn sub_resident(&self, mask: Mask) {
        self.resident_granules
            .fetch_sub(u64::from(mask.count_ones()), Ordering::Relaxed);
    }

    /// Managed bytes on the device.
    pub fn resident_bytes(&self) -> u64 {
        self.resident_granules.load(Ordering::Relaxed) * GRANULE_BYTES
    }
}
