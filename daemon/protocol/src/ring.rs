//! The two rings: bounded, lock-free, over memory that both processes map.
//!
//! Owns the algorithm; the memory's layout is in [`crate::layout`], what the slots say in
//! [`crate::event`] and [`crate::command`]. Creating, sealing and mapping the memory and
//! waiting on the eventfd are the callers' business.
//!
//! Many writers (threads of one process), one reader. A record takes 1 to [`MAX_SLOTS`]
//! consecutive slots, reserved by one compare-and-swap of `head`. A slot at position `p`
//! is published by storing `p + 1` as its sequence number, the first slot of a record
//! last, so a reader that sees the first sees all of it (after D. Vyukov's bounded queue;
//! positions count up and never wrap in practice). The reader frees slots by moving
//! `tail`, and writes nothing into them: zeroed memory is an empty ring, and all that a
//! hostile writer can do is to send nonsense, which the reader reports as [`Corrupt`].
//!
//! A reader that is about to wait sets `sleeping`, then looks once more; a writer
//! publishes, then looks at `sleeping`. With a fence between each side's two steps, which
//! [`crate::fences`] says how to come by, at least one of them sees the other, so no wake-up
//! is lost, and the writer that clears the flag is the only one that writes the eventfd.
//!
//! A reader that need not see everything at once *dozes*: it sets `sleeping` to another
//! value, and comes back by itself after a time of its own choice. Prompt records wake it as
//! ever; patient ones only when the ring has filled by a quarter. It may doze only while the
//! ring is empty and no writer is at work in it, so that every record that it has not seen
//! was published after a look at `sleeping` that shows it dozing: a prompt one is never
//! overslept.

use core::fmt;
use core::ptr::NonNull;

use crate::event::{MAX_SLOTS, Words};
use crate::fences::{Barrier, Fences};
use crate::layout::{CacheLine, RingHead, SlotCell, SlotCountError, check_slots};
use crate::sync::{self, AtomicU64, Ordering, Payload, fence};

/// `sleeping`: the reader looks by itself.
const AWAKE: u32 = 0;
/// `sleeping`: it waits for any record.
const ASLEEP: u32 = 1;
/// `sleeping`: it waits for a prompt record, or for many.
const DOZING: u32 = 2;
/// One in this many slots filled is many.
const MANY: u64 = 4;

/// The memory of one ring.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    head: NonNull<RingHead>,
    slots: NonNull<SlotCell>,
    capacity: u64,
}

// SAFETY: all access goes through atomics in memory that `from_raw`'s caller keeps mapped.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// A ring over `slots` slots of shared memory.
    ///
    /// # Errors
    /// The number of slots is not one that [`check_slots`] accepts.
    ///
    /// # Safety
    /// `head` and `first_slot` point to a [`RingHead`] and to `slots` consecutive
    /// [`SlotCell`]s, aligned, readable and writable, mapped for as long as the ring or
    /// anything made of it is used. Other processes may write there; nothing in this
    /// process does so except through this module.
    pub unsafe fn from_raw(
        head: NonNull<RingHead>,
        first_slot: NonNull<SlotCell>,
        slots: u32,
    ) -> Result<Ring, SlotCountError> {
        let capacity = u64::from(check_slots(slots)?);
        Ok(Ring {
            head,
            slots: first_slot,
            capacity,
        })
    }

    /// Slots in the ring.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Records that writers could not write since the ring was made, as they say.
    pub fn dropped(&self) -> u64 {
        self.head().dropped.0.load(Ordering::Relaxed)
    }

    #[inline]
    fn head(&self) -> &RingHead {
        // SAFETY: promised by the caller of `from_raw`.
        unsafe { self.head.as_ref() }
    }

    #[inline]
    fn slot(&self, position: u64) -> &SlotCell {
        // `check_slots` bounds the capacity far below `usize::MAX` on any target.
        let index = (position & (self.capacity - 1)) as usize;
        // SAFETY: the mask keeps the index inside the slots promised to `from_raw`.
        unsafe { self.slots.add(index).as_ref() }
    }
}

/// What became of a record.
#[must_use = "a sleeping reader must be woken"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Push {
    /// Written; the reader is awake and will find it.
    Written,
    /// Written, and the caller must write the eventfd: the reader sleeps and no one else
    /// will wake it.
    WrittenWake,
    /// Not written and counted: the ring is full.
    Full,
}

