//! The stream-ordered pool: what `cuMemAllocAsync` and `cuMemFreeAsync` mean, over segments
//! of managed memory.
//!
//! Memory freed in a stream may be handed out again in that stream at once, in another one
//! only after a wait, which the caller puts into that stream ([`Grant::waits`]). Three
//! classes of size live in segments of their own, so that small things do not keep blocks
//! alive and large ones own whole blocks ([`Class`]). Placement depends only on the order
//! of calls, never on how far the device is, as long as one stream is used: a program that
//! repeats itself gets the same addresses again, which is what predictions rest on.
//!
//! Discards come through [`Pool::claim`] and [`Pool::release`]. Calling the driver is the
//! caller's business; so is the lock around all of this.

pub mod chunks;
mod discard;
pub mod point;
mod recent;

use crate::BLOCK_BYTES;
use crate::abi::Handle;
use crate::mapped::{Slab, Zeroable};
use chunks::{Chunk, ChunkId, Chunks, EMPTY};
pub use discard::Declined;
use point::{Point, Turn};
use recent::Recent;

/// Most segments.
pub const MAX_SEGMENTS: usize = 4096;
/// Smallest segment, bytes.
pub const SEGMENT_BYTES: u64 = 32 << 20;
/// Most streams that one allocation may have to wait for.
pub const MAX_WAITS: usize = 8;

/// What sizes are kept together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Below 2 MiB: packed, in multiples of 512 bytes (the alignment that CUDA promises).
    Small,
    /// Where rounding to whole blocks would waste over an eighth: multiples of 64 KiB.
    Medium,
    /// Whole blocks.
    Large,
}

impl Class {
    /// The class of a request, and the bytes that it takes. `None`: absurdly large.
    pub fn of(requested: u64) -> Option<(Class, u64)> {
        let whole = requested.checked_next_multiple_of(BLOCK_BYTES)?;
        let class = if requested < BLOCK_BYTES {
            Class::Small
        } else if whole - requested > requested / 8 {
            Class::Medium
        } else {
            return Some((Class::Large, whole));
        };
        let granule = if class == Class::Small { 512 } else { 64 << 10 };
        Some((class, requested.max(1).next_multiple_of(granule)))
    }
}

/// A piece of managed memory that chunks are cut from.
#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    bytes: u64,
    first: ChunkId,
}

// SAFETY: integers.
unsafe impl Zeroable for Segment {}

/// Memory handed out.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// First byte.
    pub address: u64,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Streams that the allocating stream must wait for before it uses the memory.
    pub waits: [Handle; MAX_WAITS],
    /// How many.
    pub wait_count: usize,
    /// What of the shim's own stream it must wait for.
    pub turn: Turn,
}

/// Why nothing was handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// A segment of at least this many bytes must be added first.
    Grow(u64),
    /// The tables are full, or the request is absurd.
    Full,
}

/// A part of the pool as the program sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// First byte.
    pub address: u64,
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes taken.
    pub bytes: u64,
}

/// What the pool holds, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// In segments.
    pub reserved: u64,
    /// The most there ever was.
    pub reserved_high: u64,
    /// Handed out.
    pub used: u64,
    /// The most there ever was.
    pub used_high: u64,
}

/// The pool.
#[derive(Debug, Default)]
pub struct Pool {
    chunks: Chunks,
    segments: Slab<Segment, MAX_SEGMENTS>,
    segment_count: usize,
    /// What it holds.
    pub usage: Usage,
    recent: Recent,
}

impl Pool {
    /// Empty; maps nothing.
    pub const fn new() -> Self {
        Self {
            chunks: Chunks::new(),
            segments: Slab::new(),
            segment_count: 0,
            usage: Usage {
                reserved: 0,
                reserved_high: 0,
                used: 0,
                used_high: 0,
            },
            recent: Recent::new(),
        }
    }

    /// Bytes that the pool should hold on to at `now_s` (seconds of any steady clock): what
    /// it lately handed out, and some room between.
    pub fn worth_keeping(&mut self, now_s: u64) -> u64 {
        self.recent.worth_keeping(now_s, self.usage.used)
    }

