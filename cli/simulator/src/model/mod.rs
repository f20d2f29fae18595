//! The model of a device with paged memory: what is where, what moves, what a kernel waits
//! for.
//!
//! Discrete events in integer time. [`Model`] owns the state and the two directions of the
//! link and is what a policy acts on, through [`Desk`]; `drive` owns the order of events;
//! `kernel` the progress of the running launch; `service` the driver's fault handling;
//! `transfers` what moves over the link; `on_host` what launches use on the host;
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
mod on_host;
mod service;
#[cfg(test)]
mod tests;
mod transfers;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

pub use desk::{Desk, Place, Room};
pub use drive::{DataLoss, Played, Stopped, play};

use blocks::{Blocks, Frame};
use g10::Artifact;
use lane::Lane;

use crate::class::{Arrival, Evictor, Ticket};
use crate::machine::{Machine, Rules};
use crate::timeline::Timeline;
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
    /// Bytes that launches read on the host, over the link; not in `bytes_in`.
    pub host_read: u64,
    /// Bytes that launches wrote there; not in `bytes_out`.
    pub host_written: u64,
    /// Bytes used there of blocks that no launch uses by an index.
    pub host_unindexed: u64,
}

impl Totals {
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
            host_read: f(self.host_read, other.host_read),
            host_written: f(self.host_written, other.host_written),
            host_unindexed: f(self.host_unindexed, other.host_unindexed),
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
    /// What gives pages without a transfer: beside the link, on a stream of its own.
    lane_local: Lane,
    /// The driver's density prefetch is on.
    density: bool,
    /// Where a policy holds the host: most launches that it is ahead.
    most_ahead: Option<u32>,
    /// Parts of a victim that no launch has written are dropped.
    drops_unwritten: bool,
    /// What the running launch had and loses comes back before its end.
    brings_back: bool,
    /// What leaves goes both ways at once, to the host and to the SSD.
    uses_both_tiers: bool,
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
            lane_local: Lane::new(machine.link_in),
            density: true,
            most_ahead: None,
            drops_unwritten: false,
            brings_back: false,
            uses_both_tiers: false,
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
            let host = state.host_bytes(Leaves::ALL);
            state.allocated = false;
            state.stays = false;
            state.on_ssd = false;
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
        let host = state.host_bytes(leaves);
        state.lost |= alive;
        state.populated &= !leaves;
        state.on_ssd &= !state.populated.is_empty();
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
}
