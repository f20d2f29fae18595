//! What must hold whatever the program, the size of the device and what is known of dead
//! content: no policy beats the bound, and none beats `opt` by more than a percent.
//!
//! Small programs of every family. Recorded traces are compared by `oversub simulate TRACES
//! --policy all --ratio 1.5 --json` and the example `ordering`.

use std::collections::BTreeMap;

use oversub_sim::bound::{Bounds, Deaths, Effort, Reach};
use oversub_sim::machine;
use oversub_sim::policy::{self, POLICIES};
use oversub_sim::run::{Options, run};
use oversub_sim::trace::Program;
use oversub_sim::trace::families::{Family, Shape};
use oversub_sim::units::Nanos;

/// Steady iteration under a policy; none where the program cannot run in so little memory.
fn time(
    program: &Program,
    machine: &machine::Machine,
    name: &str,
    lifetimes: bool,
) -> Option<(Nanos, Reach)> {
    let options = Options {
        lifetimes,
        timeline: false,
        seed: 0,
        engine_cost: false,
        without: Default::default(),
        explain: None,
    };
    let entry = policy::named(name).expect("it is in the table");
    match run(program, machine, entry, options) {
        Ok(outcome) => Some((outcome.steady().time, outcome.reach)),
        Err(oversub_sim::model::Stopped::Stuck { .. }) => None,
        Err(error) => panic!("{} under {name}: {error}", program.name()),
    }
}

/// What is out of order, in words.
fn violations(program: &Program, ratio: f64, lifetimes: bool) -> Vec<String> {
    let mut machine = machine::named(machine::DEFAULT).expect("the default is named");
    machine.memory_bytes = (program.footprint_bytes() as f64 / ratio) as u64;
    let bound = |deaths, reach| {
        let bounds = Bounds::reaching(program, &machine, (lifetimes, deaths), reach);
        bounds.strongest(machine.memory_bytes, Effort::Full).time
    };
    let mut bounds = BTreeMap::new();
    let mut bound = |deaths: Deaths, reach: Reach| {
        let found = bounds.entry((deaths, reach));
        *found.or_insert_with(|| bound(deaths, reach))
    };
    let what = |text: String| {
        let name = program.name();
        format!("{name} at {ratio}, lifetimes {lifetimes}: {text}")
    };
    let Some((opt, reach)) = time(program, &machine, "opt", lifetimes) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let foreseen = bound(Deaths::Foreseen, reach);
    if opt < foreseen {
        found.push(what(format!("opt {opt:?} beats the bound {foreseen:?}")));
    }
    for entry in POLICIES.iter().filter(|entry| entry.name != "opt") {
        let Some((time, reach)) = time(program, &machine, entry.name, lifetimes) else {
            continue;
        };
        let bound = bound(entry.deaths(), reach);
        if time < bound || time.0 + time.0 / 100 < opt.0 {
            let name = entry.name;
            found.push(what(format!(
                "{name} {time:?}, opt {opt:?}, bound {bound:?}"
            )));
        }
    }
    found
}

#[test]
fn no_policy_beats_the_bound_or_opt_by_a_percent_on_any_family() {
    let shape = Shape {
        blocks: 240,
        launches: 30,
        ..Shape::default()
    };
    let mut found = Vec::new();
    for family in Family::ALL {
        let program = family.program(&shape).expect("it can be built");
        for (ratio, lifetimes) in [
            (1.1, true),
            (1.5, false),
            (1.5, true),
            (2.0, true),
            (3.0, false),
        ] {
            found.extend(violations(&program, ratio, lifetimes));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
