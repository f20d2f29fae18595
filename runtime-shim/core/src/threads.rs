//! Which thread is inside of which stream slots at this moment.
//!
//! Owns a cell for each thread that ever entered, found by the thread's pointer and written
//! by that thread alone, so that entering and leaving are plain stores. What being inside
//! promises is [`crate::streams`]'s.
//!
//! Who takes shared memory away must see everyone who might still use it: an entering
//! thread stores that it is inside, then looks at what there is; the other takes it away,
//! then looks who is inside. Between its two steps the rare one has every thread of the
//! process execute a full fence (`membarrier(2)`, private and expedited), so the frequent
//! one need only keep its compiler from exchanging them. Until [`Threads::rely_on_barrier`]
//! says that the kernel can, entering executes the fence itself.
//!
//! A thread that finds no cell, or is inside too deeply, is counted under its slot by full
//! operations: the same at a higher price.

use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use core::sync::atomic::{compiler_fence, fence};

use oversub_protocol::layout::{CacheLine, STREAM_SLOTS};

/// Cells, a power of two.
const CELLS: usize = 256;
/// Consecutive cells in which a thread's may be.
const WINDOW: usize = 8;
/// A slot that a thread is inside of takes so many bits of its cell: the slot plus one.
const LEVEL_BITS: u32 = 8;
/// The highest of them is in use: no deeper.
const DEEPEST: u64 = 0xff << (u64::BITS - LEVEL_BITS);

const _: () = assert!(STREAM_SLOTS < 1 << LEVEL_BITS);

#[derive(Debug)]
struct Cell {
    /// The thread's pointer; 0: no one's. Never changes again: a later thread at the same
    /// place in memory is its heir.
    owner: AtomicU64,
    /// A stack of slots, the innermost lowest; 0: inside of none.
    inside: AtomicU64,
}

/// All threads.
#[derive(Debug)]
pub struct Threads {
    cells: [CacheLine<Cell>; CELLS],
    /// Numbers of the cells that have owners, plus one, in the order of their taking.
    taken: [AtomicU16; CELLS],
    count: AtomicU32,
    /// The kernel makes the fence that entering leaves out.
    barrier: AtomicBool,
    /// Threads without a cell, by slot.
    others: CacheLine<[AtomicU64; STREAM_SLOTS]>,
}

/// The calling thread is inside of a slot while this lives.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The own cell's stack, or the slot's count of others.
    place: &'a AtomicU64,
    /// What the stack was before, or [`COUNTED`].
    before: u64,
}

/// No stack that a thread enters upon: it would be too deep.
const COUNTED: u64 = u64::MAX;

impl Default for Threads {
    fn default() -> Self {
        Self::new()
    }
}

impl Threads {
    /// No one is inside.
    pub const fn new() -> Self {
        Self {
            cells: [const {
                CacheLine(Cell {
                    owner: AtomicU64::new(0),
                    inside: AtomicU64::new(0),
                })
            }; CELLS],
            taken: [const { AtomicU16::new(0) }; CELLS],
            count: AtomicU32::new(0),
            barrier: AtomicBool::new(false),
            others: CacheLine([const { AtomicU64::new(0) }; STREAM_SLOTS]),
        }
    }

    /// Whether who takes something away makes a barrier, from now on. To be said before
    /// there is anything to take away.
    pub fn rely_on_barrier(&self, can: bool) {
        self.barrier.store(can, Ordering::SeqCst);
    }

    /// Whether entering leaves its fence to a barrier.
    pub fn relies_on_barrier(&self) -> bool {
        self.barrier.load(Ordering::SeqCst)
    }

    /// Enters `slot`. Whatever is loaded afterwards is loaded after everyone can see that,
    /// if they make the barrier.
    #[inline]
    pub fn enter(&self, slot: u8) -> Entry<'_> {
        let pointer = thread_pointer();
        let CacheLine(first) = &self.cells[start_of(pointer)];
        let found = if first.owner.load(Ordering::Relaxed) == pointer {
            Some(first)
        } else {
            self.find_or_claim(pointer)
        };
        let Some(cell) = found else {
            return self.enter_counted(slot);
        };
        let before = cell.inside.load(Ordering::Relaxed);
        if before & DEEPEST != 0 {
            return self.enter_counted(slot);
        }
        let now = before << LEVEL_BITS | level(slot);
        cell.inside.store(now, Ordering::Relaxed);
        if self.barrier.load(Ordering::Relaxed) {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
        Entry {
            place: &cell.inside,
            before,
        }
    }

