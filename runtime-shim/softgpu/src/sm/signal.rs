//! The SIGBUS handler: a kernel's access to a page that is not on the device.
//!
//! It stays installed for the life of the process, hands every other SIGBUS to the
//! handler that was there before, and runs on the fibre's stack (no SA_ONSTACK), without
//! blocking the signal (SA_NODEFER), as other fibres fault while one is suspended in it.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::{io, ptr};

use super::fibre;
use crate::memory::MemoryError;

/// Handler that was installed before, as its address, and its flags.
static PREVIOUS: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static PREVIOUS_FLAGS: AtomicUsize = AtomicUsize::new(0);
static INSTALL: Mutex<()> = Mutex::new(());

thread_local! {
    /// This thread is in a handler that was given a signal from here.
    static HANDED_ON: Cell<bool> = const { Cell::new(false) };
}

/// Installs the handler, unless it is installed. A program that has set its own since is
/// kept as the one to hand other signals to.
pub fn install() -> Result<(), MemoryError> {
    let ours = handle as *const () as usize;
    if present()?.sa_sigaction == ours {
        return Ok(());
    }
    let _one = INSTALL.lock().unwrap_or_else(PoisonError::into_inner);
    let before = present()?;
    if before.sa_sigaction == ours {
        return Ok(());
    }
    PREVIOUS_FLAGS.store(before.sa_flags as usize, Ordering::Relaxed);
    PREVIOUS.store(before.sa_sigaction, Ordering::Release);
    // SAFETY: an all-zero sigaction is a valid value: no flags, empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = ours;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
    // SAFETY: a valid action; the handler is async-signal-safe.
    check(unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) })
}

fn present() -> Result<libc::sigaction, MemoryError> {
    let mut action = MaybeUninit::zeroed();
    // SAFETY: the old action is written to `action`; an all-zero one is valid too.
    check(unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), action.as_mut_ptr()) })?;
    // SAFETY: filled in by the call above.
    Ok(unsafe { action.assume_init() })
}

fn check(rc: libc::c_int) -> Result<(), MemoryError> {
    match rc {
        0 => Ok(()),
        _ => Err(MemoryError::System {
            call: "sigaction",
            source: io::Error::last_os_error(),
        }),
    }
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno is the thread's own; other fibres use it while this one is suspended.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes a valid siginfo, of a fault.
    let address = unsafe { (*info).si_addr() } as u64;
    // SAFETY: this is the handler of the faulting access.
    if unsafe { fibre::suspend_on_fault(address) } {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
        return;
    }
    // A later handler of the program's may hand on to us in turn: the second time round
    // the signal gets its default action.
    let previous = match HANDED_ON.replace(true) {
        false => PREVIOUS.load(Ordering::Acquire),
        true => libc::SIG_DFL,
    };
    let flags = PREVIOUS_FLAGS.load(Ordering::Relaxed) as libc::c_int;
    match previous {
        libc::SIG_DFL | libc::SIG_IGN => {
            // A fault cannot be ignored: repeated with the default action it ends the
            // process as it would have ended without this handler.
            // SAFETY: resetting a signal is async-signal-safe.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        _ if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: it was installed with SA_SIGINFO, so it has this type.
            let next: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(previous) };
            next(signal, info, context);
        }
        _ => {
            // SAFETY: it was installed without SA_SIGINFO, so it has this type.
            let next: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(previous) };
            next(signal);
        }
    }
    HANDED_ON.set(false);
}
