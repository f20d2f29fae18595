//! What a policy may ask and order.

use std::cmp::Reverse;

use super::Model;
use super::blocks::{Frame, ListName};
use super::lane::{Order, Want};
use crate::class::Ticket;
use crate::machine::{Machine, Rules};
use crate::trace::{Block, Piece};
use crate::units::{Leaves, Nanos, Region};

/// Where a block is, as the driver's events show it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// It has no content anywhere (and holds no frame).
    Unpopulated,
    /// Its content is on the host or the SSD.
    Host,
    /// A prefetch of it is queued or under way.
    Incoming,
    /// It holds a frame, perhaps only with a part of its content.
    Device,
    /// It is being copied out.
    Outgoing,
}

/// What a prefetch does where no frame is free.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Room {
    /// Evicts at once, as the driver does.
    Take,
    /// Waits, and everything queued behind it, until a frame is free.
    Wait,
}

/// A policy's hands and eyes. Knows nothing of the trace.
#[derive(Debug)]
pub struct Desk<'a> {
    model: &'a mut (dyn State + 'a),
}

/// What [`Desk`] needs of the model, without the program's lifetime.
pub(super) trait State: std::fmt::Debug {
    fn core(&self) -> &Model<'_>;
    fn order_in(&mut self, block: Block, want: Want, ticket: Ticket, first: bool) -> bool;
    fn order_out(&mut self, block: Block, want: Want, ticket: Ticket, first: bool) -> bool;
    fn ticket(&mut self) -> Ticket;
    fn begin(&mut self, ticket: Ticket, blocks: u32);
    fn cancel(&mut self);
    fn drop_content(&mut self, piece: Piece);
    fn wake(&mut self, at: Nanos);
    fn density(&mut self, on: bool);
    fn hold(&mut self, launches: Option<u32>);
    fn drop_unwritten(&mut self);
    fn leave_on_host(&mut self, block: Block, stays: bool);
    fn bring_back(&mut self);
    fn use_both_tiers(&mut self);
}

impl State for Model<'_> {
    fn core(&self) -> &Model<'_> {
        self
    }

    fn order_in(&mut self, block: Block, want: Want, ticket: Ticket, first: bool) -> bool {
        if self.machine.rules == Rules::G10 {
            return self.artifact_order(block, want, ticket, first);
        }
        let state = self.blocks.get_mut(block);
        if !state.allocated || state.queued_in {
            return false;
        }
        state.queued_in = true;
        let bytes = match want {
            Want::Prefetch(_) => state.on_host().bytes(),
            Want::Populate(..) | Want::Evict | Want::EvictDeep => 0,
        };
        let lane = match want {
            Want::Populate(..) => &mut self.lane_local,
            Want::Prefetch(_) | Want::Evict | Want::EvictDeep => &mut self.lane_in,
        };
        lane.push(Order {
            block,
            want,
            ticket,
            first,
            bytes,
            parts: Leaves::NONE,
        });
        true
    }

    fn order_out(&mut self, block: Block, want: Want, ticket: Ticket, first: bool) -> bool {
        let state = self.blocks.get_mut(block);
        if state.frame != Frame::Held || state.queued_out {
            return false;
        }
        state.queued_out = true;
        let bytes = state.device.bytes();
        self.lane_out.push(Order {
            block,
            want,
            ticket,
            first,
            bytes,
            parts: Leaves::NONE,
        });
        true
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    fn begin(&mut self, ticket: Ticket, blocks: u32) {
        if blocks == 0 {
            self.notes.push_back(super::Note::Done(ticket));
        } else {
            self.open.insert(ticket, blocks);
        }
    }

    fn cancel(&mut self) {
        let mut dropped: Vec<Order> = self.artifact.cancel().collect();
        for order in &dropped {
            self.lane_in.queued_bytes -= order.bytes;
        }
        for lane in [&mut self.lane_in, &mut self.lane_local] {
            dropped.extend(std::iter::from_fn(|| lane.pop()));
        }
        for order in dropped {
            self.blocks.get_mut(order.block).queued_in = false;
            self.settle(order.ticket);
        }
    }

    fn drop_content(&mut self, piece: Piece) {
        self.discard(piece.block, piece.leaves);
    }

    fn wake(&mut self, at: Nanos) {
        self.wakes.push(Reverse(at.max(self.now)));
    }

    fn density(&mut self, on: bool) {
        self.density = on;
    }

    fn hold(&mut self, launches: Option<u32>) {
        self.most_ahead = launches;
    }

    fn drop_unwritten(&mut self) {
        self.drops_unwritten = true;
    }

    fn leave_on_host(&mut self, block: Block, stays: bool) {
        self.stay(block, stays);
    }

    fn bring_back(&mut self) {
        self.brings_back = true;
    }

    fn use_both_tiers(&mut self) {
        self.uses_both_tiers = true;
    }
}

