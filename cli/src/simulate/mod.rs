//! `oversub simulate`: traces through the model, under any policy.
//!
//! Owns: which runs are meant, running them, showing what came of them. What a run is and
//! what a policy does is the simulator's.

mod ablation;
mod explain;
pub mod grid;
mod inputs;
mod list;
pub mod options;
pub mod result;
pub mod show;
pub mod variant;

use std::process::ExitCode;

use anyhow::Result;
use oversub_engine::Without;
use oversub_sim::policy::{self, Entry, POLICIES};
use oversub_sim::run;

use self::grid::{Grid, Memory, OfTrace, Profiles};
use self::options::{ALL, SimulateOptions};
use self::result::RunResult;
use crate::usage::usage;

/// Runs what was asked for and prints the results.
///
/// # Errors
/// Where the arguments or a trace are wrong.
pub fn simulate(options: &SimulateOptions) -> Result<ExitCode> {
    if options.list {
        if options.json {
            println!("{}", list::json()?);
        } else {
            print!("{}", list::text());
        }
        return Ok(ExitCode::SUCCESS);
    }
    let grid = grid(options)?;
    if options.ablation {
        return ablation::print(&grid, options);
    }
    if let Some(what) = options.explain {
        explain::print(&grid, what, options.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let results = grid.run(&grid::pool(options.threads)?)?;
    let failed = complain(&results);
    if options.json {
        let runs: Vec<&RunResult> = results
            .iter()
            .flat_map(|of_trace| &of_trace.sizes)
            .flat_map(|size| &size.runs)
            .filter_map(|run| run.as_ref().ok())
            .collect();
        println!("{}", serde_json::to_string(&runs)?);
    } else if options.iterations {
        print!("{}", show::iterations(&results));
    } else {
        print!("{}", show::tables(&results, &grid.machine.name));
    }
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Says which runs failed; the others count.
fn complain(results: &[OfTrace]) -> bool {
    let runs = results.iter().flat_map(|of_trace| &of_trace.sizes);
    let mut failed = false;
    for error in runs
        .flat_map(|size| &size.runs)
        .filter_map(|run| run.as_ref().err())
    {
        eprintln!("oversub: {error:#}");
        failed = true;
    }
    failed
}

fn grid(options: &SimulateOptions) -> Result<Grid> {
    let traces = inputs::files(&options.traces)?;
    let policies = policies(&options.policies)?;
    let machine = options.machine.machine(&options.costs)?;
    let mut memories: Vec<Memory> = options.ratio.iter().copied().map(Memory::Ratio).collect();
    memories.extend(options.memory.iter().map(|size| Memory::Bytes(size.0)));
    if memories.is_empty() {
        if options.machine.machine.is_none() {
            return usage(
                "say how much device memory there is: --ratio 1.5, --memory 24GiB, or a --machine",
            );
        }
        memories.push(Memory::Bytes(machine.memory_bytes));
    }
    let single = [
        ("--timeline", &options.timeline),
        ("--profile-in", &options.profile_in),
        ("--profile-out", &options.profile_out),
    ];
    if let Some((name, _)) = single.iter().find(|(_, file)| file.is_some())
        && (traces.len(), policies.len(), memories.len()) != (1, 1, 1)
    {
        return usage(format!(
            "{name} is for one run; these are {} traces, {} policies and {} sizes of memory",
            traces.len(),
            policies.len(),
            memories.len()
        ));
    }
    Ok(Grid {
        traces,
        policies,
        memories,
        machine,
        variant: options.costs.variant(),
        options: run::Options {
            lifetimes: options.costs.lifetimes(),
            timeline: options.timeline.is_some(),
            explain: None,
            seed: options.costs.seed,
            engine_cost: options.engine_cost,
            without: without(&options.without)?,
        },
        profiles: Profiles {
            warm: options.warm,
            read: options.profile_in.clone(),
            write: options.profile_out.clone(),
        },
        timeline: options.timeline.clone(),
    })
}

/// What is left out.
fn without(parts: &[String]) -> Result<Without> {
    let mut without = Without::default();
    for part in parts {
        match without.and(part) {
            Some(further) => without = further,
            None => return usage(format!("--without: foresight has no part {part}")),
        }
    }
    Ok(without)
}

/// The policies of these names, each once.
fn policies(names: &[String]) -> Result<Vec<&'static Entry>> {
    let mut found: Vec<&'static Entry> = Vec::new();
    for name in names {
        let meant: Vec<&'static Entry> = if name == ALL {
            POLICIES.iter().collect()
        } else {
            policy::named(name).into_iter().collect()
        };
        if meant.is_empty() {
            return usage(format!("there is no policy {name}; see --list"));
        }
        for entry in meant {
            if !found.iter().any(|other| other.name == entry.name) {
                found.push(entry);
            }
        }
    }
    Ok(found)
}
