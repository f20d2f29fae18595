//! Allocations: which addresses are live, of which kind, and the frames of device memory.

use std::collections::BTreeMap;

use super::density::{GRANULE_BYTES, Mask, span};
use super::migrate::Patience;
use super::pool::ChunkId;
use super::{Allocation, BLOCK_BYTES, Kind, Memory, MemoryError, lock};

/// Frames that device memory may not take: managed memory needs some to fault into.
const MANAGED_RESERVE: u32 = 4;
/// Alignment of small device allocations, as of `cuMemAlloc`, bytes.
const SMALL_ALIGN: u64 = 512;

/// Free address ranges, first fit.
#[derive(Debug, Default)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// One free range.
    pub fn new(start: u64, bytes: u64) -> Self {
        Self(BTreeMap::from([(start, bytes)]))
    }

    /// Takes the lowest range that is long enough.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let (start, length) = self
            .0
            .iter()
            .find(|(_, l)| **l >= bytes)
            .map(|(s, l)| (*s, *l))?;
        self.0.remove(&start);
        if length > bytes {
            self.0.insert(start + bytes, length - bytes);
        }
        Some(start)
    }

    /// Gives a range back, joined with its neighbours.
    pub fn give(&mut self, mut start: u64, mut bytes: u64) {
        if let Some((before, length)) = self.0.range(..start).next_back().map(|(s, l)| (*s, *l))
            && before + length == start
        {
            self.0.remove(&before);
            (start, bytes) = (before, length + bytes);
        }
        if let Some(length) = self.0.remove(&(start + bytes)) {
            bytes += length;
        }
        self.0.insert(start, bytes);
    }

    /// The longest range, bytes.
    pub fn longest(&self) -> u64 {
        self.0.values().copied().max().unwrap_or(0)
    }

    /// Whether all of `start..start + bytes` is free.
    pub fn covers(&self, start: u64, bytes: u64) -> bool {
        self.0
            .range(..=start)
            .next_back()
            .is_some_and(|(s, l)| s + l >= start + bytes)
    }
}

/// Live allocations and free address space.
pub struct Book {
    live: BTreeMap<u64, Allocation>,
    managed: Ranges,
    device: Ranges,
    /// Free parts of the blocks that hold small device allocations.
    small: Ranges,
    /// Frames of mapped device blocks, by block address.
    frames: BTreeMap<u64, ChunkId>,
    /// Blocks whose pages were poisoned while no allocation was there.
    poisoned: std::collections::BTreeSet<u32>,
}

impl Book {
    /// Address space for both kinds.
    pub fn new(managed: std::ops::Range<u64>, device: std::ops::Range<u64>) -> Self {
        Self {
            live: BTreeMap::new(),
            managed: Ranges::new(managed.start, managed.end - managed.start),
            device: Ranges::new(device.start, device.end - device.start),
            small: Ranges::default(),
            frames: BTreeMap::new(),
            poisoned: Default::default(),
        }
    }

    fn find(&self, address: u64) -> Option<Allocation> {
        let (_, found) = self.live.range(..=address).next_back()?;
        (address - found.base < found.bytes).then_some(*found)
    }
}

impl Memory {
    /// See [`super::Device::lookup`].
    pub fn lookup(&self, address: u64) -> Option<Allocation> {
        lock(&self.book).find(address)
    }

    /// Checks that a range lies in one allocation (of `kind`, if given).
    pub fn require(
        &self,
        address: u64,
        bytes: u64,
        kind: Option<Kind>,
    ) -> Result<Allocation, MemoryError> {
        let wanted = match kind {
            Some(Kind::Managed) => "managed memory",
            Some(Kind::Device) => "device memory",
            None => "device or managed memory",
        };
        self.lookup(address)
            .filter(|a| kind.is_none_or(|kind| a.kind == kind))
            .filter(|a| bytes <= a.bytes - (address - a.base))
            .ok_or(MemoryError::InvalidRange {
                wanted,
                address,
                bytes,
            })
    }

    /// Notes that pages of a free block were poisoned, to be cleaned before it is used.
    pub fn note_poisoned(&self, block: u32) {
        lock(&self.book).poisoned.insert(block);
    }