    /// Hands out memory for use in `stream`. `passed` says whether a point is in the past.
    ///
    /// # Errors
    /// [`Refusal`] says what is missing.
    pub fn allocate(
        &mut self,
        requested: u64,
        stream: Handle,
        passed: impl Fn(&Point) -> bool,
    ) -> Result<Grant, Refusal> {
        let (class, bytes) = Class::of(requested).ok_or(Refusal::Full)?;
        // A cut makes one chunk more.
        if !self.chunks.has_room(1) {
            return Err(Refusal::Full);
        }
        let list = class as u8;
        let found = self.best_fit(list, bytes, |chunk| chunk.point.is_ready_in(stream));
        let found = found.or_else(|| {
            self.settle(list, &passed);
            self.best_fit(list, bytes, |chunk| chunk.point.is_ready_in(stream))
        });
        if let Some(id) = found {
            return self.hand_out(id, id, bytes, requested, stream);
        }
        match self.foreign_run(list, bytes) {
            Some((first, last)) => self.hand_out(first, last, bytes, requested, stream),
            None => Err(Refusal::Grow(
                bytes.next_multiple_of(BLOCK_BYTES).max(SEGMENT_BYTES),
            )),
        }
    }

    /// Smallest free chunk that fits and that `ready` accepts; of equals the newest.
    fn best_fit(&self, list: u8, bytes: u64, ready: impl Fn(&Chunk) -> bool) -> Option<ChunkId> {
        let mut best: Option<(u64, ChunkId)> = None;
        let mut id = self.chunks.newest(list);
        while id.is_some() {
            let chunk = self.chunks.get(id);
            let better = best.is_none_or(|(size, _)| chunk.bytes < size);
            if chunk.bytes >= bytes && better && !chunk.claimed && ready(&chunk) {
                best = Some((chunk.bytes, id));
                if chunk.bytes == bytes {
                    break;
                }
            }
            id = self.chunks.older(id);
        }
        best.map(|(_, id)| id)
    }

    /// Shortest run of free neighbours, of whatever streams, that together fit.
    fn foreign_run(&self, list: u8, bytes: u64) -> Option<(ChunkId, ChunkId)> {
        let mut best: Option<(u64, ChunkId, ChunkId)> = None;
        let mut id = self.chunks.newest(list);
        while id.is_some() {
            let mut total = 0;
            let mut last = id;
            for _ in 0..MAX_WAITS {
                let chunk = self.chunks.get(last);
                if chunk.in_use || chunk.claimed || chunk.bytes == 0 {
                    break;
                }
                total += chunk.bytes;
                if total >= bytes {
                    if best.is_none_or(|(size, ..)| total < size) {
                        best = Some((total, id, last));
                    }
                    break;
                }
                last = chunk.above;
            }
            id = self.chunks.older(id);
        }
        best.map(|(_, first, last)| (first, last))
    }

    /// Hands out `bytes` from the run `first ..= last`; what is left stays free.
    fn hand_out(
        &mut self,
        first: ChunkId,
        last: ChunkId,
        bytes: u64,
        requested: u64,
        stream: Handle,
    ) -> Result<Grant, Refusal> {
        let address = self.chunks.get(first).address;
        let mut grant = Grant {
            address,
            bytes,
            waits: [0; MAX_WAITS],
            wait_count: 0,
            turn: Turn::NONE,
        };
        let mut id = first;
        loop {
            let chunk = self.chunks.get(id);
            grant.turn = grant.turn.max(chunk.turn);
            if let Point::Stream { stream: other, .. } = chunk.point
                && other != stream
                && !grant.waits[..grant.wait_count].contains(&other)
                && let Some(cell) = grant.waits.get_mut(grant.wait_count)
            {
                *cell = other;
                grant.wait_count += 1;
            }
            if id == last || !id.is_some() {
                break;
            }
            id = chunk.above;
        }
        let end = self.chunks.get(last).address + self.chunks.get(last).bytes;
        let rest = end - address - bytes;
        if rest > 0 {
            self.cut_end(last, rest).ok_or(Refusal::Full)?;
        }
        self.chunks.unlink(first);
        while self.chunks.get(first).bytes < bytes {
            let above = self.chunks.get(first).above;
            self.chunks.unlink(above);
            self.absorb(first, above);
        }
        self.chunks.update(first, |chunk| {
            chunk.in_use = true;
            chunk.requested = requested;
            chunk.point = Point::Done;
            chunk.turn = Turn::NONE;
        });
        self.chunks.insert(first);
        self.usage.used += bytes;
        self.usage.used_high = self.usage.used_high.max(self.usage.used);
        self.recent.note(self.usage.used);
        Ok(grant)
    }

