//! The list of entry points, for tests and for the documentation's table.

use core::ffi::{c_char, c_int};
use core::ptr;

use crate::entry_points::{Duty, ENTRY_POINTS};

/// One entry point as C sees it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Coverage {
    /// Exported name.
    pub symbol: *const c_char,
    /// Name that `cuGetProcAddress` is asked for.
    pub family: *const c_char,
    /// First CUDA version with this form.
    pub since: c_int,
    /// 1: the form for per-thread default streams.
    pub per_thread: c_int,
    /// 0 transform, 1 observe, 2 fix.
    pub duty: c_int,
}

/// Entry point number `index`; past the last one, `symbol` is null.
#[unsafe(no_mangle)]
pub extern "C" fn oversub_entry_point(index: usize) -> Coverage {
    let Some(entry) = ENTRY_POINTS.get(index) else {
        let none = ptr::null();
        return Coverage {
            symbol: none,
            family: none,
            since: 0,
            per_thread: 0,
            duty: 0,
        };
    };
    Coverage {
        symbol: entry.symbol.as_ptr(),
        family: entry.family.as_ptr(),
        since: entry.since,
        per_thread: entry.per_thread.into(),
        duty: match entry.duty {
            Duty::Transform => 0,
            Duty::Observe => 1,
            Duty::Fix => 2,
        },
    }
}
