//! Which blocks a launch uses, from its pointer arguments, corrected by faults.
//!
//! A pointer into a pool part means the rest of the part; a function that is given pointers
//! into the middle of large parts (tiles) means no more than up to the next such place,
//! until a fault shows otherwise. A pointer into a plain allocation means all up to the next
//! address that was ever passed, or to the end; where nothing bounds it, the first guess is
//! four bytes for each thread, doubled by each fault beyond it (sixteen where no faults are
//! seen, four again if that is too much). Where a framework hands memory out unseen, an address
//! may have been passed while another tensor lay there, and cuts this one: how far launches were
//! seen to go holds for all of their shape, wherever they point. And where arguments of a shape
//! point to one place after another, the last one, which no other pointer ends, goes no further
//! than they do, and none goes further than one did that lies in a small allocation. Where a
//! launch left alone all that lay behind some place, its arguments end there (`ends`).
//! Allocations that lie side by side are one where launches were seen to use them so
//! (`world::runs`). An argument of more than half the device is taken as data-dependent: neither
//! fetched ahead nor kept, until launches of the same function were seen to touch all of their
//! arguments, or all of that one.

mod correction;
mod ends;
mod lessons;
mod parts;
mod tiles;

use std::sync::Arc;

use self::correction::{Correction, Place};
use self::ends::{Ends, NOWHERE};
pub(crate) use self::parts::Learned;
use self::parts::Parts;
use crate::hash::{Map, mix};
use crate::scatter::Scatter;
use crate::units::{BLOCK_BYTES, Range};
use crate::world::block::{Extent, Set, normalize};
use crate::world::memory::{Memory, Object};
use crate::{Launch, identity::UNKNOWN};

/// Bytes that one thread is taken to touch in an object whose extent is unknown.
const BYTES_PER_THREAD: u64 = 4;
/// The same where no fault would tell that it was too little.
const BLIND_BYTES_PER_THREAD: u64 = 16;
/// Where threads touch more than this, the object is taken as used to its end.
const MOST_BYTES_PER_THREAD: u64 = 64;
/// A launch that uses more than one in so many of the device's blocks is followed on its way
/// through them; where it is known how far its arguments go, one that uses more blocks than this.
/// Whoever guesses where they end does not know what it has passed.
const SWEEP_SHARE: u64 = 8;
const SWEEP_BLOCKS: u64 = 128;

/// How an argument points into plain allocations.
#[derive(Debug)]
struct Habit {
    /// Allocation and offset of the last one.
    name: u64,
    offset: u64,
    /// It was given pointers to several places of one allocation: tiles, which the next
    /// pointer ends. What always points to the same place is not ended by those of others.
    moves: bool,
    /// Bytes that it was seen to reach, beyond what pointers of others say.
    reach: u64,
}

/// How much of an argument that is larger than fits a function's launches use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Regular {
    /// All of it.
    All,
    /// A part of it, in one launch at least; so many in a row since then used nearly all.
    Parts(u8),
}

/// What a launch uses.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// Blocks that it uses.
    pub set: Set,
    /// Memory of which it uses an unknown part.
    pub loose: Set,
    /// Of a launch that uses many blocks: its arguments' blocks, argument by argument. It goes
    /// through all of them side by side.
    pub sweep: Option<Set>,
}

impl Access {
    fn extents(&self) -> usize {
        let sweep = self.sweep.as_ref().map_or(0, |sweep| sweep.len());
        self.set.len() + self.loose.len() + sweep
    }
}

/// What was learned of launches' accesses.
#[derive(Debug)]
pub(crate) struct Accesses {
    capacity_blocks: u64,
    limit: usize,
    /// Bytes per thread of arguments that reach beyond the first guess, by function and
    /// word.
    wide: Map<(u32, u32), u64>,
    /// How arguments point into plain allocations, by function and word.
    habits: Map<(u32, u32), Habit>,
    /// By [`shape`], how far behind their pointers launches were seen to go, in bytes.
    reaches: Map<u64, u64>,
    /// By [`shape`] of those that point to one place after another, the most bytes from such a
    /// pointer to the next one.
    gaps: Map<u64, u64>,
    /// By [`shape`], the fewest bytes from such a pointer to the end of its plain allocation, or
    /// [`NOWHERE`].
    rests: Map<u64, u64>,
    /// By [`shape`], the last launch that used blocks of a part beyond the next pointer, and how
    /// many.
    strays: Map<u64, (u64, u32)>,
    ends: Ends,
    parts: Parts,
    corrections: Map<u32, Correction>,
    /// Functions that were given pointers into the middle of pool parts: the others mean
    /// parts whole.
    tiled: Map<u32, ()>,
    /// Arguments, by execution ID and word, that were seen to reach beyond the next landmark.
    beyond: Map<(u32, u32), ()>,
    /// Which arguments are used here and there.
    pub scatter: Scatter,
    /// Whether launches of a function use all of arguments that are larger than fits, and of one
    /// of them, by function and word.
    regular: Map<u32, Regular>,
    regular_words: Map<(u32, u32), Regular>,
    /// The last set of each execution ID: equal ones are shared.
    shared: Map<u32, Access>,
    /// Extents of all of them, and places of all corrections.
    extents: usize,
    places: usize,
}

