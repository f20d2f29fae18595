//! The default memory pool. There is one, and it keeps nothing: what is freed goes back
//! to the device at once, so that its thresholds are remembered and have no effect.

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Answer, DefaultStream, put};
use crate::abi::{CuResult, Device, DevicePtr, PoolHandle, StreamHandle};
use crate::driver;

/// The handle of the one pool.
pub(super) const DEFAULT: PoolHandle = PoolHandle(0xf0f0);
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const RELEASE_THRESHOLD: c_uint = 4;
/// The three `CU_MEMPOOL_ATTR_REUSE_*`: integers, 1 by default.
const REUSE: std::ops::RangeInclusive<c_uint> = 1..=3;

static THRESHOLD: AtomicU64 = AtomicU64::new(0);
static REUSED: [AtomicU64; 3] = [const { AtomicU64::new(1) }; 3];

fn check(pool: PoolHandle) -> Answer {
    driver::ready()?;
    if pool == DEFAULT {
        Ok(())
    } else {
        Err(CuResult::INVALID_VALUE)
    }
}

pub(super) unsafe fn of_device(to: *mut PoolHandle, device: Device) -> Answer {
    driver::ready()?;
    if device != 0 {
        return Err(CuResult::INVALID_DEVICE);
    }
    // SAFETY: the program's pointer.
    unsafe { put(to, DEFAULT) }
}

pub(super) unsafe fn set_of_device(device: Device, pool: PoolHandle) -> Answer {
    check(pool)?;
    if device == 0 {
        Ok(())
    } else {
        Err(CuResult::INVALID_DEVICE)
    }
}

pub(super) unsafe fn set_attribute(
    pool: PoolHandle,
    attribute: c_uint,
    value: *mut c_void,
) -> Answer {
    check(pool)?;
    if value.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    if attribute == RELEASE_THRESHOLD {
        // SAFETY: the attribute is a 64-bit integer.
        THRESHOLD.store(unsafe { value.cast::<u64>().read() }, Ordering::Relaxed);
    } else if REUSE.contains(&attribute) {
        // SAFETY: the attribute is an integer.
        let on = unsafe { value.cast::<c_uint>().read() } as u64;
        REUSED[attribute as usize - 1].store(on, Ordering::Relaxed);
    } else {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(())
}

pub(super) unsafe fn attribute(pool: PoolHandle, attribute: c_uint, value: *mut c_void) -> Answer {
    check(pool)?;
    if attribute == RELEASE_THRESHOLD {
        // SAFETY: the attribute is a 64-bit integer.
        return unsafe { put(value.cast::<u64>(), THRESHOLD.load(Ordering::Relaxed)) };
    }
    if REUSE.contains(&attribute) {
        let on = REUSED[attribute as usize - 1].load(Ordering::Relaxed) as c_uint;
        // SAFETY: the attribute is an integer.
        return unsafe { put(value.cast::<c_uint>(), on) };
    }
    match attribute {
        // The use of the pool, present and highest, is not counted here.
        5..=8 => super::refuse("cuMemPoolGetAttribute of the pool's use"),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

pub(super) unsafe fn trim(pool: PoolHandle, _keep: usize) -> Answer {
    check(pool)
}

pub(super) unsafe fn alloc_async(
    default: DefaultStream,
    to: *mut DevicePtr,
    bytes: usize,
    pool: PoolHandle,
    handle: StreamHandle,
) -> Answer {
    check(pool)?;
    // SAFETY: as this call.
    unsafe { super::memory::alloc_async(default, to, bytes, handle) }
}
