//! Managed memory in the place of device memory: obtaining it, placing it, giving it back.

use core::sync::atomic::{AtomicU64, Ordering};

use oversub_protocol::command::queue;
use oversub_protocol::event::{Kind, MemoryRecord};
use oversub_shim_core::BLOCK_BYTES;
use oversub_shim_core::abi::{
    ADVISE_ACCESSED_BY, ADVISE_PREFERRED_LOCATION, CuResult, Device, Location, MEM_ATTACH_GLOBAL,
    UNADVISE_PREFERRED_LOCATION,
};
use oversub_shim_core::allocations::{Allocation, flags};
use oversub_shim_core::capacity::{self, Budget, Facts, Placement};

use crate::context::Place;
use crate::state::{self, ALLOCATIONS, DEVICE_KIND_BYTES, POOL, STREAMS, WRITERS};
use crate::{driver, executor, log, order, session};

/// Host memory for managed memory to spill into, bytes, as found at the first question.
static HOST_ROOM: AtomicU64 = AtomicU64::new(0);

/// What answers about capacity depend on, now.
pub fn facts(place: &Place) -> Facts {
    Facts {
        device_total: place.device_total,
        baseline: place.baseline,
        managed: ALLOCATIONS.total_bytes(),
        all_managed: ALLOCATIONS.all_bytes(),
        prefetched: ALLOCATIONS.prefetched_bytes(),
        device_kind: DEVICE_KIND_BYTES.load(Ordering::Relaxed),
        host_room: host_room(),
    }
}

