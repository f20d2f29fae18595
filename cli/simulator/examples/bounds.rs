//! Prints the lower bounds of traces at some ratios of footprint to device memory.
//!
//!     cargo run --release -p oversub-sim --example bounds -- [--lifetimes off] TRACE...

use std::path::Path;
use std::process::ExitCode;

use oversub_sim::bound::{Bounds, Deaths, Effort};
use oversub_sim::machine;
use oversub_sim::trace::{TraceError, read};

/// Footprint over device memory.
const RATIOS: [f64; 3] = [1.25, 1.5, 2.0];

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let lifetimes = !arguments.starts_with(&["--lifetimes".to_owned(), "off".to_owned()]);
    if !lifetimes {
        arguments.drain(..2);
    }
    println!(
        "{:<26} {:>5} {:>10} {:>8} {:>8} {:>10} {:>10} {:>10} {:>10} {:>10} {:<14} {:>10}",
        "trace",
        "ratio",
        "lb0 ms",
        "in GB",
        "out GB",
        "lb1 ms",
        "atomic",
        "lb2",
        "lb3",
        "best",
        "strongest",
        "told"
    );
    for path in &arguments {
        if let Err(error) = print(Path::new(path), lifetimes) {
            eprintln!("{path}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn print(path: &Path, lifetimes: bool) -> Result<(), TraceError> {
    let program = read(path)?;
    let Some(machine) = machine::named(machine::DEFAULT) else {
        return Ok(());
    };
    let bounds = Bounds::new(&program, &machine, lifetimes, Deaths::Foreseen);
    let told = Bounds::new(&program, &machine, lifetimes, Deaths::Told);
    for ratio in RATIOS {
        let capacity = (program.footprint_bytes() as f64 / ratio) as u64;
        let volume = bounds.volume(capacity);
        let millis = |bound: oversub_sim::bound::Bound| bound.time.as_micros_f64() / 1e3;
        let maybe =
            |bound: Option<_>| bound.map_or("-".to_owned(), |b| format!("{:.2}", millis(b)));
        let best = bounds.strongest(capacity, Effort::Full);
        println!(
            "{:<26} {ratio:>5} {:>10.2} {:>8.2} {:>8.2} {:>10.2} {:>10} {:>10.2} {:>10} {:>10.2} {:<14} {:>10.2}",
            program.name(),
            millis(bounds.lb0()),
            volume.bytes_in as f64 / 1e9,
            volume.bytes_out as f64 / 1e9,
            millis(bounds.lb1_streaming(capacity)),
            maybe(bounds.lb1_atomic(capacity)),
            millis(bounds.lb2(capacity)),
            maybe(bounds.lb3(capacity)),
            millis(best),
            best.name,
            millis(told.strongest(capacity, Effort::Full)),
        );
    }
    Ok(())
}
