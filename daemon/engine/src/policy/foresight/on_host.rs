//! Which allocations launches use where they lie, over the link.
//!
//! What nobody can foretell is left to faults. Where the accesses are also sparse, faults are a
//! bad bargain: each brings pages of 64 KiB for a few bytes, and takes the 2 MiB of another block
//! that is as likely to be wanted next. So an allocation whose visits to the device were short and
//! of little use ([`crate::world::visits`]) is left on the host: the device maps its pages and
//! accesses them over the link. (Migration or remote access, by what is seen of a program: HELM,
//! SC 2025, chooses so among the driver's policies; access counters, Ganguly et al., IPDPS 2020,
//! in the device.) What of it is on the device stays there, and is fetched whole, so that frames
//! hold what they can.
//!
//! Whether that was right is measured: if launches take longer than they did, it is taken back,
//! and more evidence is wanted the next time. What a launch is known to use, in other allocations,
//! is fetched before as ever, and may have the frames.

use std::collections::VecDeque;

use crate::command::{Command, Operation, Queue};
use crate::decision::Reason;
use crate::stats::Stats;
use crate::units::{BLOCK_BYTES, BlockId, Micros, Range};
use crate::world::World;
use crate::world::block::Residency;
use crate::world::visits::{Sparse, Stay};

/// Marks of progress kept at most, and how many in a turn of the program.
const MARKS: usize = 64;
const MARKS_IN_TURN: u64 = 16;
/// Launches by which time is marked where the program does not repeat itself, and that are
/// compared at least.
const STRIDE: u64 = 16;
/// Launches take longer only if they do by more than this: what they do is not quite the same in
/// each turn.
const NOISE: f64 = 1.05;
/// Turns of the program that frames are given to settle, and that are compared.
const SETTLE: u64 = 2;

/// Allocations that stay on the host on trial.
#[derive(Debug)]
struct Trial {
    addresses: Vec<u64>,
    /// What a launch took before, microseconds.
    before_us: f64,
    /// Launches over which that was seen.
    launches: u64,
    /// Oldest launch that was not over when it began, and the time.
    begun: (u64, Micros),
    /// Oldest launch that was not over, and the time, once the frames were settled.
    since: Option<(u64, Micros)>,
}

impl Trial {
    /// What its launches took before, microseconds.
    fn window_us(&self) -> f64 {
        self.before_us * self.launches as f64
    }
}

/// What is under way.
#[derive(Debug, Default)]
pub(crate) struct OnHost {
    /// Blocks of which a part is on the device, to be fetched whole.
    partly: VecDeque<BlockId>,
    trial: Option<Trial>,
    /// Oldest launch that was not over, by time.
    marks: VecDeque<(u64, Micros)>,
}

/// The launches after which the program repeats itself, where they are enough to compare by:
/// whoever launches the same again and again does something else each time.
fn turn(world: &World) -> Option<u64> {
    world.history.lag().filter(|&turn| turn >= STRIDE)
}

impl OnHost {
    /// Gives the commands that are due.
    pub(crate) fn consider(
        &mut self,
        now: Micros,
        world: &mut World,
        stats: &mut Stats,
        commands: &mut Vec<Command>,
    ) {
        if !world.use_on_host || !world.probes {
            return;
        }
        if let Some(address) = world.visits.first_renewed() {
            self.let_migrate(now, address, Reason::Renewed, world, stats, commands);
        }
        self.mark(now, world);
        self.fetch_rest(now, world, stats, commands);
        match &self.trial {
            Some(_) => self.judge(now, world, stats, commands),
            None => {
                let (floor, turn) = (world.floor(), turn(world));
                if let Some(found) = world.visits.sparse(world.capacity, floor, now, turn) {
                    self.stay(now, found, world, stats, commands);
                }
            }
        }
    }

    fn mark(&mut self, now: Micros, world: &World) {
        let floor = world.floor();
        let stride = turn(world).map_or(STRIDE, |turn| turn / MARKS_IN_TURN);
        let last = self.marks.back();
        if last.is_none_or(|(last, _)| floor >= last + stride.max(1)) {
            self.marks.push_back((floor, now));
            if self.marks.len() > MARKS {
                self.marks.pop_front();
            }
        }
    }

