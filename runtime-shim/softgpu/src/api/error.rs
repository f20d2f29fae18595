//! Names and texts of results.

use std::ffi::c_char;

use super::{Answer, put};
use crate::abi::CuResult;

pub(super) unsafe fn name(result: CuResult, to: *mut *const c_char) -> Answer {
    let name = result.name();
    // SAFETY: the program's pointer.
    unsafe { put(to, name.map_or(std::ptr::null(), |n| n.as_ptr()))? };
    name.map(|_| ()).ok_or(CuResult::INVALID_VALUE)
}

pub(super) unsafe fn text(result: CuResult, to: *mut *const c_char) -> Answer {
    let text = result.text();
    // SAFETY: the program's pointer.
    unsafe { put(to, text.map_or(std::ptr::null(), |t| t.as_ptr()))? };
    text.map(|_| ()).ok_or(CuResult::INVALID_VALUE)
}
