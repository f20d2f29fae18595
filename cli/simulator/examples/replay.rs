//! Replays a trace under some policies and prints what came of it:
//! `replay TRACE RATIO POLICY[,POLICY...] [MACHINE] [LIFETIMES on|off]`.

use std::error::Error;

use oversub_sim::run::{Options, run};
use oversub_sim::{machine, policy, trace};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, ratio, names, rest @ ..] = arguments.as_slice() else {
        return Err("usage: replay TRACE RATIO POLICY[,POLICY...] [MACHINE] [on|off]".into());
    };
    let name = rest.first().map_or(machine::DEFAULT, String::as_str);
    let lifetimes = rest.get(1).is_none_or(|word| word == "on");
    let mut machine = machine::named(name).ok_or("no such machine")?;
    let program = trace::read(path.as_ref())?;
    if ratio != "machine" {
        machine.memory_bytes = (program.footprint_bytes() as f64 / ratio.parse::<f64>()?) as u64;
    }
    let ideal = program.ideal_steady();
    println!(
        "{}: {} blocks, {} launches, ideal {:.1} ms",
        program.name(),
        program.blocks(),
        program.launches().len(),
        ideal.as_micros_f64() / 1e3
    );
    for name in names.split(',') {
        let entry = policy::named(name).ok_or_else(|| format!("no policy {name}"))?;
        let begun = std::time::Instant::now();
        let options = Options {
            lifetimes,
            timeline: false,
            seed: 0,
            engine_cost: true,
        };
        let outcome = match run(&program, &machine, entry, options) {
            Ok(outcome) => outcome,
            Err(error) => {
                println!("{name:<18} {error}");
                continue;
            }
        };
        let steady = outcome.steady();
        let totals = steady.totals;
        if let Some(engine) = outcome.engine {
            println!("{engine:?}");
        }
        println!(
            "{name:<18} {:>9.1} ms = {:>5.2} ideal, first {:>9.1} ms, in {:>6.2} out {:>6.2} GB, \
             faults {:>7} batches {:>6}, prefetch {:>5.1}/{:>5.1}/{:>5.1}/{:>5.1} GB, took {:.2} s",
            steady.time.as_micros_f64() / 1e3,
            steady.time.0 as f64 / ideal.0 as f64,
            outcome.first().time.as_micros_f64() / 1e3,
            totals.bytes_in as f64 / 1e9,
            totals.bytes_out as f64 / 1e9,
            totals.faults,
            totals.batches,
            totals.prefetch_issued as f64 / 1e9,
            totals.prefetch_useful as f64 / 1e9,
            totals.prefetch_late as f64 / 1e9,
            totals.prefetch_wasted as f64 / 1e9,
            begun.elapsed().as_secs_f64(),
        );
    }
    Ok(())
}
