//! The session's memory and launches as far as the engine knows them.
//!
//! Owns the state that events change and commands hold; every policy reads the same
//! world. Decides nothing.

mod anchors;
pub(crate) mod block;
pub(crate) mod chance;
pub(crate) mod churn;
mod foretell;
mod habit;
pub(crate) mod history;
mod index;
pub(crate) mod memory;
mod moves;
pub(crate) mod orders;
mod phase;
pub(crate) mod progress;
mod proof;
mod runs;
#[cfg(test)]
pub(crate) mod tests;
mod uses;
pub(crate) mod visits;
pub(crate) mod window;

use std::collections::BTreeSet;

use crate::breaker::start_bytes;
use crate::decision::{Decisions, Fate, Step};
use crate::event::{Cause, Direction};
use crate::policy::budget_reserve;
use crate::profile::ON_HOST;
use crate::run_ahead::Left;
use crate::stats::Stats;
use crate::units::{BLOCK_BYTES, BlockId, Micros, Range, Seq, StreamId, TICKS};
use crate::usefulness::{Share, Usefulness};
use crate::{Config, Without};
use block::{Blocks, Extent, Residency};
use history::History;
use memory::Memory;
use orders::Orders;
use progress::Progress;
use visits::Visits;
use window::Window;

/// Next use of a block that none is known of.
pub(crate) const NEVER: u64 = u64::MAX;

/// All that policies read.
#[derive(Debug)]
pub(crate) struct World {
    pub memory: Memory,
    pub blocks: Blocks,
    pub window: Window,
    pub history: History,
    pub orders: Orders,
    pub usefulness: Usefulness,
    /// The same of blocks that were populated while no cycle was known: what launches are
    /// taken to write then is a guess.
    pub guessed: Usefulness,
    /// What was decided, and why.
    pub decisions: Decisions,
    /// The time of the last event or decision.
    pub now: Micros,
    /// Events of faults or migrations come: what did not fault was there.
    pub probes: bool,
    /// The driver tells of bytes that leave at our request.
    pub evictions_told: bool,
    /// Last position that may be running now.
    pub running_end: u64,
    /// Prefetched blocks that came while a launch that may run uses them: it may have waited.
    pub awaited: u64,
    /// Last moment that may come before an eviction decided now takes effect.
    pub guard_end: u64,
    /// How far the oldest launch that is not over has come, as far as known.
    pub progress: Progress,
    /// Mean time that a launch takes.
    pub launch_us: f64,
    /// Microseconds since the device passed a launch, or got one when it had none.
    pub since_us: u64,
    /// Frames that managed memory may fill.
    pub capacity: u64,
    /// Only the engine keeps the capacity.
    pub enforce: bool,
    /// Faults and first touches leave content on the host.
    pub remote: bool,
    /// The driver evicted, or more is known to be used than fits, or where nobody would tell, all
    /// frames were taken.
    pub was_full: bool,
    /// What left the device of late.
    pub left: Left,
    /// Since which launch all that is used fits, as far as known.
    pub fits_since: Option<u64>,
    /// Bytes of blocks that launches used there.
    pub remote_bytes: u64,
    /// Content of single allocations may stay on the host, by command.
    pub use_on_host: bool,
    /// How much of its blocks is used each time faults bring them.
    pub visits: Visits,
    /// The device faulted while no launch was under way, and none has passed since: what
    /// runs began before anyone told.
    pub runs_unknown: bool,
    /// Refused commands' blocks, by the launch after which they are asked again.
    refusals: BTreeSet<(u64, u32)>,
    /// Parts of the policy that are left out.
    pub without: Without,
    pub discard: bool,
    inflight_bytes: u64,
    block_limit: usize,
    /// Whether launches use what their arguments are taken to mean.
    pub proofs: proof::Proofs,
}

