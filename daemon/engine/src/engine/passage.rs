//! What the device has passed, and what it faults on: what launches turn out to use.

use std::ops::Range;

use super::Engine;
use super::needed::Needed;
use crate::access::{Access, Argument, Learned};
use crate::scatter::seen;
use crate::units::{BlockId, TICKS};
use crate::usefulness::Share;
use crate::world::World;
use crate::world::block::{Blocks, Residency, Set};
use crate::world::chance::Kind;
use crate::world::window::Pending;

/// Most faults of one launch that are looked at.
const FAULTED: usize = 4096;

/// How much of its loose memory a launch touches.
#[derive(Debug, Default)]
pub(super) struct Watch {
    absent: u64,
    touched: u64,
    /// Blocks on which it faulted and that it was taken to use, or to use some of.
    faulted: Vec<BlockId>,
}

impl Engine {
    /// Takes in what the device has passed.
    pub(super) fn advance(&mut self) {
        let mut passed = 0;
        while let Some(launch) = self.world.window.pop() {
            while let Some(range) = self.world.window.pop_death_before(&launch) {
                self.world.bury(range);
            }
            passed += 1;
            if passed == 1 {
                let limit = self.config.execution_ids;
                self.world.progress.ended(self.now, limit);
            }
            // Faults are known of the one alone that was the oldest.
            let full = self.watch.faulted.len() >= FAULTED;
            let sampled = self.world.probes && passed == 1 && !full;
            let mut slots = std::mem::take(&mut self.slots);
            let mut left = Vec::new();
            if sampled {
                collect(&self.world.blocks, &launch.loose, &mut slots);
                left.extend(left_alone(&self.world, &slots, launch.position));
            }
            let loose = left.len();
            collect(&self.world.blocks, &launch.set, &mut slots);
            if self.world.probes && !self.world.without.feedback {
                left.extend(left_alone(&self.world, &slots, launch.position));
            }
            if sampled && !self.world.without.feedback {
                let seen = (&self.watch.faulted[..], &left[..]);
                let memory = &self.world.memory;
                if self.accesses.see_ends(&launch.arguments, seen, memory) {
                    self.take_ends();
                }
            }
            if let Some(argument) = launch.arguments.first()
                && !self.world.without.feedback
            {
                let Watch {
                    absent,
                    touched,
                    faulted,
                } = &self.watch;
                let memory = &self.world.memory;
                let left = &left[..loose];
                let beyond = (self.accesses).beyond(&launch.arguments, faulted, left, memory);
                let absent = if sampled {
                    // What came meanwhile tells nothing.
                    touched + left.len() as u64 - beyond
                } else {
                    *absent
                };
                let function = argument.function;
                let whole = self.accesses.observe(function, absent, *touched);
                let parts = sampled && {
                    let touched = faulted.iter().filter(|&&id| covers(&launch.loose, id));
                    let touched: Vec<BlockId> = touched.copied().collect();
                    let seen = (&touched[..], left);
                    let of = (launch.exec, &launch.arguments[..]);
                    let visits = &mut self.world.visits;
                    match self.accesses.see_parts(of, seen, memory, visits) {
                        Learned::Nothing => {}
                        Learned::Launch => self.missed.push(launch.exec),
                        Learned::Function => self.parted.push(function),
                    }
                    (self.accesses).observe_arguments(&launch.arguments, &touched, left)
                };
                if whole || parts {
                    self.take_whole(function);
                }
            }
            let world = &mut self.world;
            for &id in &left[loose..] {
                self.accesses.left_alone(launch.exec, id, &world.memory);
            }
            let faulted = &self.watch.faulted;
            let known: (&[BlockId], &[BlockId]) = if sampled {
                (faulted, &left)
            } else {
                (&[], &[])
            };
            let scatter = &mut self.accesses.scatter;
            if sampled {
                let away = |id, since| {
                    let block = world.blocks.find(id).map(|slot| world.blocks.get(slot));
                    block.is_some_and(|block| !block.holds_frame() && block.left < since)
                };
                scatter.observe(launch.position, &launch.arguments, known, away);
            }
            let seen = seen(&launch.arguments, known.0, known.1);
            // Launches that come again learn their own blocks one by one.
            let alone = sampled && world.history.lag().is_none();
            let used = seen.iter().filter(|&&(id, ..)| launch.uses(id)).copied();
            let needed = Needed::new(&launch.arguments, used, scatter, alone);
            for &(number, slot) in &slots {
                world.used(slot, launch.position, needed.of(number));
                if covers(&launch.loose, BlockId(number)) {
                    // It is the part that the launch uses: no chance.
                    let block = world.blocks.get_mut(slot);
                    (block.by_chance, block.popular) = (false, 0);
                }
            }
            let (launched, limit) = ((launch.exec, &launch.arguments), self.config.execution_ids);
            world.proofs.observe(launched, &seen, limit * 4);
            let blocks = &world.blocks;
            let here = |&(_, slot): &(u64, u32)| blocks.get(slot).residency == Residency::Device;
            let here = slots.iter().copied().filter(here);
            world.proofs.offer(&launch.arguments, here);
            if !world.probes && world.enforce {
                collect(&world.blocks, &launch.loose, &mut slots);
                for &(_, slot) in &slots {
                    world.used(slot, launch.position, Share::ALL);
                }
            }
            self.slots = slots;
            let live = self.world.blocks.live();
            self.world.history.set_live(launch.position, live);
            self.world.history.set_over(launch.position, self.now);
            self.started();
        }
        if passed > 0 {
            self.take_missed();
            self.pace.passed(self.now, passed);
            self.world.runs_unknown = false;
        }
        while let Some(range) = self.world.window.pop_death() {
            self.world.bury(range);
        }
    }

