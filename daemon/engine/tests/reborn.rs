//! Frames of dead memory go to what is born again first.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;

use oversub_engine::{
    BLOCK_BYTES, Bytes, Cause, Command, Config, Direction, Engine, Event, FunctionId, Launch,
    Micros, Operation, PolicyKind, Queue, Range, Seq, StreamId,
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
}

impl Device {
    fn new(room: usize) -> Self {
        let resident = VecDeque::new();
        Self { room, resident }
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

/// A program that is handed a part, gives it back and is handed it again long before the device
/// has passed all that; in between more is used than fits, and only then.
#[derive(Default)]
struct Peak {
    launches: u64,
    now: u64,
}

impl Peak {
    const DEVICE: u64 = 40;
    /// Blocks that are used in every turn, handed out twice in it, and used in between.
    const KEPT: [(u64, u64); 2] = [(0, 14), (14, 14)];
    const TWICE: (u64, u64) = (28, 8);
    const BETWEEN: (u64, u64) = (36, 16);

    fn launch(&mut self, engine: &mut Engine, function: u32, (first, count): (u64, u64)) {
        self.launches += 1;
        launch(
            engine,
            self.now,
            (self.launches, function),
            blocks(first, count),
        );
    }

    /// Hands out a part for one launch.
    fn scratch(&mut self, engine: &mut Engine, function: u32, part: (u64, u64)) {
        let range = blocks(part.0, part.1);
        let seq = Seq(self.launches + 1);
        engine.step(Micros(self.now), &Event::Use { range, seq });
        self.launch(engine, function, part);
        let end = Event::Unuse {
            address: range.address,
            stream: STREAM,
            seq: Seq(self.launches + 1),
        };
        engine.step(Micros(self.now), &end);
    }

    /// One turn: the blocks that are to be dropped in the order of the stream.
    fn turn(&mut self, engine: &mut Engine) -> Vec<u64> {
        let mut commands = Vec::new();
        let before = self.launches;
        for part in Self::KEPT {
            self.launch(engine, 0, part);
        }
        let parts = [Self::TWICE, Self::BETWEEN, Self::TWICE];
        for (function, part) in (1..).zip(parts) {
            self.scratch(engine, function, part);
            engine.decide(Micros(self.now), &mut commands);
        }
        for seq in before + 1..=self.launches {
            self.now += 1_000;
            let passed = Event::Progress {
                stream: STREAM,
                seq: Seq(seq),
            };
            engine.step(Micros(self.now), &passed);
            engine.decide(Micros(self.now), &mut commands);
        }
        for command in &commands {
            let (queue, id) = (command.queue, command.id);
            let answer = match queue {
                // Nothing moves over the link.
                Queue::In | Queue::Out => Event::Refused { queue, id },
                Queue::Local | Queue::Ordered => Event::Completed { queue, id },
            };
            engine.step(Micros(self.now), &answer);
        }
        let dropped = commands.iter().filter(|one| one.queue == Queue::Ordered);
        let dropped = dropped.flat_map(|command| command.range.blocks());
        dropped.map(number).collect()
    }
}

#[test]
fn what_is_handed_out_again_is_dropped_where_most_is_used_before_it_is_born() {
    let mut config = Config::new(PolicyKind::Foresight, Bytes(Peak::DEVICE * BLOCK_BYTES));
    // So slow that nothing is born again so much later that it is dropped for that.
    config.link_bytes_per_us = 100.0;
    let mut engine = Engine::new(config).unwrap();
    let [kept, other] = Peak::KEPT;
    for (part, pool) in [(kept, false), (other, false), ((28, 24), true)] {
        let obtained = Event::Alloc {
            range: blocks(part.0, part.1),
            pool,
            prefetched: false,
            on_host: false,
        };
        engine.step(Micros(0), &obtained);
    }
    // The device was full once.
    let left = Event::Migration {
        range: blocks(0, 1),
        direction: Direction::Out,
        cause: Cause::Eviction,
    };
    engine.step(Micros(0), &left);
    let mut peak = Peak::default();
    let turns: Vec<Vec<u64>> = (0..3).map(|_| peak.turn(&mut engine)).collect();
    let (first, count) = Peak::TWICE;
    let twice: Vec<u64> = (first..first + count).collect();
    // Once in a turn: before its last launch gives them back the most has been used, and what is
    // used in between is born again with nothing more used before. The first turn tells nothing.
    assert_eq!(turns, [vec![], twice.clone(), twice]);
}

/// A program that is handed a part for one launch of each turn; the others of the turn use more
/// than fits beside it.
struct Gone {
    engine: Engine,
    launches: u64,
    now: u64,
    device: Device,
    /// Blocks of the part that were told to leave over the link.
    left: Vec<u64>,
}

impl Gone {
    const DEVICE: usize = 200;
    const PART: (u64, u64) = (0, 64);
    const KEPT: [(u64, u64); 2] = [(64, 90), (154, 90)];

    fn new() -> Self {
        let capacity = Bytes(Self::DEVICE as u64 * BLOCK_BYTES);
        let mut config = Config::new(PolicyKind::Foresight, capacity);
        // A block takes longer than a launch.
        config.link_bytes_per_us = 1_000.0;
        let mut engine = Engine::new(config).unwrap();
        let [first, second] = Self::KEPT;
        for (part, pool) in [(Self::PART, true), (first, false), (second, false)] {
            let obtained = Event::Alloc {
                range: blocks(part.0, part.1),
                pool,
                prefetched: false,
                on_host: false,
            };
            engine.step(Micros(0), &obtained);
        }
        Self {
            engine,
            launches: 0,
            now: 0,
            device: Device::new(Self::DEVICE),
            left: Vec::new(),
        }
    }

    fn tell(&mut self, event: &Event<'_>) {
        self.engine.step(Micros(self.now), event);
    }

    fn launch(&mut self, function: u32, (first, count): (u64, u64)) {
        self.launches += 1;
        let which = (self.launches, function);
        launch(&mut self.engine, self.now, which, blocks(first, count));
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
                    let numbers = command.range.blocks().map(number);
                    self.left
                        .extend(numbers.filter(|&number| number < Self::PART.1));
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
    }

    /// One turn, all of which is told before the device begins with it.
    fn turn(&mut self) {
        let before = self.launches;
        let range = blocks(Self::PART.0, Self::PART.1);
        let seq = Seq(before + 1);
        self.tell(&Event::Use { range, seq });
        self.launch(0, Self::PART);
        self.tell(&Event::Unuse {
            address: range.address,
            stream: STREAM,
            seq: Seq(before + 2),
        });
        for (function, kept) in (1..).zip(Self::KEPT) {
            self.launch(function, kept);
        }
        self.decide();
        for (seq, used) in (before + 1..).zip([Self::PART, Self::KEPT[0], Self::KEPT[1]]) {
            self.run(used);
            self.tell(&Event::Progress {
                stream: STREAM,
                seq: Seq(seq),
            });
            self.decide();
        }
    }
}

#[test]
fn what_is_dead_before_it_could_be_moved_out_is_not() {
    let mut program = Gone::new();
    for turn in 0..8 {
        program.turn();
        // The first turns tell nothing of what comes next.
        if turn > 1 {
            assert_eq!(program.left, [], "turn {turn}");
        }
        program.left.clear();
    }
}
