//! The engine that runs live, in the simulator: the same code, the same events.
//!
//! Owns what shim and daemon do around the engine: the prefetch at allocation while it
//! fits, the shim's own check before content is dropped, progress marks at the engine's
//! stride, and the time from an event to the command that it causes. Decides nothing.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Instant;

use oversub_engine::{
    BlockId, Bytes, Cause, Command, Config, Copy, Direction, Engine, Event, FunctionId, Launch,
    Micros, Operation, PolicyKind, Profile, Queue, Range, Seq as EngineSeq, StreamId, Without,
};
use oversub_protocol::event::MAX_LAUNCH_WORDS;

use crate::class::{
    Arrival, Desk, DriverNotice, EngineFigures, Evictor, LaunchNotice, LaunchRecord,
    LifetimeNotice, LifetimePolicy, Seq, Ticket,
};
use crate::explain::{Ask, Explanation, Watch};
use crate::machine::{Machine, Rules};
use crate::model::Room;
use crate::timeline::Plan;
use crate::trace::{Block, Piece};
use crate::units::{BLOCK_BYTES, Leaves, Nanos, Region};

use super::plan::drop_dead;

/// From an event to the command that it causes: the median that `oversub bench` measures,
/// rounded up.
const LATENCY: Nanos = Nanos::from_micros(50);
/// All of the trace's launches are in one stream.
const STREAM: StreamId = StreamId(0);

/// An engine and what stands between it and the device.
pub(super) struct Steering {
    config: Config,
    engine: Engine,
    functions: HashMap<String, FunctionId>,
    /// Allocations that the engine has not been told of, since it is not known yet whether
    /// the framework's allocator will hand out parts of them.
    untold: Vec<Region>,
    parts: Parts,
    /// Under the artifact's rules: handed-out parts that queued launches are given pointers to.
    given: VecDeque<(Seq, Vec<Region>)>,
    managed_bytes: u64,
    launched: Option<Seq>,
    finished: Option<Seq>,
    under_way: HashMap<Ticket, (Queue, u32)>,
    commands: Vec<Command>,
    words: Vec<u64>,
    awake: Option<Nanos>,
    launches: u64,
    table_bytes: u64,
    clock: Option<Clock>,
    watch: Option<Watch>,
    plan: Option<Plan>,
}

/// Real time spent in the engine, for `--engine-cost` alone: nothing depends on it.
#[derive(Default)]
struct Clock {
    nanos: u64,
    events: u64,
    /// Nanoseconds of each [`GROUP`] of events, with the decisions between them.
    groups: Vec<u64>,
}

/// Events whose cost is looked at together.
const GROUP: u64 = 64;

impl Clock {
    /// Of the events so far, the median over groups; none before the first group is full.
    fn median(&self) -> Option<u64> {
        let mut groups = self.groups.clone();
        groups.sort_unstable();
        groups.get(groups.len() / 2).map(|nanos| nanos / GROUP)
    }
}

impl Steering {
    pub fn new(machine: &Machine, kind: PolicyKind) -> Self {
        let mut config = Config::new(kind, Bytes(machine.memory_bytes.max(64 * BLOCK_BYTES)));
        config.link_bytes_per_us = machine.link_in.0 as f64 / 1e6;
        config.use_on_host = machine.rules == Rules::Uvm;
        let engine = match Engine::new(config.clone()) {
            Ok(engine) => engine,
            Err(error) => unreachable!("a default configuration is valid: {error}"),
        };
        Self {
            config,
            engine,
            functions: HashMap::new(),
            untold: Vec::new(),
            parts: Parts::default(),
            given: VecDeque::new(),
            managed_bytes: 0,
            launched: None,
            finished: None,
            under_way: HashMap::new(),
            commands: Vec::new(),
            words: Vec::new(),
            awake: None,
            launches: 0,
            table_bytes: 0,
            clock: None,
            watch: None,
            plan: None,
        }
    }

    fn step(&mut self, desk: &mut Desk<'_>, event: &Event<'_>) {
        let now = micros(desk.now());
        let begun = self.clock.is_some().then(Instant::now);
        self.engine.step(now, event);
        self.count(begun);
        self.look(desk.now());
        if let Some(clock) = &mut self.clock {
            clock.events += 1;
            if clock.events.is_multiple_of(GROUP) {
                clock.groups.push(std::mem::take(&mut clock.nanos));
            }
        }
        self.wake(desk, desk.now() + LATENCY);
    }

    /// Writes down what the engine has written down, where that was asked for.
    fn look(&mut self, now: Nanos) {
        if let Some(watch) = &mut self.watch {
            watch.look(&self.engine);
        }
        if let Some(plan) = &mut self.plan {
            plan.look(now, &self.engine);
        }
    }