/// A record that can be laid out in slots.
pub trait Encode {
    /// Slots that it fills, 1 to [`MAX_SLOTS`].
    fn slots(&self) -> usize;
    /// The words of slot `index`, which is below [`Encode::slots`].
    fn slot(&self, index: usize) -> Words;
    /// Writes slot `index` into its place.
    #[inline]
    fn put(&self, index: usize, place: &Payload) {
        place.store(&self.slot(index));
    }
}

/// The writing side. Shared by all threads of the writing process.
#[derive(Debug)]
pub struct Writer {
    ring: Ring,
    fences: Fences,
    /// A tail seen earlier: spares a look at the reader's cache line while there is room.
    seen_tail: AtomicU64,
}

impl Writer {
    /// A writer that goes on where `head` stands. [`Fences::Reader`] only where this process
    /// is reached by the reader's barrier, and the reader knows it.
    pub fn new(ring: Ring, fences: Fences) -> Writer {
        let tail = ring.head().tail.0.load(Ordering::Acquire);
        Writer {
            ring,
            fences,
            seen_tail: AtomicU64::new(tail),
        }
    }

    /// The ring written to.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Writes one record, or counts it as dropped when there is no room.
    ///
    /// A record of no slots or of more than [`MAX_SLOTS`] is dropped too.
    #[inline]
    pub fn push<R: Encode>(&self, record: &R) -> Push {
        let slots = record.slots();
        let Some(start) = self.reserve(slots) else {
            return self.drop_one();
        };
        publish(&self.ring, start, slots, |index, place| {
            record.put(index, place);
        });
        wake(&self.ring, self.fences, |_| true)
    }

    /// As [`Writer::push`], for a record that a dozing reader need not see before it has
    /// slept out, unless there are many.
    #[inline]
    pub fn push_patient<R: Encode>(&self, record: &R) -> Push {
        let slots = record.slots();
        let Some(start) = self.reserve(slots) else {
            return self.drop_one();
        };
        publish(&self.ring, start, slots, |index, place| {
            record.put(index, place);
        });
        self.wake_if_many(start.wrapping_add(slots as u64))
    }

    /// Writes a record of `slots` slots whose words `fill` gives. `fill` is called once per
    /// slot, from the last to the first, between reservation and publication: it must not
    /// block, since later records wait for this one.
    #[inline]
    pub fn push_with(&self, slots: usize, mut fill: impl FnMut(usize) -> Words) -> Push {
        let Some(start) = self.reserve(slots) else {
            return self.drop_one();
        };
        publish(&self.ring, start, slots, |index, place| {
            place.store(&fill(index));
        });
        wake(&self.ring, self.fences, |_| true)
    }

    /// As [`Writer::push_with`], patient.
    #[inline]
    pub fn push_patient_with(&self, slots: usize, mut fill: impl FnMut(usize) -> Words) -> Push {
        let Some(start) = self.reserve(slots) else {
            return self.drop_one();
        };
        publish(&self.ring, start, slots, |index, place| {
            place.store(&fill(index));
        });
        self.wake_if_many(start.wrapping_add(slots as u64))
    }

    /// After patient records up to `end`.
    #[inline]
    fn wake_if_many(&self, end: u64) -> Push {
        wake(&self.ring, self.fences, |sleeping| {
            sleeping != DOZING || self.is_many(end)
        })
    }

    /// Whether a quarter of the ring is filled by what ends at `end` and before. The tail may
    /// be an old one, by which there is more than there is: one wake-up too many at worst.
    #[cold]
    fn is_many(&self, end: u64) -> bool {
        let tail = self.ring.head().tail.0.load(Ordering::Acquire);
        end.wrapping_sub(tail) >= self.ring.capacity / MANY
    }

    #[cold]
    fn drop_one(&self) -> Push {
        self.ring.head().dropped.0.fetch_add(1, Ordering::Relaxed);
        Push::Full
    }

