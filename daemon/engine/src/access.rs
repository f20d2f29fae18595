//! Which blocks a launch uses, from its pointer arguments, corrected by faults.
//!
//! A pointer into a pool part means the rest of the part; a function that is given pointers
//! into the middle of large parts (tiles) means no more than up to the next such place,
//! until a fault shows otherwise. A pointer into a plain
//! allocation means all up to the next address that was ever passed, or to the end; where
//! nothing bounds it, the first guess is four bytes for each thread, doubled by each fault
//! beyond it (sixteen where no faults are seen, four again if that is too much). An argument of more than half the device is taken as data-dependent: neither
//! fetched ahead nor kept, until launches of the same function were seen to touch all of it.

use std::sync::Arc;

use crate::hash::Map;
use crate::profile::{Corrected, Profile};
use crate::scatter::Scatter;
use crate::units::{BLOCK_BYTES, BlockId, Range};
use crate::world::block::{Extent, Set, normalize};
use crate::world::memory::{Memory, Object};
use crate::world::window::Pending;
use crate::{Launch, identity::UNKNOWN};

/// Bytes that one thread is taken to touch in an object whose extent is unknown.
const BYTES_PER_THREAD: u64 = 4;
/// The same where no fault would tell that it was too little.
const BLIND_BYTES_PER_THREAD: u64 = 16;
/// Where threads touch more than this, the object is taken as used to its end.
const MOST_BYTES_PER_THREAD: u64 = 64;
/// Corrections kept of one execution ID; one that needs more is data-dependent.
const CORRECTIONS: usize = 256;
/// A launch that uses more than one in this many of the device's blocks is followed on its
/// way through them.
const SWEEP_SHARE: u64 = 8;
/// Absent blocks from which it can be told whether a launch uses all of its arguments.
const OBSERVED_BLOCKS: u64 = 16;
/// Times that a block must be left alone before it is no longer expected.
const STRIKES: u8 = 2;

/// A block by the object it lies in.
type Place = (u64, u64);

#[derive(Debug, Default)]
struct Correction {
    /// Touched, though not declared: parts of objects, in blocks from their start.
    extra: Vec<(u64, Extent)>,
    /// Declared, though left alone: how often in a row.
    absent: Map<Place, u8>,
}

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

