//! Moves tensors for systems inside a framework: swap-out, swap-in, allocation.
//!
//! What such systems have in common and their papers take for granted: an operator starts
//! with its operands on the device and never faults; the framework's own allocator gives
//! memory without a transfer and knows what is dead; a swap-out is asynchronous, a swap-in
//! waits until memory is free. Owns no decision which tensor moves when: the policies tell.
//!
//! How that is done on paged memory, the same for all of them:
//!
//! - operands that are not there are ordered before their launch starts, making room as the
//!   driver does, least recently used block first (the systems' own way when memory runs
//!   out: Capuchin section 4.1's passive mode). A launch larger than the device is left to
//!   faults;
//! - new tensors get pages [`AHEAD`] of their first launch, as the host runs ahead of the
//!   device;
//! - dead content stays mapped for the allocator to hand out again, and is dropped only when
//!   frames are short, so that a program that fits never faults twice;
//! - a block shared by tensors leaves with the last of them; one that holds parts too small
//!   to be listed never leaves by plan;
//! - planned swaps go in the order in which they were asked for, [`WINDOW`] bytes at a time,
//!   so that an operand that is missing waits for no more than that, and a swap-out that
//!   has not begun when its tensor is wanted again is not made.

use std::collections::VecDeque;

use crate::class::{Desk, DriverNotice, Evictor, Future, FutureNotice, FuturePolicy};
use crate::machine::Machine;
use crate::model::{Place, Room};
use crate::trace::{Block, Launch, Piece};
use crate::units::{BLOCK_BYTES, Leaves, Nanos};

use super::recency::Recency;
use super::tensors::{TensorId, Tensors};

/// By how much the memory of a new tensor is there early, in undisturbed time: more than
/// the copies in the window take on PCIe 3, which it waits behind.
const AHEAD: Nanos = Nanos::from_micros(2_000);
/// Bytes of swaps in one direction that may be ordered and not be over: 4 blocks.
const WINDOW: u64 = 4 * BLOCK_BYTES;
/// Frames that planned swap-ins leave for new tensors.
const SPARE: u32 = 16;

/// The device can hold all that is ever there at once: nothing has to move.
pub(super) fn fits(machine: &Machine, tensors: &Tensors<'_>) -> bool {
    let frames = machine.memory_bytes / BLOCK_BYTES;
    tensors.program().footprint_bytes() <= frames * BLOCK_BYTES || tensors.peak() <= budget(machine)
}

/// Bytes that a plan may fill: the device without the frames kept for new tensors, those
/// that swaps under way hold, and one in fifty for blocks whose tensors do not move together.
pub(super) fn budget(machine: &Machine) -> u64 {
    let frames = machine.memory_bytes / BLOCK_BYTES;
    let kept = u64::from(SPARE) + 2 * WINDOW / BLOCK_BYTES + frames / 50;
    // A device so small that this would matter keeps an eighth.
    (frames - kept.min(frames / 8)) * BLOCK_BYTES
}

/// The hands of a system that moves tensors.
pub(super) struct Swapper<'p> {
    pub tensors: Tensors<'p>,
    /// By block: tensors alive in it and not swapped out.
    holders: Vec<u32>,
    /// By tensor: swapped out.
    away: Vec<bool>,
    /// By block: parts whose content died and that no launch has touched since.
    dead: Vec<Leaves>,
    /// Blocks in which nothing may be alive any more.
    drained: VecDeque<Block>,
    /// Blocks of swap-outs that have not been ordered.
    leaving: VecDeque<Block>,
    /// Blocks of planned swap-ins that have not been ordered.
    wanted: VecDeque<Block>,
    recency: Recency,
    by_death: Vec<TensorId>,
    births: usize,
    deaths: usize,
    /// The launch that started last.
    now: Launch,
    batch: Vec<Block>,
    fresh: Vec<Piece>,
}

impl<'p> Swapper<'p> {
    pub fn new(tensors: Tensors<'p>) -> Self {
        let blocks = tensors.program().blocks();
        let mut by_death: Vec<TensorId> = tensors.ids().collect();
        by_death.sort_by_key(|&id| tensors.get(id).death);
        Self {
            holders: vec![0; blocks],
            away: vec![false; tensors.len()],
            dead: vec![Leaves::NONE; blocks],
            drained: VecDeque::new(),
            leaving: VecDeque::new(),
            wanted: VecDeque::new(),
            recency: Recency::new(blocks),
            by_death,
            births: 0,
            deaths: 0,
            now: Launch(0),
            batch: Vec::new(),
            fresh: Vec::new(),
            tensors,
        }
    }