impl Accesses {
    pub(crate) fn new(capacity_blocks: u64, limit: usize) -> Self {
        Self {
            capacity_blocks,
            limit,
            wide: Map::default(),
            habits: Map::default(),
            reaches: Map::default(),
            gaps: Map::default(),
            rests: Map::default(),
            strays: Map::default(),
            ends: Ends::default(),
            parts: Parts::default(),
            corrections: Map::default(),
            tiled: Map::default(),
            beyond: Map::default(),
            scatter: Scatter::new(limit * 4),
            regular: Map::default(),
            regular_words: Map::default(),
            shared: Map::default(),
            extents: 0,
            places: 0,
        }
    }

    pub(crate) fn set_capacity(&mut self, blocks: u64) {
        self.capacity_blocks = blocks;
    }

    /// What a launch uses. `novel`: it was never seen before. `probes`: faults will tell
    /// where the guess is too small.
    pub(crate) fn launch(
        &mut self,
        (exec, novel): (u32, bool),
        launch: &Launch<'_>,
        objects: &[Option<Object>],
        memory: &Memory,
        probes: bool,
    ) -> Access {
        let grid = launch.grid.iter().map(|&n| u64::from(n));
        let block = launch.block.iter().map(|&n| u64::from(n));
        let threads = grid.chain(block).fold(1, u64::saturating_mul);
        let geometry = geometry(launch);
        let mut ranges = Vec::with_capacity(objects.len());
        let mut least = Vec::with_capacity(objects.len());
        let mut regular = Vec::with_capacity(objects.len());
        let mut scattered = Vec::new();
        let mut exact = true;
        for (index, object) in objects.iter().enumerate() {
            let Some(object) = object else { continue };
            let key = (launch.function.0, index as u32);
            let (mut range, mut small) = (object.extent, object.extent);
            if object.part && object.offset > 0 && self.tiled.len() < self.limit {
                self.tiled.insert(launch.function.0, ());
            }
            let whole = object.part && !self.tiled.contains_key(&launch.function.0);
            if whole || self.beyond.contains_key(&(exec, index as u32)) {
                (range.bytes, small.bytes) = (object.rest_bytes, object.rest_bytes);
            }
            let (moves, reach) = self.habit(key, object);
            let shape = shape(geometry, index as u32);
            let seen = self.reaches.get(&shape).copied().unwrap_or(0);
            let reach = reach.max(seen).min(object.rest_bytes);
            if object.bounded && reach > range.bytes {
                (range.bytes, small.bytes) = (reach, reach);
            }
            let learned = self.wide.get(&key).copied();
            let first = if probes {
                BYTES_PER_THREAD
            } else {
                BLIND_BYTES_PER_THREAD
            };
            let each = learned.unwrap_or(first);
            if !object.bounded && each <= MOST_BYTES_PER_THREAD {
                let reach = |each| threads.saturating_mul(each).max(BLOCK_BYTES);
                range.bytes = range.bytes.min(reach(each));
                small.bytes = range.bytes.min(reach(learned.unwrap_or(BYTES_PER_THREAD)));
            }
            if !object.part && !object.bounded {
                let seen = seen.min(object.rest_bytes);
                (range.bytes, small.bytes) = (range.bytes.max(seen), small.bytes.max(seen));
            }
            if moves
                && range == object.extent
                && let Some(gap) = self.gap(shape, object)
            {
                range.bytes = range.bytes.min(gap.max(seen));
                small.bytes = small.bytes.min(range.bytes);
            }
            if !object.part {
                let rest = self.rest(shape, object).max(seen);
                // Where much more lies there than that, the geometry may be one for all sizes.
                if rest >= range.bytes / 2 {
                    range.bytes = range.bytes.min(rest);
                    small.bytes = small.bytes.min(rest);
                }
            }
            if !object.part
                && let Some(end) = self.ends.of(shape)
            {
                (range.bytes, small.bytes) = (range.bytes.min(end), small.bytes.min(end));
            }
            if self.scatter.is_scattered(key, novel, moves) {
                // What it points to is used at least.
                scattered.push(range);
                range.bytes = range.bytes.min(1);
                small = range;
            }
            let large = range.bytes > SWEEP_BLOCKS / 8 * BLOCK_BYTES;
            let all = object.offset == 0 && range.bytes == object.rest_bytes;
            let alone = || all && !memory.is_cut(range.address);
            exact &= !large || object.part || alone();
            ranges.push(range);
            least.push(small);
            regular.push(self.is_regular(key));
        }
        let blocks: u64 = ranges.iter().map(|range| range.bytes / BLOCK_BYTES).sum();
        let guess = if blocks > self.capacity_blocks / 2 {
            &least
        } else {
            &ranges
        };
        self.access(exec, (guess, &scattered), (Some(&regular), exact), memory)
    }

