//! Turns ranks into moves: evictions ahead of need, fetches by deadline, both at once.
//!
//! Owns the exchange rule, the reserve of free frames and how far ahead to fetch.

use super::Foresight;
use super::rank::{is_dead, is_known};
use crate::command::{Command, Operation, Queue};
use crate::policy::demand::{budget_reserve, out_limit};
use crate::stats::{BreakerState, Stats};
use crate::units::{BLOCK_BYTES, Micros};
use crate::world::World;
use crate::world::block::Residency;

/// Bytes that populates and discards may have under way.
const LOCAL_BYTES: u64 = 64 << 20;
/// One in this many frames may wait empty for blocks that are not born yet.
const BIRTH_SHARE: u64 = 4;
/// Blocks on the host whose dead content is dropped in one go.
const STALE_AT_ONCE: usize = 64;

/// How far ahead to fetch, as a share of how far ahead the victim is needed.
///
/// A fetch that is early costs its victim's fetch earlier too: looking far ahead moves
/// more. So it widens only while launches wait although the link has time to spare; where
/// the link is the bottleneck, the shortest reach moves the least.
#[derive(Debug)]
pub(crate) struct Reach {
    share: f64,
    missed: bool,
    looked: u64,
    since: Micros,
    last: Micros,
    idle: bool,
    idle_us: u64,
    /// What launches had used on the host when it was last looked at.
    remote_bytes: u64,
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            share: 0.25,
            missed: false,
            looked: 0,
            since: Micros(0),
            last: Micros(0),
            idle: true,
            idle_us: 0,
            remote_bytes: 0,
        }
    }
}

impl Reach {
    /// The share's bounds.
    const NARROW: f64 = 0.125;
    const WIDE: f64 = 1.0;
    /// Share of the time without a prefetch under way above which the link has time.
    const SPARE: f64 = 0.15;
    /// Launches after which it is looked at.
    const LAUNCHES: u64 = 64;

    /// A launch begins: it waits if a block of it is not there.
    pub(crate) fn started(&mut self, world: &World) {
        let Some(launch) = world.window.front() else {
            return;
        };
        self.missed = self.missed
            || world.slots(&launch.set).any(|slot| {
                !matches!(
                    world.blocks.get(slot).residency,
                    Residency::Device | Residency::MovingOut
                )
            });
    }

    /// Widens or narrows, once in a while.
    pub(crate) fn adapt(&mut self, now: Micros, world: &World) {
        if self.idle {
            self.idle_us += now.0.saturating_sub(self.last.0);
        }
        self.last = now;
        self.idle = world.orders.bytes(Queue::In) == 0;
        let head = world.floor();
        if head < self.looked + Self::LAUNCHES {
            return;
        }
        let whole_us = now.0.saturating_sub(self.since.0).max(1);
        // The link is as busy with what launches use on the host.
        let remote_bytes = world.remote_bytes - self.remote_bytes;
        let idle_us = self.idle_us as f64 - remote_bytes as f64 / world.orders.rate(Queue::In);
        let spare = idle_us / whole_us as f64 > Self::SPARE;
        self.remote_bytes = world.remote_bytes;
        self.looked = head;
        self.since = now;
        self.idle_us = 0;
        self.share = match (std::mem::take(&mut self.missed), spare) {
            (true, true) => (self.share * 1.5).min(Self::WIDE),
            (true, false) => (self.share * 0.9).max(Self::NARROW),
            (false, _) => (self.share * 0.97).max(Self::NARROW),
        };
    }

    /// Is it worth to fetch what is needed at `need` by evicting what is needed at `victim`?
    fn allows(&self, floor: u64, need: u64, victim: u64) -> bool {
        let until = |position: u64| position.saturating_sub(floor) as f64;
        victim > need && until(need) <= self.share * until(victim).max(1.0)
    }
}

/// Issues what is to be done now.
pub(crate) fn carry_out(
    policy: &mut Foresight,
    now: Micros,
    world: &mut World,
    stats: &mut Stats,
    commands: &mut Vec<Command>,
) {
    let reserve = reserve(world);
    drop_stale(policy, now, world, reserve, stats, commands);
    make_room(policy, now, world, reserve, stats, commands);
    fetch(policy, now, world, reserve, stats, commands);
}

/// Frames that are kept free for faults; none where everything fits.
fn reserve(world: &World) -> i64 {
    if world.blocks.len() as u64 <= world.capacity {
        0
    } else if world.remote {
        // Nothing comes but what is fetched.
        1
    } else if world.enforce {
        budget_reserve(world.capacity)
    } else {
        (world.capacity / 64).clamp(2, 32) as i64
    }
}

