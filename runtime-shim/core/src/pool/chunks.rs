//! The parts that segments are cut into: storage, neighbours, the free lists, and an index
//! of what is handed out by address. Knows nothing of streams' order.

use crate::mapped::{Slab, Zeroable};
use crate::pool::point::{Point, Turn};

/// Most parts, free and handed out.
pub const MAX_CHUNKS: usize = 1 << 16;
/// Cells of the index, twice as many.
const CELLS: usize = MAX_CHUNKS * 2;

/// A chunk by its number; 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct ChunkId(u32);

impl ChunkId {
    /// No chunk.
    pub const NONE: ChunkId = ChunkId(0);

    /// There is one.
    pub fn is_some(self) -> bool {
        self.0 != 0
    }
}

// SAFETY: an integer.
unsafe impl Zeroable for ChunkId {}

/// Sizes are kept apart: see [`crate::pool::Class`].
pub const LISTS: usize = 3;

/// A part of a segment.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Bytes that the program asked for, while handed out.
    pub requested: u64,
    /// When the memory is free of its last users, while free.
    pub point: Point,
    /// What its next user has to wait for as well, while free.
    pub turn: Turn,
    /// Neighbour below in the same segment.
    pub below: ChunkId,
    /// Neighbour above in the same segment.
    pub above: ChunkId,
    /// Free list.
    pub(super) newer: ChunkId,
    pub(super) older: ChunkId,
    /// Which free list, and which segment.
    pub list: u8,
    /// Handed out.
    pub in_use: bool,
    /// A discard of part of it is about to be made: leave it alone.
    pub claimed: bool,
}

// SAFETY: integers, booleans and a `Point`, whose zero is `Point::Done`.
unsafe impl Zeroable for Chunk {}

/// All chunks.
#[derive(Debug, Default)]
pub struct Chunks {
    slab: Slab<Chunk, MAX_CHUNKS>,
    index: Slab<ChunkId, CELLS>,
    /// Chunks ever used, the unused zeroth included.
    used: u32,
    /// Retired chunks, linked by `above`.
    spare: ChunkId,
    newest: [ChunkId; LISTS],
}

impl Default for ChunkId {
    fn default() -> Self {
        ChunkId::NONE
    }
}

impl Chunks {
    /// None.
    pub const fn new() -> Self {
        Self {
            slab: Slab::new(),
            index: Slab::new(),
            used: 1,
            spare: ChunkId::NONE,
            newest: [ChunkId::NONE; LISTS],
        }
    }

    /// The chunk, by value; an empty one for [`ChunkId::NONE`].
    pub fn get(&self, id: ChunkId) -> Chunk {
        self.slab.all().get(id.0 as usize).copied().unwrap_or(EMPTY)
    }

    /// Changes a chunk; nothing for [`ChunkId::NONE`].
    pub fn update(&mut self, id: ChunkId, change: impl FnOnce(&mut Chunk)) {
        if id.is_some()
            && let Some(chunk) = self.slab.all_mut().get_mut(id.0 as usize)
        {
            change(chunk);
        }
    }

    /// Room for `count` more chunks.
    pub fn has_room(&mut self, count: usize) -> bool {
        let unused = MAX_CHUNKS - self.used as usize;
        self.slab.ensure() && self.index.ensure() && (self.spare.is_some() || unused >= count)
    }

    /// A new chunk, in no list. `None`: there is no room.
    pub fn create(&mut self, chunk: Chunk) -> Option<ChunkId> {
        let id = if self.spare.is_some() {
            let id = self.spare;
            self.spare = self.get(id).above;
            id
        } else {
            if !self.has_room(1) {
                return None;
            }
            self.used += 1;
            ChunkId(self.used - 1)
        };
        self.update(id, |slot| *slot = chunk);
        Some(id)
    }

    /// Retires a chunk that is in no list.
    pub fn retire(&mut self, id: ChunkId) {
        let spare = self.spare;
        self.update(id, |chunk| {
            *chunk = Chunk {
                above: spare,
                ..EMPTY
            }
        });
        self.spare = id;
    }

    /// Newest of a free list.
    pub fn newest(&self, list: u8) -> ChunkId {
        self.newest
            .get(usize::from(list))
            .copied()
            .unwrap_or(ChunkId::NONE)
    }

    /// The next older one in the same free list.
    pub fn older(&self, id: ChunkId) -> ChunkId {
        self.get(id).older
    }

    /// Puts a chunk at the newest end of its free list.
    pub fn link(&mut self, id: ChunkId) {
        let list = usize::from(self.get(id).list) % LISTS;
        let newest = self.newest[list];
        self.update(newest, |chunk| chunk.newer = id);
        self.update(id, |chunk| {
            chunk.older = newest;
            chunk.newer = ChunkId::NONE;
        });
        self.newest[list] = id;
    }

    /// Takes a chunk out of its free list.
    pub fn unlink(&mut self, id: ChunkId) {
        let Chunk {
            newer, older, list, ..
        } = self.get(id);
        self.update(newer, |chunk| chunk.older = older);
        self.update(older, |chunk| chunk.newer = newer);
        if !newer.is_some() {
            self.newest[usize::from(list) % LISTS] = older;
        }
        self.update(id, |chunk| {
            chunk.newer = ChunkId::NONE;
            chunk.older = ChunkId::NONE;
        });
    }

    /// Puts a handed-out chunk into the index.
    pub fn insert(&mut self, id: ChunkId) {
        let mut at = cell_of(self.get(id).address);
        let cells = self.index.all_mut();
        // Ends: the index has twice as many cells as there can be chunks.
        while let Some(cell) = cells.get_mut(at) {
            if !cell.is_some() {
                *cell = id;
                return;
            }
            at = (at + 1) % CELLS;
        }
    }

    /// The handed-out chunk that begins at `address`.
    pub fn find(&self, address: u64) -> Option<ChunkId> {
        let at = self.cell_at(address)?;
        self.index.all().get(at).copied()
    }

    fn cell_at(&self, address: u64) -> Option<usize> {
        let mut at = cell_of(address);
        loop {
            let id = *self.index.all().get(at)?;
            if !id.is_some() {
                return None;
            }
            if self.get(id).address == address {
                return Some(at);
            }
            at = (at + 1) % CELLS;
        }
    }

    /// Takes a chunk out of the index.
    pub fn remove(&mut self, address: u64) {
        let Some(mut hole) = self.cell_at(address) else {
            return;
        };
        let mut at = hole;
        // Backward-shift deletion: no tombstones.
        loop {
            at = (at + 1) % CELLS;
            let Some(id) = self.index.all().get(at).copied().filter(|id| id.is_some()) else {
                break;
            };
            let home = cell_of(self.get(id).address);
            let distance = |from: usize| (at + CELLS - from) % CELLS;
            if distance(home) >= distance(hole) {
                self.set_cell(hole, id);
                hole = at;
            }
        }
        self.set_cell(hole, ChunkId::NONE);
    }

    fn set_cell(&mut self, at: usize, id: ChunkId) {
        if let Some(cell) = self.index.all_mut().get_mut(at) {
            *cell = id;
        }
    }
}

/// What stands where there is no chunk.
pub const EMPTY: Chunk = Chunk {
    address: 0,
    bytes: 0,
    requested: 0,
    point: Point::Done,
    turn: Turn::NONE,
    below: ChunkId::NONE,
    above: ChunkId::NONE,
    newer: ChunkId::NONE,
    older: ChunkId::NONE,
    list: 0,
    in_use: false,
    claimed: false,
};

fn cell_of(address: u64) -> usize {
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - CELLS.trailing_zeros())) as usize
}
