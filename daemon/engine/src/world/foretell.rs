//! When blocks will be used, as far as queue and history tell.
//!
//! Owns the questions about the future that policies ask. The answers come from the queued
//! launches first, then from the place in the past that the present repeats.

use super::block::Block;
use super::{NEVER, World};
use crate::units::TICKS;

impl World {
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
        i64::from(peak) - i64::from(before) + died as i64
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
        // What a launch used by chance is kept for the next time, and fetched only once it has
        // come true.
        if block.by_chance && block.again == 0 && !block.holds_frame() {
            return declared;
        }
        let again = self.next_surprise(block, lag, from);
        let lasts = block.by_chance && self.blocks.chances.lasts(block.kind);
        if again == NEVER && lasts && block.surprised > 0 && block.holds_frame() {
            // Used in most cycles, unseen since it is there: at the same moment of each.
            let cycle = lag.max(1) * TICKS;
            let cycles = from.saturating_sub(block.surprised).div_ceil(cycle);
            return declared.min(block.surprised + cycles * cycle);
        }
        declared.min(again)
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
    use crate::units::BLOCK_BYTES;
    use crate::{Bytes, Config, PolicyKind};

    #[test]
    fn what_died_since_the_last_launch_is_born_again_like_all_else() {
        let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
        let mut world = World::new(&config);
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
    fn what_lived_a_cycle_ago_may_live_again_where_something_else_runs() {
        let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
        let mut world = World::new(&config);
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
