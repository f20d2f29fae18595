//! Stream-ordered allocation from the shim's own pool.

use core::ffi::{c_uint, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

use oversub_protocol::event::{Kind, MemoryRecord};
use oversub_shim_core::abi::{
    CuResult, Device, DevicePtr, Handle, LocationType, PoolProperties, STREAM_LEGACY,
    STREAM_PER_THREAD, pool_attribute,
};
use oversub_shim_core::allocations::flags;
use oversub_shim_core::pool::point::{Point, Turn};
use oversub_shim_core::pool::{Grant, Refusal};
use oversub_shim_core::streams::SHARED_SLOT;

use super::stream::slot_of;
use crate::context::{Place, here, place};
use crate::entry_points::{Real, forward, types};
use crate::state::{self, ALLOCATIONS, POOL, POOL_THRESHOLD, STREAMS};
use crate::{capture, driver, executor, managed, order, session};

/// The device's default pool, in whose name ours serves.
static DEFAULT: AtomicUsize = AtomicUsize::new(0);
/// The pool that the program has set for the device; 0: the default one.
static CHOSEN: AtomicUsize = AtomicUsize::new(0);
/// Pools that the program has made and that ours serves for as well.
static MADE: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];
/// Its address is the default pool's handle where the driver has no pools.
static STAND_IN: u64 = 0;

/// Ours serves in the name of `pool`.
fn is_served(pool: Handle) -> bool {
    let is = |cell: &AtomicUsize| cell.load(Ordering::Relaxed) == pool;
    pool != 0 && (is(&DEFAULT) || MADE.iter().any(is) || pool == stand_in())
}

fn stand_in() -> Handle {
    (&raw const STAND_IN).addr()
}

/// The handle that says where the pool's memory comes from.
pub fn default_handle() -> Handle {
    match DEFAULT.load(Ordering::Relaxed) {
        0 => stand_in(),
        handle => handle,
    }
}

/// The stream as the pool tells them apart.
fn key(stream: Handle, per_thread: bool) -> Handle {
    match stream {
        0 if per_thread => STREAM_PER_THREAD,
        STREAM_LEGACY => 0,
        other => other,
    }
}

/// The place, if the pool serves requests there now.
fn serving(stream: Handle, per_thread: bool) -> Option<Place> {
    state::active()?;
    if capture::is_capturing(stream, per_thread) {
        // Becomes a node of the graph, whose memory is the driver's.
        return None;
    }
    here().filter(|place| place.can_page)
}

/// `cuMemAllocAsync`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn alloc_async(
    real: Real<types::cuMemAllocAsync>,
    address: *mut DevicePtr,
    bytes: usize,
    stream: Handle,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let by_driver = || unsafe { forward!(real, address, bytes, stream) };
    let chosen = CHOSEN.load(Ordering::Relaxed);
    let served = chosen == 0 || is_served(chosen);
    // SAFETY: the program's place to write to.
    unsafe { serve(address, bytes, stream, real.per_thread, served, by_driver) }
}

/// `cuMemAllocFromPoolAsync`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn alloc_from_pool_async(
    real: Real<types::cuMemAllocFromPoolAsync>,
    address: *mut DevicePtr,
    bytes: usize,
    pool: Handle,
    stream: Handle,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let by_driver = || unsafe { forward!(real, address, bytes, pool, stream) };
    // SAFETY: the program's place to write to.
    unsafe {
        serve(
            address,
            bytes,
            stream,
            real.per_thread,
            is_served(pool),
            by_driver,
        )
    }
}

/// # Safety
/// `address` is null or may be written to.
unsafe fn serve(
    address: *mut DevicePtr,
    bytes: usize,
    stream: Handle,
    per_thread: bool,
    served: bool,
    by_driver: impl FnOnce() -> CuResult,
) -> CuResult {
    if address.is_null() || bytes == 0 || !served {
        return by_driver();
    }
    let Some(place) = serving(stream, per_thread) else {
        return by_driver();
    };
    match allocate(&place, bytes as u64, key(stream, per_thread)) {
        Ok(grant) => {
            // SAFETY: not null, and the program's.
            unsafe { *address = grant.address };
            CuResult::SUCCESS
        }
        Err(Some(error)) => error,
        Err(None) => by_driver(),
    }
}

/// `Err(None)`: the driver should serve it.
fn allocate(place: &Place, bytes: u64, stream: Handle) -> Result<Grant, Option<CuResult>> {
    // Once for what there is, once grown; another thread may take the growth away.
    for _ in 0..8 {
        let refusal = match grant(place, bytes, stream)? {
            Ok(grant) => return Ok(grant),
            Err(refusal) => refusal,
        };
        let Refusal::Grow(segment) = refusal else {
            return Err(None);
        };
        let grown = managed::obtain(place, segment, flags::POOL).or_else(|error| {
            if error != CuResult::OUT_OF_MEMORY {
                return Err(None);
            }
            managed::trim(0);
            managed::obtain(place, segment, flags::POOL).map_err(Some)
        })?;
        executor::start();
        if !POOL.lock().add_segment(grown.address, grown.bytes, bytes) {
            managed::forget(grown.address);
            // SAFETY: just obtained, given to no one.
            unsafe { driver::cuMemFree_v2(grown.driver_address) };
            return Err(None);
        }
    }
    Err(Some(CuResult::OUT_OF_MEMORY))
}

