//! Modules and functions.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::device::{MAX_BLOCK_THREADS, MAX_SHARED_BYTES, SHARED_BYTES};
use super::{Answer, put, put_if_wanted};
use crate::abi::{CuResult, DevicePtr, FunctionHandle, ModuleHandle, text};
use crate::context::usable;
use crate::driver;
use crate::module::{self, FUNCTIONS, Function, ImageError, MODULES};

/// Threads of a multiprocessor, and its blocks.
const PROCESSOR_THREADS: c_int = 2048;
const PROCESSOR_BLOCKS: c_int = 32;

fn function_of(handle: FunctionHandle) -> Result<&'static Function, CuResult> {
    driver::ready()?;
    FUNCTIONS.get(handle.0).ok_or(CuResult::INVALID_HANDLE)
}

fn say(error: &ImageError) -> CuResult {
    eprintln!("soft GPU: {error}");
    error.result()
}

fn load_bytes(to: *mut ModuleHandle, image: &[u8]) -> Answer {
    let handle = module::load(image, usable()?).map_err(|error| say(&error))?;
    // SAFETY: the program's pointer.
    unsafe { put(to, ModuleHandle(handle.ok_or(CuResult::OUT_OF_MEMORY)?)) }
}

pub(super) unsafe fn load_data(to: *mut ModuleHandle, image: *const c_void) -> Answer {
    driver::ready()?;
    usable()?;
    if to.is_null() || image.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: an image is machine code with a header, or a string.
    if let Some(what) = unsafe { module::machine_code(image.cast()) } {
        return Err(say(&ImageError::MachineCode(what)));
    }
    // SAFETY: what is no machine code is PTX, which ends with a zero.
    load_bytes(to, unsafe { CStr::from_ptr(image.cast()) }.to_bytes())
}

/// The options steer a compiler that is not here.
pub(super) unsafe fn load_data_ex(
    to: *mut ModuleHandle,
    image: *const c_void,
    count: c_uint,
    options: *const c_uint,
    values: *const *mut c_void,
) -> Answer {
    if count > 0 && (options.is_null() || values.is_null()) {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: as this call.
    unsafe { load_data(to, image) }
}

pub(super) unsafe fn load_file(to: *mut ModuleHandle, path: *const c_char) -> Answer {
    driver::ready()?;
    usable()?;
    if to.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: the program's string.
    let mut image = std::fs::read(unsafe { text(path)? }).map_err(|_| CuResult::FILE_NOT_FOUND)?;
    image.push(0);
    // SAFETY: ends with a zero.
    unsafe { load_data(to, image.as_ptr().cast()) }
}

pub(super) unsafe fn unload(module: ModuleHandle) -> Answer {
    driver::ready()?;
    let context = usable()?;
    MODULES.get(module.0).ok_or(CuResult::INVALID_HANDLE)?;
    context.synchronize();
    module::unload(module.0)
}

pub(super) unsafe fn function(
    to: *mut FunctionHandle,
    module: ModuleHandle,
    name: *const c_char,
) -> Answer {
    driver::ready()?;
    usable()?;
    // SAFETY: the program's string.
    let handle = module::function(module.0, unsafe { text(name)? })?;
    // SAFETY: the program's pointer.
    unsafe { put(to, FunctionHandle(handle)) }
}

/// The kernels here have no global variables.
pub(super) unsafe fn global(
    to: *mut DevicePtr,
    bytes: *mut usize,
    module: ModuleHandle,
    name: *const c_char,
) -> Answer {
    driver::ready()?;
    usable()?;
    MODULES.get(module.0).ok_or(CuResult::INVALID_HANDLE)?;
    // SAFETY: the program's string, and its pointers, which may be null.
    unsafe {
        text(name)?;
        put_if_wanted(to, 0);
        put_if_wanted(bytes, 0);
    }
    Err(CuResult::NOT_FOUND)
}

pub(super) unsafe fn parameter_info(
    handle: FunctionHandle,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> Answer {
    let function = function_of(handle)?;
    let parameter = function
        .parameters
        .get(index)
        .ok_or(CuResult::INVALID_VALUE)?;
    // SAFETY: the program's pointers; the size may be null.
    unsafe {
        put(offset, parameter.offset)?;
        put_if_wanted(size, parameter.size);
    }
    Ok(())
}

pub(super) unsafe fn parameter_count(handle: FunctionHandle, count: *mut usize) -> Answer {
    let function = function_of(handle)?;
    // SAFETY: the program's pointer.
    unsafe { put(count, function.parameters.len()) }
}

pub(super) unsafe fn name(to: *mut *const c_char, handle: FunctionHandle) -> Answer {
    let function = function_of(handle)?;
    // SAFETY: the program's pointer; functions live for ever.
    unsafe { put(to, function.name.as_ptr()) }
}

pub(super) unsafe fn module_of(to: *mut ModuleHandle, handle: FunctionHandle) -> Answer {
    let function = function_of(handle)?;
    // SAFETY: the program's pointer.
    unsafe { put(to, ModuleHandle(function.module)) }
}

/// `CUfunction_attribute`: no registers, no shared, constant or local memory of their own.
pub(super) unsafe fn attribute(
    value: *mut c_int,
    attribute: c_uint,
    handle: FunctionHandle,
) -> Answer {
    function_of(handle)?;
    let answer = match attribute {
        0 => MAX_BLOCK_THREADS as c_int,
        1..=4 | 7 => 0,
        5 | 6 => 80, // Compute capability 8.0.
        8 => SHARED_BYTES as c_int,
        9 => -1,
        10..=15 => 0, // Clusters.
        _ => return Err(CuResult::INVALID_VALUE),
    };
    // SAFETY: the program's pointer.
    unsafe { put(value, answer) }
}

/// Shared memory and its share of the cache may be asked for; a kernel here needs neither.
pub(super) unsafe fn set_attribute(
    handle: FunctionHandle,
    attribute: c_uint,
    value: c_int,
) -> Answer {
    function_of(handle)?;
    match attribute {
        8 if (0..=MAX_SHARED_BYTES as c_int).contains(&value) => Ok(()),
        9 if (-1..=100).contains(&value) => Ok(()),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

pub(super) unsafe fn set_cache(handle: FunctionHandle, preference: c_uint) -> Answer {
    function_of(handle)?;
    if preference <= 3 {
        Ok(())
    } else {
        Err(CuResult::INVALID_VALUE)
    }
}

pub(super) unsafe fn active_blocks(
    count: *mut c_int,
    handle: FunctionHandle,
    threads: c_int,
    shared_bytes: usize,
) -> Answer {
    // SAFETY: as this call.
    unsafe { active_blocks_with_flags(count, handle, threads, shared_bytes, 0) }
}

pub(super) unsafe fn active_blocks_with_flags(
    count: *mut c_int,
    handle: FunctionHandle,
    threads: c_int,
    _shared_bytes: usize,
    flags: c_uint,
) -> Answer {
    function_of(handle)?;
    if threads <= 0 || flags > 1 {
        return Err(CuResult::INVALID_VALUE);
    }
    let blocks = match threads <= MAX_BLOCK_THREADS as c_int {
        true => (PROCESSOR_THREADS / threads).min(PROCESSOR_BLOCKS),
        false => 0,
    };
    // SAFETY: the program's pointer.
    unsafe { put(count, blocks) }
}
