//! Reads a trace file, format version 1: JSON lines in one zstd frame, line by line.
//!
//! Owns the format: keys, kinds of events, limits of lines. What the events may say of each
//! other is [`ProgramBuilder`]'s. Made for files of unknown origin: it never panics, and
//! what it holds is bounded by [`LINE_BYTES`], the zstd window and [`super::Limits`].

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::builder::{BuildError, LaunchSpec, ProgramBuilder};
use super::indexed::Indexed;
use super::program::{Kind, Program};
use crate::units::{Nanos, Region};

/// Longest line of a trace, bytes.
pub const LINE_BYTES: u64 = 16 << 20;
/// Largest zstd window, as a power of two: 64 MiB.
const WINDOW_LOG: u32 = 26;
/// Longest duration of a launch, microseconds: some eleven days.
const LAUNCH_US: f64 = 1e12;
/// The only version of the format.
const VERSION: u64 = 1;

/// Why a trace cannot be read. Each message names the file, and the line where there is one.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It cannot be opened.
    #[error("cannot open the trace {file}: {source}")]
    Open {
        /// The file.
        file: String,
        /// What the system says.
        source: io::Error,
    },
    /// The compressed stream is broken or cut short, or cannot be read.
    #[error(
        "{file}: cannot read past line {line}: {source}; \
         the file is damaged or incomplete: copy or record it again"
    )]
    Stream {
        /// The file.
        file: String,
        /// The last whole line before the trouble; 0 for none.
        line: u64,
        /// What the decompressor or the system says.
        source: io::Error,
    },
    /// A line says something that it must not.
    #[error("{file}:{line}: {problem}")]
    Line {
        /// The file.
        file: String,
        /// Line number, from 1.
        line: u64,
        /// What is wrong with it.
        problem: Problem,
    },
}

/// What is wrong with a line.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// Not JSON, or a key is missing or of the wrong type.
    #[error("column {column}: {message}")]
    Json {
        /// Column, from 1; 0 where the line as a whole is at fault.
        column: usize,
        /// What the parser says.
        message: String,
    },
    /// It is too long.
    #[error("longer than {LINE_BYTES} bytes")]
    TooLong,
    /// The first line is not a trace's header.
    #[error("not a trace: `format` is {0:?}, not \"oversub-trace\"")]
    Format(String),
    /// Another version.
    #[error("version {0} of the trace format; this program reads version {VERSION}")]
    Version(u64),
    /// Nothing in the file.
    #[error("empty: a trace begins with a header line")]
    Empty,
    /// An event that version 1 does not have.
    #[error("unknown event {0:?}")]
    Event(String),
    /// A signature that is not a hexadecimal number of 64 bits.
    #[error("`sig` is {0:?}, not a hexadecimal number of 64 bits")]
    Signature(String),
    /// A time that no launch takes.
    #[error("`us` is {0}, not between 0 and {LAUNCH_US}")]
    Duration(f64),
    /// The header announces something else than the file holds.
    #[error("the header announces {announced} {what}, but {found} came: lines are missing")]
    Count {
        /// Of what.
        what: &'static str,
        /// The header's figure.
        announced: u64,
        /// The events' figure.
        found: u64,
    },
    /// It cannot follow the lines before it.
    #[error(transparent)]
    Build(#[from] BuildError),
}

impl From<serde_json::Error> for Problem {
    fn from(error: serde_json::Error) -> Self {
        let text = error.to_string();
        // The parser counts lines from the start of what it was given: always one.
        let message = match text.rsplit_once(" at line ") {
            Some((message, _)) => message.to_owned(),
            None => text,
        };
        Self::Json {
            column: error.column(),
            message,
        }
    }
}

/// Reads a trace file. The program is named as the file, without `.trace.jsonl.zst`.
pub fn read(path: &Path) -> Result<Program, TraceError> {
    let file = path.display().to_string();
    let open = |source| TraceError::Open {
        file: file.clone(),
        source,
    };
    let input = File::open(path).map_err(open)?;
    let stem = path.file_name().unwrap_or_default().to_string_lossy();
    let name = match stem.strip_suffix(".trace.jsonl.zst") {
        Some(name) => name,
        None => stem.split('.').next().unwrap_or_default(),
    };
    read_stream(input, &file, name)
}

