//! When blocks will be used, as far as queue and history tell.
//!
//! Owns the questions about the future that policies ask. The answers come from the queued
//! launches first, then from the place in the past that the present repeats.

use super::block::{Block, Residency};
use super::{NEVER, World};
use crate::units::TICKS;

impl World {
    /// Whether arguments can be put to the test: what is away faults, and somebody tells.
    fn tests(&self) -> bool {
        self.probes && !self.remote && !self.without.feedback
    }

    /// Whether a block that is needed next at this moment is not to be fetched, to see whether the
    /// launch that is taken to use it does.
    pub(crate) fn withholds(&mut self, slot: u32, moment: u64) -> bool {
        let position = moment / TICKS;
        let block = self.blocks.get(slot);
        let faults = self.tests() && !block.mapped && !block.stays;
        if !faults {
            return false;
        }
        // For what may run already it is too late to begin.
        let more = position > self.running_end;
        let arguments = match self.window.at(position) {
            Some(launch) => Some(launch.arguments.clone()),
            None => {
                let lag = self.history.lag();
                let like = lag.and_then(|lag| self.history.exec(position.checked_sub(lag)?));
                like.and_then(|exec| self.proofs.arguments(exec))
            }
        };
        let number = block.id.0;
        arguments.is_some_and(|arguments| self.proofs.withhold(&arguments, number, more))
    }

    /// A block that leaves instead of one that is used at this moment, to see whether the launch that
    /// is taken to use it does. It is taken to be used half as late at least.
    pub(crate) fn candidate(&mut self, moment: u64) -> Option<u32> {
        if !self.tests() {
            return None;
        }
        let floor = self.moment();
        while let Some(slot) = self.proofs.next_candidate() {
            let block = self.blocks.get(slot);
            let holds = block.residency == Residency::Device && block.content && !block.dead();
            let may_leave = holds && !block.refused && !block.stays && !block.frees();
            let in_time = |moment: u64| moment.saturating_sub(floor);
            let next = self.next_use(slot);
            let late = next > self.guard_end && in_time(next).saturating_mul(2) >= in_time(moment);
            if may_leave && late {
                return Some(slot);
            }
        }
        None
    }

    /// A block may be used by what runs now.
    pub(crate) fn running(&self, slot: u32) -> bool {
        self.used_until(slot, self.running_end * TICKS + TICKS - 1)
    }

    /// What a block holds is used next by what may run now.
    pub(crate) fn is_awaited(&self, slot: u32) -> bool {
        self.blocks.get(slot).content && self.running(slot)
    }

    /// A block may be used before an eviction would be over.
    pub(crate) fn guarded(&self, slot: u32) -> bool {
        self.used_until(slot, self.guard_end)
    }

    fn used_until(&self, slot: u32, end: u64) -> bool {
        let next = self.blocks.get(slot).uses.at_or_after(self.moment());
        next.is_some_and(|next| next <= end)
    }

    /// Position of the oldest launch that is not over.
    pub(crate) fn floor(&self) -> u64 {
        self.window
            .front()
            .map_or(self.history.head() + 1, |launch| launch.position)
    }

    /// The moment that the device has reached.
    pub(crate) fn moment(&self) -> u64 {
        self.floor() * TICKS + self.progress.ticks()
    }

    /// How many more blocks will have content at some launch before `until` than have now,
    /// as far as the learned cycle tells: frames that births take, less those that deaths
    /// give back. At least 0.
    pub(crate) fn growth(&self, until: u64) -> i64 {
        let Some((before, peak)) = self.lived(until) else {
            return 0;
        };
        // What died since the last launch was over has left its frame already, but was counted
        // when that launch was over, as was its like a cycle ago.
        let last = self.history.live_after(self.floor() - 1);
        let died = last.map_or(0, |last| u64::from(last).saturating_sub(self.blocks.live()));
        let growth = i64::from(peak) - i64::from(before) + died as i64;
        // What a cycle ago was used for the first time has content since then.
        growth.min(self.blocks.without_content() as i64)
    }

