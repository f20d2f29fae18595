//! Copies and memsets.
//!
//! What blocks the caller: copies between the device and pageable host memory always do,
//! beside those to the device of at most 64 KiB, which are staged while the call runs;
//! the synchronous forms do. Copies of pinned and managed memory and inside the device do
//! not (CUDA driver API, "API synchronization behavior").

use std::ffi::{c_uchar, c_uint, c_ushort, c_void};

use super::{Answer, DefaultStream, stream};
use crate::abi::{CuResult, DevicePtr, StreamHandle};
use crate::allocations::{is_pinned, place};
use crate::memory::{Fill, Place};
use crate::stream::Stream;
use crate::stream::op::Op;

/// Copies of pageable memory up to here are staged, bytes.
const STAGED_BYTES: usize = 64 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// The call returns when the copy is done.
    Always,
    /// Only where the host's side is pageable.
    WherePageable,
}

/// Which side an argument must be on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Host,
    Device,
    Any,
}

fn side(address: DevicePtr, bytes: usize, side: Side) -> Result<Place, CuResult> {
    let found = place(address, bytes as u64)?;
    match (side, found) {
        // A host address is one for the device too, where it is pinned.
        (Side::Device, Place::Host(_)) if !is_pinned(address, bytes as u64) => {
            Err(CuResult::INVALID_VALUE)
        }
        _ => Ok(found),
    }
}

fn finish(stream: &'static Stream, sequence: u64) -> Answer {
    stream.wait_for(sequence);
    stream.context().error()
}

/// Puts a copy into a stream.
///
/// # Safety
/// The host's side is valid for the copy until it is done.
unsafe fn copy(
    stream: &'static Stream,
    (to, to_side): (DevicePtr, Side),
    (from, from_side): (DevicePtr, Side),
    bytes: usize,
    waits: Waits,
) -> Answer {
    if bytes == 0 {
        return Ok(());
    }
    let (to, from) = (side(to, bytes, to_side)?, side(from, bytes, from_side)?);
    let pageable = |p: Place| matches!(p, Place::Host(a) if !is_pinned(a, bytes as u64));
    if let (Place::Device(_), Place::Host(source), Waits::WherePageable) = (to, from, waits)
        && bytes <= STAGED_BYTES
        && pageable(from)
    {
        // SAFETY: by this function's contract.
        let staged = unsafe { std::slice::from_raw_parts(source as *const u8, bytes) };
        stream.push(Op::CopyStaged {
            to,
            from: staged.into(),
        });
        return Ok(());
    }
    let sequence = stream.push(Op::Copy {
        to,
        from,
        bytes: bytes as u64,
    });
    let in_device = matches!((to, from), (Place::Device(_), Place::Device(_)));
    match waits {
        // The host sees nothing of a copy inside the device before it synchronises.
        Waits::Always if in_device => Ok(()),
        Waits::Always => finish(stream, sequence),
        Waits::WherePageable if pageable(to) || pageable(from) => finish(stream, sequence),
        Waits::WherePageable => Ok(()),
    }
}

pub(super) unsafe fn any(
    default: DefaultStream,
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
) -> Answer {
    let stream = stream(default, StreamHandle(0))?;
    // SAFETY: the program's ranges.
    unsafe {
        copy(
            stream,
            (to, Side::Any),
            (from, Side::Any),
            bytes,
            Waits::Always,
        )
    }
}

pub(super) unsafe fn any_async(
    default: DefaultStream,
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
    handle: StreamHandle,
) -> Answer {
    let stream = stream(default, handle)?;
    // SAFETY: the program's ranges.
    unsafe {
        copy(
            stream,
            (to, Side::Any),
            (from, Side::Any),
            bytes,
            Waits::WherePageable,
        )
    }
}

pub(super) unsafe fn to_device(
    default: DefaultStream,
    to: DevicePtr,
    from: *const c_void,
    bytes: usize,
) -> Answer {
    let stream = stream(default, StreamHandle(0))?;
    let from = (from as DevicePtr, Side::Host);
    // SAFETY: the program's ranges.
    unsafe { copy(stream, (to, Side::Device), from, bytes, Waits::Always) }
}

pub(super) unsafe fn to_device_async(
    default: DefaultStream,
    to: DevicePtr,
    from: *const c_void,
    bytes: usize,
    handle: StreamHandle,
) -> Answer {
    let stream = stream(default, handle)?;
    let from = (from as DevicePtr, Side::Host);
    // SAFETY: the program's ranges.
    unsafe {
        copy(
            stream,
            (to, Side::Device),
            from,
            bytes,
            Waits::WherePageable,
        )
    }
}

