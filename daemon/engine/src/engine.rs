//! The engine: one session's memory on one device, and the policy that steers it.
//!
//! Takes events into the world, lets the policy ask for moves, and counts. Decides nothing
//! itself.

use std::sync::Arc;

use crate::access::{Accesses, Argument};
use crate::decision::{Decision, Place, Why};
use crate::event::{Cause, Copy, Launch};
use crate::functions::Functions;
use crate::identity::{Identities, UNKNOWN};
use crate::pace::Pace;
use crate::policy::{self, Policy, Stops};
use crate::profile::Profile;
use crate::stats::CAUSES;
use crate::units::{BLOCK_BYTES, BlockId, Range, TICKS};
use crate::usefulness::Share;
use crate::warm::{self, Warm};
use crate::world::block::{Residency, Set};
use crate::world::{NEVER, World};
use crate::{
    Bytes, Command, Config, ConfigError, Direction, Event, Micros, PolicyKind, Queue, Snapshot,
    Stats,
};

/// Least capacity that a policy can work in, blocks.
const LEAST_BLOCKS: u64 = 8;
/// Most argument words looked at.
const WORDS: usize = 128;
/// Most faults of one launch that are looked at.
const FAULTED: usize = 4096;
/// From the decision to evict to the driver's start on it.
const EVICTION_US: f64 = 500.0;
/// How long to wait for news of commands under way before looking again.
const LOOK_AGAIN_US: u64 = 1_000;

/// Steers one session on one device.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    stats: Stats,
    world: World,
    identities: Identities,
    accesses: Accesses,
    functions: Functions,
    warm: Warm,
    policy: Box<dyn Policy>,
    pace: Pace,
    /// What the running launch touches of memory of which it may use a part.
    watch: Watch,
    /// Blocks being gone through; kept for its room.
    slots: Vec<(u64, u32)>,
    now: Micros,
}

/// How much of its loose memory a launch touches.
#[derive(Debug, Default)]
struct Watch {
    absent: u64,
    touched: u64,
    /// Blocks on which it faulted and that it was taken to use, or to use some of.
    faulted: Vec<BlockId>,
}

