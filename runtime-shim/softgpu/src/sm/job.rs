//! A running launch: its pieces, and what went wrong in it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::kernels::{Kernel, Shape};

/// One launch, for as long as it runs. Threads and fibres take pieces from it in order.
pub struct Job {
    kernel: Kernel,
    shape: Shape,
    words: Vec<u64>,
    pieces: u64,
    next: AtomicU64,
    /// First illegal program address, plus one.
    illegal: AtomicU64,
}

impl Job {
    /// A launch.
    pub fn new(kernel: &Kernel, shape: &Shape, words: &[u64]) -> Self {
        Self {
            pieces: (kernel.pieces)(shape, words),
            kernel: *kernel,
            shape: *shape,
            words: words.to_vec(),
            next: AtomicU64::new(0),
            illegal: AtomicU64::new(0),
        }
    }

    /// Pieces in all.
    pub fn pieces(&self) -> u64 {
        self.pieces
    }

    /// Whether pieces are left that nobody has begun.
    pub fn has_pieces(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.pieces
    }

    /// Runs pieces until none is left.
    ///
    /// # Safety
    /// On a fibre; the words are the kernel's parameters.
    pub unsafe fn work(&self) {
        loop {
            let piece = self.next.fetch_add(1, Ordering::Relaxed);
            if piece >= self.pieces {
                return;
            }
            // SAFETY: by the caller.
            unsafe { (self.kernel.run)(&self.shape, &self.words, piece) };
        }
    }

    /// Ends the launch because of an access to nothing.
    pub fn condemn(&self, address: u64) {
        let _ = self
            .illegal
            .compare_exchange(0, address + 1, Ordering::Relaxed, Ordering::Relaxed);
        self.next.store(self.pieces, Ordering::Relaxed);
    }

    /// The address that ended it.
    pub fn illegal_address(&self) -> Option<u64> {
        self.illegal.load(Ordering::Relaxed).checked_sub(1)
    }
}