    /// Launches of a function turned out to use all of their arguments: so will those that are
    /// queued, of which the program may have put many there before the first one ran.
    fn take_whole(&mut self, function: u32) {
        let world = &mut self.world;
        for launch in world.window.iter_mut() {
            if launch.arguments.first().map(|first| first.function) != Some(function) {
                continue;
            }
            let Some(whole) = self.accesses.whole(&launch.access(), &launch.arguments) else {
                continue;
            };
            use_instead(&mut world.blocks, launch, whole, &mut self.slots);
        }
    }

    /// Arguments turned out to end sooner than they were taken to: so will those of queued launches.
    fn take_ends(&mut self) {
        let world = &mut self.world;
        for launch in world.window.iter_mut() {
            let (access, memory) = (launch.access(), &world.memory);
            let Some(cut) = self.accesses.cut(&access, &launch.arguments, memory) else {
                continue;
            };
            collect(&world.blocks, &access.set, &mut self.slots);
            let left_out = |&(number, _): &(u64, u32)| !covers(&cut.set, BlockId(number));
            for (_, slot) in std::mem::take(&mut self.slots).into_iter().filter(left_out) {
                world.blocks.will_not_use(slot, launch.position);
            }
            use_instead(&mut world.blocks, launch, cut, &mut self.slots);
        }
    }

    /// Launches turned out to use more than they were taken to: so will those that are queued.
    fn take_missed(&mut self) {
        let missed = std::mem::take(&mut self.missed);
        let further = std::mem::take(&mut self.further);
        let parted = std::mem::take(&mut self.parted);
        if missed.is_empty() && parted.is_empty() {
            return;
        }
        let world = &mut self.world;
        for launch in world.window.iter_mut() {
            let further = |argument: &Argument| further.contains(&argument.shape);
            let function = launch.arguments.first().map(|first| first.function);
            if !missed.contains(&launch.exec)
                && !launch.arguments.iter().any(further)
                && !function.is_some_and(|function| parted.contains(&function))
            {
                continue;
            }
            let access = launch.access();
            let Some(more) =
                self.accesses
                    .with_missed(launch.exec, &access, &launch.arguments, &world.memory)
            else {
                continue;
            };
            use_instead(&mut world.blocks, launch, more, &mut self.slots);
        }
    }

