//! Checks results for their order: no policy beats the bound, and none beats `opt` by more
//! than a percent.
//!
//!     oversub simulate TRACES --policy all --ratio 1.5 --json > RESULTS.json
//!     cargo run --release -p oversub-sim --example ordering -- RESULTS.json
//!
//! Prints what is out of order and ends with status 1 where something is.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde::Deserialize;

/// What is needed of one result.
#[derive(Deserialize)]
struct Row {
    trace: String,
    policy: String,
    memory_bytes: u64,
    iteration_us: f64,
    bound_us: f64,
}

fn main() -> ExitCode {
    let files: Vec<String> = std::env::args().skip(1).collect();
    if files.is_empty() {
        eprintln!("ordering: a file of results is missing: ordering RESULTS.json...");
        return ExitCode::from(2);
    }
    let mut rows: Vec<Row> = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file).map_err(|error| error.to_string());
        let found = text.and_then(|text| {
            serde_json::from_str::<Vec<Row>>(&text).map_err(|error| error.to_string())
        });
        match found {
            Ok(found) => rows.extend(found),
            Err(error) => {
                eprintln!("ordering: {file}: {error}");
                return ExitCode::from(2);
            }
        }
    }
    let best: BTreeMap<(&str, u64), f64> = rows
        .iter()
        .filter(|row| row.policy == "opt")
        .map(|row| ((row.trace.as_str(), row.memory_bytes), row.iteration_us))
        .collect();
    let mut bad = 0;
    for row in &rows {
        let Row { trace, policy, .. } = row;
        if row.iteration_us < row.bound_us {
            bad += 1;
            println!(
                "{trace}: {policy} at {} us beats the bound, {} us",
                row.iteration_us, row.bound_us
            );
        }
        match best.get(&(trace.as_str(), row.memory_bytes)) {
            None => {
                bad += 1;
                println!("{trace}: no result of opt to compare {policy} with");
            }
            Some(opt) if row.iteration_us * 1.01 < *opt => {
                bad += 1;
                println!(
                    "{trace}: {policy} at {} us beats opt, {opt} us",
                    row.iteration_us
                );
            }
            Some(_) => {}
        }
    }
    println!("{} results, {bad} out of order", rows.len());
    ExitCode::from(u8::from(bad > 0))
}
