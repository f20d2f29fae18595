//! The entry points of the driver API.
//!
//! [`table`] lists every one once, with its names, versions and implementation; the
//! exports, the answers of `cuGetProcAddress` and the tests are made from it. The modules
//! here check arguments and put operations into streams; they move no data.
//!
//! # Safety
//!
//! An `unsafe fn` of these modules asks of its caller what the CUDA driver API asks of a
//! program: a pointer that is not null is valid for what the function of that name reads or
//! writes through it, for as long as its operation takes, and what a handle means is not
//! destroyed while the call runs. Where a function asks for more, it says so.

pub mod context;
pub mod copy;
pub mod device;
pub mod error;
pub mod event;
pub mod hints;
pub mod host;
pub mod launch;
pub mod memory;
pub mod module;
pub mod pool;
pub mod proc_address;
pub mod query;
pub mod stream;
pub mod table;
pub mod unsupported;

use crate::abi::{CuResult, STREAM_LEGACY, STREAM_PER_THREAD, StreamHandle};
use crate::context::{STREAMS, usable};
use crate::driver;
use crate::stream::Stream;

/// What an entry point answers.
pub type Answer = Result<(), CuResult>;

/// Which stream the null handle means: `_ptsz` and `_ptds` entry points mean the thread's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DefaultStream {
    /// The one that synchronises with the blocking streams.
    Legacy,
    /// The calling thread's.
    PerThread,
}

/// The stream that a program names, able to take work.
///
/// # Errors
/// Of the context, or `INVALID_HANDLE`.
#[inline]
fn stream(default: DefaultStream, handle: StreamHandle) -> Result<&'static Stream, CuResult> {
    driver::ready()?;
    let context = usable()?;
    match (handle.0, default) {
        (0, DefaultStream::Legacy) | (STREAM_LEGACY, _) => Ok(context.legacy()),
        (0, DefaultStream::PerThread) | (STREAM_PER_THREAD, _) => context.per_thread(),
        (handle, _) => {
            let stream = STREAMS.get(handle).ok_or(CuResult::INVALID_HANDLE)?;
            stream.context().error()?;
            Ok(stream)
        }
    }
}

/// Writes a result where the program wants it.
///
/// # Safety
/// `to` is null or valid for the write.
unsafe fn put<T>(to: *mut T, value: T) -> Answer {
    if to.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: not null, and valid by the caller's contract.
    unsafe { to.write(value) };
    Ok(())
}

/// As [`put`], for results that the program may do without.
///
/// # Safety
/// `to` is null or valid for the write.
unsafe fn put_if_wanted<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: not null, and valid by the caller's contract.
        unsafe { to.write(value) };
    }
}

/// An array that a program passed.
///
/// # Safety
/// `first` is null or points to `count` values.
unsafe fn array<'a, T>(first: *const T, count: usize) -> Result<&'a [T], CuResult> {
    if first.is_null() || !first.is_aligned() || count > isize::MAX as usize / size_of::<T>() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: not null, aligned, of a possible length, and valid by the caller's contract.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Counts and refuses a call.
///
/// # Errors
/// `NOT_SUPPORTED`, always.
fn refuse(name: &'static str) -> Answer {
    crate::stats::count_unsupported(name);
    Err(CuResult::NOT_SUPPORTED)
}