fn grant(
    place: &Place,
    bytes: u64,
    stream: Handle,
) -> Result<Result<Grant, Refusal>, Option<CuResult>> {
    let mut pool = POOL.lock();
    let grant = match pool.allocate(bytes, stream, session::has_passed) {
        Ok(grant) => grant,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let waits = grant.waits.get(..grant.wait_count).unwrap_or_default();
    if !order::wait(place.context, stream, waits, grant.turn) {
        // What cannot be ordered on the device is waited for here.
        // SAFETY: no arguments.
        let result = unsafe { driver::cuCtxSynchronize() };
        if !result.is_ok() {
            pool.free(grant.address, Point::Done, grant.turn);
            return Err(Some(result));
        }
    }
    let slot = STREAMS.find(stream).unwrap_or(SHARED_SLOT);
    let seq = STREAMS.current() + 1;
    session::push_patient(&MemoryRecord::new(
        Kind::USE,
        slot,
        0,
        seq,
        grant.address,
        grant.bytes,
    ));
    Ok(Ok(grant))
}

/// `cuMemFreeAsync`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn free_async(
    real: Real<types::cuMemFreeAsync>,
    address: DevicePtr,
    stream: Handle,
) -> CuResult {
    let found = state::active().and_then(|_| ALLOCATIONS.find(address));
    let Some(found) = found.filter(|found| !found.is(flags::BY_PROGRAM)) else {
        // SAFETY: the program's own arguments.
        return unsafe { forward!(real, address, stream) };
    };
    if !found.is(flags::POOL) {
        // Memory of `cuMemAlloc`: allowed, and freed once the stream has come so far.
        let result = wait_for(stream, real.per_thread);
        if !result.is_ok() || managed::forget(address).is_none() {
            return if result.is_ok() {
                CuResult::INVALID_VALUE
            } else {
                result
            };
        }
        // SAFETY: what the driver gave for it.
        return unsafe { driver::cuMemFree_v2(found.driver_address) };
    }
    let key = key(stream, real.per_thread);
    let own = here();
    let freed = if let Some(place) = own.filter(|_| key == STREAM_PER_THREAD) {
        // No other thread can name this stream, so its order is kept elsewhere.
        match order::follow(place.context, key) {
            Some(turn) => take_back(address, u8::MAX, Point::Done, turn),
            None => wait_and_take_back(address, stream, real.per_thread),
        }
    } else if own.is_some() {
        let slot = slot_of(stream, real.per_thread);
        let seq = STREAMS.want_mark(slot);
        take_back(
            address,
            slot,
            Point::Stream {
                stream: key,
                slot,
                seq,
            },
            Turn::NONE,
        )
    } else {
        wait_and_take_back(address, stream, real.per_thread)
    };
    if freed {
        CuResult::SUCCESS
    } else {
        CuResult::INVALID_VALUE
    }
}

fn wait_for(stream: Handle, per_thread: bool) -> CuResult {
    // SAFETY: the program's own stream.
    unsafe {
        if per_thread {
            driver::cuStreamSynchronize_ptsz(stream)
        } else {
            driver::cuStreamSynchronize(stream)
        }
    }
}

fn wait_and_take_back(address: DevicePtr, stream: Handle, per_thread: bool) -> bool {
    wait_for(stream, per_thread).is_ok() && take_back(address, u8::MAX, Point::Done, Turn::NONE)
}

/// Takes a part back into the pool and says so. `false`: it was not handed out.
pub fn take_back(address: DevicePtr, slot: u8, point: Point, turn: Turn) -> bool {
    let mut pool = POOL.lock();
    let Some(part) = pool.free(address, point, turn) else {
        return false;
    };
    let seq = match point {
        Point::Stream { seq, .. } => seq,
        Point::Done => STREAMS.current(),
    };
    session::push_patient(&MemoryRecord::new(
        Kind::UNUSE,
        slot,
        0,
        seq,
        address,
        part.bytes,
    ));
    true
}

