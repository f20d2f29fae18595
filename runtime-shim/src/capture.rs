//! Stream capture: what is put into a capturing stream becomes part of a graph and does not
//! run. Nothing of the shim's own may get into it.

use core::sync::atomic::{AtomicU32, Ordering};

use oversub_shim_core::abi::{Handle, STREAM_PER_THREAD};

use crate::driver;
use crate::state::POOL;

/// Captures that have begun and not ended.
static CAPTURES: AtomicU32 = AtomicU32::new(0);

/// Some stream of the process is being captured.
#[inline]
pub fn is_any() -> bool {
    CAPTURES.load(Ordering::Relaxed) != 0
}

/// A capture is about to begin. Whoever holds the pool and has seen none is done with its
/// events in the program's streams before it does.
pub fn begun() {
    let _pool = POOL.lock();
    CAPTURES.fetch_add(1, Ordering::SeqCst);
}

/// A capture has ended, one way or another.
pub fn ended() {
    let less = |captures: u32| captures.checked_sub(1);
    let _ = CAPTURES.fetch_update(Ordering::SeqCst, Ordering::Relaxed, less);
}

/// `stream` is being captured, itself or through an event of a stream that is. One load
/// while no capture is under way.
#[inline]
pub fn is_capturing(stream: Handle, per_thread: bool) -> bool {
    is_any() && ask(stream, per_thread)
}

#[cold]
fn ask(stream: Handle, per_thread: bool) -> bool {
    let stream = if stream == 0 && per_thread {
        STREAM_PER_THREAD
    } else {
        stream
    };
    let mut status = 0;
    // SAFETY: a local to write to; allowed in any capture mode.
    let result = unsafe { driver::cuStreamIsCapturing(stream, &raw mut status) };
    // In doubt it is: then nothing of ours gets in.
    !result.is_ok() || status != 0
}