    /// Takes `slots` consecutive positions; `None`: no room.
    #[inline]
    fn reserve(&self, slots: usize) -> Option<u64> {
        if slots == 0 || slots > MAX_SLOTS {
            return None;
        }
        let head = &self.ring.head().head.0;
        let mut start = head.load(Ordering::Relaxed);
        loop {
            let end = start.wrapping_add(slots as u64);
            // Acquire: the reader's copies of these slots come before our stores to them.
            if end.wrapping_sub(self.seen_tail.load(Ordering::Acquire)) > self.ring.capacity {
                let tail = self.ring.head().tail.0.load(Ordering::Acquire);
                self.seen_tail.store(tail, Ordering::Release);
                if end.wrapping_sub(tail) > self.ring.capacity {
                    // `head` may have been stale against this newer tail: look again.
                    let now = head.load(Ordering::Relaxed);
                    if now == start {
                        return None;
                    }
                    start = now;
                    continue;
                }
            }
            match head.compare_exchange_weak(start, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(start),
                Err(now) => start = now,
            }
        }
    }
}

/// The only writer of a ring whose reader may be hostile: the daemon's side of the command
/// ring. Keeps `head` to itself, so nothing that the reader writes moves where it writes.
#[derive(Debug)]
pub struct SoleWriter {
    ring: Ring,
    head: u64,
}

impl SoleWriter {
    /// A writer of a ring into which nothing was written yet.
    pub fn new(ring: Ring) -> SoleWriter {
        SoleWriter { ring, head: 0 }
    }

    /// The ring written to.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Records of one slot for which there is room now.
    pub fn room(&self) -> u64 {
        let tail = self.ring.head().tail.0.load(Ordering::Acquire);
        self.ring
            .capacity
            .saturating_sub(self.head.wrapping_sub(tail))
    }

    /// Writes one record. [`Push::Full`] also where the reader's tail is impossible; unlike
    /// [`Writer::push`] it counts nothing, since the caller may try again later.
    pub fn push<R: Encode>(&mut self, record: &R) -> Push {
        let slots = record.slots();
        if slots == 0 || slots > MAX_SLOTS || slots as u64 > self.room() {
            return Push::Full;
        }
        let start = self.head;
        self.head = start + slots as u64;
        self.ring.head().head.0.store(self.head, Ordering::Relaxed);
        publish(&self.ring, start, slots, |index, place| {
            record.put(index, place);
        });
        wake(&self.ring, Fences::Both, |_| true)
    }
}

/// Fills and publishes reserved slots, the first one last.
#[inline]
fn publish(ring: &Ring, start: u64, slots: usize, mut put: impl FnMut(usize, &Payload)) {
    sync::between_steps();
    for index in (0..slots).rev() {
        let position = start.wrapping_add(index as u64);
        let cell = ring.slot(position);
        put(index, &cell.payload);
        cell.sequence
            .store(position.wrapping_add(1), Ordering::Release);
    }
}

/// After a record was published: whether its writer has to wake the reader, who sleeps in a
/// way in which `matters` says that the record does.
#[inline]
fn wake(ring: &Ring, fences: Fences, matters: impl FnOnce(u32) -> bool) -> Push {
    let CacheLine(state) = &ring.head().reader;
    fences.writer(&state.barrier);
    let sleeping = &state.sleeping;
    let now = sleeping.load(Ordering::Relaxed);
    if now != AWAKE && matters(now) && sleeping.swap(AWAKE, Ordering::AcqRel) != AWAKE {
        Push::WrittenWake
    } else {
        Push::Written
    }
}

/// The other side broke the rules of the ring. The session cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Corrupt {
    /// A slot's sequence number is neither of the two that are possible there.
    Sequence {
        /// Position of the slot.
        position: u64,
        /// What it said.
        found: u64,
    },
    /// `head` is not between the reader's tail and one capacity beyond it.
    Head {
        /// The reader's tail.
        tail: u64,
        /// What `head` said.
        found: u64,
    },
    /// A record claims to fill no slots or more than [`MAX_SLOTS`].
    Length {
        /// Position of its first slot.
        position: u64,
        /// Slots claimed.
        found: u8,
    },
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Corrupt::Sequence { position, found } => {
                write!(
                    f,
                    "ring slot at position {position} has impossible sequence {found}"
                )
            }
            Corrupt::Head { tail, found } => {
                write!(f, "ring head {found} is out of reach of tail {tail}")
            }
            Corrupt::Length { position, found } => {
                write!(f, "record at position {position} claims {found} slots")
            }
        }
    }
}