    #[inline(never)]
    fn find_or_claim(&self, pointer: u64) -> Option<&Cell> {
        let first = start_of(pointer);
        for step in 0..WINDOW {
            let CacheLine(cell) = &self.cells[(first + step) % CELLS];
            if cell.owner.load(Ordering::Relaxed) == pointer {
                return Some(cell);
            }
        }
        for step in 0..WINDOW {
            let index = (first + step) % CELLS;
            let CacheLine(cell) = &self.cells[index];
            let (free, mine) = (Ordering::SeqCst, Ordering::Relaxed);
            if cell.owner.compare_exchange(0, pointer, free, mine).is_ok() {
                let count = self.count.fetch_add(1, Ordering::SeqCst) as usize;
                if let Some(taken) = self.taken.get(count) {
                    taken.store(index as u16 + 1, Ordering::SeqCst);
                }
                return Some(cell);
            }
        }
        None
    }

    #[cold]
    fn enter_counted(&self, slot: u8) -> Entry<'_> {
        let place = &self.others.0[usize::from(slot) % STREAM_SLOTS];
        place.fetch_add(1, Ordering::SeqCst);
        Entry {
            place,
            before: COUNTED,
        }
    }

    /// No thread is inside of `slot`, but for `own`, which is.
    pub fn is_empty_but_for(&self, slot: u8, own: Option<&Entry<'_>>) -> bool {
        let own_place = own.map(|own| own.place);
        let counted = u64::from(own.is_some_and(|own| own.before == COUNTED));
        if self.others.0[usize::from(slot) % STREAM_SLOTS].load(Ordering::SeqCst) != counted {
            return false;
        }
        let count = self.count.load(Ordering::SeqCst) as usize;
        self.taken.iter().take(count).all(|taken| {
            // Still 0: its owner has not entered yet.
            let Some(index) = usize::from(taken.load(Ordering::SeqCst)).checked_sub(1) else {
                return true;
            };
            let CacheLine(cell) = &self.cells[index % CELLS];
            let is_own = own_place.is_some_and(|own| core::ptr::eq(own, &raw const cell.inside));
            times_inside(cell.inside.load(Ordering::SeqCst), slot) == u32::from(is_own)
        })
    }
}

impl Drop for Entry<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.before == COUNTED {
            self.place.fetch_sub(1, Ordering::SeqCst);
        } else {
            self.place.store(self.before, Ordering::Release);
        }
    }
}

#[inline]
fn level(slot: u8) -> u64 {
    u64::from(slot) % STREAM_SLOTS as u64 + 1
}

fn times_inside(mut stack: u64, slot: u8) -> u32 {
    let mut times = 0;
    while stack != 0 {
        times += u32::from(stack % (1 << LEVEL_BITS) == level(slot));
        stack >>= LEVEL_BITS;
    }
    times
}

#[inline]
fn start_of(pointer: u64) -> usize {
    (pointer.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % CELLS
}

/// What tells threads apart that run at the same time: the address of the C library's own
/// record of the calling one. There is no thread-local storage here to keep a name in.
#[inline]
fn thread_pointer() -> u64 {
    let pointer: u64;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the first word of the record is its own address (System V ABI, thread-local
    // storage for x86-64, "variant II").
    unsafe {
        core::arch::asm!(
            "mov {}, qword ptr fs:[0]",
            out(reg) pointer,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a register that user space may read.
    unsafe {
        core::arch::asm!(
            "mrs {}, tpidr_el0",
            out(reg) pointer,
            options(nomem, nostack, preserves_flags),
        );
    }
    pointer
}

#[cfg(test)]
mod tests;
