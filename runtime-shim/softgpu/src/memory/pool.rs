//! The device's frames, and the order in which they are taken from their blocks.
//!
//! A chunk is a 2 MiB frame, the driver's root chunk. It owns the lists, not what the
//! frames hold. Order of victims as `pick_root_chunk_to_evict` (uvm_pmm_gpu.c:1477 in 580):
//! free chunks, then those whose block left nothing in them (unused), then those of
//! discarded blocks, then the least recently *migrated*: `uvm_pmm_gpu_mark_root_chunk_used`
//! (uvm_pmm_gpu.c:1445) moves a chunk to the tail at the end of each make-resident, also
//! when nothing moved, and never on an access.

use std::collections::VecDeque;

/// Index of a chunk.
pub type ChunkId = u32;

/// Where a chunk with an owner waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum List {
    /// Nothing of the block is on the device.
    Unused = 0,
    /// Content that may be dropped.
    Discarded = 1,
    /// Content.
    Used = 2,
}

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Chunk {
    owner: u32,
    list: Option<List>,
    previous: u32,
    next: u32,
    pinned: bool,
}

/// The chunks of the device.
pub struct Pool {
    chunks: Vec<Chunk>,
    heads: [u32; 3],
    tails: [u32; 3],
    free: VecDeque<ChunkId>,
    created: u32,
    pinned: Vec<ChunkId>,
    /// Chunks that device memory holds for good.
    taken: u32,
}

/// A frame that nobody has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Free {
    /// It exists.
    Existing(ChunkId),
    /// It has to be made first.
    New(ChunkId),
}

impl Pool {
    /// A pool of so many frames, none of which exists yet.
    pub fn new(frames: u32) -> Self {
        let chunk = Chunk {
            owner: NONE,
            list: None,
            previous: NONE,
            next: NONE,
            pinned: false,
        };
        Self {
            chunks: vec![chunk; frames as usize],
            heads: [NONE; 3],
            tails: [NONE; 3],
            free: VecDeque::new(),
            created: 0,
            pinned: Vec::new(),
            taken: 0,
        }
    }

    /// Frames in all.
    pub fn frames(&self) -> u32 {
        self.chunks.len() as u32
    }

    /// Frames that no block and no device memory has.
    pub fn free_frames(&self) -> u32 {
        self.frames() - self.created + self.free.len() as u32
    }

    /// Frames that device memory has.
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// Sets `count` frames aside for device memory, if `keep` remain for managed memory.
    pub fn reserve(&mut self, count: u32, keep: u32) -> bool {
        let fits = self.taken + count + keep <= self.frames();
        if fits {
            self.taken += count;
        }
        fits
    }

    /// Undoes [`Pool::reserve`].
    pub fn unreserve(&mut self, count: u32) {
        self.taken -= count;
    }

    /// Takes a free frame.
    pub fn take_free(&mut self) -> Option<Free> {
        if let Some(chunk) = self.free.pop_front() {
            return Some(Free::Existing(chunk));
        }
        (self.created < self.frames()).then(|| {
            self.created += 1;
            Free::New(self.created - 1)
        })
    }

    /// Gives a frame back.
    pub fn release(&mut self, chunk: ChunkId) {
        self.unlink(chunk);
        self.chunks[chunk as usize].owner = NONE;
        self.free.push_back(chunk);
    }

    /// Gives a frame to a block; it waits on no list yet.
    pub fn assign(&mut self, chunk: ChunkId, block: u32) {
        self.chunks[chunk as usize].owner = block;
    }

    /// Puts a chunk at the tail of a list.
    pub fn settle(&mut self, chunk: ChunkId, list: List) {
        self.unlink(chunk);
        let l = list as usize;
        let tail = self.tails[l];
        let entry = &mut self.chunks[chunk as usize];
        (entry.list, entry.previous, entry.next) = (Some(list), tail, NONE);
        match tail {
            NONE => self.heads[l] = chunk,
            tail => self.chunks[tail as usize].next = chunk,
        }
        self.tails[l] = chunk;
    }

    /// Takes a chunk off its list.
    pub fn unlink(&mut self, chunk: ChunkId) {
        let Chunk {
            list,
            previous,
            next,
            ..
        } = self.chunks[chunk as usize];
        let Some(list) = list else { return };
        match previous {
            NONE => self.heads[list as usize] = next,
            previous => self.chunks[previous as usize].next = next,
        }
        match next {
            NONE => self.tails[list as usize] = previous,
            next => self.chunks[next as usize].previous = previous,
        }
        self.chunks[chunk as usize].list = None;
    }

    /// Keeps a chunk from being a victim until [`Pool::unpin_all`].
    pub fn pin(&mut self, chunk: ChunkId) {
        if !std::mem::replace(&mut self.chunks[chunk as usize].pinned, true) {
            self.pinned.push(chunk);
        }
    }

    /// Ends all pins.
    pub fn unpin_all(&mut self) {
        for chunk in self.pinned.drain(..) {
            self.chunks[chunk as usize].pinned = false;
        }
    }

    /// The candidates for eviction, first victim first: chunk, its block, its list.
    pub fn victims(&self) -> impl Iterator<Item = (ChunkId, u32, List)> + '_ {
        [List::Unused, List::Discarded, List::Used]
            .into_iter()
            .flat_map(move |list| {
                let mut at = self.heads[list as usize];
                std::iter::from_fn(move || {
                    while at != NONE {
                        let chunk = at;
                        let entry = &self.chunks[chunk as usize];
                        at = entry.next;
                        if !entry.pinned {
                            return Some((chunk, entry.owner, list));
                        }
                    }
                    None
                })
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(frames: u32) -> Pool {
        let mut pool = Pool::new(frames);
        for block in 0..frames {
            let Some(Free::New(chunk)) = pool.take_free() else {
                panic!("a new frame")
            };
            pool.assign(chunk, block);
            pool.settle(chunk, List::Used);
        }
        assert_eq!(pool.take_free(), None);
        pool
    }

    fn order(pool: &Pool) -> Vec<u32> {
        pool.victims().map(|v| v.1).collect()
    }

    #[test]
    fn unused_go_before_discarded_before_used_each_oldest_first() {
        let mut pool = filled(6);
        pool.settle(4, List::Discarded);
        pool.settle(3, List::Unused);
        pool.settle(1, List::Discarded);
        assert_eq!(order(&pool), [3, 4, 1, 0, 2, 5]);
    }

    #[test]
    fn a_migrated_chunk_goes_to_the_tail() {
        let mut pool = filled(3);
        pool.settle(0, List::Used);
        assert_eq!(order(&pool), [1, 2, 0]);
        pool.settle(2, List::Used);
        assert_eq!(order(&pool), [1, 0, 2]);
    }

    #[test]
    fn pinned_chunks_are_no_victims_until_unpinned() {
        let mut pool = filled(3);
        pool.pin(0);
        pool.pin(0);
        assert_eq!(order(&pool), [1, 2]);
        pool.unpin_all();
        assert_eq!(order(&pool), [0, 1, 2]);
    }

    #[test]
    fn a_released_chunk_is_free_and_no_victim() {
        let mut pool = filled(2);
        pool.release(0);
        assert_eq!((order(&pool), pool.free_frames()), (vec![1], 1));
        assert_eq!(pool.take_free(), Some(Free::Existing(0)));
    }

    #[test]
    fn device_memory_leaves_some_frames_to_managed_memory() {
        let mut pool = Pool::new(8);
        assert!(pool.reserve(6, 2));
        assert!(!pool.reserve(1, 2));
        pool.unreserve(1);
        assert!(pool.reserve(1, 2));
    }
}
