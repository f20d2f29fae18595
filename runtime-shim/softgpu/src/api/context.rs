//! Contexts: making, ending, which one is current, waiting for all of its work.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use super::device::context_of;
use super::{Answer, put, put_if_wanted};
use crate::abi::{ContextHandle, CuResult, Device};
use crate::context::{self, Context, current, usable};
use crate::{allocations, driver};

/// The version that `cuCtxGetApiVersion` gives, as drivers do for contexts of the second
/// version of the interface.
const API_VERSION: c_uint = 3020;

/// Refuses flags that no header knows (`CU_CTX_FLAGS_MASK` and the newer ones).
pub(super) fn check_flags(flags: c_uint) -> Answer {
    if flags & !0xff == 0 {
        Ok(())
    } else {
        Err(CuResult::INVALID_VALUE)
    }
}

pub(super) unsafe fn create(to: *mut ContextHandle, flags: c_uint, device: Device) -> Answer {
    driver::ready()?;
    check_flags(flags)?;
    if device != 0 {
        return Err(CuResult::INVALID_DEVICE);
    }
    if to.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    let (handle, made) = Context::create(flags, false)?;
    context::push(made)?;
    // SAFETY: the program's pointer.
    unsafe { put(to, ContextHandle(handle)) }
}

pub(super) unsafe fn create_v3(
    to: *mut ContextHandle,
    _affinity: *const c_void,
    affinities: c_int,
    flags: c_uint,
    device: Device,
) -> Answer {
    driver::ready()?;
    if affinities != 0 {
        return super::refuse("cuCtxCreate_v3 with execution affinity");
    }
    // SAFETY: as this call.
    unsafe { create(to, flags, device) }
}

pub(super) unsafe fn create_v4(
    to: *mut ContextHandle,
    parameters: *const c_void,
    flags: c_uint,
    device: Device,
) -> Answer {
    driver::ready()?;
    if !parameters.is_null() {
        return super::refuse("cuCtxCreate_v4 with parameters");
    }
    // SAFETY: as this call.
    unsafe { create(to, flags, device) }
}

pub(super) unsafe fn destroy(handle: ContextHandle) -> Answer {
    driver::ready()?;
    let ended = context_of(handle)?;
    if ended.is_primary() {
        return Err(CuResult::INVALID_CONTEXT);
    }
    if current().is_some_and(|c| std::ptr::eq(c, ended)) {
        context::pop();
    }
    allocations::end_context(ended);
    Ok(())
}

pub(super) unsafe fn push_current(handle: ContextHandle) -> Answer {
    driver::ready()?;
    context::push(context_of(handle)?)
}

pub(super) unsafe fn pop_current(to: *mut ContextHandle) -> Answer {
    driver::ready()?;
    let top = context::pop().ok_or(CuResult::INVALID_CONTEXT)?;
    // SAFETY: the program's pointer, which may be null.
    unsafe { put_if_wanted(to, ContextHandle(top.handle().unwrap_or(0))) };
    Ok(())
}

pub(super) unsafe fn set_current(handle: ContextHandle) -> Answer {
    driver::ready()?;
    let next = if handle.0 == 0 {
        None
    } else {
        Some(context_of(handle)?)
    };
    context::set_current(next);
    Ok(())
}

pub(super) unsafe fn get_current(to: *mut ContextHandle) -> Answer {
    driver::ready()?;
    // SAFETY: the program's pointer.
    unsafe {
        put(
            to,
            ContextHandle(current().and_then(Context::handle).unwrap_or(0)),
        )
    }
}

pub(super) unsafe fn device(to: *mut Device) -> Answer {
    driver::ready()?;
    current().ok_or(CuResult::INVALID_CONTEXT)?;
    // SAFETY: the program's pointer.
    unsafe { put(to, 0) }
}

pub(super) unsafe fn flags(to: *mut c_uint) -> Answer {
    driver::ready()?;
    let flags = current().ok_or(CuResult::INVALID_CONTEXT)?.flags();
    // SAFETY: the program's pointer.
    unsafe { put(to, flags) }
}

pub(super) unsafe fn synchronize() -> Answer {
    driver::ready()?;
    let context = usable()?;
    context.synchronize();
    context.error()
}

pub(super) unsafe fn synchronize_context(handle: ContextHandle) -> Answer {
    driver::ready()?;
    let context = if handle.0 == 0 {
        usable()?
    } else {
        context_of(handle)?
    };
    context.error()?;
    context.synchronize();
    context.error()
}

pub(super) unsafe fn api_version(handle: ContextHandle, version: *mut c_uint) -> Answer {
    driver::ready()?;
    if handle.0 != 0 {
        context_of(handle)?;
    }
    // SAFETY: the program's pointer.
    unsafe { put(version, API_VERSION) }
}

pub(super) unsafe fn id(handle: ContextHandle, id: *mut c_ulonglong) -> Answer {
    driver::ready()?;
    let context = match handle.0 {
        0 => current().ok_or(CuResult::INVALID_CONTEXT)?,
        _ => context_of(handle)?,
    };
    // SAFETY: the program's pointer.
    unsafe { put(id, context.id()) }
}

pub(super) unsafe fn priority_range(least: *mut c_int, greatest: *mut c_int) -> Answer {
    driver::ready()?;
    usable()?;
    // SAFETY: the program's pointers, which may be null. There are no priorities.
    unsafe {
        put_if_wanted(least, 0);
        put_if_wanted(greatest, 0);
    }
    Ok(())
}

pub(super) unsafe fn limit(value: *mut usize, limit: c_uint) -> Answer {
    driver::ready()?;
    usable()?;
    let answer = match limit {
        0 => 1 << 10, // Stack of a thread.
        1 => 1 << 20, // What printf holds.
        2 => 8 << 20, // The heap of kernels.
        _ => return Err(CuResult::UNSUPPORTED_LIMIT),
    };
    // SAFETY: the program's pointer.
    unsafe { put(value, answer) }
}

pub(super) unsafe fn set_limit(_limit: c_uint, _value: usize) -> Answer {
    driver::ready()?;
    usable()?;
    Err(CuResult::UNSUPPORTED_LIMIT)
}

pub(super) unsafe fn set_flags(flags: c_uint) -> Answer {
    driver::ready()?;
    check_flags(flags)?;
    usable()?.set_flags(flags);
    Ok(())
}
