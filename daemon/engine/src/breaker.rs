//! The circuit breaker: stops prefetching where prefetches do not help.
//!
//! Owns the judgement alone. It looks at windows of prefetched bytes; a window in which
//! most of them were wasted opens it, or two in a row where prefetches have helped before.
//! Open, it stays so for a while that doubles each time, then lets a little through to see.
//! The while is measured by what launches moved by their faults, so that trials cost a small
//! share of that, and by launches, so that one that moves little tries again too.
//!
//! A late prefetch is no reason: it moved what was needed, and sooner than the fault would
//! have. Where the link is the bottleneck every prefetch is late, and stopping them would
//! leave the link idle between faults.
//!
//! Trust is earned: what has not shown yet whether it helps is limited to a start and as
//! much again as has helped so far. A program that nobody can predict loses little before
//! that is seen; one that repeats itself doubles the limit with every round. What an earlier
//! run of the program earned counts as well, until it is disappointed.

use crate::stats::BreakerState;
use crate::units::BLOCK_BYTES;
use crate::usefulness::Usefulness;

/// Prefetched bytes, decided to be of use or not, that a judgement needs.
const WINDOW_BYTES: u64 = 64 * BLOCK_BYTES;
/// Or one in so many blocks of the device, where that is more: a burst of bad luck shall not
/// open it.
const WINDOW_SHARE: u64 = 8;
/// The same when trying again, and while nothing has helped yet.
const TRIAL_BYTES: u64 = 16 * BLOCK_BYTES;
/// Prefetched bytes of which nothing is known yet that are allowed from the start,
const START_BYTES: u64 = 32 * BLOCK_BYTES;
/// or one in so many blocks of the device, where that is more.
const START_SHARE: u64 = 16;
/// Launches that it stays open at first, and at most.
const OPEN_LAUNCHES: (u64, u64) = (256, 1 << 16);
/// Or until faults have moved so many times the bytes of a trial; longer as the launches are.
const OPEN_TRIALS: u64 = 64;

/// Bytes of which nothing is known yet that are allowed from the start on a device of so many
/// blocks.
pub(crate) fn start_bytes(capacity_blocks: u64) -> u64 {
    START_BYTES.max(capacity_blocks / START_SHARE * BLOCK_BYTES)
}

/// Judges prefetches.
#[derive(Debug)]
pub(crate) struct Breaker {
    state: BreakerState,
    mark: Usefulness,
    /// Issued bytes at which a trial must wait for its judgement.
    trial_end: u64,
    reopen_at: u64,
    /// Or once faults have moved so much, bytes.
    reopen_faulted: u64,
    open_launches: u64,
    /// The last window was bad.
    suspect: bool,
    opened: u64,
    /// Bytes that an earlier run vouches for.
    credit_bytes: u64,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            state: BreakerState::Closed,
            mark: Usefulness::default(),
            trial_end: 0,
            reopen_at: 0,
            reopen_faulted: 0,
            open_launches: OPEN_LAUNCHES.0,
            suspect: false,
            opened: 0,
            credit_bytes: 0,
        }
    }
}

impl Breaker {
    pub(crate) fn state(&self) -> BreakerState {
        self.state
    }

    /// How often it opened.
    pub(crate) fn opened(&self) -> u64 {
        self.opened
    }

    /// May a prefetch be issued now?
    pub(crate) fn allows(&self, so_far: &Usefulness, capacity_blocks: u64) -> bool {
        match self.state {
            BreakerState::Closed => {
                let start = start_bytes(capacity_blocks);
                let credit = self.credit_bytes.min(capacity_blocks * BLOCK_BYTES);
                so_far.undecided_bytes() < start + credit + so_far.helpful_bytes()
            }
            BreakerState::Open => false,
            BreakerState::HalfOpen => so_far.issued_bytes < self.trial_end,
        }
    }

