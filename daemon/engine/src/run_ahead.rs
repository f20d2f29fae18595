//! How far the program may run ahead of the device.
//!
//! Content that the program gave back can be dropped only until its memory is handed out again:
//! what is queued by then may write there at any time. A program that launches far ahead of the
//! device is handed out again what died a moment ago before the device gets to its death, so
//! there never is a time at which it could be dropped: it is moved to the host and back, though
//! nobody will read it, or its frame waits for what will be written there, however late, and
//! what is of use leaves in its place. Where much of what leaves is such, or many frames wait so,
//! and the program repeats itself, so that what it launches is known without its having done so, it
//! had better wait with its launches.
//!
//! Owns the decision. The program never has to wait: it does so as long as the device makes
//! progress, and the device has as much to do as takes it tens of milliseconds and more.

use crate::command::Queue;
use crate::pace::Pace;
use crate::units::{BLOCK_BYTES, Micros};
use crate::world::World;

/// The device is left so much to do at least, microseconds: what the link moves meanwhile is a
/// multiple of what is under way at a time.
const LEAST_US: f64 = 50_000.0;
/// And so many launches.
const LEAST_LAUNCHES: u32 = 8;
/// Nobody launches much further ahead anyway (CUDA's queues hold some 1,024 launches).
const MOST_LAUNCHES: u32 = 1000;
/// One in so many bytes that left was of no use, or one in so many frames of the device waited for
/// content while other content left.
const SHARE: u64 = 20;
/// Frames that wait cost nothing where the link has time to spare: content leaves for so much of the
/// time at least.
const BUSY: f64 = 0.3;
/// Once a whole cycle was as the one before, it is left this share of that: what comes is known.
const SURELY: f64 = 0.2;
/// Where frames wait, the device is left so many times as much to do: what the program has launched
/// is known exactly, which is worth more.
const WAITING: f64 = 4.0;
/// Launches that come again before it is believed.
const HELD: u64 = 2;
/// The device is looked at for so long, microseconds: it may have nothing to do for this share of
/// the time.
const LOOK_US: u64 = 1_000_000;
const IDLE: f64 = 0.01;

/// Whether the program waits, and how near the device it then is.
#[derive(Debug)]
pub(crate) struct RunAhead {
    /// How often [`RunAhead::least_us`] the device is left to do; none where waiting does not pay.
    pays: Option<f64>,
    least_us: f64,
    launches: Option<u32>,
    /// A whole cycle was as the one before.
    surely: bool,
    /// Since when the device is looked at, and for how long it had nothing to do since then.
    since: Micros,
    idle_us: u64,
    out: Out,
}

/// For how much of the time content leaves.
#[derive(Debug, Default)]
struct Out {
    share: f64,
    /// Since when it is looked at, and what had left by then, bytes.
    since: Micros,
    bytes: u64,
}

impl Out {
    /// So much has left in all by now, at so many bytes in a microsecond.
    fn see(&mut self, now: Micros, bytes: u64, rate: f64) {
        let passed_us = now.0.saturating_sub(self.since.0);
        if passed_us >= LOOK_US {
            self.share = (bytes - self.bytes) as f64 / (rate * passed_us as f64);
            (self.since, self.bytes) = (now, bytes);
        }
    }
}

