//! When a thread that waits for the device to come nearer gives up.

use core::sync::atomic::{AtomicU64, Ordering};

/// A device that has made no progress for so long is not waited for, nanoseconds.
const STUCK_NS: u64 = 200_000_000;
/// Launches without a wait after the first time, and so many times as many after each other time.
const FIRST: u64 = 1 << 12;
const TIMES: u64 = 4;

/// One wait, as far as it has come.
#[derive(Debug)]
pub struct Look {
    word: Option<u32>,
    since_ns: u64,
}

impl Look {
    /// It begins.
    pub const fn new(now_ns: u64) -> Self {
        Self {
            word: None,
            since_ns: now_ns,
        }
    }

    /// The device says `word` now, and has said nothing else for too long.
    pub fn is_stuck(&mut self, word: u32, now_ns: u64) -> bool {
        if self.word != Some(word) {
            (self.word, self.since_ns) = (Some(word), now_ns);
        }
        now_ns.saturating_sub(self.since_ns) > STUCK_NS
    }
}

/// Whether anybody waits, after waits that were in vain.
#[derive(Debug)]
pub struct Patience {
    /// Up to this number of a launch nobody does.
    until: AtomicU64,
    launches: AtomicU64,
}

impl Default for Patience {
    fn default() -> Self {
        Self::new()
    }
}

impl Patience {
    /// No wait was in vain yet.
    pub const fn new() -> Self {
        Self {
            until: AtomicU64::new(0),
            launches: AtomicU64::new(FIRST),
        }
    }

    /// Nobody waits after the launch of this number.
    pub fn is_lost(&self, number: u64) -> bool {
        number < self.until.load(Ordering::Relaxed)
    }

    /// A wait was in vain, after the launch of this number.
    pub fn lose(&self, number: u64) {
        if self.is_lost(number) {
            // Another thread has seen the same.
            return;
        }
        let launches = self.launches.load(Ordering::Relaxed);
        self.until
            .store(number.saturating_add(launches), Ordering::Relaxed);
        let more = launches.saturating_mul(TIMES);
        self.launches.store(more, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_makes_progress_is_waited_for_however_long_it_takes() {
        let mut look = Look::new(0);
        for mark in 1..100_u32 {
            let now_ns = u64::from(mark) * (STUCK_NS - 1);
            assert!(!look.is_stuck(mark, now_ns), "mark {mark}");
        }
    }

    #[test]
    fn one_that_makes_none_is_given_up() {
        let mut look = Look::new(1_000);
        assert!(!look.is_stuck(7, 2_000));
        assert!(!look.is_stuck(7, 2_000 + STUCK_NS));
        assert!(look.is_stuck(7, 2_001 + STUCK_NS));
    }

    #[test]
    fn waits_in_vain_become_ever_more_seldom() {
        let patience = Patience::new();
        assert!(!patience.is_lost(0));
        patience.lose(10);
        patience.lose(11);
        assert!(patience.is_lost(9 + FIRST) && !patience.is_lost(10 + FIRST));
        patience.lose(10 + FIRST);
        let until = 10 + FIRST + TIMES * FIRST;
        assert!(patience.is_lost(until - 1) && !patience.is_lost(until));
    }
}
