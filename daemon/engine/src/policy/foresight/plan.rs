//! Turns ranks into moves: evictions ahead of need, fetches by deadline, both at once.
//!
//! Owns the order of moves; how far ahead to fetch is [`super::reach`]'s and [`super::late`]'s to say,
//! how many frames stay free [`super::reserve`]'s.

use super::rank::is_known;
use super::{Foresight, reserve};
use crate::command::{Command, Operation, Queue};
use crate::decision::{Reason, Stop};
use crate::policy::demand::out_limit;
use crate::stats::{BreakerState, Stats};
use crate::units::{BLOCK_BYTES, Micros, TICKS};
use crate::world::World;

/// Bytes that populates and discards may have under way.
const LOCAL_BYTES: u64 = 64 << 20;
/// Launches looked ahead where evictions are not planned (DeepUM's default, its table 2).
const UNPLANNED_LAUNCHES: u64 = 32;
/// Cycles in which all that is used fits before it is taken to do so, each of so many launches at
/// least.
const CYCLES_THAT_FIT: u64 = 2;
const LEAST_CYCLE: u64 = 16;
/// Blocks that the driver would evict next that are looked at in one go.
const TOUCHED: usize = 16;
/// Blocks on the host whose dead content is dropped in one go.
const STALE_AT_ONCE: usize = 64;

/// Issues what is to be done now.
pub(crate) fn carry_out(
    policy: &mut Foresight,
    now: Micros,
    world: &mut World,
    stats: &mut Stats,
    commands: &mut Vec<Command>,
) {
    see_what_fits(policy, world);
    let reserve = reserve::frames(world);
    // Where nothing is exchanged no frame is wanted, and what is dropped faults, page by page,
    // when it is born on the host.
    if policy.exchange.allowed(world) {
        drop_stale(policy, now, world, reserve, stats, commands);
    }
    policy.stops.room = make_room(policy, now, world, reserve, stats, commands);
    touch(policy, now, world, reserve, stats, commands);
    policy.stops.fetch = fetch(policy, now, world, reserve, stats, commands);
}

/// Whether more blocks are on the device or, by the learned cycle, used soon than fit there. Where
/// all fitted for two cycles, and the driver evicted nothing, it does: what seemed to be used was
/// taken for too large, or was another phase's.
fn see_what_fits(policy: &Foresight, world: &mut World) {
    let coming = policy.ranks.absent.len() + policy.ranks.births.len();
    let fits = world.blocks.frames() + coming as u64 <= world.capacity;
    let Some(lag) = world.history.lag().filter(|_| fits) else {
        world.was_full |= !fits && world.history.lag().is_some();
        world.fits_since = None;
        return;
    };
    let floor = world.floor();
    let since = *world.fits_since.get_or_insert(floor);
    if floor >= since + CYCLES_THAT_FIT * lag.max(LEAST_CYCLE) {
        world.was_full = false;
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
        policy.ranks.take_out(slot);
        if world.discardable(slot) && world.orders.bytes(Queue::Local) < LOCAL_BYTES {
            let because = Reason::Stale;
            world.order(now, Operation::Discard, slot, because, stats, commands);
        }
    }
}