    /// Another launch is the oldest that is not over.
    pub(super) fn started(&mut self) {
        let Some(launch) = self.world.window.front() else {
            return;
        };
        let exec = launch.exec;
        let function = launch.arguments.first().map(|first| first.function);
        let followed = launch.sweep.as_ref().unwrap_or(&launch.loose);
        let blocks = followed.iter().map(|extent| extent.count).sum();
        let absent = self.world.slots(&launch.loose);
        let absent = absent.filter(|&slot| !self.world.blocks.get(slot).holds_frame());
        self.watch = Watch {
            absent: absent.count() as u64,
            touched: 0,
            faulted: Vec::new(),
        };
        let known = launch.sweep.is_some();
        self.world.blocks.set_running(launch.position);
        let progress = &mut self.world.progress;
        progress.began(self.now, (exec, function), blocks, known);
        self.policy.started(&self.world, exec);
        if !self.world.probes {
            // Nobody tells of faults: what is not there will fault.
            for slot in self.world.slots(&launch.set) {
                let residency = self.world.blocks.get(slot).residency;
                if matches!(residency, Residency::Host | Residency::Unpopulated) {
                    self.policy.faulted(&self.world, slot, exec);
                }
            }
        }
    }

    pub(super) fn fault(&mut self, address: u64, faults: u32, by_host: bool) {
        if by_host {
            self.stats.host_faults += u64::from(faults);
            self.world.touched_by_host(BlockId::containing(address));
            return;
        }
        self.stats.faults += u64::from(faults);
        let id = BlockId::containing(address);
        let Some(slot) = self.world.fault(id) else {
            return;
        };
        let world = &mut self.world;
        let Some(front) = world.window.front() else {
            world.runs_unknown = true;
            return;
        };
        let (exec, position) = (front.exec, front.position);
        let (loose, uses) = (covers(&front.loose, id), front.uses(id));
        let end = world.running_end.max(position);
        let running = || {
            world
                .window
                .iter()
                .take_while(|launch| launch.position <= end)
        };
        let foretold = running().any(|launch| launch.uses(id));
        let expected = foretold || running().any(|launch| covers(&launch.loose, id));
        if world.without.arguments {
            self.accesses.missed(front, id, (&[], false), &world.memory);
        } else if !expected && !world.without.feedback {
            let pointers = || front.arguments.iter().map(|argument| argument.address);
            if end == position && !pointers().any(|a| world.memory.same_object(a, address)) {
                let uses = |block| front.uses(block);
                world.memory.used_behind((id, position), pointers(), uses);
            }
            let points = |argument: &&Argument| world.memory.same_object(argument.address, address);
            let mut leads = running().filter(|launch| launch.arguments.iter().any(|a| points(&a)));
            let at_fault = leads.next();
            let certain = leads.next().is_none();
            if !certain {
                self.pace.blurred();
            }
            // No pointer leads there: it can only be the one that runs, if that is known.
            let alone = at_fault.is_none() && end == position;
            if let Some(launch) = at_fault.or(alone.then_some(front)) {
                let arguments: Vec<Argument> =
                    launch.arguments.iter().filter(points).copied().collect();
                let further =
                    self.accesses
                        .missed(launch, id, (&arguments, certain), &world.memory);
                self.further.extend(further);
                if !self.missed.contains(&launch.exec) {
                    self.missed.push(launch.exec);
                }
            }
        }
        if let Some(ticks) = self
            .world
            .blocks
            .get(slot)
            .uses
            .at_or_after(position * TICKS)
            && ticks / TICKS == position
        {
            let ahead = self.world.progress.faulted(self.now, ticks % TICKS);
            if let Some(ahead) = ahead {
                self.comes_after_all(&ahead);
            }
        }
        let lag = self.world.history.lag();
        self.world.blocks.came_back(slot, position, lag);
        if !foretold {
            let kind = expected.then(|| self.kind_at(address));
            let block = self.world.blocks.get_mut(slot);
            block.surprise(position, lag);
            block.by_chance = expected;
            block.kind = kind.unwrap_or_default();
        }
        let block = self.world.blocks.get_mut(slot);
        if block.last_used < position {
            self.watch.touched += u64::from(loose);
            if (loose || uses) && self.watch.faulted.len() < FAULTED {
                self.watch.faulted.push(id);
            }
        }
        block.last_used = block.last_used.max(position);
        self.world.blocks.set_content(slot, true);
        self.policy.faulted(&self.world, slot, exec);
    }
}

