//! One block of managed memory and the table of all of them.
//!
//! Owns where each block's content lies, whether it is dead, and when launches use it.
//! Knows nothing of allocations or of what a policy wants.

use std::sync::Arc;

use super::chance::{Chances, Kind};
use super::habit::{Habit, Trust};
use super::index::Index;
use super::uses::Uses;
use crate::table::reserve_one;
use crate::units::{BLOCK_BYTES, BlockId, TICKS};

/// Most moments of uses kept of one block; a block used more often in one cycle counts as
/// needed at once.
const USES: usize = 1024;
/// The same while the uses of all blocks together take more than [`USES_BYTES`].
const LEAST_USES: usize = 64;
const USES_BYTES: usize = 12 << 20;
/// While they take less than this, uses from before the place that the present repeats are kept:
/// the next place may be a longer way back, as where every third turn is another.
const SPARE_BYTES: usize = 8 << 20;
/// Shortest cycle, in launches, of which several are looked ahead.
const LEAST_CYCLE: u64 = 64;

/// Where a block's content lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Residency {
    /// Nowhere: never touched, or discarded.
    Unpopulated,
    /// On the host alone.
    Host,
    /// On the device, at least in part.
    Device,
    /// A prefetch or a populate of ours is under way.
    MovingIn,
    /// An eviction or a discard of ours is under way.
    MovingOut,
}

/// Consecutive blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub(crate) struct Extent {
    /// Number of the first block.
    pub first: u64,
    /// How many.
    pub count: u64,
}

impl Extent {
    pub(crate) fn end(self) -> u64 {
        self.first.saturating_add(self.count)
    }

    pub(crate) fn contains(self, id: BlockId) -> bool {
        id.0 >= self.first && id.0 < self.end()
    }
}

/// Blocks that a launch uses: sorted extents that do not touch each other.
pub(crate) type Set = Arc<[Extent]>;

/// Sorts extents and joins those that touch.
pub(crate) fn normalize(extents: &mut Vec<Extent>) {
    extents.retain(|extent| extent.count > 0);
    extents.sort_unstable();
    let mut kept = 0;
    for index in 0..extents.len() {
        let extent = extents[index];
        if kept > 0 && extents[kept - 1].end() >= extent.first {
            let end = extents[kept - 1].end().max(extent.end());
            extents[kept - 1].count = end - extents[kept - 1].first;
        } else {
            extents[kept] = extent;
            kept += 1;
        }
    }
    extents.truncate(kept);
}

/// A block.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub id: BlockId,
    pub residency: Residency,
    /// Bytes known to lie on the device; a guess of the whole block without probes.
    pub device_bytes: u32,
    /// Belongs to a pool segment: lives only where parts of it are handed out.
    pub pool: bool,
    /// Parts handed out that overlap it, or 1 where it is no pool memory.
    pub lives: u32,
    /// Parts that were taken back and that the device may still use: they count in `lives`.
    ends: u32,
    /// After which of these ends nothing of it was handed out: the lowest bit is the next end.
    /// What was handed out since then begins without content.
    breaks: u64,
    /// Lower half of the position of the newest launch when the next of those came, and launches
    /// from there to the one after it; 0: none, or not known.
    death: u32,
    death_gap: u16,
    /// Something was written since it was born.
    pub content: bool,
    /// The order in which it came to the device: the driver's list of migrated blocks.
    pub migrated: u64,
    /// Position of the last launch that used it and is over.
    pub last_used: u64,
    /// Position of the launch that ran when it last left the device.
    pub left: u64,
    /// When launches use it.
    pub uses: Uses,
    /// When it last faulted although no launch was expected to use it; 0: never.
    pub surprised: u64,
    /// How often in a row it did so again after whole cycles.
    pub again: u8,
    /// Launches from the time before, if they were fewer than a cycle; else 0.
    pub sooner: u32,
    /// The launch was known to use some of the memory around it.
    pub by_chance: bool,
    /// What for.
    pub kind: Kind,
    /// How often, and how far apart, launches use it.
    pub habit: Habit,
    /// It left the device since then, and was not missed yet.
    pub parted: bool,
    /// It was missed later than a cycle after it had left, the last time.
    pub fleeting: bool,
    /// How often in a row it was missed sooner than others stay that are used by chance.
    pub popular: u8,
    /// Came by a prefetch and was not used since.
    pub unproven: bool,
    /// It came by a prefetch, and the launch that runs is taken to have used it since.
    pub presumed: bool,
    /// Populated for a launch while no cycle was known, and not used since.
    pub guessed: bool,
    /// How often it came by a prefetch and left while a launch that uses it ran: whether that
    /// had used it by then shows only at its end.
    pub undecided: u8,
    /// A command on it was refused: it is left alone until it is used again, or for some
    /// launches (`World::refuse`).
    pub refused: bool,
    /// How often in a row that came, while it was not known to be used.
    pub refusals: u8,
    /// The driver told of bytes that left since its eviction was ordered.
    pub left_seen: bool,
    /// Its eviction is over, and nobody saw it leave.
    pub doubted: bool,
    /// Launches access it on the host without a fault.
    pub mapped: bool,
    /// Where it lies on the host, launches use it there ([`crate::Operation::UseOnHost`]).
    pub stays: bool,
    /// Stands in the list of changed blocks.
    pub changed: bool,
    /// Its allocation is gone.
    pub gone: bool,
}

