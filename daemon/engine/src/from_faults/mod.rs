//! Steering a program of which nothing is known but the driver's faults and migrations: no
//! launches, no allocations, no progress.
//!
//! The uses that faults show are recorded in order ([`history`]); what followed the last
//! time is the prediction. A program that goes through more than the device holds makes
//! the driver move everything each round, since it evicts what it migrated longest ago. Here the
//! next missing blocks are fetched ahead, into the room of those whose next use is
//! farthest, so that only the excess moves.
//!
//! Prefetches that work hide what they were predicted from. So one page of a prefetched
//! block is left on the host: its fault, one instead of hundreds, shows that the program
//! has come by.
//!
//! Where predictions fail nothing is prefetched; nothing is lost then but the looking.

mod blocks;
mod decide;
mod history;
mod trust;

use std::collections::VecDeque;

use self::blocks::{Blocks, Place};
use self::history::{Fit, History};
use self::trust::Trust;
use crate::units::{BLOCK_BYTES, BlockId};
use crate::{Bytes, Cause, Command, Direction, Event, Operation, Queue, Range};

/// One past the highest address of user space with five-level page tables.
const ADDRESS_LIMIT: u64 = 1 << 56;
/// Most blocks of one event: the driver's are of one block each.
const EVENT_BLOCKS: usize = 64;
/// Predicted uses gone through in one decision.
const SCAN: usize = 8192;
/// The last uses, which may still be going on, are not evicted.
const IN_USE: u64 = 2;
/// Blocks looked at for a victim: those used last, and some others in turn.
const RECENT: u64 = 48;
const OTHERS: usize = 16;
/// Least and most blocks prefetched ahead.
const AHEAD: (usize, usize) = (2, 4096);
/// Part of the device that may hold them, one in; and the least that always may where the
/// device is small, though never more than half of it.
const AHEAD_SHARE: (u64, u64) = (4, 4);
/// With so many ahead, only every second one shows its use.
const SPARSE: usize = 6;

/// Limits of one [`FaultEngine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultConfig {
    /// Bytes of a page of the host.
    pub page_bytes: u64,
    /// Most bytes prefetched ahead of the program.
    pub ahead: Bytes,
    /// Most uses remembered.
    pub history: usize,
    /// Most blocks known; memory beyond is left to the driver.
    pub blocks: usize,
}

impl Default for FaultConfig {
    fn default() -> Self {
        Self {
            page_bytes: 4096,
            ahead: Bytes(64 << 20),
            history: 1 << 18,
            blocks: 1 << 20,
        }
    }
}

/// What was counted, and how it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultStats {
    /// Faults of the device.
    pub faults: u64,
    /// Uses of blocks that faults showed.
    pub uses: u64,
    /// Of them, as predicted.
    pub predicted: u64,
    /// Of them, predicted but not there in time.
    pub late: u64,
    /// Bytes of prefetches asked for.
    pub prefetched_bytes: u64,
    /// Bytes of evictions asked for.
    pub evicted_bytes: u64,
    /// Prefetched bytes that the program came to.
    pub useful_bytes: u64,
    /// Prefetched bytes that went before it did.
    pub wasted_bytes: u64,
    /// Blocks that the driver evicted.
    pub driver_evictions: u64,
    /// Commands that had no effect.
    pub refused: u64,
    /// Blocks left to the driver because too many are known.
    pub blocks_untracked: u64,
    /// Bytes of known blocks.
    pub known_bytes: u64,
    /// Of them, on the device.
    pub resident_bytes: u64,
    /// Device bytes that the program's memory may fill; none while the device was not full.
    pub capacity_bytes: Option<u64>,
    /// Predictions are good enough to act on.
    pub steering: bool,
}

/// Steers one process on one device by its faults alone.
#[derive(Debug)]
pub struct FaultEngine {
    config: FaultConfig,
    blocks: Blocks,
    history: History,
    trust: Trust,
    stats: FaultStats,
    /// Predicted uses up to here have been looked at.
    frontier: u64,
    /// Prefetched and not yet passed, in the order of their use.
    ahead: VecDeque<(u64, BlockId)>,
    /// How many may be.
    lookahead: usize,
    /// Commands under way, by queue, oldest first.
    under_way: [VecDeque<(u32, BlockId)>; 2],
    last_ids: [u32; 2],
    /// Where victims beside the recent ones are looked for next.
    others: usize,
    issued: u64,
}