    /// Launches over which it is known what they took before now, and what each took,
    /// microseconds: the last turn of the program, or since the evidence began.
    fn before(&self, now: Micros, since: (u64, Micros), world: &World) -> (u64, f64) {
        let floor = world.floor();
        let turn = turn(world).and_then(|turn| {
            let mut marks = self.marks.iter().rev();
            marks.find(|(at, _)| at + turn <= floor)
        });
        let (begun, at) = turn.copied().unwrap_or(since);
        let launches = floor.saturating_sub(begun).max(1);
        (
            launches,
            now.0.saturating_sub(at.0) as f64 / launches as f64,
        )
    }

    fn stay(
        &mut self,
        now: Micros,
        found: Sparse,
        world: &mut World,
        stats: &mut Stats,
        commands: &mut Vec<Command>,
    ) {
        let (launches, before_us) = self.before(now, found.since, world);
        let launches = (launches / found.doubt).max(STRIDE.min(launches));
        for &address in &found.addresses {
            world.visits.set(address, Stay::Stays);
            for slot in slots_of(world, address) {
                let operation = Operation::UseOnHost;
                world.order(now, operation, slot, Reason::Sparse, stats, commands);
                let block = world.blocks.get(slot);
                if is_partly_there(block) {
                    self.partly.push_back(block.id);
                }
            }
        }
        self.trial = Some(Trial {
            addresses: found.addresses,
            before_us,
            launches,
            begun: (world.floor(), now),
            since: None,
        });
    }

    fn fetch_rest(
        &mut self,
        now: Micros,
        world: &mut World,
        stats: &mut Stats,
        commands: &mut Vec<Command>,
    ) {
        while world.orders.bytes(Queue::In) < world.inflight_limit(Queue::In) {
            let Some(id) = self.partly.pop_front() else {
                return;
            };
            let found = world.blocks.find(id);
            let Some(slot) = found.filter(|&slot| {
                let block = world.blocks.get(slot);
                block.stays && is_partly_there(block)
            }) else {
                continue;
            };
            let operation = Operation::Prefetch;
            world.order(now, operation, slot, Reason::Partly, stats, commands);
            // No launch is expected to use it: what comes of it says nothing of predictions.
            world.blocks.get_mut(slot).unproven = false;
            world.usefulness.taken_back(BLOCK_BYTES);
        }
    }

    /// Compares launches on trial with those before.
    fn judge(
        &mut self,
        now: Micros,
        world: &mut World,
        stats: &mut Stats,
        commands: &mut Vec<Command>,
    ) {
        let Some(trial) = &mut self.trial else {
            return;
        };
        let floor = world.floor();
        let passed = |since: Micros| now.0.saturating_sub(since.0) as f64;
        let Some((began, since)) = trial.since else {
            let (begun, at) = trial.begun;
            let late = floor.saturating_sub(begun) >= SETTLE * trial.launches
                || passed(at) > trial.window_us() * SETTLE as f64;
            if late || self.partly.is_empty() && world.orders.bytes(Queue::In) == 0 {
                trial.since = Some((floor, now));
            }
            return;
        };
        let launches = floor.saturating_sub(began);
        // Who is late already need not be waited for.
        let late = passed(since) > trial.window_us() * NOISE;
        if launches < trial.launches && !late {
            return;
        }
        let slower = late || passed(since) > trial.before_us * NOISE * launches as f64;
        if let Some(trial) = self.trial.take_if(|_| slower) {
            for address in trial.addresses {
                self.let_migrate(now, address, Reason::Slower, world, stats, commands);
            }
        }
        self.trial = None;
    }

    fn let_migrate(
        &mut self,
        now: Micros,
        address: u64,
        reason: Reason,
        world: &mut World,
        stats: &mut Stats,
        commands: &mut Vec<Command>,
    ) {
        world.visits.set(address, Stay::Migrates);
        for slot in slots_of(world, address) {
            if world.blocks.get(slot).stays {
                world.order(now, Operation::LetMigrate, slot, reason, stats, commands);
            }
        }
        if let Some(trial) = &mut self.trial {
            trial.addresses.retain(|&other| other != address);
        }
    }
}

/// It takes a frame, and faults alone filled a part of it.
fn is_partly_there(block: &crate::world::block::Block) -> bool {
    block.residency == Residency::Device && block.device_bytes < BLOCK_BYTES
}

/// The blocks of the allocation that begins there.
fn slots_of(world: &World, address: u64) -> Vec<u32> {
    let Some(allocation) = world.memory.allocation_at(address) else {
        return Vec::new();
    };
    let range = Range {
        address,
        bytes: allocation.tracked_bytes,
    };
    let found = range.blocks().filter_map(|id| world.blocks.find(id));
    found.collect()
}