    /// A block arrived, or has left.
    fn moved(&mut self, now: Nanos, range: Range) {
        if let Some(plan) = &mut self.plan {
            plan.done(now, BlockId::containing(range.address));
        }
    }

    fn count(&mut self, begun: Option<Instant>) {
        if let (Some(clock), Some(begun)) = (&mut self.clock, begun) {
            clock.nanos += begun.elapsed().as_nanos() as u64;
        }
    }

    fn wake(&mut self, desk: &mut Desk<'_>, at: Nanos) {
        if self.awake.is_none_or(|awake| at < awake) {
            self.awake = Some(at);
            desk.wake_at(at);
        }
    }

    /// Tells the engine of allocations: all of them, or those that are known to be the
    /// framework allocator's by now, or the program's own managed memory. The latter is left
    /// where it is.
    fn tell_allocations(&mut self, desk: &mut Desk<'_>, all: bool) {
        for region in std::mem::take(&mut self.untold) {
            let range = range(region);
            let blocks = desk.blocks_of(region);
            let by_program = blocks.iter().any(|block| desk.is_by_program(*block));
            let pool = !by_program && self.parts.any_in(region);
            if !(pool || by_program || all) {
                self.untold.push(region);
                continue;
            }
            self.managed_bytes += region.bytes;
            let capacity = u64::from(desk.capacity()) * BLOCK_BYTES;
            let prefetched = !by_program && self.managed_bytes <= capacity;
            if prefetched {
                desk.prefetch(&blocks, Room::Wait);
            }
            let event = Event::Alloc {
                range,
                pool,
                prefetched,
                on_host: false,
            };
            self.step(desk, &event);
        }
    }

    fn launched(&mut self, launch: &LaunchRecord<'_>, desk: &mut Desk<'_>) {
        self.tell_allocations(desk, true);
        self.launched = Some(launch.seq);
        if desk.machine().rules == Rules::G10 {
            let parts = launch.pointers.iter().filter_map(|&at| self.parts.at(at));
            self.given.push_back((launch.seq, parts.collect()));
        }
        if let Some(call) = launch.call {
            let event = Event::Copy(Copy {
                seq: seq(launch.seq),
                stream: STREAM,
                dst: call.overwrites.map(range),
                src: call.reads.map(range),
            });
            self.step(desk, &event);
            return;
        }
        let function = match self.functions.get(launch.name) {
            Some(function) => *function,
            None => {
                let function = FunctionId(self.functions.len() as u32);
                self.functions.insert(launch.name.to_owned(), function);
                let name = launch.name;
                self.step(desk, &Event::Function { function, name });
                function
            }
        };
        let mut words = std::mem::take(&mut self.words);
        words.clear();
        words.extend_from_slice(launch.pointers);
        if launch.varies {
            // A dropout offset, a step count: new at every launch.
            self.launches += 1;
            words.push(self.launches);
        }
        // Nor does the shim tell more.
        words.truncate(MAX_LAUNCH_WORDS);
        // The trace has no geometry; its signature stands for it. So many threads that an
        // argument's extent is never taken from their number.
        let signature = launch.signature;
        let grid = [u32::MAX, signature as u32 | 1, (signature >> 32) as u32 | 1];
        let event = Event::Launch(Launch {
            seq: seq(launch.seq),
            stream: STREAM,
            function,
            grid,
            block: [1024, 1, 1],
            words: &words,
        });
        self.step(desk, &event);
        self.words = words;
    }

    /// A launch is about to start. Under the artifact's rules it is charged for each page that it
    /// is the first to write as for one from the host, unless somebody queued that page for it, as
    /// the artifact's own systems do: whether a frame is free or not.
    fn started(&mut self, launch: Seq, desk: &mut Desk<'_>) {
        while let Some((_, parts)) = self.given.pop_front_if(|(seq, _)| *seq <= launch) {
            let pieces = parts.into_iter().flat_map(|part| desk.pieces_of(part));
            let pieces: Vec<Piece> = pieces.collect();
            desk.populate(&pieces, Room::Take);
        }
    }

    fn finished(&mut self, done: Seq, desk: &mut Desk<'_>) {
        self.finished = Some(done);
        if (done.0 + 1).is_multiple_of(self.engine.mark_stride()) {
            let event = Event::Progress {
                stream: STREAM,
                seq: seq(done),
            };
            self.step(desk, &event);
        }
    }

