//! Commands: what is asked for, and what became of it.
//!
//! Owns the change of a block's state when a command on it is given and when it is done.

use super::block::Residency;
use super::orders::Order;
use super::{NEVER, World};
use crate::command::{Command, Operation, Queue};
use crate::decision::{Because, Decision, Fate, Step, launch_at};
use crate::stats::Stats;
use crate::units::{BLOCK_BYTES, BlockId, Micros};

/// So many calls may be under way in each direction: while one moves, another waits.
const CALLS: u64 = 2;

impl World {
    /// Bytes that may be under way in one direction: a fault waits behind no more.
    pub(crate) fn inflight_limit(&self, queue: Queue) -> u64 {
        const MOST_US: f64 = 6_000.0;
        let in_time = (self.orders.rate(queue) * MOST_US) as u64;
        self.inflight_bytes.min(in_time).max(2 * BLOCK_BYTES)
    }

    /// Most bytes of one call in that direction, whole blocks.
    fn call_bytes(&self, queue: Queue) -> u64 {
        let blocks = self.inflight_limit(queue) / BLOCK_BYTES;
        (blocks / CALLS).max(1) * BLOCK_BYTES
    }

    /// So little is under way in that direction, of `limit` bytes, that there is room for a whole
    /// call: one for each block that is done would cost a call for each block. Where a call is a
    /// block, since the link is slow, any room will do.
    pub(crate) fn takes_calls(&self, queue: Queue, limit: u64) -> bool {
        let call = self.call_bytes(queue);
        call == BLOCK_BYTES || self.orders.bytes(queue) + call <= limit
    }

    /// May this block's content be dropped by command?
    pub(crate) fn discardable(&self, slot: u32) -> bool {
        let block = self.blocks.get(slot);
        self.discard && block.dead() && !block.refused
    }

    /// Asks for something on one block, which must be in a state that allows it. `because`
    /// says why, for whoever asks.
    pub(crate) fn order(
        &mut self,
        now: Micros,
        operation: Operation,
        slot: u32,
        because: impl Into<Because>,
        stats: &mut Stats,
        commands: &mut Vec<Command>,
    ) {
        let queue = match operation {
            Operation::Prefetch => Queue::In,
            Operation::Evict => Queue::Out,
            Operation::Discard
            | Operation::Populate
            | Operation::Touch
            | Operation::UseOnHost
            | Operation::LetMigrate => Queue::Local,
        };
        let because = because.into();
        let step = Step::Ordered(operation, because.reason);
        self.write_down(slot, step, because.rival);
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
                if self.history.lag().is_none() {
                    block.guessed = true;
                    self.guessed.issued(BLOCK_BYTES);
                }
                self.blocks.set(slot, Residency::MovingIn);
            }
            Operation::Evict => {
                stats.evicted_bytes += BLOCK_BYTES;
                block.left_seen = false;
                if std::mem::take(&mut block.guessed) {
                    self.guessed.wasted(BLOCK_BYTES);
                }
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
            Operation::Touch => {}
            Operation::UseOnHost => block.stays = true,
            Operation::LetMigrate => (block.stays, block.mapped) = (false, false),
        }
        let merge = match queue {
            Queue::Local => 64 << 20,
            _ => self.call_bytes(queue),
        };
        let before = commands.len();
        self.orders
            .issue(now, (queue, operation), (id.0, from_host), merge, commands);
        stats.commands += (commands.len() - before) as u64;
    }

    /// Writes down what a command on a block came to.
    pub(super) fn note(&mut self, slot: u32, step: Step) {
        self.write_down(slot, step, None);
    }

    fn write_down(&mut self, slot: u32, step: Step, rival: Option<u64>) {
        if !self.decisions.wanted() {
            return;
        }
        let number = |moment: u64| self.history.own_number(launch_at(moment));
        let next = self.next_use(slot);
        let decision = Decision {
            at: self.now,
            block: self.blocks.get(slot).id,
            step,
            launch: self.history.own_number(self.floor()),
            next_use: (next != NEVER).then(|| number(next)),
            rival_use: rival.map(number),
            cost_us: self.cost_us(step),
            cycle: self.history.lag(),
            breaker: self.decisions.breaker,
        };
        self.decisions.record(slot, decision);
    }

    /// Time that the link takes for one block, by its measured rate.
    fn cost_us(&self, step: Step) -> u32 {
        let queue = match step {
            Step::Ordered(Operation::Prefetch, _) => Queue::In,
            Step::Ordered(Operation::Evict, _) => Queue::Out,
            Step::Ordered(..) | Step::Came(_) => return 0,
        };
        (BLOCK_BYTES as f64 / self.orders.rate(queue)) as u32
    }

    /// The driver does not take advice on this block, nor will it on the others.
    fn stays_refused(&mut self, slot: u32) {
        let block = self.blocks.get_mut(slot);
        (block.stays, block.mapped) = (false, false);
        let address = block.id.address();
        if let Some(allocation) = self.memory.allocation_at(address) {
            self.visits.refused(allocation.range.address);
        }
        self.note(slot, Step::Came(Fate::Refused));
    }

    /// A command is done, or had no effect.
    pub(crate) fn settle(&mut self, order: Order, refused: bool) {
        for number in order.blocks.first..order.blocks.end() {
            let Some(slot) = self.blocks.find(BlockId(number)) else {
                continue;
            };
            if matches!(
                order.operation,
                Operation::UseOnHost | Operation::LetMigrate | Operation::Touch
            ) {
                if refused && order.operation != Operation::Touch {
                    self.stays_refused(slot);
                }
                continue;
            }
            let block = self.blocks.get_mut(slot);
            let residency = block.residency;
            if refused {
                if std::mem::take(&mut block.unproven) {
                    self.usefulness.taken_back(BLOCK_BYTES);
                }
                self.note(slot, Step::Came(Fate::Refused));
                self.refuse(slot);
            }
            let block = self.blocks.get_mut(slot);
            match (order.operation, residency, refused) {
                (Operation::Prefetch, Residency::MovingIn, false) => {
                    self.awaited += u64::from(self.is_awaited(slot));
                    self.blocks.set(slot, Residency::Device);
                }
                (Operation::Populate, Residency::MovingIn, false)
                | (Operation::Evict | Operation::Discard, Residency::MovingOut, true) => {
                    self.blocks.set(slot, Residency::Device);
                }
                (Operation::Evict, Residency::MovingOut, false)
                    if self.evictions_told && block.content && !block.left_seen =>
                {
                    // The driver passed over it: a launch needed it that very moment. News of
                    // its leaving may also be late.
                    self.refuse(slot);
                    self.blocks.set(slot, Residency::Device);
                    self.blocks.get_mut(slot).doubted = true;
                    self.note(slot, Step::Came(Fate::Refused));
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
}
