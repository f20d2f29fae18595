//! How long launches take, and how often progress is to be marked.

use crate::units::Micros;

/// Device time that a mark is wanted for.
const MARK_US: f64 = 500.0;
/// The same where it could not be told which of several launches had faulted, for so many launches.
const CLOSE_US: f64 = 100.0;
const CLOSE: u64 = 1024;
/// Weight of the past in the mean duration.
const SMOOTHING: f64 = 0.9;
/// Launches over which the mean duration is taken as well: some turns of most programs. Of twice
/// as many half are forgotten.
const LONG: u64 = 1 << 12;

/// The mean duration of launches, learned from progress.
#[derive(Debug)]
pub(crate) struct Pace {
    since: Micros,
    launch_us: f64,
    /// Launches of late and the time that they took, microseconds.
    long: (u64, u64),
    /// Launches for which marks are to come closer.
    close: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            since: Micros(0),
            launch_us: MARK_US,
            long: (0, 0),
            close: 0,
        }
    }
}

impl Pace {
    /// Most launches between marks.
    pub(crate) const MOST: u32 = 64;

    /// The device had nothing to do and got a launch.
    pub(crate) fn began(&mut self, now: Micros) {
        self.since = now;
    }

    /// The device passed some launches.
    pub(crate) fn passed(&mut self, now: Micros, launches: u64) {
        let each = now.0.saturating_sub(self.since.0) as f64 / launches as f64;
        // Many launches say more than one.
        let past = SMOOTHING.powi(launches.min(64) as i32);
        self.launch_us = past * self.launch_us + (1.0 - past) * each;
        let (count, us) = (
            self.long.0 + launches,
            self.long.1 + now.0.saturating_sub(self.since.0),
        );
        self.long = if count < 2 * LONG {
            (count, us)
        } else {
            (count / 2, us / 2)
        };
        self.since = now;
        self.close = self.close.saturating_sub(launches);
    }

    /// One of several launches faulted, and which is not known: marks between them would tell.
    pub(crate) fn blurred(&mut self) {
        self.close = CLOSE;
    }

    /// Mean time of a launch, microseconds.
    pub(crate) fn launch_us(&self) -> f64 {
        self.launch_us
    }

    /// Launches that the device gets through in a time, at most 1,024.
    pub(crate) fn launches_in(&self, us: f64) -> u32 {
        (us / self.launch_us.max(1.0)).ceil().clamp(0.0, 1024.0) as u32
    }

    /// The same by the mean over many launches, of which some may be much longer than others.
    pub(crate) fn launches_on_average(&self, us: f64) -> u32 {
        (us / self.long_us().max(1.0)).ceil().clamp(0.0, 1024.0) as u32
    }

    /// Mean time of a launch over many, microseconds.
    fn long_us(&self) -> f64 {
        let (count, us) = self.long;
        us as f64 / count.max(1) as f64
    }

    /// Microseconds since the device passed a launch, or got one when it had none.
    pub(crate) fn since_us(&self, now: Micros) -> u64 {
        now.0.saturating_sub(self.since.0)
    }

    /// Launches between marks that are put now, 1 to 64.
    pub(crate) fn mark_stride(&self) -> u32 {
        if self.close > 0 {
            self.marked_every(CLOSE_US)
        } else {
            self.stride()
        }
    }

    /// Launches between marks as a rule. Where launches are short for a while, long ones may follow
    /// at any time, and a mark between them tells where the program is: so it is the longer one of
    /// the two means that counts, and marks come twice as often at the most.
    pub(crate) fn stride(&self) -> u32 {
        self.marked_every(MARK_US)
    }

    fn marked_every(&self, us: f64) -> u32 {
        let mean_us = self.launch_us.max(self.long_us());
        (us / mean_us.max(1.0)).clamp(1.0, f64::from(Self::MOST)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_come_about_every_half_millisecond() {
        let mut pace = Pace::default();
        for turn in 1..100 {
            pace.passed(Micros(turn * 400), 8);
        }
        assert_eq!(pace.stride(), 10);
        for turn in 1..100 {
            pace.passed(Micros(40_000 + turn * 5_000), 1);
        }
        assert_eq!(pace.stride(), 1);
    }

    #[test]
    fn marks_come_closer_while_it_is_not_known_which_launch_faults() {
        let mut pace = Pace::default();
        for turn in 1..100 {
            pace.passed(Micros(turn * 320), 8);
        }
        pace.blurred();
        assert_eq!((pace.mark_stride(), pace.stride()), (2, 12));
        pace.passed(Micros(31_680 + 40 * 1023), 1023);
        assert_eq!(pace.mark_stride(), 2);
        pace.passed(Micros(31_680 + 40 * 1024), 1);
        assert_eq!(pace.mark_stride(), 12);
    }

    #[test]
    fn short_launches_after_long_ones_leave_marks_close() {
        let mut pace = Pace::default();
        let mut now = 0;
        for _turn in 0..4 {
            for _long in 0..100 {
                now += 2_000;
                pace.passed(Micros(now), 1);
            }
            for _short in 0..10 {
                now += 10 * 8;
                pace.passed(Micros(now), 8);
            }
            assert!(pace.launch_us() < 11.0, "{}", pace.launch_us());
            assert_eq!(pace.stride(), 1, "long ones come next");
        }
        for _short in 0..1 << 14 {
            now += 10;
            pace.passed(Micros(now), 1);
        }
        assert!(
            pace.stride() > 8,
            "long ones come no more: {}",
            pace.stride()
        );
    }
}
