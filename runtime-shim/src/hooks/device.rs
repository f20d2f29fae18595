//! What the program is told about the device: one consistent size.

use core::ffi::{c_int, c_uint};

use oversub_shim_core::abi::{CuResult, DEVICE_ATTRIBUTE_MEMORY_POOLS, Device};

use crate::entry_points::{Real, forward, types};
use crate::{context, managed, process, state};

/// `cuInit`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn init(real: Real<types::cuInit>, flags: c_uint) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = unsafe { forward!(real, flags) };
    if result.is_ok() && state::active().is_some() {
        process::watch_forks();
    }
    result
}

/// `cuDeviceTotalMem_v2`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn total_memory(
    real: Real<types::cuDeviceTotalMem_v2>,
    bytes: *mut usize,
    device: Device,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = unsafe { forward!(real, bytes, device) };
    if let Some(settings) = state::active()
        && result.is_ok()
        && !bytes.is_null()
    {
        // SAFETY: the driver has written there.
        unsafe { *bytes = settings.limit.total(*bytes as u64) as usize };
    }
    result
}

/// `cuDeviceGetAttribute`: the shim is the pool, so there is one.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn attribute(
    real: Real<types::cuDeviceGetAttribute>,
    value: *mut c_int,
    attribute: c_uint,
    device: Device,
) -> CuResult {
    use oversub_shim_core::abi::DEVICE_ATTRIBUTE_CONCURRENT_MANAGED as PAGING;
    // SAFETY: the program's own arguments.
    let result = unsafe { forward!(real, value, attribute, device) };
    let asks_for_pools = attribute == DEVICE_ATTRIBUTE_MEMORY_POOLS && !value.is_null();
    if asks_for_pools && result.is_ok() && state::active().is_some() {
        let mut paging = 0;
        // SAFETY: a local to write to.
        let asked = unsafe { forward!(real, &raw mut paging, PAGING, device) };
        if asked.is_ok() && paging != 0 {
            // SAFETY: the driver has written there.
            unsafe { *value = 1 };
        }
    }
    result
}

/// `cuMemGetInfo_v2`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn memory_info(
    real: Real<types::cuMemGetInfo_v2>,
    free: *mut usize,
    total: *mut usize,
) -> CuResult {
    let (mut driver_free, mut driver_total) = (0, 0);
    let mine = state::active().zip(context::here());
    let Some((settings, place)) = mine else {
        // SAFETY: the program's own arguments.
        return unsafe { forward!(real, free, total) };
    };
    // SAFETY: locals to write to.
    let result = unsafe { forward!(real, &raw mut driver_free, &raw mut driver_total) };
    if result.is_ok() {
        let facts = managed::facts(&place);
        let (free_bytes, total_bytes) = settings.limit.memory_info(&facts, driver_free as u64);
        // SAFETY: each is the program's, or null, which some programs pass.
        unsafe {
            if !free.is_null() {
                *free = free_bytes as usize;
            }
            if !total.is_null() {
                *total = total_bytes as usize;
            }
        }
    }
    result
}