    /// Whether all of a tensor is on the device.
    pub fn is_here(&self, tensor: TensorId, desk: &Desk<'_>) -> bool {
        let pieces = self.tensors.pieces(tensor);
        pieces.iter().all(|piece| {
            desk.place(piece.block) == Place::Device
                && (desk.missing(piece.block) & piece.leaves).is_empty()
        })
    }

    /// Copies a tensor out and gives its memory back, where it is alive and here.
    pub fn swap_out(&mut self, tensor: TensorId, desk: &mut Desk<'_>) {
        if self.away[tensor.index()] || !self.is_alive(tensor) {
            return;
        }
        self.away[tensor.index()] = true;
        for piece in self.tensors.pieces(tensor) {
            let block = piece.block;
            self.holders[block.index()] -= 1;
            if self.holders[block.index()] == 0 && !self.tensors.is_mixed(block) {
                self.leaving.push_back(block);
            }
        }
        self.pump_out(desk);
    }

    /// Asks for a tensor that was swapped out.
    pub fn swap_in(&mut self, tensor: TensorId, desk: &mut Desk<'_>) {
        if !self.back(tensor) {
            return;
        }
        let (wanted, recency) = (&mut self.wanted, &mut self.recency);
        for block in self.tensors.blocks(tensor) {
            recency.touch(block);
            wanted.push_back(block);
        }
        self.pump(desk);
    }

    /// Everything that comes apart from what the policy decides.
    pub fn notice(&mut self, notice: &FutureNotice<'_>, desk: &mut Desk<'_>) {
        match *notice {
            FutureNotice::Starting(launch) => self.starting(launch, desk),
            FutureNotice::Finished(_) => self.pump(desk),
            FutureNotice::Dead(pieces) => {
                for piece in pieces {
                    self.dead[piece.block.index()] |= piece.leaves;
                    if self.holders[piece.block.index()] == 0 {
                        self.drained.push_back(piece.block);
                    }
                }
            }
            FutureNotice::Driver(DriverNotice::Arrived { block, .. }) => {
                self.recency.insert(block);
                self.pump(desk);
            }
            FutureNotice::Driver(DriverNotice::Evicted { block, by, .. }) => {
                self.recency.remove(block);
                // Asked for again while it was on its way out.
                if by == Evictor::Policy && self.holders[block.index()] > 0 {
                    self.wanted.push_front(block);
                }
                self.pump_out(desk);
                self.pump(desk);
            }
            _ => {}
        }
    }

    /// The least recently used block that is not an operand of the launch that runs.
    pub fn victim(&mut self, desk: &Desk<'_>) -> Option<Block> {
        self.recency.oldest(
            |block| desk.place(block) == Place::Device,
            |block| matches!(desk.place(block), Place::Host | Place::Unpopulated),
        )
    }

    /// Has its memory.
    fn is_alive(&self, tensor: TensorId) -> bool {
        tensor.index() < self.births && self.tensors.get(tensor).death > self.now
    }

    /// Lives while any launch runs.
    fn is_used(&self, tensor: TensorId) -> bool {
        let tensor = self.tensors.get(tensor);
        tensor.birth < tensor.death
    }

    /// No longer away; false where it was not.
    fn back(&mut self, tensor: TensorId) -> bool {
        if !std::mem::take(&mut self.away[tensor.index()]) {
            return false;
        }
        for piece in self.tensors.pieces(tensor) {
            self.holders[piece.block.index()] += 1;
        }
        true
    }

    fn starting(&mut self, launch: Launch, desk: &mut Desk<'_>) {
        self.now = launch;
        self.bury(launch);
        self.recency.begin();
        let program = self.tensors.program();
        for access in program.accesses(launch) {
            self.recency.touch(access.block);
            self.dead[access.block.index()] &= !access.leaves;
        }
        for at in 0..self.tensors.of_launch(launch).len() {
            let tensor = self.tensors.of_launch(launch)[at].tensor;
            self.back(tensor);
        }
        self.operands(launch, desk);
        let ahead = self.tensors.launch_at(self.tensors.start(launch) + AHEAD);
        self.bear(ahead.max(Launch(launch.0 + 1)), desk);
        self.pump(desk);
    }

