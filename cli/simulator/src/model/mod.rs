//! The model of a device with paged memory: what is where, what moves, what a kernel waits
//! for.
//!
//! Discrete events in integer time. [`Model`] owns the state and the two directions of the
//! link and is what a policy acts on, through [`Desk`]; `drive` owns the order of events;
//! `kernel` the progress of the running launch; `service` the driver's fault handling;
//! `host` the program's own thread. The rules are nvidia-uvm's (open-gpu-kernel-modules
//! 580, `uvm_gpu_replayable_faults.c`, `uvm_va_block.c`, `uvm_pmm_gpu.c`,
//! `uvm_perf_prefetch.c`), at the granularity of 2 MiB blocks with 64 KiB leaves.

mod blocks;
mod desk;
mod drive;
mod g10;
mod host;
mod kernel;
mod lane;
mod service;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

pub use desk::{Desk, Place, Room};
pub use drive::{DataLoss, Played, Stopped, play};

use blocks::{Blocks, Frame, ListName};
use g10::Artifact;
use lane::{Lane, Order, Transfer, Want, Why};

use crate::class::{Arrival, Evictor, Ticket};
use crate::machine::{Machine, Rules};
use crate::timeline::{self, Cause, Timeline};
use crate::trace::{Block, Program};
use crate::units::{BLOCK_BYTES, Leaves, Nanos, Region};

/// What has happened and the policy has not been told yet.
#[derive(Clone, Debug)]
enum Note {
    Alloc(Region),
    Free(Region),
    HostFault(Block),
    Arrived(Block, u64, Arrival),
    Evicted(Block, u64, Evictor),
    Done(Ticket),
}

/// Sums since the run began. Bytes; counts of faults are 64 KiB leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Bytes moved to the device.
    pub bytes_in: u64,
    /// Bytes moved to the host.
    pub bytes_out: u64,
    /// Faults of the device.
    pub faults: u64,
    /// Batches in which the driver served them.
    pub batches: u64,
    /// Time for which the running launch waited.
    pub stall: Nanos,
    /// Bytes that prefetches brought, or were bringing when they were needed.
    pub prefetch_issued: u64,
    /// Of them, used before they were evicted.
    pub prefetch_useful: u64,
    /// Of the useful ones, still under way when they were needed.
    pub prefetch_late: u64,
    /// Brought and evicted or lost unused.
    pub prefetch_wasted: u64,
}

impl Totals {
    /// Both together.
    pub fn plus(&self, other: &Self) -> Self {
        self.with(other, |a, b| a + b)
    }

    /// What came after `start`.
    pub fn minus(&self, start: &Self) -> Self {
        self.with(start, u64::saturating_sub)
    }

    /// The mean over `count`.
    pub fn over(&self, count: u64) -> Self {
        self.with(self, |a, _| a / count.max(1))
    }

    fn with(&self, other: &Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            bytes_in: f(self.bytes_in, other.bytes_in),
            bytes_out: f(self.bytes_out, other.bytes_out),
            faults: f(self.faults, other.faults),
            batches: f(self.batches, other.batches),
            stall: Nanos(f(self.stall.0, other.stall.0)),
            prefetch_issued: f(self.prefetch_issued, other.prefetch_issued),
            prefetch_useful: f(self.prefetch_useful, other.prefetch_useful),
            prefetch_late: f(self.prefetch_late, other.prefetch_late),
            prefetch_wasted: f(self.prefetch_wasted, other.prefetch_wasted),
        }
    }
}

/// The state of a run.
#[derive(Debug)]
pub(crate) struct Model<'p> {
    program: &'p Program,
    machine: Machine,
    lifetimes: bool,
    now: Nanos,
    blocks: Blocks,
    lane_in: Lane,
    lane_out: Lane,
    /// The driver's density prefetch is on.
    density: bool,
    /// Parts of a victim that no launch has written are dropped.
    drops_unwritten: bool,
    /// An eviction has been begun for the prefetch at the head of its lane.
    head_evicts: bool,
    /// Evictions under way for the fault being served.
    service_evicts: bool,
    host_bytes: u64,
    host_waits: u32,
    wakes: BinaryHeap<Reverse<Nanos>>,
    open: HashMap<Ticket, u32>,
    tickets: u64,
    notes: VecDeque<Note>,
    totals: Totals,
    timeline: Option<Timeline>,
    loss: Option<DataLoss>,
    /// What only [`Rules::G10`] has.
    artifact: Artifact,
}