/// There are many: 177,000 for a program of 370 GB.
const _: () = assert!(size_of::<Block>() <= 152);

impl Block {
    /// No byte of it is handed out: its content may be dropped.
    pub(crate) fn dead(&self) -> bool {
        self.pool && self.lives == 0
    }

    /// All of it was given back, and nothing of it handed out again since: its frame is free when
    /// it dies.
    pub(crate) fn frees(&self) -> bool {
        self.pool && self.lives > 0 && self.ends == self.lives && self.breaks.count_ones() == 1
    }

    /// It takes a frame, and faults alone filled a part of it.
    pub(crate) fn is_partly_there(&self) -> bool {
        self.residency == Residency::Device && u64::from(self.device_bytes) < BLOCK_BYTES
    }

    /// A part of it was taken back, which the device may still use.
    pub(crate) fn end_part(&mut self, newest: u64) {
        let bit = 1_u64.checked_shl(self.ends).unwrap_or(0);
        self.ends += 1;
        if self.ends == self.lives {
            // Of more than two, those in between are not known.
            match self.breaks.count_ones() {
                0 if bit > 0 => (self.death, self.death_gap) = (newest as u32, 0),
                1 if self.death > 0 => {
                    let gap = (newest as u32).wrapping_sub(self.death);
                    self.death_gap = u16::try_from(gap).unwrap_or(0);
                }
                _ => {}
            }
            self.breaks |= bit;
        }
    }

    /// The device has passed the oldest end of a part. True where the content went with it.
    pub(crate) fn pass_end(&mut self) -> bool {
        self.lives = self.lives.saturating_sub(1);
        self.ends = self.ends.saturating_sub(1);
        let broke = self.breaks & 1 == 1;
        self.breaks >>= 1;
        if broke {
            let next = self.death.wrapping_add(self.death_gap.into());
            self.death = if self.death_gap > 0 { next } else { 0 };
            self.death_gap = 0;
        }
        broke || self.lives == 0
    }

    /// The last moment at which its content is of use, if it was given back by the launch `newest`;
    /// what was handed out since then begins without any.
    pub(crate) fn dies(&self, newest: u64) -> Option<u64> {
        let since = (newest as u32).wrapping_sub(self.death);
        (self.death > 0).then(|| newest.saturating_sub(since.into()) * TICKS + TICKS - 1)
    }

    /// It faulted while the launch at `position` ran, which nothing foretold.
    pub(crate) fn surprise(&mut self, position: u64, lag: Option<u64>) {
        /// Launches by which a cycle may be longer or shorter.
        const SLACK: u64 = 8;
        if self.surprised / TICKS == position {
            return;
        }
        let again = lag.filter(|_| self.surprised > 0).is_some_and(|lag| {
            let passed = position.saturating_sub(self.surprised / TICKS);
            // In those that it was foretold for it was fetched, or else it would have faulted.
            let most = if lag < LEAST_CYCLE {
                1
            } else {
                self.cycles_foretold(lag) + 1
            };
            (1..=most).any(|cycles| passed.abs_diff(cycles * lag) <= SLACK)
        });
        let passed = position.saturating_sub(self.surprised / TICKS);
        let within = |lag: &u64| self.surprised > 0 && passed < *lag;
        self.sooner = lag.filter(within).map_or(0, |_| passed as u32);
        self.again = if again {
            self.again.saturating_add(1)
        } else {
            0
        };
        self.surprised = position * TICKS;
    }

    /// For how many cycles of `lag` launches after it faulted unforetold it is taken to be used
    /// again. What is fetched in time does not fault, so that nothing tells whether it still is:
    /// the more often that was right, the later it is left alone to see. In a short cycle any
    /// launch is near a multiple of it.
    pub(crate) fn cycles_foretold(&self, lag: u64) -> u64 {
        /// Doublings at most.
        const MOST: u8 = 3;
        if lag < LEAST_CYCLE {
            return 1;
        }
        1 << self.again.min(MOST)
    }

