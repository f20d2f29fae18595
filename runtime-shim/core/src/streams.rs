//! Streams by handle: their slots, and when their progress is to be marked.
//!
//! A *mark* is a write by the device into its stream's word: everything that this stream
//! was given before has been executed. Its value is the number last given to any launch,
//! which is true of this stream only if no other thread is between taking a number and
//! handing its launch to the driver; [`Streams::enter`] tells of those. Taking a number
//! releases and reading the current one acquires, so who reads a number sees that everyone
//! who took one up to it had entered: marks need no fence of their own.
//!
//! Lookups take no lock; assigning and retiring slots hold the caller's.

use core::sync::atomic::{AtomicU64, Ordering};

use oversub_protocol::layout::{CacheLine, STREAM_SLOTS};

use crate::abi::{Handle, STREAM_LEGACY, STREAM_PER_THREAD};
use crate::threads::{Entry, Threads};

/// Slot of the legacy default stream.
pub const LEGACY_SLOT: u8 = 0;
/// Slot of all streams that got none: never marked.
pub const SHARED_SLOT: u8 = (STREAM_SLOTS - 1) as u8;
/// Cells of the table of handles, a power of two.
const CELLS: usize = 256;
/// Consecutive cells in which a handle may be.
const WINDOW: usize = 8;
/// A cell is the handle above these bits, its slot within them.
const SLOT_BITS: u32 = 8;

/// What happens in one slot. Its threads store into it plainly, in any order: so nothing
/// here is exact while any of them is inside, and no mark is made then.
#[derive(Debug)]
struct Slot {
    /// The number taken last, or nearly.
    last: AtomicU64,
    /// Items since the last mark, or nearly.
    since: AtomicU64,
    /// What `last` was when the last mark was made.
    marked: AtomicU64,
    /// Marks wanted though nothing new ran, and how many of those were made.
    wanted: AtomicU64,
    granted: AtomicU64,
    /// The stream; 0: none.
    handle: AtomicU64,
    /// The stream is gone; the slot is free again once the device has passed this.
    retired: AtomicU64,
}

impl Slot {
    const fn new() -> Self {
        Self {
            last: AtomicU64::new(0),
            since: AtomicU64::new(0),
            marked: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            granted: AtomicU64::new(0),
            handle: AtomicU64::new(0),
            retired: AtomicU64::new(0),
        }
    }

    /// Nothing in it waits for a mark any more.
    fn settle(&self) {
        let settle = |done: &AtomicU64, given: &AtomicU64| {
            done.store(given.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        settle(&self.marked, &self.last);
        settle(&self.granted, &self.wanted);
        self.since.store(0, Ordering::Relaxed);
    }
}

/// A mark that is true: its value, and what of its slot it surely covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// What the device is to write, whole.
    pub value: u64,
    last: u64,
    wanted: u64,
}

/// The table.
#[derive(Debug)]
pub struct Streams {
    cells: [AtomicU64; CELLS],
    slots: [CacheLine<Slot>; STREAM_SLOTS],
    /// Numbers given out.
    sequence: CacheLine<AtomicU64>,
    threads: Threads,
}

impl Default for Streams {
    fn default() -> Self {
        Self::new()
    }
}

impl Streams {
    /// Knows only the default stream.
    pub const fn new() -> Self {
        Self {
            cells: [const { AtomicU64::new(0) }; CELLS],
            slots: [const { CacheLine(Slot::new()) }; STREAM_SLOTS],
            sequence: CacheLine(AtomicU64::new(0)),
            threads: Threads::new(),
        }
    }

    /// Who is inside of what.
    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    #[inline]
    fn slot(&self, slot: u8) -> &Slot {
        &self.slots[usize::from(slot) % STREAM_SLOTS].0
    }

    /// The slot of `stream`; `None`: it has none yet.
    #[inline]
    pub fn find(&self, stream: Handle) -> Option<u8> {
        match stream {
            0 | STREAM_LEGACY => return Some(LEGACY_SLOT),
            STREAM_PER_THREAD => return Some(SHARED_SLOT),
            _ => {}
        }
        if stream as u64 >> (64 - SLOT_BITS) != 0 {
            return Some(SHARED_SLOT);
        }
        let start = start_of(stream);
        let cell = self.cells[start].load(Ordering::Relaxed);
        if cell >> SLOT_BITS == stream as u64 {
            return Some(cell as u8);
        }
        self.find_after(start, stream)
    }