/// Makes frames free for the reserve and for the next needs: dead blocks first, which cost
/// nothing, then live ones, furthest next use first. Says why the next victim stays.
fn make_room(
    policy: &mut Foresight,
    now: Micros,
    world: &mut World,
    reserve: i64,
    stats: &mut Stats,
    commands: &mut Vec<Command>,
) -> Stop {
    if reserve == 0 {
        return Stop::Fits;
    }
    // Open, the breaker leaves victims to the driver as well; a budget is kept all the same.
    if !world.enforce && policy.breaker.state() == BreakerState::Open {
        return Stop::DriverEvicts;
    }
    let exchanges = policy.exchange.allowed(world);
    if exchanges {
        discard_dead(policy, now, world, reserve, stats, commands);
    }
    // Of what runs unknown to us the driver's order knows more than ours: the victim could
    // be what it faults on again and again.
    if world.runs_unknown && !world.enforce {
        return Stop::DriverEvicts;
    }
    let floor = world.moment();
    if world.without.planner && !world.enforce {
        return Stop::DriverEvicts;
    }
    let steering = policy.breaker.allows(&world.usefulness, world.capacity);
    // Frames that are free, or will be, or whose content is dead.
    let mut have = world.free_frames(world.capacity)
        + world.blocks.moving_out() as i64
        + policy.ranks.dead.len() as i64;
    let fetches = near_fetches(policy, world);
    let repeats = world.history.lag().is_some();
    let takes_calls = world.takes_calls(Queue::Out, out_limit(world));
    let mut growth = None;
    // What queued births lack comes first; the rest of what is born is known by its growth alone.
    let near = policy.ranks.near_births(world, have - reserve);
    let begun = have;
    while let Some((key, slot)) = policy.ranks.resident.last() {
        // What is about to be used goes only where the budget would break otherwise, and
        // what runs now only where it alone uses more than the budget: then all is ranked
        // so, and the driver would do the same.
        let over = world.enforce && have < 0;
        if !exchanges && !over {
            return Stop::UsedOnHost;
        }
        if key <= world.guard_end && !over {
            return Stop::InUse;
        }
        // It is dead by the time that an eviction would be over, and its frame free for nothing:
        // it waits for that, but where a budget would not. When launches end is not known while
        // they do not come again.
        let waits = repeats && (have >= reserve || !world.enforce);
        let dies = world.dies(slot).filter(|&dies| dies < key);
        if waits && dies.is_some_and(|dies| dies <= world.guard_end) {
            policy.ranks.take_out(slot);
            continue;
        }
        let mut because = Reason::Reserve.into();
        if over {
            because = Reason::Budget.into();
        } else if have >= reserve {
            let births = match growth {
                Some((until, births)) if until == key => births,
                _ => policy.ranks.unmet_births(world, key),
            };
            growth = Some((key, births));
            let spare = have - reserve;
            let near = near
                .filter(|&(short, at)| have - begun < short && at < key)
                .map(|(_, at)| at);
            let need = if near.is_some() {
                near
            } else if spare < births {
                // The first of them that finds no frame free; those that are not known yet come
                // behind all that is queued.
                let births = &policy.ranks.births;
                let first = births.nth(spare.max(0) as usize);
                Some(first.map_or(u64::MAX, |(at, _)| at))
            } else {
                fetches.get((spare - births) as usize).copied()
            };
            // Its frame is free for nothing before it is missed.
            if repeats && dies.zip(need).is_some_and(|(dies, need)| dies < need) {
                policy.ranks.take_out(slot);
                continue;
            }
            because = if near.is_some() || spare < births {
                Reason::Births.into()
            } else if !steering {
                return withheld(policy);
            } else {
                let mut due = |at| at < key && policy.ranks.is_late(world, at);
                match need {
                    None => return Stop::Enough,
                    Some(at) if due(at) || policy.reach.allows(floor, at, key) => {
                        Reason::Exchange.for_need(Some(at))
                    }
                    Some(_) => return Stop::NotSoonEnough,
                }
            };
        }
        let turn = world.without.duplex && world.orders.bytes(Queue::In) > 0;
        if turn {
            return Stop::OtherDirection;
        }
        let full = world.orders.bytes(Queue::Out) >= out_limit(world);
        if full || !(takes_calls || over) {
            return Stop::LinkFull;
        }
        let slot = match world.candidate(key).filter(|_| !over) {
            Some(candidate) => {
                because = Reason::Unproven.for_need(because.rival);
                candidate
            }
            None => slot,
        };
        policy.ranks.take_out(slot);
        world.left.decide(policy.ranks.prepared(), world.capacity);
        world.order(now, Operation::Evict, slot, because, stats, commands);
        have += 1;
    }
    Stop::Nothing
}