    /// See [`super::Device::alloc_managed`].
    pub fn alloc_managed(&self, bytes: u64) -> Result<u64, MemoryError> {
        let span_bytes = whole_blocks(bytes)?;
        let mut book = lock(&self.book);
        let Some(base) = book.managed.take(span_bytes) else {
            let available = book.managed.longest();
            return Err(MemoryError::OutOfMemory {
                requested: bytes,
                available,
            });
        };
        for at in (base..base + span_bytes).step_by(BLOCK_BYTES as usize) {
            let Some(block) = self.block_of(at) else {
                continue;
            };
            if book.poisoned.remove(&block) {
                self.areas.drop_host(at, BLOCK_BYTES);
            }
            self.blocks.lock(block).valid = covered(bytes - (at - base));
        }
        book.live.insert(
            base,
            Allocation {
                base,
                bytes,
                kind: Kind::Managed,
            },
        );
        Ok(base)
    }

    /// See [`super::Device::alloc_device`].
    pub fn alloc_device(&self, bytes: u64) -> Result<u64, MemoryError> {
        let span_bytes = whole_blocks(bytes)?;
        if bytes >= BLOCK_BYTES {
            let base = self.map_device(span_bytes)?;
            lock(&self.book).live.insert(
                base,
                Allocation {
                    base,
                    bytes,
                    kind: Kind::Device,
                },
            );
            return Ok(base);
        }
        let need = bytes.next_multiple_of(SMALL_ALIGN);
        let mut book = lock(&self.book);
        let base = match book.small.take(need) {
            Some(base) => base,
            None => {
                drop(book);
                let block = self.map_device(BLOCK_BYTES)?;
                book = lock(&self.book);
                if need < BLOCK_BYTES {
                    book.small.give(block + need, BLOCK_BYTES - need);
                }
                block
            }
        };
        book.live.insert(
            base,
            Allocation {
                base,
                bytes,
                kind: Kind::Device,
            },
        );
        Ok(base)
    }

    /// Takes frames out of the pool for good, evicting managed blocks as RM's callback
    /// into UVM does (`uvm_pmm_gpu_pma_evict_pages`, uvm_pmm_gpu.c:2460 in 570).
    fn map_device(&self, bytes: u64) -> Result<u64, MemoryError> {
        let count = (bytes / BLOCK_BYTES) as u32;
        let reserved = {
            let mut pool = lock(&self.pool);
            let keep = MANAGED_RESERVE.min(pool.frames() / 2);
            let left = pool.frames() - pool.taken();
            let available = u64::from(left.saturating_sub(keep)) * BLOCK_BYTES;
            pool.reserve(count, keep).then_some(()).ok_or(available)
        };
        reserved.map_err(|available| MemoryError::OutOfMemory {
            requested: bytes,
            available,
        })?;
        let Some(base) = lock(&self.book).device.take(bytes) else {
            lock(&self.pool).unreserve(count);
            return Err(MemoryError::OutOfMemory {
                requested: bytes,
                available: lock(&self.book).device.longest(),
            });
        };
        let mut transfer = self.link_in.begin();
        for at in (base..base + bytes).step_by(BLOCK_BYTES as usize) {
            let Some(chunk) = self.acquire_chunk(Patience::Wait, &mut transfer) else {
                continue;
            };
            self.blocks.mark_dirty(chunk, Mask::MAX);
            self.areas
                .map_view(at, self.areas.frame(chunk), BLOCK_BYTES);
            lock(&self.book).frames.insert(at, chunk);
        }
        Ok(base)
    }

    fn unmap_device(&self, base: u64, bytes: u64) {
        for at in (base..base + bytes).step_by(BLOCK_BYTES as usize) {
            let Some(chunk) = lock(&self.book).frames.remove(&at) else {
                continue;
            };
            self.areas
                .unmap_view(at, self.areas.frame(chunk), BLOCK_BYTES);
            lock(&self.pool).unreserve(1);
            self.release_chunk(chunk);
        }
        lock(&self.book).device.give(base, bytes);
    }

