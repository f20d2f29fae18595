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

/// A program that is handed one part after the other, writes it and gives it back.
struct Scratch {
    engine: Engine,
    now: u64,
    launches: u64,
    /// The longest there first.
    resident: VecDeque<u64>,
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
            resident: VecDeque::new(),
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
            self.complete(command);
        }
    }

    fn complete(
        &mut self,
        Command {
            operation,
            range,
            queue,
            id,
            ..
        }: Command,
    ) {
        for number in range.blocks().map(number) {
            let there = self.resident.iter().position(|&other| other == number);
            match (operation, there) {
                (Operation::Populate | Operation::Prefetch, None) => self.arrive(number),
                (Operation::Discard | Operation::Evict, Some(at)) => {
                    self.resident.remove(at);
                }
                _ => {}
            }
        }
        self.tell(&Event::Completed { queue, id });
    }

    /// Gives a block a frame, for which the driver may have to evict another.
    fn arrive(&mut self, number: u64) {
        if self.resident.len() == DEVICE_BLOCKS {
            let range = blocks(self.resident.pop_front().unwrap(), 1);
            self.tell(&Event::Migration {
                range,
                direction: Direction::Out,
                cause: Cause::Eviction,
            });
        }
        self.resident.push_back(number);
    }

    /// One turn of the program.
    fn turn(&mut self) {
        for part in 0..PARTS {
            let range = blocks(part * BLOCKS, BLOCKS);
            self.launches += 1;
            let seq = Seq(self.launches);
            self.tell(&Event::Use { range, seq });
            self.tell(&Event::Launch(Launch {
                seq,
                stream: STREAM,
                function: FunctionId(part as u32),
                grid: [1 << 16, 1, 1],
                block: [1024, 1, 1],
                words: &[range.address],
            }));
            self.decide();
            for number in range.blocks().map(number) {
                if !self.resident.contains(&number) {
                    self.arrive(number);
                    self.tell(&Event::Fault {
                        address: blocks(number, 1).address,
                        faults: 8,
                        by_host: false,
                    });
                    self.tell(&Event::Migration {
                        range: blocks(number, 1),
                        direction: Direction::In,
                        cause: Cause::Fault,
                    });
                }
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
            .resident
            .iter()
            .filter(|&number| last.contains(number));
        // The first turn shows nothing of what comes next.
        let expected = if turn == 0 { BLOCKS } else { 0 };
        assert_eq!(there.count() as u64, expected, "turn {turn}");
    }
}
