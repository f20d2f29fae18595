//! The rules of the G10 artifact's page simulator, for the machine whose published numbers
//! are compared with.
//!
//! Source: `platformxlab/G10`, commit de2c8c6, `simulationEvents.cc` and
//! `simulationComponents.cc`. What differs from nvidia-uvm's rules:
//!
//! - A fault has no latency. A launch raises all its faults when it starts, runs meanwhile,
//!   and ends at max(start + its time + faulted bytes / bandwidth, arrival of the last
//!   missing part); never-written parts are charged like a transfer from the host.
//! - Host and SSD traffic run side by side in each direction, the SSD's within the link's
//!   rate; whatever needs a frame has the oldest block leave while others come.
//! - Served in this order: ordered evictions; faults from the SSD, from the host, without
//!   content; orders from the SSD, from the host, without content.
//! - A queued prefetch counts as under way: what it brings is no fault, the launch waits for
//!   it, and once the launch does it takes its frame like a fault. So do all orders, until the
//!   launch has what it needs, once it waits and no order finds a victim (`lockup`).
//! - Pages are queued one by one, and so are a block's parts here: tensors that share a block
//!   at their edges do not wait for each other.
//! - The oldest block by arrival leaves, whatever it holds; dropped content costs nothing but
//!   keeps its frame until it is the oldest.
//! - Content that nobody wrote lies on the SSD at first (weights).
//!
//! Choices: whole blocks of 2 MiB move where the artifact moves 4 KiB pages in batches of 50
//! of 13 us; a block's transfer begins when its frame is free. What the running launch has
//! had and loses comes back before its end under `deepum-plus` alone: the code puts such
//! pages into the fault queue whatever the policy, but the published traffic of `lru` is
//! what it is without (Inceptionv3: 127.55 GiB in; without 127.59, with 139.04), and that of
//! `deepUM` leaves and comes in equal parts, which it does only with. The profiled times with
//! faults are not in the traces, so the lower fault bandwidth that the artifact gives to
//! launches that take a second or more then (95 of 929 in Inceptionv3, 179 of 1299 in
//! ResNet152, 376 of 2319 in SENet154) is left out.
//!
//! Which way evicted content goes is for the artifact's systems to say: to the host while there is
//! room, or where a plan sends it. An engine's executor uses both ways at once: what leaves goes to
//! the SSD while the way there is free ([`Model::uses_both_tiers`]), so that the host is not full
//! when most has to leave. It also queues the pages that a launch is the first to write when that
//! starts, by its pointers and what the allocator handed out, as the artifact's systems queue them
//! ahead: who leaves them to faults is charged for them, though nothing moves.
//!
//! Owns the state and what begins and ends a launch; `serve` owns who gets a frame.

mod serve;

use std::collections::VecDeque;

use crate::class::Ticket;
use crate::trace::{Access, Block};
use crate::units::{Leaves, Nanos, Rate};

use super::Model;
use super::blocks::Frame;
use super::lane::{Order, Transfer, Want, Why};

/// Where evicted content lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Tier {
    Ssd,
    Host,
}

const TIERS: [Tier; 2] = [Tier::Ssd, Tier::Host];

/// What serving the head of a queue came to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Head {
    /// It is under way or over: look again.
    Moved,
    /// It needs a frame that is not there.
    NoFrame,
    /// It will need one when the way is free again.
    Soon,
    /// Nothing to do now.
    Rests,
}

/// What moves between the device and one tier, one way.
#[derive(Clone, Copy, Debug)]
struct Moving {
    transfer: Transfer,
    start: Nanos,
    end: Nanos,
}

/// What the running launch needs of a block.
#[derive(Clone, Copy, Debug, Default)]
struct Need {
    /// Number of the launch, plus one.
    launch: u32,
    leaves: Leaves,
    absent: bool,
}

/// The state that only these rules have.
#[derive(Debug, Default)]
pub(super) struct Artifact {
    coming: [Option<Moving>; 2],
    leaving: [Option<Moving>; 2],
    /// Faulted blocks: by tier, then those without content.
    faults: [VecDeque<Block>; 3],
    /// Ordered ones, likewise.
    orders: [VecDeque<Order>; 3],
    /// Ordered evictions: to the SSD, and wherever there is room.
    evictions: [VecDeque<Order>; 2],
    needs: Vec<Need>,
    /// Parts of each block that are in the queues of orders.
    queued: Vec<Leaves>,
    launch: u32,
    absent: u32,
    end: Nanos,
    /// Until the running launch has all it needs, orders take their frames like faults.
    lockup: bool,
    /// The room that is being made is for a prefetch that its launch does not wait for.
    pub room_for_prefetch: bool,
}

