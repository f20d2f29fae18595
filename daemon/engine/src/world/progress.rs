//! How far the running launch has come through its blocks.
//!
//! Owns the estimate alone. Only launches that use many blocks are followed: what they have
//! gone past can make room for what they come to. A fault tells the place; in between, the
//! launch goes on no faster than it ever did, or others of its function, and no further than the
//! first block that is not there. For one that is under way it waits without a fault. A fault behind
//! the estimate tells that it had not come so far: what it was taken to have passed left before it
//! was used, and goes on to do so as long as the estimate stays ahead.

use std::ops::Range;

use crate::hash::Map;
use crate::identity::UNKNOWN;
use crate::units::{Micros, TICKS};

/// Blocks that the estimate stays behind what is known to be there.
const BEHIND_BLOCKS: u64 = 32;

/// The estimate for the oldest launch that is not over.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    ticks: u64,
    /// Blocks of the launch; 0: it is small.
    blocks: u64,
    /// It is known which blocks it uses when.
    followed: bool,
    exec: u32,
    /// None for a copy.
    function: Option<u32>,
    began: Micros,
    /// The last known place, and when it was known.
    known: (u64, Micros),
    /// Shortest time that launches of an execution ID took.
    shortest_us: Map<u32, u64>,
    /// The same in an earlier run, perhaps on another machine: only until one is seen here.
    remembered_us: Map<u32, u64>,
    /// Shortest time for a block in launches of a function that were followed, microseconds.
    block_us: Map<u32, f64>,
}

impl Progress {
    /// Moments of the launch that are over.
    pub(crate) fn ticks(&self) -> u64 {
        self.ticks
    }

    /// Another launch is the oldest one, with so many blocks to go through, where `followed`
    /// in known order.
    pub(crate) fn began(
        &mut self,
        now: Micros,
        (exec, function): (u32, Option<u32>),
        blocks: u64,
        followed: bool,
    ) {
        (self.ticks, self.blocks) = (0, blocks);
        (self.exec, self.function) = (exec, function);
        self.followed = followed;
        (self.began, self.known) = (now, (0, now));
    }

    /// It is over, and was alone in being so.
    pub(crate) fn ended(&mut self, now: Micros, limit: usize) {
        if self.blocks == 0 {
            return;
        }
        let took = now.0.saturating_sub(self.began.0).max(1);
        if let Some(function) = self.function.filter(|_| self.followed)
            && (self.block_us.len() < limit || self.block_us.contains_key(&function))
        {
            let each = took as f64 / self.blocks as f64;
            let shortest = self.block_us.entry(function).or_insert(each);
            *shortest = each.min(*shortest);
        }
        if self.exec == UNKNOWN {
            return;
        }
        if self.shortest_us.len() < limit || self.shortest_us.contains_key(&self.exec) {
            let shortest = self.shortest_us.entry(self.exec).or_insert(took);
            *shortest = took.min(*shortest);
        }
    }

    /// It faulted at this moment of its own. Others of its accesses may have faulted at the
    /// same time a little before: what they miss is still to come. Gives the moments that it was
    /// taken to have passed and that are to come after all.
    pub(crate) fn faulted(&mut self, now: Micros, ticks: u64) -> Option<Range<u64>> {
        if !self.followed || ticks < self.known.0 {
            return None;
        }
        self.known = (ticks, now);
        let (reached, before) = (ticks.saturating_sub(self.behind()), self.ticks);
        let back = ticks < before;
        self.ticks = if back { reached } else { before.max(reached) };
        back.then_some(reached..before)
    }

    /// Moments that the estimate stays behind.
    fn behind(&self) -> u64 {
        (BEHIND_BLOCKS * TICKS).div_ceil(self.blocks.max(1))
    }

    /// Time has passed; `absent` is the first moment at which it needs what is not there, on
    /// which it will fault, and `coming` that at which it needs what is under way.
    pub(crate) fn estimate(&mut self, now: Micros, absent: Option<u64>, coming: Option<u64>) {
        if !self.followed {
            return;
        }
        let behind = self.behind();
        let passed = now.0.saturating_sub(self.known.1.0);
        let by_time = self
            .shortest()
            .map_or(0, |shortest| passed.saturating_mul(TICKS) / shortest);
        let mut reached = self.known.0 + by_time;
        if let Some(coming) = coming.filter(|&coming| coming < reached) {
            // It waits there: what time went by is not made up for.
            reached = coming;
            self.known = (coming.max(self.known.0), now);
        }
        let reached = reached.min(absent.unwrap_or(TICKS));
        let reached = reached.saturating_sub(behind).min(TICKS - 1);
        self.ticks = self.ticks.max(reached);
    }

    /// Moments that go by in so many microseconds, at most the rest of the launch; none
    /// where it is not followed.
    pub(crate) fn ahead(&self, us: f64) -> Option<u64> {
        if !self.followed {
            return None;
        }
        let shortest = self.shortest().map(|us| us as f64);
        // No launch like it was seen: those of the function took no less for each block.
        let shortest = shortest.or_else(|| {
            let each = self.block_us.get(&self.function?)?;
            Some(each * self.blocks as f64)
        })?;
        let ahead = (us * TICKS as f64 / shortest.max(1.0)) as u64;
        (self.ticks + ahead < TICKS).then_some(ahead)
    }

