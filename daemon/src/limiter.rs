//! Keeps messages that clients can cause from filling the log.

use std::sync::Mutex;

use crate::clock;

/// Lets a few messages a second through and counts the others.
#[derive(Debug)]
pub struct Limiter {
    state: Mutex<State>,
    per_second: u32,
}

#[derive(Debug, Default)]
struct State {
    second: u64,
    passed: u32,
    suppressed: u64,
}

impl Limiter {
    /// At most so many a second.
    pub const fn new(per_second: u32) -> Self {
        Self {
            state: Mutex::new(State {
                second: 0,
                passed: 0,
                suppressed: 0,
            }),
            per_second,
        }
    }

    /// `Some`: say it, and that so many like it were not said before. `None`: do not.
    pub fn admit(&self) -> Option<u64> {
        self.admit_at(clock::now().0 / 1_000_000)
    }

    fn admit_at(&self, second: u64) -> Option<u64> {
        let mut state = self.state.lock().ok()?;
        if state.second != second {
            state.second = second;
            state.passed = 0;
        }
        if state.passed == self.per_second {
            state.suppressed += 1;
            return None;
        }
        state.passed += 1;
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::Limiter;

    #[test]
    fn what_is_beyond_the_rate_is_counted_and_told_with_the_next() {
        let limiter = Limiter::new(2);
        assert_eq!(limiter.admit_at(7), Some(0));
        assert_eq!(limiter.admit_at(7), Some(0));
        assert_eq!(limiter.admit_at(7), None);
        assert_eq!(limiter.admit_at(7), None);
        assert_eq!(limiter.admit_at(8), Some(2));
        assert_eq!(limiter.admit_at(8), Some(0));
    }
}
