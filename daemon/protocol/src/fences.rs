//! The fence between a record and the look at whether its reader sleeps, in two halves.
//!
//! Owns what each half is and how the two sides agree; the ring itself is in
//! [`crate::ring`]. A writer stores its record, then loads `sleeping`; a reader stores
//! `sleeping`, then loads the record's slot. With a full fence on both sides at least one
//! of them sees the other. On the writer's side that fence is on the path of every launch,
//! where it waits until the processor's store buffer has drained; on the reader's it is paid
//! once a sleep. So where both can, the reader pays for both: its *barrier* has every
//! processor that runs a thread of the writer's process execute a full fence
//! (`membarrier(2)`, `MEMBARRIER_CMD_GLOBAL_EXPEDITED`), and a writer keeps only its
//! compiler from exchanging the two steps. Wherever in the writer's steps the barrier
//! falls: before the load, the load sees `sleeping`; after it, the record was stored before
//! and the reader's look, which comes after the barrier, sees it.
//!
//! A barrier interrupts the program, for microseconds, and some tens of them where
//! processors are virtual: worth it only while sleeps are rare among records. So the reader
//! says in a word beside `sleeping` whether it makes it now, and a writer looks at that word
//! after it has stored its record: 0, and it fences itself. A reader that takes its word back
//! makes one last barrier after that: a writer that read the old word had stored its record
//! before, which can be seen from then on; all others fence.
//!
//! A side never guesses. The program says in its hello that it has registered
//! ([`crate::handshake::Hello::HAS_BARRIER`]); the daemon, which tries the barrier first,
//! says in the ring's head ([`crate::layout::ReaderState::barrier`]) what it does, and acts
//! on its own copy, which no program can change. A program that has not registered never
//! looks at the word, and a daemon that knows of none leaves it 0.
//!
//! Loom knows no membarrier. Its model of one, in [`crate::sync`], is a request that the
//! reader waits for and that each writer answers with a full fence between any two of its
//! steps, or by having ended; the variant with two fences is modelled as it is.

use crate::sync;

/// Who makes sure that a writer and a reader that is about to sleep see one another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fences {
    /// Each side fences for itself.
    #[default]
    Both,
    /// The reader, by a [`Barrier`], for the writers too, while it says so.
    Reader,
}

impl Fences {
    /// The writer's half, between its record and its look. `word`: what the reader says.
    #[inline]
    pub(crate) fn writer(self, word: &sync::AtomicU32) {
        if self == Fences::Reader {
            sync::writer_half();
            if word.load(sync::Ordering::Relaxed) != 0 {
                sync::writer_half();
                return;
            }
        }
        sync::fence(sync::Ordering::SeqCst);
    }
}

/// The reader's half under [`Fences::Reader`]: a full fence here and in every thread of the
/// writers' process. `false`: it could not be made, so the reader must not sleep on.
pub type Barrier = fn() -> bool;