    /// Launches use all of what this word of this function points to, though it is larger than fits.
    fn is_regular(&self, (function, word): (u32, u32)) -> bool {
        self.regular.get(&function) == Some(&Regular::All)
            || self.regular_words.get(&(function, word)) == Some(&Regular::All)
    }

    /// Whether this argument was given pointers to several places of one object, and else how
    /// far behind a pointer into a plain allocation it is known to go, though pointers further
    /// on were passed; 0: not beyond them.
    fn habit(&mut self, key: (u32, u32), object: &Object) -> (bool, u64) {
        if self.habits.len() >= self.limit * 4 && !self.habits.contains_key(&key) {
            return (true, 0);
        }
        let habit = self.habits.entry(key).or_insert(Habit {
            name: object.name,
            offset: object.offset,
            moves: false,
            reach: 0,
        });
        habit.moves |= habit.name == object.name && habit.offset != object.offset;
        (habit.name, habit.offset) = (object.name, object.offset);
        (habit.moves, if habit.moves { 0 } else { habit.reach })
    }

    /// How far an argument of this shape goes that no landmark ends, though it moves: as far as
    /// those that one does, if there were any.
    fn gap(&mut self, shape: u64, object: &Object) -> Option<u64> {
        if !object.followed {
            return self.gaps.get(&shape).copied();
        }
        if self.gaps.len() < self.limit * 4 || self.gaps.contains_key(&shape) {
            let gap = self.gaps.entry(shape).or_default();
            *gap = object.extent.bytes.max(*gap);
        }
        None
    }

    /// How far an argument of this shape goes at most, as launches of one shape are given tensors of
    /// one size and none goes beyond its allocation.
    fn rest(&mut self, shape: u64, object: &Object) -> u64 {
        if self.rests.len() >= self.limit * 4 && !self.rests.contains_key(&shape) {
            return NOWHERE;
        }
        let rest = self.rests.entry(shape).or_insert(object.rest_bytes);
        if *rest != NOWHERE {
            *rest = object.rest_bytes.min(*rest);
        }
        *rest
    }

    /// What a launch uses, as far as faults have told.
    pub(crate) fn faulted(&mut self, exec: u32, memory: &Memory) -> Access {
        self.access(exec, (&[], &[]), (None, false), memory)
    }