impl<'a> Desk<'a> {
    pub(super) fn new(model: &'a mut (dyn State + 'a)) -> Self {
        Self { model }
    }

    pub(super) fn core(&self) -> &Model<'_> {
        self.model.core()
    }

    /// The time.
    pub fn now(&self) -> Nanos {
        self.core().now
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.core().machine
    }

    /// Frames that managed memory may fill, in blocks.
    pub fn capacity(&self) -> u32 {
        self.core().blocks.capacity()
    }

    /// Frames that can be taken without an eviction: free ones and those whose content was
    /// dropped.
    pub fn free(&self) -> u32 {
        let blocks = &self.core().blocks;
        blocks.free() + blocks.discarded()
    }

    /// Where a block is.
    pub fn place(&self, block: Block) -> Place {
        let state = self.core().blocks.get(block);
        match state.frame {
            Frame::Incoming => Place::Incoming,
            Frame::Outgoing => Place::Outgoing,
            _ if state.queued_in => Place::Incoming,
            Frame::Held if state.list == ListName::Discarded => Place::Unpopulated,
            Frame::Held => Place::Device,
            Frame::None if state.populated.is_empty() => Place::Unpopulated,
            Frame::None => Place::Host,
        }
    }

    /// Parts of a block on the device.
    pub fn resident(&self, block: Block) -> Leaves {
        self.core().blocks.get(block).device
    }

    /// Parts of a block with content that is on the host, and not under way.
    pub fn missing(&self, block: Block) -> Leaves {
        self.core().blocks.get(block).on_host()
    }

    /// The blocks of a region that was obtained.
    pub fn blocks_of(&self, region: Region) -> Vec<Block> {
        let program = self.core().program;
        program.pieces_of(region).map(|piece| piece.block).collect()
    }

    /// The parts of blocks of a region that was obtained.
    pub fn pieces_of(&self, region: Region) -> Vec<Piece> {
        self.core().program.pieces_of(region).collect()
    }

    /// The program itself obtained the block as managed memory.
    pub fn is_by_program(&self, block: Block) -> bool {
        self.core().program.is_by_program(block)
    }

    /// First byte of a block.
    pub fn address(&self, block: Block) -> u64 {
        self.core().program.address(block)
    }

    /// The block that holds an address, where managed memory exists there.
    pub fn block_at(&self, address: u64) -> Option<Block> {
        let core = self.core();
        let block = core.program.block_at(address)?;
        core.blocks.get(block).allocated.then_some(block)
    }

    /// Resident blocks, least recently migrated first: the driver's order of eviction.
    pub fn oldest(&self) -> impl Iterator<Item = Block> + '_ {
        self.core().blocks.in_order()
    }

    /// Bytes ordered in that have not moved yet.
    pub fn queued_in(&self) -> u64 {
        let lane = &self.core().lane_in;
        let moving = lane.current.map_or(0, |now| now.transfer.leaves.bytes());
        lane.queued_bytes + moving
    }

    /// Bytes ordered out that have not moved yet.
    pub fn queued_out(&self) -> u64 {
        let lane = &self.core().lane_out;
        let moving = lane.current.map_or(0, |now| now.transfer.leaves.bytes());
        lane.queued_bytes + moving
    }

    /// Brings the content of these blocks to the device, in this order, in one call. A
    /// block that is there already moves to the young end of the driver's list; one
    /// without any content is populated. Blocks that are queued already stay where they are.
    pub fn prefetch(&mut self, blocks: &[Block], room: Room) -> Ticket {
        let wants = blocks.iter().map(|block| (*block, Want::Prefetch(room)));
        self.order(wants)
    }

    /// Gives these parts pages on the device where they have no content.
    pub fn populate(&mut self, pieces: &[Piece], room: Room) -> Ticket {
        let wants = pieces
            .iter()
            .map(|piece| (piece.block, Want::Populate(piece.leaves, room)));
        self.order(wants)
    }

    /// Drops the prefetches and populates that are queued, but not what is under way.
    pub fn cancel_prefetches(&mut self) {
        self.model.cancel();
    }

    /// Brings what these blocks have on the device to the host, in this order, in one
    /// call. A block whose content was dropped costs no transfer.
    pub fn evict(&mut self, blocks: &[Block]) -> Ticket {
        self.order_out(blocks, Want::Evict)
    }

    /// As [`Desk::evict`], but to the SSD, where the machine has one.
    pub fn evict_deep(&mut self, blocks: &[Block]) -> Ticket {
        self.order_out(blocks, Want::EvictDeep)
    }

    fn order_out(&mut self, blocks: &[Block], want: Want) -> Ticket {
        let ticket = self.model.ticket();
        let mut count = 0;
        for block in blocks {
            if self.model.order_out(*block, want, ticket, count == 0) {
                count += 1;
            }
        }
        self.model.begin(ticket, count);
        ticket
    }

    /// Drops content without a transfer. Dropping what the program still needs ends the run
    /// with [`super::DataLoss`].
    pub fn discard(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            self.model.drop_content(*piece);
        }
    }

    /// From now on launches use on the host what lies there of these blocks, over the link and
    /// without a fault; or, not any more. What is on the device stays there until it is evicted.
    /// The `g10` machine's rules do not have it.
    pub fn use_on_host(&mut self, blocks: &[Block], on_host: bool) {
        for block in blocks {
            self.model.leave_on_host(*block, on_host);
        }
    }

    /// Asks for [`crate::class::DriverNotice::Wake`] at a time.
    pub fn wake_at(&mut self, at: Nanos) {
        self.model.wake(at);
    }

    /// Has the host wait with a launch while it is so many launches ahead of the device, as a
    /// library in the program can; with none, it waits only where the driver's queue is full.
    pub fn hold_host(&mut self, launches: Option<u32>) {
        self.model.hold(launches);
    }

    /// Switches the driver's density prefetch (module parameter
    /// `uvm_perf_prefetch_enable`); on unless switched off.
    pub fn set_density(&mut self, on: bool) {
        self.model.density(on);
    }

    /// From now on a victim's parts that were populated and not written yet are dropped, not
    /// copied out: for systems that know when content is born. Only the `g10` machine's
    /// rules have it.
    pub fn drop_unwritten(&mut self) {
        self.model.drop_unwritten();
    }

    /// From now on what the running launch had and loses comes back before its end. Only the
    /// `g10` machine's rules have it.
    pub fn bring_back(&mut self) {
        self.model.bring_back();
    }

    /// From now on what leaves goes to the SSD while the way there is free, and to the host while it
    /// is not. Only the `g10` machine's rules have both.
    pub fn use_both_tiers(&mut self) {
        self.model.use_both_tiers();
    }

    fn order(&mut self, wants: impl Iterator<Item = (Block, Want)>) -> Ticket {
        let ticket = self.model.ticket();
        let mut count = 0;
        for (block, want) in wants {
            if self.model.order_in(block, want, ticket, count == 0) {
                count += 1;
            }
        }
        self.model.begin(ticket, count);
        ticket
    }
}
