//! Forks and the end of the process.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::{executor, session, state};

unsafe extern "C" {
    fn __cxa_atexit(
        function: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
        object: *mut c_void,
    ) -> i32;
}

/// Descriptors of the session, closed in a forked child: the daemon must see the parent's
/// end. -1: none.
pub static DESCRIPTORS: [AtomicI32; 3] = [const { AtomicI32::new(-1) }; 3];

static FORKS_WATCHED: AtomicBool = AtomicBool::new(false);
static EXIT_WATCHED: AtomicBool = AtomicBool::new(false);

/// A forked child has no use of CUDA and none of the shim: there, it becomes inert.
pub fn watch_forks() {
    if !FORKS_WATCHED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler touches atomics and closes descriptors, which a child may.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

extern "C" fn in_child() {
    state::become_inert();
    session::set(core::ptr::null_mut());
    for cell in &DESCRIPTORS {
        let descriptor = cell.swap(-1, Ordering::Relaxed);
        if descriptor >= 0 {
            // SAFETY: the child's own copy of a descriptor that is ours.
            unsafe { libc::close(descriptor) };
        }
    }
}

/// When the process ends, the executor must be out of the driver before the driver's own
/// clean-up begins. Handlers run newest first, and the driver's is older: it was loaded and
/// initialised before a context could exist.
pub fn watch_exit() {
    if !EXIT_WATCHED.swap(true, Ordering::Relaxed) {
        let nothing = core::ptr::null_mut();
        // SAFETY: the handler takes no argument; belonging to no object, it is called at exit.
        unsafe { __cxa_atexit(at_exit, nothing, nothing) };
    }
}

extern "C" fn at_exit(_: *mut c_void) {
    state::become_inert();
    // Never given back: the executor stops at its next attempt to use the driver.
    core::mem::forget(executor::ISSUE.lock());
}