/// What a launch uses.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// Blocks that it uses.
    pub set: Set,
    /// Memory of which it uses an unknown part.
    pub loose: Set,
    /// Of a launch that uses a large part of the device: its arguments' blocks, argument
    /// by argument. It goes through all of them side by side.
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
    corrections: Map<u32, Correction>,
    /// Functions that were given pointers into the middle of pool parts: the others mean
    /// parts whole.
    tiled: Map<u32, ()>,
    /// Execution IDs that were seen to reach beyond the next landmark.
    beyond: Map<u32, ()>,
    /// Which arguments are used here and there.
    pub scatter: Scatter,
    /// Whether launches of a function use all of arguments that are larger than fits.
    regular: Map<u32, bool>,
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
            corrections: Map::default(),
            tiled: Map::default(),
            beyond: Map::default(),
            scatter: Scatter::new(limit * 4),
            regular: Map::default(),
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
        let beyond = self.beyond.contains_key(&exec);
        let mut ranges = Vec::with_capacity(objects.len());
        let mut least = Vec::with_capacity(objects.len());
        let mut scattered = Vec::new();
        for (index, object) in objects.iter().enumerate() {
            let Some(object) = object else { continue };
            let key = (launch.function.0, index as u32);
            let (mut range, mut small) = (object.extent, object.extent);
            if object.part && object.offset > 0 && self.tiled.len() < self.limit {
                self.tiled.insert(launch.function.0, ());
            }
            let whole = object.part && !self.tiled.contains_key(&launch.function.0);
            if beyond || whole {
                (range.bytes, small.bytes) = (object.rest_bytes, object.rest_bytes);
            }
            if !object.part {
                let reach = self.habit(key, object).min(object.rest_bytes);
                if object.bounded && reach > range.bytes {
                    (range.bytes, small.bytes) = (reach, reach);
                }
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
            if self.scatter.is_scattered(key.0, key.1, novel) {
                // What it points to is used at least.
                scattered.push(range);
                range.bytes = range.bytes.min(1);
                small = range;
            }
            ranges.push(range);
            least.push(small);
        }
        let blocks: u64 = ranges.iter().map(|range| range.bytes / BLOCK_BYTES).sum();
        let guess = if blocks > self.capacity_blocks / 2 {
            &least
        } else {
            &ranges
        };
        let regular = self.regular.get(&launch.function.0) == Some(&true);
        self.access(exec, (guess, &scattered), regular, memory)
    }

    /// How far behind a pointer into a plain allocation this argument is known to go, though
    /// pointers further on were passed; 0: not beyond them.
    fn habit(&mut self, key: (u32, u32), object: &Object) -> u64 {
        if self.habits.len() >= self.limit * 4 && !self.habits.contains_key(&key) {
            return 0;
        }
        let habit = self.habits.entry(key).or_insert(Habit {
            name: object.name,
            offset: object.offset,
            moves: false,
            reach: 0,
        });
        habit.moves |= habit.name == object.name && habit.offset != object.offset;
        (habit.name, habit.offset) = (object.name, object.offset);
        if habit.moves { 0 } else { habit.reach }
    }

    /// What a launch uses, as far as faults have told.
    pub(crate) fn faulted(&mut self, exec: u32, memory: &Memory) -> Access {
        self.access(exec, (&[], &[]), true, memory)
    }

    /// What a copy or any launch with known ranges uses, and of others some. `regular`: all
    /// of them.
    pub(crate) fn access(
        &mut self,
        exec: u32,
        (ranges, scattered): (&[Range], &[Range]),
        regular: bool,
        memory: &Memory,
    ) -> Access {
        let mut strict: Vec<Extent> = ranges
            .iter()
            .map(|&range| extent_of(range, memory))
            .collect();
        let mut loose: Vec<Extent> = scattered
            .iter()
            .map(|&range| extent_of(range, memory))
            .collect();
        strict.retain(|extent| {
            let fits = regular || extent.count <= self.capacity_blocks / 2;
            if !fits {
                loose.push(*extent);
            }
            fits
        });
        let whole: u64 = strict.iter().map(|extent| extent.count).sum();
        let sweep = whole > self.capacity_blocks / SWEEP_SHARE;
        let sweep = sweep.then(|| Set::from(strict.clone()));
        normalize(&mut strict);
        // Together they must leave room to work in: the largest goes first.
        let mut total: u64 = strict.iter().map(|extent| extent.count).sum();
        let mut sweep = sweep;
        while !regular && total > self.capacity_blocks * 3 / 4 {
            let largest = (0..strict.len()).max_by_key(|&index| strict[index].count);
            let Some(index) = largest else { break };
            let extent = strict.remove(index);
            total -= extent.count;
            loose.push(extent);
            sweep = None;
        }
        if let Some(correction) = self.corrections.get(&exec) {
            correction.apply(&mut strict, memory);
        }
        normalize(&mut loose);
        self.share(exec, strict, loose, sweep)
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

    /// Of `absent` blocks in the loose memory of a launch of `function`, it touched so many.
    pub(crate) fn observe(&mut self, function: u32, absent: u64, touched: u64) {
        let full = self.regular.len() >= self.limit && !self.regular.contains_key(&function);
        if absent < OBSERVED_BLOCKS || full {
            return;
        }
        if touched * 2 < absent {
            self.regular.insert(function, false);
        } else if touched * 8 >= absent * 7 {
            self.regular.entry(function).or_insert(true);
        }
    }

    /// A block faulted while `launch` ran, though it was not expected. `words` are the
    /// pointer arguments of the launch, by word.
    pub(crate) fn missed(
        &mut self,
        launch: &Pending,
        block: BlockId,
        arguments: &[Argument],
        memory: &Memory,
    ) {
        let place = memory
            .name_at(block.address())
            .map(|(name, offset)| (name, offset / BLOCK_BYTES));
        // One that was declared and then taken out says nothing of extents.
        let taken_out = place
            .and_then(|place| self.corrections.get(&launch.exec)?.absent.get(&place))
            .is_some_and(|&strikes| strikes >= STRIKES);
        let before = arguments
            .iter()
            .filter(|argument| argument.address / BLOCK_BYTES <= block.0)
            .max_by_key(|argument| argument.address);
        if let Some(argument) = before
            && taken_out
        {
            self.scatter.came_back(argument.function, argument.word);
        }
        if let Some(argument) = before
            && !taken_out
            && self.wide.len() < self.limit * 4
        {
            let key = (argument.function, argument.word);
            let each = self.wide.entry(key).or_insert(BYTES_PER_THREAD);
            *each = (*each * 2).min(MOST_BYTES_PER_THREAD * 2);
        }
        if let Some(argument) = before
            && !taken_out
            && memory.is_cut(argument.address)
            && let Some(habit) = self.habits.get_mut(&(argument.function, argument.word))
        {
            let needed = block.address() + BLOCK_BYTES - argument.address;
            if habit.reach < needed {
                // What goes on this far goes on: twice as much the next time.
                habit.reach = needed.max(habit.reach.saturating_mul(2));
            }
        }
        if before.is_some_and(|argument| memory.has_landmarks(argument.address))
            && !taken_out
            && launch.exec != UNKNOWN
            && self.beyond.len() < self.limit
        {
            self.beyond.insert(launch.exec, ());
        }
        let Some(place) = place else {
            return;
        };
        if launch.exec == UNKNOWN
            || (self.corrections.len() >= self.limit
                && !self.corrections.contains_key(&launch.exec))
        {
            return;
        }
        let correction = self.corrections.entry(launch.exec).or_default();
        let before = correction.places();
        correction.absent.remove(&place);
        correction.add(place);
        self.places = self.places + correction.places() - before;
    }

    /// A block was expected by a launch that is over, was not on the device and did not
    /// fault: the launch left it alone.
    pub(crate) fn left_alone(&mut self, exec: u32, block: BlockId, memory: &Memory) {
        let Some((name, offset)) = memory.name_at(block.address()) else {
            return;
        };
        if exec == UNKNOWN
            || (self.corrections.len() >= self.limit && !self.corrections.contains_key(&exec))
        {
            return;
        }
        let place = (name, offset / BLOCK_BYTES);
        let correction = self.corrections.entry(exec).or_default();
        let before = correction.places();
        correction.take_out(place);
        if correction.absent.len() < CORRECTIONS * 16 || correction.absent.contains_key(&place) {
            let strikes = correction.absent.entry(place).or_default();
            *strikes = strikes.saturating_add(1);
        }
        self.places = self.places + correction.places() - before;
    }

    /// The last access of each execution ID.
    pub(crate) fn sets(&self) -> impl Iterator<Item = (u32, &Access)> {
        self.shared.iter().map(|(&exec, access)| (exec, access))
    }

    /// Puts what was learned of accesses into a profile.
    pub(crate) fn learned(&self, profile: &mut Profile) {
        profile.wide = self.wide.iter().map(|(&key, &each)| (key, each)).collect();
        profile.wide.sort_unstable();
        profile.tiled = self.tiled.keys().copied().collect();
        profile.tiled.sort_unstable();
        profile.beyond = self.beyond.keys().copied().collect();
        profile.beyond.sort_unstable();
        profile.regular = self.regular.iter().map(|(&f, &all)| (f, all)).collect();
        profile.regular.sort_unstable();
        for (&exec, correction) in &self.corrections {
            let extra = correction.extra.iter();
            let extra = extra.map(|&(name, extent)| (name, extent.first, extent.count, 0));
            let absent = correction.absent.iter();
            let absent = absent.map(|(&(name, block), &strikes)| (name, block, 1, strikes));
            let mut places: Vec<_> = extra.chain(absent).collect();
            places.sort_unstable();
            profile.corrected.push(Corrected { exec, places });
        }
        profile.corrected.sort_unstable_by_key(|c| c.exec);
    }

    /// Begins with what a profile tells.
    pub(crate) fn restore(&mut self, profile: &Profile) {
        self.wide.extend(profile.wide.iter().copied());
        self.tiled.extend(profile.tiled.iter().map(|&f| (f, ())));
        self.beyond.extend(profile.beyond.iter().map(|&e| (e, ())));
        self.regular.extend(profile.regular.iter().copied());
        for corrected in profile.corrected.iter().take(self.limit) {
            let correction = self.corrections.entry(corrected.exec).or_default();
            let before = correction.places();
            for &(name, first, count, strikes) in corrected.places.iter().take(CORRECTIONS * 16) {
                if strikes > 0 {
                    correction.absent.insert((name, first), strikes);
                } else if correction.extra.len() < CORRECTIONS {
                    correction.extra.push((name, Extent { first, count }));
                }
            }
            self.places = self.places + correction.places() - before;
        }
    }

    /// Estimated size of the tables in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let flags = self.tiled.capacity() + self.beyond.capacity() + self.regular.capacity();
        let habits = self.habits.capacity() * size_of::<((u32, u32), Habit)>();
        let wide = habits + self.wide.capacity() * size_of::<((u32, u32), u64)>();
        let corrections = self.corrections.capacity() * size_of::<(u32, Correction)>();
        let shared = self.shared.capacity() * size_of::<(u32, Access)>();
        let lists = self.places * size_of::<Place>() + self.extents * size_of::<Extent>();
        (flags * 8 + wide + corrections + shared + lists) as u64
    }
}

