//! Whether a block's uses come when the cycle foretells them, and how far apart they are.
//!
//! Owns the evidence that the cycle is not the whole truth for a block. The place in the past
//! that the present repeats is found by launches: where these differ from turn to turn (routed
//! experts, batches of changing shape, requests that come and go), it jumps, and with it all
//! that it foretells. A block that is used at even distances all the same tells by itself when
//! it is used next.

use super::uses::Uses;
use crate::units::TICKS;

/// Launches by which a cycle may be longer or shorter.
const SLACK: u64 = 8;
/// Uses that are no further apart, in launches, are one.
const BURST: u64 = 16;
/// Uses of one block, and of all, of which so many count half as much when more come.
const MEMORY: (u16, u16) = (16, 1 << 14);
/// What holds for all blocks counts as much as so many uses of one.
const PRIOR: u32 = 2;
/// From this share on, in 1/256, what the cycle foretells is believed alone.
const BELIEVED: u64 = 230;
/// Below this share it is no reason to fetch a block.
const DOUBTED: u64 = 128;

/// Of uses that came, how many the cycle had foretold.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Trust {
    seen: u16,
    foretold: u16,
}

impl Trust {
    fn add(&mut self, foretold: bool, memory: u16) {
        self.seen += 1;
        self.foretold += u16::from(foretold);
        if self.seen >= memory {
            self.seen /= 2;
            self.foretold /= 2;
        }
    }

    /// In 1/256; all of them while little is known.
    fn share(self) -> u32 {
        (u32::from(self.foretold) + PRIOR) * 256 / (u32::from(self.seen) + PRIOR)
    }
}

/// What was seen of a block's uses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Habit {
    /// Launches from one use to the next, on average; 0: used once at most.
    gap: u32,
    /// How far single ones are from that, on average.
    deviation: u32,
    trust: Trust,
}

impl Habit {
    /// The launch at `position`, which comes `lag` launches after the one that it repeats,
    /// uses the block; `uses` are those before, `all` what holds for all blocks.
    pub(crate) fn observe(
        &mut self,
        uses: &Uses,
        position: u64,
        lag: Option<u64>,
        all: &mut Trust,
    ) {
        let Some(last) = uses.last() else {
            return;
        };
        let gap = position.saturating_sub(last / TICKS);
        if gap <= BURST {
            return;
        }
        let gap = u32::try_from(gap).unwrap_or(u32::MAX) / 4;
        if self.gap == 0 {
            self.gap = gap * 4;
        } else {
            let off = self.gap.abs_diff(gap.saturating_mul(4)) / 4;
            self.deviation = self.deviation - self.deviation / 4 + off;
            self.gap = self.gap - self.gap / 4 + gap;
        }
        let Some(lag) = lag else {
            return;
        };
        let matched = position.saturating_sub(lag);
        let from = matched.saturating_sub(SLACK) * TICKS;
        let found = uses.repeated(from);
        let foretold = found.is_some_and(|at| at / TICKS <= matched + SLACK);
        self.trust.add(foretold, MEMORY.0);
        all.add(foretold, MEMORY.1);
    }

    /// How far what the cycle foretells of the block can be believed, in 1/256.
    fn share(&self, all: Trust) -> u64 {
        let [seen, foretold] = [self.trust.seen, self.trust.foretold].map(u32::from);
        u64::from((foretold * 256 + PRIOR * all.share()) / (seen + PRIOR))
    }

    /// What the cycle foretells is no reason to fetch the block.
    pub(crate) fn doubts(&self, all: Trust) -> bool {
        self.share(all) < DOUBTED
    }

    /// Moment of the next use of a block that launches up to `last_used` used, seen from the
    /// launch at `floor`: that which the cycle foretells, if it does, and that by the block's
    /// own even distances, as far as each can be believed.
    pub(crate) fn weigh(
        &self,
        foretold: Option<u64>,
        (last_used, floor): (u64, u64),
        all: Trust,
    ) -> Option<u64> {
        // Uses by chance deviate by three quarters of their mean distance (2 / e).
        let even = self.gap > 0 && self.deviation <= self.gap / 2;
        if !even {
            return foretold;
        }
        let share = self.share(all);
        if share >= BELIEVED {
            return foretold;
        }
        let gap = u64::from(self.gap);
        let own = match last_used + gap {
            own if own > floor => own,
            // What is overdue for long is used no more.
            _ => floor + gap.max(floor.saturating_sub(last_used)),
        };
        let own = own * TICKS;
        Some(foretold.map_or(own, |at| {
            (at.min(1 << 52) * share + own.min(1 << 52) * (256 - share)) / 256
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block that the launches at these positions use, each foretold from the one `lag` before.
    fn used(positions: &[u64], lag: Option<u64>) -> (Habit, Trust) {
        let (mut habit, mut all) = (Habit::default(), Trust::default());
        let mut uses = Uses::default();
        for &position in positions {
            habit.observe(&uses, position, lag, &mut all);
            uses.push(position * TICKS, 0, 64);
        }
        (habit, all)
    }

    fn every(gap: u64) -> Vec<u64> {
        (1..=12).map(|turn| turn * gap).collect()
    }

    #[test]
    fn what_comes_as_foretold_is_left_to_the_cycle() {
        let (habit, all) = used(&every(100), Some(100));
        assert!(!habit.doubts(all));
        let foretold = Some(1307 * TICKS);
        assert_eq!(habit.weigh(foretold, (1200, 1210), all), foretold);
        assert_eq!(habit.weigh(None, (1200, 1210), all), None);
    }

    #[test]
    fn even_distances_tell_where_the_cycle_is_wrong() {
        let (habit, all) = used(&every(100), Some(70));
        assert!(habit.doubts(all));
        let own = habit.weigh(None, (1200, 1210), all);
        assert_eq!(own, Some(1300 * TICKS));
        let both = habit.weigh(Some(1700 * TICKS), (1200, 1210), all);
        assert!(both > own && both < Some(1500 * TICKS), "{both:?}");
    }

    #[test]
    fn chance_tells_nothing_by_itself() {
        let positions = [100, 120, 700, 730, 760, 1900, 1930, 3000, 3020, 3050];
        let (habit, all) = used(&positions, Some(70));
        assert!(habit.doubts(all));
        assert_eq!(habit.weigh(None, (3050, 3060), all), None);
        assert_eq!(habit.weigh(Some(7), (3050, 3060), all), Some(7));
    }

    #[test]
    fn what_is_overdue_moves_away() {
        let (habit, all) = used(&every(100), Some(70));
        let soon = habit.weigh(None, (1200, 1310), all);
        assert_eq!(soon, Some(1420 * TICKS));
        let late = habit.weigh(None, (1200, 2200), all);
        assert_eq!(late, Some(3200 * TICKS));
    }

    #[test]
    fn bursts_and_first_uses_count_for_nothing() {
        let (habit, all) = used(&[5, 6, 9, 20], None);
        assert!(!habit.doubts(all));
        assert_eq!(habit.weigh(None, (20, 30), all), None);
    }
}
