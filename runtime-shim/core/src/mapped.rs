//! Memory for tables: mapped from the kernel, zeroed, never given back.
//!
//! The program's allocator is never asked: it may be what called us.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};

/// Types for which all bytes zero are a valid value.
///
/// # Safety
/// It is so.
pub unsafe trait Zeroable {}

// SAFETY: integers and atomics of integers.
unsafe impl Zeroable for u8 {}
// SAFETY: as above.
unsafe impl Zeroable for u32 {}
// SAFETY: as above.
unsafe impl Zeroable for core::sync::atomic::AtomicU32 {}
// SAFETY: as above.
unsafe impl Zeroable for core::sync::atomic::AtomicU64 {}

/// Maps `count` zeroed values; pages are only taken when touched. `None`: the kernel refused.
pub fn map<T: Zeroable>(count: usize) -> Option<NonNull<T>> {
    let bytes = count.checked_mul(size_of::<T>())?;
    // SAFETY: a fresh anonymous mapping touches no existing memory.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        None
    } else {
        NonNull::new(address.cast())
    }
}

/// A fixed-size table that is mapped at its first use by a writer.
#[derive(Debug)]
pub struct LazyTable<T, const N: usize> {
    start: AtomicPtr<T>,
}

impl<T: Zeroable + Sync, const N: usize> LazyTable<T, N> {
    /// Not mapped yet.
    pub const fn new() -> Self {
        Self {
            start: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The entries, if any were ever written.
    #[inline]
    pub fn get(&self) -> Option<&[T]> {
        let start = NonNull::new(self.start.load(Ordering::Acquire))?;
        // SAFETY: `get_or_map` published a mapping of N zeroed values that is never unmapped.
        Some(unsafe { core::slice::from_raw_parts(start.as_ptr(), N) })
    }

    /// The entries, mapped now if need be. `None`: the kernel refused. Callers hold a lock
    /// that makes them the only one.
    pub fn get_or_map(&self) -> Option<&[T]> {
        if self.start.load(Ordering::Acquire).is_null() {
            self.start.store(map::<T>(N)?.as_ptr(), Ordering::Release);
        }
        self.get()
    }
}

impl<T: Zeroable + Sync, const N: usize> Default for LazyTable<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

/// A fixed-size table with one owner, mapped at its first use.
#[derive(Debug)]
pub struct Slab<T, const N: usize> {
    start: Option<NonNull<T>>,
}

// SAFETY: the slab owns its mapping as a vector owns its buffer.
unsafe impl<T: Send, const N: usize> Send for Slab<T, N> {}

impl<T: Zeroable, const N: usize> Slab<T, N> {
    /// Not mapped yet.
    pub const fn new() -> Self {
        Self { start: None }
    }

    /// Maps the table if need be. `false`: the kernel refused.
    pub fn ensure(&mut self) -> bool {
        if self.start.is_none() {
            self.start = map::<T>(N);
        }
        self.start.is_some()
    }

    /// All entries; none before [`Slab::ensure`].
    pub fn all(&self) -> &[T] {
        match self.start {
            // SAFETY: a mapping of N zeroed values, shared while `self` is borrowed.
            Some(start) => unsafe { core::slice::from_raw_parts(start.as_ptr(), N) },
            None => &[],
        }
    }

    /// All entries; none before [`Slab::ensure`].
    pub fn all_mut(&mut self) -> &mut [T] {
        match self.start {
            // SAFETY: a mapping of N zeroed values, exclusive while `self` is borrowed.
            Some(start) => unsafe { core::slice::from_raw_parts_mut(start.as_ptr(), N) },
            None => &mut [],
        }
    }
}

impl<T: Zeroable, const N: usize> Default for Slab<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const N: usize> Drop for Slab<T, N> {
    fn drop(&mut self) {
        if let Some(start) = self.start {
            // SAFETY: the mapping is ours and no borrow of it outlives the slab.
            unsafe { libc::munmap(start.as_ptr().cast(), N * size_of::<T>()) };
        }
    }
}
