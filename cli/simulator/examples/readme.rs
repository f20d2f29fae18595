//! Writes README's table of time over bound anew, all of it from one run.
//!
//!     oversub simulate TRACES --policy all --ratio 1.5 --json > RESULTS.json
//!     cargo run --release -p oversub-sim --example readme -- RESULTS.json README.md
//!
//! The table's own head says which policies it has; its rows are the run's traces. A column
//! whose name ends in `of its class` is over the bound of the policy's own class, all others
//! are over the one that no policy can beat.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;

use serde::Deserialize;

/// How the table's head begins.
const HEAD: &str = "| trace | bound, ms | ideal |";

/// What is needed of one result.
#[derive(Deserialize)]
struct Row {
    trace: String,
    policy: String,
    iteration_us: f64,
    ideal_us: f64,
    bound_us: f64,
    future_bound_us: f64,
}

/// How a column's name ends that is over the bound of the policy's class.
const OF_ITS_CLASS: &str = " of its class";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [results, readme] = arguments.as_slice() else {
        eprintln!("readme: two files are needed: readme RESULTS.json README.md");
        return ExitCode::from(2);
    };
    match rewrite(results, readme) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("readme: {message}");
            ExitCode::from(2)
        }
    }
}

fn rewrite(results: &str, readme: &str) -> Result<(), String> {
    let read = |path: &str| std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"));
    let rows: Vec<Row> =
        serde_json::from_str(&read(results)?).map_err(|error| format!("{results}: {error}"))?;
    let text = read(readme)?;
    let start = text
        .find(HEAD)
        .ok_or_else(|| format!("{readme}: no line begins with {HEAD}"))?;
    let old = text[start..]
        .split_inclusive('\n')
        .take_while(|line| line.starts_with('|'));
    let end = start + old.map(str::len).sum::<usize>();
    let head = text[start..end].lines().next().unwrap_or_default();
    let table = table(head, &rows).map_err(|error| format!("{results}: {error}"))?;
    let new = format!("{}{table}{}", &text[..start], &text[end..]);
    std::fs::write(readme, new).map_err(|error| format!("{readme}: {error}"))
}

fn table(head: &str, rows: &[Row]) -> Result<String, String> {
    let cells = head.trim_matches('|').split('|');
    let policies: Vec<(&str, bool)> = cells
        .skip(3)
        .map(|cell| {
            let cell = cell.trim();
            let policy = cell.strip_suffix(OF_ITS_CLASS);
            (policy.unwrap_or(cell).trim_matches('`'), policy.is_some())
        })
        .collect();
    let mut traces: Vec<&str> = Vec::new();
    let mut found = BTreeMap::new();
    for row in rows {
        if traces.last() != Some(&row.trace.as_str()) {
            traces.push(&row.trace);
        }
        let again = found.insert((row.trace.as_str(), row.policy.as_str()), row);
        if again.is_some() {
            return Err(format!(
                "{} under {} is there more than once: give one ratio",
                row.trace, row.policy
            ));
        }
    }
    let mut out = format!("{head}\n|{}\n", " --- |".repeat(policies.len() + 3));
    let mut logs = vec![0.0; policies.len()];
    for trace in &traces {
        for (at, (policy, own)) in policies.iter().enumerate() {
            let row = found
                .get(&(*trace, *policy))
                .ok_or_else(|| format!("{trace} was not simulated under {policy}"))?;
            if at == 0 {
                let bound = row.future_bound_us / 1e3;
                let ideal = row.ideal_us / row.future_bound_us;
                let _ = write!(out, "| {trace} | {bound:.1} | {ideal:.2} |");
            }
            let bound = if *own {
                row.bound_us
            } else {
                row.future_bound_us
            };
            let over = row.iteration_us / bound;
            logs[at] += over.ln();
            let _ = write!(out, " {over:.2} |");
        }
        out.push('\n');
    }
    out.push_str("| geometric mean |  |  |");
    for log in logs {
        let _ = write!(out, " {:.2} |", (log / traces.len().max(1) as f64).exp());
    }
    out.push('\n');
    Ok(out)
}
