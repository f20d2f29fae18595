//! What the demo found: medians, the JSON value, the table.

use std::fmt::Write;

use serde::Serialize;

use super::measure::{Mode, Prefetch, Sample};
use crate::size::Size;
use crate::table::aligned;

/// The whole result; `--json` prints it as it is.
#[derive(Debug, Serialize)]
pub struct Report {
    /// `soft`, or the name of the device.
    pub device: String,
    /// Working set over memory, as asked for.
    pub ratio: f64,
    /// Device memory, or the budget on a real device.
    pub memory_bytes: u64,
    /// Rate of the link each way; none where it is not known.
    pub link_bytes_per_s: Option<u64>,
    /// Runs of each mode.
    pub runs_per_mode: u32,
    /// Results by workload.
    pub workloads: Vec<WorkloadReport>,
}

/// One workload.
#[derive(Debug, Serialize)]
pub struct WorkloadReport {
    /// Its name.
    pub name: &'static str,
    /// Its real footprint.
    pub bytes: u64,
    /// Iterations of each run.
    pub iterations: u64,
    /// Seconds that no policy can beat; none where the link's rate is not known.
    pub bound_s: Option<f64>,
    /// The comparison's seconds over oversub's; none where one of them is missing.
    pub speedup: Option<f64>,
    /// What `speedup` compares with.
    pub baseline: Mode,
    /// oversub's seconds over `bound_s`.
    pub over_bound: Option<f64>,
    /// Every run gave the right result.
    pub checksum_ok: bool,
    /// Results by mode.
    pub runs: Vec<ModeReport>,
}

/// One mode: the run of median seconds stands for all.
#[derive(Debug, Serialize)]
pub struct ModeReport {
    /// Which.
    pub mode: Mode,
    /// Median seconds of the iterations.
    pub seconds: f64,
    /// Fastest and slowest run.
    pub seconds_spread: [f64; 2],
    /// Faults of kernels.
    pub faults: Option<u64>,
    /// Bytes into the device.
    pub bytes_in: Option<u64>,
    /// And out.
    pub bytes_out: Option<u64>,
    /// Bytes that kernels used on the host, over the link, and that moved nowhere.
    pub bytes_on_host: Option<u64>,
    /// Seconds in which kernels only waited for faults.
    pub stall_s: Option<f64>,
    /// Fate of prefetched bytes; none without a session.
    pub prefetch: Option<Prefetch>,
    /// Every run of this mode gave the right result.
    pub checksum_ok: bool,
}

impl ModeReport {
    /// Of all samples of one mode; none without any.
    pub fn of(mode: Mode, samples: &[Sample]) -> Option<Self> {
        let mut order: Vec<&Sample> = samples.iter().collect();
        order.sort_by(|a, b| a.output.seconds.total_cmp(&b.output.seconds));
        let median = order.get(order.len().saturating_sub(1) / 2)?;
        Some(Self {
            mode,
            seconds: median.output.seconds,
            seconds_spread: [order.first()?.output.seconds, order.last()?.output.seconds],
            faults: median.faults,
            bytes_in: median.bytes_in,
            bytes_out: median.bytes_out,
            bytes_on_host: median.bytes_on_host,
            stall_s: median.stall_s,
            prefetch: median.prefetch(),
            checksum_ok: samples.iter().all(|sample| sample.output.ok),
        })
    }
}

const HEAD: [&str; 11] = [
    "mode",
    "seconds",
    "faults",
    "in",
    "out",
    "on host",
    "stall s",
    "useful/late/wasted",
    "speed-up",
    "of bound",
    "checksum",
];

impl Report {
    /// The table for people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let memory = Size(self.memory_bytes);
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "device {}, memory {memory}, working set {}x, {} run(s) of each mode, medians",
            self.device, self.ratio, self.runs_per_mode
        );
        for workload in &self.workloads {
            let bound = workload
                .bound_s
                .map_or("unknown".to_owned(), |s| format!("{s:.2} s"));
            let _ = writeln!(
                text,
                "\n{}: {} in {} iterations, lower bound {bound}",
                workload.name,
                Size(workload.bytes),
                workload.iterations
            );
            let rows: Vec<_> = workload.runs.iter().map(|run| workload.row(run)).collect();
            text.push_str(&aligned(&HEAD, &rows));
        }
        text
    }
}