    /// As [`World::growth`]; where the newest launch has other arguments than the one that it
    /// repeats, so many more that as many have content as had then, if that is more. What runs may
    /// be another phase, as an evaluation of what was trained: less has content than did at that
    /// place, and all of what the program is about to train on has yet to get some.
    pub(crate) fn possible_growth(&self, until: u64) -> i64 {
        let growth = self.growth(until);
        let lived = self.lived(until).filter(|_| self.history.held() == 0);
        lived.map_or(growth, |(_, peak)| {
            growth.max(i64::from(peak) - self.blocks.live() as i64)
        })
    }

    /// A cycle ago: the blocks with content before the launch that is the oldest now, and the most
    /// of them from there to the launch `until`. None where no cycle is known.
    fn lived(&self, until: u64) -> Option<(u32, u32)> {
        let floor = self.floor();
        let lag = self.history.lag().filter(|&lag| floor > lag)?;
        let end = until.min(floor + lag);
        (end > floor).then(|| self.history.live_within(floor - lag, end - lag))
    }

    /// Moment of the next launch that uses a block, queued or predicted.
    pub(crate) fn next_use(&self, slot: u32) -> u64 {
        let block = self.blocks.get(slot);
        let uses = &block.uses;
        // What runs accesses such a block where it is: a fetch would come too late for it.
        let from = if block.mapped {
            (self.floor() + 1) * TICKS
        } else {
            self.moment()
        };
        if let Some(queued) = uses.to_come(from) {
            return queued;
        }
        let Some(lag) = self.history.lag() else {
            return NEVER;
        };
        if block.pool && !block.holds_frame() && block.habit.doubts(self.blocks.trust) {
            return NEVER;
        }
        let matched = self.history.head() - lag;
        let declared = uses
            .repeated((matched + 1) * TICKS)
            .map_or(NEVER, |past| past + lag * TICKS);
        let declared = declared.min(self.next_turn(block, lag));
        // What a launch used by chance is kept for the next time, and fetched only once it has
        // come true.
        if block.by_chance && block.again == 0 && !block.holds_frame() {
            return declared;
        }
        if let Some(soon) = self.soon(block, lag) {
            return declared.min(soon);
        }
        // It may be used more often than once in each.
        let often = if block.by_chance && block.sooner > 0 && block.popular >= 2 {
            block.sooner.into()
        } else {
            lag
        };
        let again = self.next_surprise(block, often, from);
        let lasts = block.by_chance && !block.fleeting && self.blocks.chances.lasts(block.kind);
        if again == NEVER && lasts && block.surprised > 0 && block.holds_frame() {
            // Used in most cycles, unseen since it is there: at the same moment of each.
            let cycle = often.max(1) * TICKS;
            let cycles = from.saturating_sub(block.surprised).div_ceil(cycle);
            return declared.min(block.surprised + cycles * cycle);
        }
        declared.min(again)
    }

    /// When a block on the device is used again that is used by chance, where others of its kind are
    /// long before the cycle is over: whether it was since it came, nobody saw. The longer that is
    /// ago, the longer it may be, and after a cycle that is not known ([`NEVER`]).
    fn soon(&self, block: &Block, lag: u64) -> Option<u64> {
        let unseen = block.by_chance && block.again == 0 && !block.unproven;
        if !unseen || !block.holds_frame() {
            return None;
        }
        let chances = &self.blocks.chances;
        let soon = chances.soon(block.kind, lag)?;
        let since = block.last_used + chances.longer(block.popular);
        let age = self.floor().saturating_sub(since);
        let launches = soon.max(age).max(1);
        let within = age < lag;
        Some(if within {
            self.moment() + launches * TICKS
        } else {
            NEVER
        })
    }

    /// The last moment at which what a block holds is of use, where it was given back already and
    /// the device has not come there.
    pub(crate) fn dies(&self, slot: u32) -> Option<u64> {
        let dies = self.blocks.get(slot).dies(self.history.head());
        dies.filter(|&dies| dies >= self.moment())
    }

    /// Moment at which a resident block is taken to be used again: `next`, as of
    /// [`World::next_use`], but where the cycle is often wrong of it, its own even distances
    /// count as well. Where nobody tells what is dead, what the cycle leaves out mostly is, and
    /// distances say no more than when the memory is used for something else. What has no content
    /// yet is there to be born, so that it stays for when it came: taken to be used later, it
    /// would leave and come again all the time.
    pub(crate) fn reuse(&self, slot: u32, next: u64) -> u64 {
        let block = self.blocks.get(slot);
        if block.surprised > 0 || !block.pool || !block.content {
            return next;
        }
        let queued = block.uses.last().is_some_and(|last| last >= self.moment());
        if queued {
            return next;
        }
        let foretold = Some(next).filter(|&next| next != NEVER);
        let place = (block.last_used, self.floor());
        let weighed = block.habit.weigh(foretold, place, self.blocks.trust);
        weighed.unwrap_or(NEVER)
    }