/// A pointer argument of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Argument {
    pub function: u32,
    pub word: u32,
    pub address: u64,
}

impl Correction {
    /// What it takes at most, in places: a table's are not all in use.
    fn places(&self) -> usize {
        2 * self.extra.capacity() + 2 * self.absent.capacity()
    }

    /// Joins a block to the part that it continues, else begins another if there is room.
    fn add(&mut self, (name, block): Place) {
        for (of, extent) in &mut self.extra {
            if *of != name || block + 1 < extent.first || block > extent.end() {
                continue;
            }
            let end = extent.end().max(block + 1);
            extent.first = extent.first.min(block);
            extent.count = end - extent.first;
            return;
        }
        if self.extra.len() < CORRECTIONS {
            let (first, count) = (block, 1);
            self.extra.push((name, Extent { first, count }));
        }
    }

    fn take_out(&mut self, (name, block): Place) {
        let holds = |&(of, extent): &(u64, Extent)| of == name && extent.contains(BlockId(block));
        while let Some(index) = self.extra.iter().position(holds) {
            let (_, extent) = self.extra.swap_remove(index);
            for (first, end) in [(extent.first, block), (block + 1, extent.end())] {
                let count = end - first;
                if count > 0 && self.extra.len() < CORRECTIONS {
                    self.extra.push((name, Extent { first, count }));
                }
            }
        }
    }

    fn apply(&self, strict: &mut Vec<Extent>, memory: &Memory) {
        for &(name, extent) in &self.extra {
            if let Some(address) = memory.address_of(name) {
                let first = (address / BLOCK_BYTES).saturating_add(extent.first);
                strict.push(Extent { first, ..extent });
            }
        }
        normalize(strict);
        if self.absent.values().all(|&strikes| strikes < STRIKES) {
            return;
        }
        let whole = std::mem::take(strict);
        for number in whole.iter().flat_map(|extent| extent.first..extent.end()) {
            let place = memory.name_at(number * BLOCK_BYTES);
            let place = place.map(|(name, offset)| (name, offset / BLOCK_BYTES));
            let strikes = place
                .and_then(|place| self.absent.get(&place))
                .copied()
                .unwrap_or(0);
            if strikes < STRIKES {
                strict.push(Extent {
                    first: number,
                    count: 1,
                });
            }
        }
        normalize(strict);
    }
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