    /// Takes a frame of device memory.
    pub(crate) fn holds_frame(&self) -> bool {
        matches!(
            self.residency,
            Residency::Device | Residency::MovingIn | Residency::MovingOut
        )
    }
}

/// All blocks, by number and by the dense index that policies use.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    slots: Vec<Block>,
    free: Vec<u32>,
    retired: Vec<u32>,
    index: Index,
    /// Bytes that the blocks' uses take.
    use_bytes: usize,
    changed: Vec<u32>,
    frames: u64,
    moving_out: u64,
    /// Blocks with content, wherever it lies.
    live: u64,
    /// The most blocks that there were at a time.
    most: u64,
    /// What becomes of blocks that are used by chance.
    pub chances: Chances,
    /// How far predictions came true.
    pub trust: Trust,
    clock: u64,
    running: u64,
}

impl Blocks {
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// Frames of device memory in use, moving ones included.
    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    /// Of them, those that evictions or discards under way will free.
    pub(crate) fn moving_out(&self) -> u64 {
        self.moving_out
    }

    /// Blocks with content that is not dead, wherever it lies: the frames that would be in
    /// use if everything fitted.
    pub(crate) fn live(&self) -> u64 {
        self.live
    }

    /// How many more have had a place at some time than have content now: as many may get some, where
    /// the program obtains no more memory than it has had.
    pub(crate) fn without_content(&self) -> u64 {
        self.most.saturating_sub(self.live)
    }

    /// The launch at this position runs now.
    pub(crate) fn set_running(&mut self, position: u64) {
        self.running = position;
    }

    /// A block was written, or its content died.
    pub(crate) fn set_content(&mut self, slot: u32, content: bool) {
        let block = &mut self.slots[slot as usize];
        let had = std::mem::replace(&mut block.content, content);
        self.live = self.live + u64::from(content) - u64::from(had);
    }

    pub(crate) fn find(&self, id: BlockId) -> Option<u32> {
        self.index.get(id.0)
    }

    /// Slots of consecutive blocks, from number `first` up to before `end`, that exist.
    pub(crate) fn within(&self, first: u64, end: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.index.within(first, end)
    }

    /// A launch will use a block at this moment ([`Uses::push`]). It repeats the one `lag`
    /// launches before, if that is known.
    pub(crate) fn will_use(&mut self, slot: u32, moment: u64, stale: u64, lag: Option<u64>) {
        let most = self.most_uses();
        let stale = if self.use_bytes < SPARE_BYTES {
            0
        } else {
            stale
        };
        let block = &self.slots[slot as usize];
        let queued = |last: u64| (self.running + 1..moment / TICKS).contains(&(last / TICKS));
        // Where another launch that waits uses it before, its next use is that one's.
        if !block.uses.last().is_some_and(queued) || block.frees() {
            self.mark(slot);
        }
        let Block { habit, uses, .. } = &mut self.slots[slot as usize];
        habit.observe(uses, moment / TICKS, lag, &mut self.trust);
        let before = uses.bytes();
        uses.push(moment, stale, most);
        self.use_bytes = self.use_bytes + uses.bytes() - before;
    }

    /// A queued launch will use a block at this moment, though that was not known when it was
    /// told of.
    pub(crate) fn will_use_after_all(&mut self, slot: u32, moment: u64) {
        self.mark(slot);
        let most = self.most_uses();
        let uses = &mut self.slots[slot as usize].uses;
        let before = uses.bytes();
        uses.insert(moment, most);
        self.use_bytes = self.use_bytes + uses.bytes() - before;
    }

    /// A queued launch will not use a block when it was thought to.
    pub(crate) fn will_not_use(&mut self, slot: u32, position: u64) {
        self.mark(slot);
        self.slots[slot as usize].uses.remove(position);
    }

    /// Most moments kept of one block now.
    fn most_uses(&self) -> usize {
        if self.use_bytes < USES_BYTES {
            USES
        } else {
            LEAST_USES
        }
    }

    pub(crate) fn get(&self, slot: u32) -> &Block {
        &self.slots[slot as usize]
    }

    /// For changes other than of residency; the block counts as changed.
    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut Block {
        self.mark(slot);
        &mut self.slots[slot as usize]
    }