    /// In an earlier run so many prefetched bytes helped, and so many did not.
    pub(crate) fn vouch(&mut self, helpful_bytes: u64, wasted_bytes: u64) {
        if wasted_bytes.saturating_mul(4) <= helpful_bytes {
            self.credit_bytes = helpful_bytes;
        }
    }

    /// Looks at what became of prefetches until the device came to launch `position` and
    /// faults had moved `faulted` bytes.
    pub(crate) fn judge(
        &mut self,
        (position, faulted): (u64, u64),
        so_far: &Usefulness,
        capacity_blocks: u64,
    ) {
        let window_bytes = if so_far.helpful_bytes() < TRIAL_BYTES {
            TRIAL_BYTES
        } else {
            WINDOW_BYTES.max(capacity_blocks / WINDOW_SHARE * BLOCK_BYTES)
        };
        let window = so_far.since(&self.mark);
        let bad = window.wasted_bytes;
        let decided = bad + window.late_bytes + window.useful_bytes;
        match self.state {
            BreakerState::Closed if decided >= window_bytes => {
                self.mark = *so_far;
                let served = so_far.helpful_bytes() > 2 * so_far.wasted_bytes;
                if bad * 2 > decided {
                    if self.suspect || !served {
                        self.open(position, faulted);
                    } else {
                        self.suspect = true;
                    }
                } else {
                    self.suspect = false;
                    if bad * 10 < decided * 2 {
                        self.open_launches = OPEN_LAUNCHES.0;
                    }
                }
            }
            BreakerState::Open if position >= self.reopen_at || faulted >= self.reopen_faulted => {
                self.state = BreakerState::HalfOpen;
                self.mark = *so_far;
                self.trial_end = so_far.issued_bytes + TRIAL_BYTES;
            }
            BreakerState::HalfOpen if decided * 4 >= TRIAL_BYTES * 3 => {
                self.mark = *so_far;
                if bad * 2 > decided {
                    self.open(position, faulted);
                } else {
                    self.state = BreakerState::Closed;
                }
            }
            _ => {}
        }
    }

