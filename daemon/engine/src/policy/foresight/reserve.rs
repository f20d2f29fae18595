//! How many frames are kept free for faults.
//!
//! A fault that finds no free frame waits for an eviction. A reserve gives evictions a start. But
//! a frame that lies idle is a block less on the device, which has to be fetched in each cycle:
//! where fetches follow each other without a pause, and launches wait for them, a large reserve
//! costs more than the few faults that are left there. So how large it is depends on whether the
//! link into the device had time to spare in the last cycle.

use crate::command::Queue;
use crate::policy::demand::budget_reserve;
use crate::units::{BLOCK_BYTES, Micros};
use crate::world::World;

/// One in so many frames of the device is kept free, within these bounds.
const SHARE: u64 = 64;
const LEAST: u64 = 2;
const MOST: u64 = 32;
/// The most where fetches follow each other without a pause.
const MOST_WHEN_BUSY: u64 = 8;
/// A link that brings nothing for less than this share of the time has none to spare.
const SPARE: f64 = 0.1;
/// It is looked at after a cycle, or so many launches where none is known, but not before the link
/// could have brought so many times the largest reserve.
const LAUNCHES: u64 = 64;
const TIMES: u64 = 8;

/// What was seen of the link into the device.
#[derive(Debug)]
pub(crate) struct Reserve {
    busy: bool,
    /// Since when it is looked at, microseconds and launches.
    since: Micros,
    looked: u64,
    /// When it was looked at last, whether fetches were under way then, and for how long none
    /// was, microseconds.
    last: Micros,
    brings: bool,
    idle_us: u64,
}

impl Default for Reserve {
    fn default() -> Self {
        Self {
            busy: false,
            since: Micros(0),
            looked: 0,
            last: Micros(0),
            brings: false,
            idle_us: 0,
        }
    }
}

impl Reserve {
    /// Looks at what is under way.
    pub(crate) fn adapt(&mut self, now: Micros, world: &World) {
        let cycle = world.history.lag().unwrap_or(LAUNCHES);
        let least_us = (TIMES * MOST * BLOCK_BYTES) as f64 / world.orders.rate(Queue::In);
        let brings = world.orders.bytes(Queue::In) > 0;
        self.see(now, brings, world.floor(), (cycle, least_us));
    }

    /// Fetches are under way or not, with so many launches over. It is judged after so many more,
    /// and so many microseconds.
    fn see(&mut self, now: Micros, brings: bool, floor: u64, (cycle, least_us): (u64, f64)) {
        if !self.brings {
            self.idle_us += now.0.saturating_sub(self.last.0);
        }
        (self.last, self.brings) = (now, brings);
        let whole_us = now.0.saturating_sub(self.since.0) as f64;
        if floor < self.looked + cycle || whole_us < least_us {
            return;
        }
        self.busy = (self.idle_us as f64) < SPARE * whole_us;
        (self.since, self.looked, self.idle_us) = (now, floor, 0);
    }

    /// Frames that are kept free for faults; none where everything fits, or what is used did so
    /// far: there is more memory, but nothing says that more of it is used.
    pub(crate) fn frames(&self, world: &World) -> i64 {
        let fits = world.blocks.len() as u64 <= world.capacity;
        if fits || !(world.was_full || world.enforce || world.remote) {
            0
        } else if world.remote {
            // Nothing comes but what is fetched.
            1
        } else if world.enforce {
            budget_reserve(world.capacity)
        } else {
            let most = if self.busy { MOST_WHEN_BUSY } else { MOST };
            (world.capacity / SHARE).clamp(LEAST, most) as i64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: (u64, f64) = (100, 1000.0);

    /// Sees cycles of 100 launches and a millisecond, in which fetches pause for so long.
    fn after(pauses_us: &[u64]) -> Reserve {
        let mut reserve = Reserve::default();
        reserve.see(Micros(0), true, 0, WHOLE);
        for (cycle, &pause_us) in pauses_us.iter().enumerate() {
            let (begin, launches) = (cycle as u64 * 1000, cycle as u64 * 100);
            reserve.see(Micros(begin + 500), false, launches + 50, WHOLE);
            reserve.see(Micros(begin + 500 + pause_us), true, launches + 60, WHOLE);
            reserve.see(Micros(begin + 1000), true, launches + 100, WHOLE);
        }
        reserve
    }

    #[test]
    fn the_link_is_busy_where_fetches_hardly_pause_in_a_cycle() {
        assert!(!Reserve::default().busy, "until it was seen");
        assert!(after(&[90]).busy);
        assert!(!after(&[110]).busy);
    }

    #[test]
    fn the_last_cycle_counts() {
        assert!(!after(&[0, 0, 400]).busy);
        assert!(after(&[400, 400, 0]).busy);
    }
}
