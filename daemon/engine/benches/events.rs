//! What one event costs: launches and progress of a steady cycle, decisions included.
#![allow(missing_docs, clippy::unwrap_used)]

use criterion::{Criterion, criterion_group, criterion_main};
use oversub_engine::{
    BLOCK_BYTES, Bytes, Command, Config, Engine, Event, FunctionId, Launch, Micros, PolicyKind,
    Range, Seq, StreamId,
};

/// A sweep over `total` blocks in launches of `chunk` blocks, its commands done at once.
struct Session {
    engine: Engine,
    commands: Vec<Command>,
    seq: u64,
    total: u64,
    chunk: u64,
}

impl Session {
    fn new(policy: PolicyKind, total: u64, chunk: u64) -> Self {
        let capacity = Bytes(total * 2 / 3 * BLOCK_BYTES);
        let mut engine = Engine::new(Config::new(policy, capacity)).unwrap();
        let range = Range {
            address: 1 << 40,
            bytes: total * BLOCK_BYTES,
        };
        engine.step(
            Micros(0),
            &Event::Alloc {
                range,
                pool: false,
                prefetched: false,
                on_host: false,
            },
        );
        let mut session = Self {
            engine,
            commands: Vec::new(),
            seq: 0,
            total,
            chunk,
        };
        for _ in 0..4 * total / chunk {
            session.launch();
        }
        session
    }

    /// One launch, one mark, one decision and the answers to its commands.
    fn launch(&mut self) {
        self.seq += 1;
        let now = Micros(self.seq * 100);
        let first = (self.seq * self.chunk) % self.total;
        let words = [(1 << 40) + first * BLOCK_BYTES, self.seq, 12, 13];
        let launch = Launch {
            seq: Seq(self.seq),
            stream: StreamId(0),
            function: FunctionId(1),
            grid: [(self.chunk * 2048) as u32, 1, 1],
            block: [256, 1, 1],
            words: &words,
        };
        self.engine.step(now, &Event::Launch(launch));
        let passed = Seq(self.seq.saturating_sub(16));
        self.engine.step(
            now,
            &Event::Progress {
                stream: StreamId(0),
                seq: passed,
            },
        );
        self.engine.decide(now, &mut self.commands);
        for command in self.commands.drain(..) {
            self.engine.step(
                now,
                &Event::Completed {
                    queue: command.queue,
                    id: command.id,
                },
            );
        }
    }
}

fn events(c: &mut Criterion) {
    for (name, policy) in [
        ("foresight", PolicyKind::Foresight),
        ("deepum", PolicyKind::Deepum),
        ("demand", PolicyKind::Demand),
    ] {
        for (total, chunk) in [(1536, 1), (1536, 16), (60_000, 16)] {
            let mut session = Session::new(policy, total, chunk);
            c.bench_function(&format!("launch/{name}/{total} blocks by {chunk}"), |b| {
                b.iter(|| session.launch());
            });
        }
    }
}

criterion_group!(benches, events);
criterion_main!(benches);
