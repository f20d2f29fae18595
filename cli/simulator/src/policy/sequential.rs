//! Next-block prefetch: the oldest rule there is, a miss on a block brings those after it.
//!
//! facts of the field: one-block look-ahead with degree (Smith, "Cache memories", ACM
//! Computing Surveys 1982, section 2.1), at the granularity of nvidia-uvm's 2 MiB blocks:
//! on a fault of block x, x+1 to x+d are prefetched, inside the allocation that x is in.
//! Eviction is the driver's.
//!
//! Choices: d is 16 (32 MiB; of 1, 4, 16 and 64, the one whose transfers take about as long
//! as a large kernel); blocks that are on the device are passed over; what is queued is not
//! taken back when faults go elsewhere; the density prefetcher stays on, as it fills the
//! block that faulted.

use super::allocations::Allocations;
use super::{Entry, Make};
use crate::class::{Desk, DriverNotice, FaultPolicy};
use crate::model::{Place, Room};
use crate::trace::Block;

pub(super) const ENTRY: Entry = Entry {
    name: "sequential",
    about: "a fault brings the next 16 blocks of the allocation",
    make: Make::Fault(|_| Box::new(Sequential::default())),
};

/// Blocks that a miss brings.
const DEGREE: i64 = 16;

#[derive(Default)]
struct Sequential {
    allocations: Allocations,
    wanted: Vec<Block>,
}

impl FaultPolicy for Sequential {
    fn notice(&mut self, notice: DriverNotice<'_>, desk: &mut Desk<'_>) {
        self.allocations.notice(&notice);
        let DriverNotice::Faults(faults) = notice else {
            return;
        };
        self.wanted.clear();
        for (block, _) in faults {
            for step in 1..=DEGREE {
                let Some(next) = self.allocations.neighbour(*block, step, desk) else {
                    break;
                };
                if matches!(desk.place(next), Place::Host | Place::Unpopulated) {
                    self.wanted.push(next);
                }
            }
        }
        if !self.wanted.is_empty() {
            desk.prefetch(&self.wanted, Room::Take);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::checks::{self, blocks_in};
    use super::super::samples::{BASE, blocks, launch};
    use super::{DEGREE, ENTRY};
    use crate::trace::ProgramBuilder;
    use crate::units::{BLOCK_BYTES, Nanos};

    #[test]
    fn one_fault_brings_the_blocks_after_it_and_no_more() {
        let far = DEGREE as u64 + 8;
        let mut builder = ProgramBuilder::new("run");
        builder.alloc(BASE, far * BLOCK_BYTES).unwrap();
        builder.host(&[], &[blocks(0, far)]).unwrap();
        builder.iteration(0).unwrap();
        let time = Nanos::from_micros(10);
        launch(&mut builder, "read", time, &[blocks(0, 1)], &[]);
        // Long enough for all that the fault has brought.
        builder.iteration(1).unwrap();
        let time = Nanos::from_micros(100_000);
        launch(&mut builder, "wait", time, &[blocks(0, 1)], &[]);
        let program = builder.finish();
        let outcome = checks::outcome(&program, &ENTRY, far as u32);
        let moved: u64 = outcome
            .iterations
            .iter()
            .map(|i| blocks_in(&i.totals))
            .sum();
        assert_eq!(moved, 1 + DEGREE as u64);
    }

    #[test]
    fn it_does_not_leave_the_allocation() {
        let mut builder = ProgramBuilder::new("two allocations");
        builder.alloc(BASE, 2 * BLOCK_BYTES).unwrap();
        builder
            .alloc(BASE + 2 * BLOCK_BYTES, 4 * BLOCK_BYTES)
            .unwrap();
        builder.host(&[], &[blocks(0, 6)]).unwrap();
        builder.iteration(0).unwrap();
        let time = Nanos::from_micros(100_000);
        launch(&mut builder, "read", time, &[blocks(0, 1)], &[]);
        let program = builder.finish();
        let outcome = checks::outcome(&program, &ENTRY, 8);
        assert_eq!(blocks_in(&outcome.first().totals), 2);
    }

    #[test]
    fn a_sweep_faults_less_than_under_the_driver() {
        let program = checks::sweep(64, 4);
        let ours = checks::outcome(&program, &ENTRY, 48).steady();
        let driver = checks::outcome(&program, &super::super::driver::ENTRY, 48).steady();
        assert!(ours.totals.faults * 3 < driver.totals.faults);
        assert!(ours.time < driver.time);
    }

    #[test]
    fn it_keeps_the_contract_of_every_policy() {
        checks::contract(&ENTRY);
    }
}
