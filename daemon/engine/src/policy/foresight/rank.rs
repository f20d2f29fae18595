//! Orders blocks by next use: what to evict last, what to fetch first.
//!
//! Owns the keys and keeps them true at logarithmic cost per changed block.

use super::late::{EVERY_US, Late, NEAR, by_launch, in_time};
use crate::command::Queue;
use crate::decision::{Standing, launch_at};
use crate::policy::Stops;
use crate::policy::ranking::{Keys, Order, Ranking};
use crate::table::entry;
use crate::units::{BLOCK_BYTES, Micros, TICKS};
use crate::world::block::{Block, Residency};
use crate::world::{NEVER, World};

/// Keys of blocks whose next use is unknown begin here; among them the least recently used
/// is the greatest.
const UNKNOWN: u64 = 1 << 61;
/// No position gets here.
const POSITIONS: u64 = 1 << 60;
/// Births of queued launches for which room is made while nothing is learned.
const QUEUED_BIRTHS: u64 = 32;
/// Overdue keys looked at in one go.
const OVERDUE: usize = 1024;

/// The rankings.
#[derive(Debug, Default)]
pub(crate) struct Ranks {
    /// Blocks on the device with content: the last one is the next victim.
    pub resident: Order,
    /// Dead blocks on the device: the last one is born again last.
    pub dead: Order,
    /// Blocks with a known use whose content is not there: the first one is the next to
    /// fetch. Last those that launches access on the host, though nothing foretells when
    /// again.
    pub absent: Order,
    /// Live blocks with a known use and no content yet: they need a frame alone.
    pub births: Order,
    /// Dead blocks without a frame that are to be born again: they will need one.
    pub unborn: Order,
    /// Dead blocks whose content still lies on the host.
    pub stale: Order,
    /// Blocks with a known use that are under way to the device.
    pub coming: Order,
    /// Blocks on the device in the order in which the driver evicts.
    pub oldest: Ranking,
    prepared: Prepared,
    /// Blocks on the device that were given back and not handed out again since, by when the
    /// device comes there.
    dying: Order,
    dies: Keys,
    near: Near,
    late: Late,
    /// The order that each block was last put into, and its key there; none if it was taken out
    /// since.
    places: Vec<Place>,
    keys: Keys,
    lag: Option<u64>,
    launches: u64,
}

/// Whether a key says when the block is used next.
pub(crate) fn is_known(key: u64) -> bool {
    key < UNKNOWN
}

/// A ranking, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Place {
    #[default]
    None,
    Resident,
    Dead,
    Absent,
    Births,
    Unborn,
    Stale,
    Coming,
}

/// Live blocks that have a frame and no content yet.
#[derive(Debug, Default)]
struct Prepared {
    is: Vec<bool>,
    count: u64,
}

impl Prepared {
    fn set(&mut self, slot: u32, prepared: bool) {
        if !prepared && slot as usize >= self.is.len() {
            return;
        }
        let was = std::mem::replace(entry(&mut self.is, slot, false), prepared);
        self.count = self.count + u64::from(prepared) - u64::from(was);
    }
}

/// The births for which evictions are to be under way, when they were last looked at.
#[derive(Debug, Default)]
struct Near {
    at: Option<Micros>,
    /// Frames that they need beside those of what dies before, and when the last of them comes.
    frames: Option<(i64, u64)>,
}

