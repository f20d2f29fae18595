//! How soon a policy is back at its steady speed after a program has changed its phase.
//!
//!     cargo run --release -p oversub-sim --example phase_changes -- \
//!         [--policy foresight] [--ratio 1.5] [--first-seed 0] [--seeds 40] [--json]
//!
//! Prints each change and, over all, cycles of the median and at most, and the share that is back
//! after one; for phases that are new and for phases that return. With `--json` one value.

use std::process::ExitCode;

use oversub_sim::recovery::{Change, Summary, measure};
use oversub_sim::{machine, policy};
use serde::Serialize;

/// What is to be measured.
struct Asked {
    policy: String,
    ratio: f64,
    first: u64,
    seeds: u64,
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    policy: String,
    ratio: f64,
    new: Summary,
    returning: Summary,
    changes: Vec<Change>,
}

fn main() -> ExitCode {
    match asked().and_then(|asked| report(&asked).map(|report| (asked, report))) {
        Ok((asked, report)) => {
            if !asked.json {
                print(&report);
                return ExitCode::SUCCESS;
            }
            match serde_json::to_string(&report) {
                Ok(text) => println!("{text}"),
                Err(error) => {
                    eprintln!("phase_changes: {error}");
                    return ExitCode::FAILURE;
                }
            }
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("phase_changes: {message}");
            ExitCode::from(2)
        }
    }
}

fn asked() -> Result<Asked, String> {
    let mut asked = Asked {
        policy: "foresight".to_owned(),
        ratio: 1.5,
        first: 0,
        seeds: 40,
        json: false,
    };
    let mut given = std::env::args().skip(1);
    while let Some(option) = given.next() {
        if option == "--json" {
            asked.json = true;
            continue;
        }
        let value = given.next().ok_or(format!("{option} wants a value"))?;
        let wrong = |_| format!("{option} cannot be {value}");
        match option.as_str() {
            "--policy" => asked.policy = value,
            "--ratio" => {
                asked.ratio = value
                    .parse()
                    .ok()
                    .filter(|ratio| *ratio >= 1.0)
                    .ok_or(format!("{option} must be a number from 1 on, not {value}"))?;
            }
            "--first-seed" => asked.first = value.parse().map_err(wrong)?,
            "--seeds" => asked.seeds = value.parse().map_err(wrong)?,
            _ => return Err(format!("there is no option {option}")),
        }
    }
    Ok(asked)
}

fn report(asked: &Asked) -> Result<Report, String> {
    let entry = policy::named(&asked.policy).ok_or(format!("no policy is {}", asked.policy))?;
    let machine = machine::named(machine::DEFAULT).ok_or("no machine is the default")?;
    let mut changes = Vec::new();
    for seed in asked.first..asked.first + asked.seeds {
        let found = measure(seed, asked.ratio, &machine, entry);
        changes.extend(found.map_err(|error| format!("seed {seed}: {error}"))?);
    }
    Ok(Report {
        policy: asked.policy.clone(),
        ratio: asked.ratio,
        new: Summary::of(&changes, false),
        returning: Summary::of(&changes, true),
        changes,
    })
}

fn print(report: &Report) {
    let cycles = |cycles: Option<u64>| cycles.map_or("never".to_owned(), |it| it.to_string());
    println!("seed stay  phase      cycles  steady ms  iterations, times the steady");
    for change in &report.changes {
        let times = change.times_ns.iter();
        let shares: Vec<String> = times
            .map(|time| format!("{:.2}", *time as f64 / change.steady_ns.max(1) as f64))
            .collect();
        println!(
            "{:>4} {:>4}  {:<9} {:>7} {:>10.2}  {}",
            change.seed,
            change.stay,
            if change.returns { "returns" } else { "new" },
            cycles(change.cycles),
            change.steady_ns as f64 / 1e6,
            shares.join(" ")
        );
    }
    for (name, summary) in [("new", report.new), ("returning", report.returning)] {
        println!(
            "{name}: {} changes, median {} cycles, at most {}; within one {:.0} %, within two {:.0} \
             %, never {:.0} %",
            summary.changes,
            cycles(summary.median_cycles),
            cycles(summary.worst_cycles),
            summary.within_one_cycle * 100.0,
            summary.within_two_cycles * 100.0,
            summary.never * 100.0
        );
    }
}
