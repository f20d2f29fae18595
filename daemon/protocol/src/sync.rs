//! The atomics of the ring, exchanged for loom's in its model (`--cfg loom`).
//!
//! Owns only the exchange. A slot's payload is a set of relaxed atomics, because another
//! process may rewrite it while it is read; under loom it is a checked cell, so that the
//! model proves that two well-behaved sides never touch a payload at the same time.

use crate::event::Words;

#[cfg(loom)]
pub use barrier::{between_steps, writer_half};
#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A writer's half of a fence whose other half is the reader's barrier: the compiler keeps
/// the order, the processor is told by the barrier.
#[cfg(not(loom))]
#[inline]
pub fn writer_half() {
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// A place between two steps of a writer: only the model's barrier comes there by itself.
#[cfg(not(loom))]
#[inline]
pub fn between_steps() {}

#[cfg(loom)]
pub mod barrier;

/// The payload of one slot in shared memory.
#[cfg(not(loom))]
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Payload([AtomicU64; crate::event::WORDS_PER_SLOT]);

#[cfg(not(loom))]
impl Payload {
    /// Writes all words; ordered by the slot's sequence number alone.
    #[inline]
    pub fn store(&self, words: &Words) {
        for (cell, word) in self.0.iter().zip(words) {
            cell.store(*word, Ordering::Relaxed);
        }
    }

    /// As [`Payload::store`], of the first so many `words` and zeros.
    #[inline]
    pub fn store_some(&self, words: &[u64]) {
        for (index, cell) in self.0.iter().enumerate() {
            cell.store(words.get(index).copied().unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// Copies all words out.
    #[inline]
    pub fn load(&self) -> Words {
        core::array::from_fn(|index| self.0[index].load(Ordering::Relaxed))
    }
}

/// The payload of one slot in the model.
#[cfg(loom)]
#[derive(Debug)]
pub struct Payload(loom::cell::UnsafeCell<Words>);

#[cfg(loom)]
impl Default for Payload {
    fn default() -> Payload {
        Payload(loom::cell::UnsafeCell::new(Words::default()))
    }
}

#[cfg(loom)]
impl Payload {
    /// Writes all words; loom fails when anyone else accesses them at the same time.
    pub fn store(&self, words: &Words) {
        // SAFETY: loom checks that this access is exclusive and fails the model if not.
        self.0.with_mut(|cell| unsafe { *cell = *words });
    }

    /// Copies all words out; loom fails when anyone writes them at the same time.
    pub fn load(&self) -> Words {
        // SAFETY: loom checks that no write overlaps this read and fails the model if so.
        self.0.with(|cell| unsafe { *cell })
    }
}
