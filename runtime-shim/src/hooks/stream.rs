//! Streams come, are waited for, captured, and go.

use core::ffi::{c_int, c_uint};

use oversub_protocol::event::{Kind, MemoryRecord};
use oversub_shim_core::abi::{CuResult, Handle};
use oversub_shim_core::streams::SHARED_SLOT;

use crate::context::here;
use crate::entry_points::{Real, forward, types};
use crate::state::{self, POOL, STREAM_WRITERS, STREAMS};
use crate::{capture, driver, managed, order, session};

/// The slot of a stream, given now if it has none.
#[inline]
pub fn slot_of(stream: Handle, per_thread: bool) -> u8 {
    if per_thread && stream == 0 {
        // Each thread's own: one slot could not tell them apart.
        return SHARED_SLOT;
    }
    STREAMS.find(stream).unwrap_or_else(|| assign(stream))
}

#[cold]
fn assign(stream: Handle) -> u8 {
    let _writers = STREAM_WRITERS.lock();
    STREAMS.assign(stream, |slot, number| {
        session::with(|session| session.has_passed(slot, number)).unwrap_or(false)
    })
}

fn created(result: CuResult, stream: *mut Handle) -> CuResult {
    if result.is_ok() && !stream.is_null() && state::active().is_some() {
        // SAFETY: the driver has written there.
        assign(unsafe { *stream });
    }
    result
}

/// `cuStreamCreate`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn create(
    real: Real<types::cuStreamCreate>,
    stream: *mut Handle,
    flags: c_uint,
) -> CuResult {
    // SAFETY: the program's own arguments.
    created(unsafe { forward!(real, stream, flags) }, stream)
}

/// `cuStreamCreateWithPriority`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn create_with_priority(
    real: Real<types::cuStreamCreateWithPriority>,
    stream: *mut Handle,
    flags: c_uint,
    priority: c_int,
) -> CuResult {
    // SAFETY: the program's own arguments.
    created(unsafe { forward!(real, stream, flags, priority) }, stream)
}

/// `cuStreamDestroy_v2`: what was freed in its order keeps an order without it.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn destroy(real: Real<types::cuStreamDestroy_v2>, stream: Handle) -> CuResult {
    if stream > 2 && state::active().is_some() {
        {
            let mut pool = POOL.lock();
            if pool.has_points_of(stream) {
                let turn = here().and_then(|place| order::follow(place.context, stream));
                if turn.is_none() {
                    // SAFETY: the program's own stream.
                    unsafe { driver::cuStreamSynchronize(stream) };
                }
                pool.replace_stream(stream, turn.unwrap_or_default());
            }
        }
        let _writers = STREAM_WRITERS.lock();
        if let Some(slot) = STREAMS
            .find(stream)
            .filter(|slot| STREAMS.unmarked(*slot).is_some())
        {
            // The slot is free again when the device has passed this.
            session::with(|session| session.mark(stream, slot, None));
        }
        STREAMS.retire(stream);
    }
    // SAFETY: the program's own arguments.
    unsafe { forward!(real, stream) }
}

/// `cuStreamSynchronize`: afterwards the host knows what the stream has passed.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn synchronize(real: Real<types::cuStreamSynchronize>, stream: Handle) -> CuResult {
    if state::active().is_none() {
        // SAFETY: the program's own arguments.
        return unsafe { forward!(real, stream) };
    }
    let slot = slot_of(stream, real.per_thread);
    let mark = STREAMS.mark(slot, None);
    // SAFETY: the program's own arguments.
    let result = unsafe { forward!(real, stream) };
    if !result.is_ok() {
        return result;
    }
    let is_idle = session::with(|session| {
        if let Some(mark) = mark {
            session.host_mark(slot, mark);
        }
        let seq = STREAMS.current() + 1;
        session.push_patient(&MemoryRecord::new(Kind::SYNC, slot, 0, seq, 0, 0));
        session.is_idle()
    });
    // The driver waits for the whole device before it frees, and what runs in another stream may
    // wait for this very thread.
    if is_idle == Some(true)
        && let Some(place) = here()
    {
        managed::trim(managed::pool_keep(&place));
    }
    result
}

/// `cuStreamBeginCapture_v2`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn begin_capture(
    real: Real<types::cuStreamBeginCapture_v2>,
    stream: Handle,
    mode: c_uint,
) -> CuResult {
    // Before it begins: a launch in between must not be taken for one that runs.
    capture::begun();
    // SAFETY: the program's own arguments.
    let result = unsafe { forward!(real, stream, mode) };
    if !result.is_ok() {
        capture::ended();
    }
    result
}

/// `cuStreamEndCapture`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn end_capture(
    real: Real<types::cuStreamEndCapture>,
    stream: Handle,
    graph: *mut Handle,
) -> CuResult {
    let was_capturing = capture::is_capturing(stream, real.per_thread);
    // SAFETY: the program's own arguments.
    let result = unsafe { forward!(real, stream, graph) };
    if was_capturing && !capture::is_capturing(stream, real.per_thread) {
        capture::ended();
    }
    result
}
