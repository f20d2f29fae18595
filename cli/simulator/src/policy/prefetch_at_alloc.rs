//! What a plain managed allocator with one prefetch does.
//!
//! The allocator of a framework replaced by `cudaMallocManaged` and one
//! `cudaMemPrefetchAsync` of the whole buffer to the device right after it: gpu_ext's
//! comparison (arXiv 2512.12615, `UVM_EVALUATION.md` of its artifact: a GNN epoch at 1.43
//! times the memory takes 12.8 s so, 26.5 s under that paper's own eBPF policy, 70.1 s
//! under the plain driver), and RMM's prefetching resource adaptor when it allocates.
//!
//! Choices: the prefetch makes room as the driver does, so one that is larger than what is
//! free evicts the least recently migrated, at last its own beginning. From then on there is
//! the stock driver with its density prefetcher. A buffer that a caching allocator hands out
//! again is not prefetched again: the driver sees no allocation.

use super::{Entry, Make};
use crate::class::{Desk, DriverNotice, FaultPolicy};
use crate::model::Room;

pub(super) const ENTRY: Entry = Entry {
    name: "prefetch-at-alloc",
    about: "managed allocator with one prefetch for each allocation, then the stock driver",
    make: Make::Fault(|_| Box::new(PrefetchAtAlloc)),
};

struct PrefetchAtAlloc;

impl FaultPolicy for PrefetchAtAlloc {
    fn notice(&mut self, notice: DriverNotice<'_>, desk: &mut Desk<'_>) {
        if let DriverNotice::Alloc(region) = notice {
            let blocks = desk.blocks_of(region);
            desk.prefetch(&blocks, Room::Take);
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
    fn an_allocation_that_fits_is_on_the_device_before_the_first_launch() {
        let mut builder = ProgramBuilder::new("one");
        builder.alloc(BASE, 4 * BLOCK_BYTES).unwrap();
        builder.iteration(0).unwrap();
        let time = Nanos::from_micros(100);
        launch(&mut builder, "write", time, &[], &[blocks(0, 4)]);
        let program = builder.finish();
        // The call is under way when the launch begins: at most its first block faults.
        let outcome = checks::outcome(&program, &ENTRY, 8);
        let driver = checks::outcome(&program, &super::super::driver::ENTRY, 8);
        assert!(outcome.first().totals.faults < driver.first().totals.faults / 2);
    }

    #[test]
    fn what_was_evicted_comes_back_by_faults_alone() {
        let mut builder = ProgramBuilder::new("two");
        builder.alloc(BASE, 8 * BLOCK_BYTES).unwrap();
        for iteration in 0..4 {
            builder.iteration(iteration).unwrap();
            for half in 0..2 {
                let time = Nanos::from_micros(1_000);
                let region = blocks(4 * half, 4);
                launch(&mut builder, "update", time, &[region], &[region]);
            }
        }
        let program = builder.finish();
        let outcome = checks::outcome(&program, &ENTRY, 4);
        let steady = outcome.steady().totals;
        assert_eq!(blocks_in(&steady), 8);
        assert_eq!(steady.prefetch_issued, 0);
        assert!(steady.faults > 0);
    }

    #[test]
    fn it_keeps_the_contract_of_every_policy() {
        checks::contract(&ENTRY);
    }
}
