//! Stride prefetch: two equal steps between misses foretell the next ones.
//!
//! The reference prediction table of Chen and Baer (IEEE Transactions on Computers 1995,
//! section 3) at the granularity of nvidia-uvm's 2 MiB blocks. There a table is indexed by
//! the load instruction; the driver's fault stream has none, so by allocation: each has its
//! last missed block, its last stride and a state. Two misses in a row with the same stride
//! s (in blocks, either direction, not 0) make it steady, and every further miss that
//! follows the stride prefetches x+s to x+d*s; a miss that does not makes it learn anew.
//!
//! Choices: d is 16, as for `sequential`; blocks that are on the device or outside the
//! allocation are passed over; repeated faults of one block count once; misses that the
//! prefetch saved are not seen, so after a run of them the step to the next miss is the
//! distance that was covered, and one whole multiple of the stride up to d+1 follows it.

use std::collections::HashMap;

use super::allocations::Allocations;
use super::{Entry, Make};
use crate::class::{Desk, DriverNotice, FaultPolicy};
use crate::model::{Place, Room};
use crate::trace::Block;
use crate::units::BLOCK_BYTES;

pub(super) const ENTRY: Entry = Entry {
    name: "stride",
    about: "two equal steps between faults of an allocation bring the next 16",
    make: Make::Fault(|_| Box::new(Stride::default())),
};

/// Blocks that a steady stride brings.
const DEGREE: i64 = 16;

/// What is known of one allocation's misses.
#[derive(Clone, Copy, Debug)]
struct Row {
    last: u64,
    stride: i64,
    steady: bool,
}

impl Row {
    /// A miss of a block (its address over 2 MiB). The stride to prefetch by, if there is
    /// one.
    fn miss(&mut self, number: u64) -> Option<i64> {
        let step = number as i64 - self.last as i64;
        if step == 0 {
            return None;
        }
        self.last = number;
        if self.follows(step) {
            self.steady = true;
            return Some(self.stride);
        }
        self.stride = step;
        self.steady = false;
        None
    }

    fn follows(&self, step: i64) -> bool {
        if self.stride == 0 {
            return false;
        }
        let multiple = step / self.stride;
        let most = if self.steady { DEGREE + 1 } else { 1 };
        step % self.stride == 0 && (1..=most).contains(&multiple)
    }
}

#[derive(Default)]
struct Stride {
    allocations: Allocations,
    rows: HashMap<u64, Row>,
    wanted: Vec<Block>,
}

impl FaultPolicy for Stride {
    fn notice(&mut self, notice: DriverNotice<'_>, desk: &mut Desk<'_>) {
        self.allocations.notice(&notice);
        let faults = match notice {
            DriverNotice::Faults(faults) => faults,
            DriverNotice::Free(region) => {
                self.rows.remove(&region.address);
                return;
            }
            _ => return,
        };
        self.wanted.clear();
        for (block, _) in faults {
            let address = desk.address(*block);
            let Some(region) = self.allocations.of(address) else {
                continue;
            };
            let number = address / BLOCK_BYTES;
            let row = self.rows.entry(region.address).or_insert(Row {
                last: number,
                stride: 0,
                steady: false,
            });
            let Some(stride) = row.miss(number) else {
                continue;
            };
            for step in 1..=DEGREE {
                let Some(next) = self.allocations.neighbour(*block, stride * step, desk) else {
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
    use super::{DEGREE, ENTRY, Row};
    use crate::trace::ProgramBuilder;
    use crate::units::{BLOCK_BYTES, Nanos, Region};

    const fn row(last: u64) -> Row {
        Row {
            last,
            stride: 0,
            steady: false,
        }
    }

    #[test]
    fn two_equal_steps_make_a_stride_and_a_third_of_another_length_ends_it() {
        let mut row = row(10);
        assert_eq!(row.miss(13), None);
        assert_eq!(row.miss(16), Some(3));
        assert_eq!(row.miss(16), None);
        assert_eq!(row.miss(19), Some(3));
        assert_eq!(row.miss(20), None);
        assert_eq!(row.miss(21), Some(1));
    }

    #[test]
    fn a_stride_may_go_down() {
        let mut row = row(100);
        assert_eq!(row.miss(96), None);
        assert_eq!(row.miss(92), Some(-4));
    }

    #[test]
    fn a_steady_stride_outlives_the_misses_that_it_saved() {
        let mut row = row(0);
        row.miss(2);
        assert_eq!(row.miss(4), Some(2));
        assert_eq!(row.miss(4 + 2 * (DEGREE as u64 + 1)), Some(2));
        // What is farther than it covered is something else.
        assert_eq!(row.miss(4 + 5 * 2 * (DEGREE as u64 + 1)), None);
    }

    #[test]
    fn only_blocks_on_the_stride_are_brought() {
        let mut builder = ProgramBuilder::new("columns");
        builder.alloc(BASE, 60 * BLOCK_BYTES).unwrap();
        builder.host(&[], &[blocks(0, 60)]).unwrap();
        builder.iteration(0).unwrap();
        let columns: Vec<Region> = (0..3).map(|column| blocks(4 * column, 1)).collect();
        for column in columns {
            launch(
                &mut builder,
                "column",
                Nanos::from_micros(10),
                &[column],
                &[],
            );
        }
        let time = Nanos::from_micros(100_000);
        launch(&mut builder, "wait", time, &[blocks(0, 1)], &[]);
        let program = builder.finish();
        let outcome = checks::outcome(&program, &ENTRY, 60);
        // Three faulted, then 12, 16, ... 56 as far as the allocation goes.
        assert_eq!(blocks_in(&outcome.first().totals), 3 + 12);
    }

    #[test]
    fn it_keeps_the_contract_of_every_policy() {
        checks::contract(&ENTRY);
    }
}
