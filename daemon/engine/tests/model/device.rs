//! The device and its driver.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use oversub_engine::{
    BLOCK_BYTES, BlockId, Bytes, Cause, Command, Config, Direction, Engine, Event, FunctionId,
    Launch, Micros, Operation, PolicyKind, Queue, Range, Seq, StreamId,
};

use super::programs::{Kernel, Op};

/// What the device is like.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    pub device_blocks: u64,
    /// Blocks that the engine may fill, where it keeps a budget by itself.
    pub budget_blocks: Option<u64>,
    /// Launches use on the host what is not on the device, at the link's rate; only
    /// commands bring it there.
    pub remote: bool,
    pub block_in_ns: u64,
    pub block_out_ns: u64,
    /// Fault service before the transfer, for one block.
    pub fault_ns: u64,
    /// From the engine's decision to the driver's start.
    pub command_ns: u64,
    /// Launches that the host is ahead of the device.
    pub run_ahead: usize,
    /// The engine sees faults and migrations.
    pub probes: bool,
}

impl Machine {
    /// The soft GPU's link and faults.
    pub fn soft(device_blocks: u64) -> Self {
        Self {
            device_blocks,
            budget_blocks: None,
            remote: false,
            block_in_ns: 2_097_152,
            block_out_ns: 2_097_152,
            fault_ns: 90_000,
            command_ns: 60_000,
            run_ahead: 16,
            probes: true,
        }
    }

