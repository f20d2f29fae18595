//! A futex lock for table writers.
//!
//! Private to the process and never taken on the launch path. `pthread_mutex` would do,
//! but its layout is the C library's own.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;
/// Looks before sleeping; what is done under the lock takes a microsecond or less.
const SPINS: u32 = 200;

/// A value that one thread at a time may use.
#[derive(Debug)]
pub struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands the value to one thread at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// An open lock around `value`.
    pub const fn new(value: T) -> Self {
        Self {
            state: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> Guard<'_, T> {
        let mut spins = 0;
        while !self.take(HELD) {
            spins += 1;
            if spins < SPINS {
                core::hint::spin_loop();
                continue;
            }
            while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
                self.futex(libc::FUTEX_WAIT, CONTENDED);
            }
            break;
        }
        Guard { lock: self }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.take(HELD).then_some(Guard { lock: self })
    }

    fn take(&self, state: u32) -> bool {
        self.state
            .compare_exchange(FREE, state, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    fn futex(&self, operation: libc::c_int, value: u32) {
        // SAFETY: the word outlives the call; the kernel only compares it.
        unsafe {
            let errno = *libc::__errno_location();
            libc::syscall(
                libc::SYS_futex,
                self.state.as_ptr(),
                operation | libc::FUTEX_PRIVATE_FLAG,
                value,
                ptr::null::<libc::timespec>(),
            );
            *libc::__errno_location() = errno;
        }
    }
}

/// The lock is held while this lives.
#[derive(Debug)]
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so this thread holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard exists, so this thread alone holds the lock.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if self.lock.state.swap(FREE, Ordering::Release) == CONTENDED {
            self.lock.futex(libc::FUTEX_WAKE, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_holds_it() {
        let lock = Lock::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let mut value = lock.lock();
                        let seen = *value;
                        core::hint::black_box(&seen);
                        *value = seen + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 80_000);
    }

    #[test]
    fn a_held_lock_is_not_taken_again() {
        let lock = Lock::new(());
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert!(lock.try_lock().is_some());
    }
}
