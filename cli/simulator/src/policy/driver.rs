//! The stock driver: demand paging with its density prefetcher inside a block.
//!
//! nvidia-uvm as it comes (580, `uvm_perf_prefetch.c`): everything is in the model; the
//! policy does nothing. This is what managed memory without oversub gives.

use super::{Entry, Make};
use crate::class::{Desk, DriverNotice, FaultPolicy};

pub(super) const ENTRY: Entry = Entry {
    name: "driver",
    about: "the stock driver: faults grown by its density tree, least recently migrated out",
    make: Make::Fault(|_| Box::new(Driver)),
};

struct Driver;

impl FaultPolicy for Driver {
    fn notice(&mut self, _: DriverNotice<'_>, _: &mut Desk<'_>) {}
}