    #[inline(never)]
    fn find_after(&self, start: usize, stream: Handle) -> Option<u8> {
        (1..WINDOW)
            .map(|step| self.cells[(start + step) % CELLS].load(Ordering::Relaxed))
            .find(|cell| cell >> SLOT_BITS == stream as u64)
            .map(|cell| cell as u8)
    }

    /// Gives `stream` a slot of its own, or the shared one. Under the writers' lock.
    /// `passed` says whether the device has passed a number in a slot.
    pub fn assign(&self, stream: Handle, passed: impl Fn(u8, u64) -> bool) -> u8 {
        if let Some(slot) = self.find(stream) {
            return slot;
        }
        let start = start_of(stream);
        let cell = (0..WINDOW)
            .map(|step| &self.cells[(start + step) % CELLS])
            .find(|cell| cell.load(Ordering::Relaxed) == 0);
        let Some(cell) = cell else { return SHARED_SLOT };
        let slot = (LEGACY_SLOT + 1..SHARED_SLOT).find(|slot| {
            let Slot {
                handle, retired, ..
            } = self.slot(*slot);
            let retired = retired.load(Ordering::Relaxed);
            handle.load(Ordering::Relaxed) == 0 && (retired == 0 || passed(*slot, retired))
        });
        let slot = slot.unwrap_or(SHARED_SLOT);
        if slot != SHARED_SLOT {
            let state = self.slot(slot);
            state.handle.store(stream as u64, Ordering::Relaxed);
            state.retired.store(0, Ordering::Relaxed);
            state.settle();
        }
        cell.store(
            (stream as u64) << SLOT_BITS | u64::from(slot),
            Ordering::Release,
        );
        slot
    }

