//! What a pointer is: managed memory that stands for device memory answers as such.

use core::ffi::{c_int, c_uint, c_void};

use oversub_shim_core::abi::{
    CuResult, DevicePtr, Handle, MEMORY_TYPE_DEVICE, pointer_attribute as attribute_number,
};
use oversub_shim_core::allocations::{Allocation, flags};

use crate::context::place;
use crate::entry_points::{Real, forward, types};
use crate::state::{self, ALLOCATIONS, POOL};
use crate::{log, managed};

/// What the program believes to be one allocation.
struct Range {
    start: u64,
    bytes: u64,
    in_pool: bool,
}

/// The memory at `address`, if it is ours in the place of device memory.
fn stand_in(address: DevicePtr) -> Option<Range> {
    state::active()?;
    let found = ALLOCATIONS
        .find(address)
        .filter(|found| !found.is(flags::BY_PROGRAM))?;
    let Allocation {
        address: start,
        requested,
        ..
    } = found;
    if !found.is(flags::POOL) {
        return Some(Range {
            start,
            bytes: requested,
            in_pool: false,
        });
    }
    let part = POOL.lock().part(address)?;
    Some(Range {
        start: part.address,
        bytes: part.requested,
        in_pool: true,
    })
}

/// Corrects an answer of the driver. `false`: device memory has no such attribute.
///
/// # Safety
/// `data` has room for the attribute's type, and the driver has written it.
unsafe fn correct(range: &Range, attribute: c_uint, data: *mut c_void) -> bool {
    // SAFETY: by this function's contract. A truth value's lowest byte comes first and is
    // all of it that is ever set, whatever its width.
    unsafe {
        match attribute {
            attribute_number::MEMORY_TYPE => *data.cast::<c_uint>() = MEMORY_TYPE_DEVICE,
            attribute_number::IS_MANAGED | attribute_number::IS_LEGACY_IPC_CAPABLE => {
                *data.cast::<u8>() = 0;
            }
            attribute_number::DEVICE_ORDINAL => {
                if let Some(place) = place() {
                    *data.cast::<c_int>() = place.device;
                }
            }
            attribute_number::RANGE_START => *data.cast::<u64>() = range.start,
            attribute_number::RANGE_SIZE => *data.cast::<usize>() = range.bytes as usize,
            attribute_number::MEMPOOL_HANDLE => {
                *data.cast::<Handle>() = if range.in_pool {
                    super::pool::default_handle()
                } else {
                    0
                };
            }
            attribute_number::HOST_POINTER => {
                *data.cast::<usize>() = 0;
                return false;
            }
            _ => {}
        }
    }
    true
}

/// `cuPointerGetAttribute`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn attribute(
    real: Real<types::cuPointerGetAttribute>,
    data: *mut c_void,
    attribute: c_uint,
    address: DevicePtr,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = unsafe { forward!(real, data, attribute, address) };
    let Some(range) = stand_in(address).filter(|_| !data.is_null()) else {
        return result;
    };
    let answered = result.is_ok() || attribute == attribute_number::MEMPOOL_HANDLE;
    // SAFETY: the program's room for this attribute.
    if answered && !unsafe { correct(&range, attribute, data) } {
        return CuResult::INVALID_VALUE;
    }
    if answered { CuResult::SUCCESS } else { result }
}

/// `cuPointerGetAttributes`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn attributes(
    real: Real<types::cuPointerGetAttributes>,
    count: c_uint,
    attributes: *mut c_uint,
    data: *mut *mut c_void,
    address: DevicePtr,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = unsafe { forward!(real, count, attributes, data, address) };
    let Some(range) = stand_in(address).filter(|_| result.is_ok()) else {
        return result;
    };
    for index in 0..count as usize {
        // SAFETY: the driver has gone through both lists.
        unsafe {
            let to = *data.add(index);
            if !to.is_null() {
                correct(&range, *attributes.add(index), to);
            }
        }
    }
    result
}

/// `cuMemGetAddressRange_v2`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn address_range(
    real: Real<types::cuMemGetAddressRange_v2>,
    base: *mut DevicePtr,
    bytes: *mut usize,
    address: DevicePtr,
) -> CuResult {
    let Some(range) = stand_in(address) else {
        // SAFETY: the program's own arguments.
        return unsafe { forward!(real, base, bytes, address) };
    };
    // SAFETY: each is the program's, or null, which is allowed.
    unsafe {
        if !base.is_null() {
            *base = range.start;
        }
        if !bytes.is_null() {
            *bytes = range.bytes as usize;
        }
    }
    CuResult::SUCCESS
}

/// `cuIpcGetMemHandle`: managed memory cannot be shared with another process. The program
/// gets the driver's error, which it handles where such memory is usual; we say why.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn ipc_handle(
    real: Real<types::cuIpcGetMemHandle>,
    handle: *mut c_void,
    address: DevicePtr,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = unsafe { forward!(real, handle, address) };
    if let Some(range) = stand_in(address)
        && !result.is_ok()
        && ALLOCATIONS.mark_exported(address)
    {
        log::number(
            "memory that is managed cannot be shared by cuIpcGetMemHandle; bytes",
            range.bytes,
        );
        log::number("bytes of managed memory at that time", managed_bytes());
    }
    result
}

fn managed_bytes() -> u64 {
    place().map_or(0, |place| managed::facts(&place).managed)
}
