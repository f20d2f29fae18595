//! The session's memory and launches as far as the engine knows them.
//!
//! Owns the state that events change and commands hold; every policy reads the same
//! world. Decides nothing.

pub(crate) mod block;
pub(crate) mod history;
mod index;
pub(crate) mod memory;
pub(crate) mod orders;
pub(crate) mod progress;
pub(crate) mod window;

use crate::command::{Command, Operation, Queue};
use crate::event::{Cause, Direction};
use crate::policy::budget_reserve;
use crate::stats::Stats;
use crate::units::{BLOCK_BYTES, BlockId, Micros, Range, Seq, StreamId, TICKS};
use crate::{Config, usefulness::Usefulness};
use block::{Blocks, Extent, Residency};
use history::History;
use memory::Memory;
use orders::{Order, Orders};
use progress::Progress;
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
    /// Events of faults or migrations come: what did not fault was there.
    pub probes: bool,
    /// Last position that may be running now.
    pub running_end: u64,
    /// Last moment that may come before an eviction decided now takes effect.
    pub guard_end: u64,
    /// How far the oldest launch that is not over has come, as far as known.
    pub progress: Progress,
    /// Frames that managed memory may fill.
    pub capacity: u64,
    /// Only the engine keeps the capacity.
    pub enforce: bool,
    /// Faults and first touches leave content on the host.
    pub remote: bool,
    /// Bytes of blocks that launches used there.
    pub remote_bytes: u64,
    discard: bool,
    inflight_bytes: u64,
    block_limit: usize,
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
            probes: false,
            running_end: 0,
            guard_end: 0,
            progress: Progress::default(),
            capacity: config.capacity.0 / BLOCK_BYTES,
            enforce: config.enforce,
            remote: config.remote,
            remote_bytes: 0,
            discard: config.discard,
            inflight_bytes: config.inflight_bytes.0,
            block_limit: config.blocks,
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
        let tracked = Range {
            address,
            bytes: allocation.tracked_bytes,
        };
        for id in tracked.blocks() {
            if let Some(block) = self.blocks.remove(id)
                && block.unproven
            {
                self.usefulness.wasted(BLOCK_BYTES);
            }
        }
    }

    /// A part of a pool segment was handed out.
    pub(crate) fn begin_part(&mut self, range: Range) {
        if !self.memory.begin_part(range) {
            return;
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
        if let Some(part) = self.memory.end_part(address) {
            let range = self.memory.tracked(part.range);
            self.window.push_death(stream, seq, range);
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
            block.lives = block.lives.saturating_sub(1);
            if block.lives == 0 {
                block.refused = false;
                self.blocks.set_content(slot, false);
            }
        }
    }

    /// The driver moved a part of a block, or put it on the device.
    pub(crate) fn moved(&mut self, range: Range, direction: Direction, cause: Cause) {
        self.probes = true;
        for id in range.blocks().take(1 << 12) {
            let Some(slot) = self.blocks.find(id) else {
                continue;
            };
            let overlap =
                range.end().min(id.address() + BLOCK_BYTES) - range.address.max(id.address());
            let block = self.blocks.get_mut(slot);
            let residency = block.residency;
            match direction {
                Direction::In => {
                    block.device_bytes = (block.device_bytes + overlap).min(BLOCK_BYTES);
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
                    block.device_bytes = block.device_bytes.saturating_sub(overlap);
                    let empty = block.device_bytes == 0;
                    let unproven = block.unproven;
                    let leaves = match cause {
                        Cause::Eviction => true,
                        // Our own prefetch may still be on its way in.
                        _ => empty && residency == Residency::Device,
                    };
                    if leaves && residency != Residency::MovingOut {
                        block.unproven = false;
                        if unproven {
                            self.came_of(slot);
                        }
                        self.blocks.set(slot, Residency::Host);
                    }
                }
            }
        }
    }

    /// A block that the driver's fault path is about to serve.
    pub(crate) fn fault(&mut self, id: BlockId) -> Option<u32> {
        self.probes = true;
        let slot = self.blocks.find(id)?;
        let block = self.blocks.get_mut(slot);
        if block.residency == Residency::MovingIn && block.unproven {
            block.unproven = false;
            self.usefulness.late(BLOCK_BYTES);
        }
        if self.remote {
            self.mapped_on_host(slot);
        }
        Some(slot)
    }

    /// The device accesses a block that is not there: it does so on the host from now on.
    pub(crate) fn mapped_on_host(&mut self, slot: u32) {
        if self.blocks.get(slot).residency == Residency::Unpopulated {
            self.blocks.set(slot, Residency::Host);
        }
        let block = self.blocks.get_mut(slot);
        block.mapped = block.residency == Residency::Host;
    }

    /// A launch that used the block is over.
    pub(crate) fn used(&mut self, slot: u32, position: u64) {
        let (probes, remote) = (self.probes, self.remote);
        self.blocks.set_content(slot, true);
        let block = self.blocks.get_mut(slot);
        block.last_used = position;
        block.refused = false;
        let (residency, proven) = (block.residency, std::mem::take(&mut block.unproven));
        match residency {
            Residency::MovingIn if proven => self.usefulness.late(BLOCK_BYTES),
            _ if proven => self.usefulness.useful(BLOCK_BYTES),
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

    /// A block may be used by what runs now.
    pub(crate) fn running(&self, slot: u32) -> bool {
        self.used_until(slot, self.running_end * TICKS + TICKS - 1)
    }

    /// A block may be used before an eviction would be over.
    pub(crate) fn guarded(&self, slot: u32) -> bool {
        self.used_until(slot, self.guard_end)
    }

    fn used_until(&self, slot: u32, end: u64) -> bool {
        let next = self.blocks.get(slot).uses.at_or_after(self.moment());
        next.is_some_and(|next| next <= end)
    }

    /// Position of the oldest launch that is not over.
    pub(crate) fn floor(&self) -> u64 {
        self.window
            .front()
            .map_or(self.history.head() + 1, |launch| launch.position)
    }

    /// The moment that the device has reached.
    pub(crate) fn moment(&self) -> u64 {
        self.floor() * TICKS + self.progress.ticks()
    }

    /// A block that was prefetched leaves the device and no launch that used it is over: of
    /// use if the running launch has gone past it.
    fn came_of(&mut self, slot: u32) {
        let begun = self.floor() * TICKS;
        let used = self.blocks.get(slot).uses.at_or_after(begun);
        if used.is_some_and(|used| used < self.moment()) {
            self.usefulness.useful(BLOCK_BYTES);
        } else {
            self.usefulness.wasted(BLOCK_BYTES);
        }
    }

    /// How many more blocks will have content at some launch before `until` than have now,
    /// as far as the learned cycle tells: frames that births take, less those that deaths
    /// give back. At least 0.
    pub(crate) fn growth(&self, until: u64) -> i64 {
        let floor = self.floor();
        let Some(lag) = self.history.lag().filter(|&lag| floor > lag) else {
            return 0;
        };
        let end = until.min(floor + lag);
        if end <= floor {
            return 0;
        }
        let (now, peak) = self.history.live_within(floor - lag, end - lag);
        i64::from(peak) - i64::from(now)
    }

    /// Moment of the next launch that uses a block, queued or predicted.
    pub(crate) fn next_use(&self, slot: u32) -> u64 {
        let block = self.blocks.get(slot);
        let uses = &block.uses;
        // What runs accesses such a block where it is: a fetch would come too late for it.
        let from = if block.mapped {
            (self.floor() + 1) * TICKS
        } else {
            self.moment()
        };
        if let Some(queued) = uses.at_or_after(from) {
            return queued;
        }
        let Some(lag) = self.history.lag() else {
            return NEVER;
        };
        let matched = self.history.head() - lag;
        uses.at_or_after((matched + 1) * TICKS)
            .map_or(NEVER, |past| past + lag * TICKS)
    }

    /// Bytes that may be under way in one direction: a fault waits behind no more.
    pub(crate) fn inflight_limit(&self, queue: Queue) -> u64 {
        const MOST_US: f64 = 6_000.0;
        let in_time = (self.orders.rate(queue) * MOST_US) as u64;
        self.inflight_bytes.min(in_time).max(2 * BLOCK_BYTES)
    }

    /// May this block's content be dropped by command?
    pub(crate) fn discardable(&self, slot: u32) -> bool {
        let block = self.blocks.get(slot);
        self.discard && block.dead() && !block.refused
    }

    /// Asks for something on one block, which must be in a state that allows it.
    pub(crate) fn order(
        &mut self,
        now: Micros,
        operation: Operation,
        slot: u32,
        stats: &mut Stats,
        commands: &mut Vec<Command>,
    ) {
        let queue = match operation {
            Operation::Prefetch => Queue::In,
            Operation::Evict => Queue::Out,
            Operation::Discard | Operation::Populate => Queue::Local,
        };
        let from_host = self.blocks.get(slot).residency == Residency::Host;
        let block = self.blocks.get_mut(slot);
        let id = block.id;
        match operation {
            Operation::Prefetch => {
                block.unproven = true;
                self.usefulness.issued(BLOCK_BYTES);
                self.blocks.set(slot, Residency::MovingIn);
            }
            Operation::Populate => {
                stats.populated_bytes += BLOCK_BYTES;
                self.blocks.set(slot, Residency::MovingIn);
            }
            Operation::Evict => {
                stats.evicted_bytes += BLOCK_BYTES;
                if std::mem::take(&mut block.unproven) {
                    self.came_of(slot);
                }
                self.blocks.set(slot, Residency::MovingOut);
            }
            Operation::Discard => {
                stats.discarded_bytes += BLOCK_BYTES;
                let unproven = std::mem::take(&mut block.unproven);
                if from_host {
                    // Left alone until it is settled; it takes no frame meanwhile.
                    block.refused = true;
                } else {
                    self.blocks.set(slot, Residency::MovingOut);
                }
                if unproven {
                    self.came_of(slot);
                }
            }
        }
        let merge = match queue {
            Queue::Local => 64 << 20,
            _ => (self.inflight_limit(queue) / 4).max(BLOCK_BYTES),
        };
        let before = commands.len();
        self.orders
            .issue(now, (queue, operation), (id.0, from_host), merge, commands);
        stats.commands += (commands.len() - before) as u64;
    }

    /// A command is done, or had no effect.
    pub(crate) fn settle(&mut self, order: Order, refused: bool) {
        for number in order.blocks.first..order.blocks.end() {
            let Some(slot) = self.blocks.find(BlockId(number)) else {
                continue;
            };
            let block = self.blocks.get_mut(slot);
            let residency = block.residency;
            if refused {
                block.refused = true;
                if std::mem::take(&mut block.unproven) {
                    self.usefulness.taken_back(BLOCK_BYTES);
                }
            }
            match (order.operation, residency, refused) {
                (Operation::Prefetch | Operation::Populate, Residency::MovingIn, false)
                | (Operation::Evict | Operation::Discard, Residency::MovingOut, true) => {
                    self.blocks.set(slot, Residency::Device);
                }
                (Operation::Evict, Residency::MovingOut, false)
                | (Operation::Prefetch, Residency::MovingIn, true) => {
                    self.blocks.set(slot, Residency::Host);
                }
                (Operation::Discard, Residency::MovingOut, false)
                | (Operation::Populate, Residency::MovingIn, true) => {
                    self.blocks.set(slot, Residency::Unpopulated);
                }
                (Operation::Discard, Residency::Host, false) if order.from_host => {
                    block.refused = false;
                    self.blocks.set(slot, Residency::Unpopulated);
                }
                _ => {}
            }
        }
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