    /// The stream is about to be destroyed. Under the writers' lock. Its slot is used again
    /// only after the device has passed everything that the stream was given.
    pub fn retire(&self, stream: Handle) {
        if matches!(stream, 0 | STREAM_LEGACY | STREAM_PER_THREAD) {
            return;
        }
        let start = start_of(stream);
        for step in 0..WINDOW {
            let cell = &self.cells[(start + step) % CELLS];
            let value = cell.load(Ordering::Relaxed);
            if value >> SLOT_BITS != stream as u64 {
                continue;
            }
            cell.store(0, Ordering::Relaxed);
            let slot = value as u8;
            if slot != SHARED_SLOT {
                let state = self.slot(slot);
                state.retired.store(self.current(), Ordering::Relaxed);
                state.handle.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Forgets all streams: their context is gone, nothing of them runs any more.
    pub fn clear(&self) {
        for cell in &self.cells {
            cell.store(0, Ordering::Relaxed);
        }
        for CacheLine(slot) in &self.slots {
            slot.handle.store(0, Ordering::Relaxed);
            slot.retired.store(0, Ordering::Relaxed);
            slot.settle();
        }
    }

    /// A thread is about to give `slot` something to do. Until it leaves, no mark of this
    /// slot is made by another, and no shared memory that it may use is unmapped by one who
    /// makes the barrier.
    #[inline]
    pub fn enter(&self, slot: u8) -> Inside<'_> {
        Inside {
            entry: self.threads.enter(slot),
            slot: self.slot(slot),
        }
    }

    /// The next number, for something put into a slot that was entered.
    #[inline]
    pub fn next(&self, inside: &Inside<'_>) -> u64 {
        let number = self.sequence.0.fetch_add(1, Ordering::SeqCst) + 1;
        inside.slot.last.store(number, Ordering::Release);
        let since = inside.slot.since.load(Ordering::Relaxed);
        let since = since.wrapping_add(1);
        inside.slot.since.store(since, Ordering::Relaxed);
        number
    }

    /// The number last given out.
    pub fn current(&self) -> u64 {
        self.sequence.0.load(Ordering::SeqCst)
    }

    /// Something now depends on this slot's progress reaching the number answered (memory was
    /// freed in its order): the stream is worth a mark although nothing new runs. The number is
    /// a new one, so that only a mark made from now on covers it: the stream may have been given
    /// what no number tells of.
    pub fn want_mark(&self, slot: u8) -> u64 {
        // The number first: a mark that covers this wish has read a number no smaller.
        let number = self.sequence.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.slot(slot).wanted.fetch_add(1, Ordering::SeqCst);
        number
    }

    /// A mark for `slot`, if one is true now. `own`: the caller is inside itself, and what it
    /// took a number for is in the stream already.
    pub fn mark(&self, slot: u8, own: Option<&Inside<'_>>) -> Option<Mark> {
        if slot == SHARED_SLOT {
            return None;
        }
        let state = self.slot(slot);
        // The order matters. What the mark covers is read before its value, and who took a
        // number up to that had entered before.
        let last = state.last.load(Ordering::SeqCst);
        let wanted = state.wanted.load(Ordering::SeqCst);
        let value = self.current();
        let alone = self
            .threads
            .is_empty_but_for(slot, own.map(|own| &own.entry));
        alone.then_some(Mark {
            value,
            last,
            wanted,
        })
    }

    /// There were `stride` items since the last mark, the caller's own among them, which has
    /// taken its number.
    #[inline]
    pub fn is_mark_due(&self, inside: &Inside<'_>, stride: u32) -> bool {
        inside.slot.since.load(Ordering::Relaxed) >= u64::from(stride.max(1))
    }

    /// `mark` was put into the stream, or the host has seen it pass.
    pub fn note_mark(&self, slot: u8, mark: Mark) {
        let slot = self.slot(slot);
        slot.marked.fetch_max(mark.last, Ordering::Relaxed);
        slot.granted.fetch_max(mark.wanted, Ordering::Relaxed);
        slot.since.store(0, Ordering::Relaxed);
    }

    /// What `slot` was given, as a number that changes with it, if no mark covers the last of
    /// it yet.
    pub fn unmarked(&self, slot: u8) -> Option<u64> {
        let state = self.slot(slot);
        let (last, wanted) = (
            state.last.load(Ordering::SeqCst),
            state.wanted.load(Ordering::SeqCst),
        );
        let waits = last > state.marked.load(Ordering::Relaxed)
            || wanted > state.granted.load(Ordering::Relaxed);
        (slot != SHARED_SLOT && waits).then(|| last.wrapping_add(wanted))
    }

    /// The device has not come to the last mark of `slot`, nor to the last `most` numbers before
    /// what was put there last, as its `word` says. Where no mark tells, it is not far.
    pub fn is_far_ahead(&self, slot: u8, word: u32, most: u32) -> bool {
        let state = self.slot(slot);
        let marked = state.marked.load(Ordering::Relaxed);
        let near = state
            .last
            .load(Ordering::Relaxed)
            .saturating_sub(most.into());
        slot != SHARED_SLOT && !has_passed(word, marked) && !has_passed(word, near)
    }

    /// The device has passed all that any slot was given a number for, as the slots' words say.
    /// Of what shares a slot that is not known.
    pub fn is_idle(&self, word: impl Fn(u8) -> u32) -> bool {
        (0..STREAM_SLOTS as u8).all(|slot| match self.slot(slot).last.load(Ordering::SeqCst) {
            0 => true,
            last => slot != SHARED_SLOT && has_passed(word(slot), last),
        })
    }

    /// The stream in `slot`; for the legacy default stream 0. `None`: no stream.
    pub fn stream(&self, slot: u8) -> Option<Handle> {
        match self.slot(slot).handle.load(Ordering::Relaxed) {
            0 if slot == LEGACY_SLOT => Some(0),
            0 => None,
            handle => usize::try_from(handle).ok(),
        }
    }

    /// No thread is inside `slot` at this moment.
    pub fn is_empty(&self, slot: u8) -> bool {
        self.threads.is_empty_but_for(slot, None)
    }
}

/// A thread is inside a slot while this lives.
#[derive(Debug)]
pub struct Inside<'a> {
    entry: Entry<'a>,
    slot: &'a Slot,
}

/// Whether a device's word (the low 32 bits of a number) says that `number` was passed.
#[inline]
pub fn has_passed(word: u32, number: u64) -> bool {
    // Numbers in flight are far closer to each other than half of 32 bits.
    (word.wrapping_sub(number as u32) as i32) >= 0
}

#[inline]
fn start_of(stream: Handle) -> usize {
    ((stream as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % CELLS
}

#[cfg(test)]
mod tests;
