//! Modules and libraries: what handles mean.

use core::ffi::{CStr, c_char};
use core::ptr;

use oversub_protocol::encode::Function as FunctionMessage;
use oversub_shim_core::abi::{CuResult, Handle};
use oversub_shim_core::functions::{Function, Layout};

use crate::driver;
use crate::entry_points::{Real, forward, types};
use crate::session::Session;
use crate::state::{self, FUNCTION_WRITERS, FUNCTIONS};

/// `cuModuleUnload`: its kernels' handles may come back with another meaning.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn unload(real: Real<types::cuModuleUnload>, module: Handle) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = unsafe { forward!(real, module) };
    FUNCTIONS.make_stale();
    result
}

/// `cuLibraryUnload`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn unload_library(real: Real<types::cuLibraryUnload>, library: Handle) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = unsafe { forward!(real, library) };
    FUNCTIONS.make_stale();
    result
}

/// `cuLibraryGetKernel`: such a handle may be launched, but has questions of its own.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn library_kernel(
    real: Real<types::cuLibraryGetKernel>,
    kernel: *mut Handle,
    library: Handle,
    name: *const c_char,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = unsafe { forward!(real, kernel, library, name) };
    if result.is_ok() && !kernel.is_null() && state::active().is_some() {
        let _writers = FUNCTION_WRITERS.lock();
        // SAFETY: the driver has written there.
        FUNCTIONS.note_library_kernel(unsafe { *kernel });
    }
    result
}

/// Asks the driver about a kernel that is launched for the first time, and tells the daemon.
#[cold]
pub fn learn(session: &Session, handle: Handle) -> Option<(u32, &'static Function)> {
    let _writers = FUNCTION_WRITERS.lock();
    if let Some(found) = FUNCTIONS.find(handle) {
        return Some(found);
    }
    let is_kernel = FUNCTIONS.is_library_kernel(handle);
    let mut name = ptr::null();
    // SAFETY: a local to write to; the program is about to launch this handle.
    let result = unsafe {
        match is_kernel {
            true => driver::cuKernelGetName(&raw mut name, handle),
            false => driver::cuFuncGetName(&raw mut name, handle),
        }
    };
    let known = result.is_ok() && !name.is_null();
    let name = if known {
        // SAFETY: the driver's terminated text, which lives as long as the module.
        unsafe { CStr::from_ptr(name) }.to_bytes()
    } else {
        b""
    };
    let learnt = FUNCTIONS.learn(handle, name, &layout(handle, is_kernel));
    let Some((number, function)) = learnt else {
        FUNCTIONS.count_untracked();
        return None;
    };
    session.push(&FunctionMessage::new(number, function.parameters(), name));
    Some((number, function))
}

fn layout(handle: Handle, is_kernel: bool) -> Layout {
    /// CUDA allows 32,764 bytes of parameters; more of them than this do not fit a record.
    const MOST: usize = 4096;
    let mut layout = Layout::empty();
    for index in 0..MOST {
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: locals to write to.
        let result = unsafe {
            match is_kernel {
                true => {
                    driver::cuKernelGetParamInfo(handle, index, &raw mut offset, &raw mut bytes)
                }
                false => driver::cuFuncGetParamInfo(handle, index, &raw mut offset, &raw mut bytes),
            }
        };
        match result {
            CuResult::SUCCESS => layout.push(offset, bytes),
            // No such parameter: that was all.
            CuResult::INVALID_VALUE => return layout,
            _ => return Layout::unknown(),
        }
    }
    layout
}
