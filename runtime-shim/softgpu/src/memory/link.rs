//! The link between host and device: one server of time for each direction.
//!
//! Transfers are cut into quanta. Each quantum reserves its slot on the link, is copied
//! for real, and its transfer goes on when the slot is over. Transfers of one direction
//! so share it quantum by quantum, and a fault waits behind quanta, not behind calls.

use std::cell::Cell;
use std::sync::Mutex;

use super::lock;

/// Time that a quantum takes, about: short for fairness, long against wake-ups.
const QUANTUM_NS: f64 = 200_000.0;
/// How late a transfer may come back and still count as having kept the link busy: the
/// hardware's copy queue does not wait for a thread to be scheduled.
const LATE_NS: f64 = 10_000_000.0;
/// Calls that follow each other so closely were queued, and the hardware has no gap there.
const QUEUED_NS: f64 = 150_000.0;

/// One direction.
pub struct Link {
    ns_per_byte: f64,
    quantum: usize,
    /// When the last reserved slot ends, on the monotonic clock.
    busy_until_ns: Mutex<f64>,
}

/// A sequence of copies over one direction.
pub struct Transfer<'a> {
    link: &'a Link,
    end_ns: f64,
}

impl Link {
    /// A direction of so many bytes per second.
    pub fn new(bytes_per_s: u64) -> Self {
        let ns_per_byte = 1e9 / bytes_per_s.max(1) as f64;
        let quantum = (QUANTUM_NS / ns_per_byte) as usize / 65536 * 65536;
        Self {
            ns_per_byte,
            quantum: quantum.clamp(65536, 1 << 20),
            busy_until_ns: Mutex::new(0.0),
        }
    }

    /// Begins a transfer now.
    pub fn begin(&self) -> Transfer<'_> {
        self.begin_at(now_ns())
    }

    /// Begins a transfer that goes on from a moment, not later than now, where the work
    /// before it was over.
    pub fn begin_at(&self, end_ns: f64) -> Transfer<'_> {
        Transfer { link: self, end_ns }
    }

    /// Begins the transfer of a call from a queue: without a gap, if it follows closely.
    pub fn begin_queued(&self) -> Transfer<'_> {
        let now = now_ns();
        let busy = *lock(&self.busy_until_ns);
        self.begin_at(if now - busy < QUEUED_NS {
            busy.min(now)
        } else {
            now
        })
    }
}

impl Transfer<'_> {
    /// Copies; returns when all but the last quantum's time has passed.
    ///
    /// # Safety
    /// As `copy_nonoverlapping`; both sides stay mapped meanwhile.
    pub unsafe fn copy(&mut self, to: u64, from: u64, bytes: u64) {
        let mut done = 0;
        while done < bytes as usize {
            let step = (bytes as usize - done).min(self.link.quantum);
            let before = self.end_ns;
            self.reserve(step);
            // SAFETY: by the caller.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    (from as *const u8).add(done),
                    (to as *mut u8).add(done),
                    step,
                );
            }
            done += step;
            // One slot ahead, so that the link does not run dry while this thread wakes.
            sleep_until_ns(before);
        }
    }

    /// Lets bytes that are copied elsewhere pass over the link.
    pub fn pass(&mut self, bytes: u64) {
        let mut left = bytes as usize;
        while left > 0 {
            let step = left.min(self.link.quantum);
            let before = self.end_ns;
            self.reserve(step);
            left -= step;
            sleep_until_ns(before);
        }
    }

    /// Puts bytes into the line without waiting for any: posted writes.
    pub fn post(&mut self, bytes: u64) {
        let mut left = bytes as usize;
        while left > 0 {
            let step = left.min(self.link.quantum);
            self.reserve(step);
            left -= step;
        }
    }

    fn reserve(&mut self, bytes: usize) {
        let mut busy = lock(&self.link.busy_until_ns);
        let start = busy.max(self.end_ns).max(now_ns() - LATE_NS);
        self.end_ns = start + bytes as f64 * self.link.ns_per_byte;
        *busy = self.end_ns;
    }

    /// When everything so far is over the link, nanoseconds of the monotonic clock.
    pub fn end_ns(&self) -> f64 {
        self.end_ns
    }

    /// What goes over the link from here on comes after a moment: work in between, such
    /// as an eviction, was over then.
    pub fn not_before(&mut self, ns: f64) {
        self.end_ns = self.end_ns.max(ns);
    }

    /// Waits until everything so far is over the link.
    pub fn wait(&mut self) {
        sleep_until_ns(self.end_ns);
    }
}

/// The monotonic clock, nanoseconds.
pub fn now_ns() -> f64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `t` is valid for the write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as f64 * 1e9 + t.tv_nsec as f64
}

/// Sleeps to a moment of the monotonic clock; returns at once when it has passed. Late by
/// what the machine takes to wake a thread, which the callers make up for.
pub fn sleep_until_ns(until: f64) {
    thread_local! {
        static PRECISE: Cell<bool> = const { Cell::new(false) };
    }
    if !PRECISE.replace(true) {
        // The kernel may otherwise join wake-ups that are up to 50 us apart.
        // SAFETY: an attribute of the calling thread.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1u64) };
    }
    while now_ns() < until {
        let t = libc::timespec {
            tv_sec: (until / 1e9) as libc::time_t,
            tv_nsec: (until % 1e9) as libc::c_long,
        };
        // SAFETY: `t` is valid; the remainder is not asked for. After a signal the loop
        // goes on.
        unsafe {
            libc::clock_nanosleep(
                libc::CLOCK_MONOTONIC,
                libc::TIMER_ABSTIME,
                &t,
                std::ptr::null_mut(),
            );
        }
    }
}
