//! What a policy's engine meant to do, beside what happened: its fetches with their
//! deadlines, its evictions, and how far ahead it kept and fetched.
//!
//! Owns collecting them from the engine's own decisions and their tracks. Spans of one kind
//! overlap, so they are asynchronous events (`b` and `e`) of the trace format.

use std::collections::HashMap;
use std::io::{self, Write};

use oversub_engine::{BlockId, Decision, Engine, Fate, Operation, Reason, Step};
use serde::Serialize;

use super::{MOST_SPANS, PROCESS, Writer};
use crate::explain::launch_of_trace;
use crate::units::Nanos;

/// Consecutive blocks that were ordered together, for one reason and one launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Order {
    operation: Operation,
    reason: Reason,
    first: BlockId,
    count: u64,
    ordered: Nanos,
    /// When the last of them was there, or had left.
    done: Nanos,
    next_use: Option<u64>,
    rival_use: Option<u64>,
    /// What became of its blocks, by [`Fate`].
    came: [u64; 4],
}

/// How far ahead, in launches, the plan reached at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sample {
    at: Nanos,
    launches: u64,
}

/// The record of one engine's plan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    orders: Vec<Order>,
    /// The order that each block was last in.
    of_block: HashMap<BlockId, usize>,
    /// Next use of the last victim: all that stays is needed sooner.
    kept: Vec<Sample>,
    /// Next use of the last fetch.
    fetched: Vec<Sample>,
    seen: u64,
    dropped: u64,
}

impl Plan {
    /// Takes in what the engine has decided since the last time.
    pub(crate) fn look(&mut self, at: Nanos, engine: &Engine) {
        let (new, next) = engine.decisions(self.seen);
        self.seen = next;
        for decision in new {
            match decision.step {
                Step::Ordered(operation, reason) => self.order(at, operation, reason, decision),
                Step::Came(fate) => {
                    if let Some(order) = self.order_of(decision.block) {
                        order.came[fate as usize] += 1;
                    }
                }
            }
        }
    }

    /// A block arrived, or has left.
    pub(crate) fn done(&mut self, at: Nanos, block: BlockId) {
        if let Some(order) = self.order_of(block) {
            order.done = at;
        }
    }

    fn order_of(&mut self, block: BlockId) -> Option<&mut Order> {
        let index = *self.of_block.get(&block)?;
        self.orders.get_mut(index)
    }

    fn order(&mut self, at: Nanos, operation: Operation, reason: Reason, decision: &Decision) {
        let ahead = decision
            .next_use
            .map(|next| next.saturating_sub(decision.launch));
        let samples = match operation {
            Operation::Evict => Some(&mut self.kept),
            Operation::Prefetch => Some(&mut self.fetched),
            _ => None,
        };
        if let (Some(samples), Some(launches)) = (samples, ahead)
            && samples.last().is_none_or(|last| last.launches != launches)
            && samples.len() < MOST_SPANS
        {
            samples.push(Sample { at, launches });
        }
        if let Some(last) = self.orders.last_mut()
            && (last.operation, last.reason, last.ordered) == (operation, reason, at)
            && last.first.0 + last.count == decision.block.0
            && last.next_use == decision.next_use
        {
            last.count += 1;
        } else if self.orders.len() < MOST_SPANS {
            self.orders.push(Order {
                operation,
                reason,
                first: decision.block,
                count: 1,
                ordered: at,
                done: at,
                next_use: decision.next_use,
                rival_use: decision.rival_use,
                came: [0; 4],
            });
        } else {
            self.dropped += 1;
            return;
        }
        self.of_block.insert(decision.block, self.orders.len() - 1);
    }

