//! What moves over the link: which transfer begins when, and what its end changes.

use super::blocks::{Frame, ListName};
use super::lane::{Lane, Order, Transfer, Want, Why};
use super::{Model, Note, Room};
use crate::class::{Arrival, Evictor};
use crate::machine::Rules;
use crate::timeline::{self, Cause};
use crate::trace::Block;
use crate::units::{Leaves, Nanos, Rate};

impl Model<'_> {
    /// Begins what the directions of the link can begin now.
    pub(super) fn pump(&mut self, victim: &mut dyn FnMut(&mut Self) -> Option<Block>) {
        match self.machine.rules {
            Rules::Uvm => while self.pump_out() | self.pump_in(victim) | self.pump_local(victim) {},
            Rules::G10 => self.artifact_pump(victim),
        }
        if let Some(total) = self.machine.link_total {
            Lane::share_out(&mut self.lane_in, &mut self.lane_out, total, self.now);
        }
        if let Some(timeline) = &mut self.timeline {
            use timeline::Counter::{QueuedIn, QueuedOut, Resident};
            let now = self.now;
            timeline.counter(Resident, now, u64::from(self.blocks.taken()));
            timeline.counter(QueuedIn, now, self.lane_in.queued_bytes);
            timeline.counter(QueuedOut, now, self.lane_out.queued_bytes);
        }
    }

    pub(super) fn pump_out(&mut self) -> bool {
        if !self.lane_out.is_free() {
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

    pub(super) fn give_up(&mut self, order: Order) {
        self.lane_out.pop();
        self.blocks.get_mut(order.block).queued_out = false;
        self.settle(order.ticket);
    }

    /// A block begins to leave the device; without content it is gone at once.
    /// To the SSD where the host is full or where it is `deep`.
    pub(super) fn leave(&mut self, transfer: Transfer, extra: Nanos, rate: Rate, deep: bool) {
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
    pub(super) fn left(&mut self, transfer: Transfer, start: Nanos) {
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

    pub(super) fn pump_in(&mut self, victim: &mut dyn FnMut(&mut Self) -> Option<Block>) -> bool {
        if !self.lane_in.is_free() {
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
        if let Some(begun) = self.ready(order, victim) {
            return begun;
        }
        let Some(rate) = self.lane_in.share(&self.lane_out, total) else {
            if self.blocks.get(order.block).frame == Frame::Incoming {
                self.blocks.release(order.block);
            }
            return false;
        };
        let rate = self.rate_in(order.block, rate);
        let (transfer, call) = self.begin_order(order);
        if transfer.leaves.is_empty() && call == Nanos(0) {
            self.came(transfer, self.now);
        } else {
            self.lane_in.begin(transfer, self.now, call, rate);
        }
        true
    }

    /// Begins to give pages without a transfer: a call's time each, whatever the link does.
    fn pump_local(&mut self, victim: &mut dyn FnMut(&mut Self) -> Option<Block>) -> bool {
        if !self.lane_local.is_free() {
            return false;
        }
        let Some(order) = self.lane_local.orders.front().copied() else {
            return false;
        };
        if let Some(begun) = self.ready(order, victim) {
            return begun;
        }
        let (transfer, call) = self.begin_order(order);
        if call == Nanos(0) {
            self.came(transfer, self.now);
        } else {
            let rate = self.machine.link_in;
            self.lane_local.begin(transfer, self.now, call, rate);
        }
        true
    }

    /// Takes a frame for an order, so that it can begin: nothing. Otherwise whether anything
    /// else came of it.
    fn ready(
        &mut self,
        order: Order,
        victim: &mut dyn FnMut(&mut Self) -> Option<Block>,
    ) -> Option<bool> {
        let (wanted, room) = self.wanted(order);
        let state = *self.blocks.get(order.block);
        if !state.allocated || state.frame == Frame::Incoming {
            self.done_in(order);
            return Some(true);
        }
        if state.frame == Frame::Outgoing || self.is_coming(order.block) {
            return Some(false);
        }
        if wanted.is_empty() {
            // All there: the driver moves its chunk to the young end of the list.
            if state.frame == Frame::Held && state.list == ListName::Used {
                self.blocks.hold(order.block);
            }
            self.done_in(order);
            return Some(true);
        }
        if state.frame != Frame::None || self.blocks.take_frame(order.block) {
            return None;
        }
        if room == Room::Wait || self.head_evicts {
            return Some(false);
        }
        let Some(old) = victim(self) else {
            return Some(false);
        };
        self.head_evicts = true;
        self.evict_for(old, Why::Room);
        Some(true)
    }

    /// An order that has its frame begins: what moves, and the time of its call.
    fn begin_order(&mut self, order: Order) -> (Transfer, Nanos) {
        let (wanted, _) = self.wanted(order);
        let state = *self.blocks.get(order.block);
        let moving = wanted & state.on_host();
        self.lane_of(order).pop();
        self.blocks.get_mut(order.block).queued_in = false;
        if state.frame == Frame::Held {
            // Its frame may stand in the list of dropped ones.
            self.blocks.hold(order.block);
        }
        let fresh = wanted.minus(state.populated);
        self.blocks.get_mut(order.block).moving = moving;
        self.populate(order.block, fresh);
        let transfer = Transfer {
            block: order.block,
            leaves: moving,
            why: Why::Order(order.ticket),
        };
        let call = if order.first {
            self.machine.call
        } else {
            Nanos(0)
        };
        (transfer, call)
    }

    /// Parts of the block are on their way to the device, or are being given to it.
    pub(super) fn is_coming(&self, block: Block) -> bool {
        let given = self.lane_local.current.as_ref();
        !self.blocks.get(block).moving.is_empty()
            || given.is_some_and(|given| given.transfer.block == block)
    }

    /// The lane of an order to the device.
    fn lane_of(&mut self, order: Order) -> &mut Lane {
        match order.want {
            Want::Populate(..) => &mut self.lane_local,
            Want::Prefetch(_) | Want::Evict | Want::EvictDeep => &mut self.lane_in,
        }
    }

    /// The parts that an order still has to bring or populate.
    pub(super) fn wanted(&self, order: Order) -> (Leaves, Room) {
        let state = self.blocks.get(order.block);
        match order.want {
            Want::Prefetch(room) if state.populated.is_empty() => (Leaves::ALL, room),
            Want::Prefetch(room) => (state.on_host(), room),
            Want::Populate(leaves, room) => (leaves.minus(state.populated), room),
            Want::Evict | Want::EvictDeep => (Leaves::NONE, Room::Wait),
        }
    }

    pub(super) fn done_in(&mut self, order: Order) {
        self.lane_of(order).pop();
        self.blocks.get_mut(order.block).queued_in = false;
        self.settle(order.ticket);
    }

    pub(super) fn rate_in(&self, block: Block, rate: Rate) -> Rate {
        match self.machine.ssd {
            Some(ssd) if self.blocks.get(block).on_ssd => rate.min(ssd.read),
            _ => rate,
        }
    }

    /// What was coming has come.
    pub(super) fn came(&mut self, transfer: Transfer, start: Nanos) {
        let block = transfer.block;
        let state = self.blocks.get_mut(block);
        // Freed or dropped meanwhile: only what still has content arrives.
        let leaves = transfer.leaves & state.populated;
        state.device |= leaves;
        state.moving = state.moving.minus(transfer.leaves);
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
    pub(super) fn evict_for(&mut self, block: Block, why: Why) {
        let leaves = self.blocks.get(block).device;
        let transfer = Transfer { block, leaves, why };
        // It must not be chosen again while it waits for the link.
        self.blocks.leave(block);
        self.lane_out.urgent.push_back(transfer);
    }
}
