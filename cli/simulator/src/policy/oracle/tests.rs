use crate::machine::{self, Machine};
use crate::policy::named;
use crate::policy::opt::RIVALS;
use crate::run::{Outcome, run};
use crate::trace::families::{Family, Shape};
use crate::trace::{LaunchSpec, Program, ProgramBuilder};
use crate::units::{BLOCK_BYTES, Nanos, Region};

fn machine(frames: u64) -> Machine {
    let mut machine = machine::named(machine::DEFAULT).unwrap();
    machine.memory_bytes = frames * BLOCK_BYTES;
    machine
}

fn played(program: &Program, frames: u64, name: &str, lifetimes: bool) -> Outcome {
    let options = crate::run::Options {
        lifetimes,
        timeline: false,
        explain: None,
        seed: 0,
        engine_cost: false,
        without: Default::default(),
    };
    let entry = named(name).unwrap();
    run(program, &machine(frames), entry, options)
        .unwrap_or_else(|error| panic!("{name} on {}: {error}", program.name()))
}

fn shape(partial: bool) -> Shape {
    Shape {
        blocks: 240,
        launches: 30,
        partial,
        ..Shape::default()
    }
}

#[test]
fn the_oracles_lose_nothing_on_any_family_with_and_without_lifetimes() {
    for family in Family::ALL {
        for partial in [false, true] {
            let program = family.program(&shape(partial)).unwrap();
            for frames in [60, 160, 1000] {
                for lifetimes in [true, false] {
                    for name in ["belady", "opt"] {
                        played(&program, frames, name, lifetimes);
                    }
                }
            }
        }
    }
}

#[test]
fn opt_is_ideal_where_everything_fits() {
    for family in [Family::Sweep, Family::Training, Family::Tiles] {
        let program = family.program(&shape(false)).unwrap();
        let steady = played(&program, 1000, "opt", true).steady();
        assert_eq!(steady.time, steady.ideal, "{family:?}");
    }
}

#[test]
fn no_strong_policy_is_a_percent_faster_than_opt() {
    let mut faster = Vec::new();
    for family in Family::ALL {
        let program = family.program(&shape(false)).unwrap();
        for lifetimes in [true, false] {
            let best = played(&program, 160, "opt", lifetimes).steady().time;
            for name in RIVALS.iter().chain(&["ondemand", "driver", "belady"]) {
                let time = played(&program, 160, name, lifetimes).steady().time;
                if best.0 > time.0 + time.0 / 100 {
                    faster.push(format!(
                        "{family:?}, lifetimes {lifetimes}: opt {best:?}, {name} {time:?}"
                    ));
                }
            }
        }
    }
    assert!(faster.is_empty(), "{}", faster.join("\n"));
}

#[test]
fn a_sweep_over_too_much_memory_moves_only_the_excess() {
    let region = |block: u64| Region {
        address: 0x7f00_0000_0000 + block * BLOCK_BYTES,
        bytes: BLOCK_BYTES,
    };
    let mut builder = ProgramBuilder::new("sweep");
    builder.alloc(region(0).address, 300 * BLOCK_BYTES).unwrap();
    for iteration in 0..6 {
        builder.iteration(iteration).unwrap();
        for block in 0..300 {
            let both = [region(block)];
            let spec = LaunchSpec::kernel("k", Nanos::from_micros(20), &both, &both);
            builder.launch(spec).unwrap();
        }
    }
    let program = builder.finish();
    let totals = played(&program, 200, "opt", true).steady().totals;
    let excess = 100 * BLOCK_BYTES;
    assert!(
        (excess..excess * 5 / 4).contains(&totals.bytes_in),
        "{totals:?}"
    );
    let driver = played(&program, 200, "driver", true).steady().totals;
    assert!(driver.bytes_in >= 2 * totals.bytes_in, "{driver:?}");
}
