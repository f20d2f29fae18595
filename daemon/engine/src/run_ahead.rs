//! How far the program may run ahead of the device.
//!
//! Content that the program gave back can be dropped only until its memory is handed out again:
//! what is queued by then may write there at any time. A program that launches far ahead of the
//! device is handed out again what died a moment ago before the device gets to its death, so
//! there never is a time at which it could be dropped: it is moved to the host and back, though
//! nobody will read it. Where much of what leaves is such, and the program repeats itself, so that
//! what it launches is known without its having done so, it had better wait with its launches.
//!
//! Owns the decision. The program never has to wait: it does so as long as the device makes
//! progress, and the device has as much to do as it gets through in tens of milliseconds.

use crate::pace::Pace;
use crate::units::{BLOCK_BYTES, Micros};
use crate::world::World;

/// The device is left so much to do at least, microseconds: what the link moves meanwhile is a
/// multiple of what is under way at a time.
const LEAST_US: f64 = 50_000.0;
/// And so many launches.
const LEAST_LAUNCHES: u32 = 4;
/// Nobody launches much further ahead anyway (CUDA's queues hold some 1,024 launches).
const MOST_LAUNCHES: u32 = 1000;
/// One in so many bytes that left was of no use.
const SHARE: u64 = 20;
/// Launches that come again before it is believed.
const HELD: u64 = 2;
/// The device is looked at for so long, microseconds: it may have nothing to do for this share of
/// the time.
const LOOK_US: u64 = 1_000_000;
const IDLE: f64 = 0.01;

/// Whether the program waits, and how near the device it then is.
#[derive(Debug)]
pub(crate) struct RunAhead {
    pays: bool,
    least_us: f64,
    launches: Option<u32>,
    /// Since when the device is looked at, and for how long it had nothing to do since then.
    since: Micros,
    idle_us: u64,
}

impl Default for RunAhead {
    fn default() -> Self {
        Self {
            pays: false,
            least_us: LEAST_US,
            launches: None,
            since: Micros(0),
            idle_us: 0,
        }
    }
}

impl RunAhead {
    /// Most launches that the program may be ahead of the device; none where any number is right.
    pub(crate) fn launches(&self) -> Option<u32> {
        self.launches
    }

    /// The device had nothing to do for so long.
    pub(crate) fn idled(&mut self, us: u64) {
        self.idle_us += us;
    }

    /// Looks at what left the device.
    pub(crate) fn consider(&mut self, now: Micros, world: &World, pace: &Pace) {
        let repeats = world.history.lag().is_some() && world.history.held() >= HELD;
        let drops = world.discard && !world.remote && !world.without.feedback;
        let left = &world.left;
        let much = left.bytes >= world.capacity / 8 * BLOCK_BYTES;
        self.look(now, drops && repeats && world.was_full, || {
            much && left.useless_bytes.saturating_mul(SHARE) >= left.bytes
        });
        self.launches = self.near(pace);
    }

    /// How near the device the program is kept, if it is.
    fn near(&self, pace: &Pace) -> Option<u32> {
        let launches = pace.launches_on_average(self.least_us);
        let least = LEAST_LAUNCHES.max(4 * pace.stride());
        (self.pays && launches < MOST_LAUNCHES).then(|| launches.max(least))
    }

    /// `can`: it could pay. `useless`: it would, by what left of late. Once it does, little that
    /// is useless leaves.
    fn look(&mut self, now: Micros, can: bool, useless: impl FnOnce() -> bool) {
        self.pays = can && (self.pays || useless());
        let passed_us = now.0.saturating_sub(self.since.0);
        if passed_us < LOOK_US {
            return;
        }
        // Others than the device hold the program up: it has to get further ahead while it can.
        if self.pays && self.idle_us as f64 > IDLE * passed_us as f64 {
            self.least_us *= 2.0;
        }
        (self.since, self.idle_us) = (now, 0);
    }
}

/// What left the device of late.
#[derive(Debug, Default)]
pub(crate) struct Left {
    pub bytes: u64,
    /// Of these, what nobody will read: dead, or handed out again by a host that is ahead of the
    /// device, and not written since.
    pub useless_bytes: u64,
}

impl Left {
    /// So many bytes left a device of so many blocks.
    pub(crate) fn count(&mut self, bytes: u64, useless: bool, capacity: u64) {
        self.bytes += bytes;
        self.useless_bytes += if useless { bytes } else { 0 };
        if self.bytes > 4 * capacity * BLOCK_BYTES {
            self.bytes /= 2;
            self.useless_bytes /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER_USELESS: fn() -> bool = || false;

    #[test]
    fn it_pays_until_the_program_does_something_else() {
        let mut ahead = RunAhead::default();
        ahead.look(Micros(0), true, NEVER_USELESS);
        assert!(!ahead.pays);
        ahead.look(Micros(1), true, || true);
        ahead.look(Micros(2), true, NEVER_USELESS);
        assert!(ahead.pays, "since it pays nothing useless leaves");
        ahead.look(Micros(3), false, || true);
        assert!(!ahead.pays);
    }

    #[test]
    fn the_device_is_left_much_to_do_in_time_and_a_few_launches_at_least() {
        let near = |launch_us: u64| {
            let mut pace = Pace::default();
            for launch in 1..1000 {
                pace.passed(Micros(launch * launch_us), 1);
            }
            let mut ahead = RunAhead::default();
            ahead.look(Micros(0), true, || true);
            ahead.near(&pace)
        };
        assert_eq!(near(100_000), Some(LEAST_LAUNCHES));
        assert_eq!(near(10_000), Some(5));
        assert_eq!(near(1_000), Some(50));
        assert_eq!(near(10), None, "nobody gets as far ahead");
    }

    #[test]
    fn a_device_that_runs_dry_is_left_more_to_do() {
        let mut ahead = RunAhead::default();
        ahead.look(Micros(0), true, || true);
        for (second, idle_us, times) in [(1, 9_000, 1.0), (2, 11_000, 2.0), (3, 0, 2.0)] {
            ahead.idled(idle_us);
            ahead.look(Micros(second * LOOK_US), true, NEVER_USELESS);
            assert_eq!(ahead.least_us, times * LEAST_US, "second {second}");
        }
    }

    #[test]
    fn what_is_useless_is_a_share_of_what_left_of_late() {
        let mut left = Left::default();
        left.count(BLOCK_BYTES, true, 1);
        for _ in 0..8 {
            left.count(BLOCK_BYTES, false, 1);
        }
        assert!(left.bytes <= 4 * BLOCK_BYTES);
        assert!(left.useless_bytes <= BLOCK_BYTES / 4, "long ago");
    }
}
