//! Claims: dropping the content of free memory, safely.
//!
//! Between [`Pool::claim`] and [`Pool::release`] the claimed chunks are not handed out and
//! not joined or cut, so the discard that the caller makes in between meets only memory that
//! no one has and no one uses.

use super::Pool;
use super::chunks::ChunkId;
use super::point::{Point, Turn};

/// Why memory may not be discarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Declined {
    /// Not memory of the pool.
    NotPool,
    /// Part of it is handed out (again).
    InUse,
    /// The device may still use it.
    NotPassed,
}

impl Pool {
    /// Claims `bytes` at `address`, all of which must be free and past use: as `passed` says of
    /// the streams in which it was freed, and up to the turn `over`. Ranges that are claimed
    /// together, and released only once all of them are discarded, may share chunks.
    ///
    /// # Errors
    /// [`Declined`]; then nothing more is claimed.
    pub fn claim(
        &mut self,
        (address, bytes): (u64, u64),
        passed: impl Fn(&Point) -> bool,
        over: Turn,
    ) -> Result<(), Declined> {
        let first = self.chunk_at(address).ok_or(Declined::NotPool)?;
        let end = address.checked_add(bytes).ok_or(Declined::NotPool)?;
        let mut id = first;
        loop {
            let chunk = self.chunks.get(id);
            if !id.is_some() {
                return Err(Declined::NotPool);
            }
            if chunk.in_use {
                return Err(Declined::InUse);
            }
            let passed = chunk.point == Point::Done || passed(&chunk.point);
            if !passed || chunk.turn > over {
                return Err(Declined::NotPassed);
            }
            if chunk.address + chunk.bytes >= end {
                break;
            }
            id = chunk.above;
        }
        self.for_each_in(first, end, |pool, id| {
            pool.chunks.update(id, |chunk| chunk.claimed = true);
        });
        Ok(())
    }

    /// Gives back what was claimed: the discard is over, or was not made.
    pub fn release(&mut self, address: u64, bytes: u64) {
        let Some(first) = self.chunk_at(address) else {
            return;
        };
        let end = address.saturating_add(bytes);
        self.for_each_in(first, end, |pool, id| {
            pool.chunks.update(id, |chunk| chunk.claimed = false);
        });
        // Frees next to a claimed chunk could not join it.
        let mut id = self.coalesce(first);
        while id.is_some() {
            let above = self.chunks.get(id).above;
            if self.join(id, above) {
                continue;
            }
            if self.chunks.get(above).address >= end {
                break;
            }
            id = above;
        }
    }

    fn for_each_in(&mut self, first: ChunkId, end: u64, mut each: impl FnMut(&mut Self, ChunkId)) {
        let mut id = first;
        while id.is_some() && self.chunks.get(id).address < end {
            each(self, id);
            id = self.chunks.get(id).above;
        }
    }
}
