//! The session with the daemon as the hooks see it: where records and marks go.
//!
//! Hooks reach it only between entering and leaving a stream slot, so the executor, which
//! replaces it, knows when no one is inside any more.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use oversub_protocol::layout::{ControlPage, DevicePage, RingHead, STREAM_SLOTS, SlotCell};
use oversub_protocol::ring::{Encode, Push, Writer};
use oversub_shim_core::abi::Handle;
use oversub_shim_core::pool::point::Point;
use oversub_shim_core::streams::{self, Inside, Mark, SHARED_SLOT};

use crate::driver;
use crate::state::{ErrnoKept, STREAMS};

/// Everything of a session that hooks use.
#[derive(Debug)]
pub struct Session {
    /// Words that the device writes.
    pub device_page: NonNull<DevicePage>,
    /// Words that both sides write.
    pub control_page: NonNull<ControlPage>,
    /// The event ring.
    pub events: Writer,
    /// Where the event ring counts, and its slots: for [`Session::fetch_ahead`].
    pub events_head: NonNull<RingHead>,
    /// See `events_head`.
    pub events_slots: NonNull<SlotCell>,
    /// Written when the daemon sleeps.
    pub events_wake: i32,
    /// The device page as the device sees it; 0: it cannot.
    pub marks_at: AtomicU64,
    /// Marks that the driver refused in a row.
    pub marks_refused: AtomicU32,
}

static CURRENT: AtomicPtr<Session> = AtomicPtr::new(ptr::null_mut());

/// Makes `session` (or none) the current one.
pub fn set(session: *mut Session) {
    CURRENT.store(session, Ordering::SeqCst);
}

/// The current session, for as long as the caller is inside a slot.
#[inline]
pub fn current<'a>(_inside: &'a Inside<'_>) -> Option<&'a Session> {
    // Loaded after we entered, for all who make the barrier: either the executor, which does,
    // sees us inside, or we see that it has taken the session away.
    let session = CURRENT.load(Ordering::SeqCst);
    // SAFETY: sessions are unmapped only after every slot was seen empty since `set` and a
    // barrier after it.
    unsafe { session.as_ref() }
}

/// Calls `action` with the current session, from outside any slot.
pub fn with<R>(action: impl FnOnce(&Session) -> R) -> Option<R> {
    let inside = STREAMS.enter(SHARED_SLOT);
    current(&inside).map(action)
}

/// Writes a record, if there is a session.
pub fn push<R: Encode>(record: &R) {
    with(|session| session.push(record));
}

/// As [`Session::push_patient`], if there is a session.
pub fn push_patient<R: Encode>(record: &R) {
    with(|session| session.push_patient(record));
}

/// Whether the device has passed `point`, as far as its marks tell.
pub fn has_passed(point: &Point) -> bool {
    match point {
        Point::Done => true,
        Point::Stream { slot, seq, .. } => {
            with(|session| session.has_passed(*slot, *seq)).unwrap_or(false)
        }
    }
}

impl Session {
    /// Words that the device writes.
    #[inline]
    pub fn device(&self) -> &DevicePage {
        // SAFETY: mapped while the session exists; atomics only.
        unsafe { self.device_page.as_ref() }
    }

    /// Words that both sides write.
    #[inline]
    pub fn control(&self) -> &ControlPage {
        // SAFETY: mapped while the session exists; atomics only.
        unsafe { self.control_page.as_ref() }
    }

    /// Writes a record, or lets it be counted as dropped.
    #[inline]
    pub fn push<R: Encode>(&self, record: &R) {
        if self.events.push(record) == Push::WrittenWake {
            self.wake();
        }
    }

    /// As [`Session::push`], for what runs and what memory is used for: a daemon that has
    /// nothing to steer takes it in when it looks again, or when there is much of it.
    #[inline]
    pub fn push_patient<R: Encode>(&self, record: &R) {
        if self.events.push_patient(record) == Push::WrittenWake {
            self.wake();
        }
    }

