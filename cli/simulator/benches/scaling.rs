//! Cost of a run by the length of the trace: 1, 4 and 16 times as many iterations of the same
//! training. Elements are block accesses: a run should take time in proportion to them, and
//! do at least a million in a second.

#![allow(missing_docs)]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use oversub_sim::run::{Options, run};
use oversub_sim::trace::families::{Family, Shape};
use oversub_sim::trace::{BuildError, Launch, Program};
use oversub_sim::{machine, policy};

const POLICIES: [&str; 4] = ["driver", "deepum", "foresight", "opt"];

fn program(iterations: u32) -> Result<Program, BuildError> {
    Family::Training.program(&Shape {
        iterations,
        blocks: 2048,
        launches: 300,
        ..Shape::default()
    })
}

fn accesses(program: &Program) -> u64 {
    let launches = 0..program.launches().len() as u32;
    launches
        .map(|launch| program.accesses(Launch(launch)).len() as u64)
        .sum()
}

fn scaling(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("scaling");
    group.sample_size(10);
    let Some(named) = machine::named(machine::DEFAULT) else {
        return;
    };
    for factor in [1, 4, 16] {
        let Ok(program) = program(4 * factor) else {
            return;
        };
        let mut machine = named.clone();
        machine.memory_bytes = program.footprint_bytes() * 2 / 3;
        group.throughput(Throughput::Elements(accesses(&program)));
        for name in POLICIES {
            let Some(entry) = policy::named(name) else {
                continue;
            };
            let options = Options {
                lifetimes: true,
                timeline: false,
                explain: None,
                seed: 0,
                engine_cost: false,
                without: Default::default(),
            };
            group.bench_function(BenchmarkId::new(name, factor), |bencher| {
                bencher.iter(|| black_box(run(&program, &machine, entry, options)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, scaling);
criterion_main!(benches);
