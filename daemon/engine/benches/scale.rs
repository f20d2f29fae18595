//! What a large session takes: 1 TB of managed memory, 20,000 execution IDs.
//!
//! Prints bytes of the tables (the engine's own figure, and what the process grew by) and
//! what an event costs, decisions included: the median over groups of 64, and the mean.
#![allow(missing_docs, clippy::unwrap_used)]

use std::time::Instant;

use oversub_engine::{
    BLOCK_BYTES, Bytes, Command, Config, Engine, Event, FunctionId, Launch, Micros, PolicyKind,
    Range, Seq, StreamId,
};

const BLOCKS: u64 = 524_288;
const ALLOCATIONS: u64 = 1024;
const EXECUTION_IDS: u64 = 20_000;
const CYCLES: u64 = 3;
const AHEAD: u64 = 64;
const GROUP: usize = 64;
const BASE: u64 = 1 << 44;

struct Driven {
    engine: Engine,
    commands: Vec<Command>,
    now: Micros,
    groups: Vec<f64>,
    events: usize,
    began: Instant,
}

impl Driven {
    fn feed(&mut self, event: &Event<'_>) {
        self.engine.step(self.now, event);
        self.engine.decide(self.now, &mut self.commands);
        self.events += 1;
        if self.events.is_multiple_of(GROUP) {
            let took = self.began.elapsed().as_nanos() as f64;
            self.groups.push(took / GROUP as f64);
            self.began = Instant::now();
        }
    }
}

/// Bytes of this process that are in memory.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn main() {
    let before = resident_bytes();
    let capacity = Bytes(BLOCKS / 2 * BLOCK_BYTES);
    let engine = Engine::new(Config::new(PolicyKind::Foresight, capacity)).unwrap();
    let mut driven = Driven {
        engine,
        commands: Vec::new(),
        now: Micros(0),
        groups: Vec::new(),
        events: 0,
        began: Instant::now(),
    };
    let each = BLOCKS / ALLOCATIONS;
    let address = |block: u64| BASE + (block / each * (each + 3) + block % each) * BLOCK_BYTES;
    for allocation in 0..ALLOCATIONS {
        driven.feed(&Event::Alloc {
            range: Range {
                address: address(allocation * each),
                bytes: each * BLOCK_BYTES,
            },
            pool: false,
            prefetched: false,
            on_host: false,
        });
    }
    driven.groups.clear();
    let per_launch = BLOCKS.div_ceil(EXECUTION_IDS);
    let (begun, first_event) = (Instant::now(), driven.events);
    let stream = StreamId(0);
    for launch in 1..=CYCLES * EXECUTION_IDS {
        driven.now.0 += 500;
        let block = (launch - 1) % EXECUTION_IDS * per_launch % BLOCKS;
        let words = [address(block), launch];
        driven.feed(&Event::Launch(Launch {
            seq: Seq(launch),
            stream,
            function: FunctionId((launch % 300) as u32),
            grid: [(per_launch * 512) as u32, 4, 1],
            block: [256, 1, 1],
            words: &words,
        }));
        if let Some(passed) = launch.checked_sub(AHEAD).filter(|&seq| seq > 0) {
            let seq = Seq(passed);
            driven.feed(&Event::Progress { stream, seq });
        }
        let mut rounds = 0;
        while !driven.commands.is_empty() && rounds < 64 {
            rounds += 1;
            for Command { queue, id, .. } in std::mem::take(&mut driven.commands) {
                driven.feed(&Event::Completed { queue, id });
            }
        }
    }
    let events = driven.events - first_event;
    let mean = begun.elapsed().as_nanos() as f64 / events as f64;
    driven.groups.sort_by(f64::total_cmp);
    let snapshot = driven.engine.snapshot();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "managed {:.0} GiB, {BLOCKS} blocks, {} execution IDs, {} launches remembered",
        mib(snapshot.managed_bytes) / 1024.0,
        snapshot.execution_ids,
        snapshot.history_launches
    );
    println!(
        "tables {:.1} MiB, process grew by {:.1} MiB",
        mib(snapshot.table_bytes),
        mib(resident_bytes() - before)
    );
    println!(
        "{events} events, median {:.0} ns, mean {mean:.0} ns, 99 of 100 below {:.0} ns",
        driven.groups[driven.groups.len() / 2],
        driven.groups[driven.groups.len() * 99 / 100]
    );
    let profile = driven.engine.profile().encode();
    println!("profile {:.1} MiB", mib(profile.len() as u64));
}