impl<'p> Model<'p> {
    fn new(
        program: &'p Program,
        machine: &Machine,
        lifetimes: bool,
        timeline: Option<Timeline>,
    ) -> Self {
        let frames = u32::try_from(machine.memory_bytes / BLOCK_BYTES).unwrap_or(u32::MAX);
        Self {
            program,
            machine: machine.clone(),
            lifetimes,
            now: Nanos(0),
            blocks: Blocks::new(program.blocks(), frames),
            lane_in: Lane::new(machine.link_in),
            lane_out: Lane::new(machine.link_out),
            density: true,
            drops_unwritten: false,
            head_evicts: false,
            service_evicts: false,
            host_bytes: 0,
            host_waits: 0,
            wakes: BinaryHeap::new(),
            open: HashMap::new(),
            tickets: 0,
            notes: VecDeque::new(),
            totals: Totals::default(),
            timeline,
            loss: None,
            artifact: Artifact::default(),
        }
    }

    /// One block's part of an order is over.
    fn settle(&mut self, ticket: Ticket) {
        let Some(left) = self.open.get_mut(&ticket) else {
            return;
        };
        *left -= 1;
        if *left == 0 {
            self.open.remove(&ticket);
            self.notes.push_back(Note::Done(ticket));
        }
    }

    /// Parts become pages on the device without a transfer.
    fn populate(&mut self, block: Block, leaves: Leaves) {
        let state = self.blocks.get_mut(block);
        let fresh = leaves.minus(state.populated);
        state.populated |= fresh;
        state.device |= fresh;
    }

    /// A part of the trace's memory came from the driver.
    fn alloc(&mut self, region: Region) {
        for piece in self.program.pieces_of(region) {
            let state = self.blocks.get_mut(piece.block);
            state.allocated = true;
        }
        self.notes.push_back(Note::Alloc(region));
    }

    /// It was given back: content and frames are gone.
    fn free(&mut self, region: Region) {
        for piece in self.program.pieces_of(region) {
            self.forget_unused(piece.block);
            let state = self.blocks.get_mut(piece.block);
            let host = state.on_host().bytes();
            state.allocated = false;
            state.populated = Leaves::NONE;
            state.device = Leaves::NONE;
            state.alive = Leaves::NONE;
            state.lost = Leaves::NONE;
            let held = state.frame == Frame::Held;
            self.host_bytes = self.host_bytes.saturating_sub(host);
            if held {
                self.blocks.release(piece.block);
            }
        }
        self.notes.push_back(Note::Free(region));
    }

    /// Parts whose content the program has declared dead.
    fn bury(&mut self, block: Block, leaves: Leaves) {
        let state = self.blocks.get_mut(block);
        state.alive &= !leaves;
        state.lost &= !leaves;
    }

    /// Drops content without a transfer.
    fn discard(&mut self, block: Block, leaves: Leaves) {
        let lifetimes = self.lifetimes;
        let state = self.blocks.get_mut(block);
        let leaves = leaves & state.populated;
        let alive = leaves & state.alive;
        let host = (leaves & state.on_host()).bytes();
        state.lost |= alive;
        state.populated &= !leaves;
        let was = state.device;
        state.device &= !leaves;
        let emptied = state.frame == Frame::Held && !was.is_empty() && state.device.is_empty();
        self.host_bytes = self.host_bytes.saturating_sub(host);
        if emptied {
            self.forget_unused(block);
            // The artifact's dead pages hold memory until they are the oldest.
            if self.machine.rules == Rules::Uvm {
                self.blocks.discard(block);
            }
        }
        if !lifetimes && !alive.is_empty() {
            self.lose(block, alive);
        }
    }

    fn lose(&mut self, block: Block, leaves: Leaves) {
        self.loss.get_or_insert(DataLoss {
            address: self.program.address(block),
            leaves: leaves.count(),
            at: self.now,
        });
    }

    /// What a prefetch brought and nobody used counts as wasted.
    fn forget_unused(&mut self, block: Block) {
        let state = self.blocks.get_mut(block);
        self.totals.prefetch_wasted += u64::from(std::mem::take(&mut state.unused));
    }

    /// Begins what the directions of the link can begin now.
    fn pump(&mut self, victim: &mut dyn FnMut(&mut Self) -> Option<Block>) {
        match self.machine.rules {
            Rules::Uvm => while self.pump_out() | self.pump_in(victim) {},
            Rules::G10 => self.artifact_pump(victim),
        }
        if let Some(timeline) = &mut self.timeline {
            use timeline::Counter::{QueuedIn, QueuedOut, Resident};
            let now = self.now;
            timeline.counter(Resident, now, u64::from(self.blocks.taken()));
            timeline.counter(QueuedIn, now, self.lane_in.queued_bytes);
            timeline.counter(QueuedOut, now, self.lane_out.queued_bytes);
        }
    }