    fn driver(&mut self, notice: DriverNotice<'_>, desk: &mut Desk<'_>) {
        match notice {
            DriverNotice::Alloc(region) => {
                self.untold.push(region);
                self.tell_allocations(desk, false);
            }
            DriverNotice::Free(region) => {
                self.tell_allocations(desk, true);
                self.managed_bytes = self.managed_bytes.saturating_sub(region.bytes);
                let address = region.address;
                self.step(desk, &Event::Free { address });
            }
            DriverNotice::Faults(batch) => {
                for (block, leaves) in batch {
                    let event = Event::Fault {
                        address: desk.address(*block),
                        faults: leaves.count(),
                        by_host: false,
                    };
                    self.step(desk, &event);
                }
            }
            DriverNotice::HostFault(block) => {
                let event = Event::Fault {
                    address: desk.address(block),
                    faults: 1,
                    by_host: true,
                };
                self.step(desk, &event);
            }
            DriverNotice::Arrived { block, bytes, by } => {
                let range = block_range(desk, block);
                self.moved(desk.now(), range);
                let event = match (bytes, by) {
                    (0, _) => Event::Populated { range },
                    (_, Arrival::Fault) => {
                        moved(Range { bytes, ..range }, Direction::In, Cause::Fault)
                    }
                    (_, Arrival::Prefetch) => moved(range, Direction::In, Cause::Call),
                };
                self.step(desk, &event);
            }
            DriverNotice::Evicted { block, by, .. } => {
                let range = block_range(desk, block);
                self.moved(desk.now(), range);
                let cause = match by {
                    Evictor::Driver => Cause::Eviction,
                    Evictor::Policy => Cause::Call,
                };
                self.step(desk, &moved(range, Direction::Out, cause));
            }
            DriverNotice::Done(ticket) => {
                if let Some((queue, id)) = self.under_way.remove(&ticket) {
                    self.step(desk, &Event::Completed { queue, id });
                }
            }
            DriverNotice::Wake => {
                if self.awake.is_some_and(|at| at <= desk.now()) {
                    self.awake = None;
                    self.decide(desk);
                }
            }
        }
    }

    fn decide(&mut self, desk: &mut Desk<'_>) {
        let mut commands = std::mem::take(&mut self.commands);
        let begun = self.clock.is_some().then(Instant::now);
        self.engine.decide(micros(desk.now()), &mut commands);
        self.count(begun);
        self.look(desk.now());
        for command in commands.drain(..) {
            self.carry_out(command, desk);
        }
        self.commands = commands;
        desk.hold_host(self.engine.run_ahead());
        if let Some(at) = self.engine.next_wakeup() {
            self.wake(desk, Nanos::from_micros(at.0).max(desk.now()));
        }
        self.table_bytes = self.table_bytes.max(self.engine.snapshot().table_bytes);
    }

    fn drop(&mut self, region: Region, (queue, id): (Queue, u32), desk: &mut Desk<'_>) {
        let whole = desk.blocks_of(region).into_iter().map(|block| Piece {
            block,
            leaves: Leaves::ALL,
        });
        let whole: Vec<Piece> = whole.collect();
        // With the frame, as the G10 artifact's pre-deallocation: nvidia-uvm keeps it in its
        // list of discarded ones anyway.
        drop_dead(&whole, desk);
        self.step(desk, &Event::Completed { queue, id });
    }

    fn carry_out(&mut self, command: Command, desk: &mut Desk<'_>) {
        let region = Region {
            address: command.range.address,
            bytes: command.range.bytes,
        };
        let Command { queue, id, .. } = command;
        let blocks = desk.blocks_of(region);
        let ticket = match command.operation {
            Operation::Prefetch => desk.prefetch(&blocks, Room::Take),
            Operation::Evict => {
                // Where content goes is no matter of the engine's: to where there is a way.
                desk.use_both_tiers();
                desk.evict(&blocks)
            }
            Operation::Populate | Operation::Touch => {
                let whole = blocks.iter().map(|block| Piece {
                    block: *block,
                    leaves: Leaves::ALL,
                });
                let whole: Vec<Piece> = whole.collect();
                desk.populate(&whole, Room::Take)
            }
            Operation::UseOnHost | Operation::LetMigrate => {
                desk.use_on_host(&blocks, command.operation == Operation::UseOnHost);
                self.step(desk, &Event::Completed { queue, id });
                return;
            }
            Operation::Discard => {
                // What the shim does: the range must be the pool's own, and passed.
                match self.parts.claim(region) {
                    Some(last) if last <= self.finished => self.drop(region, (queue, id), desk),
                    _ => self.step(desk, &Event::Refused { queue, id }),
                }
                return;
            }
        };
        self.under_way.insert(ticket, (queue, id));
    }
}