impl Engine {
    /// The launch that runs has yet to come to what it uses at these moments of its own, though it was
    /// taken to have passed them.
    fn comes_after_all(&mut self, ticks: &Range<u64>) {
        let front = self.world.window.front();
        let Some(sweep) = front.and_then(|front| front.sweep.clone()) else {
            return;
        };
        for extent in sweep.iter() {
            let at = |ticks: u64| extent.first + ticks * extent.count / TICKS;
            let end = extent.end().min(at(ticks.end) + 1);
            self.slots.clear();
            (self.slots).extend(self.world.blocks.within(at(ticks.start), end));
            for &(_, slot) in &self.slots {
                self.world.blocks.mark(slot);
            }
        }
    }

    /// What the running launches use the memory around an address for.
    fn kind_at(&mut self, address: u64) -> Kind {
        let world = &self.world;
        let end = world.running_end.max(world.floor());
        let running = world
            .window
            .iter()
            .take_while(|launch| launch.position <= end);
        let points = |argument: &&Argument| {
            argument.address <= address && world.memory.same_object(argument.address, address)
        };
        let argument = running
            .filter(|launch| covers(&launch.loose, BlockId::containing(address)))
            .find_map(|launch| {
                let before = launch.arguments.iter().filter(points);
                before.max_by_key(|argument| argument.address).copied()
            });
        let Some(Argument { function, word, .. }) = argument else {
            return Kind::default();
        };
        let limit = self.config.execution_ids;
        self.world.blocks.chances.kind(function, word, limit)
    }
}

/// A queued launch turned out to use `access`: all that blocks still take it to use, and perhaps
/// more. Where it is followed it comes to its blocks one after the other.
fn use_instead(
    blocks: &mut Blocks,
    launch: &mut Pending,
    access: Access,
    slots: &mut Vec<(u64, u32)>,
) {
    let begin = launch.position * TICKS;
    let moved = access.sweep.is_some() && access.sweep != launch.sweep;
    if moved {
        collect(blocks, &launch.set, slots);
        for &(_, slot) in slots.iter() {
            blocks.will_not_use(slot, launch.position);
        }
    }
    for extent in access
        .sweep
        .iter()
        .filter(|_| moved)
        .flat_map(|sweep| sweep.iter())
    {
        slots.clear();
        slots.extend(blocks.within(extent.first, extent.end()));
        for &(number, slot) in slots.iter() {
            let moment = begin + (number - extent.first) * TICKS / extent.count;
            blocks.will_use_after_all(slot, moment);
        }
    }
    let known = |id: u64| {
        let within = |set: &Set| set.iter().any(|extent| extent.contains(BlockId(id)));
        if moved {
            access.sweep.as_ref().is_some_and(within)
        } else {
            launch.uses(BlockId(id))
        }
    };
    for extent in access.set.iter() {
        slots.clear();
        let others = blocks.within(extent.first, extent.end());
        slots.extend(others.filter(|&(number, _)| !known(number)));
        for &(_, slot) in slots.iter() {
            blocks.will_use_after_all(slot, begin);
        }
    }
    launch.uses_instead(access);
}

/// Of these blocks, those that were away while the launch at `position` ran and that it did
/// not miss.
fn left_alone<'a>(
    world: &'a World,
    slots: &'a [(u64, u32)],
    position: u64,
) -> impl Iterator<Item = BlockId> + 'a {
    slots.iter().filter_map(move |&(_, slot)| {
        let block = world.blocks.get(slot);
        let away = !block.holds_frame() && block.left < position;
        (away && !block.dead() && !block.mapped && !block.stays).then_some(block.id)
    })
}

fn covers(set: &Set, id: BlockId) -> bool {
    set.iter().any(|extent| extent.contains(id))
}

/// The blocks of a set that exist, into a list that is used again and again.
fn collect(blocks: &Blocks, set: &Set, slots: &mut Vec<(u64, u32)>) {
    slots.clear();
    for extent in set.iter() {
        slots.extend(blocks.within(extent.first, extent.end()));
    }
}

