//! Every table keeps its configured limit, whatever comes.

#![allow(clippy::unwrap_used)]

use oversub_engine::{
    BLOCK_BYTES, Bytes, Command, Config, Engine, Event, FunctionId, Launch, Micros, PolicyKind,
    Range, Seq, StreamId,
};

/// Launches that never repeat, over memory that comes and goes.
fn flood(engine: &mut Engine, launches: u64) {
    let mut commands = Vec::new();
    let stream = StreamId(0);
    for n in 1..=launches {
        let now = Micros(n * 10);
        let address = (1 << 40) + (n % 97) * 32 * BLOCK_BYTES;
        if n % 5 == 0 {
            engine.step(now, &Event::Free { address });
        }
        let range = Range {
            address,
            bytes: (1 + n % 31) * BLOCK_BYTES,
        };
        engine.step(
            now,
            &Event::Alloc {
                range,
                pool: n % 3 == 0,
                prefetched: false,
                on_host: false,
            },
        );
        let name = format!("kernel{n}");
        let function = FunctionId(n as u32);
        engine.step(
            now,
            &Event::Function {
                function,
                name: &name,
            },
        );
        let words = [address, n * n, address + 4096 * n % 4096, n];
        engine.step(
            now,
            &Event::Launch(Launch {
                seq: Seq(n),
                stream,
                function,
                grid: [n as u32, 1, 1],
                block: [32, 1, 1],
                words: &words,
            }),
        );
        let fault = Event::Fault {
            address: address + n % 7 * BLOCK_BYTES,
            faults: 3,
            by_host: false,
        };
        engine.step(now, &fault);
        engine.step(
            now,
            &Event::Progress {
                stream,
                seq: Seq(n),
            },
        );
        engine.decide(now, &mut commands);
        for Command { queue, id, .. } in commands.drain(..) {
            engine.step(now, &Event::Completed { queue, id });
        }
    }
}

#[test]
fn tables_stop_growing_at_their_limits() {
    let mut config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
    config.history_launches = 500;
    config.execution_ids = 300;
    config.blocks = 200;
    let mut engine = Engine::new(config.clone()).unwrap();
    flood(&mut engine, 20_000);
    let snapshot = engine.snapshot();
    assert_eq!(snapshot.execution_ids, 300);
    assert_eq!(snapshot.history_launches, 500);
    assert!(snapshot.resident_bytes <= 200 * BLOCK_BYTES);
    assert!(engine.stats().history_dropped > 0 && engine.stats().blocks_untracked > 0);
    let half = snapshot.table_bytes;
    flood(&mut engine, 40_000);
    let whole = engine.snapshot().table_bytes;
    assert!(whole < half * 3 / 2, "{whole} bytes after {half}");
    let profile = engine.profile();
    let read = oversub_engine::Profile::decode(&profile.encode(), &config);
    assert_eq!(read, Ok(profile));
}