    /// Tensors that no launch from this one on may use are gone.
    fn bury(&mut self, launch: Launch) {
        while let Some(&id) = self.by_death.get(self.deaths)
            && self.tensors.get(id).death <= launch
        {
            self.deaths += 1;
            if !self.is_used(id) || std::mem::take(&mut self.away[id.index()]) {
                continue;
            }
            for piece in self.tensors.pieces(id) {
                let holders = &mut self.holders[piece.block.index()];
                *holders -= 1;
                if *holders == 0 {
                    self.drained.push_back(piece.block);
                }
            }
        }
    }

    /// Tensors that a launch up to this one may use first get their memory.
    fn bear(&mut self, launch: Launch, desk: &mut Desk<'_>) {
        self.fresh.clear();
        let ids = self.births as u32..self.tensors.len() as u32;
        for id in ids.map(TensorId) {
            if self.tensors.get(id).birth > launch {
                break;
            }
            self.births += 1;
            if !self.is_used(id) {
                continue;
            }
            for piece in self.tensors.pieces(id) {
                let index = piece.block.index();
                self.holders[index] += 1;
                let there = desk.resident(piece.block);
                if there.covers(piece.leaves) {
                    continue;
                }
                // What died on the host is not to be brought back.
                let gone = self.dead[index].minus(there);
                if !gone.is_empty() {
                    self.dead[index] &= there;
                    desk.discard(&[Piece {
                        block: piece.block,
                        leaves: gone,
                    }]);
                }
                self.recency.touch(piece.block);
                self.fresh.push(*piece);
            }
        }
        if !self.fresh.is_empty() {
            self.make_room(self.fresh.len() as u32, desk);
            desk.populate(&self.fresh, Room::Take);
        }
    }

    /// Orders what a launch needs and is not there.
    fn operands(&mut self, launch: Launch, desk: &mut Desk<'_>) {
        self.batch.clear();
        self.fresh.clear();
        let program = self.tensors.program();
        let accesses = program.accesses(launch);
        for access in accesses {
            if desk.resident(access.block).covers(access.leaves) {
                continue;
            }
            if (desk.missing(access.block) & access.leaves).is_empty() {
                self.fresh.push(Piece {
                    block: access.block,
                    leaves: access.leaves,
                });
            } else {
                self.batch.push(access.block);
            }
        }
        let wanted = self.batch.len() + self.fresh.len();
        if wanted == 0 || accesses.len() > desk.capacity() as usize {
            return;
        }
        self.make_room(wanted as u32, desk);
        if !self.batch.is_empty() {
            desk.prefetch(&self.batch, Room::Take);
        }
        if !self.fresh.is_empty() {
            desk.populate(&self.fresh, Room::Take);
        }
    }

    /// Drops dead content until so many frames can be taken, or nothing is dead.
    fn make_room(&mut self, frames: u32, desk: &mut Desk<'_>) {
        while desk.free() < frames
            && let Some(block) = self.drained.pop_front()
        {
            let leaves = self.dead[block.index()];
            if self.holders[block.index()] == 0 && !leaves.is_empty() {
                self.dead[block.index()] = Leaves::NONE;
                desk.discard(&[Piece { block, leaves }]);
            }
        }
    }

    /// Orders swap-outs as far as the window allows; none of what is wanted again.
    fn pump_out(&mut self, desk: &mut Desk<'_>) {
        self.batch.clear();
        self.fresh.clear();
        let mut queued = desk.queued_out();
        while queued < WINDOW
            && let Some(block) = self.leaving.pop_front()
        {
            let index = block.index();
            if self.holders[index] > 0 || desk.place(block) != Place::Device {
                continue;
            }
            queued += BLOCK_BYTES;
            self.batch.push(block);
            let leaves = std::mem::take(&mut self.dead[index]);
            if !leaves.is_empty() {
                self.fresh.push(Piece { block, leaves });
            }
        }
        if !self.batch.is_empty() {
            desk.discard(&self.fresh);
            desk.evict(&self.batch);
        }
    }

