//! How close policies come to the bound on the model device: exact simulated times.

mod model;

use model::{Device, Machine, Outcome, programs};
use oversub_engine::PolicyKind;

const POLICIES: [PolicyKind; 4] = [
    PolicyKind::Driver,
    PolicyKind::Demand,
    PolicyKind::Deepum,
    PolicyKind::Foresight,
];

fn run(machine: Machine, policy: PolicyKind, program: &[programs::Op]) -> Outcome {
    Device::new(machine, policy).run(program.to_vec())
}

#[test]
#[ignore = "prints the table of figures"]
fn table() {
    let soft = Machine::soft(128);
    let ns = 300_000;
    let cases: Vec<(&str, Machine, Vec<programs::Op>, u64)> = vec![
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
        ("sweep budget", Machine { budget_blocks: Some(128), device_blocks: 400, ..soft }, programs::sweep(192, 4, 12, ns), 64),
        ("train budget", Machine { budget_blocks: Some(128), device_blocks: 400, ..soft }, programs::train(16, 2, 6, 12, ns), 64),
        ("gather budget", Machine { budget_blocks: Some(128), device_blocks: 400, ..soft }, programs::gather(192, 40, 8, ns, 7), 64),
        ("train 1.5 slow", soft, programs::train(16, 2, 6, 12, 500_000), 64),
        ("card sweep 1.5", Machine::card(1024), programs::sweep(1536, 16, 12, 12_000), 512),
        ("card train 1.5", Machine::card(1024), programs::train(48, 6, 14, 12, 20_000), 512),
        ("card gather 1.5", Machine::card(1024), programs::gather(1536, 100, 8, 5_000, 7), 512),
        ("fits", soft, programs::sweep(100, 4, 8, ns), 0),
    ];
    println!(
        "{:26} {:>8}  {}",
        "time over bound", "bound ms", "driver, demand, deepum, foresight (faults, in, out)"
    );
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
                outcome.peak_blocks
            );
            if !outcome.violations.is_empty() {
                line += &format!(
                    " VIOLATIONS {} {}",
                    outcome.violations.len(),
                    outcome.violations[0]
                );
            }
        }
        println!("{name:26} {:8.1}{line}", bound / 1e6);
    }
}

#[test]
#[ignore = "debug"]
fn dbg() {
    let mut d = Device::new(Machine::soft(128), PolicyKind::Foresight);
    d.run_mut(programs::train(16, 2, 6, 12, 300_000));
    let o = &d.outcome;
    let n = o.launch_ends_ns.len();
    for k in n - 96..n {
        println!(
            "{k} {:.1} {:?}",
            (o.launch_ends_ns[k] - o.launch_ends_ns[k - 1]) as f64 / 1e6,
            (
                o.links[k].0 - o.links[k - 1].0,
                o.links[k].1 - o.links[k - 1].1,
                o.links[k].2
            )
        );
    }
    println!("{:?} {:?}", d.engine().snapshot(), d.engine().stats());
}
