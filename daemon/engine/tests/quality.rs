//! How close policies come to the bound on the model device: exact simulated times.

#![allow(clippy::unwrap_used)]

mod model;

use model::programs::{self, Op};
use model::{Device, Machine, Outcome};
use oversub_engine::PolicyKind;

const POLICIES: [PolicyKind; 4] = [
    PolicyKind::Driver,
    PolicyKind::Demand,
    PolicyKind::Deepum,
    PolicyKind::Foresight,
];

fn run(machine: Machine, policy: PolicyKind, program: &[Op]) -> Outcome {
    Device::new(machine, policy).run(program.to_vec())
}

/// Shown with `--nocapture`; the model device notes every broken promise.
#[test]
fn the_engine_keeps_its_promises_in_every_case_of_the_table_that_this_prints() {
    let soft = Machine::soft(128);
    let ns = 300_000;
    let cases: Vec<(&str, Machine, Vec<Op>, u64)> = vec![
        (
            "sweep 1.5 link-bound",
            soft,
            programs::sweep(192, 4, 12, ns),
            64,
        ),
        (
            "sweep 1.5 balanced",
            soft,
            programs::sweep(192, 4, 12, 700_000),
            64,
        ),
        (
            "sweep 1.5 compute-bound",
            soft,
            programs::sweep(192, 4, 12, 1_400_000),
            64,
        ),
        ("sweep 2.0", soft, programs::sweep(256, 4, 12, ns), 128),
        (
            "sweep 1.5 no probes",
            Machine {
                probes: false,
                ..soft
            },
            programs::sweep(192, 4, 12, ns),
            64,
        ),
        ("train 1.5", soft, programs::train(16, 2, 6, 12, ns), 64),
        ("train 2.0", soft, programs::train(16, 3, 7, 12, ns), 128),
        ("tiles 1.5", soft, programs::tiles(4, 4, 6, ns), 64),
        ("gather 1.5", soft, programs::gather(192, 40, 8, ns, 7), 64),
        ("phases 1.5", soft, programs::phases(192, 4, 8, ns), 64),
        (
            "sweep budget",
            Machine {
                budget_blocks: Some(128),
                device_blocks: 400,
                ..soft
            },
            programs::sweep(192, 4, 12, ns),
            64,
        ),
        (
            "train budget",
            Machine {
                budget_blocks: Some(128),
                device_blocks: 400,
                ..soft
            },
            programs::train(16, 2, 6, 12, ns),
            64,
        ),
        (
            "gather budget",
            Machine {
                budget_blocks: Some(128),
                device_blocks: 400,
                ..soft
            },
            programs::gather(192, 40, 8, ns, 7),
            64,
        ),
        ("sweep kept", kept(), programs::sweep(192, 4, 12, ns), 64),
        (
            "sweep kept compute-bound",
            kept(),
            programs::sweep(192, 4, 12, 1_400_000),
            64,
        ),
        ("train kept", kept(), programs::train(16, 2, 6, 12, ns), 64),
        ("tiles kept", kept(), programs::tiles(4, 4, 6, ns), 64),
        (
            "gather kept",
            kept(),
            programs::gather(192, 40, 8, ns, 7),
            64,
        ),
        (
            "train 1.5 slow",
            soft,
            programs::train(16, 2, 6, 12, 500_000),
            64,
        ),
        (
            "card sweep 1.5",
            Machine::card(1024),
            programs::sweep(1536, 16, 12, 12_000),
            512,
        ),
        (
            "card train 1.5",
            Machine::card(1024),
            programs::train(48, 6, 14, 12, 20_000),
            512,
        ),
        (
            "card gather 1.5",
            Machine::card(1024),
            programs::gather(1536, 100, 8, 5_000, 7),
            512,
        ),
        ("fits", soft, programs::sweep(100, 4, 8, ns), 0),
    ];
    println!("time over bound; driver, demand, deepum, foresight (faults, in, out, peak)");
    for (name, machine, program, excess) in cases {
        let mut line = String::new();
        let mut bound = 0.0;
        for policy in POLICIES {
            let outcome = run(machine, policy, &program);
            let n = outcome.iteration_ends_ns.len();
            let compute = outcome.compute_ns as f64 / n as f64;
            bound = compute.max((excess * machine.block_in_ns) as f64);
            let steady = outcome.steady_ns(n / 2);
            line += &format!(
                "  {:.2} ({},{},{},{})",
                steady / bound,
                outcome.faults / n as u64,
                outcome.blocks_in / n as u64,
                outcome.blocks_out / n as u64,
                outcome.iteration_peaks[2..].iter().max().unwrap(),
            );
            assert_eq!(outcome.violations, [""; 0]);
        }
        println!("{name:26} {:8.1}{line}", bound / 1e6);
    }
}

/// Time over the bound in steady state: compute, or the link for what does not fit.
fn over_bound(machine: Machine, policy: PolicyKind, program: &[Op], excess: u64) -> f64 {
    let outcome = run(machine, policy, program);
    let iterations = outcome.iteration_ends_ns.len();
    let compute_ns = outcome.compute_ns as f64 / iterations as f64;
    let link_ns = (excess * machine.block_in_ns) as f64;
    outcome.steady_ns(iterations / 2) / compute_ns.max(link_ns)
}

fn soft() -> Machine {
    Machine::soft(128)
}