impl FaultEngine {
    /// An engine that knows nothing yet.
    pub fn new(config: FaultConfig) -> Self {
        Self {
            blocks: Blocks::new(config.blocks),
            history: History::new(config.history),
            trust: Trust::default(),
            stats: FaultStats::default(),
            frontier: 0,
            ahead: VecDeque::new(),
            lookahead: AHEAD.0,
            under_way: Default::default(),
            last_ids: [0; 2],
            others: 0,
            issued: 0,
            config,
        }
    }

    /// Takes in one event. Events that only a program inside could tell are ignored.
    pub fn step(&mut self, event: &Event<'_>) {
        match *event {
            Event::Fault {
                address,
                faults,
                by_host: false,
            } if address < ADDRESS_LIMIT => self.faulted(address, faults),
            Event::Migration {
                range,
                direction,
                cause,
            } if range.end() <= ADDRESS_LIMIT => {
                for block in range.blocks().take(EVENT_BLOCKS) {
                    self.migrated(block, range, direction, cause);
                }
            }
            Event::Completed { queue, id } => self.ended(queue, id, true),
            Event::Refused { queue, id } => self.ended(queue, id, false),
            _ => {}
        }
    }

    /// The program no longer has memory outside of what `still_there` knows.
    pub fn retain(&mut self, still_there: impl Fn(BlockId) -> bool) {
        self.blocks.forget(|block| !still_there(block));
        self.ahead.retain(|(_, block)| still_there(*block));
        self.frontier = 0;
    }

    /// What was counted so far.
    pub fn stats(&self) -> FaultStats {
        FaultStats {
            known_bytes: self.blocks.len() as u64 * BLOCK_BYTES,
            resident_bytes: self.blocks.resident_bytes(),
            capacity_bytes: self.blocks.capacity().map(|blocks| blocks * BLOCK_BYTES),
            steering: self.trust.steers(),
            ..self.stats
        }
    }

    fn faulted(&mut self, address: u64, faults: u32) {
        self.stats.faults += u64::from(faults);
        let page = address % BLOCK_BYTES / self.config.page_bytes * self.config.page_bytes;
        let block = BlockId::containing(address);
        let Some(found) = self.blocks.know(block) else {
            self.stats.blocks_untracked += 1;
            return;
        };
        let (place, fresh) = (found.place, found.fresh);
        found.fresh = false;
        found.barred = false;
        found.host_bytes = 0;
        if fresh {
            found.page = page;
        }
        if place == Place::Host {
            self.blocks.put(block, Place::Device);
        }
        if fresh {
            self.used(block, place);
        }
    }

    /// A fault showed a use of a block, which was in this place.
    fn used(&mut self, block: BlockId, place: Place) {
        self.stats.uses += 1;
        let blocks = &self.blocks;
        let shows = |block| blocks.get(block).is_none_or(|found| found.fresh);
        let fit = self.history.used(block, shows);
        let asked = self.ahead.iter().any(|(_, ahead)| *ahead == block);
        match fit {
            Fit::Ahead | Fit::Overtaken => {
                self.stats.predicted += 1;
                self.trust.right();
            }
            Fit::Elsewhere | Fit::New => {
                self.trust.wrong();
                // What was fetched for another future shows its use or goes.
                self.ahead.clear();
                self.frontier = 0;
            }
        }
        if fit == Fit::Ahead && place != Place::Device && self.trust.steers() {
            self.stats.late += 1;
            if asked {
                self.lookahead = (self.lookahead + 1).min(self.most_ahead());
            }
        }
        self.came_to(block);
        if let Some(cursor) = self.history.cursor() {
            while let Some((_, passed)) = self.ahead.pop_front_if(|(at, _)| *at <= cursor) {
                self.came_to(passed);
            }
        }
    }

    /// The program has come to a block: if it was prefetched, it was of use.
    fn came_to(&mut self, block: BlockId) {
        if let Some(found) = self.blocks.get_mut(block)
            && std::mem::take(&mut found.unused)
        {
            self.stats.useful_bytes += BLOCK_BYTES;
        }
    }

