//! What a program prints: progress on standard error, the result on standard output.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use serde::Serialize;

use crate::size::in_mib;

/// The result of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Name of the program.
    pub workload: &'static str,
    /// Peak footprint on the device, bytes, in whole 2 MiB blocks.
    pub bytes: u64,
    /// What lives across iterations, bytes, in whole 2 MiB blocks.
    pub persistent_bytes: u64,
    /// What an iteration allocates and fills anew, bytes.
    pub born_bytes_per_iteration: u64,
    /// Content that is there at one moment of each iteration and is read between it and
    /// the same moment of the next one, bytes: what exceeds the device has to come in.
    pub carried_bytes: u64,
    /// Timed iterations.
    pub iterations: u32,
    /// The timed loop, seconds.
    pub seconds: f64,
    /// Each iteration, seconds.
    pub iteration_seconds: Vec<f64>,
    /// Of what the device computed.
    pub checksum: String,
    /// Of what the CPU computed.
    pub reference: String,
    /// Whether both are equal.
    pub ok: bool,
}

/// What of a report the timed loop and the device know.
#[derive(Clone, Copy, Debug)]
pub struct Footprint {
    /// See [`Report::bytes`].
    pub bytes: u64,
    /// See [`Report::persistent_bytes`].
    pub persistent_bytes: u64,
    /// See [`Report::born_bytes_per_iteration`].
    pub born_bytes_per_iteration: u64,
    /// See [`Report::carried_bytes`].
    pub carried_bytes: u64,
}

impl Report {
    /// Joins the measured parts and compares the checksums.
    pub fn new(
        workload: &'static str,
        footprint: Footprint,
        times: Times,
        checksum: u64,
        reference: u64,
    ) -> Report {
        Report {
            workload,
            bytes: footprint.bytes,
            persistent_bytes: footprint.persistent_bytes,
            born_bytes_per_iteration: footprint.born_bytes_per_iteration,
            carried_bytes: footprint.carried_bytes,
            iterations: times.iterations.len() as u32,
            seconds: times.seconds,
            iteration_seconds: times.iterations,
            checksum: format!("{checksum:016x}"),
            reference: format!("{reference:016x}"),
            ok: checksum == reference,
        }
    }

    /// Prints the report on standard output, as one line of JSON or for people.
    pub fn print(&self, json: bool) {
        let text = if json {
            serde_json::to_string(self).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
        } else {
            self.for_people()
        };
        // A reader that has gone away is not this program's failure.
        let _ = writeln!(std::io::stdout(), "{text}");
    }

    fn for_people(&self) -> String {
        let mut sorted = self.iteration_seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
        format!(
            "{}: {} ({} persistent, {} born per iteration), {} iterations in {:.3} s, median {:.4} s\n\
             checksum {} {} the CPU's {}",
            self.workload,
            in_mib(self.bytes),
            in_mib(self.persistent_bytes),
            in_mib(self.born_bytes_per_iteration),
            self.iterations,
            self.seconds,
            median,
            self.checksum,
            if self.ok { "equals" } else { "DIFFERS from" },
            self.reference,
        )
    }
}

/// Times of the loop.
#[derive(Debug, Default)]
pub struct Times {
    /// The whole loop, seconds.
    pub seconds: f64,
    /// Each iteration, seconds.
    pub iterations: Vec<f64>,
}

/// Runs `iteration` so many times, each to the end of its work, and shows progress.
/// `iteration` returns what to show beside the time, or nothing.
pub fn timed_loop(
    workload: &str,
    iterations: u32,
    mut iteration: impl FnMut(u32) -> anyhow::Result<Option<String>>,
) -> anyhow::Result<Times> {
    let mut progress = Progress::new(workload);
    let mut times = Times::default();
    let start = Instant::now();
    for index in 0..iterations {
        let begin = Instant::now();
        let note = iteration(index)?;
        let seconds = begin.elapsed().as_secs_f64();
        times.iterations.push(seconds);
        times.seconds = start.elapsed().as_secs_f64();
        let note = note.map_or(String::new(), |note| format!(", {note}"));
        progress.show(&format!(
            "iteration {}/{iterations}: {seconds:.3} s{note}",
            index + 1
        ));
    }
    progress.end();
    Ok(times)
}

/// The progress line on standard error: rewritten in place on a terminal.
pub struct Progress {
    workload: String,
    in_place: bool,
}

impl Progress {
    /// Of the program `workload`.
    pub fn new(workload: &str) -> Progress {
        Progress {
            workload: workload.to_owned(),
            in_place: std::io::stderr().is_terminal(),
        }
    }

    /// Shows what is going on now.
    pub fn show(&mut self, what: &str) {
        let name = &self.workload;
        let mut stderr = std::io::stderr();
        // Progress that cannot be shown is no failure.
        let _ = if self.in_place {
            write!(stderr, "\r\x1b[K{name}: {what}").and_then(|()| stderr.flush())
        } else {
            writeln!(stderr, "{name}: {what}")
        };
    }

    fn end(&mut self) {
        if self.in_place {
            let _ = writeln!(std::io::stderr());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(checksum: u64) -> Report {
        let footprint = Footprint {
            bytes: 8,
            persistent_bytes: 6,
            born_bytes_per_iteration: 2,
            carried_bytes: 7,
        };
        let times = Times {
            seconds: 1.5,
            iterations: vec![0.5, 1.0],
        };
        Report::new("sweep", footprint, times, checksum, 0xAB)
    }

    #[test]
    fn json_carries_every_field_by_its_name() {
        let text = serde_json::to_string(&report(0xAB)).expect("serialises");
        assert_eq!(
            text,
            r#"{"workload":"sweep","bytes":8,"persistent_bytes":6,"born_bytes_per_iteration":2,"carried_bytes":7,"iterations":2,"seconds":1.5,"iteration_seconds":[0.5,1.0],"checksum":"00000000000000ab","reference":"00000000000000ab","ok":true}"#
        );
    }

    #[test]
    fn a_wrong_checksum_is_not_ok_and_is_said_to_people() {
        let report = report(0xAC);
        assert!(!report.ok);
        assert!(report.for_people().contains("DIFFERS"));
    }
}