impl Ranks {
    /// Takes in all that changed.
    pub(crate) fn refresh(&mut self, world: &mut World) {
        let lag = world.history.lag();
        if lag != self.lag {
            // All predictions moved. Doing that again and again must cost no more than
            // the launches between do.
            let head = world.history.head();
            let settled = world.history.held() >= 2 || lag.is_none();
            if settled && (head - self.launches) * 64 >= world.blocks.len() as u64 {
                self.lag = lag;
                self.launches = head;
                world.blocks.mark_all();
            }
        }
        while let Some(slot) = world.blocks.next_changed() {
            self.rank(world, slot);
        }
        world.blocks.recycle();
        let floor = world.moment();
        for _ in 0..OVERDUE {
            let overdue = [
                self.resident.first(),
                self.absent.first(),
                self.births.first(),
                self.dead.first(),
                self.unborn.first(),
                self.coming.first(),
            ];
            let Some((_, slot)) = overdue.into_iter().flatten().find(|&(key, _)| key < floor)
            else {
                break;
            };
            world.gone_past(slot);
            self.rank(world, slot);
        }
    }

    /// The first moment at which anything is needed that is not there.
    pub(crate) fn first_absent(&self) -> Option<u64> {
        let first = [self.absent.first(), self.births.first()];
        first.into_iter().flatten().map(|(key, _)| key).min()
    }

    /// Frames of live blocks without content.
    pub(crate) fn prepared(&self) -> u64 {
        self.prepared.count
    }

    /// The first moment at which anything is needed that is under way.
    pub(crate) fn first_coming(&self) -> Option<u64> {
        self.coming.first().map(|(key, _)| key)
    }

    /// Frames that births need at some launch before the moment `until` and that none of them
    /// has yet: what is born before, less what dies. While no cycle is known, the next births
    /// of the queued launches.
    pub(crate) fn unmet_births(&self, world: &World, until: u64) -> i64 {
        self.unmet(world, until, World::growth)
    }

    /// As [`Ranks::unmet_births`], as far as it is possible: a fetch had better leave them frames.
    pub(crate) fn possible_births(&self, world: &World, until: u64) -> i64 {
        self.unmet(world, until, World::possible_growth)
    }

    fn unmet(&self, world: &World, until: u64, growth: fn(&World, u64) -> i64) -> i64 {
        if world.history.lag().is_none() {
            let trusted = world.births_trusted().min(QUEUED_BIRTHS) as usize;
            let queued = self.births.iter().take(trusted);
            return queued.take_while(|&(key, _)| key < until).count() as i64;
        }
        let growth = growth(world, until / TICKS) - self.prepared.count as i64;
        growth.max(0)
    }

    /// Births of queued launches that find no frame unless evictions for them begin now, and
    /// when the last of them comes. `free`: frames that any of them can take. What dies before
    /// gives its frame back only where it was not handed out again, which a growth does not tell.
    pub(crate) fn near_births(&mut self, world: &World, free: i64) -> Option<(i64, u64)> {
        let since = self.near.at.map(|at| world.now.0.saturating_sub(at.0));
        if since.is_none_or(|since| since >= EVERY_US) {
            let short = self.short_of_births(world, free);
            let frames = short.map(|(short, at)| (short + free, at));
            let at = Some(world.now);
            self.near = Near { at, frames };
        }
        let (frames, at) = self.near.frames?;
        (frames > free).then_some((frames - free, at))
    }

    /// As [`Ranks::near_births`], as of now.
    fn short_of_births(&self, world: &World, free: i64) -> Option<(i64, u64)> {
        world.history.lag()?;
        let block_us = BLOCK_BYTES as f64 / world.orders.rate(Queue::Out);
        let all = self.births.len() as i64 - free;
        let births = self.births.iter().take(NEAR).map(|(key, _)| key);
        let mut most = None;
        for (count, key, wait_us) in by_launch(world, births) {
            // Later ones wait longer.
            if in_time(all, block_us, wait_us) {
                break;
            }
            let short = count - free - self.dying.below(key / TICKS * TICKS) as i64;
            let urgent = short > 0 && !in_time(short, block_us, wait_us);
            if urgent && most.is_none_or(|(most, _)| short > most) {
                most = Some((short, key));
            }
        }
        most
    }

    /// Whether what is needed at this moment comes too late unless it is fetched now ([`Late::is`]).
    pub(crate) fn is_late(&mut self, world: &World, need: u64) -> bool {
        self.late.is(need, world, &self.absent)
    }

