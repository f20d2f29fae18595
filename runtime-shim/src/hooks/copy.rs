//! Copies and memsets: told where they touch managed memory.

use core::ffi::{c_uchar, c_uint, c_ushort, c_void};

use oversub_protocol::event::CopyRecord;
use oversub_shim_core::abi::{CuResult, DevicePtr, Handle};

use super::launch::{Item, finish};
use crate::entry_points::{Real, forward, types};
use crate::state::{self, ALLOCATIONS};

/// One copy, or a memset where there is no source.
struct Copy {
    to: u64,
    from: Option<u64>,
    bytes: u64,
}

/// Tells of `copy`, if it touches managed memory, and makes it.
#[inline]
fn told(stream: Handle, per_thread: bool, copy: Copy, act: impl FnOnce() -> CuResult) -> CuResult {
    if !state::is_recording() {
        return act();
    }
    let item = tell(stream, per_thread, &copy);
    finish(item, act())
}

#[inline(never)]
fn tell(stream: Handle, per_thread: bool, copy: &Copy) -> Option<Item> {
    let Copy { to, from, bytes } = *copy;
    let mut flags = 0;
    if ALLOCATIONS.contains(to) {
        flags |= CopyRecord::DST_MANAGED;
    }
    if from.is_some_and(|from| ALLOCATIONS.contains(from)) {
        flags |= CopyRecord::SRC_MANAGED;
    }
    if flags == 0 || bytes == 0 {
        return None;
    }
    let item = Item::begin(stream, per_thread)?;
    let seq = item.number();
    if !item.captured {
        let record = match from {
            Some(from) => CopyRecord::copy(item.slot, flags, seq, to, from, bytes),
            None => CopyRecord::memset(item.slot, flags, seq, to, bytes),
        };
        item.session().push_patient(&record);
    }
    Some(item)
}

macro_rules! copies {
    ($($(#[$doc:meta])* $name:ident: $type:ident($to:ident: $to_type:ty, $from:ident: $from_type:ty)
        $(, $stream:ident)?;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the CUDA driver API defines it.
        pub unsafe fn $name(
            real: Real<types::$type>,
            $to: $to_type,
            $from: $from_type,
            bytes: usize
            $(, $stream: Handle)?
        ) -> CuResult {
            let copy = Copy {
                to: $to as u64,
                from: Some($from as u64),
                bytes: bytes as u64,
            };
            // SAFETY: the program's own arguments.
            let act = || unsafe { forward!(real, $to, $from, bytes $(, $stream)?) };
            let stream = 0;
            $(let stream = { let _: usize = stream; $stream };)?
            told(stream, real.per_thread, copy, act)
        }
    )* };
}

copies! {
    /// `cuMemcpy`, `cuMemcpyDtoD_v2`.
    any: cuMemcpy(to: DevicePtr, from: DevicePtr);
    /// `cuMemcpyAsync`, `cuMemcpyDtoDAsync_v2`.
    any_async: cuMemcpyAsync(to: DevicePtr, from: DevicePtr), stream;
    /// `cuMemcpyHtoD_v2`.
    to_device: cuMemcpyHtoD_v2(to: DevicePtr, from: *const c_void);
    /// `cuMemcpyHtoDAsync_v2`.
    to_device_async: cuMemcpyHtoDAsync_v2(to: DevicePtr, from: *const c_void), stream;
    /// `cuMemcpyDtoH_v2`.
    to_host: cuMemcpyDtoH_v2(to: *mut c_void, from: DevicePtr);
    /// `cuMemcpyDtoHAsync_v2`.
    to_host_async: cuMemcpyDtoHAsync_v2(to: *mut c_void, from: DevicePtr), stream;
}

macro_rules! fills {
    ($($(#[$doc:meta])* $name:ident: $type:ident, $value:ty $(, $stream:ident)?;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the CUDA driver API defines it.
        pub unsafe fn $name(
            real: Real<types::$type>,
            to: DevicePtr,
            value: $value,
            count: usize
            $(, $stream: Handle)?
        ) -> CuResult {
            let bytes = (count as u64).saturating_mul(size_of::<$value>() as u64);
            // SAFETY: the program's own arguments.
            let act = || unsafe { forward!(real, to, value, count $(, $stream)?) };
            let stream = 0;
            $(let stream = { let _: usize = stream; $stream };)?
            told(stream, real.per_thread, Copy { to, from: None, bytes }, act)
        }
    )* };
}

fills! {
    /// `cuMemsetD8_v2`.
    fill_8: cuMemsetD8_v2, c_uchar;
    /// `cuMemsetD16_v2`.
    fill_16: cuMemsetD16_v2, c_ushort;
    /// `cuMemsetD32_v2`.
    fill_32: cuMemsetD32_v2, c_uint;
    /// `cuMemsetD8Async`.
    fill_8_async: cuMemsetD8Async, c_uchar, stream;
    /// `cuMemsetD16Async`.
    fill_16_async: cuMemsetD16Async, c_ushort, stream;
    /// `cuMemsetD32Async`.
    fill_32_async: cuMemsetD32Async, c_uint, stream;
}