impl Artifact {
    /// When the next transfer ends.
    pub fn moment(&self) -> Nanos {
        let moving = self.coming.iter().chain(&self.leaving).flatten();
        moving.map(|one| one.end).min().unwrap_or(Nanos::NEVER)
    }

    /// When the running launch ends, if nothing is missing any more.
    pub fn launch_end(&self) -> Option<Nanos> {
        (self.absent == 0).then_some(self.end)
    }

    /// An order that takes its frame like a fault: what it brings is needed now, or there
    /// is no other way on.
    fn urgent(&self, block: Block) -> bool {
        let need = self.needs.get(block.index());
        let needed = need.is_some_and(|need| need.launch == self.launch && need.absent);
        needed || self.lockup
    }

    /// The launch waits for orders, and nothing moves.
    fn locked_up(&self) -> bool {
        let nothing = self.moment() == Nanos::NEVER && self.faults.iter().all(VecDeque::is_empty);
        self.absent > 0 && nothing && self.orders.iter().any(|queue| !queue.is_empty())
    }

    /// Drops the orders that are queued; gives them to be settled.
    pub fn cancel(&mut self) -> impl Iterator<Item = Order> + '_ {
        self.queued.fill(Leaves::NONE);
        self.orders.iter_mut().flat_map(|queue| queue.drain(..))
    }

    /// Parts of a block that an order is queued for.
    fn queued(&self, block: Block) -> Leaves {
        self.queued.get(block.index()).copied().unwrap_or_default()
    }
}