impl Default for RunAhead {
    fn default() -> Self {
        Self {
            pays: None,
            least_us: LEAST_US,
            launches: None,
            surely: false,
            since: Micros(0),
            idle_us: 0,
            out: Out::default(),
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
        let rate = world.orders.rate(Queue::Out);
        self.out.see(now, left.all_bytes, rate);
        let busy = self.out.share >= BUSY;
        let much = left.bytes >= world.capacity / 8 * BLOCK_BYTES;
        self.look(now, drops && repeats && world.was_full, || {
            let waiting = busy && left.others_wait(world.capacity);
            match (much && left.is_useless(), much && waiting) {
                (true, _) => Some(1.0),
                (false, true) => Some(WAITING),
                (false, false) => None,
            }
        });
        let lag = world.history.lag();
        self.surely = lag.is_some_and(|lag| world.history.held() >= lag);
        self.launches = self.near(pace);
    }

    /// How near the device the program is kept, if it is.
    fn near(&self, pace: &Pace) -> Option<u32> {
        let share = if self.surely { SURELY } else { 1.0 };
        let launches = pace.launches_on_average(self.pays? * share * self.least_us);
        let least = LEAST_LAUNCHES.max(4 * pace.stride());
        (launches < MOST_LAUNCHES).then(|| launches.max(least))
    }

    /// `can`: it could pay. `useless`: it would, by what left of late, and how much longer than
    /// [`LEAST_US`] the device's work is kept. Once it does, little that is useless leaves.
    fn look(&mut self, now: Micros, can: bool, useless: impl FnOnce() -> Option<f64>) {
        let times = [self.pays, useless()].into_iter().flatten();
        self.pays = times.reduce(f64::min).filter(|_| can);
        let passed_us = now.0.saturating_sub(self.since.0);
        if passed_us < LOOK_US {
            return;
        }
        // Others than the device hold the program up: it has to get further ahead while it can.
        if self.pays.is_some() && self.idle_us as f64 > IDLE * passed_us as f64 {
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
    /// Of late and before.
    all_bytes: u64,
    /// How often it was decided that content of use leaves, and the frames that waited for content
    /// then, added up.
    decided: u64,
    waiting: u64,
}

impl Left {
    /// So many bytes left a device of so many blocks.
    pub(crate) fn count(&mut self, bytes: u64, useless: bool, capacity: u64) {
        self.all_bytes += bytes;
        self.bytes += bytes;
        self.useless_bytes += if useless { bytes } else { 0 };
        if self.bytes > 4 * capacity * BLOCK_BYTES {
            self.bytes /= 2;
            self.useless_bytes /= 2;
        }
    }

    /// It was decided that a block leaves a device of so many, on which this many frames were handed
    /// out again and not written since.
    pub(crate) fn decide(&mut self, waiting: u64, capacity: u64) {
        self.decided += 1;
        self.waiting += waiting;
        if self.decided > 4 * capacity {
            self.decided /= 2;
            self.waiting /= 2;
        }
    }

    /// Much of what leaves is of no use.
    fn is_useless(&self) -> bool {
        self.useless_bytes.saturating_mul(SHARE) >= self.bytes
    }

    /// What leaves goes in the place of frames that hold nothing.
    pub(crate) fn others_wait(&self, capacity: u64) -> bool {
        let frames = self.decided.saturating_mul(capacity);
        self.decided > 0 && self.waiting.saturating_mul(SHARE) >= frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER_USELESS: fn() -> Option<f64> = || None;

    #[test]
    fn it_pays_until_the_program_does_something_else() {
        let mut ahead = RunAhead::default();
        ahead.look(Micros(0), true, NEVER_USELESS);
        assert_eq!(ahead.pays, None);
        ahead.look(Micros(1), true, || Some(1.0));
        ahead.look(Micros(2), true, NEVER_USELESS);
        ahead.look(Micros(2), true, || Some(WAITING));
        assert_eq!(
            ahead.pays,
            Some(1.0),
            "since it pays nothing useless leaves"
        );
        ahead.look(Micros(3), false, || Some(1.0));
        assert_eq!(ahead.pays, None);
    }

    #[test]
    fn the_device_is_left_much_to_do_in_time_and_a_few_launches_at_least() {
        let near = |launch_us: u64, times: f64| {
            let mut pace = Pace::default();
            for launch in 1..1000 {
                pace.passed(Micros(launch * launch_us), 1);
            }
            let mut ahead = RunAhead::default();
            ahead.look(Micros(0), true, || Some(times));
            ahead.near(&pace)
        };
        assert_eq!(near(100_000, 1.0), Some(LEAST_LAUNCHES));
        assert_eq!(near(5_000, 1.0), Some(10));
        assert_eq!(near(1_000, 1.0), Some(50));
        assert_eq!(near(1_000, WAITING), Some(200), "what it launched is known");
        assert_eq!(near(10, 1.0), None, "nobody gets as far ahead");
    }

    #[test]
    fn a_program_that_surely_repeats_itself_is_kept_nearer() {
        let mut pace = Pace::default();
        for launch in 1..1000 {
            pace.passed(Micros(launch * 500), 1);
        }
        let ahead = |surely| RunAhead {
            pays: Some(1.0),
            surely,
            ..RunAhead::default()
        };
        assert_eq!(
            [false, true].map(|surely| ahead(surely).near(&pace)),
            [Some(100), Some(20)]
        );
    }

    #[test]
    fn a_device_that_runs_dry_is_left_more_to_do() {
        let mut ahead = RunAhead::default();
        ahead.look(Micros(0), true, || Some(1.0));
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
        assert_eq!(left.all_bytes, 9 * BLOCK_BYTES);
    }

    #[test]
    fn content_leaves_for_a_share_of_the_time_in_the_last_second() {
        let mut out = Out::default();
        out.see(Micros(LOOK_US - 1), 5 * LOOK_US, 10.0);
        assert_eq!(out.share, 0.0, "not yet");
        out.see(Micros(LOOK_US), 5 * LOOK_US, 10.0);
        assert_eq!(out.share, 0.5);
        out.see(Micros(3 * LOOK_US), 7 * LOOK_US, 10.0);
        assert_eq!(out.share, 0.1);
    }

    #[test]
    fn frames_may_wait_for_content_while_other_content_leaves() {
        let after = |waiting: &[u64]| {
            let mut left = Left::default();
            for &waiting in waiting {
                left.decide(waiting, 100);
            }
            left.others_wait(100)
        };
        assert!(!after(&[]));
        assert!(!after(&[0, 9]));
        assert!(after(&[0, 10]));
        assert!(
            !after(&[[100].repeat(20), [0].repeat(600)].concat()),
            "long ago"
        );
    }
}
