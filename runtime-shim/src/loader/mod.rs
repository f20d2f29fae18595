//! Finding the driver's functions, and being found instead of them.
//!
//! The driver's own functions come from `libcuda.so.1` as it is loaded, through the C
//! library's own `dlsym`: never through ours, never through the global scope, which would
//! give our own exports back.

mod elf;
mod interpose;

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::entry_points::{ENTRY_POINTS, EntryPoint, known_real, note_real};

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static DRIVER: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// The C library's own function, found without `dlsym`.
fn c_library(cell: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = cell.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    let found = elf::c_library_symbol(name);
    cell.store(found, Ordering::Relaxed);
    found
}

/// `libcuda.so.1` is loaded in this process.
pub fn is_loaded() -> bool {
    !driver().is_null()
}

/// The handle of the loaded `libcuda.so.1`; null while it is not loaded.
fn driver() -> *mut c_void {
    let known = DRIVER.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: loads nothing. The reference that it takes keeps the driver loaded, which the
    // addresses that are kept need.
    let handle = unsafe {
        libc::dlopen(
            c"libcuda.so.1".as_ptr(),
            libc::RTLD_NOLOAD | libc::RTLD_LAZY,
        )
    };
    if !handle.is_null() {
        DRIVER.store(handle, Ordering::Relaxed);
    }
    handle
}

/// The driver's own function; null where it has none, or is not loaded.
pub fn driver_symbol(name: &CStr) -> *mut c_void {
    let dlsym = c_library(&DLSYM, c"dlsym");
    let handle = driver();
    if dlsym.is_null() || handle.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the C library's `dlsym`, with a live handle and a terminated name.
    let found = unsafe { core::mem::transmute::<*mut c_void, Dlsym>(dlsym)(handle, name.as_ptr()) };
    if is_ours(found) {
        ptr::null_mut()
    } else {
        found
    }
}

/// `address` is one of our own exports.
pub fn is_ours(address: *mut c_void) -> bool {
    ENTRY_POINTS
        .iter()
        .any(|entry| entry.wrapper as *mut c_void == address)
}

/// What to answer to someone who asked `dlsym` for `name` and would get `found`.
///
/// Ours only where the driver's own would be given: another library's function of the same
/// name is that library's business.
fn substitute_symbol(name: &CStr, found: *mut c_void) -> *mut c_void {
    if found.is_null() || !name.to_bytes().starts_with(b"cu") {
        return found;
    }
    let Some(index) = ENTRY_POINTS.iter().position(|entry| entry.symbol == name) else {
        return found;
    };
    if known_real(index) == found {
        ENTRY_POINTS[index].wrapper as *mut c_void
    } else {
        found
    }
}

/// Newest CUDA version whose function families are known here. A program built for a newer
/// one may mean another signature by a known name.
const NEWEST_VERSION: c_int = 13_000;

/// What to answer to someone who asked `cuGetProcAddress` and would get `found`.
///
/// Of the forms that this name has had up to `version`, the driver gives the newest that it
/// has itself, and so do we.
pub fn substitute_procedure(
    name: &CStr,
    version: c_int,
    per_thread: bool,
    found: *mut c_void,
) -> *mut c_void {
    if found.is_null() || is_ours(found) {
        return found;
    }
    let plain = |entry: &&EntryPoint| entry.family == name && !entry.per_thread;
    let forms = ENTRY_POINTS.iter().filter(plain).count();
    let (mut index, mut since) = (None, 0);
    for (position, entry) in ENTRY_POINTS
        .iter()
        .enumerate()
        .filter(|(_, entry)| plain(entry))
    {
        let exists = forms == 1 || !known_real(position).is_null();
        if exists && entry.since <= version && entry.since > since {
            (index, since) = (Some(position), entry.since);
        }
    }
    let Some(mut index) = index else { return found };
    // The form for per-thread streams follows its plain form, where there is one.
    let is_form = |next: &EntryPoint| next.per_thread && next.family == name;
    if per_thread && ENTRY_POINTS.get(index + 1).is_some_and(is_form) {
        index += 1;
    }
    let real = known_real(index);
    if version > NEWEST_VERSION && real != found {
        return found;
    }
    if real.is_null() {
        note_real(index, found);
    }
    ENTRY_POINTS
        .get(index)
        .map_or(found, |entry| entry.wrapper as *mut c_void)
}

/// Path of the loaded driver, links resolved, in `room`.
pub fn driver_path(room: &mut [u8; libc::PATH_MAX as usize]) -> &[u8] {
    let symbol = driver_symbol(c"cuInit");
    // SAFETY: all zero is an empty answer.
    let mut about: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: a local to write to; an address that is nowhere is refused.
    if symbol.is_null() || unsafe { libc::dladdr(symbol, &raw mut about) } == 0 {
        return b"";
    }
    // SAFETY: a terminated path, and room for the longest there is.
    let found = unsafe { libc::realpath(about.dli_fname, room.as_mut_ptr().cast()) };
    if found.is_null() {
        return b"";
    }
    room.split(|byte| *byte == 0).next().unwrap_or_default()
}