/// Reads a trace from any source of compressed bytes; `name` is the program's and stands
/// for the file in errors.
pub fn read_from(input: impl Read, name: &str) -> Result<Program, TraceError> {
    read_stream(input, name, name)
}

fn read_stream(input: impl Read, file: &str, name: &str) -> Result<Program, TraceError> {
    let stream = |line, source| TraceError::Stream {
        file: file.to_owned(),
        line,
        source,
    };
    let mut decoder = zstd::stream::read::Decoder::new(input).map_err(|e| stream(0, e))?;
    decoder
        .window_log_max(WINDOW_LOG)
        .map_err(|e| stream(0, e))?;
    let mut lines = BufReader::with_capacity(1 << 16, decoder.single_frame());
    let mut events = Events::new(name);
    let mut line = Vec::new();
    let mut number = 0;
    loop {
        line.clear();
        let read = (&mut lines)
            .take(LINE_BYTES + 1)
            .read_until(b'\n', &mut line);
        if read.map_err(|e| stream(number, e))? == 0 {
            break;
        }
        number += 1;
        let at = |problem| TraceError::Line {
            file: file.to_owned(),
            line: number,
            problem,
        };
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if line.len() as u64 > LINE_BYTES {
            return Err(at(Problem::TooLong));
        }
        events.line(&line).map_err(at)?;
    }
    let mut rest = lines.into_inner().finish();
    if !rest.fill_buf().map_err(|e| stream(number, e))?.is_empty() {
        return Err(stream(
            number,
            io::Error::other("more data follows the zstd frame"),
        ));
    }
    events.finish().map_err(|problem| TraceError::Line {
        file: file.to_owned(),
        line: number.max(1),
        problem,
    })
}

/// The first line's keys that tell whether to go on.
#[derive(Deserialize)]
struct Format<'a> {
    #[serde(borrow)]
    format: Cow<'a, str>,
    version: u64,
}

#[derive(Deserialize)]
struct Header {
    #[serde(rename = "workload")]
    _workload: String,
    #[serde(rename = "source")]
    _source: String,
    #[serde(rename = "gpu")]
    _gpu: Gpu,
    iterations: u64,
    footprint_bytes: u64,
    #[serde(default)]
    kernels: Option<u64>,
}

#[derive(Deserialize)]
struct Gpu {
    #[serde(rename = "name")]
    _name: String,
    #[serde(rename = "memory_bytes")]
    _memory_bytes: u64,
}

#[derive(Deserialize)]
struct EventKind<'a> {
    #[serde(borrow)]
    e: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Sized {
    addr: u64,
    bytes: u64,
}

#[derive(Deserialize)]
struct Addressed {
    addr: u64,
}

#[derive(Deserialize)]
struct Iteration {
    n: u64,
}

#[derive(Deserialize)]
struct Host {
    r: Vec<(u64, u64)>,
    w: Vec<(u64, u64)>,
}

#[derive(Deserialize)]
struct Kernel<'a> {
    #[serde(rename = "fn", borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    sig: Cow<'a, str>,
    us: f64,
    r: Vec<(u64, u64)>,
    w: Vec<(u64, u64)>,
    #[serde(default)]
    p: Option<Vec<u64>>,
    #[serde(default)]
    sp: Option<(u64, u64)>,
    #[serde(default)]
    by: Option<f64>,
    #[serde(default)]
    sync: u64,
    #[serde(default)]
    v: u64,
}

/// Turns lines into the builder's calls.
struct Events {
    builder: ProgramBuilder,
    header: Option<Header>,
    launches: u64,
    iterations: u64,
    reads: Vec<Region>,
    writes: Vec<Region>,
}

impl Events {
    fn new(name: &str) -> Self {
        Self {
            builder: ProgramBuilder::new(name),
            header: None,
            launches: 0,
            iterations: 0,
            reads: Vec::new(),
            writes: Vec::new(),
        }
    }

