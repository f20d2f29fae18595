//! `membarrier(2)`: full fences in the threads of programs that asked for them, in place of
//! the fence that their every record would need (see `oversub_protocol::fences`).

use std::sync::OnceLock;
use std::time::Duration;

/// `MEMBARRIER_CMD_GLOBAL_EXPEDITED` (linux/membarrier.h, since Linux 4.16).
const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;

/// Pause after a barrier that failed: whoever wanted to sleep looks so often instead.
const FAILED: Duration = Duration::from_millis(1);

fn membarrier() -> bool {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL_EXPEDITED, 0, 0) == 0 }
}

/// Whether the kernel makes barriers for this process; asked once.
pub fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(membarrier)
}

/// Has every thread of the programs that registered execute a full fence, and this one.
/// `false`, after a pause: the kernel could not; what the fence was for must not be done.
pub fn across_programs() -> bool {
    let done = membarrier();
    if !done {
        std::thread::sleep(FAILED);
    }
    done
}
