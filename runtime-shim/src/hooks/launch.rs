//! Kernel launches: the hot path.
//!
//! Without a daemon a launch costs one load and a jump. With one, it takes a number, writes
//! a record and calls the driver; no lock, no allocation, no system call unless the daemon
//! sleeps. The record is written *before* the driver is called, which gives the daemon a
//! head start. A launch that then fails has been told for nothing: the daemon sees one
//! execution that touched nothing, and progress goes past its number like past any other.

use core::ffi::{c_uint, c_void};

use oversub_protocol::encode::{Launch, LaunchShape};
use oversub_protocol::event::LaunchRecord;
use oversub_shim_core::abi::{CuResult, Handle, LaunchConfig};
use oversub_shim_core::launch::gather;
use oversub_shim_core::streams::Inside;

use super::module::learn;
use super::stream::slot_of;
use crate::capture;
use crate::entry_points::{Real, forward, types};
use crate::session::{self, Session};
use crate::state::{self, FUNCTIONS, STREAMS};

/// What is launched where.
struct Kernel {
    function: Handle,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    parameters: *const *const c_void,
    extra: *const *const c_void,
}

/// `cuLaunchKernel`.
///
/// # Safety
/// As the CUDA driver API defines it.
#[allow(clippy::too_many_arguments)]
#[inline]
pub unsafe fn kernel(
    real: Real<types::cuLaunchKernel>,
    function: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: Handle,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let launch = || unsafe {
        forward!(
            real,
            function,
            grid_x,
            grid_y,
            grid_z,
            block_x,
            block_y,
            block_z,
            shared_bytes,
            stream,
            parameters,
            extra,
        )
    };
    if !state::is_recording() {
        return launch();
    }
    let kernel = Kernel {
        function,
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        parameters: parameters.cast_const().cast(),
        extra: extra.cast_const().cast(),
    };
    // SAFETY: the program's own arguments.
    unsafe { recorded(&kernel, stream, real.per_thread, launch) }
}

/// `cuLaunchKernelEx`.
///
/// # Safety
/// As the CUDA driver API defines it.
#[inline]
pub unsafe fn kernel_ex(
    real: Real<types::cuLaunchKernelEx>,
    config: *const LaunchConfig,
    function: Handle,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let launch = || unsafe { forward!(real, config, function, parameters, extra) };
    if !state::is_recording() || config.is_null() {
        return launch();
    }
    // SAFETY: not null, and the driver would read it.
    let LaunchConfig {
        grid,
        block,
        stream,
        ..
    } = unsafe { *config };
    let kernel = Kernel {
        function,
        grid,
        block,
        parameters: parameters.cast_const().cast(),
        extra: extra.cast_const().cast(),
    };
    // SAFETY: the program's own arguments.
    unsafe { recorded(&kernel, stream, real.per_thread, launch) }
}

/// `cuLaunchCooperativeKernel`.
///
/// # Safety
/// As the CUDA driver API defines it.
#[allow(clippy::too_many_arguments)]
#[inline]
pub unsafe fn cooperative(
    real: Real<types::cuLaunchCooperativeKernel>,
    function: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: Handle,
    parameters: *mut *mut c_void,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let launch = || unsafe {
        forward!(
            real,
            function,
            grid_x,
            grid_y,
            grid_z,
            block_x,
            block_y,
            block_z,
            shared_bytes,
            stream,
            parameters,
        )
    };
    if !state::is_recording() {
        return launch();
    }
    let kernel = Kernel {
        function,
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        parameters: parameters.cast_const().cast(),
        extra: core::ptr::null(),
    };
    // SAFETY: the program's own arguments.
    unsafe { recorded(&kernel, stream, real.per_thread, launch) }
}

/// `cuGraphLaunch`: takes a number, so that the stream's progress covers it.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn graph(real: Real<types::cuGraphLaunch>, graph: Handle, stream: Handle) -> CuResult {
    // SAFETY: the program's own arguments.
    let launch = || unsafe { forward!(real, graph, stream) };
    if !state::is_recording() {
        return launch();
    }
    numbered(stream, real.per_thread, launch, |_, _, _, _| {})
}

/// # Safety
/// The kernel's pointers are what the program passes to the driver.
unsafe fn recorded(
    kernel: &Kernel,
    stream: Handle,
    per_thread: bool,
    launch: impl FnOnce() -> CuResult,
) -> CuResult {
    numbered(
        stream,
        per_thread,
        launch,
        |session, inside, slot, captured| {
            let known = FUNCTIONS.find(kernel.function);
            let Some((number, function)) = known.or_else(|| learn(session, kernel.function)) else {
                STREAMS.next(inside);
                return;
            };
            // SAFETY: by this function's contract.
            let words = unsafe { gather(function, kernel.parameters, kernel.extra) };
            let mut flags = if captured {
                LaunchRecord::FLAG_CAPTURED
            } else {
                0
            };
            if words.truncated {
                flags |= LaunchRecord::FLAG_TRUNCATED;
            }
            let shape = LaunchShape {
                stream: slot,
                flags,
                seq: STREAMS.next(inside),
                function: number,
                grid: kernel.grid,
                // No device takes more than 1,024 threads in a direction.
                block: kernel.block.map(|threads| threads as u16),
            };
            session.push(&Launch::new(shape, words.as_slice()));
        },
    )
}

/// Calls `tell` and then `act`, as one item of the stream, and marks progress when due.
#[inline]
pub fn numbered(
    stream: Handle,
    per_thread: bool,
    act: impl FnOnce() -> CuResult,
    tell: impl FnOnce(&Session, &Inside<'_>, u8, bool),
) -> CuResult {
    let slot = slot_of(stream, per_thread);
    let inside = STREAMS.enter(slot);
    let Some(session) = session::current(&inside) else {
        return act();
    };
    let captured = capture::is_capturing(stream, per_thread);
    tell(session, &inside, slot, captured);
    let result = act();
    if STREAMS.is_mark_due(slot, session.stride()) && result.is_ok() && !captured {
        session.mark(stream, slot, 1);
    }
    result
}
