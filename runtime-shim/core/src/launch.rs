//! From the arguments of a launch to words.

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr;

use oversub_protocol::event::MAX_LAUNCH_WORDS;

use crate::functions::{Function, Layout, WordSource};

/// `CU_LAUNCH_PARAM_END`, `_BUFFER_POINTER`, `_BUFFER_SIZE`: markers in `extra`.
const PARAM_END: usize = 0;
const PARAM_BUFFER: usize = 1;
const PARAM_SIZE: usize = 2;

/// Room for the words of one launch, on the caller's stack and not zeroed: a launch has far
/// fewer words than there is room for.
///
/// Nothing else is in it: one field with a value, and the compiler clears all of them.
#[derive(Debug)]
pub struct Room([MaybeUninit<u64>; MAX_LAUNCH_WORDS]);

impl Room {
    /// Empty.
    #[inline]
    pub fn new() -> Self {
        Self([MaybeUninit::uninit(); MAX_LAUNCH_WORDS])
    }
}

impl Default for Room {
    fn default() -> Self {
        Self::new()
    }
}

/// Words that have been written into a room.
struct Filling<'a> {
    room: &'a mut Room,
    count: usize,
    truncated: bool,
}

impl Filling<'_> {
    fn push(&mut self, word: u64) {
        match self.room.0.get_mut(self.count) {
            Some(cell) => {
                cell.write(word);
                self.count += 1;
            }
            None => self.truncated = true,
        }
    }
}

/// The words of one launch.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    /// In the order of the parameters.
    pub words: &'a [u64],
    /// There were more.
    pub truncated: bool,
}

/// Collects the arguments of a launch of `function`.
///
/// # Safety
/// `parameters` and `extra` are what the program passes to `cuLaunchKernel` for it: the
/// driver would read the same memory.
#[inline]
pub unsafe fn gather<'a>(
    function: &Function,
    parameters: *const *const c_void,
    extra: *const *const c_void,
    room: &'a mut Room,
) -> Words<'a> {
    let mut truncated = function.is_truncated();
    let mut count = 0;
    if !parameters.is_null() {
        // SAFETY: promised by the caller.
        count = unsafe { gather_each(function, parameters, room) };
    } else if !extra.is_null() {
        // SAFETY: promised by the caller.
        (count, truncated) = unsafe { gather_extra(function, extra, room) };
    }
    // SAFETY: the first `count` words, which is at most their number, have been written.
    let words = unsafe { core::slice::from_raw_parts(room.0.as_ptr().cast(), count) };
    Words { words, truncated }
}

/// How many words there are.
///
/// # Safety
/// `parameters` is a list as `cuLaunchKernel` takes it.
#[inline]
unsafe fn gather_each(
    function: &Function,
    parameters: *const *const c_void,
    room: &mut Room,
) -> usize {
    let mut count = 0;
    for part in function.parts() {
        for index in 0..part.repeat {
            // SAFETY: the driver reads as many pointers as the kernel has parameters.
            let start = unsafe { *parameters.add(usize::from(part.parameter + index)) };
            if start.is_null() {
                return count;
            }
            for within in (0..part.bytes).step_by(8) {
                let Some(cell) = room.0.get_mut(count) else {
                    return count;
                };
                let bytes = (part.bytes - within).min(8) as u8;
                // SAFETY: and from each as many bytes as the parameter has.
                cell.write(unsafe { read(start, usize::from(within), bytes) });
                count += 1;
            }
        }
    }
    count
}

/// How many words there are, and whether there were more.
///
/// # Safety
/// `extra` is a list as `cuLaunchKernel` takes it.
#[inline(never)]
unsafe fn gather_extra(
    function: &Function,
    extra: *const *const c_void,
    room: &mut Room,
) -> (usize, bool) {
    let mut words = Filling {
        room,
        count: 0,
        truncated: function.is_truncated(),
    };
    // SAFETY: promised by the caller.
    if let Some((start, bytes)) = unsafe { packed(extra) } {
        // SAFETY: the driver reads this buffer.
        unsafe { gather_packed(function, start, bytes, &mut words) };
    }
    (words.count, words.truncated)
}

/// # Safety
/// `start` has `bytes` readable bytes.
unsafe fn gather_packed(
    function: &Function,
    start: *const c_void,
    bytes: usize,
    words: &mut Filling<'_>,
) {
    let mut take = |source: WordSource| {
        let offset = usize::from(source.offset);
        if offset + usize::from(source.bytes) <= bytes {
            // SAFETY: just checked to be inside the buffer.
            words.push(unsafe { read(start, offset, source.bytes) });
        }
    };
    if function.parameters() != Layout::UNKNOWN {
        function.sources().for_each(take);
        return;
    }
    // Nothing is known of the layout: every aligned word may be a pointer.
    let mut offset = 0;
    while offset < bytes && offset < usize::from(u16::MAX) {
        let size = (bytes - offset).min(8) as u8;
        take(WordSource {
            parameter: 0,
            within: 0,
            offset: offset as u16,
            bytes: size,
        });
        offset += 8;
    }
}

/// Address and size of the packed arguments in `extra`.
///
/// # Safety
/// `extra` is a list as `cuLaunchKernel` takes it.
unsafe fn packed(extra: *const *const c_void) -> Option<(*const c_void, usize)> {
    let mut buffer = ptr::null();
    let mut size = 0;
    // Each marker is followed by a value; the driver knows two, so a longer list is broken.
    for index in 0..4 {
        // SAFETY: the list goes on until its end marker.
        let marker = unsafe { *extra.add(index * 2) };
        if marker.addr() == PARAM_END {
            break;
        }
        // SAFETY: a marker that is not the end has a value.
        let value = unsafe { *extra.add(index * 2 + 1) };
        match marker.addr() {
            PARAM_BUFFER => buffer = value,
            // SAFETY: the value is a pointer to a size.
            PARAM_SIZE if !value.is_null() => size = unsafe { *value.cast::<usize>() },
            _ => return None,
        }
    }
    (!buffer.is_null() && size > 0).then_some((buffer, size))
}

/// # Safety
/// `bytes` (at most 8) bytes at `start + offset` are readable.
#[inline]
unsafe fn read(start: *const c_void, offset: usize, bytes: u8) -> u64 {
    // SAFETY: promised by the caller.
    unsafe {
        let at = start.cast::<u8>().add(offset);
        // Nearly all are one of these.
        if bytes == 8 {
            return at.cast::<u64>().read_unaligned();
        }
        if bytes == 4 {
            return u64::from(at.cast::<u32>().read_unaligned());
        }
        match bytes {
            2 => u64::from(at.cast::<u16>().read_unaligned()),
            1 => u64::from(at.read()),
            _ => {
                let mut word = [0; 8];
                ptr::copy_nonoverlapping(at, word.as_mut_ptr(), usize::from(bytes).min(8));
                u64::from_le_bytes(word)
            }
        }
    }
}

#[cfg(test)]
mod tests;