    /// What a copy or any launch with known ranges uses, and of others some. `regular`: which of
    /// them wholly, however large they are; none: all. `exact`: the ranges are no guesses.
    pub(crate) fn access(
        &mut self,
        exec: u32,
        (ranges, scattered): (&[Range], &[Range]),
        (regular, exact): (Option<&[bool]>, bool),
        memory: &Memory,
    ) -> Access {
        let mut loose: Vec<Extent> = scattered
            .iter()
            .map(|&range| extent_of(range, memory))
            .collect();
        let (mut strict, mut whole) = (Vec::with_capacity(ranges.len()), Vec::new());
        let mut parts = Vec::with_capacity(ranges.len());
        for (index, &range) in ranges.iter().enumerate() {
            let extent = extent_of(range, memory);
            let regular = regular.is_none_or(|regular| regular[index]);
            if !regular && extent.count > self.capacity_blocks / 2 {
                loose.push(extent);
                continue;
            }
            parts.push(extent);
            if regular {
                whole.push(extent);
            } else {
                strict.push(extent);
            }
        }
        let known = self.parts.of(exec, &loose, memory);
        parts.extend_from_slice(&known);
        whole.extend(known);
        let blocks = |extents: &[Extent]| extents.iter().map(|extent| extent.count).sum::<u64>();
        let mut sweep = self
            .is_followed(blocks(&parts), exact)
            .then(|| Set::from(parts));
        normalize(&mut whole);
        normalize(&mut strict);
        // Together they must leave room to work in: the largest goes first.
        let mut total = blocks(&whole) + blocks(&strict);
        while total > self.capacity_blocks * 3 / 4 {
            let largest = (0..strict.len()).max_by_key(|&index| strict[index].count);
            let Some(index) = largest else { break };
            let extent = strict.remove(index);
            total -= extent.count;
            loose.push(extent);
            sweep = None;
        }
        strict.append(&mut whole);
        normalize(&mut strict);
        if let Some(correction) = self.corrections.get(&exec) {
            correction.apply(&mut strict, memory);
        }
        normalize(&mut loose);
        self.share(exec, strict, loose, sweep)
    }

    /// Whether a launch that uses so many blocks is followed on its way through them. `exact`:
    /// it is known where they end.
    fn is_followed(&self, blocks: u64, exact: bool) -> bool {
        let share = self.capacity_blocks / SWEEP_SHARE;
        blocks
            > if exact {
                share.min(SWEEP_BLOCKS)
            } else {
                share
            }
    }

    fn share(
        &mut self,
        exec: u32,
        strict: Vec<Extent>,
        loose: Vec<Extent>,
        sweep: Option<Set>,
    ) -> Access {
        if let Some(last) = self.shared.get(&exec)
            && *last.set == *strict
            && *last.loose == *loose
            && last.sweep == sweep
        {
            return last.clone();
        }
        let access = Access {
            set: Arc::from(strict),
            loose: Arc::from(loose),
            sweep,
        };
        if exec != UNKNOWN && (self.shared.len() < self.limit || self.shared.contains_key(&exec)) {
            self.extents += access.extents();
            if let Some(old) = self.shared.insert(exec, access.clone()) {
                self.extents -= old.extents();
            }
        }
        access
    }

    /// Estimated size of the tables in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let flags = self.tiled.capacity() + self.regular.capacity();
        let flags = flags + 2 * self.regular_words.capacity();
        let reaches = self.reaches.capacity() + self.gaps.capacity() + self.rests.capacity();
        let flags = flags + 2 * (self.beyond.capacity() + reaches);
        let flags = flags + 3 * self.strays.capacity();
        let habits = self.habits.capacity() * size_of::<((u32, u32), Habit)>();
        let wide = habits + self.wide.capacity() * size_of::<((u32, u32), u64)>();
        let corrections = self.corrections.capacity() * size_of::<(u32, Correction)>();
        let shared = self.shared.capacity() * size_of::<(u32, Access)>();
        let lists = self.places * size_of::<Place>() + self.extents * size_of::<Extent>();
        (flags * 8 + wide + corrections + shared + lists + self.ends.bytes() + self.parts.bytes())
            as u64
    }
}

/// A pointer argument of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Argument {
    pub function: u32,
    pub word: u32,
    /// See [`shape`].
    pub shape: u64,
    pub address: u64,
}

impl Argument {
    /// Number of the block that it points into.
    pub(crate) fn block(&self) -> u64 {
        self.address / BLOCK_BYTES
    }
}

/// What launches have in common that are given tensors of the same sizes, as far as can be told:
/// the function and its geometry.
pub(crate) fn geometry(launch: &Launch<'_>) -> u64 {
    let grid = launch.grid.iter().map(|&n| u64::from(n));
    let block = launch.block.iter().map(|&n| u64::from(n));
    grid.chain(block)
        .fold(mix(4, u64::from(launch.function.0)), mix)
}

/// The same of one of their arguments.
pub(crate) fn shape(geometry: u64, word: u32) -> u64 {
    mix(geometry, u64::from(word))
}

/// The tracked blocks of a range that lies in one allocation.
fn extent_of(range: Range, memory: &Memory) -> Extent {
    let tracked = memory.tracked(range);
    let first = tracked.address / BLOCK_BYTES;
    let end = if tracked.bytes == 0 {
        first
    } else {
        tracked.end().div_ceil(BLOCK_BYTES)
    };
    Extent {
        first,
        count: end - first,
    }
}

#[cfg(test)]
mod tests;