    /// Shortest time that a launch as the running one took.
    fn shortest(&self) -> Option<u64> {
        let seen = self.shortest_us.get(&self.exec);
        seen.or_else(|| self.remembered_us.get(&self.exec)).copied()
    }

    /// Shortest times by execution ID.
    pub(crate) fn learned(&self) -> Vec<(u32, u64)> {
        let mut times: Vec<_> = self.shortest_us.iter().map(|(&e, &us)| (e, us)).collect();
        times.sort_unstable();
        times
    }

    /// Begins with the times of an earlier run.
    pub(crate) fn restore(&mut self, times: &[(u32, u64)]) {
        let times = times.iter().map(|&(exec, us)| (exec, us.max(1)));
        self.remembered_us = times.collect();
    }

    /// Estimated size of the table in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let times = self.shortest_us.capacity() + self.remembered_us.capacity();
        (times + self.block_us.capacity()) as u64 * 17
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A launch over 1,024 blocks that takes 1,024 us when nothing is missing.
    fn learned() -> Progress {
        let mut progress = Progress::default();
        progress.began(Micros(0), (7, None), TICKS, true);
        progress.ended(Micros(TICKS), 10);
        progress.began(Micros(2_000), (7, None), TICKS, true);
        progress
    }

    #[test]
    fn it_advances_with_time_and_stays_behind() {
        let mut progress = learned();
        progress.estimate(Micros(2_500), None, None);
        assert_eq!(progress.ticks(), 500 - BEHIND_BLOCKS);
        assert_eq!(progress.ahead(100.0), Some(100));
        assert_eq!(
            progress.ahead(1_000.0),
            None,
            "the next launch begins by then"
        );
    }

    #[test]
    fn it_does_not_go_past_what_is_not_there() {
        let mut progress = learned();
        progress.estimate(Micros(2_500), Some(100), None);
        assert_eq!(progress.ticks(), 100 - BEHIND_BLOCKS);
    }

    #[test]
    fn time_that_it_waited_for_what_is_under_way_is_not_made_up_for() {
        let mut progress = learned();
        progress.estimate(Micros(2_500), None, Some(100));
        progress.estimate(Micros(2_900), None, Some(100));
        progress.estimate(Micros(2_950), None, None);
        assert_eq!(progress.ticks(), 100 + 50 - BEHIND_BLOCKS);
    }

    #[test]
    fn a_fault_tells_the_place() {
        let mut progress = learned();
        progress.faulted(Micros(2_010), 700);
        assert_eq!(progress.ticks(), 700 - BEHIND_BLOCKS);
        progress.faulted(Micros(2_020), 300);
        let ticks = progress.ticks();
        assert_eq!(ticks, 700 - BEHIND_BLOCKS, "it was further already");
    }

    #[test]
    fn a_fault_behind_what_time_told_takes_it_back() {
        let mut progress = learned();
        progress.estimate(Micros(2_500), None, None);
        let (from, to) = (300 - BEHIND_BLOCKS, 500 - BEHIND_BLOCKS);
        assert_eq!(progress.faulted(Micros(2_510), 300), Some(from..to));
        assert_eq!(progress.ticks(), from);
        progress.estimate(Micros(2_520), None, None);
        assert_eq!(progress.ticks(), from + 10, "it goes on from there");
        assert_eq!(progress.faulted(Micros(2_530), 400), None, "further on");
        assert_eq!(progress.ticks(), 400 - BEHIND_BLOCKS);
    }

    /// As where kernels are given another pointer beside the same ones each time.
    #[test]
    fn a_launch_that_is_new_goes_on_no_faster_than_others_of_its_function_did() {
        let mut progress = Progress::default();
        let (first, second) = ((7, Some(3)), (8, Some(3)));
        progress.began(Micros(0), first, TICKS, true);
        assert_eq!(progress.ahead(10.0), None, "nothing is known");
        progress.ended(Micros(TICKS), 10);
        // Half as many blocks, so that each is twice as many moments.
        progress.began(Micros(2_000), second, TICKS / 2, true);
        assert_eq!(progress.ahead(10.0), Some(20));
        progress.ended(Micros(2_000 + TICKS / 4), 10);
        progress.began(Micros(4_000), (9, Some(3)), TICKS / 2, true);
        assert_eq!(progress.ahead(10.0), Some(40), "as fast as the fastest");
        progress.estimate(Micros(4_100), None, None);
        assert_eq!(progress.ticks(), 0, "time alone tells no place");
        progress.began(Micros(5_000), (9, Some(4)), TICKS / 2, true);
        assert_eq!(progress.ahead(10.0), None, "another function");
    }

    #[test]
    fn a_launch_whose_order_is_not_known_is_not_followed() {
        let mut progress = learned();
        progress.began(Micros(4_000), (7, None), TICKS, false);
        progress.faulted(Micros(4_010), 700);
        progress.estimate(Micros(4_900), None, None);
        assert_eq!((progress.ticks(), progress.ahead(1.0)), (0, None));
    }
}
