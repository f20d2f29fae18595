//! Device and managed memory: allocation, also in stream order, and freeing.

use std::ffi::c_uint;

use super::{Answer, DefaultStream, put, stream};
use crate::abi::{CuResult, DevicePtr, StreamHandle};
use crate::allocations;
use crate::context::{Context, usable};
use crate::driver::{self, result_of};
use crate::memory::{Kind, MemoryError};
use crate::stream::event::Position;
use crate::stream::op::Op;

/// Rows of a pitched allocation begin at multiples of it, bytes.
const PITCH: usize = 512;
/// `CU_MEM_ATTACH_GLOBAL`, `CU_MEM_ATTACH_HOST`.
const ATTACH: std::ops::RangeInclusive<c_uint> = 1..=2;

fn allocate(
    bytes: usize,
    kind: Kind,
    context: &'static Context,
    pooled: bool,
) -> Result<u64, CuResult> {
    if bytes == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let device = driver::device()?;
    let allocate = || match kind {
        Kind::Device => device.alloc_device(bytes as u64),
        Kind::Managed => device.alloc_managed(bytes as u64),
    };
    let address = match allocate() {
        // What streams are about to free may do.
        Err(MemoryError::OutOfMemory { .. }) if allocations::wait_for_pending() => allocate(),
        result => result,
    };
    let address = address.map_err(result_of)?;
    allocations::note(address, context, pooled);
    Ok(address)
}

pub(super) unsafe fn alloc(to: *mut DevicePtr, bytes: usize) -> Answer {
    driver::ready()?;
    let context = usable()?;
    if to.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    let address = allocate(bytes, Kind::Device, context, false)?;
    // SAFETY: the program's pointer.
    unsafe { put(to, address) }
}

pub(super) unsafe fn alloc_pitch(
    to: *mut DevicePtr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Answer {
    driver::ready()?;
    let context = usable()?;
    if to.is_null() || pitch.is_null() || !matches!(element, 4 | 8 | 16) || width == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let row = width
        .checked_next_multiple_of(PITCH)
        .ok_or(CuResult::INVALID_VALUE)?;
    let bytes = row.checked_mul(height).ok_or(CuResult::INVALID_VALUE)?;
    let address = allocate(bytes, Kind::Device, context, false)?;
    // SAFETY: the program's pointers.
    unsafe {
        put(pitch, row)?;
        put(to, address)
    }
}

pub(super) unsafe fn alloc_managed(to: *mut DevicePtr, bytes: usize, flags: c_uint) -> Answer {
    driver::ready()?;
    let context = usable()?;
    if to.is_null() || !ATTACH.contains(&flags) {
        return Err(CuResult::INVALID_VALUE);
    }
    let address = allocate(bytes, Kind::Managed, context, false)?;
    // SAFETY: the program's pointer.
    unsafe { put(to, address) }
}

/// Waits for all work of the context, as drivers do, and frees.
pub(super) unsafe fn free(address: DevicePtr) -> Answer {
    driver::ready()?;
    if address == 0 {
        return Ok(());
    }
    let owned = allocations::owner(address).ok_or(CuResult::INVALID_VALUE)?;
    owned.context.synchronize();
    if !allocations::forget(address) {
        return Err(CuResult::INVALID_VALUE);
    }
    driver::device()?.free(address).map_err(result_of)?;
    owned.context.error()
}

pub(super) unsafe fn alloc_async(
    default: DefaultStream,
    to: *mut DevicePtr,
    bytes: usize,
    handle: StreamHandle,
) -> Answer {
    let stream = stream(default, handle)?;
    if to.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // The memory is there at once, which is no later than its turn in the stream.
    let address = allocate(bytes, Kind::Device, stream.context(), true)?;
    // SAFETY: the program's pointer.
    unsafe { put(to, address) }
}

pub(super) unsafe fn free_async(
    default: DefaultStream,
    address: DevicePtr,
    handle: StreamHandle,
) -> Answer {
    let stream = stream(default, handle)?;
    if address == 0 {
        return Ok(());
    }
    let allocation = allocations::covering(address, 1)?;
    if allocation.kind != Kind::Device || !allocations::forget(address) {
        return Err(CuResult::INVALID_VALUE);
    }
    let sequence = stream.push(Op::Free { address });
    allocations::note_pending(Position { stream, sequence });
    Ok(())
}

pub(super) unsafe fn info(free: *mut usize, total: *mut usize) -> Answer {
    driver::ready()?;
    usable()?;
    let (unused, all) = driver::device()?.memory_info();
    // SAFETY: the program's pointers, either of which may be null.
    unsafe {
        super::put_if_wanted(free, unused as usize);
        super::put_if_wanted(total, all as usize);
    }
    Ok(())
}