/// A budget of 128 blocks that faults do not touch.
fn kept() -> Machine {
    Machine {
        budget_blocks: Some(128),
        remote: true,
        ..Machine::soft(400)
    }
}

#[test]
fn foresight_sweeps_near_the_bound_whether_link_or_compute_is_scarce() {
    for (total, ns) in [
        (192, 200_000),
        (192, 700_000),
        (192, 1_400_000),
        (256, 300_000),
    ] {
        let program = programs::sweep(total, 4, 12, ns);
        let ratio = over_bound(soft(), PolicyKind::Foresight, &program, total - 128);
        assert!(
            ratio < 1.25,
            "{total} blocks, {ns} ns each: {ratio:.3} times the bound"
        );
    }
}

#[test]
fn foresight_sweeps_near_the_bound_without_probes() {
    let machine = Machine {
        probes: false,
        ..soft()
    };
    let ratio = over_bound(
        machine,
        PolicyKind::Foresight,
        &programs::sweep(192, 4, 12, 300_000),
        64,
    );
    assert!(ratio < 1.25, "{ratio:.3} times the bound");
}

#[test]
fn foresight_trains_near_the_bound() {
    for machine in [
        soft(),
        Machine {
            probes: false,
            ..soft()
        },
    ] {
        let program = programs::train(16, 2, 6, 12, 500_000);
        let ratio = over_bound(machine, PolicyKind::Foresight, &program, 64);
        assert!(ratio < 1.25, "{ratio:.3} times the bound");
    }
    let program = programs::train(48, 6, 14, 8, 20_000);
    let ratio = over_bound(Machine::card(1024), PolicyKind::Foresight, &program, 512);
    assert!(ratio < 1.25, "{ratio:.3} times the bound");
}

#[test]
fn foresight_beats_deepum_and_demand() {
    let cases = [
        ("sweep", programs::sweep(192, 4, 12, 300_000)),
        ("sweep at twice", programs::sweep(256, 4, 12, 300_000)),
        ("train", programs::train(16, 2, 6, 12, 300_000)),
        ("train at twice", programs::train(16, 3, 7, 12, 300_000)),
        ("tiles", programs::tiles(4, 4, 6, 300_000)),
        ("phases", programs::phases(192, 4, 8, 300_000)),
    ];
    for (name, program) in cases {
        let time = |policy| run(soft(), policy, &program).steady_ns(4);
        let foresight = time(PolicyKind::Foresight);
        for other in [PolicyKind::Deepum, PolicyKind::Demand] {
            let times = time(other) / foresight;
            assert!(
                times > 1.0,
                "{name}: {other:?} takes {times:.3} times as long"
            );
        }
    }
}

#[test]
fn deepum_beats_the_driver_on_what_repeats() {
    let program = programs::sweep(192, 4, 12, 300_000);
    let time = |policy| run(soft(), policy, &program).steady_ns(4);
    assert!(time(PolicyKind::Deepum) * 2.0 < time(PolicyKind::Driver));
}

#[test]
fn what_cannot_be_predicted_is_no_slower_than_under_the_driver() {
    for seed in [7, 1234, 99_991] {
        for (machine, total, ns) in [(soft(), 192, 300_000), (Machine::card(1024), 1536, 5_000)] {
            let program = programs::gather(total, 60, 8, ns, seed);
            let time = |policy| run(machine, policy, &program).steady_ns(1);
            let ratio = time(PolicyKind::Foresight) / time(PolicyKind::Driver);
            assert!(
                ratio < 1.05,
                "seed {seed}: {ratio:.3} times the driver's time"
            );
        }
    }
}

#[test]
fn what_fits_moves_nothing_and_loses_nothing() {
    let program = programs::sweep(100, 4, 8, 300_000);
    let outcome = run(soft(), PolicyKind::Foresight, &program);
    assert_eq!((outcome.blocks_in, outcome.blocks_out), (0, 0));
    let ideal = 100.0 * 300_000.0;
    assert!(
        outcome.steady_ns(2) < ideal * 1.01,
        "{}",
        outcome.steady_ns(2) / ideal
    );
}

#[test]
fn a_budget_that_is_kept_costs_little_more_than_a_device_of_its_size() {
    for (program, excess) in [
        (programs::sweep(192, 4, 12, 300_000), 64),
        (programs::sweep(192, 4, 12, 1_400_000), 64),
        (programs::tiles(4, 4, 6, 300_000), 64),
    ] {
        let ratio = over_bound(kept(), PolicyKind::Foresight, &program, excess);
        assert!(ratio < 1.25, "{ratio:.3} times the bound");
    }
}

#[test]
fn a_budget_is_filled_with_what_is_used_though_nothing_foretells_it() {
    let program = programs::gather(192, 40, 8, 300_000, 7);
    let outcome = run(kept(), PolicyKind::Foresight, &program);
    assert!(
        (120..=128).contains(&outcome.peak_blocks),
        "{}",
        outcome.peak_blocks
    );
}

#[test]
fn a_new_phase_is_learned_within_two_of_its_cycles() {
    let outcome = run(
        soft(),
        PolicyKind::Foresight,
        &programs::phases(192, 4, 8, 300_000),
    );
    let ends = &outcome.iteration_ends_ns;
    let third = (ends[10] - ends[9]) as f64;
    let last = (ends[15] - ends[14]) as f64;
    assert!(
        third < last * 1.10,
        "{:.3} times its steady time",
        third / last
    );
}