    fn pump_out(&mut self) -> bool {
        if self.lane_out.current.is_some() {
            return false;
        }
        if let Some(transfer) = self.lane_out.urgent.front().copied() {
            let total = self.machine.link_total;
            let Some(rate) = self.lane_out.share(&self.lane_in, total) else {
                return false;
            };
            self.lane_out.urgent.pop_front();
            self.leave(transfer, Nanos(0), rate, false);
            return true;
        }
        let Some(order) = self.lane_out.orders.front().copied() else {
            return false;
        };
        let state = *self.blocks.get(order.block);
        if state.frame == Frame::Held && !state.moving.is_empty() {
            // Other parts of it are on their way in.
            return false;
        }
        if state.frame != Frame::Held || state.locked {
            // Gone already, coming in, or needed by the kernel this very moment.
            self.give_up(order);
            return true;
        }
        let total = self.machine.link_total;
        let Some(rate) = self.lane_out.share(&self.lane_in, total) else {
            return false;
        };
        self.lane_out.pop();
        self.blocks.get_mut(order.block).queued_out = false;
        let call = if order.first {
            self.machine.call
        } else {
            Nanos(0)
        };
        let transfer = Transfer {
            block: order.block,
            leaves: state.device,
            why: Why::Order(order.ticket),
        };
        self.leave(transfer, call, rate, order.want == Want::EvictDeep);
        true
    }

    fn give_up(&mut self, order: Order) {
        self.lane_out.pop();
        self.blocks.get_mut(order.block).queued_out = false;
        self.settle(order.ticket);
    }

    /// A block begins to leave the device; without content it is gone at once.
    /// To the SSD where the host is full or where it is `deep`.
    fn leave(&mut self, transfer: Transfer, extra: Nanos, rate: crate::units::Rate, deep: bool) {
        self.forget_unused(transfer.block);
        self.blocks.leave(transfer.block);
        let state = self.blocks.get_mut(transfer.block);
        let leaves = state.device;
        state.moving = leaves;
        state.device = Leaves::NONE;
        let transfer = Transfer { leaves, ..transfer };
        let mut rate = rate;
        let limit = self.machine.host_bytes.unwrap_or(u64::MAX);
        if !leaves.is_empty()
            && (deep || self.host_bytes + leaves.bytes() > limit)
            && let Some(ssd) = self.machine.ssd
        {
            rate = rate.min(ssd.write);
            self.blocks.get_mut(transfer.block).on_ssd = true;
        } else if !leaves.is_empty() {
            self.blocks.get_mut(transfer.block).on_ssd = false;
            self.host_bytes += leaves.bytes();
        }
        if leaves.is_empty() && extra == Nanos(0) {
            self.left(transfer, self.now);
        } else {
            self.lane_out.begin(transfer, self.now, extra, rate);
        }
    }

    /// What was leaving has left.
    fn left(&mut self, transfer: Transfer, start: Nanos) {
        let block = transfer.block;
        let bytes = transfer.leaves.bytes();
        self.blocks.release(block);
        self.blocks.get_mut(block).moving = Leaves::NONE;
        self.totals.bytes_out += bytes;
        let cause = match transfer.why {
            Why::HostFault => Cause::Fault,
            Why::Order(_) => Cause::Order,
            Why::Fault | Why::Room => Cause::Driver,
        };
        if let Some(timeline) = &mut self.timeline
            && bytes > 0
        {
            timeline.transfer(timeline::Direction::Out, cause, bytes, start, self.now);
        }
        match transfer.why {
            Why::HostFault => {
                self.host_waits -= 1;
                self.notes.push_back(Note::HostFault(block));
                self.notes
                    .push_back(Note::Evicted(block, bytes, Evictor::Driver));
            }
            Why::Order(ticket) => {
                self.notes
                    .push_back(Note::Evicted(block, bytes, Evictor::Policy));
                self.settle(ticket);
            }
            Why::Fault => {
                self.service_evicts = false;
                self.notes
                    .push_back(Note::Evicted(block, bytes, Evictor::Driver));
            }
            Why::Room => {
                self.head_evicts = false;
                self.notes
                    .push_back(Note::Evicted(block, bytes, Evictor::Driver));
            }
        }
    }

