//! `cuGetProcAddress`, both versions: gives our functions where it would give the driver's.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};

use oversub_shim_core::abi::{CuResult, PROC_PER_THREAD_STREAM};

use crate::entry_points::{Real, forward, types};
use crate::{loader, state};

/// `cuGetProcAddress`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn proc_address(
    real: Real<types::cuGetProcAddress>,
    symbol: *const c_char,
    to: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = unsafe { forward!(real, symbol, to, version, flags) };
    // SAFETY: as above.
    unsafe { replace(result, symbol, to, version, flags) };
    result
}

/// `cuGetProcAddress_v2`.
///
/// # Safety
/// As the CUDA driver API defines it.
pub unsafe fn proc_address_v2(
    real: Real<types::cuGetProcAddress_v2>,
    symbol: *const c_char,
    to: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_uint,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = unsafe { forward!(real, symbol, to, version, flags, status) };
    // SAFETY: as above.
    unsafe { replace(result, symbol, to, version, flags) };
    result
}

/// # Safety
/// After success the driver has written to `to`.
unsafe fn replace(
    result: CuResult,
    symbol: *const c_char,
    to: *mut *mut c_void,
    version: c_int,
    flags: u64,
) {
    if !result.is_ok() || symbol.is_null() || to.is_null() || state::active().is_none() {
        return;
    }
    // SAFETY: the driver has read the name and written the answer.
    unsafe {
        let per_thread = flags & PROC_PER_THREAD_STREAM != 0;
        let name = CStr::from_ptr(symbol);
        *to = loader::substitute_procedure(name, version, per_thread, *to);
    }
}
