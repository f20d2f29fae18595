//! Wake-ups between real threads and real processes, over a real eventfd.
//!
//! The writer waits until its last record was read and writes the next while the reader is
//! about to sleep: the moment in which a wake-up can be lost. The reader waits for ever by
//! design; here it gives up after many times what any wake-up takes, and finds the record
//! that it was not woken for. With neither the reader's barrier nor a fence of the writer's
//! that happens, though not in every run of so few rounds; the model, which tries all orders,
//! finds it at once.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)] // helpers of a test are part of it

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use oversub_protocol::event::{Head, Kind, Words};
use oversub_protocol::fences::Fences;
use oversub_protocol::layout::{RingHead, SlotCell};
use oversub_protocol::ring::{Lengths, Push, Reader, Ring, Writer};

const SLOTS: u32 = 16;
const ROUNDS: u64 = 5_000;
/// Far beyond any wake-up, even of a machine that is busy with other tests.
const GIVE_UP_MS: i32 = 20_000;

/// `MEMBARRIER_CMD_*` (linux/membarrier.h).
const GLOBAL_EXPEDITED: i32 = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;

fn membarrier(command: i32) -> bool {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

fn barrier() -> bool {
    membarrier(GLOBAL_EXPEDITED)
}

/// Keeps the calling thread on the processor of this number among those that it may use: two
/// that share one never meet. Does nothing where there is only one.
fn keep_to(number: usize) {
    // SAFETY: all zero is an empty set; locals with their sizes; indices below the set's end.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        let bytes = size_of_val(&allowed);
        libc::sched_getaffinity(0, bytes, &raw mut allowed);
        let mut all = (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &allowed));
        if let Some(cpu) = all.nth(number) {
            let mut own: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut own);
            libc::sched_setaffinity(0, bytes, &raw const own);
        }
    }
}

/// Lets a little time pass: steps of a nanosecond or so.
fn pass(steps: u64) {
    for step in 0..steps {
        std::hint::black_box(step);
    }
}

/// What both sides share, in memory that a forked child shares too.
#[repr(C)]
struct Shared {
    head: RingHead,
    slots: [SlotCell; SLOTS as usize],
    /// Records read.
    read: AtomicU64,
    /// The reader has failed.
    ended: AtomicU64,
}

#[derive(Clone, Copy)]
struct Sides {
    shared: NonNull<Shared>,
    eventfd: i32,
    fences: Fences,
}

// SAFETY: what is shared is atomics.
unsafe impl Send for Sides {}

impl Sides {
    fn new(fences: Fences) -> Sides {
        // SAFETY: a new mapping, zeroed, which is an empty ring; never unmapped.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Shared>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: no pointers.
        let eventfd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        assert!(eventfd >= 0);
        Sides {
            shared: NonNull::new(start.cast()).unwrap(),
            eventfd,
            fences,
        }
    }

    fn shared(&self) -> &Shared {
        // SAFETY: never unmapped; atomics only.
        unsafe { self.shared.as_ref() }
    }

    fn ring(&self) -> Ring {
        let head = NonNull::from(&self.shared().head);
        let slots = NonNull::from(&self.shared().slots).cast();
        // SAFETY: never unmapped; used by the ring alone.
        unsafe { Ring::from_raw(head, slots, SLOTS) }.unwrap()
    }

    /// One record a round, each when the one before was read. Uses no memory but the
    /// shared and its stack, so that a forked child may.
    fn write(self) {
        keep_to(1);
        let writer = Writer::new(self.ring(), self.fences);
        let shared = self.shared();
        for round in 0..ROUNDS {
            let mut looks = 0_u32;
            while shared.read.load(Ordering::Acquire) < round {
                if shared.ended.load(Ordering::Acquire) != 0 {
                    return;
                }
                looks += 1;
                if looks.is_multiple_of(256) {
                    // SAFETY: no pointers. The reader may need this processor.
                    unsafe { libc::sched_yield() };
                }
            }
            // From before the reader's announcement to after its look.
            pass(round % 211 * 2);
            // Near at hand, as after a burst, so that the look need not wait for it.
            std::hint::black_box(shared.head.reader.0.sleeping.load(Ordering::Relaxed));
            if writer.push_with(1, |_| record(round)) == Push::WrittenWake {
                let one = 1_u64;
                // SAFETY: eight bytes of a local.
                unsafe { libc::write(self.eventfd, (&raw const one).cast(), 8) };
            }
        }
    }

    /// Reads all rounds; after which one it slept for good.
    fn read(self) -> Result<(), u64> {
        let mut reader = Reader::new(self.ring(), Lengths::FromHead);
        if self.fences == Fences::Reader {
            reader = reader.with_barrier(barrier);
            reader.spare_writers(true);
        }
        let shared = self.shared();
        let mut seen = 0;
        while seen < ROUNDS {
            let count = reader.drain(4, |slots| assert_eq!(slots[0], record(slots[0][1])));
            seen += count.unwrap() as u64;
            shared.read.store(seen, Ordering::Release);
            // Until the writer has seen that, and sets out for the next.
            pass(seen % 307 * 3);
            if seen == ROUNDS || !reader.prepare_sleep() {
                continue;
            }
            let mut waiting = libc::pollfd {
                fd: self.eventfd,
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one local entry.
            let woken = unsafe { libc::poll(&raw mut waiting, 1, GIVE_UP_MS) } == 1;
            reader.cancel_sleep();
            if !woken {
                shared.ended.store(1, Ordering::Release);
                return Err(seen);
            }
            let mut count = 0_u64;
            // SAFETY: eight bytes of a local.
            unsafe { libc::read(self.eventfd, (&raw mut count).cast(), 8) };
        }
        Ok(())
    }
}

fn record(round: u64) -> Words {
    let head = Head {
        kind: Kind(99),
        slots: 1,
        stream: 0,
        flags: 0,
    };
    [zerocopy::transmute!(head), round, 0, 0, 0, 0, 0]
}

/// Who makes the fences where this kernel makes barriers, and where not.
fn ways() -> Vec<Fences> {
    if membarrier(REGISTER_GLOBAL_EXPEDITED) && barrier() {
        vec![Fences::Both, Fences::Reader]
    } else {
        vec![Fences::Both]
    }
}

#[test]
fn no_wake_up_is_lost_between_threads() {
    for fences in ways() {
        let sides = Sides::new(fences);
        let outcome = std::thread::scope(|scope| {
            scope.spawn(move || sides.write());
            let reader = scope.spawn(move || {
                keep_to(0);
                sides.read()
            });
            reader.join().unwrap()
        });
        assert_eq!(outcome, Ok(()), "{fences:?}");
    }
}

#[test]
fn no_wake_up_is_lost_between_processes() {
    for fences in ways() {
        let sides = Sides::new(fences);
        // SAFETY: the child uses shared memory, its stack and system calls, and ends.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // The reader's barrier must reach this process, which is another one now.
            let reached = fences == Fences::Both || membarrier(REGISTER_GLOBAL_EXPEDITED);
            if reached {
                sides.write();
            }
            // SAFETY: ends the child, running nothing of the parent's.
            unsafe { libc::_exit(i32::from(!reached)) };
        }
        let reader = std::thread::spawn(move || {
            keep_to(0);
            sides.read()
        });
        let outcome = reader.join().unwrap();
        let mut status = 0;
        // SAFETY: a local to write to; our own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((outcome, status), (Ok(()), 0), "{fences:?}");
    }
}
