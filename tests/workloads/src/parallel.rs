//! Running a reference on all processors, with the best vector instructions at hand.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Processors that this process may use.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Sum of `item(0)` to `item(count - 1)`, wrapping, computed side by side.
pub fn sum(count: usize, item: impl Fn(usize) -> u64 + Sync) -> u64 {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut sum = 0u64;
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return sum;
            }
            sum = sum.wrapping_add(item(index));
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..processors().min(count))
            .map(|_| scope.spawn(worker))
            .collect();
        let mine = worker();
        others
            .into_iter()
            .fold(mine, |sum, other| match other.join() {
                Ok(part) => sum.wrapping_add(part),
                Err(panic) => std::panic::resume_unwind(panic),
            })
    })
}

/// Runs `work` on each part side by side; the parts hold what each may write.
pub fn for_each<P: Send>(parts: Vec<P>, work: impl Fn(P) + Sync) {
    std::thread::scope(|scope| {
        for part in parts {
            scope.spawn(|| work(part));
        }
    });
}

/// Runs `work` compiled for AVX2 where the processor has it. `work` must be small enough
/// to be inlined, or it runs as compiled for any processor.
#[inline(always)]
pub fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        /// # Safety
        ///
        /// Only on a processor with AVX2.
        #[target_feature(enable = "avx2")]
        unsafe fn avx2<R>(work: impl FnOnce() -> R) -> R {
            work()
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the feature is there.
            return unsafe { avx2(work) };
        }
    }
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_covers_every_item_once() {
        assert_eq!(sum(1000, |i| i as u64), 499_500);
        assert_eq!(sum(0, |_| 1), 0);
    }

    #[test]
    fn parts_are_all_worked_on() {
        let mut values = vec![0; 10];
        for_each(values.chunks_mut(3).collect(), |part| part.fill(7));
        assert_eq!(values, [7; 10]);
    }
}