    fn pump_in(&mut self, victim: &mut dyn FnMut(&mut Self) -> Option<Block>) -> bool {
        if self.lane_in.current.is_some() {
            return false;
        }
        let total = self.machine.link_total;
        if let Some(transfer) = self.lane_in.urgent.front().copied() {
            let Some(rate) = self.lane_in.share(&self.lane_out, total) else {
                return false;
            };
            self.lane_in.urgent.pop_front();
            let rate = self.rate_in(transfer.block, rate);
            self.lane_in.begin(transfer, self.now, Nanos(0), rate);
            return true;
        }
        let Some(order) = self.lane_in.orders.front().copied() else {
            return false;
        };
        let (wanted, room) = self.wanted(order);
        let state = *self.blocks.get(order.block);
        if !state.allocated || state.frame == Frame::Incoming {
            self.done_in(order);
            return true;
        }
        if state.frame == Frame::Outgoing {
            return false;
        }
        if wanted.is_empty() {
            // All there: the driver moves its chunk to the young end of the list.
            if state.frame == Frame::Held && state.list == ListName::Used {
                self.blocks.hold(order.block);
            }
            self.done_in(order);
            return true;
        }
        if state.frame == Frame::None && !self.blocks.take_frame(order.block) {
            if room == Room::Take && !self.head_evicts {
                let Some(old) = victim(self) else {
                    return false;
                };
                self.head_evicts = true;
                self.evict_for(old, Why::Room);
                return true;
            }
            return false;
        }
        let moving = wanted & state.on_host();
        let Some(rate) = self.lane_in.share(&self.lane_out, total) else {
            if state.frame == Frame::None {
                self.blocks.release(order.block);
            }
            return false;
        };
        self.lane_in.pop();
        let state = self.blocks.get_mut(order.block);
        state.queued_in = false;
        if state.frame == Frame::Held {
            // Its frame may stand in the list of dropped ones.
            self.blocks.hold(order.block);
        }
        let fresh = wanted.minus(self.blocks.get(order.block).populated);
        let transfer = Transfer {
            block: order.block,
            leaves: moving,
            why: Why::Order(order.ticket),
        };
        self.blocks.get_mut(order.block).moving = moving;
        self.populate(order.block, fresh);
        let call = if order.first {
            self.machine.call
        } else {
            Nanos(0)
        };
        let rate = self.rate_in(order.block, rate);
        if moving.is_empty() && call == Nanos(0) {
            self.came(transfer, self.now);
        } else {
            self.lane_in.begin(transfer, self.now, call, rate);
        }
        true
    }

    /// The parts that an order still has to bring or populate.
    fn wanted(&self, order: Order) -> (Leaves, Room) {
        let state = self.blocks.get(order.block);
        match order.want {
            Want::Prefetch(room) if state.populated.is_empty() => (Leaves::ALL, room),
            Want::Prefetch(room) => (state.on_host(), room),
            Want::Populate(leaves, room) => (leaves.minus(state.populated), room),
            Want::Evict | Want::EvictDeep => (Leaves::NONE, Room::Wait),
        }
    }

    fn done_in(&mut self, order: Order) {
        self.lane_in.pop();
        self.blocks.get_mut(order.block).queued_in = false;
        self.settle(order.ticket);
    }

    fn rate_in(&self, block: Block, rate: crate::units::Rate) -> crate::units::Rate {
        match self.machine.ssd {
            Some(ssd) if self.blocks.get(block).on_ssd => rate.min(ssd.read),
            _ => rate,
        }
    }

    /// What was coming has come.
    fn came(&mut self, transfer: Transfer, start: Nanos) {
        let block = transfer.block;
        let state = self.blocks.get_mut(block);
        // Freed or dropped meanwhile: only what still has content arrives.
        let leaves = transfer.leaves & state.populated;
        state.device |= leaves;
        state.moving = Leaves::NONE;
        let bytes = transfer.leaves.bytes();
        let on_ssd = std::mem::take(&mut state.on_ssd);
        let allocated = state.allocated;
        if !on_ssd && self.machine.rules == Rules::Uvm {
            self.host_bytes = self.host_bytes.saturating_sub(leaves.bytes());
        }
        if allocated {
            self.blocks.hold(block);
        } else {
            self.blocks.release(block);
        }
        self.totals.bytes_in += bytes;
        let by = match transfer.why {
            Why::Order(_) => Arrival::Prefetch,
            Why::Fault | Why::HostFault | Why::Room => Arrival::Fault,
        };
        let cause = match by {
            Arrival::Prefetch => Cause::Order,
            Arrival::Fault => Cause::Fault,
        };
        if let Some(timeline) = &mut self.timeline
            && bytes > 0
        {
            timeline.transfer(timeline::Direction::In, cause, bytes, start, self.now);
        }
        if let Why::Order(ticket) = transfer.why {
            self.totals.prefetch_issued += bytes;
            self.blocks.get_mut(block).unused += bytes as u32;
            self.settle(ticket);
        }
        self.notes.push_back(Note::Arrived(block, bytes, by));
    }

    /// Puts a block out of the device for the driver's own need.
    fn evict_for(&mut self, block: Block, why: Why) {
        let leaves = self.blocks.get(block).device;
        let transfer = Transfer { block, leaves, why };
        // It must not be chosen again while it waits for the link.
        self.blocks.leave(block);
        self.lane_out.urgent.push_back(transfer);
    }
}
