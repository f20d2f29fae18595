//! Programs that pass where an array begins, and which part of it is meant as a number: pointers
//! tell nothing of what a launch uses. What they use shows as faults alone, and is the same when they
//! come again.

use oversub_sim::machine;
use oversub_sim::policy;
use oversub_sim::run::{Options, Outcome, run};
use oversub_sim::trace::{LaunchSpec, Program, ProgramBuilder};
use oversub_sim::units::{BLOCK_BYTES, Nanos, Region};

const ARRAY: u64 = 1 << 40;

/// `count` parts of so many blocks from part `first` on of the array of this number.
fn parts(array: u64, first: u64, count: u64, blocks: u64) -> Region {
    Region {
        address: (array + 1) * ARRAY + first * blocks * BLOCK_BYTES,
        bytes: count * blocks * BLOCK_BYTES,
    }
}

struct Builder {
    program: ProgramBuilder,
    arrays: Vec<u64>,
}

impl Builder {
    /// Arrays of so many blocks each.
    fn new(name: &str, arrays: &[u64]) -> Self {
        let mut program = ProgramBuilder::new(name);
        let mut addresses = Vec::new();
        for (array, &blocks) in (0..).zip(arrays) {
            let Region { address, bytes } = parts(array, 0, 1, blocks);
            program.alloc(address, bytes).expect("in order");
            addresses.push(address);
        }
        let arrays = addresses;
        Self { program, arrays }
    }

    fn launch(&mut self, numbers: &[u64], time: Nanos, reads: &[Region], writes: &[Region]) {
        let signature = numbers.iter().fold(7, |hash: u64, number| {
            (hash.rotate_left(13) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
        let spec = LaunchSpec {
            signature,
            pointers: Some(&self.arrays),
            ..LaunchSpec::kernel("kernel", time, reads, writes)
        };
        self.program.launch(spec).expect("in order");
    }
}

/// Products of tiles of so many blocks, of matrices of `side` by `side` of them.
fn products(side: u64, blocks: u64, iterations: u64) -> Program {
    let mut builder = Builder::new("products", &[side * side * blocks; 3]);
    for iteration in 0..iterations {
        builder.program.iteration(iteration).expect("in order");
        for (i, j, k) in
            (0..side * side * side).map(|n| (n / side / side, n / side % side, n % side))
        {
            let tile = |array, row, column| parts(array, row * side + column, 1, blocks);
            let (a, b, c) = (tile(0, i, k), tile(1, k, j), tile(2, i, j));
            let time = Nanos(150_000 * blocks);
            builder.launch(&[i, j, k], time, &[a, b, c], &[c]);
        }
    }
    builder.program.finish()
}

/// The same of matrices that lie row by row: each launch uses panels of so many blocks.
fn panels(side: u64, blocks: u64, iterations: u64) -> Program {
    let mut builder = Builder::new("panels", &[side * blocks; 3]);
    for iteration in 0..iterations {
        builder.program.iteration(iteration).expect("in order");
        for (i, j, k) in
            (0..side * side * side).map(|n| (n / side / side, n / side % side, n % side))
        {
            let [a, b, c] = [(0, i), (1, k), (2, i)].map(|(array, at)| parts(array, at, 1, blocks));
            builder.launch(&[i, j, k], Nanos(18_000 * blocks), &[a, b, c], &[c]);
        }
    }
    builder.program.finish()
}

/// Planes of so many blocks, each of which is made of three of another array, there and back.
fn planes(count: u64, blocks: u64, iterations: u64) -> Program {
    let mut builder = Builder::new("planes", &[count * blocks; 2]);
    for iteration in 0..iterations {
        builder.program.iteration(iteration).expect("in order");
        for (from, to) in [(0, 1), (1, 0)] {
            for plane in 0..count {
                let (first, end) = (plane.saturating_sub(1), (plane + 2).min(count));
                let reads = [parts(from, first, end - first, blocks)];
                let time = Nanos(5_000 * blocks);
                builder.launch(&[from, plane], time, &reads, &[parts(to, plane, 1, blocks)]);
            }
        }
    }
    builder.program.finish()
}

/// Batches of so many blocks of one array, and all of a small one.
fn batches(count: u64, blocks: u64, iterations: u64) -> Program {
    let mut builder = Builder::new("batches", &[count * blocks, 32]);
    for iteration in 0..iterations {
        builder.program.iteration(iteration).expect("in order");
        for batch in 0..count {
            let weights = parts(1, 0, 1, 32);
            let reads = [parts(0, batch, 1, blocks), weights];
            builder.launch(&[batch], Nanos(80_000 * blocks), &reads, &[weights]);
        }
    }
    builder.program.finish()
}

fn played(program: &Program, name: &str, ratio: f64) -> Outcome {
    let mut machine = machine::named(machine::DEFAULT).expect("the default is named");
    let footprint = program.blocks() as u64 * BLOCK_BYTES;
    machine.memory_bytes = (footprint as f64 / ratio) as u64;
    let options = Options {
        lifetimes: true,
        timeline: false,
        explain: None,
        seed: 0,
        engine_cost: false,
        without: Default::default(),
    };
    let entry = policy::named(name).expect("the policy is named");
    run(program, &machine, entry, options).expect("nothing is lost")
}

#[test]
fn what_launches_use_when_they_come_again_is_fetched_ahead() {
    const ITERATIONS: u64 = 16;
    const LAST: usize = 4;
    // At most so many times as slow as under the driver alone, all in all and in the end. Panels are
    // found out late, and few large ones on a device that is half as large not at all yet.
    let programs = [
        (products(6, 4, ITERATIONS), 1.0, 0.95),
        (products(5, 8, ITERATIONS), 1.0, 0.95),
        (products(4, 24, ITERATIONS), 1.0, 0.95),
        (panels(8, 64, ITERATIONS), 1.9, 0.78),
        (panels(6, 40, ITERATIONS), 3.3, 3.3),
        (planes(150, 2, ITERATIONS), 1.0, 0.35),
        (planes(100, 8, ITERATIONS), 1.0, 0.35),
        (batches(150, 4, ITERATIONS), 1.0, 0.35),
    ];
    let mut wrong = Vec::new();
    for (program, in_all, in_the_end) in &programs {
        for ratio in [1.25, 1.5, 2.0] {
            let us = |name: &str| {
                let outcome = played(program, name, ratio);
                let took = outcome.iterations.iter().map(|i| i.time.0 as f64 / 1e3);
                let took: Vec<f64> = took.collect();
                let last = took[took.len() - LAST..].iter().sum::<f64>() / LAST as f64;
                (took.iter().sum::<f64>(), last)
            };
            let [driver, deepum, ours] = ["driver", "deepum", "foresight"].map(us);
            let line = format!(
                "{} of {} blocks at {ratio}: {:.2} of the driver's time, in the end {:.2}, and {:.2} of deepum's",
                program.name(),
                program.blocks(),
                ours.0 / driver.0,
                ours.1 / driver.1,
                ours.1 / deepum.1
            );
            println!("{line}");
            if ours.0 > driver.0 * in_all || ours.1 > driver.1 * in_the_end {
                wrong.push(line);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