#[cfg(test)]
mod tests {
    use crate::units::{BLOCK_BYTES, BlockId, Range};
    use crate::{
        Bytes, Config, Engine, Event, FunctionId, Launch, Micros, PolicyKind, Seq, StreamId,
    };

    const FIRST: u64 = 0x1000;
    const BLOCKS: u64 = 256;

    fn obtain(engine: &mut Engine, first: u64, blocks: u64, prefetched: bool) {
        let range = Range {
            address: first * BLOCK_BYTES,
            bytes: blocks * BLOCK_BYTES,
        };
        let alloc = Event::Alloc {
            range,
            pool: false,
            prefetched,
            on_host: !prefetched,
        };
        engine.step(Micros(0), &alloc);
    }

    /// A launch that is given a pointer to that block, and has threads for all that lies there.
    fn launch(engine: &mut Engine, now: u64, seq: u64, first: u64) {
        launch_of(engine, now, (seq, 1 << 20), first);
    }

    /// The same with so many thread blocks.
    fn launch_of(engine: &mut Engine, now: u64, (seq, grid): (u64, u32), first: u64) {
        let launch = Launch {
            seq: Seq(seq),
            stream: StreamId(0),
            function: FunctionId(0),
            grid: [grid, 1, 1],
            block: [1024, 1, 1],
            words: &[first * BLOCK_BYTES],
        };
        engine.step(Micros(now), &Event::Launch(launch));
    }

    fn fault(engine: &mut Engine, now: u64, block: u64) {
        let fault = Event::Fault {
            address: block * BLOCK_BYTES,
            faults: 1,
            by_host: false,
        };
        engine.step(Micros(now), &fault);
    }

    fn over(engine: &mut Engine, now: u64, seq: u64) {
        let over = Event::Progress {
            stream: StreamId(0),
            seq: Seq(seq),
        };
        engine.step(Micros(now), &over);
    }

    #[test]
    fn what_a_launch_was_known_to_use_tells_nothing_of_arguments_that_are_larger_than_fits() {
        let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
        let mut engine = Engine::new(config).unwrap();
        let (small, large) = (FIRST, 2 * FIRST);
        obtain(&mut engine, small, 20, false);
        obtain(&mut engine, large, 40, false);
        launch(&mut engine, 0, 1, small);
        for block in small..small + 20 {
            fault(&mut engine, 10, block);
        }
        over(&mut engine, 1_000, 1);
        // Not of the small one's size.
        launch_of(&mut engine, 2_000, (2, 2 << 20), large);
        let front = engine.world.window.front().unwrap();
        assert_eq!((front.set.len(), front.loose.len()), (0, 1));
    }

    #[test]
    fn what_a_launch_has_yet_to_come_to_after_all_is_ranked_anew() {
        let config = Config::new(PolicyKind::Foresight, Bytes(600 * BLOCK_BYTES));
        let mut engine = Engine::new(config).unwrap();
        obtain(&mut engine, FIRST, BLOCKS, true);
        let mut commands = Vec::new();
        // Each takes a millisecond; the second one is half through by time.
        launch(&mut engine, 0, 1, FIRST);
        over(&mut engine, 1_000, 1);
        launch(&mut engine, 2_000, 2, FIRST);
        engine.decide(Micros(2_600), &mut commands);
        let before = engine.world.progress.ticks();
        assert!(before > 400, "{before}");
        fault(&mut engine, 2_610, FIRST + BLOCKS / 4);
        assert!(engine.world.progress.ticks() < 256, "a quarter");
        let changed = std::iter::from_fn(|| engine.world.blocks.next_changed());
        let changed: Vec<u32> = changed.collect();
        let anew = |number: u64| {
            let slot = engine.world.blocks.find(BlockId(FIRST + number));
            changed.contains(&slot.expect("it is allocated"))
        };
        assert!((BLOCKS / 4..before * BLOCKS / 1024).all(anew));
        assert!(!anew(BLOCKS - 1), "it was to come before");
        assert!(!anew(0), "it is over");
    }
}
