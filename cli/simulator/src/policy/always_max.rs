//! The most that a fault can bring: the whole allocation.
//!
//! gpu_ext's `prefetch_always_max` (arXiv 2512.12615 and its artifact) sets the prefetch
//! region of every fault to the largest that there is. In its driver that ends at the 2 MiB
//! block; here at the allocation, the largest range that the driver knows, which makes it
//! the upper end of the fault class's aggressiveness, opposite `ondemand`.
//!
//! Choices: the sweep goes from the block that faulted to the end of the allocation and
//! then from its beginning, over what is missing, but no more than the device holds (beyond
//! that it would evict itself); an allocation has one sweep at a time; eviction is the
//! driver's.

use std::collections::{BTreeMap, BTreeSet};

use super::allocations::Allocations;
use super::{Entry, Make};
use crate::class::{Desk, DriverNotice, FaultPolicy, Ticket};
use crate::model::{Place, Room};
use crate::trace::Block;

pub(super) const ENTRY: Entry = Entry {
    name: "always-max",
    about: "a fault brings the whole allocation",
    make: Make::Fault(|_| Box::new(AlwaysMax::default())),
};

#[derive(Default)]
struct AlwaysMax {
    allocations: Allocations,
    /// By first byte of the allocation: addresses of its blocks that are not on the device.
    missing: BTreeMap<u64, BTreeSet<u64>>,
    /// The sweep under way, by first byte of the allocation.
    sweeps: BTreeMap<u64, Ticket>,
}

impl AlwaysMax {
    fn sweep(&mut self, block: Block, desk: &mut Desk<'_>) {
        let address = desk.address(block);
        let Some(region) = self.allocations.of(address) else {
            return;
        };
        if self.sweeps.contains_key(&region.address) {
            return;
        }
        let Some(missing) = self.missing.get_mut(&region.address) else {
            return;
        };
        // Faults that needed no transfer were not told of as arrivals.
        missing.retain(|&at| {
            let other = desk.block_at(at);
            other.is_some_and(|other| desk.place(other) != Place::Device)
        });
        let wanted: Vec<Block> = missing
            .range(address..)
            .chain(missing.range(..address))
            .filter_map(|&at| desk.block_at(at))
            .filter(|other| *other != block)
            .take(desk.capacity().saturating_sub(1) as usize)
            .collect();
        if !wanted.is_empty() {
            let ticket = desk.prefetch(&wanted, Room::Take);
            self.sweeps.insert(region.address, ticket);
        }
    }
}

impl FaultPolicy for AlwaysMax {
    fn notice(&mut self, notice: DriverNotice<'_>, desk: &mut Desk<'_>) {
        self.allocations.notice(&notice);
        match notice {
            DriverNotice::Alloc(region) => {
                let blocks = desk.blocks_of(region);
                let missing = blocks.iter().map(|block| desk.address(*block)).collect();
                self.missing.insert(region.address, missing);
            }
            DriverNotice::Free(region) => {
                self.missing.remove(&region.address);
                self.sweeps.remove(&region.address);
            }
            DriverNotice::Arrived { block, .. } => {
                let address = desk.address(block);
                if let Some(region) = self.allocations.of(address)
                    && let Some(missing) = self.missing.get_mut(&region.address)
                {
                    missing.remove(&address);
                }
            }
            DriverNotice::Evicted { block, .. } => {
                let address = desk.address(block);
                if let Some(region) = self.allocations.of(address)
                    && let Some(missing) = self.missing.get_mut(&region.address)
                {
                    missing.insert(address);
                }
            }
            DriverNotice::Done(ticket) => {
                self.sweeps.retain(|_, sweep| *sweep != ticket);
            }
            DriverNotice::Faults(faults) => {
                for (block, _) in faults {
                    self.sweep(*block, desk);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::checks::{self, blocks_in};
    use super::super::samples::{BASE, blocks, launch};
    use super::ENTRY;
    use crate::trace::ProgramBuilder;
    use crate::units::{BLOCK_BYTES, Nanos};

    #[test]
    fn one_fault_brings_the_whole_allocation_and_nothing_of_the_next() {
        let mut builder = ProgramBuilder::new("whole");
        builder.alloc(BASE, 40 * BLOCK_BYTES).unwrap();
        builder
            .alloc(BASE + 40 * BLOCK_BYTES, 8 * BLOCK_BYTES)
            .unwrap();
        builder.host(&[], &[blocks(0, 48)]).unwrap();
        builder.iteration(0).unwrap();
        let time = Nanos::from_micros(100_000);
        launch(&mut builder, "read", time, &[blocks(20, 1)], &[]);
        let program = builder.finish();
        let outcome = checks::outcome(&program, &ENTRY, 64);
        assert_eq!(blocks_in(&outcome.first().totals), 40);
    }

    #[test]
    fn a_sweep_stops_where_it_would_evict_itself() {
        let mut builder = ProgramBuilder::new("large");
        builder.alloc(BASE, 40 * BLOCK_BYTES).unwrap();
        builder.host(&[], &[blocks(0, 40)]).unwrap();
        builder.iteration(0).unwrap();
        let time = Nanos::from_micros(100_000);
        launch(&mut builder, "read", time, &[blocks(0, 1)], &[]);
        let program = builder.finish();
        let outcome = checks::outcome(&program, &ENTRY, 16);
        assert_eq!(blocks_in(&outcome.first().totals), 16);
    }

    #[test]
    fn it_keeps_the_contract_of_every_policy() {
        checks::contract(&ENTRY);
    }
}