impl core::error::Error for Corrupt {}

/// How the reader learns where a record ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lengths {
    /// From the [`crate::event::Head`] that each record begins with: the event ring.
    FromHead,
    /// Every record is one slot: the command ring.
    One,
}

/// The reading side: exactly one, in one process.
#[derive(Debug)]
pub struct Reader {
    ring: Ring,
    lengths: Lengths,
    /// What it can make in the writers' place.
    barrier: Option<Barrier>,
    /// The writers leave their fence to that now.
    relied_on: bool,
    tail: u64,
    /// A head seen earlier: spares a look at the writers' cache line for every record.
    seen_head: u64,
    copy: [Words; MAX_SLOTS],
}

impl Reader {
    /// A reader of a ring from which nothing was read yet.
    pub fn new(ring: Ring, lengths: Lengths) -> Reader {
        Reader {
            ring,
            lengths,
            barrier: None,
            relied_on: false,
            tail: 0,
            seen_head: 0,
            copy: [Words::default(); MAX_SLOTS],
        }
    }

    /// As the reader of writers that leave their fence to it ([`Fences::Reader`]) while it
    /// says so: see [`Reader::spare_writers`].
    pub fn with_barrier(self, barrier: Barrier) -> Reader {
        let barrier = Some(barrier);
        Reader { barrier, ..self }
    }

    /// Says whether writers may leave their fence to the barrier, where there is one: worth
    /// it while sleeps are rare among records.
    pub fn spare_writers(&mut self, spare: bool) {
        let Some(barrier) = self.barrier else { return };
        if spare == self.relied_on {
            return;
        }
        let word = &self.ring.head().reader.0.barrier;
        if spare {
            self.relied_on = true;
            word.store(1, Ordering::Release);
            return;
        }
        word.store(0, Ordering::Release);
        // A writer that still read 1 had stored its record: from here on that can be seen.
        self.relied_on = !barrier();
    }

    /// The ring read from.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Slots reserved by writers and not read yet, at most the capacity.
    pub fn backlog(&self) -> u64 {
        let head = self.ring.head().head.0.load(Ordering::Relaxed);
        head.wrapping_sub(self.tail).min(self.ring.capacity)
    }

    /// Whether a record can be read now, or the ring is corrupt, which reading then tells.
    pub fn has_news(&self) -> bool {
        !matches!(self.is_ready(self.tail), Ok(false))
    }

    /// Copies the next record out; `None`: there is none now.
    ///
    /// # Errors
    /// [`Corrupt`], and from then on for every call: nothing more can be read.
    #[inline]
    pub fn next_record(&mut self) -> Result<Option<&[Words]>, Corrupt> {
        let slots = self.copy_out()?;
        self.publish_tail();
        Ok(slots.map(|slots| self.record(slots)))
    }

    /// Hands at most `limit` records to `sink`, each copied out first; returns how many.
    ///
    /// # Errors
    /// As [`Reader::next_record`]; records before the corrupt one have been handed over.
    pub fn drain(
        &mut self,
        limit: usize,
        mut sink: impl FnMut(&[Words]),
    ) -> Result<usize, Corrupt> {
        // The writers' cache line with the tail is touched once in so many records.
        const PUBLISH_EVERY: usize = 32;
        let mut records = 0;
        let outcome = loop {
            if records == limit {
                break Ok(records);
            }
            match self.copy_out() {
                Ok(Some(slots)) => sink(self.record(slots)),
                Ok(None) => break Ok(records),
                Err(corrupt) => break Err(corrupt),
            }
            records += 1;
            if records % PUBLISH_EVERY == 0 {
                self.publish_tail();
            }
        };
        self.publish_tail();
        outcome
    }

    /// Announces that the reader is about to wait on the eventfd. `true`: it may; a writer
    /// that publishes from now on says [`Push::WrittenWake`]. `false`: something came (or
    /// the ring is corrupt, or the barrier failed), read first.
    pub fn prepare_sleep(&self) -> bool {
        self.announce(ASLEEP)
    }

