//! Waiting after a launch, where the daemon says that the program had better not get further
//! ahead of the device.
//!
//! Content of memory that was handed out again cannot be dropped any more, and a program that is
//! far ahead is handed out again at once what has just died. Nothing else depends on the wait:
//! it is over as soon as the device is near enough, the daemon takes its wish back or is gone, or
//! the device makes no progress, which may be because it waits for something that this very
//! thread has yet to do. After that nobody waits for many launches, and for ever more of them
//! each time.

use core::sync::atomic::Ordering;

use oversub_shim_core::holding::{Look, Patience};

use crate::session::{self, Session, now_ns};
use crate::state::{ErrnoKept, STREAMS};

/// Between two looks, nanoseconds.
const PAUSE_NS: i64 = 50_000;

static PATIENCE: Patience = Patience::new();

/// Whether the thread that has just launched into `slot` had better wait.
#[inline]
pub fn is_due(session: &Session, slot: u8) -> bool {
    match session.most_ahead() {
        0 => false,
        most => is_far(session, slot, most),
    }
}

#[cold]
fn is_far(session: &Session, slot: u8, most: u32) -> bool {
    let word = session.progress(slot);
    STREAMS.is_far_ahead(slot, word, most) && !PATIENCE.is_lost(STREAMS.current())
}

/// Waits until it need not. The caller is inside no slot.
#[cold]
pub fn wait(slot: u8) {
    let _errno = ErrnoKept::new();
    let begun = now_ns();
    let mut look = Look::new(begun);
    loop {
        let far = session::with(|session| is_due(session, slot).then(|| session.progress(slot)));
        let Some(word) = far.flatten() else { break };
        if look.is_stuck(word, now_ns()) {
            PATIENCE.lose(STREAMS.current());
            break;
        }
        let pause = libc::timespec {
            tv_sec: 0,
            tv_nsec: PAUSE_NS,
        };
        // SAFETY: a local to read from; nothing is written.
        unsafe { libc::nanosleep(&raw const pause, core::ptr::null_mut()) };
    }
    session::with(|session| {
        let control = session.control();
        let held_ns = now_ns().saturating_sub(begun);
        control.held_ns.fetch_add(held_ns, Ordering::Relaxed);
        control.held_launches.fetch_add(1, Ordering::Relaxed);
    });
}