/// Where the driver evicts, in the order in which blocks came to the device, the first ones of its
/// list go to the end of it if they are needed in the nearer half of the time up to the last use
/// of all.
fn touch(
    policy: &mut Foresight,
    now: Micros,
    world: &mut World,
    reserve: i64,
    stats: &mut Stats,
    commands: &mut Vec<Command>,
) {
    // Where the driver does not tell what came when, its order is not known.
    let known = world.probes && !world.enforce && !world.without.planner;
    if !known || world.free_frames(world.capacity) >= reserve {
        return;
    }
    let (Some(cycle), Some((last, _))) = (world.history.lag(), policy.ranks.resident.last()) else {
        return;
    };
    let floor = world.moment();
    let last = if is_known(last) {
        last
    } else {
        floor + cycle * TICKS
    };
    let soon = floor + last.saturating_sub(floor) / 2;
    let oldest = policy.ranks.oldest.iter().map(|(_, slot)| slot);
    let oldest: Vec<u32> = oldest.take(TOUCHED).collect();
    for slot in oldest {
        let block = world.blocks.get(slot);
        let needed = !block.dead() && world.next_use(slot) <= soon;
        if !needed || world.orders.bytes(Queue::Local) >= LOCAL_BYTES {
            return;
        }
        // The call would bring what is missing of it.
        if u64::from(block.device_bytes) < BLOCK_BYTES {
            continue;
        }
        world.order(now, Operation::Touch, slot, Reason::Kept, stats, commands);
        let last = world.blocks.migrated_again(slot);
        policy.ranks.oldest.set(slot, Some(last));
    }
}

/// Why nothing is fetched though there is something to fetch.
fn withheld(policy: &Foresight) -> Stop {
    match policy.breaker.state() {
        BreakerState::Open => Stop::Breaker,
        BreakerState::Closed | BreakerState::HalfOpen => Stop::Trust,
    }
}

/// Drops dead content where frames are wanted sooner than it is born again, also by what is dead
/// itself and has none: once the program is handed out memory, its frame cannot be taken any more,
/// and whoever launches far ahead is handed out much of it long before it is born.
fn discard_dead(
    policy: &mut Foresight,
    now: Micros,
    world: &mut World,
    reserve: i64,
    stats: &mut Stats,
    commands: &mut Vec<Command>,
) {
    if policy.ranks.dead.last().is_none() {
        return;
    }
    let mut have = world.free_frames(world.capacity) + world.blocks.moving_out() as i64;
    let met = (have - reserve).max(0) as usize;
    let needs = near_needs(policy, world);
    // Free frames beyond those needs: so many of what is not handed out yet have theirs.
    let mut left = met.saturating_sub(needs.len());
    let mut needs = needs.into_iter().skip(met);
    while let Some((key, slot)) = policy.ranks.dead.last() {
        let need = if have >= reserve {
            let next = needs.next().or_else(|| {
                left += 1;
                policy.ranks.unborn.nth(left - 1).map(|(at, _)| at)
            });
            match next {
                Some(at) if at < key => Some(at),
                _ => break,
            }
        } else {
            None
        };
        let discard = world.discardable(slot);
        let (operation, queue, limit, reason) = if discard {
            (Operation::Discard, Queue::Local, LOCAL_BYTES, Reason::Dead)
        } else {
            let limit = out_limit(world);
            (Operation::Evict, Queue::Out, limit, Reason::Undroppable)
        };
        if world.orders.bytes(queue) >= limit {
            break;
        }
        policy.ranks.take_out(slot);
        let because = reason.for_need(need.filter(|&at| is_known(at)));
        world.order(now, operation, slot, because, stats, commands);
        have += 1;
    }
}

/// How many fetches are near: as many as the link can have under way, twice.
fn near_count(world: &World) -> usize {
    2 + 2 * (world.inflight_limit(Queue::In) / BLOCK_BYTES) as usize
}

/// Positions of the next fetches that are near, soonest first.
fn near_fetches(policy: &Foresight, world: &World) -> Vec<u64> {
    let count = near_count(world);
    let keys = policy.ranks.absent.iter().map(|(key, _)| key);
    // For those whose next use is unknown there is room or there is not.
    let known = keys.take_while(|&key| is_known(key));
    known.take(count).collect()
}