    /// Makes the last `rest` bytes of a free chunk a free chunk of their own.
    fn cut_end(&mut self, id: ChunkId, rest: u64) -> Option<()> {
        let chunk = self.chunks.get(id);
        let kept = chunk.bytes - rest;
        let new = self.chunks.create(Chunk {
            address: chunk.address + kept,
            bytes: rest,
            below: id,
            above: chunk.above,
            point: chunk.point,
            turn: chunk.turn,
            list: chunk.list,
            ..EMPTY
        })?;
        self.chunks.update(chunk.above, |above| above.below = new);
        self.chunks.update(id, |chunk| {
            chunk.bytes = kept;
            chunk.above = new;
        });
        self.chunks.link(new);
        Some(())
    }

    /// Adds `above`, which is in no list, to its neighbour `id`.
    fn absorb(&mut self, id: ChunkId, above: ChunkId) {
        let taken = self.chunks.get(above);
        self.chunks.update(id, |chunk| {
            chunk.bytes += taken.bytes;
            chunk.above = taken.above;
        });
        self.chunks.update(taken.above, |chunk| chunk.below = id);
        self.chunks.retire(above);
    }

    /// Takes memory back at `point`, or after `turn`. `None`: nothing was handed out at
    /// `address`.
    pub fn free(&mut self, address: u64, point: Point, turn: Turn) -> Option<Part> {
        let id = self.chunks.find(address)?;
        self.chunks.remove(address);
        let chunk = self.chunks.get(id);
        self.chunks.update(id, |chunk| {
            chunk.in_use = false;
            chunk.point = point;
            chunk.turn = turn;
        });
        self.chunks.link(id);
        self.usage.used -= chunk.bytes;
        self.coalesce(id);
        Some(Part {
            address,
            requested: chunk.requested,
            bytes: chunk.bytes,
        })
    }

    /// Joins a free chunk with those free neighbours whose points one point can say.
    fn coalesce(&mut self, id: ChunkId) -> ChunkId {
        let mut id = id;
        let below = self.chunks.get(id).below;
        if self.join(below, id) {
            id = below;
        }
        let above = self.chunks.get(id).above;
        self.join(id, above);
        id
    }

    /// Joins two free neighbours; the joined one counts as the newest of its list.
    fn join(&mut self, low: ChunkId, high: ChunkId) -> bool {
        if !low.is_some() || !high.is_some() {
            return false;
        }
        let (a, b) = (self.chunks.get(low), self.chunks.get(high));
        if a.in_use || b.in_use || a.claimed || b.claimed {
            return false;
        }
        let Some(point) = a.point.merged(b.point) else {
            return false;
        };
        self.chunks.unlink(low);
        self.chunks.unlink(high);
        self.absorb(low, high);
        self.chunks.update(low, |chunk| {
            chunk.point = point;
            chunk.turn = a.turn.max(b.turn);
        });
        self.chunks.link(low);
        true
    }

    /// Turns points that are in the past into [`Point::Done`], and joins what that frees.
    fn settle(&mut self, list: u8, passed: &impl Fn(&Point) -> bool) {
        let mut id = self.chunks.newest(list);
        while id.is_some() {
            let point = self.chunks.get(id).point;
            if point != Point::Done && passed(&point) {
                self.chunks.update(id, |chunk| chunk.point = Point::Done);
            }
            id = self.chunks.older(id);
        }
        for index in 0..self.segment_count {
            let Some(segment) = self.segments.all().get(index).copied() else {
                return;
            };
            if self.chunks.get(segment.first).list != list {
                continue;
            }
            let mut id = segment.first;
            while id.is_some() {
                let above = self.chunks.get(id).above;
                if !self.join(id, above) {
                    id = above;
                }
            }
        }
    }

    /// All of `stream`'s points are now covered by `turn`: the stream is about to be destroyed,
    /// and the shim's own waits for it there.
    pub fn replace_stream(&mut self, stream: Handle, turn: Turn) {
        self.for_each_free(|chunk| {
            if chunk.point.is_of(stream) {
                chunk.point = Point::Done;
                chunk.turn = chunk.turn.max(turn);
            }
        });
    }