    /// Gives a block its place.
    pub(crate) fn rank(&mut self, world: &World, slot: u32) {
        let block = world.blocks.get(slot);
        let (place, key) = if block.gone {
            (Place::None, 0)
        } else {
            place_of(world, slot, block)
        };
        let prepared =
            block.holds_frame() && !block.content && !block.dead() && !block.gone && block.pool;
        self.prepared.set(slot, prepared);
        let here = block.residency == Residency::Device && !block.gone;
        let dies = if here && block.frees() {
            world.dies(slot)
        } else {
            None
        };
        let before = self.dies.replace(slot, dies);
        if before != dies {
            if let Some(before) = before {
                self.dying.remove(before, slot);
            }
            if let Some(dies) = dies {
                self.dying.insert(dies, slot);
            }
        }
        self.oldest.set(slot, here.then_some(block.migrated));
        self.put(slot, (place, (place != Place::None).then_some(key)));
    }

    /// Takes a block out until it is ranked again.
    pub(crate) fn take_out(&mut self, slot: u32) {
        let place = self.places.get(slot as usize);
        self.put(slot, (place.copied().unwrap_or_default(), None));
    }

    fn put(&mut self, slot: u32, (place, key): (Place, Option<u64>)) {
        let before = std::mem::replace(entry(&mut self.places, slot, Place::None), place);
        let old = self.keys.replace(slot, key);
        if (before, old) == (place, key) {
            return;
        }
        if let (Some(order), Some(old)) = (self.order(before), old) {
            order.remove(old, slot);
        }
        if let (Some(order), Some(key)) = (self.order(place), key) {
            order.insert(key, slot);
        }
    }

    /// What the ranks mean for a block: its place, as of now, among the others, as of the last
    /// decision.
    pub(crate) fn standing(&self, world: &World, slot: u32, stops: Stops) -> Standing {
        let block = world.blocks.get(slot);
        if matches!(block.residency, Residency::MovingIn | Residency::MovingOut) {
            return Standing::UnderWay;
        }
        if block.refused {
            return Standing::LeftAlone;
        }
        let (place, key) = place_of(world, slot, block);
        let waits = |order: &Order| Standing::Waits {
            before: order.before(key, slot) as u64,
            stop: stops.fetch,
        };
        match place {
            Place::Resident if world.dies(slot).is_some() && !self.keys.has(slot) => {
                Standing::Dying
            }
            Place::Resident => {
                let (before, last) = self.resident.after(key, slot);
                let (victim_key, victim) = last.unwrap_or((key, slot));
                Standing::Kept {
                    before: before as u64,
                    victim: world.blocks.get(victim).id,
                    victim_use: is_known(victim_key)
                        .then(|| world.history.own_number(launch_at(victim_key))),
                    stop: stops.room,
                }
            }
            Place::Dead => Standing::DeadKept,
            Place::Unborn => Standing::Unborn,
            Place::Stale => Standing::Stale,
            Place::Absent => waits(&self.absent),
            Place::Births => waits(&self.births),
            Place::Coming => Standing::UnderWay,
            Place::None => Standing::NoUseKnown,
        }
    }

    fn order(&mut self, place: Place) -> Option<&mut Order> {
        match place {
            Place::None => None,
            Place::Resident => Some(&mut self.resident),
            Place::Dead => Some(&mut self.dead),
            Place::Absent => Some(&mut self.absent),
            Place::Births => Some(&mut self.births),
            Place::Unborn => Some(&mut self.unborn),
            Place::Stale => Some(&mut self.stale),
            Place::Coming => Some(&mut self.coming),
        }
    }

