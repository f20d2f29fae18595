//! What one event costs the engine: a generated `sweep` over half as many blocks again
//! as the device holds, with every command carried out at once and every launch passed a
//! few launches later.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Context, Result};
use oversub_engine::{
    BLOCK_BYTES, Bytes, Command, Config, Engine, Event, FunctionId, Launch, Micros, PolicyKind,
    Range, Seq, StreamId,
};
use serde::Serialize;

use super::quantile::median;

/// What the engine costs, taking an event in and deciding after it.
#[derive(Debug, Serialize)]
pub struct Cost {
    /// Median over groups of events.
    pub ns_per_event_p50: f64,
    /// Over the whole stream.
    pub events_per_s: f64,
}

const BLOCKS: u64 = 1536;
const CAPACITY_BLOCKS: u64 = 1024;
const ITERATIONS: u64 = 40;
/// Blocks that one launch touches.
const LAUNCH_BLOCKS: u64 = 4;
/// How far the program runs ahead of the device.
const AHEAD: u64 = 16;
/// Microseconds between launches.
const LAUNCH_US: u64 = 400;
/// Events timed together, so that reading the clock does not count.
const GROUP: u64 = 64;
const BASE: u64 = 1 << 40;
const STREAM: StreamId = StreamId(0);

/// The engine with its clock and its stopwatch.
struct Driven {
    engine: Engine,
    commands: Vec<Command>,
    now: Micros,
    events: u64,
    group_began: Instant,
    group_ns: Vec<f64>,
}

impl Driven {
    fn feed(&mut self, event: &Event<'_>) {
        self.engine.step(self.now, event);
        self.engine.decide(self.now, &mut self.commands);
        self.events += 1;
        if self.events.is_multiple_of(GROUP) {
            self.group_ns
                .push(self.group_began.elapsed().as_nanos() as f64 / GROUP as f64);
            self.group_began = Instant::now();
        }
    }
}

/// Drives the default policy.
pub fn measure() -> Result<Cost> {
    let config = Config::new(PolicyKind::Foresight, Bytes(CAPACITY_BLOCKS * BLOCK_BYTES));
    let begun = Instant::now();
    let mut driven = Driven {
        engine: Engine::new(config)
            .context("the engine refuses the measurement's configuration")?,
        commands: Vec::new(),
        now: Micros(0),
        events: 0,
        group_began: begun,
        group_ns: Vec::new(),
    };
    driven.feed(&Event::Function {
        function: FunctionId(0),
        name: "sweep_step",
    });
    driven.feed(&Event::Alloc {
        range: Range {
            address: BASE,
            bytes: BLOCKS * BLOCK_BYTES,
        },
        pool: false,
        prefetched: true,
        on_host: false,
    });
    let mut outstanding: VecDeque<Command> = VecDeque::new();
    let launches = ITERATIONS * BLOCKS / LAUNCH_BLOCKS;
    for launch in 1..=launches {
        driven.now.0 += LAUNCH_US;
        let first_block = (launch - 1) * LAUNCH_BLOCKS % BLOCKS;
        let words = [
            BASE + first_block * BLOCK_BYTES,
            LAUNCH_BLOCKS * BLOCK_BYTES / 4,
            launch,
        ];
        driven.feed(&Event::Launch(Launch {
            seq: Seq(launch),
            stream: STREAM,
            function: FunctionId(0),
            grid: [1024, 1, 1],
            block: [256, 1, 1],
            words: &words,
        }));
        if let Some(passed) = launch.checked_sub(AHEAD).filter(|seq| *seq > 0) {
            driven.feed(&Event::Progress {
                stream: STREAM,
                seq: Seq(passed),
            });
        }
        outstanding.extend(driven.commands.drain(..));
        while let Some(command) = outstanding.pop_front() {
            driven.feed(&Event::Completed {
                queue: command.queue,
                id: command.id,
            });
            outstanding.extend(driven.commands.drain(..));
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    Ok(Cost {
        ns_per_event_p50: median(&mut driven.group_ns),
        events_per_s: driven.events as f64 / seconds,
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_engine_gets_through_the_whole_stream() {
        let cost = super::measure().unwrap();
        assert!(
            cost.ns_per_event_p50 > 0.0 && cost.events_per_s > 0.0,
            "{cost:?}"
        );
    }
}
