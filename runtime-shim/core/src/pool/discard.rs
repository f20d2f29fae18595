//! Claims: dropping the content of free memory, safely.
//!
//! Between [`Pool::claim`] and [`Pool::release`] the claimed chunks are not handed out and
//! not joined or cut, so the discard that the caller puts into its own stream in between
//! meets only memory that no one has. Afterwards the memory carries the discard's number:
//! whoever gets it next has to wait for that discard first. Memory that the device may still
//! use can be claimed for a stream that is made to wait for that use.

use super::{Pool, chunks::ChunkId, point::Point};

/// Numbers of the newest discards that covered some memory; 0: none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Discards {
    /// Of those that are made at once.
    pub local: u64,
    /// Of those that wait for a stream of the program's.
    pub ordered: u64,
}

impl Discards {
    /// None at all.
    pub const NONE: Discards = Discards {
        local: 0,
        ordered: 0,
    };

    /// Of what is made at once, this one.
    pub const fn local(number: u64) -> Discards {
        Discards {
            local: number,
            ordered: 0,
        }
    }

    /// Of what waits for the program, this one.
    pub const fn ordered(number: u64) -> Discards {
        Discards {
            local: 0,
            ordered: number,
        }
    }

    /// The later ones of both.
    #[must_use]
    pub fn merged(self, other: Discards) -> Discards {
        Discards {
            local: self.local.max(other.local),
            ordered: self.ordered.max(other.ordered),
        }
    }
}

/// Why memory may not be discarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Declined {
    /// Not memory of the pool.
    NotPool,
    /// Part of it is handed out (again).
    InUse,
    /// The device may still use it.
    NotPassed,
    /// Another discard of it is being made.
    Claimed,
}

impl Pool {
    /// Claims `bytes` at `address`, all of which must be free and, as `passed` says, past use
    /// by the time that the discard is executed.
    ///
    /// # Errors
    /// [`Declined`]; then nothing is claimed.
    pub fn claim(
        &mut self,
        address: u64,
        bytes: u64,
        passed: impl Fn(&Point) -> bool,
    ) -> Result<(), Declined> {
        self.claim_chunks((address, bytes), false, passed)
    }

    /// As [`Pool::claim`], for one of several ranges that are released only once all of them
    /// are discarded: they may share chunks.
    ///
    /// # Errors
    /// [`Declined`]; then nothing more is claimed.
    pub fn claim_also(
        &mut self,
        address: u64,
        bytes: u64,
        passed: impl Fn(&Point) -> bool,
    ) -> Result<(), Declined> {
        self.claim_chunks((address, bytes), true, passed)
    }

    fn claim_chunks(
        &mut self,
        (address, bytes): (u64, u64),
        again: bool,
        passed: impl Fn(&Point) -> bool,
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
            if chunk.claimed && !again {
                return Err(Declined::Claimed);
            }
            if chunk.point != Point::Done && !passed(&chunk.point) {
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

    /// Gives back what was claimed. `discard`: the one that was made.
    pub fn release(&mut self, address: u64, bytes: u64, discard: Discards) {
        let Some(first) = self.chunk_at(address) else {
            return;
        };
        let end = address.saturating_add(bytes);
        self.for_each_in(first, end, |pool, id| {
            pool.chunks.update(id, |chunk| {
                chunk.claimed = false;
                chunk.discard = chunk.discard.merged(discard);
            });
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