impl Engine {
    /// An engine that knows nothing yet.
    ///
    /// # Errors
    /// [`ConfigError`] where `config` leaves no room to work in.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.validate(LEAST_BLOCKS * BLOCK_BYTES)?;
        let literal = config.policy == PolicyKind::Deepum && config.deepum.literal;
        Ok(Self {
            stats: Stats::default(),
            world: World::new(&config),
            identities: Identities::new(config.execution_ids, literal),
            accesses: Accesses::new(config.capacity.0 / BLOCK_BYTES, config.execution_ids),
            functions: Functions::new(config.execution_ids),
            warm: Warm::default(),
            policy: policy::make(&config),
            pace: Pace::default(),
            watch: Watch::default(),
            slots: Vec::new(),
            now: Micros(0),
            config,
        })
    }

    /// An engine that begins with what an earlier run of the program taught.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn with_profile(config: Config, profile: &Profile) -> Result<Self, ConfigError> {
        let mut engine = Self::new(config)?;
        engine.warm = warm::restore(
            profile,
            &mut engine.functions,
            &mut engine.identities,
            &mut engine.accesses,
            &mut engine.world,
        );
        Ok(engine)
    }

    /// What was learned so far, for the program's next run.
    pub fn profile(&self) -> Profile {
        warm::learned(
            &self.functions,
            &self.identities,
            &self.accesses,
            &self.world,
        )
    }

    /// Takes in one event. `now` never goes back.
    pub fn step(&mut self, now: Micros, event: &Event<'_>) {
        self.now = self.now.max(now);
        self.world.now = self.now;
        self.stats.events += 1;
        match *event {
            Event::Function { function, name } => self.functions.named(function, name),
            Event::Tick => {}
            Event::Alloc {
                range,
                pool,
                prefetched,
                on_host,
            } => {
                let place = match (prefetched, on_host) {
                    (true, _) => Residency::Device,
                    (false, true) => Residency::Host,
                    (false, false) => Residency::Unpopulated,
                };
                self.world.alloc(range, pool, place, &mut self.stats);
                self.warm.allocated(range, &mut self.world);
            }
            Event::Placed { range } => self.world.placed(range),
            Event::Free { address } => self.world.free(address),
            Event::Use { range, .. } => self.world.begin_part(range),
            Event::Unuse {
                address,
                stream,
                seq,
            } => {
                self.world.end_part(address, stream, seq);
                self.advance();
            }
            Event::Launch(ref launch) => self.launch(launch),
            Event::Copy(ref copy) => self.copy(copy),
            Event::Progress { stream, seq } => {
                self.world.window.pass(stream, seq);
                self.advance();
            }
            Event::Completed { queue, id } => {
                while let Some(order) = self.world.orders.complete(self.now, queue, id) {
                    self.world.settle(order, false);
                }
            }
            Event::Refused { queue, id } => {
                if let Some(order) = self.world.orders.refuse(queue, id) {
                    self.stats.refused += 1;
                    self.world.settle(order, true);
                }
            }
            Event::Fault {
                address,
                faults,
                by_host,
            } => self.fault(address, faults, by_host),
            Event::FaultBatch { .. } => self.stats.fault_batches += 1,
            Event::Migration {
                range,
                direction,
                cause,
            } => {
                let by_cause = match direction {
                    Direction::In => &mut self.stats.migrated_in_bytes,
                    Direction::Out => &mut self.stats.migrated_out_bytes,
                };
                let index = (cause as usize).min(CAUSES - 1);
                by_cause[index] = by_cause[index].saturating_add(range.bytes);
                self.world.moved(range, direction, cause);
            }
            Event::Populated { range } => self.world.moved(range, Direction::In, Cause::Other),
        }
    }

    /// Appends what is to be done now. Call it after each group of events, and at
    /// [`Engine::next_wakeup`].
    pub fn decide(&mut self, now: Micros, commands: &mut Vec<Command>) {
        self.now = self.now.max(now);
        self.world.now = self.now;
        let world = &mut self.world;
        let stride = self.pace.stride();
        world.running_end = world.window.running_end(stride);
        // An eviction takes effect behind those under way: what begins until then counts
        // as running.
        let queued = world.orders.bytes(Queue::Out) + BLOCK_BYTES;
        let until_us = EVICTION_US + queued as f64 / world.orders.rate(Queue::Out);
        world.guard_end = match world.progress.ahead(until_us) {
            Some(ahead) => world.moment() + ahead,
            None => {
                let launches = stride + self.pace.launches_in(until_us);
                world.window.running_end(launches) * TICKS + TICKS - 1
            }
        };
        self.policy
            .decide(self.now, &mut self.world, &mut self.stats, commands);
        let useful = &self.world.usefulness;
        self.stats.prefetch_issued_bytes = useful.issued_bytes;
        self.stats.prefetch_useful_bytes = useful.useful_bytes;
        self.stats.prefetch_late_bytes = useful.late_bytes;
        self.stats.prefetch_wasted_bytes = useful.wasted_bytes;
        self.stats.history_dropped = self.world.history.dropped();
    }

    /// When [`Engine::decide`] wants to be called again even if nothing happens; none
    /// while nothing is outstanding.
    pub fn next_wakeup(&self) -> Option<Micros> {
        self.world
            .orders
            .oldest()
            .map(|_| Micros(self.now.0 + LOOK_AGAIN_US))
    }

    /// After how many launches in a stream a progress mark is wanted (at least 1).
    pub fn mark_stride(&self) -> u32 {
        if self.is_calm() {
            Pace::MOST
        } else {
            self.pace.stride()
        }
    }

    /// All managed memory is on the device and fits there: launches, copies and what becomes
    /// of the memory that there is need not be told of at once, since whatever they are,
    /// there is nothing to do. New memory, faults and migrations end that.
    pub fn is_calm(&self) -> bool {
        self.world.calm()
    }

    /// From now on managed memory of this session may fill so much of the device (at least
    /// what a policy needs to work): others share it, or have gone.
    pub fn set_capacity(&mut self, capacity: Bytes) {
        let capacity = Bytes(capacity.0.max(LEAST_BLOCKS * BLOCK_BYTES));
        self.config.capacity = capacity;
        self.world.capacity = capacity.0 / BLOCK_BYTES;
        self.accesses.set_capacity(capacity.0 / BLOCK_BYTES);
    }

    /// Totals since the session began.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The state now.
    pub fn snapshot(&self) -> Snapshot {
        let world = &self.world;
        Snapshot {
            managed_bytes: world.memory.bytes(),
            resident_bytes: world.blocks.frames() * BLOCK_BYTES,
            capacity_bytes: self.config.capacity.0,
            inflight_bytes: world.orders.bytes(Queue::In),
            execution_ids: self.identities.len() as u64,
            history_launches: world.history.len() as u64,
            table_bytes: world.memory.table_bytes()
                + world.blocks.bytes()
                + world.history.bytes()
                + world.orders.table_bytes()
                + world.progress.bytes()
                + world.decisions.bytes()
                + self.identities.bytes()
                + self.accesses.bytes()
                + self.accesses.scatter.bytes()
                + self.functions.bytes()
                + self.warm.bytes()
                + self.policy.table_bytes(),
            breaker: self.policy.breaker(),
            cycle_launches: world.history.lag(),
        }
    }

    /// Why a block is where it is; none where it is no managed memory that is tracked.
    pub fn why(&self, block: BlockId) -> Option<Why> {
        let world = &self.world;
        let slot = world.blocks.find(block)?;
        let state = world.blocks.get(slot);
        let next = Some(world.next_use(slot)).filter(|&next| next != NEVER);
        let launch_of = |moment: u64| world.history.own_number(moment / TICKS);
        Some(Why {
            block,
            launch: world.history.own_number(world.floor()),
            place: match state.residency {
                Residency::Unpopulated => Place::Nowhere,
                Residency::Host => Place::Host,
                Residency::Device => Place::Device,
                Residency::MovingIn => Place::Incoming,
                Residency::MovingOut => Place::Outgoing,
            },
            dead: state.dead(),
            next_use: next.map(launch_of),
            queued: next.is_some_and(|next| next / TICKS <= world.history.head()),
            standing: self.policy.standing(world, slot),
            decisions: world.decisions.of(slot, block),
        })
    }

    /// The decisions from number `from` on (the first is 0), oldest first, as far as they are
    /// remembered, and the number of the next one.
    pub fn decisions(&self, from: u64) -> (impl Iterator<Item = &Decision>, u64) {
        self.world.decisions.since(from)
    }

    /// Why the policy went no further when it last decided.
    pub fn stops(&self) -> Stops {
        self.policy.stops()
    }

    fn launch(&mut self, launch: &Launch<'_>) {
        let words = &launch.words[..launch.words.len().min(WORDS)];
        let launch = Launch {
            words,
            function: self.functions.number(launch.function),
            ..*launch
        };
        let objects: Vec<_> = words
            .iter()
            .map(|&word| self.world.memory.resolve(word))
            .collect();
        let known = self.identities.len();
        let exec = self.identities.launch(&launch, &objects);
        let novel = self.identities.len() > known || exec == UNKNOWN;
        let world = &self.world;
        let access = if world.without.arguments {
            self.accesses.faulted(exec, &world.memory)
        } else {
            self.accesses.launch(
                (exec, novel),
                &launch,
                &objects,
                &world.memory,
                world.probes,
            )
        };
        let arguments = objects.iter().zip(0..).filter_map(|(object, word)| {
            let address = object.as_ref()?.extent.address;
            Some(Argument {
                function: launch.function.0,
                word,
                address,
            })
        });
        let arguments = arguments.collect();
        self.enqueue(launch.seq, launch.stream, exec, access, arguments);
    }

    fn copy(&mut self, copy: &Copy) {
        let memory = &self.world.memory;
        let named = |range: Option<Range>| memory.name_at(range?.address);
        let exec = self.identities.copy(copy, named(copy.dst), named(copy.src));
        let ranges: Vec<Range> = [copy.dst, copy.src].into_iter().flatten().collect();
        let access = self.accesses.access(exec, (&ranges, &[]), true, memory);
        self.enqueue(copy.seq, copy.stream, exec, access, Arc::from([]));
    }

    fn enqueue(
        &mut self,
        seq: crate::Seq,
        stream: crate::StreamId,
        exec: u32,
        access: crate::access::Access,
        arguments: Arc<[Argument]>,
    ) {
        self.stats.launches += 1;
        let world = &mut self.world;
        let set: Set = access.set.clone();
        let position = world.history.push(exec);
        let stale = world.history.stale().min(world.floor().saturating_sub(1));
        let (begin, stale) = (position * TICKS, stale * TICKS + TICKS - 1);
        let mut slots = std::mem::take(&mut self.slots);
        for extent in access.sweep.as_ref().unwrap_or(&set).iter() {
            slots.clear();
            slots.extend(world.blocks.within(extent.first, extent.end()));
            for &(number, slot) in &slots {
                // A sweep comes to its blocks one after the other.
                let moment = match access.sweep {
                    Some(_) => begin + (number - extent.first) * TICKS / extent.count,
                    None => begin,
                };
                world.blocks.will_use(slot, moment, stale);
            }
        }
        self.slots = slots;
        let idle = world.window.len() == 0;
        world
            .window
            .push((position, exec), (seq, stream), access, arguments);
        if idle {
            self.pace.began(self.now);
            self.started();
        }
        self.advance();
    }

    /// Takes in what the device has passed.
    fn advance(&mut self) {
        let mut passed = 0;
        while let Some(launch) = self.world.window.pop() {
            passed += 1;
            if passed == 1 {
                let limit = self.config.execution_ids;
                self.world.progress.ended(self.now, limit);
            }
            if let Some(argument) = launch.arguments.first()
                && !self.world.without.feedback
            {
                let Watch {
                    absent, touched, ..
                } = self.watch;
                self.accesses.observe(argument.function, absent, touched);
            }
            let world = &mut self.world;
            let mut slots = std::mem::take(&mut self.slots);
            let mut left = Vec::new();
            collect(world, &launch.set, &mut slots);
            if world.probes && !world.without.feedback {
                left.extend(left_alone(world, &slots, launch.position));
                for &id in &left {
                    self.accesses.left_alone(launch.exec, id, &world.memory);
                }
            }
            // Faults are known of the one alone that was the oldest.
            let faulted = &self.watch.faulted;
            let sampled = world.probes && passed == 1 && faulted.len() < FAULTED;
            // Launches that come again learn their own blocks one by one.
            let needed = if sampled && world.history.lag().is_none() {
                let touched = faulted.iter().filter(|&&id| launch.uses(id)).count();
                Share::new(touched, left.len())
            } else {
                Share::ALL
            };
            for &(_, slot) in &slots {
                world.used(slot, launch.position, needed);
            }
            if sampled {
                collect(world, &launch.loose, &mut slots);
                left.extend(left_alone(world, &slots, launch.position));
                let scatter = &mut self.accesses.scatter;
                scatter.observe(&launch.arguments, faulted, &left);
            }
            if !world.probes && world.enforce {
                collect(world, &launch.loose, &mut slots);
                for &(_, slot) in &slots {
                    world.used(slot, launch.position, Share::ALL);
                }
            }
            self.slots = slots;
            let live = self.world.blocks.live();
            self.world.history.set_live(launch.position, live);
            self.started();
        }
        if passed > 0 {
            self.pace.passed(self.now, passed);
        }
        while let Some(range) = self.world.window.pop_death() {
            self.world.bury(range);
        }
    }

    /// Another launch is the oldest that is not over.
    fn started(&mut self) {
        let Some(launch) = self.world.window.front() else {
            return;
        };
        let exec = launch.exec;
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
        self.world.progress.began(self.now, exec, blocks, known);
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

    fn fault(&mut self, address: u64, faults: u32, by_host: bool) {
        if by_host {
            self.stats.host_faults += u64::from(faults);
            return;
        }
        self.stats.faults += u64::from(faults);
        let id = BlockId::containing(address);
        let Some(slot) = self.world.fault(id) else {
            return;
        };
        let world = &self.world;
        let Some(front) = world.window.front() else {
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
            self.accesses.missed(front, id, &[], &world.memory);
        } else if !expected && !world.without.feedback {
            let points = |argument: &&Argument| world.memory.same_object(argument.address, address);
            let at_fault = running().find(|launch| launch.arguments.iter().any(|a| points(&a)));
            // No pointer leads there: it can only be the one that runs, if that is known.
            let alone = at_fault.is_none() && end == position;
            if let Some(launch) = at_fault.or(alone.then_some(front)) {
                let arguments: Vec<Argument> =
                    launch.arguments.iter().filter(points).copied().collect();
                self.accesses.missed(launch, id, &arguments, &world.memory);
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
            self.world.progress.faulted(self.now, ticks % TICKS);
        }
        let lag = self.world.history.lag();
        let block = self.world.blocks.get_mut(slot);
        if !foretold {
            block.surprise(position, lag);
            block.by_chance = expected;
        }
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
        (away && !block.dead() && !block.mapped).then_some(block.id)
    })
}

fn covers(set: &Set, id: BlockId) -> bool {
    set.iter().any(|extent| extent.contains(id))
}

/// The blocks of a set that exist, into a list that is used again and again.
fn collect(world: &World, set: &Set, slots: &mut Vec<(u64, u32)>) {
    slots.clear();
    for extent in set.iter() {
        slots.extend(world.blocks.within(extent.first, extent.end()));
    }
}
