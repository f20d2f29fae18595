//! Where all that a program obtains fits, oversubscription costs nothing, whatever the policy:
//! none may move, drop or fault on anything once it is there.

use oversub_sim::policy::POLICIES;
use oversub_sim::run::{Options, Outcome, run};
use oversub_sim::trace::Program;
use oversub_sim::trace::families::{Family, Shape};
use oversub_sim::units::BLOCK_BYTES;
use oversub_sim::{machine, policy};

fn played(program: &Program, name: &str, lifetimes: bool) -> Outcome {
    let mut machine = machine::named(machine::DEFAULT).expect("the default is named");
    // Some policies give pages to all that is obtained, touched or not.
    machine.memory_bytes = program.blocks() as u64 * BLOCK_BYTES;
    let options = Options {
        lifetimes,
        timeline: false,
        explain: None,
        seed: 0,
        engine_cost: false,
        without: Default::default(),
    };
    let entry = policy::named(name).expect("the policy is named");
    run(program, &machine, entry, options).expect("nothing is lost")
}

fn programs() -> impl Iterator<Item = Program> {
    Family::ALL.into_iter().flat_map(|family| {
        [false, true].map(|partial| {
            let shape = Shape {
                partial,
                blocks: 96,
                ..Shape::default()
            };
            family.program(&shape).expect("can be built")
        })
    })
}

#[test]
fn what_fits_runs_at_full_speed_after_its_first_iteration_under_every_policy() {
    let (mut slower, mut compared) = (Vec::new(), 0);
    for program in programs() {
        for lifetimes in [true, false] {
            let plain = played(&program, "ondemand", lifetimes);
            for entry in POLICIES {
                let outcome = played(&program, entry.name, lifetimes);
                let after = outcome.iterations.iter().zip(&plain.iterations).enumerate();
                for (at, (iteration, plain)) in after.skip(1) {
                    // Some touch new memory later on: a decoder's cache grows, random rows
                    // are met. That takes time under plain paging, too.
                    let known = plain.totals.faults == 0;
                    let slow = known && iteration.time > iteration.ideal;
                    if slow || iteration.totals.bytes_out > 0 {
                        slower.push(format!(
                            "{} under {}, lifetimes {lifetimes}, iteration {at}: {:?}, ideal {:?}, {:?}",
                            program.name(),
                            entry.name,
                            iteration.time,
                            iteration.ideal,
                            iteration.totals
                        ));
                    }
                    compared += u32::from(known);
                }
            }
        }
    }
    assert!(compared > 1000, "{compared}");
    assert!(slower.is_empty(), "{}", slower.join("\n"));
}

#[test]
fn fixed_shapes_reach_the_ideal_time_where_they_fit() {
    for family in [Family::Sweep, Family::Training, Family::Tiles] {
        let program = family.program(&Shape::default()).unwrap();
        for entry in POLICIES {
            for iteration in &played(&program, entry.name, true).iterations[2..] {
                assert_eq!(
                    iteration.time, iteration.ideal,
                    "{family:?}: {}",
                    entry.name
                );
            }
        }
    }
}
