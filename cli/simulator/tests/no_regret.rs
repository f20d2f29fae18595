//! What the product promises on programs that nobody has tuned it to: never more than 5 %
//! slower than the driver alone, whatever the program does.
//!
//! The programs are drawn from seeds: every family, of many sizes, more or less regular,
//! bound by compute or by the link, with and without known lifetimes. `OVERSUB_TEST_SEED`
//! draws others.

use oversub_sim::machine::{self, Machine};
use oversub_sim::policy;
use oversub_sim::run::{self, Options};
use oversub_sim::trace::families::{Family, Shape};
use oversub_sim::trace::{Program, Random};
use oversub_sim::units::Nanos;

/// Programs of each family.
const DRAWS: u64 = 24;
/// Slower than the driver by so much is a regret.
const REGRET: f64 = 1.05;

/// One program and the circumstances in which it runs.
#[derive(Debug)]
struct Draw {
    family: Family,
    shape: Shape,
    ratio: f64,
    lifetimes: bool,
}

fn draw(family: Family, seed: u64) -> Draw {
    let mut random = Random::new(seed ^ 0x6e6f_5f72_6567_7265);
    let mut pick = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
    let shape = Shape {
        seed,
        iterations: pick(&[6, 9, 14]) as u32,
        blocks: pick(&[200, 500, 1200]) as u32,
        launches: pick(&[10, 36, 90]) as u32,
        noise_percent: pick(&[0, 0, 10, 40, 100]) as u32,
        block_time: Nanos::from_micros(pick(&[5, 40, 130, 400])),
        partial: pick(&[0, 1]) == 1,
    };
    Draw {
        family,
        shape,
        ratio: pick(&[103, 110, 125, 150, 200, 300]) as f64 / 100.0,
        lifetimes: pick(&[0, 1]) == 1,
    }
}

/// Time of the whole run, from cold.
fn time(program: &Program, machine: &Machine, lifetimes: bool, policy: &str) -> f64 {
    let entry = policy::named(policy).expect("it is in the table");
    let options = Options {
        lifetimes,
        timeline: false,
        explain: None,
        seed: 0,
        engine_cost: false,
        without: Default::default(),
    };
    let outcome = run::run(program, machine, entry, options).expect("it runs");
    let times = outcome.iterations.iter().map(|one| one.time.0 as f64);
    times.sum()
}

#[test]
fn foresight_is_never_much_slower_than_the_driver_on_programs_that_it_was_not_made_for() {
    let given = std::env::var("OVERSUB_TEST_SEED").ok();
    let base: u64 = given.and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let mut regrets = Vec::new();
    for family in Family::ALL {
        let (mut log_sum, mut worst) = (0.0, 0.0_f64);
        for number in 0..DRAWS {
            let draw = draw(family, base.wrapping_mul(DRAWS) + number);
            let program = draw.family.program(&draw.shape).expect("a valid shape");
            let mut machine = machine::named(machine::DEFAULT).expect("the default");
            machine.memory_bytes = (program.footprint_bytes() as f64 / draw.ratio) as u64;
            let of = |policy| time(&program, &machine, draw.lifetimes, policy);
            let share = of("foresight") / of("driver");
            log_sum += share.ln();
            worst = worst.max(share);
            if share > REGRET {
                regrets.push(format!("{share:.3} of the driver's time: {draw:?}"));
            }
        }
        let mean = (log_sum / DRAWS as f64).exp();
        println!(
            "{:<9} {mean:.3} of the driver's time, at most {worst:.3}",
            family.name()
        );
    }
    assert!(
        regrets.is_empty(),
        "slower than the driver:\n{}",
        regrets.join("\n")
    );
}