    /// Has the processor fetch slots of the ring for writing, while the driver does its
    /// part: the daemon read them last, so they are in another core's cache. As many as were
    /// just written, a few launches ahead: so each is fetched once, and in time. Of a record of
    /// very many slots the first ones: the processor takes only so many requests at a time.
    #[inline]
    pub fn fetch_ahead(&self, slots: usize) {
        const AHEAD: u64 = 6;
        const MOST: usize = 8;
        // SAFETY: mapped while the session exists; an atomic.
        let head = unsafe { self.events_head.as_ref() }
            .head
            .0
            .load(Ordering::Relaxed);
        let mask = self.events.ring().capacity() - 1;
        let first = head.saturating_add(AHEAD);
        for position in first..first.saturating_add(slots.min(MOST) as u64) {
            // SAFETY: the mask keeps it inside the slots. Nothing is read or written.
            unsafe { fetch_for_writing(self.events_slots.add((position & mask) as usize)) };
        }
    }

    #[cold]
    fn wake(&self) {
        let _errno = ErrnoKept::new();
        self.control().woken_ns.store(now_ns(), Ordering::Relaxed);
        let one = 1_u64;
        // SAFETY: eight bytes of a local. Non-blocking: a full counter wakes as well.
        unsafe { libc::write(self.events_wake, (&raw const one).cast(), 8) };
    }

    /// Whether the device has passed `number` in `slot`.
    pub fn has_passed(&self, slot: u8, number: u64) -> bool {
        let word = self.device().progress.get(usize::from(slot));
        slot != SHARED_SLOT
            && word.is_some_and(|word| streams::has_passed(word.load(Ordering::Acquire), number))
    }

    /// Has `stream` write how far it is, if that can be said now. `own`: the caller is inside
    /// `slot` itself.
    pub fn mark(&self, stream: Handle, slot: u8, own: Option<&Inside<'_>>) {
        const GIVE_UP_AFTER: u32 = 64;
        let base = self.marks_at.load(Ordering::Relaxed);
        if base == 0 {
            return;
        }
        let Some(mark) = STREAMS.mark(slot, own) else {
            return;
        };
        let address = base + u64::from(slot) * 4;
        // SAFETY: the page is registered with the driver and never unmapped.
        let result = unsafe { driver::write_value(stream, address, mark.value as u32) };
        if result.is_ok() {
            self.marks_refused.store(0, Ordering::Relaxed);
            STREAMS.note_mark(slot, mark);
        } else if self.marks_refused.fetch_add(1, Ordering::Relaxed) >= GIVE_UP_AFTER {
            self.marks_at.store(0, Ordering::Relaxed);
        }
    }

    /// The host has seen that `slot` passed `mark`.
    pub fn host_mark(&self, slot: u8, mark: Mark) {
        let Some(word) = self.device().progress.get(usize::from(slot)) else {
            return;
        };
        let ahead =
            |word: u32| (!streams::has_passed(word, mark.value)).then_some(mark.value as u32);
        let _ = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, ahead);
        STREAMS.note_mark(slot, mark);
    }

    /// The daemon has nothing to steer: nothing is urgent.
    pub fn is_calm(&self) -> bool {
        self.control().calm.load(Ordering::Relaxed) != 0
    }

    /// How far the device is in `slot`, as it says itself.
    pub fn progress(&self, slot: u8) -> u32 {
        let word = self.device().progress.get(usize::from(slot));
        word.map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Nothing that the program launched since the session began is known to run still.
    pub fn is_idle(&self) -> bool {
        STREAMS.is_idle(|slot| self.progress(slot))
    }

    /// Launches that the program had better be ahead of the device at most; 0: any number.
    #[inline]
    pub fn most_ahead(&self) -> u32 {
        self.control().run_ahead.load(Ordering::Relaxed)
    }

    /// Launches in a stream after which a mark is wanted.
    #[inline]
    pub fn stride(&self) -> u32 {
        self.control().mark_stride.load(Ordering::Relaxed).max(1)
    }
}

/// `CLOCK_MONOTONIC`, the daemon's clock.
pub fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a local to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}

/// A hint to the processor, without effect on anything but time.
///
/// # Safety
/// `slot` is inside a mapping.
#[inline]
unsafe fn fetch_for_writing(slot: NonNull<SlotCell>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; processors without it do nothing.
    unsafe {
        core::arch::asm!(
            "prefetchw [{slot}]",
            slot = in(reg) slot.as_ptr(),
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint.
    unsafe {
        core::arch::asm!(
            "prfm pstl1keep, [{slot}]",
            slot = in(reg) slot.as_ptr(),
            options(nostack, preserves_flags, readonly),
        );
    }
}

/// Slots that can be marked.
pub fn marked_slots() -> impl Iterator<Item = u8> {
    (0..STREAM_SLOTS as u8).filter(|slot| *slot != SHARED_SLOT)
}
