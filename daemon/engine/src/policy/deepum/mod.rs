//! DeepUM (Jung, Kim and Lee, ASPLOS 2023), for comparison.
//!
//! Correlation prefetching from faults (sections 4.1 and 4.2), pre-eviction (5.1) and
//! invalidation of inactive memory (5.2). Where the paper leaves a point open: rows are
//! chosen by block number, ways and records are replaced least recently used, equal
//! records are won by the newest, a chain walks successors breadth first in their order of
//! use, and one that ends without meeting the end block goes on with the next kernel.
//! Without probes, absent blocks of the launch that begins stand in for faults.

mod chain;
mod tables;

use std::collections::VecDeque;
use std::sync::Arc;

use super::Policy;
use super::demand::{budget_reserve, evict_in_order};
use super::ranking::Ranking;
use crate::Config;
use crate::command::{Command, Operation, Queue};
use crate::decision::Reason;
use crate::hash::Map;
use crate::stats::Stats;
use crate::units::{BLOCK_BYTES, BlockId, Micros};
use crate::world::World;
use crate::world::block::Residency;
use chain::Chain;
use tables::{Context, Tables};

/// Prefetches that wait before the chain is walked any further.
const WAITING: usize = 64;
/// Steps of the chain in one go.
const STEPS: usize = 4096;
/// Bytes that discards may have under way.
const LOCAL_BYTES: u64 = 64 << 20;

/// DeepUM's policy.
#[derive(Debug)]
pub(crate) struct Deepum {
    tables: Tables,
    lookahead: usize,
    /// What runs, and the three before it.
    context: Context,
    started: bool,
    last_fault: Option<u64>,
    chain: Option<Chain>,
    waiting: VecDeque<u64>,
    resident: Ranking,
    expected: Expected,
    /// No victim was found since the last launch began.
    stuck: bool,
    /// Blocks migrated before this one were passed over since the last launch began: what
    /// is expected has not changed.
    scanned: u64,
}

/// Blocks of the current kernel and of the next predicted ones.
#[derive(Debug, Default)]
struct Expected {
    kernels: VecDeque<(Context, Arc<[u64]>)>,
    counts: Map<u64, u32>,
}

impl Expected {
    fn push(&mut self, context: Context, tables: &mut Tables) {
        let blocks = tables.blocks_of(context.current);
        for &block in blocks.iter() {
            *self.counts.entry(block).or_default() += 1;
        }
        self.kernels.push_back((context, blocks));
    }

    fn pop(&mut self) {
        let Some((_, blocks)) = self.kernels.pop_front() else {
            return;
        };
        for block in blocks.iter() {
            if let Some(count) = self.counts.get_mut(block) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(block);
                }
            }
        }
    }

    /// Slides on to `context` and predicts up to `ahead` kernels beyond it.
    fn follow(&mut self, context: Context, ahead: usize, tables: &mut Tables) {
        self.pop();
        if self
            .kernels
            .front()
            .is_none_or(|(predicted, _)| *predicted != context)
        {
            self.kernels.clear();
            self.counts.clear();
            self.push(context, tables);
        }
        while self.kernels.len() <= ahead {
            let Some((last, _)) = self.kernels.back() else {
                return;
            };
            let Some(next) = tables.next(last) else {
                return;
            };
            let next = last.then(next);
            self.push(next, tables);
        }
    }
}

