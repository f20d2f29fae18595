//! The driver's functions that the shim calls for itself, past its own hooks.
//!
//! Each is looked up by name when first called; one that this driver does not have answers
//! `CUDA_ERROR_NOT_FOUND`.
#![allow(non_snake_case, clippy::too_many_arguments)]

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use oversub_shim_core::abi::{CuResult, Device, DevicePtr, Handle, Location};

use crate::loader;

const ABSENT: *mut c_void = core::ptr::dangling_mut();

fn find(cell: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = cell.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    let found = loader::driver_symbol(name);
    let value = if found.is_null() { ABSENT } else { found };
    if loader::is_loaded() {
        cell.store(value, Ordering::Relaxed);
    }
    value
}

macro_rules! driver_functions {
    ($($name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => { $(
        #[doc = concat!("The driver's `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As the CUDA driver API defines it.
        pub unsafe fn $name($($arg: $ty),*) -> CuResult {
            static CELL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
            const NAME: &CStr =
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                };
            let function = find(&CELL, NAME);
            if function == ABSENT {
                return CuResult::NOT_FOUND;
            }
            type Function = unsafe extern "C" fn($($ty),*) -> CuResult;
            // SAFETY: the driver's function of this name has this signature.
            let function = unsafe { core::mem::transmute::<*mut c_void, Function>(function) };
            // SAFETY: by this function's contract.
            unsafe { function($($arg),*) }
        }
    )* };
}

driver_functions! {
    cuDriverGetVersion(version: *mut c_int);
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: Device);
    cuDeviceGetName(name: *mut c_char, bytes: c_int, device: Device);
    cuDeviceGetUuid(uuid: *mut u8, device: Device);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: Device);
    cuDevicePrimaryCtxGetState(device: Device, flags: *mut c_uint, active: *mut c_int);
    cuCtxGetCurrent(context: *mut Handle);
    cuCtxSetCurrent(context: Handle);
    cuCtxGetDevice(device: *mut Device);
    cuCtxSynchronize();
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemAllocManaged(address: *mut DevicePtr, bytes: usize, flags: c_uint);
    cuMemFree_v2(address: DevicePtr);
    cuMemGetAddressRange_v2(base: *mut DevicePtr, bytes: *mut usize, address: DevicePtr);
    cuMemHostRegister_v2(memory: *mut c_void, bytes: usize, flags: c_uint);
    cuMemHostGetDevicePointer_v2(address: *mut DevicePtr, memory: *mut c_void, flags: c_uint);
    cuMemPrefetchAsync(address: DevicePtr, bytes: usize, device: Device, stream: Handle);
    cuMemPrefetchAsync_v2(
        address: DevicePtr, bytes: usize, to: Location, flags: c_uint, stream: Handle);
    cuMemAdvise(address: DevicePtr, bytes: usize, advice: c_uint, device: Device);
    cuMemAdvise_v2(address: DevicePtr, bytes: usize, advice: c_uint, place: Location);
    cuMemDiscardBatchAsync(
        addresses: *mut DevicePtr, sizes: *mut usize, count: usize, flags: u64, stream: Handle);
    cuStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, priority: c_int);
    cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    cuStreamSynchronize(stream: Handle);
    cuStreamSynchronize_ptsz(stream: Handle);
    cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint);
    cuStreamIsCapturing(stream: Handle, status: *mut c_uint);
    cuStreamWriteValue32(stream: Handle, address: DevicePtr, value: u32, flags: c_uint);
    cuStreamWriteValue32_v2(stream: Handle, address: DevicePtr, value: u32, flags: c_uint);
    cuThreadExchangeStreamCaptureMode(mode: *mut c_uint);
    cuEventCreate(event: *mut Handle, flags: c_uint);
    cuEventRecord(event: Handle, stream: Handle);
    cuFuncGetName(name: *mut *const c_char, function: Handle);
    cuKernelGetName(name: *mut *const c_char, kernel: Handle);
    cuFuncGetParamInfo(function: Handle, index: usize, offset: *mut usize, bytes: *mut usize);
    cuKernelGetParamInfo(kernel: Handle, index: usize, offset: *mut usize, bytes: *mut usize);
}

/// Has the stream write `value` when it has done everything before.
///
/// # Safety
/// `address` is mapped for the device and stays so until the stream has written.
pub unsafe fn write_value(stream: Handle, address: DevicePtr, value: u32) -> CuResult {
    // SAFETY: by this function's contract. The second version came with CUDA 11.7.
    unsafe {
        match cuStreamWriteValue32_v2(stream, address, value, 0) {
            CuResult::NOT_FOUND => cuStreamWriteValue32(stream, address, value, 0),
            result => result,
        }
    }
}

/// Prefetches one range, by whichever version of the call the driver has.
///
/// # Safety
/// The range is managed memory.
pub unsafe fn prefetch(address: DevicePtr, bytes: usize, to: Location, stream: Handle) -> CuResult {
    // SAFETY: by this function's contract.
    unsafe {
        match cuMemPrefetchAsync_v2(address, bytes, to, 0, stream) {
            CuResult::NOT_FOUND => cuMemPrefetchAsync(address, bytes, ordinal(to), stream),
            result => result,
        }
    }
}

/// Advises where a range should be, by whichever version of the call the driver has.
///
/// # Safety
/// The range is managed memory.
pub unsafe fn advise(address: DevicePtr, bytes: usize, advice: c_uint, to: Location) -> CuResult {
    // SAFETY: by this function's contract.
    unsafe {
        match cuMemAdvise_v2(address, bytes, advice, to) {
            CuResult::NOT_FOUND => cuMemAdvise(address, bytes, advice, ordinal(to)),
            result => result,
        }
    }
}

/// How the first versions of the calls name a place.
fn ordinal(place: Location) -> Device {
    use oversub_shim_core::abi::{DEVICE_CPU, LocationType};
    if place.kind == LocationType::DEVICE {
        place.id
    } else {
        DEVICE_CPU
    }
}
