//! Frames of dead memory go to what is born again first.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;

use oversub_engine::{
    BLOCK_BYTES, Bytes, Cause, Command, Config, Direction, Engine, Event, FunctionId, Launch,
    Micros, Operation, PolicyKind, Range, Seq, StreamId,
};

const SEGMENT: u64 = 1 << 40;
const STREAM: StreamId = StreamId(0);
const DEVICE_BLOCKS: usize = 16;
/// Parts of the segment, and blocks of each.
const PARTS: u64 = 3;
const BLOCKS: u64 = 8;

/// A device with room for some blocks, whose driver evicts what is there the longest.
struct Device {
    room: usize,
    /// The longest there first.
    resident: VecDeque<u64>,
    /// Blocks that the driver evicted.
    evicted: u64,
}

impl Device {
    fn new(room: usize) -> Self {
        let resident = VecDeque::new();
        let evicted = 0;
        Self {
            room,
            resident,
            evicted,
        }
    }

    /// A launch comes to a block, which may fault.
    fn touch(&mut self, engine: &mut Engine, now: u64, number: u64) {
        if self.resident.contains(&number) {
            return;
        }
        let range = blocks(number, 1);
        let fault = Event::Fault {
            address: range.address,
            faults: 8,
            by_host: false,
        };
        engine.step(Micros(now), &fault);
        self.arrive(engine, now, number);
        let arrived = Event::Migration {
            range,
            direction: Direction::In,
            cause: Cause::Fault,
        };
        engine.step(Micros(now), &arrived);
    }

    /// Gives a block a frame, for which the driver may have to evict another.
    fn arrive(&mut self, engine: &mut Engine, now: u64, number: u64) {
        if self.resident.len() == self.room {
            self.evicted += 1;
            let evicted = Event::Migration {
                range: blocks(self.resident.pop_front().unwrap(), 1),
                direction: Direction::Out,
                cause: Cause::Eviction,
            };
            engine.step(Micros(now), &evicted);
        }
        self.resident.push_back(number);
    }

    /// Carries out a command.
    fn complete(&mut self, engine: &mut Engine, now: u64, command: &Command) {
        for number in command.range.blocks().map(number) {
            let there = self.resident.iter().position(|&other| other == number);
            match (command.operation, there) {
                (Operation::Populate | Operation::Prefetch, None) => {
                    self.arrive(engine, now, number);
                }
                (Operation::Discard | Operation::Evict, Some(at)) => {
                    self.resident.remove(at);
                }
                _ => {}
            }
        }
        let (queue, id) = (command.queue, command.id);
        engine.step(Micros(now), &Event::Completed { queue, id });
    }
}

/// A program that is handed one part after the other, writes it and gives it back.
struct Scratch {
    engine: Engine,
    now: u64,
    launches: u64,
    device: Device,
}

impl Scratch {
    fn new() -> Self {
        let capacity = Bytes(DEVICE_BLOCKS as u64 * BLOCK_BYTES);
        let mut config = Config::new(PolicyKind::Foresight, capacity);
        // So slow that nothing is born again so much later that it is dropped as it dies.
        config.link_bytes_per_us = 100.0;
        let mut scratch = Self {
            engine: Engine::new(config).unwrap(),
            now: 0,
            launches: 0,
            device: Device::new(DEVICE_BLOCKS),
        };
        scratch.tell(&Event::Alloc {
            range: blocks(0, PARTS * BLOCKS),
            pool: true,
            prefetched: false,
            on_host: false,
        });
        scratch
    }

    fn tell(&mut self, event: &Event<'_>) {
        self.now += 10;
        self.engine.step(Micros(self.now), event);
    }

    fn decide(&mut self) {
        let mut commands = Vec::new();
        self.engine.decide(Micros(self.now), &mut commands);
        for command in commands {
            self.now += 10;
            self.device.complete(&mut self.engine, self.now, &command);
        }
    }

    /// One turn of the program.
    fn turn(&mut self) {
        for part in 0..PARTS {
            let range = blocks(part * BLOCKS, BLOCKS);
            self.launches += 1;
            let seq = Seq(self.launches);
            self.tell(&Event::Use { range, seq });
            let which = (self.launches, part as u32);
            self.now += 10;
            launch(&mut self.engine, self.now, which, range);
            self.decide();
            for number in range.blocks().map(number) {
                self.now += 10;
                self.device.touch(&mut self.engine, self.now, number);
                self.decide();
            }
            self.now += 1_000;
            self.tell(&Event::Progress {
                stream: STREAM,
                seq,
            });
            self.tell(&Event::Unuse {
                address: range.address,
                stream: STREAM,
                seq: Seq(self.launches + 1),
            });
            self.decide();
        }
    }
}

/// Queues a launch of a function that is given a pointer to the range.
fn launch(engine: &mut Engine, now: u64, (seq, function): (u64, u32), range: Range) {
    let launch = Event::Launch(Launch {
        seq: Seq(seq),
        stream: STREAM,
        function: FunctionId(function),
        grid: [1 << 16, 1, 1],
        block: [1024, 1, 1],
        words: &[range.address],
    });
    engine.step(Micros(now), &launch);
}

fn blocks(first: u64, count: u64) -> Range {
    Range {
        address: SEGMENT + first * BLOCK_BYTES,
        bytes: count * BLOCK_BYTES,
    }
}

fn number(id: oversub_engine::BlockId) -> u64 {
    (id.address() - SEGMENT) / BLOCK_BYTES
}