impl Model<'_> {
    /// A launch starts: raises its faults. Gives what is missing, for the policy.
    pub(super) fn artifact_start(
        &mut self,
        launch: u32,
        time: Nanos,
        accesses: &[Access],
    ) -> Vec<(Block, Leaves)> {
        let stamp = launch + 1;
        let mut artifact = std::mem::take(&mut self.artifact);
        artifact
            .needs
            .resize(self.program.blocks(), Need::default());
        artifact.launch = stamp;
        artifact.absent = 0;
        artifact.lockup = false;
        let mut needed = Vec::new();
        for access in accesses {
            let need = &mut artifact.needs[access.block.index()];
            if need.launch != stamp {
                *need = Need {
                    launch: stamp,
                    ..Need::default()
                };
                needed.push(access.block);
            }
            need.leaves |= access.leaves;
        }
        let (mut from_ssd, mut from_host) = (0, 0);
        let mut faults = Vec::new();
        for block in needed {
            let need = &mut artifact.needs[block.index()];
            let lacking = self.lacks(block, need.leaves);
            if lacking.is_empty() {
                continue;
            }
            need.absent = true;
            artifact.absent += 1;
            let state = *self.blocks.get(block);
            let mut under_way = artifact.queued(block);
            if state.frame == Frame::Incoming || state.locked {
                under_way |= state.moving;
            }
            // In flight, as queued hints are in the artifact: not a fault.
            let whole = lacking;
            let lacking = lacking.minus(under_way);
            if lacking.is_empty() {
                continue;
            }
            if state.frame == Frame::Held && (lacking & state.on_host()).is_empty() {
                // Its frame was never taken: the pages are there.
                self.populate(block, lacking);
                if lacking == whole {
                    artifact.needs[block.index()].absent = false;
                    artifact.absent -= 1;
                }
                continue;
            }
            if state.frame == Frame::Outgoing {
                // It comes back without being charged.
            } else if state.on_ssd {
                from_ssd += lacking.bytes();
            } else {
                from_host += lacking.bytes();
            }
            self.totals.faults += u64::from(lacking.count());
            faults.push((block, lacking));
            artifact.faults[self.class(block)].push_back(block);
        }
        self.totals.batches += u64::from(!faults.is_empty());
        artifact.end = self.now + time + self.fault_time(from_ssd, from_host);
        self.artifact = artifact;
        faults
    }

    /// Time for which faults of so many bytes hold up a launch.
    fn fault_time(&self, from_ssd: u64, from_host: u64) -> Nanos {
        let link = self.machine.link_in.0;
        let Some(ssd) = self.machine.ssd.filter(|_| from_ssd > 0) else {
            return time(Rate(link), from_host);
        };
        let rest = Rate(link.saturating_sub(ssd.read.0).max(1));
        time(ssd.read, from_ssd).max(time(rest, from_host))
    }

    /// What a launch that is about to start reads before anything wrote it lies on the SSD.
    pub(super) fn artifact_content(&mut self, accesses: &[Access]) {
        let ssd = self.machine.ssd.is_some();
        for access in accesses {
            let state = self.blocks.get_mut(access.block);
            let fresh = access.leaves.minus(state.populated).minus(state.lost);
            if access.mode.needs_content() && !fresh.is_empty() && state.frame == Frame::None {
                state.on_ssd = ssd && (state.on_ssd || state.populated.is_empty());
                state.populated |= fresh;
                if !state.on_ssd {
                    self.host_bytes += fresh.bytes();
                }
            }
        }
    }

    fn tier(&self, block: Block) -> Tier {
        if self.blocks.get(block).on_ssd {
            Tier::Ssd
        } else {
            Tier::Host
        }
    }

    /// The queue that a block belongs to, by where its content is.
    fn class(&self, block: Block) -> usize {
        let state = self.blocks.get(block);
        if state.populated.minus(state.device).is_empty() {
            2
        } else {
            self.tier(block) as usize
        }
    }

    /// The launch is over: what it touched was used.
    pub(super) fn artifact_end(&mut self, started: Nanos, time: Nanos, accesses: &[Access]) {
        self.totals.stall += (self.now - started) - time;
        for access in accesses {
            let state = self.blocks.get_mut(access.block);
            self.totals.prefetch_useful += u64::from(std::mem::take(&mut state.unused));
            self.use_content(access);
            // Weights that nobody wrote are content, too.
            self.blocks.get_mut(access.block).alive |= access.leaves;
        }
        self.artifact.launch = 0;
        for queue in &mut self.artifact.faults {
            queue.clear();
        }
    }

    /// Takes in the transfers that end now.
    pub(super) fn artifact_transfers(&mut self) {
        for tier in TIERS {
            let leaving = &mut self.artifact.leaving[tier as usize];
            if let Some(one) = leaving.take_if(|one| one.end <= self.now) {
                self.left(one.transfer, one.start);
            }
            let coming = &mut self.artifact.coming[tier as usize];
            if let Some(one) = coming.take_if(|one| one.end <= self.now) {
                self.blocks.get_mut(one.transfer.block).locked = false;
                self.came(one.transfer, one.start);
                self.present(one.transfer.block);
            }
        }
    }

    /// Parts of a block have come: perhaps all that the running launch needs of it.
    fn present(&mut self, block: Block) {
        let Some(need) = self.artifact.needs.get(block.index()).copied() else {
            return;
        };
        if need.launch != self.artifact.launch || !need.absent {
            return;
        }
        let lacking = self.lacks(block, need.leaves);
        if lacking.is_empty() {
            self.artifact.needs[block.index()].absent = false;
            self.artifact.absent -= 1;
            self.artifact.lockup &= self.artifact.absent > 0;
            self.artifact.end = self.artifact.end.max(self.now);
        } else if !lacking.minus(self.artifact.queued(block)).is_empty() {
            let class = self.class(block);
            self.artifact.faults[class].push_back(block);
        }
    }

    /// Queues what an order wants of a block and no other does: the artifact queues pages.
    pub(super) fn artifact_order(
        &mut self,
        block: Block,
        want: Want,
        ticket: Ticket,
        first: bool,
    ) -> bool {
        let blocks = self.program.blocks();
        self.artifact.queued.resize(blocks, Leaves::NONE);
        let state = self.blocks.get_mut(block);
        let parts = match want {
            Want::Prefetch(_) if state.populated.is_empty() => Leaves::ALL,
            Want::Prefetch(_) => state.populated.minus(state.device),
            Want::Populate(leaves, _) => leaves.minus(state.populated),
            Want::Evict | Want::EvictDeep => Leaves::NONE,
        };
        let parts = parts.minus(self.artifact.queued[block.index()]);
        if !state.allocated || parts.is_empty() {
            return false;
        }
        state.queued_in = true;
        let bytes = (parts & state.populated).bytes();
        self.artifact.queued[block.index()] |= parts;
        self.lane_in.push(Order {
            block,
            want,
            ticket,
            first,
            bytes,
            parts,
        });
        true
    }

    /// An order is not queued any more.
    fn unqueue(&mut self, order: Order) {
        self.lane_in.queued_bytes -= order.bytes;
        let queued = &mut self.artifact.queued[order.block.index()];
        *queued = queued.minus(order.parts);
        self.blocks.get_mut(order.block).queued_in = !queued.is_empty();
    }

    /// Begins what can begin now.
    pub(super) fn artifact_pump(&mut self, victim: &mut dyn FnMut(&mut Self) -> Option<Block>) {
        while let Some(transfer) = self.lane_out.urgent.pop_front() {
            // The CPU's own faults: not in the artifact, here without time.
            let state = self.blocks.get_mut(transfer.block);
            let leaves = std::mem::take(&mut state.device);
            self.host_bytes += leaves.bytes();
            self.left(Transfer { leaves, ..transfer }, self.now);
        }
        while let Some(order) = self.lane_out.pop() {
            if self.is_empty_frame(order.block) {
                // Pre-deallocation happens at once: nothing has to leave.
                self.blocks.get_mut(order.block).queued_out = false;
                self.send(order.block, Why::Order(order.ticket), false);
                continue;
            }
            self.lane_out.queued_bytes += order.bytes;
            let queue = usize::from(order.want != Want::EvictDeep);
            self.artifact.evictions[queue].push_back(order);
        }
        while let Some(order) = self.lane_in.pop() {
            self.lane_in.queued_bytes += order.bytes;
            let class = self.class(order.block);
            self.artifact.orders[class].push_back(order);
        }
        while self.evict_ordered() || self.bring(victim) {}
    }

    /// It holds a frame with nothing in it, and nothing on the way there.
    fn is_empty_frame(&self, block: Block) -> bool {
        let state = self.blocks.get(block);
        state.frame == Frame::Held
            && !state.locked
            && state.device.is_empty()
            && state.moving.is_empty()
    }

    fn evict_ordered(&mut self) -> bool {
        for queue in 0..2 {
            let Some(order) = self.artifact.evictions[queue].front().copied() else {
                continue;
            };
            let state = self.blocks.get(order.block);
            let there = state.frame == Frame::Held && !state.locked;
            if there && !self.send(order.block, Why::Order(order.ticket), queue == 0) {
                continue;
            }
            self.artifact.evictions[queue].pop_front();
            self.lane_out.queued_bytes -= order.bytes;
            self.blocks.get_mut(order.block).queued_out = false;
            if !there {
                self.settle(order.ticket);
            }
            return true;
        }
        false
    }

    /// Begins to move a block out; false where the way is busy. Without content it is gone
    /// at once.
    fn send(&mut self, block: Block, why: Why, deep: bool) -> bool {
        if self.drops_unwritten {
            let state = self.blocks.get(block);
            let unwritten = state.device.minus(state.alive).minus(state.lost);
            self.discard(block, unwritten);
        }
        let leaves = self.blocks.get(block).device;
        let full = self
            .machine
            .host_bytes
            .is_some_and(|limit| self.host_bytes + leaves.bytes() > limit);
        let free = self.artifact.leaving[Tier::Ssd as usize].is_none();
        let either = self.uses_both_tiers && free && !leaves.is_empty();
        let tier = match self.machine.ssd {
            Some(_) if deep || full || either => Tier::Ssd,
            _ => Tier::Host,
        };
        if !leaves.is_empty() && self.artifact.leaving[tier as usize].is_some() {
            return false;
        }
        if self.brings_back {
            self.miss_again(block);
        }
        self.forget_unused(block);
        self.blocks.leave(block);
        let state = self.blocks.get_mut(block);
        state.device = Leaves::NONE;
        let transfer = Transfer { block, leaves, why };
        if leaves.is_empty() {
            self.left(transfer, self.now);
            return true;
        }
        state.moving = leaves;
        state.on_ssd = tier == Tier::Ssd;
        if tier == Tier::Host {
            self.host_bytes += leaves.bytes();
        }
        let busy = self.artifact.leaving[Tier::Ssd as usize].is_some();
        let end = self.now + self.rate(tier, false, busy).time(leaves.bytes());
        self.artifact.leaving[tier as usize] = Some(Moving {
            transfer,
            start: self.now,
            end,
        });
        true
    }

    /// What the running launch had of a block and loses must come back before it ends.
    fn miss_again(&mut self, block: Block) {
        let Some(need) = self.artifact.needs.get_mut(block.index()) else {
            return;
        };
        if self.artifact.launch == 0 || need.launch != self.artifact.launch || need.absent {
            return;
        }
        need.absent = true;
        self.artifact.absent += 1;
        let class = self.class(block);
        self.artifact.faults[class].push_back(block);
    }

    /// The rate to or from a tier; the host has what the SSD leaves of the link.
    fn rate(&self, tier: Tier, inward: bool, ssd_busy: bool) -> Rate {
        let link = if inward {
            self.machine.link_in
        } else {
            self.machine.link_out
        };
        let Some(ssd) = self.machine.ssd else {
            return link;
        };
        let ssd = if inward { ssd.read } else { ssd.write };
        match tier {
            Tier::Ssd => ssd.min(link),
            Tier::Host if ssd_busy => Rate(link.0.saturating_sub(ssd.0).max(1)),
            Tier::Host => link,
        }
    }
}

fn time(rate: Rate, bytes: u64) -> Nanos {
    if bytes == 0 {
        Nanos(0)
    } else {
        rate.time(bytes)
    }
}

#[cfg(test)]
mod tests;