fn host_room() -> u64 {
    let known = HOST_ROOM.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let _errno = state::ErrnoKept::new();
    let mut text = [0_u8; 4096];
    // SAFETY: a terminated path, a local buffer.
    let read = unsafe {
        let file = libc::open(c"/proc/meminfo".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let read = if file < 0 {
            -1
        } else {
            libc::read(file, text.as_mut_ptr().cast(), text.len())
        };
        if file >= 0 {
            libc::close(file);
        }
        read
    };
    let text = usize::try_from(read).ok().and_then(|read| text.get(..read));
    // Where nothing is said, the driver's own refusal is the limit.
    let room = text.and_then(capacity::host_room).unwrap_or(u64::MAX / 4);
    HOST_ROOM.store(room, Ordering::Relaxed);
    room
}

/// The record of an allocation, as it is told at its birth and to a daemon that comes later.
pub fn record(kind: Kind, allocation: &Allocation) -> MemoryRecord {
    let mut bits = MemoryRecord::MANAGED;
    let pairs = [
        (flags::POOL, MemoryRecord::POOL),
        (flags::PREFETCHED, MemoryRecord::PREFETCHED),
        (flags::ON_HOST, MemoryRecord::ON_HOST),
        (flags::BY_PROGRAM, MemoryRecord::BY_PROGRAM),
    ];
    for (flag, bit) in pairs {
        if allocation.is(flag) {
            bits |= bit;
        }
    }
    bits |= allocation.flags >> flags::PART_SHIFT << MemoryRecord::PART_SHIFT;
    let seq = STREAMS.current() + 1;
    MemoryRecord::new(
        kind,
        u8::MAX,
        bits,
        seq,
        allocation.address,
        allocation.bytes,
    )
}

/// Obtains managed memory for a request of `requested` bytes, in whole blocks.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY` beyond the limit, else what the driver says.
pub fn obtain(place: &Place, requested: u64, extra_flags: u32) -> Result<Allocation, CuResult> {
    let Some(settings) = state::active() else {
        return Err(CuResult::NOT_SUPPORTED);
    };
    let bytes = requested
        .checked_next_multiple_of(BLOCK_BYTES)
        .ok_or(CuResult::OUT_OF_MEMORY)?;
    let _writers = WRITERS.lock();
    let facts = facts(place);
    if !settings.limit.allows(&facts, bytes) {
        return Err(CuResult::OUT_OF_MEMORY);
    }
    let (address, driver_address) = from_driver(bytes)?;
    let mut allocation = Allocation {
        address,
        bytes,
        requested,
        driver_address,
        flags: extra_flags,
    };
    if !settings.driver_only {
        let budget = match settings.budget {
            0 => Budget::None,
            bytes if settings.keeps_on_host() && keep_on_host(address, allocation.bytes) => {
                keep_mapped(place.device, address, allocation.bytes);
                Budget::Kept(bytes)
            }
            bytes => Budget::Chased(bytes),
        };
        allocation.flags |= prefetch(place, &facts, budget, &allocation);
    }
    if !ALLOCATIONS.insert(allocation) {
        // Without an entry it could not be found again: leave it to the driver.
        // SAFETY: just obtained, given to no one.
        unsafe { driver::cuMemFree_v2(driver_address) };
        return Err(CuResult::NOT_SUPPORTED);
    }
    session::push(&record(Kind::ALLOC, &allocation));
    Ok(allocation)
}

/// An aligned range, and what the driver gave.
fn from_driver(bytes: u64) -> Result<(u64, u64), CuResult> {
    let ask = |bytes: u64| {
        let mut address = 0;
        let size = usize::try_from(bytes).map_err(|_| CuResult::OUT_OF_MEMORY)?;
        // SAFETY: a local to write to.
        match unsafe { driver::cuMemAllocManaged(&raw mut address, size, MEM_ATTACH_GLOBAL) } {
            CuResult::SUCCESS => Ok(address),
            error => Err(error),
        }
    };
    let address = ask(bytes)?;
    if address.is_multiple_of(BLOCK_BYTES) {
        return Ok((address, address));
    }
    // SAFETY: just obtained, given to no one.
    unsafe { driver::cuMemFree_v2(address) };
    let address = ask(bytes + BLOCK_BYTES)?;
    Ok((address.next_multiple_of(BLOCK_BYTES), address))
}

/// Has the driver leave managed memory on the host unless a prefetch moves it: a fault of
/// the device then maps the host's page and brings nothing in, a first touch included
/// (nvidia-uvm 535 to 595, `block_select_processor_residency` in uvm_va_block.c). `false`: the
/// driver does not take the advice.
pub fn keep_on_host(address: u64, bytes: u64) -> bool {
    let Ok(size) = usize::try_from(bytes) else {
        return false;
    };
    // SAFETY: managed memory, as the caller knows; if freed meanwhile, the driver refuses.
    unsafe { driver::advise(address, size, ADVISE_PREFERRED_LOCATION, Location::HOST) }.is_ok()
}

/// Has the driver map for the device what lies on the host, or comes there, at once. Otherwise
/// each page of what was evicted faults before the device uses it over the link: 3 GB/s instead
/// of 42 on an H100. Where the advice is not taken, that is how it is.
fn keep_mapped(device: Device, address: u64, bytes: u64) {
    if let Ok(size) = usize::try_from(bytes) {
        // SAFETY: managed memory, just obtained.
        unsafe { driver::advise(address, size, ADVISE_ACCESSED_BY, Location::device(device)) };
    }
}

/// Takes [`keep_on_host`] back. The device is preferred for a moment, since that takes away
/// its mappings of what lies on the host, so that faults bring it again (`uvm_policy.c:175` in
/// 580).
///
/// # Errors
/// What the driver says.
pub fn let_migrate(device: Device, address: u64, bytes: u64) -> Result<(), CuResult> {
    let size = usize::try_from(bytes).map_err(|_| CuResult::INVALID_VALUE)?;
    let here = Location::device(device);
    for advice in [ADVISE_PREFERRED_LOCATION, UNADVISE_PREFERRED_LOCATION] {
        // SAFETY: managed memory, as the caller has checked; if freed meanwhile, the driver
        // refuses.
        let result = unsafe { driver::advise(address, size, advice, here) };
        if !result.is_ok() {
            return Err(result);
        }
    }
    Ok(())
}

/// Puts new memory where it should be; the flags that say so.
fn prefetch(place: &Place, facts: &Facts, budget: Budget, allocation: &Allocation) -> u32 {
    let (mut free, mut total) = (0, 0);
    // SAFETY: locals to write to.
    unsafe { driver::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
    let placement = capacity::place(facts, budget, allocation.bytes, free as u64);
    let device = Location::device(place.device);
    let (to, queue, bytes) = match placement {
        Placement::Device => (device, queue::LOCAL, allocation.bytes),
        Placement::Part(bytes) => (device, queue::LOCAL, bytes),
        Placement::Host => (Location::HOST, queue::OUT, allocation.bytes),
        Placement::FirstTouch => return 0,
    };
    let Some(streams) = order::streams(place.context) else {
        return 0;
    };
    let Some(stream) = streams.get(usize::from(queue)) else {
        return 0;
    };
    let Ok(size) = usize::try_from(bytes) else {
        return 0;
    };
    // SAFETY: managed memory that no one else knows yet.
    let result = unsafe { driver::prefetch(allocation.address, size, to, *stream) };
    if !result.is_ok() {
        return 0;
    }
    match placement {
        Placement::Device => return flags::PREFETCHED,
        Placement::Part(_) => {
            let blocks = (bytes / BLOCK_BYTES) as u32;
            return flags::PREFETCHED | blocks << flags::PART_SHIFT;
        }
        _ => {}
    }
    // Before the program has the address: a first touch on the device that came sooner
    // would populate it there.
    // SAFETY: a stream of ours.
    let result = unsafe { driver::cuStreamSynchronize(*stream) };
    if result.is_ok() { flags::ON_HOST } else { 0 }
}

/// Forgets the managed memory that begins at `address`, before the driver frees it. Nothing is
/// asked of the driver for that memory any more once this returns.
pub fn forget(address: u64) -> Option<Allocation> {
    if state::active().is_some_and(|settings| settings.keeps_on_host()) {
        // The driver waits for the device before it frees. Told sooner, the daemon would
        // fill room within the budget that is not free yet.
        // SAFETY: no arguments.
        unsafe { driver::cuCtxSynchronize() };
    }
    let allocation = {
        let _writers = WRITERS.lock();
        let allocation = ALLOCATIONS.remove(address)?;
        session::push(&record(Kind::FREE, &allocation));
        allocation
    };
    executor::wait_for_handed_over();
    Some(allocation)
}

/// Gives wholly free segments of the pool back while it holds more than `keep` bytes.
pub fn trim(keep: u64) {
    loop {
        let taken = POOL.lock().take_free_segment(keep, session::has_passed);
        let Some((address, _)) = taken else { return };
        let Some(allocation) = forget(address) else {
            return;
        };
        // SAFETY: a segment of ours of which nothing is handed out and that all streams have
        // passed; the driver waits for our own streams.
        let result = unsafe { driver::cuMemFree_v2(allocation.driver_address) };
        if !result.is_ok() {
            log::error("cannot give a pool segment back to the driver", result);
        }
    }
}

/// Bytes that the pool keeps when a synchronisation could free them: what the program says,
/// a quarter of the device, or what it will most likely want again, whichever is most.
pub fn pool_keep(place: &Place) -> u64 {
    let wanted = state::POOL_THRESHOLD.load(Ordering::Relaxed);
    let lately = POOL.lock().worth_keeping(session::now_ns() / 1_000_000_000);
    wanted.max(place.device_total / 4).max(lately)
}
