//! The engine: one session's memory on one device, and the policy that steers it.
//!
//! Takes events into the world, lets the policy ask for moves, and counts. Decides nothing
//! itself.

mod arrival;
mod needed;
mod passage;

use self::passage::Watch;
use crate::access::Accesses;
use crate::decision::{Decision, Place, Why};
use crate::event::Cause;
use crate::functions::Functions;
use crate::identity::Identities;
use crate::pace::Pace;
use crate::policy::{self, Policy, Stops};
use crate::profile::Profile;
use crate::run_ahead::RunAhead;
use crate::stats::CAUSES;
use crate::units::{BLOCK_BYTES, BlockId, TICKS};
use crate::warm::{self, Warm};
use crate::world::block::Residency;
use crate::world::{NEVER, World};
use crate::{
    Bytes, Command, Config, ConfigError, Direction, Event, Micros, PolicyKind, Queue, Snapshot,
    Stats,
};

/// Least capacity that a policy can work in, blocks.
const LEAST_BLOCKS: u64 = 8;
/// From the decision to evict to the driver's start on it.
const EVICTION_US: f64 = 500.0;
/// How long to wait for news of commands under way before looking again.
const LOOK_AGAIN_US: u64 = 1_000;
/// Launches after which a program may be through with obtaining what it needs.
const BEGUN: u64 = 1_024;

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
    run_ahead: RunAhead,
    /// What the running launch touches of memory of which it may use a part.
    watch: Watch,
    /// Execution IDs of which faults told more since a launch was over.
    missed: Vec<u32>,
    /// Shapes of arguments that go further than was known then.
    further: Vec<u64>,
    /// Functions of which it was learned since that launches use the same part when they come again.
    parted: Vec<u32>,
    /// Blocks being gone through; kept for its room.
    slots: Vec<(u64, u32)>,
    now: Micros,
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
            run_ahead: RunAhead::default(),
            watch: Watch::default(),
            missed: Vec::new(),
            further: Vec::new(),
            parted: Vec::new(),
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
        let (helpful, wasted) = profile.prefetched;
        engine.policy.vouch(helpful, wasted);
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
            Event::Reached { stream, seq } => {
                self.world.window.reach(stream, seq);
                let end = self.world.window.running_end(self.pace.stride());
                self.world.running_end = self.world.running_end.max(end);
            }
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
        world.was_full |= !world.probes && world.free_frames(world.capacity) <= 0;
        world.launch_us = self.pace.launch_us();
        world.since_us = self.pace.since_us(self.now);
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
        if self.config.policy == PolicyKind::Foresight && self.config.hold_launches {
            self.run_ahead.consider(self.now, &self.world, &self.pace);
        }
        // Whatever a policy made of it.
        let useful = &self.world.usefulness;
        self.stats.prefetch_issued_bytes = useful.asked_bytes();
        // What turned out to be wasted is taken from it again, and a counter must not fall.
        self.stats.prefetch_useful_bytes =
            useful.useful_bytes.max(self.stats.prefetch_useful_bytes);
        self.stats.prefetch_late_bytes = useful.late_bytes;
        self.stats.prefetch_wasted_bytes = useful.wasted_bytes;
        self.stats.history_dropped = self.world.history.dropped();
        self.world.window.stride = self.mark_stride();
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
        // Who has just begun is calm before he has anything, and puts what no longer fits there and
        // launches that use it into his streams at once.
        if self.is_calm() && self.stats.launches >= BEGUN {
            Pace::MOST
        } else {
            self.pace.mark_stride()
        }
    }

    /// Most launches that the program had better be ahead of the device; none where any number is
    /// right. It may be ignored, and must be where the device makes no progress.
    pub fn run_ahead(&self) -> Option<u32> {
        self.run_ahead.launches()
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
                + world.visits.bytes()
                + world.progress.bytes()
                + world.proofs.bytes()
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
}
