//! How long launches take, and how often progress is to be marked.

use crate::units::Micros;

/// Device time that a mark is wanted for.
const MARK_US: f64 = 500.0;
/// Weight of the past in the mean duration.
const SMOOTHING: f64 = 0.9;
/// The mean duration of launches, learned from progress.
#[derive(Debug)]
pub(crate) struct Pace {
    since: Micros,
    launch_us: f64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            since: Micros(0),
            launch_us: MARK_US,
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
        self.since = now;
    }

    /// Mean time of a launch, microseconds.
    pub(crate) fn launch_us(&self) -> f64 {
        self.launch_us
    }

    /// Launches that the device gets through in a time, at most 1,024.
    pub(crate) fn launches_in(&self, us: f64) -> u32 {
        (us / self.launch_us.max(1.0)).ceil().clamp(0.0, 1024.0) as u32
    }

    /// Launches between marks, 1 to 64.
    pub(crate) fn stride(&self) -> u32 {
        (MARK_US / self.launch_us.max(1.0)).clamp(1.0, f64::from(Self::MOST)) as u32
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
}
