//! Pinned host memory. The device reaches all host memory at the host's address.

use std::ffi::{c_uint, c_void};

use super::{Answer, put};
use crate::abi::{CuResult, DevicePtr};
use crate::allocations::{self, Pinned};
use crate::context::usable;
use crate::driver;

/// `CU_MEMHOSTALLOC_PORTABLE`, `DEVICEMAP`, `WRITECOMBINED`.
const ALLOC_FLAGS: c_uint = 7;
/// `CU_MEMHOSTREGISTER_PORTABLE`, `DEVICEMAP`, `IOMEMORY`, `READ_ONLY`.
const REGISTER_FLAGS: c_uint = 0xf;
/// `CU_MEMHOSTREGISTER_IOMEMORY`.
const IOMEMORY: c_uint = 4;

pub(super) unsafe fn alloc(to: *mut *mut c_void, bytes: usize, flags: c_uint) -> Answer {
    driver::ready()?;
    let context = usable()?;
    if to.is_null() || bytes == 0 || flags & !ALLOC_FLAGS != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: a new private mapping, which overlaps nothing.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
            -1,
            0,
        )
    };
    if memory == libc::MAP_FAILED {
        return Err(CuResult::OUT_OF_MEMORY);
    }
    allocations::pin(memory as u64, bytes as u64, flags, true, context)?;
    // SAFETY: the program's pointer.
    unsafe { put(to, memory) }
}

pub(super) unsafe fn alloc_plain(to: *mut *mut c_void, bytes: usize) -> Answer {
    // SAFETY: as this call.
    unsafe { alloc(to, bytes, 0) }
}

/// Waits for the work of the memory's context, which may be using it.
fn release(memory: *mut c_void, allocated: bool, missing: CuResult) -> Result<Pinned, CuResult> {
    driver::ready()?;
    let range = allocations::pinned(memory as u64)
        .filter(|p| p.base == memory as u64 && p.allocated == allocated)
        .ok_or(missing)?;
    range.context.synchronize();
    allocations::unpin(range.base, allocated).ok_or(missing)
}

pub(super) unsafe fn free(memory: *mut c_void) -> Answer {
    let range = release(memory, true, CuResult::INVALID_VALUE)?;
    // SAFETY: `alloc` mapped it, and it is unpinned now, so that nobody unmaps it twice.
    unsafe { libc::munmap(memory, range.bytes as usize) };
    Ok(())
}

pub(super) unsafe fn register(memory: *mut c_void, bytes: usize, flags: c_uint) -> Answer {
    driver::ready()?;
    let context = usable()?;
    if memory.is_null() || bytes == 0 || flags & !REGISTER_FLAGS != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    if flags & IOMEMORY != 0 {
        return super::refuse("cuMemHostRegister(IOMEMORY)");
    }
    if driver::device()?.lookup(memory as u64).is_some() {
        return Err(CuResult::INVALID_VALUE);
    }
    allocations::pin(memory as u64, bytes as u64, flags, false, context)
}

pub(super) unsafe fn unregister(memory: *mut c_void) -> Answer {
    release(memory, false, CuResult::HOST_MEMORY_NOT_REGISTERED).map(|_| ())
}

pub(super) unsafe fn device_pointer(
    to: *mut DevicePtr,
    memory: *mut c_void,
    flags: c_uint,
) -> Answer {
    driver::ready()?;
    usable()?;
    if flags != 0 || allocations::pinned(memory as u64).is_none() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: the program's pointer.
    unsafe { put(to, memory as u64) }
}

pub(super) unsafe fn flags(to: *mut c_uint, memory: *mut c_void) -> Answer {
    driver::ready()?;
    let range = allocations::pinned(memory as u64).ok_or(CuResult::INVALID_VALUE)?;
    // SAFETY: the program's pointer.
    unsafe { put(to, range.flags) }
}
