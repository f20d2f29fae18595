//! How far policies are from the bound on programs that nobody has made them for.
//!
//!     cargo run --release -p oversub-sim --example families -- \
//!         [--ratio 1.5] [--lifetimes off] [--first-seed 0] [--seeds 20] [--each]
//!
//! Each seed draws a program of each family: how large, how many launches, bound by compute or by
//! the link. Prints, by family, steady times over the bound of `foresight`'s class and over those of
//! `opt`, which knows the future, and over its own times those of `driver` and `deepum`: geometric
//! means, and in parentheses the worst. With `--each` also each program's.

use std::process::ExitCode;

use oversub_sim::bound::{Bounds, Deaths, Effort};
use oversub_sim::machine::{self, Machine};
use oversub_sim::policy;
use oversub_sim::run::{self, Options, Outcome};
use oversub_sim::trace::families::{Family, Shape};
use oversub_sim::trace::{Program, Random};
use oversub_sim::units::Nanos;

/// What is to be measured.
struct Asked {
    ratio: f64,
    lifetimes: bool,
    first: u64,
    seeds: u64,
    each: bool,
}

/// A geometric mean, and the greatest or the least of its members.
#[derive(Default)]
struct Mean {
    logs: Vec<f64>,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.logs.push(value.max(f64::MIN_POSITIVE).ln());
    }

    fn mean(&self) -> f64 {
        (self.logs.iter().sum::<f64>() / self.logs.len().max(1) as f64).exp()
    }

    fn most(&self) -> f64 {
        self.logs.iter().copied().fold(f64::MIN, f64::max).exp()
    }

    fn least(&self) -> f64 {
        self.logs.iter().copied().fold(f64::MAX, f64::min).exp()
    }
}

fn main() -> ExitCode {
    match asked().and_then(|asked| print(&asked)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("families: {message}");
            ExitCode::from(2)
        }
    }
}

fn asked() -> Result<Asked, String> {
    let mut asked = Asked {
        ratio: 1.5,
        lifetimes: true,
        first: 0,
        seeds: 20,
        each: false,
    };
    let mut given = std::env::args().skip(1);
    while let Some(option) = given.next() {
        if option == "--each" {
            asked.each = true;
            continue;
        }
        let value = given.next().ok_or(format!("{option} wants a value"))?;
        let wrong = || format!("{option} cannot be {value}");
        match option.as_str() {
            "--ratio" => {
                let ratio = value.parse().ok();
                asked.ratio = ratio.filter(|ratio| *ratio >= 1.0).ok_or_else(wrong)?;
            }
            "--lifetimes" => {
                asked.lifetimes = match value.as_str() {
                    "on" => true,
                    "off" => false,
                    _ => return Err(wrong()),
                }
            }
            "--first-seed" => asked.first = value.parse().map_err(|_| wrong())?,
            "--seeds" => asked.seeds = value.parse().map_err(|_| wrong())?,
            _ => return Err(format!("there is no option {option}")),
        }
    }
    Ok(asked)
}

fn draw(seed: u64) -> Shape {
    let mut random = Random::new(seed ^ 0x6661_6d69_6c69_6573);
    let mut pick = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
    Shape {
        seed,
        iterations: 12,
        blocks: pick(&[800, 2000, 5000]) as u32,
        launches: pick(&[12, 36, 120]) as u32,
        noise_percent: pick(&[0, 0, 5]) as u32,
        block_time: Nanos::from_micros(pick(&[5, 40, 130, 400])),
        partial: pick(&[0, 1]) == 1,
    }
}

fn print(asked: &Asked) -> Result<(), String> {
    println!(
        "{:<10} {:>16} {:>16} {:>16} {:>16}",
        "family", "over the bound", "over opt", "driver", "deepum"
    );
    for family in Family::ALL {
        let mut means = [0; 4].map(|_| Mean::default());
        for seed in asked.first..asked.first + asked.seeds {
            let shape = draw(seed);
            let program = family.program(&shape);
            let program = program.map_err(|error| format!("{} {seed}: {error}", family.name()))?;
            let mut machine =
                machine::named(machine::DEFAULT).ok_or("no machine is the default")?;
            machine.memory_bytes = (program.footprint_bytes() as f64 / asked.ratio) as u64;
            let run = |policy: &str| {
                let outcome = outcome(&program, &machine, asked.lifetimes, policy);
                outcome.map_err(|error| format!("{} {seed}: {error}", family.name()))
            };
            let own = run("foresight")?;
            let time = own.steady().time.0.max(1) as f64;
            let deaths = Deaths::Told;
            let bounds = Bounds::reaching(&program, &machine, (asked.lifetimes, deaths), own.reach);
            let least = bounds.strongest(machine.memory_bytes, Effort::Full).time;
            let over = [
                time / least.0.max(1) as f64,
                time / run("opt")?.steady().time.0.max(1) as f64,
                run("driver")?.steady().time.0 as f64 / time,
                run("deepum")?.steady().time.0 as f64 / time,
            ];
            if asked.each {
                let [bound, opt, driver, deepum] = over;
                println!(
                    "{:<10} {bound:>16.2} {opt:>16.2} {driver:>16.2} {deepum:>16.2}  {shape:?}",
                    family.name()
                );
            }
            for (mean, over) in means.iter_mut().zip(over) {
                mean.add(over);
            }
        }
        let [bound, opt, driver, deepum] = means;
        let shown = |mean: f64, worst: f64| format!("{mean:.2} ({worst:.2})");
        println!(
            "{:<10} {:>16} {:>16} {:>16} {:>16}",
            family.name(),
            shown(bound.mean(), bound.most()),
            shown(opt.mean(), opt.most()),
            shown(driver.mean(), driver.least()),
            shown(deepum.mean(), deepum.least()),
        );
    }
    Ok(())
}

fn outcome(
    program: &Program,
    machine: &Machine,
    lifetimes: bool,
    policy: &str,
) -> Result<Outcome, String> {
    let entry = policy::named(policy).ok_or(format!("no policy is {policy}"))?;
    let options = Options {
        lifetimes,
        timeline: false,
        explain: None,
        seed: 0,
        without: Default::default(),
        engine_cost: false,
    };
    run::run(program, machine, entry, options).map_err(|error| error.to_string())
}
