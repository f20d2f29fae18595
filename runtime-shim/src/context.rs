//! The one context whose memory the shim manages: the first that allocates.
//!
//! Memory of other contexts and devices passes untouched.

use core::sync::atomic::{AtomicU64, Ordering};

use oversub_shim_core::abi::{CuResult, DEVICE_ATTRIBUTE_CONCURRENT_MANAGED, Device, Handle};
use oversub_shim_core::lock::Lock;

use crate::state::{ALLOCATIONS, FUNCTIONS, POOL, STREAM_WRITERS, STREAMS, WRITERS};
use crate::{driver, executor, order, state};

/// A context and its device.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The context.
    pub context: Handle,
    /// Ordinal of the device.
    pub device: Device,
    /// Device memory, bytes.
    pub device_total: u64,
    /// Device memory in use before the program allocated through us, bytes.
    pub baseline: u64,
    /// The device can page managed memory.
    pub can_page: bool,
}

static PLACE: Lock<Option<Place>> = Lock::new(None);
/// Contexts taken and lost.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Changes whenever the place does.
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

/// The place, if there is one, and the generation that it belongs to.
pub fn place_and_generation() -> Option<(Place, u64)> {
    // Together: a place that comes into being changes the generation under the lock.
    let place = PLACE.lock();
    place.map(|place| (place, generation()))
}

/// The place, if there is one.
pub fn place() -> Option<Place> {
    *PLACE.lock()
}

/// The place, if the calling thread's context is that of the place. The first context that
/// asks becomes the place.
pub fn here() -> Option<Place> {
    let mut context = 0;
    // SAFETY: a local to write to.
    let result = unsafe { driver::cuCtxGetCurrent(&raw mut context) };
    if !result.is_ok() || context == 0 {
        return None;
    }
    let mut place = PLACE.lock();
    if place.is_none() {
        *place = examine(context);
        GENERATION.fetch_add(1, Ordering::AcqRel);
    }
    place.filter(|place| place.context == context)
}

fn examine(context: Handle) -> Option<Place> {
    let (mut device, mut total, mut free, mut all, mut can_page) = (0, 0_usize, 0, 0, 0);
    // SAFETY: locals to write to; the context is current.
    let asked = unsafe {
        [
            driver::cuCtxGetDevice(&raw mut device),
            driver::cuDeviceTotalMem_v2(&raw mut total, device),
            driver::cuMemGetInfo_v2(&raw mut free, &raw mut all),
        ]
    };
    let attribute = DEVICE_ATTRIBUTE_CONCURRENT_MANAGED;
    // SAFETY: a local to write to.
    let paging = unsafe { driver::cuDeviceGetAttribute(&raw mut can_page, attribute, device) };
    if !asked.iter().all(|result| result.is_ok()) {
        return None;
    }
    Some(Place {
        context,
        device,
        device_total: total as u64,
        baseline: all.saturating_sub(free) as u64,
        can_page: paging.is_ok() && can_page != 0,
    })
}

/// Calls `end`, which may end `context`, while the executor keeps its hands off; then
/// forgets everything if `is_gone` says that it did.
pub fn while_ending(
    context: Handle,
    end: impl FnOnce() -> CuResult,
    is_gone: impl FnOnce(CuResult) -> bool,
) -> CuResult {
    if state::active().is_none() || place().is_none_or(|place| place.context != context) {
        return end();
    }
    let _issue = executor::ISSUE.lock();
    let result = end();
    if is_gone(result) {
        forget();
    }
    result
}

fn forget() {
    *PLACE.lock() = None;
    GENERATION.fetch_add(1, Ordering::AcqRel);
    state::set_recording(false);
    POOL.lock().clear();
    {
        let _writers = WRITERS.lock();
        ALLOCATIONS.clear();
    }
    {
        let _writers = STREAM_WRITERS.lock();
        STREAMS.clear();
    }
    state::DEVICE_KIND_BYTES.store(0, Ordering::Relaxed);
    FUNCTIONS.make_stale();
    order::forget();
}
