//! What was simulated, as tables for people.

use std::fmt::Write;

use oversub_sim::bound::{Deaths, Reach};
use oversub_sim::policy;

use super::grid::{OfSize, OfTrace};
use super::list::class;
use super::result::{Prefetch, RunResult};
use crate::size::Size;
use crate::table::aligned;

const HEAD: [&str; 10] = [
    "policy",
    "told",
    "iteration",
    "over bound",
    "over ideal",
    "first",
    "in GB",
    "out GB",
    "faults",
    "on time/late/wasted",
];

/// All of it; nothing for a size of which no run succeeded.
pub fn tables(traces: &[OfTrace], machine: &str) -> String {
    let mut out = String::new();
    for of_trace in traces {
        for size in &of_trace.sizes {
            table(&mut out, of_trace, size, machine);
        }
    }
    out.push_str(
        "Per steady iteration. on time/late/wasted: of the bytes prefetched, those there \
         before they were needed,\nunder way when they were, and evicted unused.\n",
    );
    out
}

fn table(out: &mut String, of_trace: &OfTrace, size: &OfSize, machine: &str) {
    let runs: Vec<&RunResult> = size
        .runs
        .iter()
        .filter_map(|run| run.as_ref().ok())
        .collect();
    let Some(first) = runs.first() else {
        return;
    };
    let footprint = of_trace.footprint_bytes;
    let bounds = size.bounds.iter().map(|((deaths, reach), bound)| {
        let whose = match deaths {
            Deaths::Told => "that is told of deaths",
            Deaths::Foreseen => "that knows the future",
        };
        let uses = match reach {
            Reach::Nothing => "",
            Reach::Indexed => " and may use on the host what is indexed",
            Reach::Everything => " and may use anything on the host",
        };
        let time = time(bound.time.as_micros_f64());
        format!("{time} ({}) for a policy {whose}{uses}", bound.name)
    });
    let bounds: Vec<String> = bounds.collect();
    let _ = writeln!(
        out,
        "{}: footprint {}, device memory {} (ratio {:.2}), {machine}\n  ideal {}, bound {}",
        first.trace,
        Size(footprint),
        Size(size.memory_bytes),
        footprint as f64 / size.memory_bytes as f64,
        time(first.ideal_us),
        bounds.join(", "),
    );
    let rows: Vec<_> = runs.into_iter().map(row).collect();
    out.push_str(&aligned(&HEAD, &rows));
    out.push('\n');
}

fn row(run: &RunResult) -> [String; 10] {
    let entry = policy::named(&run.policy);
    let gb = |bytes: u64| format!("{:.2}", bytes as f64 / 1e9);
    [
        run.policy.clone(),
        entry.map_or("-", |entry| class(&entry.make)).to_owned(),
        time(run.iteration_us),
        format!("{:.2}", run.over_bound()),
        format!("{:.2}", run.slowdown()),
        time(run.first_iteration_us),
        gb(run.bytes_in),
        gb(run.bytes_out),
        run.faults.to_string(),
        fate(&run.prefetch),
    ]
}

/// The time of each iteration, milliseconds: one line for each run.
pub fn iterations(traces: &[OfTrace]) -> String {
    let mut out = String::new();
    let sizes = traces.iter().flat_map(|of_trace| &of_trace.sizes);
    for run in sizes.flat_map(|size| size.runs.iter().flatten()) {
        let memory = Size(run.memory_bytes);
        let _ = write!(out, "{} {} {memory}:", run.trace, run.policy);
        for us in &run.iterations_us {
            let _ = write!(out, " {:.1}", us / 1e3);
        }
        out.push('\n');
    }
    out
}

/// A duration in the unit that reads best.
pub fn time(us: f64) -> String {
    if us >= 1e7 {
        format!("{:.2} s", us / 1e6)
    } else if us >= 1e3 {
        format!("{:.1} ms", us / 1e3)
    } else {
        format!("{us:.1} us")
    }
}

/// Shares of the prefetched bytes.
fn fate(prefetch: &Prefetch) -> String {
    if prefetch.issued == 0 {
        return "-".to_owned();
    }
    let percent = |bytes: u64| 100.0 * bytes as f64 / prefetch.issued as f64;
    format!(
        "{:.0}/{:.0}/{:.0} %",
        percent(prefetch.useful.saturating_sub(prefetch.late)),
        percent(prefetch.late),
        percent(prefetch.wasted)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::result::Prefetch;

    #[test]
    fn late_prefetches_are_useful_but_not_on_time() {
        let prefetch = Prefetch {
            issued: 100,
            useful: 80,
            late: 30,
            wasted: 20,
        };
        assert_eq!(fate(&prefetch), "50/30/20 %");
        assert_eq!(fate(&Prefetch::default()), "-");
    }

    #[test]
    fn times_are_shown_in_the_unit_that_reads_best() {
        assert_eq!(
            [time(12.34), time(1_234.0), time(2.5e7)],
            ["12.3 us", "1.2 ms", "25.00 s"]
        );
    }
}