/// Positions of the next fetches and births, soonest first.
fn near_needs(policy: &Foresight, world: &World) -> Vec<u64> {
    let mut needs = near_fetches(policy, world);
    let births = policy.ranks.births.iter().map(|(key, _)| key);
    needs.extend(births.take((LOCAL_BYTES / BLOCK_BYTES) as usize));
    needs.sort_unstable();
    needs
}

/// Brings what is needed next while there are frames above the reserve. A birth takes no
/// time on the link, so it does not wait behind fetches, but leaves the frames to those
/// that come before it. Says why the next one waits.
fn fetch(
    policy: &mut Foresight,
    now: Micros,
    world: &mut World,
    reserve: i64,
    stats: &mut Stats,
    commands: &mut Vec<Command>,
) -> Stop {
    let limit = world.inflight_limit(Queue::In);
    let takes_calls = world.takes_calls(Queue::In, limit);
    let mut growth = None;
    let near = policy.ranks.near_births(world, 0);
    loop {
        if !policy.breaker.allows(&world.usefulness, world.capacity) {
            return withheld(policy);
        }
        let planned = !world.without.planner || world.enforce;
        let spare = if planned {
            world.free_frames(world.capacity) - reserve
        } else {
            i64::from(u32::MAX)
        };
        if spare <= 0 {
            return Stop::NoFrame;
        }
        let fetch = policy.ranks.absent.first();
        // What is guessed to be born is populated as far as guesses were right.
        let births = &policy.ranks.births;
        let birth = births.first().filter(|_| world.births_trusted() > 0);
        let turn = !world.without.duplex || world.orders.bytes(Queue::Out) == 0;
        let horizon = world.moment() + UNPLANNED_LAUNCHES * TICKS;
        let waiting = fetch.or(birth).map_or(Stop::Nothing, |_| Stop::Horizon);
        let fetch = fetch.filter(|&(key, _)| planned || key < horizon);
        let birth = birth.filter(|&(key, _)| planned || key < horizon);
        let full = fetch.or(birth).map_or(waiting, |_| Stop::LinkFull);
        let full = if turn { full } else { Stop::OtherDirection };
        let fetch = fetch.filter(|_| turn && takes_calls && world.orders.bytes(Queue::In) < limit);
        let birth = birth.filter(|_| world.orders.bytes(Queue::Local) < LOCAL_BYTES);
        let first = match (fetch, birth) {
            (Some(fetch), Some(birth)) => fetch.0 <= birth.0,
            (fetch, _) => fetch.is_some(),
        };
        if first && let Some((key, slot)) = fetch {
            // A fault on the little that is used takes less than the whole block does; and it is to be
            // seen whether more than that is used.
            if world.is_thin(slot) || world.withholds(slot, key) {
                policy.ranks.take_out(slot);
                continue;
            }
            // Blocks that are born before will need frames; what dies gives some back.
            let births = match growth {
                Some((until, births)) if until == key => births,
                _ => {
                    let near = near.filter(|&(_, at)| at < key).map_or(0, |near| near.0);
                    let births = policy.ranks.possible_births(world, key).max(near);
                    births - policy.ranks.dead.len() as i64
                }
            };
            growth = Some((key, births));
            if spare <= births {
                let Some((_, slot)) = birth else {
                    return Stop::FramesForBirths;
                };
                policy.ranks.take_out(slot);
                let because = Reason::Born;
                world.order(now, Operation::Populate, slot, because, stats, commands);
                continue;
            }
            policy.ranks.take_out(slot);
            let because = if is_known(key) {
                Reason::Needed
            } else {
                Reason::UsedOnHost
            };
            world.order(now, Operation::Prefetch, slot, because, stats, commands);
        } else if let Some((key, slot)) = birth {
            // As many fetches as there are frames come before it, or as are near: it would only
            // hold a frame for long, and leave as if it had content.
            let near = near_count(world).min(spare as usize);
            let last = policy.ranks.absent.nth(near - 1);
            if last.is_some_and(|(at, _)| at < key) {
                return Stop::FramesForFetches;
            }
            policy.ranks.take_out(slot);
            let because = Reason::Born;
            world.order(now, Operation::Populate, slot, because, stats, commands);
        } else {
            return full;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::access::Argument;
    use crate::units::Range;
    use crate::world::block::Residency;
    use crate::{BlockId, Bytes, Config, PolicyKind};

    /// Of a device of 64 blocks 63 are in use, and ten lie on the host, in a pool or not. Those up to
    /// this number have content.
    fn crowded(pool: bool, live: u64) -> World {
        let mut world = World::new(&Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES)));
        for (first, count, residency) in [(1, 63, Residency::Device), (64, 10, Residency::Host)] {
            let range = Range {
                address: first * BLOCK_BYTES,
                bytes: count * BLOCK_BYTES,
            };
            world.alloc(range, pool, residency, &mut Stats::default());
            if pool {
                world.begin_part(range);
            }
            for id in range.blocks() {
                let slot = world.blocks.find(id).unwrap();
                world.blocks.set_content(slot, id.0 <= live);
            }
        }
        world.was_full = true;
        world
    }

    /// The blocks that leave now.
    fn evicted(world: &mut World) -> Vec<u64> {
        let mut policy = Foresight::default();
        policy.ranks.refresh(world);
        let (mut stats, mut commands) = (Stats::default(), Vec::new());
        carry_out(&mut policy, Micros(1), world, &mut stats, &mut commands);
        let evicted = commands.iter().filter(|c| c.operation == Operation::Evict);
        evicted.map(|c| c.range.address / BLOCK_BYTES).collect()
    }

    #[test]
    fn victims_leave_early_where_the_link_has_no_time_for_all_fetches_later() {
        const TURN: u64 = 80;
        let leave = |launch_us: u64| {
            let mut world = crowded(false, u64::MAX);
            let head = 4 * TURN;
            for position in 1..=head {
                let number = (position % TURN) as u32;
                world.history.push((number, number), std::iter::empty());
                let at = Micros(1_000 + position * launch_us);
                world.history.set_over(position, at);
            }
            // What is away is used 40 launches from now, what is there 60.
            for number in 1..=73 {
                let launch = head - TURN + if number > 63 { 40 } else { 60 };
                let slot = world.blocks.find(BlockId(number)).unwrap();
                world.blocks.will_use(slot, launch * TICKS, 0, None);
            }
            evicted(&mut world).len()
        };
        let (in_time, late) = (leave(1_000_000), leave(1));
        assert!(late > in_time, "{late} {in_time}");
    }

    #[test]
    fn what_is_put_to_the_test_leaves_in_the_place_of_another() {
        let leaves = |tested: Option<u64>| {
            let mut world = crowded(false, u64::MAX);
            world.probes = true;
            if let Some(number) = tested {
                let arguments = Arc::from([Argument {
                    function: 3,
                    word: 0,
                    shape: 0,
                    address: number * BLOCK_BYTES,
                }]);
                world.proofs.observe((1, &arguments), &[], 100);
                let block = world.blocks.within(number, number + 1).collect::<Vec<_>>();
                world.proofs.offer(&arguments, block.into_iter());
            }
            evicted(&mut world)
        };
        let plain = leaves(None);
        let [victim] = plain[..] else {
            panic!("{plain:?}");
        };
        let other = if victim == 30 { 31 } else { 30 };
        assert_eq!(leaves(Some(other)), [other]);
    }

    #[test]
    fn what_leaves_while_frames_wait_for_content_is_counted() {
        let count = |live: u64| {
            let mut world = crowded(true, live);
            let evicted = evicted(&mut world);
            (evicted.len(), world.left.others_wait(world.capacity))
        };
        assert_eq!(count(63), (1, false));
        assert_eq!(count(63 - 4), (1, true), "one in sixteen frames");
    }
}