    /// A block left the device.
    fn left(&mut self, block: BlockId) {
        self.blocks.put(block, Place::Host);
        let Some(found) = self.blocks.get_mut(block) else {
            return;
        };
        found.fresh = true;
        if std::mem::take(&mut found.unused) {
            self.stats.wasted_bytes += BLOCK_BYTES;
            self.trust.wasted();
            self.ahead.retain(|(_, ahead)| *ahead != block);
        }
        if let Some(next) = self.history.next_use(block) {
            self.frontier = self.frontier.min(next);
        }
    }

    fn migrated(&mut self, block: BlockId, range: Range, direction: Direction, cause: Cause) {
        // Our own moves end with their commands.
        let place = self.blocks.place(block);
        if matches!(place, Place::Coming | Place::Going) && cause == Cause::Call {
            return;
        }
        if self.blocks.know(block).is_none() {
            return;
        }
        match (direction, cause) {
            (Direction::In, Cause::Call) if place == Place::Host => {
                // The program's own prefetch; its use will not show.
                if let Some(found) = self.blocks.get_mut(block) {
                    found.fresh = false;
                }
                self.blocks.put(block, Place::Device);
            }
            (Direction::In, _) => {}
            (Direction::Out, Cause::Eviction) => {
                if place == Place::Coming {
                    return;
                }
                let was_there = place != Place::Host || !self.history_knows(block);
                self.left(block);
                if was_there {
                    self.stats.driver_evictions += 1;
                    self.blocks.driver_evicted();
                }
            }
            (Direction::Out, _) => {
                let Some(found) = self.blocks.get_mut(block) else {
                    return;
                };
                let end = range.end().min(block.address() + BLOCK_BYTES);
                found.host_bytes += end - range.address.max(block.address());
                found.fresh = true;
                if found.host_bytes > BLOCK_BYTES / 2 && place == Place::Device {
                    self.left(block);
                }
            }
        }
    }

    fn history_knows(&self, block: BlockId) -> bool {
        self.history.next_use(block).is_some()
    }

    /// Commands of a queue up to `id` are done, or this one was refused.
    fn ended(&mut self, queue: Queue, id: u32, done: bool) {
        let Some(index) = index(queue) else { return };
        while let Some((_, block)) =
            self.under_way[index].pop_front_if(|(first, _)| id.wrapping_sub(*first) < u32::MAX / 2)
        {
            // A block may take two commands; the last one decides.
            if self.under_way[index]
                .front()
                .is_some_and(|(_, next)| *next == block)
            {
                continue;
            }
            self.settle(block, done);
        }
        self.stats.refused += u64::from(!done);
    }

    fn settle(&mut self, block: BlockId, done: bool) {
        match (self.blocks.place(block), done) {
            (Place::Coming, true) => {
                self.blocks.put(block, Place::Device);
                self.blocks.prefetched();
                if let Some(found) = self.blocks.get_mut(block) {
                    // A fault may have come meanwhile; then its use has shown.
                    found.fresh &= found.page_left;
                }
            }
            (Place::Going, true) => self.left(block),
            (Place::Coming, false) => {
                self.ahead.retain(|(_, ahead)| *ahead != block);
                if let Some(found) = self.blocks.get_mut(block) {
                    (found.barred, found.unused) = (true, false);
                }
                self.left(block);
            }
            (Place::Going, false) => {
                self.blocks.put(block, Place::Device);
                if let Some(found) = self.blocks.get_mut(block) {
                    found.barred = true;
                }
            }
            _ => {}
        }
    }

    fn most_ahead(&self) -> usize {
        let capacity = self.blocks.capacity().unwrap_or(0);
        let share = (capacity / AHEAD_SHARE.0).max(AHEAD_SHARE.1.min(capacity / 2));
        let most = share.min(self.config.ahead.0 / BLOCK_BYTES);
        (most as usize).clamp(AHEAD.0, AHEAD.1)
    }
}

/// Of the queues that are used here.
fn index(queue: Queue) -> Option<usize> {
    match queue {
        Queue::In => Some(0),
        Queue::Out => Some(1),
        Queue::Local => None,
    }
}