    /// Whether memory freed in `stream` is still waiting for it.
    pub fn has_points_of(&mut self, stream: Handle) -> bool {
        let mut found = false;
        self.for_each_free(|chunk| {
            found |= chunk.point.is_of(stream);
        });
        found
    }

    fn for_each_free(&mut self, mut change: impl FnMut(&mut Chunk)) {
        for list in 0..chunks::LISTS as u8 {
            let mut id = self.chunks.newest(list);
            while id.is_some() {
                self.chunks.update(id, &mut change);
                id = self.chunks.older(id);
            }
        }
    }

    /// Adds a segment for requests of `requested` bytes. `false`: the tables are full.
    pub fn add_segment(&mut self, address: u64, bytes: u64, requested: u64) -> bool {
        let Some((class, _)) = Class::of(requested) else {
            return false;
        };
        if self.segment_count == MAX_SEGMENTS || !self.segments.ensure() {
            return false;
        }
        let chunk = Chunk {
            address,
            bytes,
            list: class as u8,
            ..EMPTY
        };
        let Some(first) = self.chunks.create(chunk) else {
            return false;
        };
        self.chunks.link(first);
        if let Some(segment) = self.segments.all_mut().get_mut(self.segment_count) {
            *segment = Segment {
                address,
                bytes,
                first,
            };
            self.segment_count += 1;
        }
        self.usage.reserved += bytes;
        self.usage.reserved_high = self.usage.reserved_high.max(self.usage.reserved);
        true
    }

    /// Takes a wholly free segment out, while more than `keep` bytes are reserved; its
    /// address and bytes. Call it until there is none.
    pub fn take_free_segment(
        &mut self,
        keep: u64,
        passed: impl Fn(&Point) -> bool,
    ) -> Option<(u64, u64)> {
        if self.usage.reserved <= keep {
            return None;
        }
        for list in 0..chunks::LISTS as u8 {
            self.settle(list, &passed);
        }
        let free = |segment: &Segment| {
            let first = self.chunks.get(segment.first);
            let done = first.point == Point::Done || passed(&first.point);
            first.bytes == segment.bytes && !first.in_use && !first.claimed && done
        };
        let all = self
            .segments
            .all()
            .get(..self.segment_count)
            .unwrap_or_default();
        let index = all.iter().position(free)?;
        let segment = *all.get(index)?;
        self.chunks.unlink(segment.first);
        self.chunks.retire(segment.first);
        self.segment_count -= 1;
        self.segments.all_mut().swap(index, self.segment_count);
        self.usage.reserved -= segment.bytes;
        Some((segment.address, segment.bytes))
    }

    /// The handed-out part that `address` lies in.
    pub fn part(&self, address: u64) -> Option<Part> {
        let id = self
            .chunks
            .find(address)
            .or_else(|| self.chunk_at(address))?;
        let chunk = self.chunks.get(id);
        let Chunk {
            address,
            requested,
            bytes,
            ..
        } = chunk;
        chunk.in_use.then_some(Part {
            address,
            requested,
            bytes,
        })
    }

    /// The chunk that `address` lies in.
    fn chunk_at(&self, address: u64) -> Option<ChunkId> {
        let all = self.segments.all().get(..self.segment_count)?;
        let inside = |s: &&Segment| s.address <= address && address < s.address + s.bytes;
        let mut id = all.iter().find(inside)?.first;
        while id.is_some() {
            let chunk = self.chunks.get(id);
            if address < chunk.address + chunk.bytes {
                return Some(id);
            }
            id = chunk.above;
        }
        None
    }

    /// Calls `each` with every handed-out part.
    pub fn for_each_part(&self, mut each: impl FnMut(Part)) {
        for segment in self.segments.all().iter().take(self.segment_count) {
            let mut id = segment.first;
            while id.is_some() {
                let chunk = self.chunks.get(id);
                let Chunk {
                    address,
                    requested,
                    bytes,
                    above,
                    ..
                } = chunk;
                if chunk.in_use {
                    each(Part {
                        address,
                        requested,
                        bytes,
                    });
                }
                id = above;
            }
        }
    }

    /// Forgets everything: the context is gone, and the memory with it.
    pub fn clear(&mut self) {
        let Usage {
            reserved_high,
            used_high,
            ..
        } = self.usage;
        *self = Pool::new();
        self.usage = Usage {
            reserved_high,
            used_high,
            ..self.usage
        };
    }
}

#[cfg(test)]
mod tests;
