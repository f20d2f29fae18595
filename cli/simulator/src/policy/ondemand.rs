//! Demand paging alone: no prefetch but the 64 KiB page that a fault lies in.
//!
//! nvidia-uvm with `uvm_perf_prefetch_enable=0`: victims are the least recently migrated
//! blocks, everything that leaves is copied back, dead or not. This is what papers call
//! plain UM; the G10 artifact calls it `lru`.

use super::{Entry, Make};
use crate::class::{Desk, DriverNotice, FaultPolicy};

pub(super) const ENTRY: Entry = Entry {
    name: "ondemand",
    about: "demand paging alone: 64 KiB pages, least recently migrated out",
    make: Make::Fault(|_| Box::new(OnDemand)),
};

struct OnDemand;

impl FaultPolicy for OnDemand {
    fn notice(&mut self, notice: DriverNotice<'_>, desk: &mut Desk<'_>) {
        if matches!(notice, DriverNotice::Alloc(_)) {
            desk.set_density(false);
        }
    }
}