impl World {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            memory: Memory::default(),
            blocks: Blocks::default(),
            window: Window::new(config.history_launches.min(1 << 16)),
            history: History::new(config.history_launches),
            orders: Orders::new(config.link_bytes_per_us),
            usefulness: Usefulness::default(),
            guessed: Usefulness::default(),
            decisions: Decisions::new(config.decisions),
            now: Micros(0),
            probes: false,
            evictions_told: false,
            running_end: 0,
            awaited: 0,
            guard_end: 0,
            progress: Progress::default(),
            launch_us: 0.0,
            since_us: 0,
            capacity: config.capacity.0 / BLOCK_BYTES,
            enforce: config.enforce,
            remote: config.remote,
            was_full: false,
            left: Left::default(),
            fits_since: None,
            remote_bytes: 0,
            use_on_host: config.use_on_host,
            visits: Visits::default(),
            runs_unknown: false,
            refusals: BTreeSet::new(),
            without: config.without,
            discard: config.discard && !config.without.discard,
            inflight_bytes: config.inflight_bytes.0,
            block_limit: config.blocks,
            proofs: proof::Proofs::default(),
        }
    }

    /// Managed memory was obtained.
    pub(crate) fn alloc(&mut self, range: Range, pool: bool, place: Residency, stats: &mut Stats) {
        let room = (self.block_limit - self.blocks.len().min(self.block_limit)) as u64;
        let tracked = range.bytes.min(room.saturating_mul(BLOCK_BYTES));
        if !range.address.is_multiple_of(BLOCK_BYTES) || !self.memory.insert(range, pool, tracked) {
            stats.blocks_untracked += range.bytes / BLOCK_BYTES;
            return;
        }
        stats.blocks_untracked += (range.bytes - tracked) / BLOCK_BYTES;
        let born = self.history.head();
        for id in (Range {
            address: range.address,
            bytes: tracked,
        })
        .blocks()
        {
            let slot = self.blocks.insert(id, pool, born);
            self.decisions.forget(slot);
            if place != Residency::Unpopulated {
                self.blocks.set(slot, place);
            }
        }
    }

    /// A part of new memory is on the device, or will be before anything uses it.
    pub(crate) fn placed(&mut self, range: Range) {
        for id in self.memory.tracked(range).blocks() {
            if let Some(slot) = self.blocks.find(id)
                && self.blocks.get(slot).residency == Residency::Unpopulated
            {
                self.blocks.set(slot, Residency::Device);
            }
        }
    }

    /// Managed memory was given back.
    pub(crate) fn free(&mut self, address: u64) {
        let Some(allocation) = self.memory.remove(address) else {
            return;
        };
        self.visits.forget(address, allocation.name);
        let tracked = Range {
            address,
            bytes: allocation.tracked_bytes,
        };
        for id in tracked.blocks() {
            if let Some(block) = self.blocks.remove(id)
                && (block.unproven || block.undecided > 0)
            {
                let times = u64::from(block.unproven) + u64::from(block.undecided);
                self.usefulness.wasted(BLOCK_BYTES * times);
            }
        }
    }

    /// A part of a pool segment was handed out.
    pub(crate) fn begin_part(&mut self, range: Range) {
        if !self.memory.begin_part(range) {
            return;
        }
        if let Some(segment) = self.memory.allocation_at(range.address) {
            self.visits.renewed(segment.range.address, range);
        }
        let born = self.history.head();
        for id in self.memory.tracked(range).blocks() {
            let Some(slot) = self.blocks.find(id) else {
                continue;
            };
            let block = self.blocks.get_mut(slot);
            block.lives = block.lives.saturating_add(1);
            block.last_used = block.last_used.max(born);
        }
    }

    /// A part was taken back; its content dies when the stream gets there.
    pub(crate) fn end_part(&mut self, address: u64, stream: StreamId, seq: Seq) {
        let Some(part) = self.memory.end_part(address) else {
            return;
        };
        let range = self.memory.tracked(part.range);
        self.window.push_death(stream, seq, range);
        let newest = self.history.head();
        for id in range.blocks() {
            let Some(slot) = self.blocks.find(id) else {
                continue;
            };
            self.blocks.get_mut(slot).end_part(newest);
        }
    }

    /// The stream got there.
    pub(crate) fn bury(&mut self, range: Range) {
        for id in range.blocks() {
            let Some(slot) = self.blocks.find(id) else {
                continue;
            };
            let block = self.blocks.get_mut(slot);
            if !block.pool {
                continue;
            }
            if block.pass_end() {
                block.refused = false;
                self.blocks.set_content(slot, false);
            }
        }
    }

    /// The driver moved a part of a block, or put it on the device.
    pub(crate) fn moved(&mut self, range: Range, direction: Direction, cause: Cause) {
        self.probes = true;
        self.evictions_told |= direction == Direction::Out && cause == Cause::Call;
        if direction == Direction::Out && cause == Cause::Eviction {
            self.was_full = true;
            self.fits_since = None;
        }
        for id in range.blocks().take(1 << 12) {
            let Some(slot) = self.blocks.find(id) else {
                continue;
            };
            let overlap =
                range.end().min(id.address() + BLOCK_BYTES) - range.address.max(id.address());
            if direction == Direction::In && cause == Cause::Call {
                self.fetched(slot);
            }
            if direction == Direction::In && matches!(cause, Cause::Fault | Cause::Density) {
                self.visited(slot, overlap);
            }
            let block = self.blocks.get_mut(slot);
            let residency = block.residency;
            if direction == Direction::Out {
                let useless = block.pool && !block.content;
                self.left.count(overlap, useless, self.capacity);
            }
            match direction {
                Direction::In => {
                    let there = u64::from(block.device_bytes) + overlap;
                    block.device_bytes = there.min(BLOCK_BYTES) as u32;
                    match residency {
                        Residency::Device if cause != Cause::Call => {
                            self.blocks.migrated_again(slot);
                        }
                        Residency::MovingIn | Residency::Device => {}
                        // The news of an earlier prefetch, late.
                        Residency::MovingOut if cause == Cause::Call => {}
                        _ => self.blocks.set(slot, Residency::Device),
                    }
                }
                Direction::Out => {
                    block.device_bytes = block.device_bytes.saturating_sub(overlap as u32);
                    let empty = block.device_bytes == 0;
                    let unproven = block.unproven;
                    block.left_seen = true;
                    let leaves = match cause {
                        Cause::Eviction => true,
                        Cause::Call if block.doubted => true,
                        // Our own prefetch may still be on its way in.
                        _ => empty && residency == Residency::Device,
                    };
                    if leaves && residency != Residency::MovingOut {
                        block.unproven = false;
                        if std::mem::take(&mut block.guessed) {
                            self.guessed.wasted(BLOCK_BYTES);
                        }
                        if unproven {
                            self.came_of(slot);
                        }
                        self.blocks.set(slot, Residency::Host);
                    }
                }
            }
        }
    }

    /// A command moves a block, or what is missing of it, to the device.
    fn fetched(&mut self, slot: u32) {
        let block = self.blocks.get(slot);
        let Some(allocation) = self.memory.allocation_at(block.id.address()) else {
            return;
        };
        let address = allocation.range.address;
        self.visits.fetched(address);
        // What faults would have brought of the rest of the block is not known.
        if block.device_bytes > 0
            && !block.stays
            && let Some((name, _)) = self.memory.name_at(block.id.address())
        {
            self.visits.not_brought(name, block.device_bytes.into());
        }
    }

    /// A fault moves bytes of a block to the device.
    fn visited(&mut self, slot: u32, bytes: u64) {
        let block = self.blocks.get(slot);
        let arrives = !block.holds_frame();
        if let Some((name, _)) = self.memory.name_at(block.id.address()) {
            self.visits.brought(name, bytes, arrives);
        }
        if let Some(allocation) = self.memory.allocation_at(block.id.address()) {
            let (address, floor) = (allocation.range.address, self.floor());
            if self.use_on_host && block.left > 0 {
                self.visits.came(address, (bytes, arrives), floor);
                // A launch that needs more than the link brings in time faults on what is yet to come.
                if !self.running(slot) || block.surprised / TICKS == floor {
                    self.visits.came_unforetold(bytes);
                }
            }
        }
    }

    /// Launches use little of what faults bring of the block's allocation.
    pub(crate) fn is_thin(&self, slot: u32) -> bool {
        let object = self.memory.name_at(self.blocks.get(slot).id.address());
        object.is_some_and(|(name, _)| self.visits.is_thin(name))
    }

    /// A block that the driver's fault path is about to serve.
    pub(crate) fn fault(&mut self, id: BlockId) -> Option<u32> {
        self.probes = true;
        let slot = self.blocks.find(id)?;
        let block = self.blocks.get_mut(slot);
        if block.residency == Residency::MovingIn && block.unproven {
            block.unproven = false;
            self.usefulness.late(BLOCK_BYTES);
            self.note(slot, Step::Came(Fate::Late));
        }
        // It left before it was used.
        let block = self.blocks.get_mut(slot);
        if block.presumed && !block.holds_frame() {
            block.presumed = false;
            self.usefulness.mistaken(BLOCK_BYTES);
            self.note(slot, Step::Came(Fate::Wasted));
        }
        let block = self.blocks.get_mut(slot);
        let undecided = u64::from(std::mem::take(&mut block.undecided));
        if undecided > 0 {
            self.note(slot, Step::Came(Fate::Wasted));
        }
        self.usefulness.wasted(BLOCK_BYTES * undecided);
        let block = self.blocks.get(slot);
        if self.remote || block.stays {
            self.mapped_on_host(slot);
        } else if block.residency == Residency::Host
            && self.was_full
            && let Some(allocation) = self.memory.allocation_at(id.address())
        {
            self.visits.missed(allocation.range.address);
        }
        Some(slot)
    }

    /// Names of the allocations whose content stays on the host, or stayed to the end.
    pub(crate) fn used_on_host(&self) -> Vec<u64> {
        let named = |address| Some(self.memory.allocation_name(address)?.0);
        let staying = self.visits.staying().filter_map(named);
        let mut names: Vec<u64> = staying.chain(self.visits.stayed()).collect();
        names.sort_unstable();
        names.dedup();
        names.truncate(ON_HOST);
        names
    }

    /// The CPU touched a block. What is on the device comes back, and that is told of.
    pub(crate) fn touched_by_host(&mut self, id: BlockId) {
        let Some(slot) = self.blocks.find(id) else {
            return;
        };
        if self.blocks.get(slot).residency == Residency::Unpopulated {
            self.blocks.set(slot, Residency::Host);
            self.blocks.set_content(slot, true);
        }
    }

    /// The device accesses a block that is not there: it does so on the host from now on.
    pub(crate) fn mapped_on_host(&mut self, slot: u32) {
        if self.blocks.get(slot).residency == Residency::Unpopulated {
            self.blocks.set(slot, Residency::Host);
        }
        let block = self.blocks.get_mut(slot);
        block.mapped = block.residency == Residency::Host;
    }

    /// A launch that used the block is over. It needed such a share of what it was taken to
    /// use.
    pub(crate) fn used(&mut self, slot: u32, position: u64, needed: Share) {
        self.blocks.set_content(slot, true);
        let probes = self.probes;
        let block = self.blocks.get_mut(slot);
        let remote = self.remote || block.stays;
        block.last_used = position;
        block.presumed = false;
        (block.refused, block.refusals) = (false, 0);
        let guessed = std::mem::take(&mut block.guessed);
        let undecided = u64::from(std::mem::take(&mut block.undecided));
        let (residency, proven) = (block.residency, std::mem::take(&mut block.unproven));
        if guessed {
            self.guessed.came_to(BLOCK_BYTES, needed, false);
        }
        if undecided > 0 {
            // It did not fault since it left; where nobody would tell, that says nothing.
            if probes {
                self.usefulness
                    .came_to(BLOCK_BYTES * undecided, needed, false);
                if needed == Share::ALL {
                    self.note(slot, Step::Came(Fate::Useful));
                }
            } else {
                self.usefulness.wasted(BLOCK_BYTES * undecided);
                self.note(slot, Step::Came(Fate::Wasted));
            }
        }
        if proven && needed == Share::ALL {
            let late = residency == Residency::MovingIn;
            let fate = if late { Fate::Late } else { Fate::Useful };
            self.note(slot, Step::Came(fate));
        }
        match residency {
            Residency::MovingIn if proven => self.usefulness.came_to(BLOCK_BYTES, needed, true),
            _ if proven => self.usefulness.came_to(BLOCK_BYTES, needed, false),
            Residency::Unpopulated | Residency::Host if remote => {
                if !probes {
                    self.mapped_on_host(slot);
                }
                if self.blocks.get(slot).mapped {
                    self.remote_bytes += BLOCK_BYTES;
                }
            }
            Residency::Unpopulated | Residency::Host if !probes => {
                self.blocks.set(slot, Residency::Device);
            }
            _ => {}
        }
    }

    /// The launch that runs is taken to have gone past a block that it uses, as it does again and
    /// again: if it was prefetched, that helped, unless a fault tells better. Its end may be far:
    /// a launch that uses more than fits would be out of trust before.
    pub(crate) fn gone_past(&mut self, slot: u32) {
        let (begun, moment) = (self.floor() * TICKS, self.moment());
        let repeats = self.history.lag().is_some();
        let block = self.blocks.get_mut(slot);
        let there = block.residency == Residency::Device && block.unproven;
        let used = || {
            let used = block.uses.at_or_after(begun);
            used.is_some_and(|used| used < moment)
        };
        if repeats && there && used() {
            (block.unproven, block.presumed) = (false, true);
            self.usefulness.useful(BLOCK_BYTES);
            self.note(slot, Step::Came(Fate::Useful));
        } else if repeats && there && block.surprised > 0 {
            // It came because launches used it by chance at the same place of the cycle before.
            // Whether one did so again nobody saw.
            block.unproven = false;
            self.usefulness.taken_back(BLOCK_BYTES);
        }
    }

    /// A block that was prefetched leaves the device and no launch that used it is over. If
    /// one that uses it runs, faults and its end will tell what it came to.
    fn came_of(&mut self, slot: u32) {
        let begun = self.floor() * TICKS;
        let used = self.blocks.get(slot).uses.at_or_after(begun);
        if used.is_some_and(|used| used < (self.running_end + 1) * TICKS) {
            let block = self.blocks.get_mut(slot);
            match block.undecided.checked_add(1) {
                Some(times) => block.undecided = times,
                None => self.usefulness.wasted(BLOCK_BYTES),
            }
        } else {
            self.usefulness.wasted(BLOCK_BYTES);
            self.note(slot, Step::Came(Fate::Wasted));
        }
    }

    /// A command on a block was refused: it is left alone until the launch that runs now is
    /// over, and longer each time that this happens before it is known to be used.
    pub(crate) fn refuse(&mut self, slot: u32) {
        let until = self.floor() + (1 << self.blocks.get(slot).refusals.min(10));
        let block = self.blocks.get_mut(slot);
        block.refused = true;
        block.refusals = block.refusals.saturating_add(1);
        if self.refusals.len() < self.blocks.len() {
            self.refusals.insert((until, slot));
        }
    }

    /// What was refused before launches that are over may be asked again.
    pub(crate) fn forget_refusals(&mut self) {
        let floor = self.floor();
        while let Some(&(until, slot)) = self.refusals.first()
            && until <= floor
        {
            self.refusals.pop_first();
            let block = self.blocks.get(slot);
            if block.refused && !block.gone {
                self.blocks.get_mut(slot).refused = false;
            }
        }
    }

    /// Blocks that may be populated for queued launches: any number once a cycle is known. Until
    /// then what launches write is a guess, for which as much is populated as was right so far,
    /// and a start.
    pub(crate) fn births_trusted(&self) -> u64 {
        if self.history.lag().is_some() || self.without.feedback {
            return u64::MAX;
        }
        let open = self.guessed.undecided_bytes() + self.guessed.wasted_bytes;
        let trusted = start_bytes(self.capacity) + self.guessed.helpful_bytes();
        trusted.saturating_sub(open) / BLOCK_BYTES
    }

    /// Frames that are free now, not counting what evictions under way will free.
    pub(crate) fn free_frames(&self, capacity: u64) -> i64 {
        capacity as i64 - self.blocks.frames() as i64
    }

    /// Everything is on the device and fits there, and nothing is on its way: whatever runs
    /// next, there is nothing to move.
    pub(crate) fn calm(&self) -> bool {
        let blocks = self.blocks.len() as u64;
        // A budget is kept with something to spare.
        let spare = if self.enforce {
            budget_reserve(self.capacity) as u64
        } else {
            0
        };
        blocks + spare <= self.capacity
            && self.blocks.frames() == blocks
            && self.blocks.moving_out() == 0
            && self.orders.oldest().is_none()
    }

    /// Blocks of an extent list that exist.
    pub(crate) fn slots<'a>(&'a self, set: &'a [Extent]) -> impl Iterator<Item = u32> + 'a {
        set.iter()
            .flat_map(|extent| self.blocks.within(extent.first, extent.end()))
            .map(|(_, slot)| slot)
    }
}