    /// See [`super::Device::free`].
    pub fn free(&self, address: u64) -> Result<Allocation, MemoryError> {
        let mut book = lock(&self.book);
        let Some(gone) = book.live.remove(&address) else {
            let wanted = "start of an allocation";
            return Err(MemoryError::InvalidRange {
                wanted,
                address,
                bytes: 0,
            });
        };
        match gone.kind {
            Kind::Managed => {
                drop(book);
                let span_bytes = gone.bytes.next_multiple_of(BLOCK_BYTES);
                for at in (address..address + span_bytes).step_by(BLOCK_BYTES as usize) {
                    self.clear_block(at);
                }
                lock(&self.book).managed.give(address, span_bytes);
            }
            Kind::Device if gone.bytes >= BLOCK_BYTES => {
                drop(book);
                self.unmap_device(address, gone.bytes.next_multiple_of(BLOCK_BYTES));
            }
            Kind::Device => {
                let length = gone.bytes.next_multiple_of(SMALL_ALIGN);
                book.small.give(address, length);
                // Adjacent blocks are one range, so an allocation may lie in two.
                let [first, last] = [address, address + length - 1].map(|a| a & !(BLOCK_BYTES - 1));
                let empty = |book: &Book, block| book.small.covers(block, BLOCK_BYTES);
                let mut gone_blocks = Vec::new();
                for block in (first..=last).step_by(BLOCK_BYTES as usize) {
                    if empty(&book, block) {
                        take_exact(&mut book.small, block);
                        gone_blocks.push(block);
                    }
                }
                drop(book);
                for block in gone_blocks {
                    self.unmap_device(block, BLOCK_BYTES);
                }
            }
        }
        Ok(gone)
    }

    fn clear_block(&self, at: u64) {
        let Some(block) = self.block_of(at) else {
            return;
        };
        let mut state = self.blocks.lock(block);
        self.drop_content(block, &mut state, Mask::MAX);
        if state.host_frame {
            self.areas.drop_host(at, BLOCK_BYTES);
        }
        let chunk = state.chunk.take();
        *state = Default::default();
        drop(state);
        chunk.inspect(|chunk| self.release_chunk(*chunk));
    }

    /// Puts a block's chunk on the unused or discarded list if nothing of the block is on
    /// the device any more; what still has content keeps its place, as a host fault is no
    /// make-resident on the device.
    pub fn settle_if_left(&self, state: &super::block::BlockState) {
        if state.device == 0 {
            self.settle(state, false);
        }
    }
}

/// Removes one block from ranges that cover it.
fn take_exact(ranges: &mut Ranges, block: u64) {
    let Some((start, length)) = ranges.0.range(..=block).next_back().map(|(s, l)| (*s, *l)) else {
        return;
    };
    ranges.0.remove(&start);
    if block > start {
        ranges.0.insert(start, block - start);
    }
    let (end, block_end) = (start + length, block + BLOCK_BYTES);
    if end > block_end {
        ranges.0.insert(block_end, end - block_end);
    }
}

fn whole_blocks(bytes: u64) -> Result<u64, MemoryError> {
    let invalid = MemoryError::InvalidRange {
        wanted: "positive size",
        address: 0,
        bytes,
    };
    if bytes == 0 {
        return Err(invalid);
    }
    bytes
        .checked_next_multiple_of(BLOCK_BYTES)
        .ok_or(MemoryError::OutOfMemory {
            requested: bytes,
            available: 0,
        })
}

/// Granules of a block of which the first `bytes` are allocated.
fn covered(bytes: u64) -> Mask {
    span(0, bytes.div_ceil(GRANULE_BYTES).min(32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_when_given_back() {
        let mut ranges = Ranges::new(0, 100);
        let parts: Vec<_> = (0..4).filter_map(|_| ranges.take(25)).collect();
        assert_eq!(parts, [0, 25, 50, 75]);
        assert_eq!(ranges.take(1), None);
        for start in [25, 75, 0, 50] {
            ranges.give(start, 25);
        }
        assert_eq!(ranges.take(100), Some(0));
    }

    #[test]
    fn a_block_is_taken_out_of_the_middle() {
        let mut ranges = Ranges::new(0, 3 * BLOCK_BYTES);
        assert!(ranges.covers(BLOCK_BYTES, BLOCK_BYTES));
        take_exact(&mut ranges, BLOCK_BYTES);
        assert!(!ranges.covers(BLOCK_BYTES, BLOCK_BYTES));
        assert!(ranges.covers(0, BLOCK_BYTES) && ranges.covers(2 * BLOCK_BYTES, BLOCK_BYTES));
        assert_eq!(ranges.longest(), BLOCK_BYTES);
    }
}