    fn open(&mut self, position: u64, faulted: u64) {
        self.state = BreakerState::Open;
        self.credit_bytes = 0;
        self.suspect = false;
        self.opened += 1;
        self.reopen_at = position + self.open_launches;
        let trials = OPEN_TRIALS * (self.open_launches / OPEN_LAUNCHES.0);
        self.reopen_faulted = faulted + trials * TRIAL_BYTES;
        self.open_launches = (self.open_launches * 2).min(OPEN_LAUNCHES.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(useful: u64, wasted: u64) -> Usefulness {
        Usefulness {
            issued_bytes: (useful + wasted) * BLOCK_BYTES,
            useful_bytes: useful * BLOCK_BYTES,
            wasted_bytes: wasted * BLOCK_BYTES,
            ..Usefulness::default()
        }
    }

    #[test]
    fn wasted_prefetches_open_it_and_useful_ones_do_not() {
        let mut breaker = Breaker::default();
        breaker.judge((1, 0), &after(60, 10), 128);
        assert_eq!(breaker.state(), BreakerState::Closed);
        breaker.judge((2, 0), &after(70, 100), 128);
        assert_eq!((breaker.state(), breaker.opened()), (BreakerState::Open, 1));
        assert!(!breaker.allows(&after(70, 100), 128));
    }

    #[test]
    fn one_bad_window_says_little_of_a_program_that_was_served_well() {
        let mut breaker = Breaker::default();
        breaker.judge((1, 0), &after(300, 10), 128);
        breaker.judge((2, 0), &after(300, 80), 128);
        assert_eq!(breaker.state(), BreakerState::Closed);
        breaker.judge((3, 0), &after(370, 80), 128);
        breaker.judge((4, 0), &after(370, 150), 128);
        assert_eq!(breaker.state(), BreakerState::Closed, "not two in a row");
        breaker.judge((5, 0), &after(370, 220), 128);
        assert_eq!(breaker.state(), BreakerState::Open);
    }

    #[test]
    fn it_tries_again_once_faults_have_moved_much_more_than_a_trial_costs() {
        let mut breaker = Breaker::default();
        breaker.judge((1, 1 << 30), &after(0, 64), 128);
        assert_eq!(breaker.state(), BreakerState::Open);
        let enough = (1 << 30) + OPEN_TRIALS * TRIAL_BYTES;
        breaker.judge((2, enough - 1), &after(0, 64), 128);
        assert_eq!(breaker.state(), BreakerState::Open);
        breaker.judge((3, enough), &after(0, 64), 128);
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
    }

    #[test]
    fn what_has_not_shown_its_use_is_limited_by_what_has() {
        let breaker = Breaker::default();
        let undecided = |useful, undecided| Usefulness {
            issued_bytes: (useful + undecided) * BLOCK_BYTES,
            ..after(useful, 0)
        };
        assert!(breaker.allows(&undecided(0, 31), 128));
        assert!(!breaker.allows(&undecided(0, 32), 128));
        assert!(breaker.allows(&undecided(32, 63), 128));
        assert!(!breaker.allows(&undecided(32, 64), 128));
        assert!(breaker.allows(&undecided(0, 63), 1024), "a large device");
    }

    #[test]
    fn where_nothing_ever_helped_it_opens_early() {
        let mut breaker = Breaker::default();
        breaker.judge((1, 0), &after(1, 14), 1 << 16);
        assert_eq!(breaker.state(), BreakerState::Closed);
        breaker.judge((2, 0), &after(1, 15), 1 << 16);
        assert_eq!(breaker.state(), BreakerState::Open);
    }

    #[test]
    fn an_earlier_run_vouches_for_as_much_as_fits_until_it_is_disappointed() {
        let issued = |blocks: u64| Usefulness {
            issued_bytes: blocks * BLOCK_BYTES,
            ..Usefulness::default()
        };
        let mut breaker = Breaker::default();
        breaker.vouch(40 * BLOCK_BYTES, 11 * BLOCK_BYTES);
        assert!(!breaker.allows(&issued(32), 128), "too much was wasted");
        breaker.vouch(1_000 * BLOCK_BYTES, 0);
        assert!(breaker.allows(&issued(128 + 31), 128));
        assert!(!breaker.allows(&issued(128 + 32), 128));
        breaker.judge((0, 0), &after(0, 64), 128);
        breaker.judge((1 << 20, 0), &after(0, 64), 128);
        breaker.judge((1 << 20, 0), &after(16, 64), 128);
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert!(!breaker.allows(&issued(32), 128));
    }

    #[test]
    fn late_ones_do_not_open_it() {
        let mut breaker = Breaker::default();
        let late = Usefulness {
            late_bytes: 200 * BLOCK_BYTES,
            ..after(10, 30)
        };
        breaker.judge((1, 0), &late, 128);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn it_tries_again_with_little_and_closes_when_that_helps() {
        let mut breaker = Breaker::default();
        breaker.judge((1, 0), &after(0, 64), 128);
        breaker.judge((100, 0), &after(0, 64), 128);
        assert_eq!(breaker.state(), BreakerState::Open);
        breaker.judge((300, 0), &after(0, 64), 128);
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        assert!(breaker.allows(&after(0, 64), 128));
        assert!(!breaker.allows(&after(16, 64), 128), "a trial is short");
        breaker.judge((301, 0), &after(16, 64), 128);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn each_failed_trial_doubles_the_wait() {
        let mut breaker = Breaker::default();
        breaker.judge((0, 0), &after(0, 64), 128);
        breaker.judge((256, 0), &after(0, 64), 128);
        breaker.judge((257, 0), &after(0, 80), 128);
        assert_eq!((breaker.state(), breaker.opened()), (BreakerState::Open, 2));
        breaker.judge((257 + 511, 0), &after(0, 80), 128);
        assert_eq!(breaker.state(), BreakerState::Open);
        breaker.judge((257 + 512, 0), &after(0, 80), 128);
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
    }
}
