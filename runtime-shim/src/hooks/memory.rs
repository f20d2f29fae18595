//! Device memory that becomes managed.

use core::ffi::c_uint;
use core::sync::atomic::Ordering;

use oversub_shim_core::BLOCK_BYTES;
use oversub_shim_core::abi::{CuResult, DevicePtr};
use oversub_shim_core::allocations::{Allocation, flags};
use oversub_shim_core::pool::point::{Point, Turn};

use crate::context::{Place, here};
use crate::entry_points::{Real, forward, types};
use crate::state::{self, ALLOCATIONS, DEVICE_KIND_BYTES, WRITERS};
use crate::{driver, executor, managed, session};

/// Alignment of rows in a pitched allocation, bytes: what drivers use for all devices.
const PITCH: usize = 512;

/// The place, if memory of `bytes` is to be managed there.
fn managed_place(bytes: u64) -> Option<Place> {
    if bytes < BLOCK_BYTES || state::active().is_none() {
        return None;
    }
    here().filter(|place| place.can_page)
}

/// Managed memory for `requested` bytes; `Err(None)`: the driver should serve it.
fn obtain(place: &Place, requested: u64) -> Result<DevicePtr, Option<CuResult>> {
    match managed::obtain(place, requested, 0) {
        Ok(Allocation { address, .. }) => {
            executor::start();
            Ok(address)
        }
        Err(CuResult::OUT_OF_MEMORY) => {
            // The pool may hold memory that no one has.
            managed::trim(0);
            let again = managed::obtain(place, requested, 0);
            again.map(|allocation| allocation.address).map_err(Some)
        }
        Err(_) => Err(None),
    }
}

/// Lets the driver serve a request, within the limit.
fn device_kind(bytes: u64, allocate: impl FnOnce() -> CuResult) -> CuResult {
    if let Some(settings) = state::active()
        && let Some(place) = here()
        && !settings.limit.allows(&managed::facts(&place), bytes)
    {
        return CuResult::OUT_OF_MEMORY;
    }
    let result = allocate();
    if result.is_ok() {
        DEVICE_KIND_BYTES.fetch_add(bytes, Ordering::Relaxed);
    }
    result
}

/// `cuMemAlloc_v2`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn alloc(
    real: Real<types::cuMemAlloc_v2>,
    address: *mut DevicePtr,
    bytes: usize,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let by_driver = || unsafe { forward!(real, address, bytes) };
    if address.is_null() || bytes == 0 || state::active().is_none() {
        return by_driver();
    }
    let Some(place) = managed_place(bytes as u64) else {
        return device_kind(bytes as u64, by_driver);
    };
    match obtain(&place, bytes as u64) {
        Ok(found) => {
            // SAFETY: not null, and the program's.
            unsafe { *address = found };
            CuResult::SUCCESS
        }
        Err(Some(error)) => error,
        Err(None) => device_kind(bytes as u64, by_driver),
    }
}

/// `cuMemAllocPitch_v2`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn alloc_pitch(
    real: Real<types::cuMemAllocPitch_v2>,
    address: *mut DevicePtr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let by_driver = || unsafe { forward!(real, address, pitch, width, height, element) };
    let valid = !address.is_null() && !pitch.is_null() && matches!(element, 4 | 8 | 16);
    let row = width.checked_next_multiple_of(PITCH).filter(|row| *row > 0);
    let bytes = row
        .and_then(|row| row.checked_mul(height))
        .filter(|bytes| *bytes > 0);
    let (true, Some(row), Some(bytes)) = (valid, row, bytes) else {
        return by_driver();
    };
    let Some(place) = managed_place(bytes as u64) else {
        return device_kind(bytes as u64, by_driver);
    };
    match obtain(&place, bytes as u64) {
        Ok(found) => {
            // SAFETY: neither is null, and both are the program's.
            unsafe {
                *address = found;
                *pitch = row;
            }
            CuResult::SUCCESS
        }
        Err(Some(error)) => error,
        Err(None) => device_kind(bytes as u64, by_driver),
    }
}

/// `cuMemAllocManaged`: the program's own managed memory is only told of.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn alloc_managed(
    real: Real<types::cuMemAllocManaged>,
    address: *mut DevicePtr,
    bytes: usize,
    attach: c_uint,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = unsafe { forward!(real, address, bytes, attach) };
    if !result.is_ok() || address.is_null() || managed_place(bytes as u64).is_none() {
        return result;
    }
    // SAFETY: the driver has written there.
    let found = unsafe { *address };
    if state::active().is_some_and(|settings| settings.keeps_on_host()) {
        // Advice of the program's own comes later, and holds.
        managed::keep_on_host(found, bytes as u64);
    }
    // The last block may be shared with another allocation: it is left alone.
    let whole = bytes as u64 / BLOCK_BYTES * BLOCK_BYTES;
    let allocation = Allocation {
        address: found,
        bytes: whole,
        requested: bytes as u64,
        driver_address: found,
        flags: flags::BY_PROGRAM,
    };
    let _writers = WRITERS.lock();
    if found.is_multiple_of(BLOCK_BYTES) && ALLOCATIONS.insert(allocation) {
        use oversub_protocol::event::Kind;
        session::push(&managed::record(Kind::ALLOC, &allocation));
    }
    result
}

/// `cuMemFree_v2`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn free(real: Real<types::cuMemFree_v2>, address: DevicePtr) -> CuResult {
    if address == 0 || state::active().is_none() {
        // SAFETY: the program's own argument.
        return unsafe { forward!(real, address) };
    }
    match ALLOCATIONS.find(address) {
        Some(found) if found.is(flags::POOL) => free_part(address),
        Some(found) if found.address == address => {
            let known = managed::forget(address);
            let driver_address = known.map_or(address, |known| known.driver_address);
            // SAFETY: what the driver gave for it.
            unsafe { forward!(real, driver_address) }
        }
        _ => {
            // Its size is only needed where something is counted against it.
            let bytes = size_of_device_kind(address);
            // SAFETY: the program's own argument.
            let result = unsafe { forward!(real, address) };
            if result.is_ok() {
                let less = |all: u64| Some(all.saturating_sub(bytes));
                let _ = DEVICE_KIND_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            }
            result
        }
    }
}

fn size_of_device_kind(address: DevicePtr) -> u64 {
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: locals to write to; an address that is none is refused.
    let result = unsafe { driver::cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address) };
    if result.is_ok() && base == address {
        bytes as u64
    } else {
        0
    }
}

/// A part of the pool freed without a stream: everything before has to be over.
fn free_part(address: DevicePtr) -> CuResult {
    // SAFETY: no arguments.
    let result = unsafe { driver::cuCtxSynchronize() };
    if !result.is_ok() {
        return result;
    }
    let freed = super::pool::take_back(address, u8::MAX, Point::Done, Turn::NONE);
    if freed {
        CuResult::SUCCESS
    } else {
        CuResult::INVALID_VALUE
    }
}
