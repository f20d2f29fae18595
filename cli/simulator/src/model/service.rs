//! The driver's fault handler: one batch at a time.
//!
//! Collects the faults that the running launch has raised, serves their blocks one after
//! the other (evicting before fetching where no frame is free), and replays at the end
//! (`uvm_gpu_replayable_faults.c`, 580: `service_fault_batch`, replay policy batch flush).

use crate::trace::{Access, Block};
use crate::units::{LEAVES, Leaves, Nanos};

use super::blocks::{Frame, ListName};
use super::lane::{Transfer, Why};
use super::{Model, Note};
use crate::class::Arrival;

/// The batch that is being served.
#[derive(Clone, Debug, Default)]
pub(super) struct Service {
    batch: Vec<(Block, Leaves)>,
    at: usize,
    /// The handler itself works until then.
    pub until: Option<Nanos>,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
enum Phase {
    /// Nothing to serve.
    #[default]
    Idle,
    /// Reading and sorting the faults.
    Reading,
    /// The current block needs a frame or a transfer.
    Block,
    /// The current block's transfer is under way.
    Transfer,
}

impl Service {
    /// A launch faults: collects the batch from the accesses it has in flight. The blocks
    /// of the batch are locked until it is over.
    pub fn begin(&mut self, model: &mut Model<'_>, ahead: &[Access]) -> &[(Block, Leaves)] {
        debug_assert!(self.phase == Phase::Idle);
        let machine = &model.machine;
        let window = machine.fault_blocks.max(1) as usize;
        let mut left = machine.fault_batch.min(machine.fault_leaves).max(1);
        // Several blocks are touched side by side: each raises its share of the faults.
        let missing = ahead
            .iter()
            .take(window)
            .filter(|access| !model.faults_on(access).is_empty())
            .count()
            .max(1) as u32;
        let share = (left / missing).max(1);
        self.batch.clear();
        self.at = 0;
        for access in ahead.iter().take(window) {
            let wanted = model.faults_on(access);
            let listed = self.batch.iter().any(|(block, _)| *block == access.block);
            if wanted.is_empty() || listed || model.under_way(access.block) {
                continue;
            }
            let raised = first(wanted, share.min(left));
            left -= raised.count();
            model.totals.faults += u64::from(raised.count());
            let served = if model.density {
                let state = model.blocks.get(access.block);
                grow(raised, state.device, model.machine.density)
            } else {
                raised
            };
            self.batch.push((access.block, served));
            model.blocks.get_mut(access.block).locked = true;
            if left == 0 {
                break;
            }
        }
        model.totals.batches += 1;
        let blocks = self.batch.len() as u64;
        let cost = Nanos(model.machine.fault.0 + model.machine.fault_block.0 * blocks);
        self.until = Some(model.now + cost);
        self.phase = Phase::Reading;
        &self.batch
    }

    /// Its own work or a transfer it waited for is over. True when the batch is served.
    pub fn advance(
        &mut self,
        model: &mut Model<'_>,
        victim: &mut dyn FnMut(&mut Model<'_>) -> Option<Block>,
    ) -> bool {
        if self.phase == Phase::Idle {
            return false;
        }
        if let Some(until) = self.until {
            if until > model.now {
                return false;
            }
            self.until = None;
            self.phase = Phase::Block;
        }
        while let Some((block, leaves)) = self.batch.get(self.at).copied() {
            if self.phase == Phase::Transfer {
                if model.blocks.get(block).moving.is_empty() {
                    self.phase = Phase::Block;
                    self.at += 1;
                    continue;
                }
                return false;
            }
            if !self.serve(model, block, leaves, victim) {
                return false;
            }
        }
        for (block, _) in self.batch.drain(..) {
            model.blocks.get_mut(block).locked = false;
        }
        self.phase = Phase::Idle;
        true
    }

    /// Does what can be done for one block now; false where it has to wait.
    fn serve(
        &mut self,
        model: &mut Model<'_>,
        block: Block,
        leaves: Leaves,
        victim: &mut dyn FnMut(&mut Model<'_>) -> Option<Block>,
    ) -> bool {
        let state = *model.blocks.get(block);
        let waits = matches!(state.frame, Frame::Outgoing | Frame::Incoming);
        if waits || model.is_coming(block) {
            // A transfer of it began meanwhile: wait for its end.
            return false;
        }
        if state.frame == Frame::None && !model.blocks.take_frame(block) {
            if !model.service_evicts
                && let Some(old) = victim(model)
            {
                model.service_evicts = true;
                model.evict_for(old, Why::Fault);
            }
            return false;
        }
        let moving = leaves & model.blocks.get(block).on_host();
        model.populate(block, leaves);
        model.blocks.hold(block);
        if moving.is_empty() {
            model
                .notes
                .push_back(Note::Arrived(block, 0, Arrival::Fault));
            self.at += 1;
            return true;
        }
        model.blocks.get_mut(block).moving = moving;
        model.lane_in.urgent.push_back(Transfer {
            block,
            leaves: moving,
            why: Why::Fault,
        });
        self.phase = Phase::Transfer;
        false
    }
}

/// The first `count` of some leaves.
fn first(leaves: Leaves, count: u32) -> Leaves {
    let mut rest = leaves.0;
    for _ in 0..count {
        rest &= rest.wrapping_sub(1);
    }
    Leaves(leaves.0 & !rest)
}

/// The driver's density prefetch (`uvm_perf_prefetch.c`, 580,
/// `uvm_perf_prefetch_prenotify_fault_migrations`): each faulted leaf grows to the largest
/// part of the block, of a power of two, of which more than `threshold` percent are
/// resident or faulted.
fn grow(faulted: Leaves, resident: Leaves, threshold: u32) -> Leaves {
    let there = faulted | resident;
    let mut grown = faulted;
    let mut rest = faulted.0;
    while rest != 0 {
        let leaf = rest.trailing_zeros();
        rest &= rest - 1;
        let mut size = 2;
        while size <= LEAVES {
            let start = leaf / size * size;
            let part = Leaves::between(start, start + size);
            if (there & part).count() * 100 > size * threshold {
                grown |= part;
            }
            size *= 2;
        }
        rest &= !grown.0;
    }
    grown.minus(resident)
}

impl Model<'_> {
    /// The driver's own choice: the least recently migrated block.
    pub(super) fn driver_victim(&self) -> Option<Block> {
        self.blocks.oldest()
    }

    /// Whether a block that a policy names may be evicted.
    pub(super) fn evictable(&self, block: Block) -> bool {
        let state = self.blocks.get(block);
        state.frame == Frame::Held
            && state.list == ListName::Used
            && !state.locked
            && state.moving.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequential_stream_of_faults_fills_a_block_in_six_services() {
        let mut resident = Leaves::NONE;
        let mut services = 0;
        while resident != Leaves::ALL {
            let next = Leaves(1 << resident.0.trailing_ones());
            resident |= grow(next, resident, 51);
            services += 1;
        }
        assert_eq!(services, 6);
    }

    #[test]
    fn a_burst_of_faults_on_all_leaves_needs_one_service() {
        assert_eq!(grow(Leaves::ALL, Leaves::NONE, 51), Leaves::ALL);
    }

    #[test]
    fn sparse_faults_do_not_grow() {
        let sparse = Leaves(0x0101_0101);
        assert_eq!(grow(sparse, Leaves::NONE, 51), sparse);
    }

    #[test]
    fn the_first_leaves_are_the_lowest() {
        assert_eq!(first(Leaves(0b1011_0100), 2), Leaves(0b1_0100));
        assert_eq!(first(Leaves::ALL, 40), Leaves::ALL);
    }
}