    /// As [`Reader::prepare_sleep`], for a reader that comes back by itself in time: patient
    /// records need not wake it.
    pub fn prepare_doze(&self) -> bool {
        if !self.announce(DOZING) {
            return false;
        }
        // A writer that has reserved and not published may have others behind it that have,
        // prompt ones too, and looked before the announcement. What is not reserved yet will
        // be published after a look that sees it. (What a hostile head can bring about is
        // the sleep that there is otherwise.)
        let head = self.ring.head().head.0.load(Ordering::Relaxed);
        head == self.tail || self.announce(ASLEEP)
    }

    fn announce(&self, how: u32) -> bool {
        let sleeping = &self.ring.head().reader.0.sleeping;
        // An exchange, not a store: it comes after any writer's exchange that it did not see,
        // so that no writer can later read such a writer's 0 as the newest word.
        sleeping.swap(how, Ordering::AcqRel);
        let fenced = match self.barrier.filter(|_| self.relied_on) {
            None => {
                fence(Ordering::SeqCst);
                true
            }
            Some(barrier) => barrier(),
        };
        let quiet = fenced && matches!(self.is_ready(self.tail), Ok(false));
        if !quiet {
            self.cancel_sleep();
        }
        quiet
    }

    /// Takes the announcement back, after waking for whatever reason.
    pub fn cancel_sleep(&self) {
        let sleeping = &self.ring.head().reader.0.sleeping;
        sleeping.swap(AWAKE, Ordering::AcqRel);
    }

    #[inline]
    fn publish_tail(&self) {
        self.ring.head().tail.0.store(self.tail, Ordering::Release);
    }

    /// The record copied out last. Written so that no panic is compiled in: the reader of
    /// the command ring runs inside the program.
    #[inline]
    fn record(&self, slots: usize) -> &[Words] {
        self.copy.get(..slots).unwrap_or_default()
    }

    /// Whether the slot at `position` is published.
    #[inline]
    fn is_ready(&self, position: u64) -> Result<bool, Corrupt> {
        let found = self.ring.slot(position).sequence.load(Ordering::Acquire);
        if found == position + 1 {
            return Ok(true);
        }
        // Still as the previous lap left it: zero in the first.
        let before = (position + 1).saturating_sub(self.ring.capacity);
        if found == before {
            return Ok(false);
        }
        Err(Corrupt::Sequence { position, found })
    }

    /// Slots that writers have reserved from the tail on. Looks at `head` only where fewer
    /// than `needed` are known of.
    #[inline]
    fn reserved(&mut self, needed: u64) -> Result<u64, Corrupt> {
        let known = self.seen_head.wrapping_sub(self.tail);
        if known >= needed && known <= self.ring.capacity {
            return Ok(known);
        }
        let (tail, found) = (self.tail, self.ring.head().head.0.load(Ordering::Relaxed));
        let reserved = found.wrapping_sub(tail);
        if reserved == 0 || reserved > self.ring.capacity {
            return Err(Corrupt::Head { tail, found });
        }
        self.seen_head = found;
        Ok(reserved)
    }

    /// Copies the record at the tail and moves past it; the slots it took.
    #[inline]
    fn copy_out(&mut self) -> Result<Option<usize>, Corrupt> {
        let start = self.tail;
        if !self.is_ready(start)? {
            return Ok(None);
        }
        let mut reserved = self.reserved(1)?;
        self.copy[0] = self.ring.slot(start).payload.load();
        let claimed = match self.lengths {
            Lengths::One => 1,
            Lengths::FromHead => self.copy[0][0].to_ne_bytes()[2],
        };
        let slots = usize::from(claimed);
        if u64::from(claimed) > reserved {
            reserved = self.reserved(u64::from(claimed))?;
        }
        if slots == 0 || slots > MAX_SLOTS || u64::from(claimed) > reserved {
            return Err(Corrupt::Length {
                position: start,
                found: claimed,
            });
        }
        let ring = self.ring;
        for index in 1..slots {
            let position = start + index as u64;
            if !self.is_ready(position)? {
                let found = ring.slot(position).sequence.load(Ordering::Relaxed);
                return Err(Corrupt::Sequence { position, found });
            }
            if let Some(target) = self.copy.get_mut(index) {
                *target = ring.slot(position).payload.load();
            }
        }
        self.tail = start + slots as u64;
        Ok(Some(slots))
    }
}