    /// Estimated size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let orders = [
            &self.resident,
            &self.dying,
            &self.dead,
            &self.absent,
            &self.births,
            &self.unborn,
            &self.stale,
            &self.coming,
        ];
        let flags = self.places.capacity() + self.prepared.is.capacity();
        let orders = orders.into_iter().map(Order::bytes).sum::<u64>();
        orders + self.oldest.bytes() + self.keys.bytes() + self.dies.bytes() + flags as u64
    }
}

/// Where a block that exists belongs, and its key there.
fn place_of(world: &World, slot: u32, block: &Block) -> (Place, u64) {
    if block.residency == Residency::MovingOut {
        return (Place::None, 0);
    }
    let next = world.next_use(slot);
    let since = |last: u64| UNKNOWN + POSITIONS - last.min(POSITIONS);
    let unknown = || since(block.last_used);
    match block.residency {
        Residency::Device if block.refused => (Place::None, 0),
        Residency::Device if block.dead() => (Place::Dead, next.min(POSITIONS)),
        Residency::Device if block.stays => (Place::Resident, unknown()),
        Residency::Device if world.without.next_use && next > world.guard_end => {
            (Place::Resident, unknown())
        }
        Residency::Device => match world.reuse(slot, next) {
            NEVER if block.by_chance => {
                let longer = world.blocks.chances.longer(block.popular);
                (Place::Resident, since(block.last_used + longer))
            }
            NEVER => (Place::Resident, unknown()),
            next => (Place::Resident, next.min(POSITIONS)),
        },
        Residency::Host if block.dead() && block.refused => (Place::None, 0),
        Residency::Host if block.dead() => (Place::Stale, next.min(POSITIONS)),
        Residency::Host if block.mapped && !block.refused && (next == NEVER || block.stays) => {
            (Place::Absent, unknown())
        }
        Residency::Host if block.stays => (Place::None, 0),
        Residency::Host | Residency::Unpopulated if next == NEVER || block.refused => {
            (Place::None, 0)
        }
        Residency::Unpopulated if block.dead() => (Place::Unborn, next.min(POSITIONS)),
        Residency::Unpopulated => (Place::Births, next.min(POSITIONS)),
        Residency::Host => (Place::Absent, next.min(POSITIONS)),
        Residency::MovingIn if next == NEVER || block.dead() => (Place::None, 0),
        Residency::MovingIn => (Place::Coming, next.min(POSITIONS)),
        Residency::MovingOut => (Place::None, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Reason;
    use crate::stats::Stats;
    use crate::units::Range;
    use crate::world::tests::queue_as;
    use crate::{BlockId, Bytes, Config, Operation, PolicyKind, Seq, StreamId};

    /// A world with one block on the host, and that block.
    fn one_block() -> (World, u32) {
        let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
        let mut world = World::new(&config);
        let range = Range {
            address: BLOCK_BYTES,
            bytes: BLOCK_BYTES,
        };
        world.alloc(range, false, Residency::Host, &mut Stats::default());
        let slot = world.blocks.find(BlockId(1)).unwrap();
        (world, slot)
    }

    fn fetch(world: &mut World, slot: u32) {
        let (mut stats, mut commands) = (Stats::default(), Vec::new());
        let (operation, because) = (Operation::Prefetch, Reason::Needed);
        world.order(
            Micros(0),
            operation,
            slot,
            because,
            &mut stats,
            &mut commands,
        );
    }

    #[test]
    fn what_was_missed_soon_stays_longer_than_what_came_when_it_did() {
        let (mut world, slot) = one_block();
        for _ in 0..1_000 {
            world.blocks.chances.stayed(20);
        }
        world.blocks.set(slot, Residency::Device);
        let mut key = |popular: u8, by_chance: bool| {
            let block = world.blocks.get_mut(slot);
            block.last_used = 100;
            (block.popular, block.by_chance) = (popular, by_chance);
            place_of(&world, slot, world.blocks.get(slot))
        };
        assert_eq!(key(0, true), (Place::Resident, UNKNOWN + POSITIONS - 100));
        assert_eq!(key(2, true), (Place::Resident, UNKNOWN + POSITIONS - 160));
        assert_eq!(key(2, false), key(0, true));
    }

    #[test]
    fn what_is_under_way_is_not_there_yet() {
        let (mut world, slot) = one_block();
        let moment = 3 * TICKS + 7;
        world.blocks.will_use(slot, moment, 0, None);
        let mut ranks = Ranks::default();
        ranks.refresh(&mut world);
        assert_eq!(ranks.first_absent(), Some(moment));

        fetch(&mut world, slot);
        ranks.refresh(&mut world);
        assert_eq!(
            (ranks.first_absent(), ranks.first_coming()),
            (None, Some(moment))
        );

        world.blocks.set(slot, Residency::Device);
        ranks.refresh(&mut world);
        assert_eq!((ranks.first_absent(), ranks.first_coming()), (None, None));
    }

    #[test]
    fn what_a_launch_has_gone_past_helped_before_it_ends() {
        let (mut world, slot) = one_block();
        for _ in 0..4 {
            world.history.push((0, 0), std::iter::empty());
        }
        let running = world.floor();
        world.blocks.will_use(slot, running * TICKS + 500, 0, None);
        fetch(&mut world, slot);
        world.blocks.set(slot, Residency::Device);
        let mut ranks = Ranks::default();
        ranks.refresh(&mut world);
        assert_eq!(world.usefulness.useful_bytes, 0);

        world.progress.began(Micros(0), (0, None), TICKS, true);
        world.progress.faulted(Micros(1), TICKS - 1);
        ranks.refresh(&mut world);
        assert_eq!(world.usefulness.useful_bytes, BLOCK_BYTES);
    }

    /// A world in which eight blocks are born two launches after the running one, which takes so
    /// long in a cycle of four, and three others die before. The last ones are `again` handed out.
    fn eight_births(launch_us: u64, again: bool) -> World {
        let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
        let mut world = World::new(&config);
        let range = |first: u64, count: u64| Range {
            address: first * BLOCK_BYTES,
            bytes: count * BLOCK_BYTES,
        };
        let [born, dying] = [range(1, 8), range(9, 3)];
        for (part, residency) in [(born, Residency::Unpopulated), (dying, Residency::Device)] {
            world.alloc(part, true, residency, &mut Stats::default());
            world.begin_part(part);
        }
        let over = 60;
        for position in 1..=over + 4 {
            let exec = position as u32 % 4;
            if position <= over {
                world.history.push((exec, 0), std::iter::empty());
                let at = Micros(1_000 + position * launch_us);
                world.history.set_over(position, at);
                continue;
            }
            queue_as(&mut world, exec, position - over);
            if position == over + 1 {
                world.end_part(dying.address, StreamId(0), Seq(2));
            }
        }
        if again {
            world.begin_part(dying);
        }
        for id in born.blocks() {
            let slot = world.blocks.find(id).unwrap();
            world.blocks.will_use(slot, (over + 3) * TICKS, 0, None);
        }
        world
    }

    #[test]
    fn room_for_births_is_made_when_the_link_needs_the_time_and_not_before() {
        let near = |launch_us, again, free| {
            let mut world = eight_births(launch_us, again);
            assert_eq!((world.floor(), world.history.lag()), (61, Some(4)));
            let mut ranks = Ranks::default();
            ranks.refresh(&mut world);
            assert_eq!(ranks.births.len(), 8);
            ranks.near_births(&world, free).map(|(short, _)| short)
        };
        assert_eq!(near(1, true, 0), Some(8));
        assert_eq!(near(1, true, 5), Some(3));
        assert_eq!(near(1, true, 8), None);
        assert_eq!(near(1, false, 0), Some(5), "three die before");
        assert_eq!(near(1, false, 5), None);
        assert_eq!(near(1_000_000, true, 0), None, "there is time");
    }
}