    /// Orders planned swap-ins as far as frames and the window allow.
    fn pump(&mut self, desk: &mut Desk<'_>) {
        if self.wanted.is_empty() {
            return;
        }
        self.batch.clear();
        let queued = desk.queued_in();
        let under_way = queued.div_ceil(BLOCK_BYTES) as u32;
        let spare = SPARE.min(desk.capacity() / 8);
        while let Some(&block) = self.wanted.front() {
            let ordered = self.batch.len() as u32;
            if queued + u64::from(ordered) * BLOCK_BYTES >= WINDOW {
                break;
            }
            if desk.place(block) == Place::Host && self.holders[block.index()] > 0 {
                let needed = under_way + ordered + spare + 1;
                self.make_room(needed, desk);
                if desk.free() < needed {
                    break;
                }
                self.batch.push(block);
            }
            self.wanted.pop_front();
        }
        if !self.batch.is_empty() {
            desk.prefetch(&self.batch, Room::Take);
        }
    }
}

/// Which tensors leave after which launch, and are asked for before which.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Plan {
    /// Leaves once this launch is over.
    pub outs: Vec<(Launch, TensorId)>,
    /// Is asked for when this launch starts.
    pub ins: Vec<(Launch, TensorId)>,
}

/// A system whose plan is made before the run.
pub(super) struct Planned<'p> {
    swapper: Swapper<'p>,
    plan: Plan,
    out: usize,
    back: usize,
}

impl<'p> Planned<'p> {
    /// Carries out a plan, in the order of the launches; what one launch moves goes in the
    /// plan's order.
    pub fn new(tensors: Tensors<'p>, mut plan: Plan) -> Self {
        plan.outs.sort_by_key(|&(launch, _)| launch);
        plan.ins.sort_by_key(|&(launch, _)| launch);
        Self {
            swapper: Swapper::new(tensors),
            plan,
            out: 0,
            back: 0,
        }
    }

    /// Reads the tensors and plans for them, unless everything fits.
    pub fn make(
        machine: &Machine,
        future: Future<'p>,
        plan: impl FnOnce(&Machine, &Tensors<'p>) -> Plan,
    ) -> Box<dyn FuturePolicy + 'p> {
        let tensors = Tensors::of(future);
        let plan = if fits(machine, &tensors) {
            Plan::default()
        } else {
            plan(machine, &tensors)
        };
        Box::new(Self::new(tensors, plan))
    }
}

impl FuturePolicy for Planned<'_> {
    fn notice(&mut self, notice: FutureNotice<'_>, desk: &mut Desk<'_>) {
        self.swapper.notice(&notice, desk);
        match notice {
            FutureNotice::Starting(launch) => {
                while let Some(&(at, tensor)) = self.plan.ins.get(self.back)
                    && at <= launch
                {
                    self.back += 1;
                    self.swapper.swap_in(tensor, desk);
                }
            }
            FutureNotice::Finished(launch) => {
                while let Some(&(at, tensor)) = self.plan.outs.get(self.out)
                    && at <= launch
                {
                    self.out += 1;
                    self.swapper.swap_out(tensor, desk);
                }
            }
            _ => {}
        }
    }

    fn victim(&mut self, desk: &Desk<'_>) -> Option<Block> {
        self.swapper.victim(desk)
    }
}

#[cfg(test)]
mod tests {
    use super::super::checks;
    use super::super::samples::Training;
    use super::super::{autoswap, capuchin, flashneuron, ocdnn, sentinel, vdnn};
    use crate::units::BLOCK_BYTES;

    #[test]
    fn with_as_much_memory_as_the_footprint_nothing_moves_and_later_iterations_are_ideal() {
        let program = Training::SMALL.program();
        let frames = (program.footprint_bytes() / BLOCK_BYTES) as u32;
        for entry in [
            autoswap::ENTRY,
            capuchin::ENTRY,
            flashneuron::ENTRY,
            ocdnn::ENTRY,
            sentinel::ENTRY,
            vdnn::ENTRY,
        ] {
            let outcome = checks::outcome(&program, &entry, frames);
            for iteration in &outcome.iterations {
                assert_eq!(iteration.totals.bytes_out, 0, "{}", entry.name);
            }
            for iteration in &outcome.iterations[1..] {
                assert_eq!(iteration.time, iteration.ideal, "{}", entry.name);
            }
        }
    }
}