/// `cuDeviceGetDefaultMemPool` and `cuDeviceGetMemPool`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn of_device(
    real: Real<types::cuDeviceGetDefaultMemPool>,
    pool: *mut Handle,
    device: Device,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = unsafe { forward!(real, pool, device) };
    if pool.is_null() || state::active().is_none() {
        return result;
    }
    if result.is_ok() && CHOSEN.load(Ordering::Relaxed) == 0 {
        // SAFETY: the driver has written there.
        DEFAULT.store(unsafe { *pool }, Ordering::Relaxed);
    } else if matches!(result, CuResult::NOT_SUPPORTED | CuResult::NOT_FOUND)
        && place().is_none_or(|place| place.can_page)
    {
        // SAFETY: not null, and the program's.
        unsafe { *pool = stand_in() };
        return CuResult::SUCCESS;
    }
    result
}

/// `cuDeviceSetMemPool`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn set_of_device(
    real: Real<types::cuDeviceSetMemPool>,
    device: Device,
    pool: Handle,
) -> CuResult {
    if pool == stand_in() {
        return CuResult::SUCCESS;
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { forward!(real, device, pool) };
    if result.is_ok() {
        CHOSEN.store(pool, Ordering::Relaxed);
    }
    result
}

/// `cuMemPoolCreate`: ours serves for plain pools of device memory. Pools for exporting stay
/// the driver's.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn create(
    real: Real<types::cuMemPoolCreate>,
    pool: *mut Handle,
    properties: *const PoolProperties,
) -> CuResult {
    const PINNED: c_uint = 1;
    // SAFETY: the program's own arguments.
    let result = unsafe { forward!(real, pool, properties) };
    if !result.is_ok() || pool.is_null() || properties.is_null() || state::active().is_none() {
        return result;
    }
    // SAFETY: the driver has read the one and written the other.
    let (made, properties) = unsafe { (*pool, &*properties) };
    let plain = properties.allocation_type == PINNED
        && properties.handle_types == 0
        && properties.location.kind == LocationType::DEVICE;
    if plain {
        for cell in &MADE {
            let free = cell.compare_exchange(0, made, Ordering::Relaxed, Ordering::Relaxed);
            if free.is_ok() {
                break;
            }
        }
    }
    result
}

/// `cuMemPoolDestroy`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn destroy(real: Real<types::cuMemPoolDestroy>, pool: Handle) -> CuResult {
    for cell in MADE.iter().chain([&CHOSEN]).filter(|_| pool != 0) {
        let _ = cell.compare_exchange(pool, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
    // SAFETY: the program's own arguments.
    unsafe { forward!(real, pool) }
}

/// `cuMemPoolSetAttribute`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn set_attribute(
    real: Real<types::cuMemPoolSetAttribute>,
    pool: Handle,
    attribute: c_uint,
    value: *mut c_void,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = unsafe { forward!(real, pool, attribute, value) };
    if value.is_null() || !is_served(pool) {
        return result;
    }
    match attribute {
        pool_attribute::RELEASE_THRESHOLD => {
            // SAFETY: this attribute's value has 64 bits.
            POOL_THRESHOLD.store(unsafe { *value.cast::<u64>() }, Ordering::Relaxed);
        }
        pool_attribute::RESERVED_HIGH => {
            let usage = &mut POOL.lock().usage;
            usage.reserved_high = usage.reserved;
        }
        pool_attribute::USED_HIGH => {
            let usage = &mut POOL.lock().usage;
            usage.used_high = usage.used;
        }
        // Reuse rules: ours always follows events and inserts waits, which each of them allows.
        1..=3 => {}
        _ => return result,
    }
    CuResult::SUCCESS
}

/// `cuMemPoolGetAttribute`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn get_attribute(
    real: Real<types::cuMemPoolGetAttribute>,
    pool: Handle,
    attribute: c_uint,
    value: *mut c_void,
) -> CuResult {
    if value.is_null() || !is_served(pool) {
        // SAFETY: the program's own arguments.
        return unsafe { forward!(real, pool, attribute, value) };
    }
    let usage = POOL.lock().usage;
    let answer = match attribute {
        pool_attribute::RELEASE_THRESHOLD => POOL_THRESHOLD.load(Ordering::Relaxed),
        pool_attribute::RESERVED_CURRENT => usage.reserved,
        pool_attribute::RESERVED_HIGH => usage.reserved_high,
        pool_attribute::USED_CURRENT => usage.used,
        pool_attribute::USED_HIGH => usage.used_high,
        // SAFETY: the program's own arguments.
        _ => return unsafe { forward!(real, pool, attribute, value) },
    };
    // SAFETY: these attributes' values have 64 bits.
    unsafe { *value.cast::<u64>() = answer };
    CuResult::SUCCESS
}

/// `cuMemPoolTrimTo`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn trim_to(real: Real<types::cuMemPoolTrimTo>, pool: Handle, keep: usize) -> CuResult {
    if is_served(pool) {
        managed::trim(keep as u64);
        return CuResult::SUCCESS;
    }
    // SAFETY: the program's own arguments.
    unsafe { forward!(real, pool, keep) }
}