    fn line(&mut self, line: &[u8]) -> Result<(), Problem> {
        if self.header.is_none() {
            return self.header(line);
        }
        let kind: EventKind<'_> = serde_json::from_slice(line)?;
        match kind.e.as_ref() {
            "alloc" => {
                let event: Sized = serde_json::from_slice(line)?;
                self.builder.alloc(event.addr, event.bytes)?;
            }
            "free" => {
                let event: Addressed = serde_json::from_slice(line)?;
                self.builder.free(event.addr)?;
            }
            "use" => {
                let event: Sized = serde_json::from_slice(line)?;
                self.builder.use_(event.addr, event.bytes)?;
            }
            "unuse" => {
                let event: Addressed = serde_json::from_slice(line)?;
                self.builder.unuse(event.addr)?;
            }
            "k" => self.kernel(&serde_json::from_slice(line)?)?,
            "host" => {
                let event: Host = serde_json::from_slice(line)?;
                self.regions(&event.r, &event.w);
                self.builder.host(&self.reads, &self.writes)?;
            }
            "iter" => {
                let event: Iteration = serde_json::from_slice(line)?;
                self.builder.iteration(event.n)?;
                self.iterations += 1;
            }
            other => return Err(Problem::Event(other.chars().take(40).collect())),
        }
        Ok(())
    }

    fn header(&mut self, line: &[u8]) -> Result<(), Problem> {
        // Whatever else is wrong with a file that is JSON but no trace, say that first.
        let _: IgnoredAny = serde_json::from_slice(line)?;
        let start: Format<'_> = serde_json::from_slice(line)?;
        if start.format != "oversub-trace" {
            return Err(Problem::Format(start.format.chars().take(40).collect()));
        }
        if start.version != VERSION {
            return Err(Problem::Version(start.version));
        }
        let header: Header = serde_json::from_slice(line)?;
        self.builder.footprint(header.footprint_bytes);
        self.header = Some(header);
        Ok(())
    }

    fn kernel(&mut self, event: &Kernel<'_>) -> Result<(), Problem> {
        let signature = u64::from_str_radix(&event.sig, 16)
            .map_err(|_| Problem::Signature(event.sig.chars().take(40).collect()))?;
        if !(0.0..=LAUNCH_US).contains(&event.us) {
            return Err(Problem::Duration(event.us));
        }
        self.regions(&event.r, &event.w);
        self.builder.launch(LaunchSpec {
            name: &event.name,
            signature,
            time: Nanos((event.us * 1e3).round() as u64),
            kind: match event.name.as_ref() {
                "memcpyHtoD" => Kind::ToDevice,
                "memcpyDtoH" => Kind::ToHost,
                _ => Kind::Kernel,
            },
            sync: event.sync != 0,
            varies: event.v != 0,
            reads: &self.reads,
            writes: &self.writes,
            pointers: event.p.as_deref(),
            indexed: event.sp.map(|(pages, leaves)| Indexed {
                pages,
                leaves,
                bytes: event.by.map(|bytes| bytes as u64),
            }),
        })?;
        self.launches += 1;
        Ok(())
    }

    fn regions(&mut self, reads: &[(u64, u64)], writes: &[(u64, u64)]) {
        let region = |&(address, bytes)| Region { address, bytes };
        self.reads.clear();
        self.reads.extend(reads.iter().map(region));
        self.writes.clear();
        self.writes.extend(writes.iter().map(region));
    }

    fn finish(self) -> Result<Program, Problem> {
        let header = self.header.ok_or(Problem::Empty)?;
        let count = |what, announced, found| {
            if announced == found {
                Ok(())
            } else {
                Err(Problem::Count {
                    what,
                    announced,
                    found,
                })
            }
        };
        count("iterations", header.iterations, self.iterations)?;
        if let Some(kernels) = header.kernels {
            count("launches", kernels, self.launches)?;
        }
        Ok(self.builder.finish())
    }
}

#[cfg(test)]
mod tests;
