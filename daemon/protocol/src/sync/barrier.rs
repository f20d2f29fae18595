//! The model's membarrier.
//!
//! The kernel interrupts each processor that runs one of the writers' threads, wherever it
//! is in its steps, has it execute a full fence, and returns to the caller when all have;
//! a thread that does not run is fenced by the switch away from it. Here a writer is
//! interrupted between its steps: it looks whether a fence is wanted of it, executes it and
//! says so. One that has ended, or begins later, need not be waited for.

use loom::sync::atomic::{AtomicUsize, Ordering, fence};
use loom::thread;

loom::lazy_static! {
    /// Low bits: writers that run. The same bits, [`WANTED`] higher: a fence is wanted.
    static ref WRITERS: AtomicUsize = AtomicUsize::new(0);
}
loom::thread_local! {
    static OWN: std::cell::Cell<usize> = std::cell::Cell::new(0);
}

const WANTED: u32 = 8;

/// A writing thread, from its first step to its last.
#[derive(Debug)]
pub struct Running(usize);

impl Running {
    /// The calling thread is writer `number` from now on.
    pub fn begin(number: u32) -> Running {
        let bit = 1 << number;
        WRITERS.fetch_or(bit, Ordering::AcqRel);
        OWN.with(|own| own.set(bit));
        Running(bit)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        fence(Ordering::SeqCst);
        let both = self.0 | self.0 << WANTED;
        WRITERS.fetch_and(!both, Ordering::AcqRel);
    }
}

/// Where a writer may be interrupted.
pub fn between_steps() {
    let own = OWN.with(std::cell::Cell::get) << WANTED;
    if own != 0 && WRITERS.load(Ordering::Acquire) & own != 0 {
        fence(Ordering::SeqCst);
        WRITERS.fetch_and(!own, Ordering::AcqRel);
    }
}

/// The writer's half: nothing of its own but that it may be interrupted here.
pub fn writer_half() {
    between_steps();
}

/// The reader's half.
pub fn reader_half() -> bool {
    fence(Ordering::SeqCst);
    let want = |writers: usize| Some(writers | writers << WANTED);
    let _ = WRITERS.fetch_update(Ordering::AcqRel, Ordering::Acquire, want);
    while WRITERS.load(Ordering::Acquire) >> WANTED != 0 {
        thread::yield_now();
    }
    fence(Ordering::SeqCst);
    true
}