    /// When what lives in a block is used next, if that is a turn of the program after it was last. The
    /// present may repeat what is several turns ago, when something else lived there, as where a cache
    /// is copied, with what is new, to where the one before the last was.
    fn next_turn(&self, block: &Block, lag: u64) -> u64 {
        let lives = block.pool && block.content && !block.frees();
        let turn = self.history.turn().filter(|&turn| turn < lag && lives);
        turn.map_or(NEVER, |turn| {
            let since = self.history.head() - turn + 1;
            let used = block.uses.repeated(since * TICKS);
            used.map_or(NEVER, |used| used + turn * TICKS)
        })
    }

    /// When a block that faulted, though nothing foretold it, is taken to do so again: whatever
    /// touched it comes again a cycle later, and then in more cycles than one, where it did before
    /// and the cycle was the same throughout.
    fn next_surprise(&self, block: &Block, lag: u64, from: u64) -> u64 {
        if block.surprised == 0 {
            return NEVER;
        }
        let cycle = lag.max(1) * TICKS;
        let cycles = from.saturating_sub(block.surprised).div_ceil(cycle).max(1);
        let same = cycles == 1 || self.history.held() >= cycles * lag;
        if same && cycles <= block.cycles_foretold(lag) {
            block.surprised + cycles * cycle
        } else {
            NEVER
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Access, Argument};
    use crate::units::BLOCK_BYTES;
    use crate::units::{BlockId, Range};
    use crate::world::block::{Extent, Residency};
    use crate::{Bytes, Config, PolicyKind};
    use crate::{Seq, StreamId};
    use std::iter;
    use std::sync::Arc;

    /// A world with so many blocks of a pool that have no content.
    fn empty_pool(blocks: u64) -> World {
        let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
        let mut world = World::new(&config);
        let range = Range {
            address: BLOCK_BYTES,
            bytes: blocks * BLOCK_BYTES,
        };
        world.alloc(range, true, Residency::Unpopulated, &mut Default::default());
        world
    }

    /// A cycle of twelve launches, three times, and a block on the device that is used by chance.
    fn by_chance() -> (World, u32) {
        let mut world = empty_pool(1);
        for launch in 0..37 {
            world.history.push((launch % 12, 0), std::iter::empty());
        }
        assert_eq!((world.history.lag(), world.floor()), (Some(12), 38));
        let slot = world.blocks.find(BlockId(1)).unwrap();
        let kind = world.blocks.chances.kind(7, 2, 10);
        let block = world.blocks.get_mut(slot);
        (block.by_chance, block.kind) = (true, kind);
        world.blocks.set(slot, Residency::Device);
        (world, slot)
    }

    /// It left and was missed then; when it is taken to be used next.
    fn miss(world: &mut World, slot: u32, (left, position): (u64, u64)) -> u64 {
        let block = world.blocks.get_mut(slot);
        (block.parted, block.left) = (true, left);
        world.blocks.came_back(slot, position, Some(12));
        let block = world.blocks.get_mut(slot);
        block.surprise(position, Some(12));
        world.next_use(slot)
    }

    #[test]
    fn what_is_missed_soon_again_and_again_is_used_more_often_than_once_in_a_cycle() {
        let (mut world, slot) = by_chance();
        miss(&mut world, slot, (30, 32));
        let next = miss(&mut world, slot, (33, 34));
        assert_eq!(next, 46 * TICKS, "others stay for no time");
        for _ in 0..1_000 {
            world.blocks.chances.stayed(1);
        }
        let once = miss(&mut world, slot, (35, 36));
        let twice = miss(&mut world, slot, (37, 38));
        assert_eq!((once, twice), (48 * TICKS, 40 * TICKS));
    }

    #[test]
    fn what_is_used_soon_again_is_so_after_as_long_as_it_was_not_seen() {
        let (mut world, slot) = by_chance();
        let kind = world.blocks.get(slot).kind;
        for _ in 0..100 {
            world.blocks.chances.left(kind);
            world.blocks.chances.missed(kind, 2);
        }
        let next_use = |world: &mut World, used: u64| {
            let block = world.blocks.get_mut(slot);
            (block.last_used, block.surprised) = (used, used * TICKS);
            world.next_use(slot)
        };
        assert_eq!(next_use(&mut world, 37), 40 * TICKS, "in the mean");
        assert_eq!(next_use(&mut world, 33), 43 * TICKS);
        assert_eq!(next_use(&mut world, 26), NEVER, "a cycle");
        // It came because it was used at the same place of the cycle before.
        world.blocks.get_mut(slot).again = 1;
        assert_eq!(next_use(&mut world, 33), 45 * TICKS);
    }

    #[test]
    fn what_was_missed_late_is_not_used_in_each_cycle_though_its_kind_is() {
        let (mut world, slot) = by_chance();
        let kind = world.blocks.get(slot).kind;
        for _ in 0..100 {
            world.blocks.chances.left(kind);
            world.blocks.chances.missed(kind, 12);
        }
        let next_use = |world: &mut World, left: u64| {
            let block = world.blocks.get_mut(slot);
            (block.parted, block.left) = (true, left);
            block.surprise(20, None);
            world.blocks.came_back(slot, 20, Some(12));
            world.next_use(slot)
        };
        assert_eq!(next_use(&mut world, 8), 44 * TICKS);
        assert_eq!(next_use(&mut world, 7), NEVER, "more than a cycle");
    }

    #[test]
    fn what_died_since_the_last_launch_is_born_again_like_all_else() {
        let mut world = empty_pool(8);
        // In each turn of four launches eight blocks have content when the last one is over, and die
        // before the next one.
        for _ in 0..64 {
            let exec = (world.history.head() + 1) as u32 % 4;
            let position = world.history.push((exec, 0), std::iter::empty());
            world
                .history
                .set_live(position, if exec == 0 { 8 } else { 0 });
        }
        let (head, floor) = (world.history.head(), world.floor());
        assert_eq!((head % 4, floor), (0, head + 1));
        assert_eq!(world.history.lag(), Some(4));
        assert_eq!(world.blocks.live(), 0, "they are dead");
        assert_eq!(world.growth(floor + 4), 8);
    }

    #[test]
    fn what_got_content_once_and_keeps_it_does_not_grow_again() {
        let growth_with = |kept: u64| {
            let mut world = empty_pool(8);
            // In the course of the first turn each of them was used for the first time.
            for launch in 0..36 {
                let position = world.history.push((launch % 32, 0), std::iter::empty());
                world
                    .history
                    .set_live(position, u64::from(launch / 4).min(8));
            }
            for id in 1..=kept {
                let slot = world.blocks.find(BlockId(id)).unwrap();
                world.blocks.set_content(slot, true);
            }
            assert_eq!((world.history.lag(), world.floor()), (Some(32), 37));
            world.growth(world.floor() + 32)
        };
        assert_eq!([0, 5, 8].map(growth_with), [8, 3, 0]);
    }

    /// A launch is over that has a pointer to ten blocks, and is queued again; what it did to them is
    /// not known. The slots of the first and the last block.
    fn with_an_argument(residency: Residency) -> (World, [u32; 2]) {
        let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
        let mut world = World::new(&config);
        let range = Range {
            address: BLOCK_BYTES,
            bytes: 10 * BLOCK_BYTES,
        };
        world.alloc(range, false, residency, &mut Default::default());
        world.probes = true;
        let argument = Argument {
            function: 3,
            word: 0,
            shape: 0,
            address: range.address,
        };
        let arguments = Arc::from([argument]);
        world.proofs.observe((1, &arguments), &[], 100);
        let blocks: Vec<_> = world.blocks.within(1, 11).collect();
        for &(_, slot) in &blocks {
            world.blocks.set_content(slot, true);
        }
        world.proofs.offer(&arguments, blocks.into_iter());
        let access = Access {
            set: Arc::from([Extent {
                first: 1,
                count: 10,
            }]),
            loose: Arc::from([]),
            sweep: None,
        };
        let position = world.history.push((1, 3), iter::empty());
        world
            .window
            .push((position, 1), (Seq(1), StreamId(0)), access, arguments);
        let slots = [1, 10].map(|block| world.blocks.find(BlockId(block)).unwrap());
        (world, slots)
    }

    #[test]
    fn one_block_of_what_was_never_seen_to_be_used_is_not_fetched() {
        let (mut world, [first, last]) = with_an_argument(Residency::Host);
        let moment = world.history.head() * TICKS;
        assert!(world.withholds(first, moment) && world.withholds(first, moment));
        assert!(!world.withholds(last, moment), "one is enough");
        assert!(!world.withholds(first, moment + TICKS), "no such launch");
        world.running_end = world.history.head();
        assert!(world.withholds(first, moment), "nor while it runs");
        let (mut running, [one, _]) = with_an_argument(Residency::Host);
        running.running_end = running.history.head();
        assert!(!running.withholds(one, moment), "it runs already");
        world.running_end = 0;
        world.remote = true;
        assert!(!world.withholds(first, moment), "nothing would fault");
        let (mut blind, [first, _]) = with_an_argument(Residency::Host);
        blind.probes = false;
        assert!(!blind.withholds(first, moment), "nobody would tell");
    }

    #[test]
    fn one_block_of_what_was_never_seen_to_be_used_leaves_first() {
        let late = NEVER - 1;
        let (mut world, [_, last]) = with_an_argument(Residency::Device);
        assert_eq!(world.candidate(late), Some(last));
        assert_eq!(world.candidate(late), None, "one is enough");
        let (mut world, [_, last]) = with_an_argument(Residency::Device);
        let queued = world.history.head() * TICKS;
        world.blocks.will_use(last, queued, 0, None);
        assert_eq!(world.candidate(late), None, "what is queued uses it sooner");
    }

    #[test]
    fn what_lives_is_used_a_turn_after_it_was_though_the_present_repeats_an_older_one() {
        const TURN: u64 = 40;
        let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
        let mut world = World::new(&config);
        let range = Range {
            address: BLOCK_BYTES,
            bytes: 2 * BLOCK_BYTES,
        };
        let stats = &mut Default::default();
        world.alloc(range, true, Residency::Device, stats);
        world.begin_part(range);
        // The functions come again in each turn, with the same arguments in every other one.
        for turn in 0..6_u64 {
            for number in 0..TURN {
                let exec = (turn % 2 * TURN + number) as u32;
                world.history.push((exec, number as u32), iter::empty());
            }
        }
        assert_eq!(world.history.lag(), Some(2 * TURN));
        let slots = [1, 2].map(|block| world.blocks.find(BlockId(block)).unwrap());
        // One was used in the last turn by what lives there, the other two turns ago by something
        // else as well.
        let head = world.history.head();
        let (used, before) = (head - TURN + 8, head - 2 * TURN + 30);
        for slot in slots {
            world.blocks.will_use(slot, before * TICKS, 0, None);
            world.blocks.set_content(slot, true);
        }
        world.blocks.will_use(slots[0], used * TICKS, 0, None);
        let next = slots.map(|slot| world.next_use(slot) / TICKS);
        assert_eq!(next, [used + TURN, before + 2 * TURN]);
    }

    #[test]
    fn what_lived_a_cycle_ago_may_live_again_where_something_else_runs() {
        let mut world = empty_pool(24);
        let run = |world: &mut World, exec: u32, live: u64| {
            let position = world.history.push((exec, 0), std::iter::empty());
            world.history.set_live(position, live);
        };
        for _ in 0..16 {
            for (exec, live) in [20, 21, 22, 24].into_iter().enumerate() {
                run(&mut world, exec as u32, live);
            }
        }
        // What has content now died since; two more blocks than before the next launch had some.
        let growth = |world: &World| {
            let until = world.floor() + 2;
            (world.growth(until), world.possible_growth(until))
        };
        run(&mut world, 0, 0);
        let (expected, possible) = growth(&world);
        assert_eq!(expected, possible, "the same launches");
        run(&mut world, 99, 0);
        assert!(world.history.lag().is_some());
        let (expected, possible) = growth(&world);
        assert!(expected < 20, "{expected}");
        assert!(possible >= 20, "{possible}");
    }
}
