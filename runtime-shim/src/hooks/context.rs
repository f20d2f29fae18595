//! Contexts come, are waited for and go.

use core::ffi::{c_int, c_uint, c_void};

use oversub_protocol::event::{Kind, MemoryRecord};
use oversub_protocol::layout::STREAM_SLOTS;
use oversub_shim_core::abi::{CuResult, Device, Handle};

use crate::context::{here, place, while_ending};
use crate::entry_points::{Real, forward, types};
use crate::state::{self, STREAMS};
use crate::{driver, executor, managed, session};

/// A context exists: the executor may begin to look for a daemon.
fn created(result: CuResult) -> CuResult {
    if result.is_ok() {
        executor::start();
    }
    result
}

/// `cuCtxCreate_v2`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn create(
    real: Real<types::cuCtxCreate_v2>,
    context: *mut Handle,
    flags: c_uint,
    device: Device,
) -> CuResult {
    // SAFETY: the program's own arguments.
    created(unsafe { forward!(real, context, flags, device) })
}

/// `cuCtxCreate_v3`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn create_v3(
    real: Real<types::cuCtxCreate_v3>,
    context: *mut Handle,
    affinity: *mut c_void,
    count: c_int,
    flags: c_uint,
    device: Device,
) -> CuResult {
    // SAFETY: the program's own arguments.
    created(unsafe { forward!(real, context, affinity, count, flags, device) })
}

/// `cuCtxCreate_v4`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn create_v4(
    real: Real<types::cuCtxCreate_v4>,
    context: *mut Handle,
    parameters: *mut c_void,
    flags: c_uint,
    device: Device,
) -> CuResult {
    // SAFETY: the program's own arguments.
    created(unsafe { forward!(real, context, parameters, flags, device) })
}

/// `cuDevicePrimaryCtxRetain`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn primary_retain(
    real: Real<types::cuDevicePrimaryCtxRetain>,
    context: *mut Handle,
    device: Device,
) -> CuResult {
    // SAFETY: the program's own arguments.
    created(unsafe { forward!(real, context, device) })
}

/// `cuCtxDestroy_v2`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn destroy(real: Real<types::cuCtxDestroy_v2>, context: Handle) -> CuResult {
    // SAFETY: the program's own arguments.
    while_ending(
        context,
        || unsafe { forward!(real, context) },
        CuResult::is_ok,
    )
}

/// The place's context, if it is (as far as can be known) the primary one of `device`.
fn context_on(device: Device) -> Handle {
    place()
        .filter(|place| place.device == device)
        .map_or(0, |place| place.context)
}

fn is_inactive(device: Device) -> bool {
    let (mut flags, mut active) = (0, 1);
    // SAFETY: locals to write to.
    let result =
        unsafe { driver::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) };
    result.is_ok() && active == 0
}

/// `cuDevicePrimaryCtxRelease_v2`: the last release ends the context.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn primary_release(
    real: Real<types::cuDevicePrimaryCtxRelease_v2>,
    device: Device,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let end = || unsafe { forward!(real, device) };
    while_ending(context_on(device), end, |result| {
        result.is_ok() && is_inactive(device)
    })
}

/// `cuDevicePrimaryCtxReset_v2`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn primary_reset(
    real: Real<types::cuDevicePrimaryCtxReset_v2>,
    device: Device,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let end = || unsafe { forward!(real, device) };
    while_ending(context_on(device), end, |result| {
        result.is_ok() && is_inactive(device)
    })
}

/// `cuCtxSynchronize`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn synchronize(real: Real<types::cuCtxSynchronize>) -> CuResult {
    // SAFETY: the program's own arguments.
    waited(|| unsafe { forward!(real) }, here().is_some())
}

/// `cuCtxSynchronize_v2`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn synchronize_v2(real: Real<types::cuCtxSynchronize_v2>, context: Handle) -> CuResult {
    let ours = place().is_some_and(|place| place.context == context);
    // SAFETY: the program's own arguments.
    waited(|| unsafe { forward!(real, context) }, ours)
}

/// Waits for all streams; afterwards the host knows what every one of them has passed.
fn waited(wait: impl FnOnce() -> CuResult, ours: bool) -> CuResult {
    if !ours || state::active().is_none() {
        return wait();
    }
    let mut marks = [None; STREAM_SLOTS];
    for (slot, mark) in session::marked_slots().zip(&mut marks) {
        if STREAMS.unmarked(slot).is_some() {
            *mark = STREAMS.mark(slot, None);
        }
    }
    let result = wait();
    if !result.is_ok() {
        return result;
    }
    session::with(|session| {
        for (slot, mark) in session::marked_slots().zip(marks) {
            if let Some(mark) = mark {
                session.host_mark(slot, mark);
            }
        }
        let seq = STREAMS.current() + 1;
        session.push_patient(&MemoryRecord::new(Kind::SYNC, u8::MAX, 0, seq, 0, 0));
    });
    if let Some(place) = here() {
        managed::trim(managed::pool_keep(&place));
    }
    result
}
