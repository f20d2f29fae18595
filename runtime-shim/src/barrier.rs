//! `membarrier(2)`: full fences in other threads, so that the frequent side of an agreement
//! needs none of its own.
//!
//! Owns registering and the calls. A kernel that has none, or a filter that refuses them,
//! leaves both agreements as they are without: with a full fence on either side.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::state::STREAMS;

/// `MEMBARRIER_CMD_*` (linux/membarrier.h, since Linux 4.14 and 4.16).
const PRIVATE_EXPEDITED: i32 = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
const REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;

static FOR_OTHERS: AtomicBool = AtomicBool::new(false);

fn membarrier(command: i32) -> bool {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers the process, before there is a session whose memory could be taken away.
pub fn register() {
    let own = membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED);
    STREAMS.threads().rely_on_barrier(own);
    FOR_OTHERS.store(membarrier(REGISTER_GLOBAL_EXPEDITED), Ordering::Relaxed);
}

/// Barriers of other processes reach the threads of this one.
pub fn is_registered_for_others() -> bool {
    FOR_OTHERS.load(Ordering::Relaxed)
}

/// Who entered a slot before this was called is seen there afterwards, and who enters later
/// sees what was taken away before. `false`: that could not be brought about.
pub fn across_threads() -> bool {
    !STREAMS.threads().relies_on_barrier() || membarrier(PRIVATE_EXPEDITED)
}
