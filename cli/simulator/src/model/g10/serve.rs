//! Who gets a frame and the way to the device, under the artifact's rules: faults before
//! orders, the SSD before the host before what has no content.

use crate::class::Arrival;
use crate::model::lane::{Order, Transfer, Why};
use crate::model::{Model, Note, Room};
use crate::trace::Block;
use crate::units::Leaves;

use super::{Frame, Head, Moving, Tier};

impl Model<'_> {
    /// Serves the heads of the queues in their order.
    pub(super) fn bring(&mut self, victim: &mut dyn FnMut(&mut Self) -> Option<Block>) -> bool {
        let (mut waiting, mut soon, mut prefetches) = (0, 0, 0);
        for class in 0..3 {
            match self.serve_fault(class) {
                Head::Moved => return true,
                Head::NoFrame => waiting += 1,
                Head::Soon => soon += 1,
                Head::Rests => {}
            }
        }
        for class in 0..3 {
            let urgent = self.artifact.orders[class]
                .front()
                .is_some_and(|order| self.artifact.urgent(order.block));
            match self.serve_order(class, waiting > 0) {
                (Head::Moved, _) => return true,
                (Head::NoFrame, _) if urgent => waiting += 1,
                (Head::Soon, _) if urgent => soon += 1,
                (Head::NoFrame | Head::Soon, room) => prefetches += usize::from(room == Room::Take),
                (Head::Rests, _) => {}
            }
        }
        let first = waiting + soon;
        if first > 0 && self.make_room(first, victim) {
            return true;
        }
        if waiting > 0 {
            return false;
        }
        self.artifact.room_for_prefetch = true;
        let made = prefetches > 0 && self.make_room(first + prefetches, victim);
        self.artifact.room_for_prefetch = false;
        if !made && !self.artifact.lockup && self.artifact.locked_up() {
            self.artifact.lockup = true;
            return true;
        }
        made
    }

    /// Has a block leave for those that wait for a frame, so many.
    fn make_room(
        &mut self,
        waiting: usize,
        victim: &mut dyn FnMut(&mut Self) -> Option<Block>,
    ) -> bool {
        // Those that are on their way out already are room for as many.
        let leaving = self.artifact.leaving.iter().flatten();
        if leaving.filter(|one| one.transfer.why == Why::Room).count() >= waiting {
            return false;
        }
        let Some(old) = victim(self) else {
            return false;
        };
        self.send(old, Why::Room, false)
    }

    fn serve_fault(&mut self, class: usize) -> Head {
        let Some(block) = self.artifact.faults[class].front().copied() else {
            return Head::Rests;
        };
        let need = self.artifact.needs[block.index()];
        let lacking = self.lacks(block, need.leaves);
        let state = self.blocks.get(block);
        if lacking.is_empty() || need.launch != self.artifact.launch {
            self.artifact.faults[class].pop_front();
            return Head::Moved;
        }
        if state.frame == Frame::Outgoing || !state.moving.is_empty() {
            return self.rotate(class);
        }
        let now_class = self.class(block);
        if now_class != class {
            self.artifact.faults[class].pop_front();
            self.artifact.faults[now_class].push_back(block);
            return Head::Moved;
        }
        let head = self.fetch(block, lacking, Why::Fault);
        if head == Head::Moved {
            self.artifact.faults[class].pop_front();
        }
        head
    }

    /// Puts a head whose transfer is under way behind the first that has none.
    fn rotate(&mut self, class: usize) -> Head {
        let ready = |block: &Block| {
            let state = self.blocks.get(*block);
            state.frame != Frame::Outgoing && state.moving.is_empty()
        };
        let Some(at) = self.artifact.faults[class].iter().position(ready) else {
            return Head::Rests;
        };
        self.artifact.faults[class].swap(0, at);
        Head::Moved
    }

    fn serve_order(&mut self, class: usize, faults_wait: bool) -> (Head, Room) {
        let Some(order) = self.artifact.orders[class].front().copied() else {
            return (Head::Rests, Room::Wait);
        };
        let (wanted, mut room) = self.wanted(order);
        if self.artifact.urgent(order.block) {
            room = Room::Take;
        }
        let state = *self.blocks.get(order.block);
        if state.frame == Frame::Outgoing || !state.moving.is_empty() && state.allocated {
            return (Head::Rests, room);
        }
        if !state.allocated || wanted.is_empty() {
            self.artifact.orders[class].pop_front();
            self.ordered(order);
            return (Head::Moved, room);
        }
        if faults_wait && state.frame == Frame::None {
            // A frame that comes free is the faults'.
            return (Head::Rests, room);
        }
        let head = self.fetch(order.block, wanted, Why::Order(order.ticket));
        if head == Head::Moved {
            self.artifact.orders[class].pop_front();
            self.unqueue(order);
            // What it was to give pages may have content elsewhere by now.
            self.present(order.block);
        }
        (head, room)
    }

    fn ordered(&mut self, order: Order) {
        self.unqueue(order);
        self.settle(order.ticket);
        self.present(order.block);
    }

    /// Begins to bring parts of a block, or populates them.
    fn fetch(&mut self, block: Block, wanted: Leaves, why: Why) -> Head {
        let held = self.blocks.get(block).frame == Frame::Held;
        let moving = wanted & self.blocks.get(block).on_host();
        let tier = self.tier(block);
        let busy = !moving.is_empty() && self.artifact.coming[tier as usize].is_some();
        if !held && self.blocks.free() == 0 {
            return if busy { Head::Soon } else { Head::NoFrame };
        }
        if busy {
            return Head::Rests;
        }
        if !held && !self.blocks.take_frame(block) {
            return Head::NoFrame;
        }
        self.populate(block, wanted);
        let transfer = Transfer {
            block,
            leaves: moving,
            why,
        };
        if moving.is_empty() {
            if held {
                // Pages that are there keep their place in the order.
                let by = match why {
                    Why::Order(_) => Arrival::Prefetch,
                    Why::Fault | Why::HostFault | Why::Room => Arrival::Fault,
                };
                self.notes.push_back(Note::Arrived(block, 0, by));
                if let Why::Order(ticket) = why {
                    self.settle(ticket);
                }
            } else {
                self.came(transfer, self.now);
            }
            self.present(block);
            return Head::Moved;
        }
        if tier == Tier::Host {
            // Its place there is free at once, for what leaves beside it.
            self.host_bytes = self.host_bytes.saturating_sub(moving.bytes());
        }
        let state = self.blocks.get_mut(block);
        state.moving = moving;
        state.locked = true;
        let busy = self.artifact.coming[Tier::Ssd as usize].is_some();
        let end = self.now + self.rate(tier, true, busy).time(moving.bytes());
        self.artifact.coming[tier as usize] = Some(Moving {
            transfer,
            start: self.now,
            end,
        });
        Head::Moved
    }
}
