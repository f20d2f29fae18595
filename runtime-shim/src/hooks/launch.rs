//! Kernel launches: the hot path.
//!
//! Without a daemon a launch costs one load and a jump. With one, it takes a number, writes
//! a record and calls the driver; no lock, no allocation, no system call unless the daemon
//! sleeps. The record is written *before* the driver is called, which gives the daemon a
//! head start. A launch that then fails has been told for nothing: the daemon sees one
//! execution that touched nothing, and progress goes past its number like past any other.

use core::ffi::{c_uint, c_void};
use core::ptr::NonNull;

use oversub_protocol::encode::{Launch, LaunchShape};
use oversub_protocol::event::LaunchRecord;
use oversub_protocol::ring::Encode;
use oversub_shim_core::abi::{CuResult, Handle, LaunchConfig};
use oversub_shim_core::launch::{Room, gather};
use oversub_shim_core::streams::Inside;

use super::module::learn;
use super::stream::slot_of;
use crate::capture;
use crate::entry_points::{Real, forward, types};
use crate::hold;
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
    let item = Item::begin(stream, real.per_thread);
    if let Some(item) = &item {
        item.number();
    }
    finish(item, launch())
}

/// # Safety
/// The kernel's pointers are what the program passes to the driver.
#[inline]
unsafe fn recorded(
    kernel: &Kernel,
    stream: Handle,
    per_thread: bool,
    launch: impl FnOnce() -> CuResult,
) -> CuResult {
    // SAFETY: by this function's contract.
    let Some(item) = (unsafe { tell(kernel, stream, per_thread) }) else {
        return launch();
    };
    let result = launch();
    mark_if_due(&item, result);
    let slot = item.slot;
    let waits = result.is_ok() && !item.captured && hold::is_due(item.session(), slot);
    drop(item);
    if waits {
        hold::wait(slot);
    }
    result
}

/// Writes the record of a launch.
///
/// # Safety
/// As [`recorded`].
#[inline(never)]
unsafe fn tell(kernel: &Kernel, stream: Handle, per_thread: bool) -> Option<Item> {
    let item = Item::begin(stream, per_thread)?;
    let known = FUNCTIONS.find(kernel.function);
    let Some((number, function)) = known.or_else(|| learn(item.session(), kernel.function)) else {
        item.number();
        return Some(item);
    };
    let mut room = Room::new();
    // SAFETY: by this function's contract.
    let words = unsafe { gather(function, kernel.parameters, kernel.extra, &mut room) };
    let mut flags = if item.captured {
        LaunchRecord::FLAG_CAPTURED
    } else {
        0
    };
    if words.truncated {
        flags |= LaunchRecord::FLAG_TRUNCATED;
    }
    let shape = LaunchShape {
        stream: item.slot,
        flags,
        seq: item.number(),
        function: number,
        grid: kernel.grid,
        // No device takes more than 1,024 threads in a direction.
        block: kernel.block.map(|threads| threads as u16),
    };
    let launch = Launch::new(shape, words.words);
    item.session().push_patient(&launch);
    item.session().fetch_ahead(launch.slots());
    Some(item)
}

/// Something that is being put into a stream while a daemon listens: between its record and
/// the driver's answer.
pub struct Item {
    inside: Inside<'static>,
    session: NonNull<Session>,
    stream: Handle,
    /// The stream's slot.
    pub slot: u8,
    /// It becomes part of a graph and does not run now.
    pub captured: bool,
}

impl Item {
    /// `None`: no daemon listens any more.
    #[inline(always)]
    pub fn begin(stream: Handle, per_thread: bool) -> Option<Item> {
        let slot = slot_of(stream, per_thread);
        let inside = STREAMS.enter(slot);
        let session = NonNull::from(session::current(&inside)?);
        let captured = capture::is_capturing(stream, per_thread);
        Some(Item {
            inside,
            session,
            stream,
            slot,
            captured,
        })
    }

    /// The session that was current when this began. It may have been taken away since, but
    /// is not unmapped while we are inside.
    #[inline]
    pub fn session(&self) -> &Session {
        // SAFETY: as `session::current` says.
        unsafe { self.session.as_ref() }
    }

    /// The next number.
    #[inline]
    pub fn number(&self) -> u64 {
        STREAMS.next(&self.inside)
    }
}

/// Ends an item with the driver's answer, and marks progress when due.
#[inline(never)]
pub fn finish(item: Option<Item>, result: CuResult) -> CuResult {
    if let Some(item) = item {
        mark_if_due(&item, result);
    }
    result
}

#[inline]
fn mark_if_due(item: &Item, result: CuResult) {
    let session = item.session();
    let due = STREAMS.is_mark_due(&item.inside, session.stride());
    if due && result.is_ok() && !item.captured {
        session.mark(item.stream, item.slot, Some(&item.inside));
    }
}
