//! What happened when: spans and counters of one run, and their export in the Chrome trace
//! format, which ui.perfetto.dev and chrome://tracing open.
//!
//! Owns recording and writing. The model calls the `push` methods as things happen; it
//! decides nothing from them. Format: "Trace Event Format" (Google, catapult), its JSON
//! object form with `M`, `X` and `C` events; times are microseconds.

mod plan;

use std::io::{self, Write};

use serde::Serialize;

use crate::trace::{Launch, Program};
use crate::units::{BLOCK_BYTES, Nanos};

pub use plan::Plan;

/// Spans kept at most, so that a long run cannot exhaust memory; later ones are counted.
pub const MOST_SPANS: usize = 2_000_000;

/// Which way a transfer went.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// To the device.
    In,
    /// To the host.
    Out,
}

/// Why a transfer was made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// A fault of the device, or of the CPU.
    Fault,
    /// The policy ordered it.
    Order,
    /// The driver made room, or its density prefetch joined a fault.
    Driver,
    /// The program's own copy.
    Copy,
    /// A launch's own accesses to the host's memory.
    Access,
}

impl Cause {
    fn name(self, direction: Direction) -> &'static str {
        match (self, direction) {
            (Self::Fault, Direction::In) => "fault",
            (Self::Fault, Direction::Out) => "host fault",
            (Self::Order, Direction::In) => "prefetch",
            (Self::Order, Direction::Out) => "evict",
            (Self::Driver, Direction::In) => "density prefetch",
            (Self::Driver, Direction::Out) => "eviction by the driver",
            (Self::Copy, _) => "copy",
            (Self::Access, Direction::In) => "read on the host",
            (Self::Access, Direction::Out) => "written on the host",
        }
    }
}

/// Why the device did nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stall {
    /// Waited for a fault to be served.
    Fault,
    /// Waited for a transfer that was already under way: a late prefetch.
    Late,
    /// Waited for what it used on the host.
    OnHost,
    /// Waited for the host to issue work.
    Host,
}

impl Stall {
    fn name(self) -> &'static str {
        match self {
            Self::Fault => "stall: fault",
            Self::Late => "stall: late prefetch",
            Self::OnHost => "stall: use on the host",
            Self::Host => "stall: host",
        }
    }
}

/// A quantity that changes over time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Counter {
    /// Blocks that hold a frame of device memory.
    Resident,
    /// Bytes ordered in and not yet moved.
    QueuedIn,
    /// Bytes ordered out and not yet moved.
    QueuedOut,
}

impl Counter {
    const ALL: [Counter; 3] = [Self::Resident, Self::QueuedIn, Self::QueuedOut];

    fn name(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::QueuedIn => "queued in",
            Self::QueuedOut => "queued out",
        }
    }
}