impl Deepum {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            tables: Tables::new(config),
            lookahead: config.deepum.lookahead,
            context: Context::default(),
            started: false,
            last_fault: None,
            chain: None,
            waiting: VecDeque::new(),
            resident: Ranking::default(),
            expected: Expected::default(),
            stuck: false,
            scanned: 0,
        }
    }

    /// Walks the chain until enough waits or it pauses; takes its steps from `steps`.
    fn walk(&mut self, steps: &mut usize) {
        let Some(chain) = &mut self.chain else { return };
        while *steps > 0 && self.waiting.len() < WAITING {
            *steps -= 1;
            if !chain.step(&self.tables, self.lookahead, &mut self.waiting) {
                *steps = 0;
            }
        }
    }

    /// Moves what waits to the device while there is room on link and device.
    fn fetch(&mut self, now: Micros, world: &mut World, s: &mut Stats, c: &mut Vec<Command>) {
        let reserve = if world.enforce {
            budget_reserve(world.capacity)
        } else {
            0
        };
        let limit = world.inflight_limit(Queue::In);
        while let Some(&block) = self.waiting.front() {
            let slot = world.blocks.find(BlockId(block));
            let absent = slot.filter(|&slot| {
                let block = world.blocks.get(slot);
                let away = matches!(block.residency, Residency::Host | Residency::Unpopulated);
                away && !block.dead() && !block.refused
            });
            if let Some(slot) = absent {
                if world.free_frames(world.capacity) <= reserve
                    || world.orders.bytes(Queue::In) >= limit
                {
                    break;
                }
                let operation = match world.blocks.get(slot).residency {
                    Residency::Host => Operation::Prefetch,
                    _ => Operation::Populate,
                };
                world.order(now, operation, slot, Reason::Correlated, s, c);
            }
            self.waiting.pop_front();
        }
    }

    /// Evicts when no frame is free: one for the next fault and one for each prefetch.
    fn make_room(&mut self, now: Micros, world: &mut World, s: &mut Stats, c: &mut Vec<Command>) {
        let reserve = if world.enforce {
            budget_reserve(world.capacity)
        } else {
            0
        };
        let most = (world.inflight_limit(Queue::Out) / BLOCK_BYTES) as usize;
        let wanted = reserve + 1 + self.waiting.len().min(most) as i64;
        let mut have = world.free_frames(world.capacity) + world.blocks.moving_out() as i64;
        if have < wanted && !self.stuck {
            let victims: Vec<(u64, u32)> = self
                .resident
                .iter_from(self.scanned)
                .filter(|&(_, slot)| {
                    let block = world.blocks.get(slot);
                    let inactive = world.discardable(slot);
                    let expected = self.expected.counts.contains_key(&block.id.0);
                    (inactive || !expected) && !block.refused && !world.guarded(slot)
                })
                .take((wanted - have) as usize)
                .collect();
            self.stuck = victims.is_empty();
            for (migrated, slot) in victims {
                self.scanned = migrated;
                let discard = world.discardable(slot);
                let (queue, limit) = if discard {
                    (Queue::Local, LOCAL_BYTES)
                } else {
                    (Queue::Out, world.inflight_limit(Queue::Out))
                };
                if world.orders.bytes(queue) >= limit {
                    break;
                }
                self.resident.set(slot, None);
                let (operation, because) = if discard {
                    (Operation::Discard, Reason::Dead)
                } else {
                    (Operation::Evict, Reason::LeastRecent)
                };
                world.order(now, operation, slot, because, s, c);
                have += 1;
            }
        }
        if world.enforce && have < reserve {
            // The budget is kept whatever is expected.
            evict_in_order(now, world, &mut self.resident, reserve, s, c);
        }
    }
}

impl Policy for Deepum {
    fn started(&mut self, _: &World, exec: u32) {
        if self.started {
            self.tables
                .ended(self.context.current, self.last_fault.take());
            self.tables.followed(&self.context, exec);
        }
        self.context = if self.started {
            self.context.then(exec)
        } else {
            Context::first(exec)
        };
        self.started = true;
        self.stuck = false;
        self.expected
            .follow(self.context, self.lookahead, &mut self.tables);
        self.scanned = 0;
        if let Some(chain) = &mut self.chain {
            chain.kernel_began();
        }
    }

    fn faulted(&mut self, world: &World, slot: u32, exec: u32) {
        let block = world.blocks.get(slot).id.0;
        if !self.started || exec != self.context.current {
            return;
        }
        self.tables.faulted(exec, block, self.last_fault.is_none());
        self.last_fault = Some(block);
        // A fault aborts the chain and the commands that it left (section 4.2).
        self.waiting.clear();
        if world.remote {
            // The fault left it on the host; the paper's driver would have brought it.
            self.waiting.push_back(block);
        }
        self.chain = Some(Chain::new(self.context, block));
        self.stuck = false;
    }

    fn decide(&mut self, now: Micros, world: &mut World, s: &mut Stats, c: &mut Vec<Command>) {
        while let Some(slot) = world.blocks.next_changed() {
            let block = world.blocks.get(slot);
            let resident = block.residency == Residency::Device && !block.gone;
            self.resident.set(slot, resident.then_some(block.migrated));
        }
        world.blocks.recycle();
        let mut steps = STEPS;
        self.walk(&mut steps);
        // Where everything fits there is nothing to evict for.
        if world.blocks.len() as u64 > world.capacity {
            self.make_room(now, world, s, c);
        }
        self.fetch(now, world, s, c);
        while steps > 0 && self.waiting.is_empty() && self.chain.is_some() {
            self.walk(&mut steps);
            self.fetch(now, world, s, c);
        }
    }

    fn table_bytes(&self) -> u64 {
        let expected: usize = self
            .expected
            .kernels
            .iter()
            .map(|(_, blocks)| blocks.len())
            .sum();
        self.tables.bytes() + self.resident.bytes() + (expected + self.waiting.len()) as u64 * 8
    }
}