    /// A card behind PCIe 4.
    pub fn card(device_blocks: u64) -> Self {
        Self {
            block_in_ns: 84_000,
            block_out_ns: 84_000,
            ..Self::soft(device_blocks)
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// End of each iteration.
    pub iteration_ends_ns: Vec<u64>,
    pub launch_ends_ns: Vec<u64>,
    /// Blocks in and out so far, and frames in use, at each of them.
    pub links: Vec<(u64, u64, u64)>,
    pub compute_ns: u64,
    pub faults: u64,
    pub blocks_in: u64,
    pub blocks_out: u64,
    /// Uses of blocks on the host.
    pub remote: u64,
    pub prefetched: u64,
    /// Of managed memory on the device at any time.
    pub peak_blocks: u64,
    /// The same for each iteration.
    pub iteration_peaks: Vec<u64>,
    /// The largest count of frames since the last iteration's end.
    peak: u64,
    /// Evictions of a block that what runs now uses, or discards of live content, when
    /// they were decided.
    pub violations: Vec<String>,
    /// Evictions that a launch overtook: it ran sooner than they took effect.
    pub overtaken: u64,
    pub commands: Vec<(u64, Command)>,
}

impl Outcome {
    /// Mean duration of the iterations from `first` on.
    pub fn steady_ns(&self, first: usize) -> f64 {
        let ends = &self.iteration_ends_ns;
        (ends[ends.len() - 1] - ends[first - 1]) as f64 / (ends.len() - first) as f64
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Nowhere,
    Host,
    Device,
    In,
    Out,
}

#[derive(Clone, Copy, Debug)]
struct BlockState {
    place: Place,
    discarded: bool,
    /// The device's page tables name it on the host: no use of it faults.
    mapped: bool,
    stamp: u64,
    live: u32,
    pool: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Happening {
    Compute,
    LinkIn,
    LinkOut,
    Arrive(usize),
    /// The service of the fault with this number is over.
    FaultServed(u64),
    Wake,
}

#[derive(Clone, Copy, Debug)]
enum Job {
    Block { block: u64, command: Option<usize> },
    Fault { block: u64 },
}

/// The device with an engine at its side.
pub struct Device {
    machine: Machine,
    engine: Engine,
    now: u64,
    agenda: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    ticket: u64,
    blocks: BTreeMap<u64, BlockState>,
    lrm: BTreeSet<(u64, u64)>,
    discarded: BTreeSet<(u64, u64)>,
    frames: u64,
    stamp: u64,
    program: VecDeque<Op>,
    allocations: BTreeMap<u64, u64>,
    parts: BTreeMap<u64, u64>,
    /// Deaths that wait for the device to pass a launch.
    deaths: VecDeque<(u64, Range)>,
    queue: VecDeque<(u64, Kernel)>,
    running: Option<(u64, Kernel, usize)>,
    waiting_for: Option<u64>,
    seq: u64,
    passed: u64,
    marked: u64,
    link_in: VecDeque<Job>,
    link_out: VecDeque<Job>,
    busy_in: bool,
    busy_out: bool,
    commands: Vec<(Command, u64)>,
    issued: Vec<Command>,
    pub outcome: Outcome,
}

impl Device {
    pub fn new(machine: Machine, policy: PolicyKind) -> Self {
        let capacity = machine.budget_blocks.unwrap_or(machine.device_blocks);
        let mut config = Config::new(policy, Bytes(capacity * BLOCK_BYTES));
        config.enforce = machine.budget_blocks.is_some();
        config.remote = machine.remote;
        config.link_bytes_per_us = BLOCK_BYTES as f64 * 1e3 / machine.block_in_ns as f64;
        Self::with_config(machine, config)
    }

    pub fn with_config(machine: Machine, config: Config) -> Self {
        Self::with_engine(machine, Engine::new(config).unwrap())
    }

    pub fn with_engine(machine: Machine, engine: Engine) -> Self {
        Self {
            machine,
            engine,
            now: 0,
            agenda: BinaryHeap::new(),
            ticket: 0,
            blocks: BTreeMap::new(),
            lrm: BTreeSet::new(),
            discarded: BTreeSet::new(),
            frames: 0,
            stamp: 0,
            program: VecDeque::new(),
            allocations: BTreeMap::new(),
            parts: BTreeMap::new(),
            deaths: VecDeque::new(),
            queue: VecDeque::new(),
            running: None,
            waiting_for: None,
            seq: 0,
            passed: 0,
            marked: 0,
            link_in: VecDeque::new(),
            link_out: VecDeque::new(),
            busy_in: false,
            busy_out: false,
            commands: Vec::new(),
            issued: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Runs a program to its end.
    pub fn run(mut self, program: Vec<Op>) -> Outcome {
        self.run_mut(program);
        self.outcome
    }

    pub fn run_mut(&mut self, program: Vec<Op>) {
        self.program = program.into();
        self.host();
        self.after(0, Happening::Compute);
        while let Some(Reverse((at, _, happening))) = self.agenda.pop() {
            assert!(
                at < 60_000_000_000,
                "the device hangs: {:?} {:?}",
                self.waiting_for,
                self.running
            );
            self.now = at;
            match happening {
                Happening::Compute => self.compute(),
                Happening::LinkIn => self.link_in_done(),
                Happening::LinkOut => self.link_out_done(),
                Happening::Arrive(command) => self.arrive(command),
                Happening::FaultServed(fault) if fault == self.outcome.faults => {
                    self.fault_served()
                }
                Happening::FaultServed(_) => {}
                Happening::Wake => {}
            }
            self.decide();
            if self.program.is_empty() && self.queue.is_empty() && self.running.is_none() {
                break;
            }
            if self.agenda.is_empty()
                && let Some(Micros(wakeup)) = self.engine.next_wakeup()
            {
                self.after((wakeup * 1000).saturating_sub(self.now), Happening::Wake);
            }
        }
        assert!(
            self.program.is_empty() && self.queue.is_empty(),
            "the program did not end"
        );
    }

    fn after(&mut self, ns: u64, happening: Happening) {
        self.ticket += 1;
        self.agenda
            .push(Reverse((self.now + ns, self.ticket, happening)));
    }

    fn tell(&mut self, event: &Event<'_>) {
        self.engine.step(Micros(self.now / 1000), event);
    }

    fn observe(&mut self, event: &Event<'_>) {
        if self.machine.probes {
            self.tell(event);
        }
    }

    /// The host works off its program until it is far enough ahead.
    fn host(&mut self) {
        while self.queue.len() < self.machine.run_ahead {
            let Some(op) = self.program.pop_front() else {
                break;
            };
            match op {
                Op::Alloc { range, pool } => {
                    let state = BlockState {
                        place: Place::Nowhere,
                        discarded: false,
                        mapped: false,
                        stamp: 0,
                        live: u32::from(!pool),
                        pool,
                    };
                    self.allocations.insert(range.address, range.bytes);
                    self.blocks.extend(range.blocks().map(|id| (id.0, state)));
                    self.tell(&Event::Alloc {
                        range,
                        pool,
                        prefetched: false,
                        on_host: false,
                    });
                }
                Op::Free { address } => {
                    let bytes = self.allocations.remove(&address).unwrap();
                    for id in (Range { address, bytes }).blocks() {
                        self.leave(id.0, Place::Nowhere);
                        self.blocks.remove(&id.0);
                    }
                    self.tell(&Event::Free { address });
                }
                Op::Use { range } => {
                    self.parts.insert(range.address, range.bytes);
                    for id in range.blocks() {
                        self.blocks.get_mut(&id.0).unwrap().live += 1;
                    }
                    self.tell(&Event::Use {
                        range,
                        seq: Seq(self.seq + 1),
                    });
                }
                Op::Unuse { address } => {
                    let bytes = self.parts.remove(&address).unwrap();
                    self.deaths.push_back((self.seq, Range { address, bytes }));
                    self.bury();
                    let stream = StreamId(0);
                    self.tell(&Event::Unuse {
                        address,
                        stream,
                        seq: Seq(self.seq + 1),
                    });
                }
                Op::Launch(kernel) => {
                    self.seq += 1;
                    let launch = Launch {
                        seq: Seq(self.seq),
                        stream: StreamId(0),
                        function: FunctionId(kernel.function),
                        grid: kernel.grid,
                        block: [256, 1, 1],
                        words: &kernel.words,
                    };
                    self.engine
                        .step(Micros(self.now / 1000), &Event::Launch(launch));
                    self.queue.push_back((self.seq, kernel));
                }
            }
        }
    }

    fn bury(&mut self) {
        while self
            .deaths
            .front()
            .is_some_and(|(seq, _)| *seq <= self.passed)
        {
            let (_, range) = self.deaths.pop_front().unwrap();
            for id in range.blocks() {
                if let Some(state) = self.blocks.get_mut(&id.0) {
                    state.live -= 1;
                }
            }
        }
    }

    fn compute(&mut self) {
        if self.waiting_for.is_some() {
            return;
        }
        if self.running.is_none() {
            self.host();
            let Some((seq, kernel)) = self.queue.pop_front() else {
                return;
            };
            self.running = Some((seq, kernel, 0));
            self.host();
        }
        let Some((seq, kernel, index)) = self.running.take() else {
            return;
        };
        if index == kernel.touches.len() {
            self.passed = seq;
            self.outcome.launch_ends_ns.push(self.now);
            self.outcome
                .links
                .push((self.outcome.blocks_in, self.outcome.blocks_out, self.frames));
            if kernel.ends_iteration {
                self.outcome.iteration_ends_ns.push(self.now);
                let peak = std::mem::replace(&mut self.outcome.peak, self.frames);
                self.outcome.iteration_peaks.push(peak);
            }
            self.bury();
            let stride = u64::from(self.engine.mark_stride());
            if seq - self.marked >= stride || self.queue.is_empty() {
                self.marked = seq;
                self.tell(&Event::Progress {
                    stream: StreamId(0),
                    seq: Seq(seq),
                });
            }
            self.after(0, Happening::Compute);
            return;
        }
        let block = kernel.touches[index];
        let slice = kernel.duration_ns / kernel.touches.len() as u64;
        let state = self.blocks[&block];
        self.running = Some((seq, kernel, index));
        match state.place {
            Place::Device => {
                if state.discarded {
                    // A write brings it back.
                    self.arrive_on_device(block);
                }
                self.outcome.compute_ns += slice;
                if let Some((_, _, index)) = &mut self.running {
                    *index += 1;
                }
                self.after(slice, Happening::Compute);
            }
            Place::In | Place::Out => self.waiting_for = Some(block),
            Place::Nowhere | Place::Host if self.machine.remote => self.use_on_host(block, slice),
            Place::Nowhere | Place::Host => {
                self.waiting_for = Some(block);
                self.outcome.faults += 1;
                let address = block * BLOCK_BYTES;
                self.observe(&Event::Fault {
                    address,
                    faults: 1,
                    by_host: false,
                });
                self.after(
                    self.machine.fault_ns,
                    Happening::FaultServed(self.outcome.faults),
                );
            }
        }
    }

    /// The running launch uses a block over the link; the first time it faults.
    fn use_on_host(&mut self, block: u64, slice: u64) {
        let state = self.blocks.get_mut(&block).unwrap();
        state.place = Place::Host;
        let mut took = slice + self.machine.block_in_ns;
        if !std::mem::replace(&mut state.mapped, true) {
            took += self.machine.fault_ns;
            self.outcome.faults += 1;
            self.observe(&Event::Fault {
                address: block * BLOCK_BYTES,
                faults: 1,
                by_host: false,
            });
        }
        self.outcome.remote += 1;
        self.outcome.compute_ns += slice;
        if let Some((_, _, index)) = &mut self.running {
            *index += 1;
        }
        self.after(took, Happening::Compute);
    }

    fn fault_served(&mut self) {
        let Some(block) = self.waiting_for else {
            return;
        };
        match self.blocks[&block].place {
            Place::Nowhere => {
                let wait = self.room();
                self.frames += 1;
                self.arrive_on_device(block);
                let range = Range {
                    address: block * BLOCK_BYTES,
                    bytes: BLOCK_BYTES,
                };
                self.observe(&Event::Populated { range });
                self.waiting_for = None;
                self.after(wait, Happening::Compute);
            }
            Place::Host => {
                self.link_in.push_front(Job::Fault { block });
                self.start_in();
            }
            // A prefetch got there first.
            Place::In | Place::Out => {}
            Place::Device => {
                self.waiting_for = None;
                self.after(0, Happening::Compute);
            }
        }
    }

    /// Makes a frame free as the driver does; returns how long that takes.
    fn room(&mut self) -> u64 {
        if self.frames < self.machine.device_blocks {
            return 0;
        }
        if let Some((_, block)) = self.discarded.first().copied() {
            self.leave(block, Place::Nowhere);
            return 0;
        }
        let (_, block) = self
            .lrm
            .first()
            .copied()
            .expect("a full device holds blocks");
        self.leave(block, Place::Host);
        self.outcome.blocks_out += 1;
        self.report(block, Direction::Out, Cause::Eviction);
        self.machine.block_out_ns
    }

    fn report(&mut self, block: u64, direction: Direction, cause: Cause) {
        let range = Range {
            address: block * BLOCK_BYTES,
            bytes: BLOCK_BYTES,
        };
        self.observe(&Event::Migration {
            range,
            direction,
            cause,
        });
    }

    fn leave(&mut self, block: u64, place: Place) {
        let state = self.blocks.get_mut(&block).unwrap();
        self.lrm.remove(&(state.stamp, block));
        self.discarded.remove(&(state.stamp, block));
        state.discarded = false;
        state.mapped = false;
        if matches!(state.place, Place::Device | Place::In | Place::Out) {
            self.frames -= 1;
        }
        state.place = place;
    }

    /// The block, whose frame is counted already, is on the device.
    fn arrive_on_device(&mut self, block: u64) {
        self.stamp += 1;
        let state = self.blocks.get_mut(&block).unwrap();
        self.lrm.remove(&(state.stamp, block));
        self.discarded.remove(&(state.stamp, block));
        state.stamp = self.stamp;
        state.place = Place::Device;
        state.discarded = false;
        self.lrm.insert((self.stamp, block));
        self.outcome.peak_blocks = self.outcome.peak_blocks.max(self.frames);
        self.outcome.peak = self.outcome.peak.max(self.frames);
    }

    fn wake_waiter(&mut self, block: u64) {
        if self.waiting_for == Some(block) {
            self.waiting_for = None;
            self.after(0, Happening::Compute);
        }
    }

    fn start_in(&mut self) {
        while !self.busy_in {
            let Some(job) = self.link_in.front().copied() else {
                return;
            };
            let (Job::Block { block, .. } | Job::Fault { block }) = job;
            let place = self.blocks.get(&block).map(|state| state.place);
            if place == Some(Place::Host) {
                let wait = self.room();
                self.frames += 1;
                let state = self.blocks.get_mut(&block).unwrap();
                (state.place, state.mapped) = (Place::In, false);
                self.busy_in = true;
                self.after(wait + self.machine.block_in_ns, Happening::LinkIn);
            } else {
                self.link_in.pop_front();
                if place == Some(Place::Device) {
                    self.arrive_on_device(block);
                    self.wake_waiter(block);
                }
                self.job_done(job);
            }
        }
    }

    fn link_in_done(&mut self) {
        self.busy_in = false;
        let index = self.link_in.iter().position(|job| {
            let (Job::Block { block, .. } | Job::Fault { block }) = job;
            self.blocks
                .get(block)
                .is_some_and(|state| state.place == Place::In)
        });
        let Some(index) = index else {
            self.start_in();
            return;
        };
        let job = self.link_in.remove(index).unwrap();
        let (Job::Block { block, .. } | Job::Fault { block }) = job;
        self.outcome.blocks_in += 1;
        self.arrive_on_device(block);
        let by_fault = matches!(job, Job::Fault { .. });
        if !by_fault {
            self.outcome.prefetched += 1;
        }
        let cause = if by_fault { Cause::Fault } else { Cause::Call };
        self.report(block, Direction::In, cause);
        self.wake_waiter(block);
        self.job_done(job);
        self.start_in();
    }

    fn start_out(&mut self) {
        while !self.busy_out {
            let Some(job) = self.link_out.front().copied() else {
                return;
            };
            let (Job::Block { block, .. } | Job::Fault { block }) = job;
            let state = self.blocks.get(&block).copied();
            if state.is_some_and(|state| state.place == Place::Device && !state.discarded) {
                self.outcome.overtaken += u64::from(self.user_of(block).is_some());
                let state = self.blocks.get_mut(&block).unwrap();
                state.place = Place::Out;
                self.lrm.remove(&(state.stamp, block));
                self.busy_out = true;
                self.after(self.machine.block_out_ns, Happening::LinkOut);
            } else {
                self.link_out.pop_front();
                self.job_done(job);
            }
        }
    }

    fn link_out_done(&mut self) {
        self.busy_out = false;
        let job = self.link_out.pop_front().unwrap();
        let (Job::Block { block, .. } | Job::Fault { block }) = job;
        if self.blocks.contains_key(&block) {
            self.leave(block, Place::Host);
            self.outcome.blocks_out += 1;
            self.report(block, Direction::Out, Cause::Call);
            self.wake_waiter(block);
        }
        self.job_done(job);
        self.start_out();
    }

    /// The launch that runs now, if its pointers say that it uses the block.
    fn user_of(&self, block: u64) -> Option<u64> {
        let (seq, kernel, _) = self.running.as_ref()?;
        (kernel.declared && kernel.touches.contains(&block)).then_some(*seq)
    }

    fn check(&mut self, command: Command) {
        let live = self.drops_live(command);
        let used = command.range.blocks().find_map(|id| self.user_of(id.0));
        if live || (command.operation == Operation::Evict && used.is_some()) {
            self.outcome
                .violations
                .push(format!("{command:?}, live: {live}, used by {used:?}"));
        }
    }

    fn job_done(&mut self, job: Job) {
        if let Job::Block {
            command: Some(index),
            ..
        } = job
        {
            self.commands[index].1 -= 1;
            if self.commands[index].1 == 0 {
                let Command { queue, id, .. } = self.commands[index].0;
                self.tell(&Event::Completed { queue, id });
            }
        }
    }

    fn decide(&mut self) {
        let mut issued = std::mem::take(&mut self.issued);
        self.engine.decide(Micros(self.now / 1000), &mut issued);
        for command in issued.drain(..) {
            if self.drops_live(command) {
                self.outcome
                    .violations
                    .push(format!("discards live {:?}", command.range));
            }
            self.outcome.commands.push((self.now, command));
            self.commands
                .push((command, command.range.blocks().count() as u64));
            let index = self.commands.len() - 1;
            self.after(self.machine.command_ns, Happening::Arrive(index));
        }
        self.issued = issued;
    }

    fn arrive(&mut self, index: usize) {
        let command = self.commands[index].0;
        if self.drops_live(command) {
            // The program took the memory meanwhile: the shim declines.
            let Command { queue, id, .. } = command;
            self.tell(&Event::Refused { queue, id });
            return;
        }
        for BlockId(block) in command.range.blocks() {
            let job = Job::Block {
                block,
                command: Some(index),
            };
            match command.queue {
                Queue::In => self.link_in.push_back(job),
                Queue::Out => self.link_out.push_back(job),
                Queue::Local => {
                    self.local(command.operation, block);
                    self.job_done(job);
                }
            }
        }
        self.start_in();
        self.start_out();
    }

    fn drop_content(&mut self, block: u64) {
        let Some(state) = self.blocks.get(&block).copied() else {
            return;
        };
        match state.place {
            Place::Device => {
                self.lrm.remove(&(state.stamp, block));
                self.blocks.get_mut(&block).unwrap().discarded = true;
                self.leave(block, Place::Nowhere);
            }
            Place::Host => {
                let state = self.blocks.get_mut(&block).unwrap();
                (state.place, state.mapped) = (Place::Nowhere, false);
            }
            Place::Nowhere | Place::In | Place::Out => {}
        }
    }

    /// It would drop what the program has.
    fn drops_live(&self, command: Command) -> bool {
        command.operation == Operation::Discard && self.live(command.range)
    }

    /// Some of the range is handed out, or no pool memory at all.
    fn live(&self, range: Range) -> bool {
        let mut blocks = range.blocks().filter_map(|id| self.blocks.get(&id.0));
        blocks.any(|state| !state.pool || state.live > 0)
    }

    fn local(&mut self, operation: Operation, block: u64) {
        let Some(state) = self.blocks.get(&block).copied() else {
            return;
        };
        match (operation, state.place) {
            (Operation::Discard, _) if !state.pool || state.live > 0 => {
                self.outcome
                    .violations
                    .push(format!("discards live {block:#x}"));
            }
            (Operation::Discard, _) => self.drop_content(block),
            (Operation::Populate, Place::Nowhere) => {
                self.room();
                self.frames += 1;
                self.arrive_on_device(block);
                let range = Range {
                    address: block * BLOCK_BYTES,
                    bytes: BLOCK_BYTES,
                };
                self.observe(&Event::Populated { range });
                self.wake_waiter(block);
            }
            _ => {}
        }
    }
}
