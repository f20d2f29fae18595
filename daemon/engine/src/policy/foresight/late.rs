//! Whether the link has time for what launches will need.
//!
//! A launch is known to begin as long after the running one as its like did a cycle ago. What is
//! needed until then takes the link so long. Where that is longer, as before an optimizer whose
//! states follow each other faster than they come, the link has to begin while it still has nothing
//! else to bring; to begin sooner would only cost victims that are needed sooner
//! ([`super::reach`]). That is the earliest deadline first of real-time scheduling: the order of
//! needs meets them all if any order does, and the first that it misses shows when to begin.
//! Owns the answer, and the estimate of when launches come.

use crate::command::Queue;
use crate::policy::ranking::Order;
use crate::units::{BLOCK_BYTES, Micros, TICKS};
use crate::world::World;

use super::rank::is_known;

/// The next needs that are looked at one by one.
pub(super) const NEAR: usize = 4096;
/// They are looked at no more often than this, microseconds: some times what a block takes.
pub(super) const EVERY_US: u64 = 500;
/// The link begins so many times earlier than it needs.
const LEAD: f64 = 2.0;
/// Once so many fetches are late the others need not be looked at: the link is busy until then.
const BUSY: i64 = 256;
/// Launches for which the place in the past has to hold, where no turn is known, for its launches to
/// tell when others come.
const SURE: u64 = 64;

/// What comes too late unless the link begins now, when that was last looked at.
#[derive(Debug, Default)]
pub(super) struct Late {
    at: Option<Micros>,
    /// The last moment at which it is needed.
    until: Option<u64>,
}

impl Late {
    /// Whether what is needed at this moment, or something later, comes too late unless the link
    /// begins with it now. `absent`: all that is to be fetched, in the order of needs.
    pub(super) fn is(&mut self, need: u64, world: &World, absent: &Order) -> bool {
        let since = self.at.map(|at| world.now.0.saturating_sub(at.0));
        if since.is_none_or(|since| since >= EVERY_US) {
            (self.at, self.until) = (Some(world.now), late_until(world, absent));
        }
        self.until.is_some_and(|until| need <= until)
    }
}

/// The last moment for which [`Late::is`] holds, as of now.
fn late_until(world: &World, absent: &Order) -> Option<u64> {
    let history = &world.history;
    if history.lag().is_none() || (history.held() < SURE && history.turn().is_none()) {
        return None;
    }
    let block_us = BLOCK_BYTES as f64 / world.orders.rate(Queue::In);
    let coming = (world.orders.bytes(Queue::In) / BLOCK_BYTES) as i64;
    let all = absent.len() as i64 + coming;
    let known = absent.iter().take(NEAR).map(|(key, _)| key);
    let known = known.take_while(|&key| is_known(key));
    let mut until = None;
    for (count, key, wait_us) in by_launch(world, known) {
        // Later ones wait longer.
        if in_time(all, block_us, wait_us) {
            break;
        }
        if !in_time(count + coming, block_us, wait_us) {
            until = Some(key);
            if count >= BUSY {
                break;
            }
        }
    }
    until
}

/// Whether the link, which takes so long for one, moves so many blocks in this time.
pub(super) fn in_time(blocks: i64, block_us: f64, wait_us: u64) -> bool {
    wait_us as f64 > blocks as f64 * LEAD * block_us
}

/// For each launch with needs, which are given in rising order: how many there are up to its last
/// one, that one, and in how many microseconds the launch begins, if it takes as long from here to
/// there as in the cycle before. Ends where that is not known.
pub(super) fn by_launch(
    world: &World,
    needs: impl Iterator<Item = u64>,
) -> impl Iterator<Item = (i64, u64, u64)> {
    let (floor, lag) = (world.floor(), world.history.lag());
    let past = move |position: u64| position.checked_sub(1 + lag?);
    let wait_us = move |launch: u64| {
        if launch <= floor {
            return Some(0);
        }
        let us = world.history.between(past(floor)?, past(launch)?)?;
        Some(us.saturating_sub(world.since_us))
    };
    let mut needs = needs.zip(1..).peekable();
    let last_of_each = std::iter::from_fn(move || {
        loop {
            let (key, count) = needs.next()?;
            let same = |&(next, _): &(u64, i64)| next / TICKS == key / TICKS;
            if !needs.peek().is_some_and(same) {
                return Some((count, key));
            }
        }
    });
    last_of_each.map_while(move |(count, key)| Some((count, key, wait_us(key / TICKS)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::foresight::rank::Ranks;
    use crate::stats::Stats;
    use crate::units::Range;
    use crate::world::block::Residency;
    use crate::world::tests::queue_as;
    use crate::{Bytes, Config, PolicyKind};

    /// A program that repeats four launches, of so many microseconds each, and has launched so many.
    /// One runs, and eight blocks that are on the host are used by the one after the next.
    fn eight_needs(launch_us: u64, launched: u64) -> (World, Ranks) {
        let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
        let mut world = World::new(&config);
        let range = Range {
            address: BLOCK_BYTES,
            bytes: 8 * BLOCK_BYTES,
        };
        world.alloc(range, false, Residency::Host, &mut Stats::default());
        for position in 1..=launched {
            world
                .history
                .push((position as u32 % 4, 0), std::iter::empty());
            let at = Micros(1_000 + position * launch_us);
            world.history.set_over(position, at);
        }
        for ahead in 1..=4 {
            queue_as(&mut world, (launched + ahead) as u32 % 4, ahead);
        }
        for id in range.blocks() {
            let slot = world.blocks.find(id).unwrap();
            world.blocks.will_use(slot, (launched + 3) * TICKS, 0, None);
        }
        let mut ranks = Ranks::default();
        ranks.refresh(&mut world);
        assert_eq!(ranks.absent.len(), 8);
        (world, ranks)
    }

    #[test]
    fn what_the_link_has_no_time_for_later_is_late() {
        let late = |launch_us, launched, launch: u64| {
            let (world, mut ranks) = eight_needs(launch_us, launched);
            ranks.is_late(&world, (launched + launch) * TICKS)
        };
        assert!(late(1, 200, 3));
        assert!(late(1, 200, 2), "what is needed before comes first");
        assert!(!late(1, 200, 4), "nothing is needed so late");
        assert!(!late(1_000_000, 200, 3), "there is time");
        assert!(!late(1, 40, 3), "the program may do something else");
    }

    #[test]
    fn the_link_begins_twice_as_early_as_it_needs() {
        let (world, _) = eight_needs(1, 200);
        let block_us = BLOCK_BYTES as f64 / world.orders.rate(Queue::In);
        let late = |blocks: f64| {
            // Two launches end before the one that needs them begins.
            let launch_us = (blocks * block_us / 2.0) as u64;
            let (world, mut ranks) = eight_needs(launch_us, 200);
            ranks.is_late(&world, 203 * TICKS)
        };
        assert!(late(8.0) && late(15.0));
        assert!(!late(17.0));
    }

    #[test]
    fn needs_are_counted_by_launch() {
        let (world, _) = eight_needs(50, 200);
        let needs = [201, 203, 203, 204].map(|launch| launch * TICKS + 7);
        let waits: Vec<_> = by_launch(&world, needs.into_iter()).collect();
        let expected = [(1, needs[0], 0), (3, needs[1], 100), (4, needs[3], 150)];
        assert_eq!(waits, expected);
    }
}