    /// Adds a block that does not exist yet.
    pub(crate) fn insert(&mut self, id: BlockId, pool: bool, last_used: u64) -> u32 {
        let block = Block {
            id,
            residency: Residency::Unpopulated,
            device_bytes: 0,
            pool,
            lives: u32::from(!pool),
            ends: 0,
            breaks: 0,
            death: 0,
            death_gap: 0,
            content: false,
            migrated: 0,
            last_used,
            left: 0,
            uses: Uses::default(),
            surprised: 0,
            again: 0,
            sooner: 0,
            by_chance: false,
            kind: Kind::default(),
            habit: Habit::default(),
            parted: false,
            fleeting: false,
            popular: 0,
            unproven: false,
            presumed: false,
            guessed: false,
            undecided: 0,
            refused: false,
            refusals: 0,
            left_seen: false,
            doubted: false,
            mapped: false,
            stays: false,
            changed: false,
            gone: false,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                let gone = std::mem::replace(&mut self.slots[slot as usize], block);
                self.use_bytes -= gone.uses.bytes();
                slot
            }
            None => {
                reserve_one(&mut self.slots);
                self.slots.push(block);
                (self.slots.len() - 1) as u32
            }
        };
        self.index.insert(id.0, slot);
        self.most = self.most.max(self.index.len() as u64);
        self.mark(slot);
        slot
    }

    /// Takes a block out. Its slot stays, marked gone, until [`Blocks::recycle`].
    pub(crate) fn remove(&mut self, id: BlockId) -> Option<&Block> {
        let slot = self.index.remove(id.0)?;
        self.set(slot, Residency::Unpopulated);
        self.set_content(slot, false);
        self.slots[slot as usize].gone = true;
        self.retired.push(slot);
        Some(&self.slots[slot as usize])
    }

    /// Moves a block from one residency to another.
    pub(crate) fn set(&mut self, slot: u32, residency: Residency) {
        self.mark(slot);
        let block = &mut self.slots[slot as usize];
        let (held, out) = (block.holds_frame(), block.residency == Residency::MovingOut);
        if !matches!(block.residency, Residency::Device | Residency::MovingIn)
            && matches!(residency, Residency::Device | Residency::MovingIn)
        {
            self.clock += 1;
            block.migrated = self.clock;
        }
        block.residency = residency;
        block.doubted = false;
        block.mapped = false;
        match residency {
            Residency::Unpopulated | Residency::Host => block.device_bytes = 0,
            Residency::Device if block.device_bytes == 0 => block.device_bytes = BLOCK_BYTES as u32,
            _ => {}
        }
        let (holds, leaves) = (block.holds_frame(), residency == Residency::MovingOut);
        if held && !holds {
            block.left = self.running;
            if block.by_chance && residency == Residency::Host {
                block.parted = true;
                self.chances.left(block.kind);
                if block.popular == 0 {
                    let since = block.surprised / TICKS;
                    self.chances.stayed(block.left.saturating_sub(since));
                }
            }
        }
        self.frames = self.frames + u64::from(holds) - u64::from(held);
        self.moving_out = self.moving_out + u64::from(leaves) - u64::from(out);
    }

    /// A block faulted while the launch at `position` ran: what that tells of it, if it is used by
    /// chance and had left.
    pub(crate) fn came_back(&mut self, slot: u32, position: u64, lag: Option<u64>) {
        let block = &mut self.slots[slot as usize];
        if !std::mem::take(&mut block.parted) {
            return;
        }
        let away = position.saturating_sub(block.left);
        block.popular = self.chances.popular(block.popular, away);
        if let Some(lag) = lag {
            block.fleeting = away > lag;
            if !block.fleeting {
                self.chances.missed(block.kind, away);
            }
        }
    }

    /// Puts a resident block at the tail of the driver's list again; its new place there.
    pub(crate) fn migrated_again(&mut self, slot: u32) -> u64 {
        self.mark(slot);
        self.clock += 1;
        self.slots[slot as usize].migrated = self.clock;
        self.clock
    }

    /// The next block that changed since it was last asked for.
    pub(crate) fn next_changed(&mut self) -> Option<u32> {
        let slot = self.changed.pop()?;
        self.slots[slot as usize].changed = false;
        Some(slot)
    }

    /// Frees the slots of blocks that are gone. Only after all changes were taken.
    pub(crate) fn recycle(&mut self) {
        if self.changed.is_empty() {
            self.free.append(&mut self.retired);
        }
    }

    /// Everything counts as changed: predictions moved.
    pub(crate) fn mark_all(&mut self) {
        for slot in 0..self.slots.len() as u32 {
            if !self.slots[slot as usize].gone {
                self.mark(slot);
            }
        }
    }

    pub(crate) fn mark(&mut self, slot: u32) {
        let block = &mut self.slots[slot as usize];
        if !block.changed {
            block.changed = true;
            reserve_one(&mut self.changed);
            self.changed.push(slot);
        }
    }

    /// Estimated size of the tables in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let lists = self.free.capacity() + self.retired.capacity() + self.changed.capacity();
        let blocks = self.slots.capacity() * size_of::<Block>();
        (blocks + self.chances.bytes() as usize + self.use_bytes + lists * size_of::<u32>()) as u64
            + self.index.bytes()
    }
}
