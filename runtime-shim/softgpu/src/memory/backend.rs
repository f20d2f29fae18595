//! What memory is to the rest of the device, whoever keeps it: this library by itself
//! ([`Memory`]), or the real nvidia-uvm of a test guest (`uvm`).

use std::ops::Range;

use super::{
    Advice, Allocation, Fill, GpuFault, Location, Memory, MemoryError, Place, RangeState, Served,
    lock,
};
use crate::config::Config;
use crate::counters::Counters;

/// The keeper of memory. The methods up to `memset` are those of [`super::Device`].
pub(crate) trait Backend: Send + Sync {
    fn config(&self) -> &Config;
    fn counters(&self) -> &Counters;
    fn alloc_managed(&self, bytes: u64) -> Result<u64, MemoryError>;
    fn alloc_device(&self, bytes: u64) -> Result<u64, MemoryError>;
    fn free(&self, address: u64) -> Result<Allocation, MemoryError>;
    fn lookup(&self, address: u64) -> Option<Allocation>;
    fn to_device_view(&self, address: u64) -> Option<u64>;
    fn memory_info(&self) -> (u64, u64);
    fn resident_bytes(&self) -> u64;
    fn prefetch(&self, address: u64, bytes: u64, to: Location) -> Result<(), MemoryError>;
    fn needs_transfer(&self, address: u64, bytes: u64, to: Location) -> bool;
    fn needs_link(&self, address: u64, bytes: u64, to: Location) -> bool;
    fn discard(&self, address: u64, bytes: u64) -> Result<(), MemoryError>;
    fn advise(&self, address: u64, bytes: u64, advice: Advice) -> Result<(), MemoryError>;
    fn range_state(&self, address: u64, bytes: u64) -> Result<RangeState, MemoryError>;
    /// # Safety
    /// A [`Place::Host`] must be valid for `bytes`.
    unsafe fn copy(&self, to: Place, from: Place, bytes: u64) -> Result<(), MemoryError>;
    fn memset(&self, address: u64, fill: Fill, count: u64) -> Result<(), MemoryError>;

    /// The kernels' view: accesses to it that raise SIGBUS are faults.
    fn view(&self) -> Range<u64>;
    /// The program's address of one in the view.
    fn program_address(&self, view: u64) -> u64;
    /// Serves a batch of faults; tells what became of each.
    fn serve_batch(&self, faults: &mut [GpuFault], outcome: &mut dyn FnMut(GpuFault, Served));
    /// A kernel is over.
    fn end_kernel(&self);
    /// Counts what is not counted yet.
    fn settle_counters(&self);
}

impl Backend for Memory {
    fn config(&self) -> &Config {
        &self.config
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn alloc_managed(&self, bytes: u64) -> Result<u64, MemoryError> {
        Memory::alloc_managed(self, bytes)
    }

    fn alloc_device(&self, bytes: u64) -> Result<u64, MemoryError> {
        Memory::alloc_device(self, bytes)
    }

    fn free(&self, address: u64) -> Result<Allocation, MemoryError> {
        Memory::free(self, address)
    }

    fn lookup(&self, address: u64) -> Option<Allocation> {
        Memory::lookup(self, address)
    }

    fn to_device_view(&self, address: u64) -> Option<u64> {
        let ours = self.areas.managed().start..self.areas.device().end;
        ours.contains(&address).then(|| self.areas.to_view(address))
    }

    fn memory_info(&self) -> (u64, u64) {
        let pool = lock(&self.pool);
        let bytes = |frames: u32| u64::from(frames) * super::BLOCK_BYTES;
        (bytes(pool.free_frames()), bytes(pool.frames()))
    }

    fn resident_bytes(&self) -> u64 {
        self.blocks.resident_bytes()
    }

    fn prefetch(&self, address: u64, bytes: u64, to: Location) -> Result<(), MemoryError> {
        Memory::prefetch(self, address, bytes, to)
    }

    fn needs_transfer(&self, address: u64, bytes: u64, to: Location) -> bool {
        Memory::needs_transfer(self, address, bytes, to)
    }

    fn needs_link(&self, address: u64, bytes: u64, to: Location) -> bool {
        Memory::needs_link(self, address, bytes, to)
    }

    fn discard(&self, address: u64, bytes: u64) -> Result<(), MemoryError> {
        Memory::discard(self, address, bytes)
    }

    fn advise(&self, address: u64, bytes: u64, advice: Advice) -> Result<(), MemoryError> {
        Memory::advise(self, address, bytes, advice)
    }

    fn range_state(&self, address: u64, bytes: u64) -> Result<RangeState, MemoryError> {
        Memory::range_state(self, address, bytes)
    }

    unsafe fn copy(&self, to: Place, from: Place, bytes: u64) -> Result<(), MemoryError> {
        // SAFETY: by the caller.
        unsafe { Memory::copy(self, to, from, bytes) }
    }

    fn memset(&self, address: u64, fill: Fill, count: u64) -> Result<(), MemoryError> {
        Memory::memset(self, address, fill, count)
    }

    fn view(&self) -> Range<u64> {
        self.areas.view()
    }

    fn program_address(&self, view: u64) -> u64 {
        self.areas.program_address(view)
    }

    fn serve_batch(&self, faults: &mut [GpuFault], outcome: &mut dyn FnMut(GpuFault, Served)) {
        Memory::serve_batch(self, faults, outcome);
    }

    fn end_kernel(&self) {
        self.end_remote();
    }

    fn settle_counters(&self) {}
}