/// What a span is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Kernel(Launch),
    Stall(Stall),
    Transfer {
        direction: Direction,
        cause: Cause,
        bytes: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Span {
    start: Nanos,
    end: Nanos,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sample {
    at: Nanos,
    value: u64,
}

/// The record of one run. Push in any order; of one kind, in order of time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Timeline {
    spans: Vec<Span>,
    samples: [Vec<Sample>; Counter::ALL.len()],
    iterations: Vec<(u32, Nanos)>,
    last_transfer: [Option<usize>; 2],
    plan: Plan,
    dropped: u64,
}

impl Timeline {
    /// Nothing recorded yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A launch ran from `start` to `end`, its stalls included.
    pub fn kernel(&mut self, launch: Launch, start: Nanos, end: Nanos) {
        self.push(start, end, What::Kernel(launch));
    }

    /// The device stood still from `start` to `end`.
    pub fn stall(&mut self, why: Stall, start: Nanos, end: Nanos) {
        if end > start {
            self.push(start, end, What::Stall(why));
        }
    }

    /// A transfer of `bytes` was in service from `start` to `end`. One that follows the
    /// last of its direction at once and has the same cause extends it.
    pub fn transfer(
        &mut self,
        direction: Direction,
        cause: Cause,
        bytes: u64,
        start: Nanos,
        end: Nanos,
    ) {
        let last = &mut self.last_transfer[direction as usize];
        if let Some(span) = last.and_then(|index| self.spans.get_mut(index))
            && span.end == start
            && let What::Transfer {
                cause: before,
                bytes: sum,
                ..
            } = &mut span.what
            && *before == cause
        {
            *sum += bytes;
            span.end = end;
            return;
        }
        let index = self.spans.len();
        let what = What::Transfer {
            direction,
            cause,
            bytes,
        };
        if self.push(start, end, what) {
            self.last_transfer[direction as usize] = Some(index);
        }
    }

    /// A counter has this value from `at` on: blocks for [`Counter::Resident`], otherwise
    /// bytes. Of several values at one time the last stays.
    pub fn counter(&mut self, counter: Counter, at: Nanos, value: u64) {
        let samples = &mut self.samples[counter as usize];
        let full = samples.len() >= MOST_SPANS;
        match samples.last_mut() {
            Some(last) if last.value == value => {}
            Some(last) if last.at == at => last.value = value,
            _ if full => self.dropped += 1,
            _ => samples.push(Sample { at, value }),
        }
    }

    /// An iteration's first launch began at `at`.
    pub fn iteration(&mut self, number: u32, at: Nanos) {
        self.iterations.push((number, at));
    }

    /// Spans and samples that were not kept because there were too many.
    pub fn dropped(&self) -> u64 {
        self.dropped + self.plan.dropped()
    }

    /// What the policy's engine meant to do.
    pub fn set_plan(&mut self, plan: Plan) {
        self.plan = plan;
    }

    /// Time for which a direction of the link was in service.
    pub fn link_busy(&self, which: Direction) -> Nanos {
        let busy = self.spans.iter().filter(
            |span| matches!(span.what, What::Transfer { direction, .. } if direction == which),
        );
        busy.map(|span| span.end - span.start).sum()
    }

    fn push(&mut self, start: Nanos, end: Nanos, what: What) -> bool {
        let room = self.spans.len() < MOST_SPANS;
        if room {
            self.spans.push(Span { start, end, what });
        } else {
            self.dropped += 1;
        }
        room
    }

    /// Writes the Chrome trace. `title` names the run; `program` names the kernels and
    /// must be the one that was run.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn write_chrome(
        &self,
        out: &mut impl Write,
        title: &str,
        program: &Program,
    ) -> io::Result<()> {
        let mut writer = Writer { out, first: true };
        writer.out.write_all(b"{\"displayTimeUnit\":\"ms\",")?;
        if self.dropped() > 0 {
            write!(
                writer.out,
                "\"otherData\":{{\"dropped\":{}}},",
                self.dropped()
            )?;
        }
        writer.out.write_all(b"\"traceEvents\":[")?;
        writer.names(title)?;
        for span in &self.spans {
            writer.span(span, program)?;
        }
        for (number, at) in &self.iterations {
            writer.iteration(*number, *at)?;
        }
        for counter in Counter::ALL {
            for sample in &self.samples[counter as usize] {
                writer.sample(counter, *sample)?;
            }
        }
        let began = self.spans.iter().filter_map(|span| match span.what {
            What::Kernel(launch) => Some((launch.0, span.start)),
            What::Stall(_) | What::Transfer { .. } => None,
        });
        self.plan.write(&mut writer, &began.collect())?;
        writer.out.write_all(b"\n]}\n")
    }
}

/// The one process of the trace.
const PROCESS: u32 = 1;
/// Threads of the trace, in the order in which they are shown.
const THREADS: [(u32, &str); 4] = [
    (1, "kernels"),
    (2, "stalls"),
    (3, "link in"),
    (4, "link out"),
];

#[derive(Serialize)]
struct Event<'a, A: Serialize> {
    ph: &'static str,
    pid: u32,
    tid: u32,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<A>,
}

