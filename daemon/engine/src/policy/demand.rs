//! Demand paging within a budget: no prefetch, least recently migrated out.
//!
//! The comparison on devices that must not be oversubscribed for real. Without a budget to
//! keep it does nothing: the driver evicts by the same order (nvidia-uvm 580,
//! uvm_pmm_gpu.c, `pick_root_chunk_to_evict`).

use super::Policy;
use super::ranking::Ranking;
use crate::command::{Command, Operation, Queue};
use crate::decision::Reason;
use crate::stats::Stats;
use crate::units::Micros;
use crate::world::World;
use crate::world::block::Residency;

/// Evicts the least recently migrated block when the budget is nearly full.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    resident: Ranking,
}

/// Frames of a budget that are kept free: what faults may take before an eviction is done.
pub(crate) fn budget_reserve(capacity: u64) -> i64 {
    (capacity / 25).clamp(2, 128) as i64
}

/// Bytes that evictions may have under way. Beyond the budget nothing is more urgent.
pub(crate) fn out_limit(world: &World) -> u64 {
    let limit = world.inflight_limit(Queue::Out);
    if world.enforce && world.free_frames(world.capacity) < 0 {
        4 * limit
    } else {
        limit
    }
}

/// Evicts from `resident`, in the order of its keys, until `free` frames are free or on
/// their way to it. Blocks in use now are passed over.
pub(crate) fn evict_in_order(
    now: Micros,
    world: &mut World,
    resident: &mut Ranking,
    free: i64,
    stats: &mut Stats,
    commands: &mut Vec<Command>,
) {
    let have = world.free_frames(world.capacity) + world.blocks.moving_out() as i64;
    let room = out_limit(world).saturating_sub(world.orders.bytes(Queue::Out));
    let wanted = (free - have).clamp(0, (room / crate::BLOCK_BYTES) as i64) as usize;
    if wanted == 0 {
        return;
    }
    // What is about to be used goes only where the budget would break otherwise.
    let over = have < 0;
    let kept = |slot| {
        if over {
            world.running(slot)
        } else {
            world.guarded(slot)
        }
    };
    let evictable = |slot: &u32| !world.blocks.get(*slot).refused;
    let in_order = || resident.iter().map(|(_, slot)| slot).filter(evictable);
    let mut victims: Vec<u32> = in_order()
        .filter(|&slot| !kept(slot))
        .take(wanted)
        .collect();
    if over && victims.is_empty() {
        // What runs now uses more than the budget: as the driver does, in order.
        victims = in_order().take(wanted).collect();
    }
    let because = if over {
        Reason::Budget
    } else {
        Reason::LeastRecent
    };
    for slot in victims {
        resident.set(slot, None);
        world.order(now, Operation::Evict, slot, because, stats, commands);
    }
}

impl Policy for Demand {
    fn decide(
        &mut self,
        now: Micros,
        world: &mut World,
        stats: &mut Stats,
        commands: &mut Vec<Command>,
    ) {
        while let Some(slot) = world.blocks.next_changed() {
            let block = world.blocks.get(slot);
            let resident = block.residency == Residency::Device && !block.gone;
            self.resident.set(slot, resident.then_some(block.migrated));
        }
        world.blocks.recycle();
        if world.enforce {
            let free = budget_reserve(world.capacity);
            evict_in_order(now, world, &mut self.resident, free, stats, commands);
        }
    }

    fn table_bytes(&self) -> u64 {
        self.resident.bytes()
    }
}