#[test]
fn what_is_born_last_leaves_its_frames_before_what_is_born_first_is_handed_out() {
    let mut scratch = Scratch::new();
    for turn in 0..6 {
        scratch.turn();
        let last = (PARTS - 1) * BLOCKS..PARTS * BLOCKS;
        let there = scratch
            .device
            .resident
            .iter()
            .filter(|&number| last.contains(number));
        // The first turn shows nothing of what comes next.
        let expected = if turn == 0 { BLOCKS } else { 0 };
        assert_eq!(there.count() as u64, expected, "turn {turn}");
    }
}

/// A program that is handed parts for one launch each in a turn, with all launches of the turn
/// told before the device begins with it.
struct Ahead {
    engine: Engine,
    launches: u64,
    now: u64,
    device: Device,
    /// What the launches of a turn use, first block and blocks, and how many of these are parts.
    uses: Vec<(u64, u64)>,
    parts: usize,
    /// A launch runs on for so long after its last access.
    rest_us: u64,
    /// Blocks of parts that were told to leave over the link.
    left: Vec<u64>,
}

impl Ahead {
    fn new(device: usize, parts: &[(u64, u64)], kept: &[(u64, u64)], rest_us: u64) -> Self {
        let mut config = Config::new(PolicyKind::Foresight, Bytes(device as u64 * BLOCK_BYTES));
        // A block takes longer than a launch that does not run on, and less than one that does.
        config.link_bytes_per_us = 1_000.0;
        let mut engine = Engine::new(config).unwrap();
        let all = [(parts, true), (kept, false)];
        let mut obtained_until = 0;
        for (ranges, pool) in all {
            for &(first, count) in ranges {
                if first < obtained_until {
                    // A part of a turn that is handed out twice.
                    continue;
                }
                obtained_until = first + count;
                let obtained = Event::Alloc {
                    range: blocks(first, count),
                    pool,
                    prefetched: false,
                    on_host: false,
                };
                engine.step(Micros(0), &obtained);
            }
        }
        Self {
            engine,
            launches: 0,
            now: 0,
            device: Device::new(device),
            uses: [parts, kept].concat(),
            parts: parts.len(),
            rest_us,
            left: Vec::new(),
        }
    }

    fn tell(&mut self, event: &Event<'_>) {
        self.engine.step(Micros(self.now), event);
    }

    /// Carries out at once what is ordered.
    fn decide(&mut self) {
        loop {
            let mut commands = Vec::new();
            self.engine.decide(Micros(self.now), &mut commands);
            if commands.is_empty() {
                return;
            }
            for command in commands {
                if command.operation == Operation::Evict {
                    let parts = &self.uses[..self.parts];
                    let is_part = |number: &u64| {
                        let within = |&(first, count)| (first..first + count).contains(number);
                        parts.iter().any(within)
                    };
                    let numbers = command.range.blocks().map(number);
                    self.left.extend(numbers.filter(is_part));
                }
                self.device.complete(&mut self.engine, self.now, &command);
            }
        }
    }

    /// The running launch goes through its blocks.
    fn run(&mut self, (first, count): (u64, u64)) {
        for number in first..first + count {
            self.now += 1;
            self.device.touch(&mut self.engine, self.now, number);
            self.decide();
        }
        for _ in 0..10 {
            self.now += self.rest_us / 10;
            self.decide();
        }
    }

    fn turn(&mut self) {
        let before = self.launches;
        for (function, used) in (0..).zip(self.uses.clone()) {
            let range = blocks(used.0, used.1);
            self.launches += 1;
            let seq = Seq(self.launches);
            let is_part = function < self.parts as u32;
            if is_part {
                self.tell(&Event::Use { range, seq });
            }
            launch(&mut self.engine, self.now, (seq.0, function), range);
            if is_part {
                self.tell(&Event::Unuse {
                    address: range.address,
                    stream: STREAM,
                    seq: Seq(seq.0 + 1),
                });
            }
        }
        self.decide();
        for (seq, used) in (before + 1..).zip(self.uses.clone()) {
            self.run(used);
            self.tell(&Event::Progress {
                stream: STREAM,
                seq: Seq(seq),
            });
            self.decide();
        }
    }
}

/// No part leaves once so many turns have shown what comes next.
fn no_part_leaves_after(turns: usize, mut program: Ahead) {
    for turn in 0..8 {
        program.turn();
        if turn >= turns {
            assert_eq!(program.left, [], "turn {turn}");
        }
        program.left.clear();
    }
}

#[test]
fn what_is_dead_before_it_could_be_moved_out_is_not() {
    let kept = [(64, 90), (154, 90)];
    no_part_leaves_after(2, Ahead::new(200, &[(0, 64)], &kept, 0));
}

#[test]
fn what_is_dead_before_its_frame_is_missed_is_not_moved_out() {
    // The second part needs more frames than are free, and most of the first one's.
    let parts = [(0, 300), (300, 500)];
    let kept = [(800, 200)];
    no_part_leaves_after(4, Ahead::new(640, &parts, &kept, 5_000_000));
}

#[test]
fn births_find_frames_though_the_frames_of_the_dead_stay_with_what_is_born_again() {
    // The first part is handed out again before the device comes to the second one.
    let parts = [(0, 100), (100, 300), (0, 100)];
    let mut program = Ahead::new(640, &parts, &[(400, 400)], 5_000_000);
    for turn in 0..8 {
        let before = program.device.evicted;
        program.turn();
        let evicted = program.device.evicted - before;
        if turn >= 2 {
            assert_eq!((evicted, &program.left[..]), (0, &[][..]), "turn {turn}");
        }
        program.left.clear();
    }
}