pub(super) unsafe fn to_host(
    default: DefaultStream,
    to: *mut c_void,
    from: DevicePtr,
    bytes: usize,
) -> Answer {
    let stream = stream(default, StreamHandle(0))?;
    let to = (to as DevicePtr, Side::Host);
    // SAFETY: the program's ranges.
    unsafe { copy(stream, to, (from, Side::Device), bytes, Waits::Always) }
}

pub(super) unsafe fn to_host_async(
    default: DefaultStream,
    to: *mut c_void,
    from: DevicePtr,
    bytes: usize,
    handle: StreamHandle,
) -> Answer {
    let stream = stream(default, handle)?;
    let to = (to as DevicePtr, Side::Host);
    // SAFETY: the program's ranges.
    unsafe {
        copy(
            stream,
            to,
            (from, Side::Device),
            bytes,
            Waits::WherePageable,
        )
    }
}

pub(super) unsafe fn in_device(
    default: DefaultStream,
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
) -> Answer {
    let stream = stream(default, StreamHandle(0))?;
    // SAFETY: the program's ranges.
    unsafe {
        copy(
            stream,
            (to, Side::Device),
            (from, Side::Device),
            bytes,
            Waits::Always,
        )
    }
}

pub(super) unsafe fn in_device_async(
    default: DefaultStream,
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
    handle: StreamHandle,
) -> Answer {
    let stream = stream(default, handle)?;
    // SAFETY: the program's ranges.
    unsafe {
        copy(
            stream,
            (to, Side::Device),
            (from, Side::Device),
            bytes,
            Waits::WherePageable,
        )
    }
}

/// Puts a memset into a stream. It does not block, for the destination is the device's.
fn fill(stream: &'static Stream, to: DevicePtr, fill: Fill, count: usize) -> Answer {
    let element = match fill {
        Fill::Bytes(_) => 1,
        Fill::Halves(_) => 2,
        Fill::Words(_) => 4,
    };
    if count == 0 {
        return Ok(());
    }
    let bytes = (count as u64)
        .checked_mul(element)
        .ok_or(CuResult::INVALID_VALUE)?;
    if !to.is_multiple_of(element) {
        return Err(CuResult::INVALID_VALUE);
    }
    match place(to, bytes)? {
        Place::Device(address) => {
            stream.push(Op::Memset {
                address,
                fill,
                count: count as u64,
            });
            Ok(())
        }
        Place::Host(_) if is_pinned(to, bytes) => super::refuse("cuMemset of host memory"),
        Place::Host(_) => Err(CuResult::INVALID_VALUE),
    }
}

pub(super) unsafe fn fill_8(
    default: DefaultStream,
    to: DevicePtr,
    value: c_uchar,
    count: usize,
) -> Answer {
    fill(
        stream(default, StreamHandle(0))?,
        to,
        Fill::Bytes(value),
        count,
    )
}

pub(super) unsafe fn fill_16(
    default: DefaultStream,
    to: DevicePtr,
    value: c_ushort,
    count: usize,
) -> Answer {
    fill(
        stream(default, StreamHandle(0))?,
        to,
        Fill::Halves(value),
        count,
    )
}

pub(super) unsafe fn fill_32(
    default: DefaultStream,
    to: DevicePtr,
    value: c_uint,
    count: usize,
) -> Answer {
    fill(
        stream(default, StreamHandle(0))?,
        to,
        Fill::Words(value),
        count,
    )
}

pub(super) unsafe fn fill_8_async(
    default: DefaultStream,
    to: DevicePtr,
    value: c_uchar,
    count: usize,
    handle: StreamHandle,
) -> Answer {
    fill(stream(default, handle)?, to, Fill::Bytes(value), count)
}

pub(super) unsafe fn fill_16_async(
    default: DefaultStream,
    to: DevicePtr,
    value: c_ushort,
    count: usize,
    handle: StreamHandle,
) -> Answer {
    fill(stream(default, handle)?, to, Fill::Halves(value), count)
}

pub(super) unsafe fn fill_32_async(
    default: DefaultStream,
    to: DevicePtr,
    value: c_uint,
    count: usize,
    handle: StreamHandle,
) -> Answer {
    fill(stream(default, handle)?, to, Fill::Words(value), count)
}
