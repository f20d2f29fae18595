//! What happened when: spans and counters of one run, and their export in the Chrome trace
//! format, which ui.perfetto.dev and chrome://tracing open.
//!
//! Owns recording and writing. The model calls the `push` methods as things happen; it
//! decides nothing from them. Format: "Trace Event Format" (Google, catapult), its JSON
//! object form with `M`, `X` and `C` events; times are microseconds.

use std::io::{self, Write};

use serde::Serialize;

use crate::trace::{Launch, Program};
use crate::units::{BLOCK_BYTES, Nanos};

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
    /// Waited for the host to issue work.
    Host,
}

impl Stall {
    fn name(self) -> &'static str {
        match self {
            Self::Fault => "stall: fault",
            Self::Late => "stall: late prefetch",
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
        self.dropped
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
        if self.dropped > 0 {
            write!(
                writer.out,
                "\"otherData\":{{\"dropped\":{}}},",
                self.dropped
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
