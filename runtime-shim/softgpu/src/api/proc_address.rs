//! `cuGetProcAddress`: from a base name and a CUDA version to an entry point.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::table::{ENTRY_POINTS, EntryPoint};
use super::{Answer, DefaultStream, put, put_if_wanted};
use crate::abi::{CuResult, Uuid, symbol_status, text};

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM`.
const LEGACY_STREAM: u64 = 1;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD_STREAM: u64 = 2;

/// What a search found.
#[derive(Clone, Copy, Debug)]
pub enum Found {
    /// The entry point of the newest version that is not newer than asked for.
    Entry(&'static EntryPoint),
    /// The function came with a newer version.
    TooNew,
    /// There is no such function.
    Nothing,
}

/// Finds an entry point by its base name.
pub fn find(name: &str, version: c_int, default: DefaultStream) -> Found {
    let named = || ENTRY_POINTS.iter().filter(|e| e.base == name);
    let fitting = named().filter(|e| e.version <= version);
    // Newest first; of one version, the one with the wanted default stream. Entry points
    // without a stream have one form, which serves both.
    let best = fitting
        .filter(|e| e.default != Some(other(default)))
        .max_by_key(|e| e.version);
    match best {
        Some(entry) => Found::Entry(entry),
        None if named().next().is_some() => Found::TooNew,
        None => Found::Nothing,
    }
}

fn other(default: DefaultStream) -> DefaultStream {
    match default {
        DefaultStream::Legacy => DefaultStream::PerThread,
        DefaultStream::PerThread => DefaultStream::Legacy,
    }
}

pub(super) unsafe fn get_v2(
    symbol: *const c_char,
    to: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_uint,
) -> Answer {
    let default = match flags {
        0 | LEGACY_STREAM => DefaultStream::Legacy,
        PER_THREAD_STREAM => DefaultStream::PerThread,
        _ => return Err(CuResult::INVALID_VALUE),
    };
    // SAFETY: the program's string.
    let symbol = unsafe { text(symbol)? };
    let (address, state) = match find(symbol, version, default) {
        Found::Entry(entry) => (entry.address as *mut c_void, symbol_status::SUCCESS),
        Found::TooNew => (std::ptr::null_mut(), symbol_status::VERSION_NOT_SUFFICIENT),
        Found::Nothing => (std::ptr::null_mut(), symbol_status::NOT_FOUND),
    };
    // SAFETY: the program's pointers; the status may be null.
    unsafe {
        put(to, address)?;
        put_if_wanted(status, state);
    }
    if state == symbol_status::SUCCESS {
        Ok(())
    } else {
        Err(CuResult::NOT_FOUND)
    }
}

pub(super) unsafe fn get(
    symbol: *const c_char,
    to: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> Answer {
    // SAFETY: as this call.
    unsafe { get_v2(symbol, to, version, flags, std::ptr::null_mut()) }
}

/// The private tables of NVIDIA's own libraries are not here.
pub(super) unsafe fn export_table(to: *mut *const c_void, id: *const Uuid) -> Answer {
    if id.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: the program's pointer.
    unsafe { put(to, std::ptr::null())? };
    Err(CuResult::NOT_FOUND)
}
