//! What each part of `foresight` is worth: every trace without it, over the same with it.

use std::process::ExitCode;

use anyhow::{Context, Result};
use oversub_engine::Without;
use oversub_sim::policy;
use oversub_sim::run::{self, Options};
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use serde::Serialize;

use super::grid::{self, Grid, machine_with};
use super::options::SimulateOptions;
use crate::table::aligned;

/// One part's worth.
#[derive(Debug, Serialize)]
struct Worth {
    part: &'static str,
    /// Geometric mean over traces and sizes: time of a steady iteration without it over
    /// the time with it.
    without: f64,
    /// The same of first iterations.
    first: f64,
    /// Bytes moved, both ways together.
    bytes: f64,
    /// The trace that loses most, and how much.
    worst: f64,
    worst_trace: String,
}

/// Iteration, first iteration, bytes.
type Figures = [f64; 3];

/// Runs and prints it.
pub(super) fn print(grid: &Grid, options: &SimulateOptions) -> Result<ExitCode> {
    let pool = grid::pool(options.threads)?;
    let mut ratios: Vec<(String, Vec<Figures>)> = Vec::new();
    for path in &grid.traces {
        let program = grid::read(path, &grid.variant)?;
        for memory in &grid.memories {
            let machine = machine_with(&grid.machine, memory.bytes(&program), &program)?;
            let entry = policy::named("foresight").context("there is no policy foresight")?;
            let variants: Vec<Without> = std::iter::once(Without::default())
                .chain(
                    Without::PARTS
                        .iter()
                        .filter_map(|(name, _)| Without::default().and(name)),
                )
                .collect();
            let figures: Result<Vec<Figures>> = pool.install(|| {
                let each = variants.into_par_iter().map(|without| {
                    let options = Options {
                        without,
                        ..grid.options
                    };
                    let outcome = run::run(&program, &machine, entry, options)?;
                    let steady = outcome.steady();
                    let bytes = steady.totals.bytes_in + steady.totals.bytes_out;
                    let times = [steady.time.0, outcome.first().time.0, bytes];
                    Ok(times.map(|figure| (figure as f64).max(1.0)))
                });
                each.collect()
            });
            let figures = figures.with_context(|| program.name().to_owned())?;
            ratios.push((program.name().to_owned(), figures));
        }
    }
    let worths = worths(&ratios);
    if options.json {
        println!("{}", serde_json::to_string(&worths)?);
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<[String; 6]> = worths
        .iter()
        .map(|worth| {
            let times = |figure: f64| format!("{figure:.3}");
            [
                worth.part.to_owned(),
                times(worth.without),
                times(worth.first),
                times(worth.bytes),
                times(worth.worst),
                worth.worst_trace.clone(),
            ]
        })
        .collect();
    let head = ["without", "iteration", "first", "bytes", "worst", "trace"];
    print!("{}", aligned(&head, &rows));
    println!(
        "Over foresight with all parts, geometric means over {} runs; worst: of iterations.",
        ratios.len()
    );
    Ok(ExitCode::SUCCESS)
}

fn worths(ratios: &[(String, Vec<Figures>)]) -> Vec<Worth> {
    let parts = Without::PARTS.iter().enumerate();
    let each = parts.map(|(index, (part, _))| {
        let mean = |figure: usize| {
            let logs = ratios
                .iter()
                .map(|(_, figures)| (figures[index + 1][figure] / figures[0][figure]).ln());
            (logs.sum::<f64>() / ratios.len().max(1) as f64).exp()
        };
        let loss = |figures: &[Figures]| figures[index + 1][0] / figures[0][0];
        let worst = ratios
            .iter()
            .max_by(|(_, a), (_, b)| loss(a).total_cmp(&loss(b)));
        Worth {
            part,
            without: mean(0),
            first: mean(1),
            bytes: mean(2),
            worst: worst.map_or(1.0, |(_, figures)| loss(figures)),
            worst_trace: worst.map_or(String::new(), |(name, _)| name.clone()),
        }
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_doubles_one_of_two_traces_is_worth_the_root_of_two() {
        let mut slow = vec![[10.0, 10.0, 10.0]; 1 + Without::PARTS.len()];
        let same = slow.clone();
        slow[2] = [20.0, 10.0, 5.0];
        let worths = worths(&[("a".to_owned(), same), ("b".to_owned(), slow)]);
        let next_use = &worths[1];
        assert_eq!(next_use.part, "next-use");
        assert!((next_use.without - 2_f64.sqrt()).abs() < 1e-9);
        assert!((next_use.bytes - 0.5_f64.sqrt()).abs() < 1e-9);
        assert_eq!((next_use.worst, next_use.worst_trace.as_str()), (2.0, "b"));
        assert_eq!(worths[0].without, 1.0);
    }
}