#[derive(Serialize, Default)]
struct Args<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sort_index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    launch: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iteration: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(rename = "MiB", skip_serializing_if = "Option::is_none")]
    mib: Option<f64>,
}

struct Writer<'o, W> {
    out: &'o mut W,
    first: bool,
}

impl<W: Write> Writer<'_, W> {
    fn event(&mut self, event: &Event<'_, Args<'_>>) -> io::Result<()> {
        self.raw(event)
    }

    fn raw(&mut self, event: &impl Serialize) -> io::Result<()> {
        self.out
            .write_all(if self.first { b"\n" } else { b",\n" })?;
        self.first = false;
        serde_json::to_writer(&mut *self.out, event).map_err(io::Error::from)
    }

    fn names(&mut self, title: &str) -> io::Result<()> {
        self.metadata(0, "process_name", title)?;
        for (tid, name) in THREADS {
            self.metadata(tid, "thread_name", name)?;
            let args = Args {
                sort_index: Some(tid),
                ..Args::default()
            };
            self.event(&Event {
                ph: "M",
                pid: PROCESS,
                tid,
                name: "thread_sort_index",
                ts: None,
                dur: None,
                s: None,
                args: Some(args),
            })?;
        }
        Ok(())
    }

    fn metadata(&mut self, tid: u32, kind: &str, value: &str) -> io::Result<()> {
        let args = Args {
            name: Some(value),
            ..Args::default()
        };
        self.event(&Event {
            ph: "M",
            pid: PROCESS,
            tid,
            name: kind,
            ts: None,
            dur: None,
            s: None,
            args: Some(args),
        })
    }

    fn span(&mut self, span: &Span, program: &Program) -> io::Result<()> {
        let (tid, name, args) = match span.what {
            What::Kernel(launch) => {
                let args = Args {
                    launch: Some(launch.0),
                    iteration: program.launch(launch).iteration,
                    ..Args::default()
                };
                (1, program.kernel_name(launch), args)
            }
            What::Stall(why) => (2, why.name(), Args::default()),
            What::Transfer {
                direction,
                cause,
                bytes,
            } => {
                let tid = match direction {
                    Direction::In => 3,
                    Direction::Out => 4,
                };
                let args = Args {
                    bytes: Some(bytes),
                    ..Args::default()
                };
                (tid, cause.name(direction), args)
            }
        };
        self.event(&Event {
            ph: "X",
            pid: PROCESS,
            tid,
            name,
            ts: Some(span.start.as_micros_f64()),
            dur: Some((span.end - span.start).as_micros_f64()),
            s: None,
            args: Some(args),
        })
    }

    fn iteration(&mut self, number: u32, at: Nanos) -> io::Result<()> {
        let args = Args {
            iteration: Some(number),
            ..Args::default()
        };
        self.event(&Event {
            ph: "i",
            pid: PROCESS,
            tid: 1,
            name: "iteration",
            ts: Some(at.as_micros_f64()),
            dur: None,
            s: Some("p"),
            args: Some(args),
        })
    }

    fn sample(&mut self, counter: Counter, sample: Sample) -> io::Result<()> {
        let bytes = match counter {
            Counter::Resident => sample.value * BLOCK_BYTES,
            Counter::QueuedIn | Counter::QueuedOut => sample.value,
        };
        let args = Args {
            mib: Some(bytes as f64 / f64::from(1 << 20)),
            ..Args::default()
        };
        self.event(&Event {
            ph: "C",
            pid: PROCESS,
            tid: 0,
            name: counter.name(),
            ts: Some(sample.at.as_micros_f64()),
            dur: None,
            s: None,
            args: Some(args),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{LaunchSpec, ProgramBuilder};
    use crate::units::Region;
    use serde_json::Value;

    fn program() -> Program {
        let region = [Region {
            address: 1 << 40,
            bytes: BLOCK_BYTES,
        }];
        let mut builder = ProgramBuilder::new("small");
        builder.alloc(region[0].address, region[0].bytes).unwrap();
        builder.iteration(0).unwrap();
        let kernel = LaunchSpec::kernel("g<\"emm\">", Nanos(1), &region, &[]);
        builder.launch(kernel).unwrap();
        builder.finish()
    }

    fn written(timeline: &Timeline) -> Value {
        let mut out = Vec::new();
        timeline
            .write_chrome(&mut out, "small, driver", &program())
            .unwrap();
        serde_json::from_slice(&out).unwrap()
    }

    fn events<'a>(trace: &'a Value, kind: &str) -> Vec<&'a Value> {
        let all = trace["traceEvents"].as_array().unwrap();
        all.iter().filter(|event| event["ph"] == kind).collect()
    }

    #[test]
    fn spans_are_written_in_microseconds_on_named_tracks() {
        let mut timeline = Timeline::new();
        timeline.iteration(0, Nanos(0));
        timeline.kernel(Launch(0), Nanos(500), Nanos(3_500));
        timeline.stall(Stall::Late, Nanos(1_000), Nanos(2_000));
        timeline.transfer(Direction::Out, Cause::Order, 7, Nanos(1), Nanos(4));
        let trace = written(&timeline);
        let names = events(&trace, "M");
        assert_eq!(names[0]["args"]["name"], "small, driver");
        let spans = events(&trace, "X");
        let kernel = spans[0];
        assert_eq!(
            (
                &kernel["name"],
                &kernel["ts"],
                &kernel["dur"],
                &kernel["tid"]
            ),
            (&"g<\"emm\">".into(), &0.5.into(), &3.0.into(), &1.into())
        );
        assert_eq!(spans[1]["name"], "stall: late prefetch");
        assert_eq!(
            (
                &spans[2]["name"],
                &spans[2]["tid"],
                &spans[2]["args"]["bytes"]
            ),
            (&"evict".into(), &4.into(), &7.into())
        );
        assert_eq!(events(&trace, "i")[0]["args"]["iteration"], 0);
    }

    #[test]
    fn transfers_that_follow_at_once_for_the_same_cause_are_one_span() {
        let mut timeline = Timeline::new();
        let mut push = |direction, cause, start, end| {
            timeline.transfer(direction, cause, 10, Nanos(start), Nanos(end));
        };
        push(Direction::In, Cause::Fault, 0, 5);
        push(Direction::Out, Cause::Driver, 0, 5);
        push(Direction::In, Cause::Fault, 5, 9);
        push(Direction::In, Cause::Order, 9, 12);
        push(Direction::In, Cause::Order, 13, 14);
        let trace = written(&timeline);
        let bytes: Vec<_> = events(&trace, "X")
            .iter()
            .map(|span| span["args"]["bytes"].as_u64().unwrap())
            .collect();
        assert_eq!(bytes, [20, 10, 10, 10]);
        assert_eq!(timeline.link_busy(Direction::In), Nanos(13));
        assert_eq!(timeline.link_busy(Direction::Out), Nanos(5));
    }

    #[test]
    fn a_counter_keeps_its_changes_and_of_one_moment_the_last() {
        let mut timeline = Timeline::new();
        for (at, value) in [(0, 1), (5, 1), (6, 2), (6, 3), (9, 0)] {
            timeline.counter(Counter::Resident, Nanos(at), value);
        }
        let trace = written(&timeline);
        let values: Vec<_> = events(&trace, "C")
            .iter()
            .map(|sample| {
                let at = sample["ts"].as_f64().unwrap();
                (at, sample["args"]["MiB"].as_f64().unwrap())
            })
            .collect();
        assert_eq!(values, [(0.0, 2.0), (0.006, 6.0), (0.009, 0.0)]);
    }

    #[test]
    fn no_time_is_no_stall() {
        let mut timeline = Timeline::new();
        timeline.stall(Stall::Fault, Nanos(3), Nanos(3));
        assert_eq!(timeline, Timeline::new());
    }
}