impl WorkloadReport {
    fn row(&self, run: &ModeReport) -> [String; 11] {
        // The resident mode is what the others are measured by, on a larger device.
        let compared = run.mode != Mode::Resident;
        let against = self
            .runs
            .iter()
            .find(|other| other.mode == self.baseline && compared);
        let speedup = against.map(|other| other.seconds / run.seconds);
        let over = self
            .bound_s
            .filter(|_| compared)
            .map(|bound| run.seconds / bound);
        [
            run.mode.name().to_owned(),
            format!("{:.2}", run.seconds),
            run.faults.map_or(unknown(), |faults| faults.to_string()),
            run.bytes_in
                .map_or(unknown(), |bytes| Size(bytes).to_string()),
            run.bytes_out
                .map_or(unknown(), |bytes| Size(bytes).to_string()),
            run.bytes_on_host
                .map_or(unknown(), |bytes| Size(bytes).to_string()),
            run.stall_s.map_or(unknown(), |stall| format!("{stall:.2}")),
            run.prefetch.map_or(unknown(), |prefetch| shares(&prefetch)),
            speedup.map_or(unknown(), |speedup| format!("{speedup:.2}x")),
            over.map_or(unknown(), |over| format!("{over:.2}")),
            (if run.checksum_ok { "equal" } else { "WRONG" }).to_owned(),
        ]
    }
}

fn unknown() -> String {
    "-".to_owned()
}

/// Shares of the prefetched bytes whose fate is known.
fn shares(prefetch: &Prefetch) -> String {
    let known = prefetch.useful_bytes + prefetch.late_bytes + prefetch.wasted_bytes;
    if known == 0 {
        return unknown();
    }
    let percent = |bytes: u64| 100.0 * bytes as f64 / known as f64;
    format!(
        "{:.0}/{:.0}/{:.0} %",
        percent(prefetch.useful_bytes),
        percent(prefetch.late_bytes),
        percent(prefetch.wasted_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::workload::Output;

    fn sample(seconds: f64, faults: u64, ok: bool) -> Sample {
        Sample {
            output: Output {
                bytes: 1,
                carried_bytes: 0,
                iterations: 1,
                seconds,
                ok,
            },
            faults: Some(faults),
            bytes_in: Some(3 << 30),
            bytes_out: None,
            bytes_on_host: None,
            stall_s: Some(0.5),
            session: None,
        }
    }

    #[test]
    fn the_run_of_median_time_stands_for_all_with_its_own_counters() {
        let samples = [
            sample(3.0, 30, true),
            sample(1.0, 10, true),
            sample(2.0, 20, true),
        ];
        let report = ModeReport::of(Mode::Driver, &samples).unwrap();
        assert_eq!((report.seconds, report.faults), (2.0, Some(20)));
        assert_eq!(report.seconds_spread, [1.0, 3.0]);
    }

    #[test]
    fn one_wrong_checksum_of_many_is_shown() {
        let samples = [
            sample(1.0, 1, true),
            sample(2.0, 1, false),
            sample(3.0, 1, true),
        ];
        assert!(!ModeReport::of(Mode::Driver, &samples).unwrap().checksum_ok);
    }

    #[test]
    fn the_table_says_unknown_where_nothing_was_counted() {
        let report = Report {
            device: "soft".to_owned(),
            ratio: 1.5,
            memory_bytes: 512 << 20,
            link_bytes_per_s: None,
            runs_per_mode: 1,
            workloads: vec![WorkloadReport {
                name: "sweep",
                bytes: 768 << 20,
                iterations: 4,
                bound_s: Some(1.0),
                speedup: Some(2.0),
                baseline: Mode::Driver,
                over_bound: Some(1.5),
                checksum_ok: false,
                runs: vec![
                    ModeReport::of(Mode::Driver, &[sample(3.0, 7, true)]).unwrap(),
                    ModeReport::of(Mode::Oversub, &[sample(1.5, 0, false)]).unwrap(),
                ],
            }],
        };
        let table = report.table();
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(
            lines[2],
            "sweep: 768 MiB in 4 iterations, lower bound 1.00 s"
        );
        let oversub: Vec<_> = lines[5].split_whitespace().collect();
        assert_eq!(
            oversub,
            [
                "oversub", "1.50", "0", "3", "GiB", "-", "-", "0.50", "-", "2.00x", "1.50", "WRONG"
            ]
        );
    }
}