    /// What was not kept because there was too much.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Writes the tracks. `began`: when each launch began.
    pub(super) fn write<W: Write>(
        &self,
        writer: &mut Writer<'_, W>,
        began: &HashMap<u32, Nanos>,
    ) -> io::Result<()> {
        for (number, order) in self.orders.iter().enumerate() {
            let track = match order.operation {
                Operation::Prefetch | Operation::Populate => "planned fetches",
                _ => "planned evictions",
            };
            let of_trace = |launch: Option<u64>| launch.map(launch_of_trace);
            let needed = of_trace(order.next_use);
            let deadline = needed
                .and_then(|launch| u32::try_from(launch).ok())
                .and_then(|launch| began.get(&launch));
            let slack = deadline.map(|at| at.as_micros_f64() - order.done.as_micros_f64());
            let fetch = order.operation == Operation::Prefetch;
            let event = |ph, at: Nanos, args| Event {
                ph,
                pid: PROCESS,
                tid: 1,
                cat: track,
                id: number,
                name: name(order.operation, order.reason),
                ts: at.as_micros_f64(),
                args,
            };
            let args = Args {
                address: format!("{:#x}", order.first.address()),
                blocks: order.count,
                reason: order.reason.about(),
                needed_by_launch: needed,
                for_launch: of_trace(order.rival_use),
                deadline_us: deadline.map(|at| at.as_micros_f64()).filter(|_| fetch),
                slack_us: slack.filter(|_| fetch),
                useful: order.came[Fate::Useful as usize],
                late: order.came[Fate::Late as usize],
                wasted: order.came[Fate::Wasted as usize],
                refused: order.came[Fate::Refused as usize],
            };
            writer.raw(&event("b", order.ordered, Some(args)))?;
            writer.raw(&event("e", order.done, None))?;
        }
        let counters = [
            ("kept: needed within launches", &self.kept),
            ("fetched: needed within launches", &self.fetched),
        ];
        for (name, samples) in counters {
            for sample in samples {
                let args = Some(Launches {
                    launches: sample.launches,
                });
                let ts = sample.at.as_micros_f64();
                writer.raw(&Counter {
                    ph: "C",
                    pid: PROCESS,
                    name,
                    ts,
                    args,
                })?;
            }
        }
        Ok(())
    }
}

fn name(operation: Operation, reason: Reason) -> &'static str {
    match (operation, reason) {
        (Operation::Prefetch, _) => "fetch",
        (Operation::Populate, _) => "birth",
        (Operation::Touch, _) => "touch",
        (Operation::Discard, _) => "drop",
        (Operation::Evict, Reason::Reserve) => "evict: reserve",
        (Operation::Evict, Reason::Births) => "evict: births",
        (Operation::Evict, Reason::Exchange) => "evict: exchange",
        (Operation::Evict, _) => "evict",
        (Operation::UseOnHost, _) => "use on host",
        (Operation::LetMigrate, _) => "let migrate",
    }
}

#[derive(Serialize)]
struct Event {
    ph: &'static str,
    pid: u32,
    tid: u32,
    cat: &'static str,
    id: usize,
    name: &'static str,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Args>,
}

#[derive(Serialize)]
struct Args {
    address: String,
    blocks: u64,
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    needed_by_launch: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    for_launch: Option<u64>,
    /// When that launch began.
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_us: Option<f64>,
    /// How long before that the last block was there; negative: too late.
    #[serde(skip_serializing_if = "Option::is_none")]
    slack_us: Option<f64>,
    #[serde(skip_serializing_if = "is_zero")]
    useful: u64,
    #[serde(skip_serializing_if = "is_zero")]
    late: u64,
    #[serde(skip_serializing_if = "is_zero")]
    wasted: u64,
    #[serde(skip_serializing_if = "is_zero")]
    refused: u64,
}

#[derive(Serialize)]
struct Counter {
    ph: &'static str,
    pid: u32,
    name: &'static str,
    ts: f64,
    args: Option<Launches>,
}

#[derive(Serialize)]
struct Launches {
    launches: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks so
fn is_zero(number: &u64) -> bool {
    *number == 0
}