/// Dead content on the host is dropped at once: it costs nothing, and saves the fetch of
/// garbage when the block is born again. Within a budget only as far as there are frames:
/// a birth without a transfer can outrun any eviction, one with it cannot.
fn drop_stale(
    policy: &mut Foresight,
    now: Micros,
    world: &mut World,
    reserve: i64,
    stats: &mut Stats,
    commands: &mut Vec<Command>,
) {
    for _ in 0..STALE_AT_ONCE {
        let room = world.free_frames(world.capacity) - reserve;
        if world.enforce && !world.remote && policy.ranks.unborn.len() as i64 >= room {
            break;
        }
        let Some((_, slot)) = policy.ranks.stale.first() else {
            break;
        };
        policy.ranks.stale.set(slot, None);
        if world.discardable(slot) && world.orders.bytes(Queue::Local) < LOCAL_BYTES {
            world.order(now, Operation::Discard, slot, stats, commands);
        }
    }
}

/// Evicts until the reserve and the next needs have frames.
fn make_room(
    policy: &mut Foresight,
    now: Micros,
    world: &mut World,
    reserve: i64,
    stats: &mut Stats,
    commands: &mut Vec<Command>,
) {
    // Open, the breaker leaves victims to the driver as well; a budget is kept all the same.
    if reserve == 0 || (!world.enforce && policy.breaker.state() == BreakerState::Open) {
        return;
    }
    let floor = world.floor();
    let steering = policy.breaker.allows(&world.usefulness);
    let mut have = world.free_frames(world.capacity) + world.blocks.moving_out() as i64;
    let mut needs = needs(policy, world).into_iter();
    // What is free above the reserve is for the first needs.
    for _ in 0..(have - reserve).max(0) {
        needs.next();
    }
    while let Some((key, slot)) = policy.ranks.resident.last() {
        // What is about to be used goes only where the budget would break otherwise, and
        // what runs now only where it alone uses more than the budget: then all is ranked
        // so, and the driver would do the same.
        let over = world.enforce && have < 0;
        if key <= world.guard_end && !over {
            break;
        }
        if have >= reserve {
            let worth = needs.next().is_some_and(|need| match need {
                Need::Fetch(at) => steering && policy.reach.allows(floor, at, key),
                Need::Birth(at) => at < key,
            });
            if !worth {
                break;
            }
        }
        let discard = is_dead(key) && world.discardable(slot);
        let (queue, limit) = if discard {
            (Queue::Local, LOCAL_BYTES)
        } else {
            (Queue::Out, out_limit(world))
        };
        if world.orders.bytes(queue) >= limit {
            break;
        }
        policy.ranks.resident.set(slot, None);
        let operation = if discard {
            Operation::Discard
        } else {
            Operation::Evict
        };
        world.order(now, operation, slot, stats, commands);
        have += 1;
    }
}

/// A frame that will be needed, and at which position.
#[derive(Clone, Copy)]
enum Need {
    /// For an absent block.
    Fetch(u64),
    /// For a block that is not born yet.
    Birth(u64),
}

/// The next needs for frames, soonest first.
fn needs(policy: &Foresight, world: &World) -> Vec<Need> {
    let fetches = 2 + 2 * (world.inflight_limit(Queue::In) / BLOCK_BYTES) as usize;
    let births = (world.capacity / BIRTH_SHARE) as usize;
    let mut fetches = policy
        .ranks
        .absent
        .iter()
        .map(|(key, _)| key)
        // For the rest there is room or there is not.
        .take_while(|&key| is_known(key))
        .take(fetches)
        .peekable();
    let mut births = policy
        .ranks
        .unborn
        .iter()
        .map(|(key, _)| key)
        .take(births)
        .peekable();
    let mut needs = Vec::new();
    loop {
        match (fetches.peek().copied(), births.peek().copied()) {
            (Some(fetch), Some(birth)) if birth < fetch => {
                births.next();
                needs.push(Need::Birth(birth));
            }
            (Some(fetch), _) => {
                fetches.next();
                needs.push(Need::Fetch(fetch));
            }
            (None, Some(birth)) => {
                births.next();
                needs.push(Need::Birth(birth));
            }
            (None, None) => return needs,
        }
    }
}

/// Fetches what is needed next while there are frames above the reserve.
fn fetch(
    policy: &mut Foresight,
    now: Micros,
    world: &mut World,
    reserve: i64,
    stats: &mut Stats,
    commands: &mut Vec<Command>,
) {
    if !policy.breaker.allows(&world.usefulness) {
        return;
    }
    let limit = world.inflight_limit(Queue::In);
    let births = (world.capacity / BIRTH_SHARE) as usize;
    let births: Vec<u64> = policy
        .ranks
        .unborn
        .iter()
        .map(|(key, _)| key)
        .take(births)
        .collect();
    while let Some((key, slot)) = policy.ranks.absent.first() {
        let sooner = births.partition_point(|&birth| birth < key) as i64;
        if world.free_frames(world.capacity) <= reserve + sooner {
            break;
        }
        let operation = match world.blocks.get(slot).residency {
            Residency::Host => Operation::Prefetch,
            _ => Operation::Populate,
        };
        let full = match operation {
            Operation::Prefetch => world.orders.bytes(Queue::In) >= limit,
            _ => world.orders.bytes(Queue::Local) >= LOCAL_BYTES,
        };
        if full {
            break;
        }
        policy.ranks.absent.set(slot, None);
        world.order(now, operation, slot, stats, commands);
        if !policy.breaker.allows(&world.usefulness) {
            break;
        }
    }
}