impl LifetimePolicy for Steering {
    fn notice(&mut self, notice: LifetimeNotice<'_>, desk: &mut Desk<'_>) {
        match notice {
            LifetimeNotice::Launch(LaunchNotice::Driver(notice)) => self.driver(notice, desk),
            LifetimeNotice::Launch(LaunchNotice::Launched(launch)) => {
                self.launched(&launch, desk);
            }
            LifetimeNotice::Launch(LaunchNotice::Started(launch)) => {
                if let Some(watch) = &mut self.watch {
                    watch.started(launch, desk.now(), &self.engine);
                }
                self.started(launch, desk);
            }
            LifetimeNotice::Launch(LaunchNotice::Finished(done)) => self.finished(done, desk),
            LifetimeNotice::Use(region, next) => {
                self.parts.hand_out(region);
                self.tell_allocations(desk, false);
                let event = Event::Use {
                    range: range(region),
                    seq: before(next),
                };
                self.step(desk, &event);
            }
            LifetimeNotice::Unuse(region, next) => {
                self.parts.take_back(region, next);
                let event = Event::Unuse {
                    address: region.address,
                    stream: STREAM,
                    seq: before(next),
                };
                self.step(desk, &event);
            }
        }
    }

    fn engine(&self) -> Option<EngineFigures> {
        let events = self.engine.stats().events;
        Some(EngineFigures {
            events,
            table_bytes: self.table_bytes,
            nanos_per_event: self.clock.as_ref().and_then(Clock::median),
        })
    }

    fn uses_on_host(&self) -> bool {
        self.config.use_on_host && self.config.policy == PolicyKind::Foresight
    }

    fn measure(&mut self) {
        self.clock = Some(Clock::default());
    }

    fn record(&mut self, explain: Option<Ask>, plan: bool) {
        self.watch = explain.map(Watch::new);
        self.plan = plan.then(Plan::default);
    }

    fn recorded(&mut self) -> (Option<Explanation>, Option<Plan>) {
        let explanation = self.watch.as_ref().and_then(Watch::found);
        (explanation, self.plan.take())
    }

    fn begin_with(&mut self, without: Without, profile: Option<&Profile>) {
        self.config.without = without;
        let config = self.config.clone();
        let engine = match profile {
            Some(profile) => Engine::with_profile(config, profile),
            None => Engine::new(config),
        };
        match engine {
            Ok(engine) => self.engine = engine,
            Err(error) => unreachable!("a default configuration is valid: {error}"),
        }
    }

    fn learned(&self) -> Option<Profile> {
        Some(self.engine.profile())
    }
}

/// What the framework's allocator has handed out, by block: the shim's pool knows it.
#[derive(Default)]
struct Parts {
    live: BTreeMap<u64, u64>,
    /// For each block: handed-out parts in it, and the launch before which the last one
    /// was taken back.
    blocks: HashMap<u64, (u32, Seq)>,
}

impl Parts {
    fn hand_out(&mut self, region: Region) {
        self.live.insert(region.address, region.bytes);
        for (block, _) in region.parts() {
            self.blocks.entry(block).or_default().0 += 1;
        }
    }

    fn take_back(&mut self, region: Region, next: Seq) {
        self.live.remove(&region.address);
        for (block, _) in region.parts() {
            let (parts, freed) = self.blocks.entry(block).or_default();
            *parts = parts.saturating_sub(1);
            *freed = next;
        }
    }

    /// The allocator hands out parts of this. The last one may have begun in the segment
    /// before.
    fn any_in(&self, region: Region) -> bool {
        let last = self.live.range(..region.end()).next_back();
        last.is_some_and(|(&address, &bytes)| address + bytes > region.address)
    }

    /// The handed-out part that holds an address.
    fn at(&self, address: u64) -> Option<Region> {
        let (&first, &bytes) = self.live.range(..=address).next_back()?;
        (address - first < bytes).then_some(Region {
            address: first,
            bytes,
        })
    }

    /// If nothing in it is handed out, the last launch that may use it, if any.
    fn claim(&self, region: Region) -> Option<Option<Seq>> {
        let mut last = None;
        for (block, _) in region.parts() {
            let (parts, freed) = self.blocks.get(&block).copied()?;
            if parts > 0 {
                return None;
            }
            last = last.max(freed.0.checked_sub(1).map(Seq));
        }
        Some(last)
    }
}

fn micros(at: Nanos) -> Micros {
    Micros(at.0 / 1_000)
}

/// The engine counts launches from 1.
fn seq(launch: Seq) -> EngineSeq {
    EngineSeq(u64::from(launch.0) + 1)
}

/// A mark between launches: those with smaller numbers came before.
fn before(next: Seq) -> EngineSeq {
    seq(next)
}

fn range(region: Region) -> Range {
    Range {
        address: region.address,
        bytes: region.bytes,
    }
}

fn block_range(desk: &Desk<'_>, block: Block) -> Range {
    Range {
        address: desk.address(block),
        bytes: BLOCK_BYTES,
    }
}

fn moved(range: Range, direction: Direction, cause: Cause) -> Event<'static> {
    Event::Migration {
        range,
        direction,
        cause,
    }
}
