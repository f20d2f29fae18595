//! The bounds against closed forms, every policy, and all schedules of small programs.

mod exhaustive;
mod halves;

use std::collections::BTreeMap;

use super::*;
use crate::machine;
use crate::policy::POLICIES;
use crate::run::{Options, run};
use crate::trace::families::{Family, Shape};
use crate::trace::{Indexed, LaunchSpec, ProgramBuilder};
use crate::units::{LEAF_BYTES, Rate, Region};

/// First byte of the memory of test programs.
const BASE: u64 = 0x7f00_0000_0000;
/// Time of one block over the test link: 16 GB/s.
const BLOCK_TIME: u64 = 131_072;

/// A machine whose link takes [`BLOCK_TIME`] for a block, each way.
fn test_machine() -> Machine {
    let mut machine = machine::named("a100-40g").expect("a named machine");
    machine.link_in = Rate(16_000_000_000);
    machine.link_out = Rate(16_000_000_000);
    machine.link_total = None;
    machine
}

/// Eight iterations that update the first `bytes` of each of some blocks, one launch each.
fn sweep(blocks: u64, bytes: u64, time: Nanos) -> Program {
    let mut builder = ProgramBuilder::new("sweep");
    builder.alloc(BASE, blocks * BLOCK_BYTES).expect("alloc");
    for iteration in 0..8 {
        builder.iteration(iteration).expect("iteration");
        for block in 0..blocks {
            let region = [Region {
                address: BASE + block * BLOCK_BYTES,
                bytes,
            }];
            let spec = LaunchSpec::kernel("update", time, &region, &region);
            builder.launch(spec).expect("launch");
        }
    }
    builder.finish()
}

#[test]
fn a_sweep_larger_than_memory_moves_what_does_not_fit_each_way() {
    let program = sweep(12, BLOCK_BYTES, Nanos(1000));
    let bounds = Bounds::new(&program, &test_machine(), true, Deaths::Foreseen);
    let capacity = 8 * BLOCK_BYTES;
    let volume = bounds.volume(capacity);
    assert_eq!(volume.bytes_in, 4 * BLOCK_BYTES);
    assert_eq!(volume.bytes_out, 4 * BLOCK_BYTES);
    assert_eq!(bounds.lb1_streaming(capacity).time, Nanos(4 * BLOCK_TIME));
    assert!(bounds.lb2(capacity).time >= Nanos(4 * BLOCK_TIME));
}

#[test]
fn where_everything_fits_the_bound_is_compute_alone() {
    for family in Family::ALL {
        let program = family.program(&Shape::default()).expect("a program");
        let footprint = program.footprint_bytes();
        let bound = strongest(
            &program,
            &test_machine(),
            footprint,
            (true, Deaths::Foreseen),
            Effort::Full,
        );
        assert_eq!((bound.name, bound.time), ("lb0", program.ideal_steady()));
    }
}

#[test]
fn a_block_with_one_leaf_takes_a_frame() {
    let program = sweep(12, LEAF_BYTES, Nanos(1));
    let bounds = Bounds::new(&program, &test_machine(), true, Deaths::Foreseen);
    // In leaves, twelve would fit into one frame; frames are eight, and four must move.
    let leaf_time = BLOCK_TIME / 32;
    let bound = bounds.lb2(8 * BLOCK_BYTES);
    assert!(bound.time >= Nanos(4 * leaf_time), "{bound:?}");
}

#[test]
fn a_short_peak_counts_however_few_the_slots() {
    // Eight blocks are used again and again; once in an iteration eight more are written and
    // read again at once.
    let region = |block: u64, blocks: u64| Region {
        address: BASE + block * BLOCK_BYTES,
        bytes: blocks * BLOCK_BYTES,
    };
    let mut builder = ProgramBuilder::new("peak");
    builder.alloc(BASE, 16 * BLOCK_BYTES).expect("alloc");
    for iteration in 0..8 {
        builder.iteration(iteration).expect("iteration");
        for at in 0..80 {
            let all = [region(at % 8, 1)];
            let spec = LaunchSpec::kernel("update", Nanos(1000), &all, &all);
            builder.launch(spec).expect("launch");
            if at == 40 {
                let more = [region(8, 8)];
                builder.use_(more[0].address, more[0].bytes).expect("use");
                let write = LaunchSpec::kernel("write", Nanos(1000), &[], &more);
                builder.launch(write).expect("launch");
                let read = LaunchSpec::kernel("read", Nanos(1000), &more, &[]);
                builder.launch(read).expect("launch");
                builder.unuse(more[0].address).expect("unuse");
            }
        }
    }
    let program = builder.finish();
    let class = (true, Deaths::Foreseen);
    for slots in [1536, 40, 15] {
        let bounds = Bounds::cut(&program, &test_machine(), class, Reach::Nothing, slots);
        assert!(bounds.slots.len() <= slots);
        // Of the eight blocks no more than four can be there at the peak, and they are wanted
        // again.
        let volume = bounds.volume(12 * BLOCK_BYTES);
        assert_eq!(volume.bytes_in, 4 * BLOCK_BYTES, "{slots} slots");
    }
}

#[test]
fn a_joint_cap_counts_both_directions() {
    let program = sweep(12, BLOCK_BYTES, Nanos(1000));
    let mut machine = test_machine();
    machine.link_total = Some(machine.link_in);
    let bounds = Bounds::new(&program, &machine, true, Deaths::Foreseen);
    let capacity = 8 * BLOCK_BYTES;
    assert_eq!(bounds.lb1_streaming(capacity).time, Nanos(8 * BLOCK_TIME));
    // A window of one iteration moves in and out at once; windows of the whole stretch lose
    // no more than what is free at its ends.
    assert!(bounds.lb2(capacity).time >= Nanos(8 * BLOCK_TIME * 4 / 5));
}

#[test]
fn dead_content_is_free_only_with_lifetimes_on() {
    let mut builder = ProgramBuilder::new("scratch");
    builder.alloc(BASE, 12 * BLOCK_BYTES).expect("alloc");
    for iteration in 0..8 {
        builder.iteration(iteration).expect("iteration");
        for block in 0..12 {
            let region = [Region {
                address: BASE + block * BLOCK_BYTES,
                bytes: BLOCK_BYTES,
            }];
            builder.use_(region[0].address, BLOCK_BYTES).expect("use");
            let write = LaunchSpec::kernel("write", Nanos(1000), &[], &region);
            builder.launch(write).expect("launch");
            builder.unuse(region[0].address).expect("unuse");
        }
    }
    let program = builder.finish();
    let capacity = 4 * BLOCK_BYTES;
    let volume = |lifetimes| {
        Bounds::new(&program, &test_machine(), lifetimes, Deaths::Foreseen).volume(capacity)
    };
    assert_eq!(volume(true).bytes_out, 0);
    assert_eq!(volume(false).bytes_out, 8 * BLOCK_BYTES);
    assert_eq!(volume(false).bytes_in, 8 * BLOCK_BYTES);
}

#[test]
fn content_is_preserved_until_its_memory_is_given_back_unless_the_future_is_known() {
    let region = |block: u64| Region {
        address: BASE + block * BLOCK_BYTES,
        bytes: BLOCK_BYTES,
    };
    let mut builder = ProgramBuilder::new("tails");
    builder.alloc(BASE, 12 * BLOCK_BYTES).expect("alloc");
    for iteration in 0..8 {
        builder.iteration(iteration).expect("iteration");
        for block in 0..12 {
            let all = [region(block)];
            builder.use_(all[0].address, BLOCK_BYTES).expect("use");
            let spec = LaunchSpec::kernel("write", Nanos(1000), &[], &all);
            builder.launch(spec).expect("launch");
        }
        for block in 0..12 {
            builder.unuse(region(block).address).expect("unuse");
        }
    }
    let program = builder.finish();
    let capacity = 8 * BLOCK_BYTES;
    let bounds = |deaths| Bounds::new(&program, &test_machine(), true, deaths);
    let [foreseen, told] = [Deaths::Foreseen, Deaths::Told].map(bounds);
    assert_eq!(foreseen.volume(capacity).bytes_out, 0);
    // When the last one is written, three of the others do not fit. Nobody reads them again,
    // so they never come back.
    assert_eq!(told.volume(capacity).bytes_in, 0);
    assert_eq!(told.volume(capacity).bytes_out, 3 * BLOCK_BYTES);
    assert!(told.strongest(capacity, Effort::Full).time >= Nanos(3 * BLOCK_TIME));
}

#[test]
fn a_launch_larger_than_memory_has_no_atomic_schedule() {
    let mut builder = ProgramBuilder::new("wide");
    let all = [Region {
        address: BASE,
        bytes: 12 * BLOCK_BYTES,
    }];
    builder.alloc(BASE, all[0].bytes).expect("alloc");
    for iteration in 0..8 {
        builder.iteration(iteration).expect("iteration");
        let spec = LaunchSpec::kernel("all", Nanos(1000), &all, &all);
        builder.launch(spec).expect("launch");
    }
    let program = builder.finish();
    let bounds = Bounds::new(&program, &test_machine(), true, Deaths::Foreseen);
    assert_eq!(bounds.lb1_atomic(11 * BLOCK_BYTES), None);
    assert!(bounds.lb1_atomic(12 * BLOCK_BYTES).is_some());
    assert!(bounds.strongest(8 * BLOCK_BYTES, Effort::Quick).time >= Nanos(4 * BLOCK_TIME));
}

/// Programs of every family, regular and not.
fn programs() -> impl Iterator<Item = Program> {
    let shapes = [(0, false), (30, true)];
    Family::ALL.into_iter().flat_map(move |family| {
        shapes.into_iter().map(move |(noise_percent, partial)| {
            let shape = Shape {
                seed: 7,
                noise_percent,
                partial,
                ..Shape::default()
            };
            family.program(&shape).expect("a program")
        })
    })
}

#[test]
fn weaker_methods_give_lower_bounds() {
    for program in programs() {
        let bounds = Bounds::new(&program, &test_machine(), true, Deaths::Foreseen);
        for percent in [50, 75] {
            let capacity = program.footprint_bytes() / 100 * percent;
            let lb2 = bounds.lb2(capacity).time;
            assert!(bounds.lb0().time <= lb2);
            if let Some(lb3) = bounds.lb3(capacity) {
                // Up to the solver's tolerance.
                assert!(
                    lb3.time.0 as f64 >= lb2.0 as f64 * (1.0 - 1e-6),
                    "{lb3:?} {lb2:?}"
                );
            }
            if let Some(atomic) = bounds.lb1_atomic(capacity) {
                assert!(bounds.lb1_streaming(capacity).time <= atomic.time);
            }
        }
    }
}

#[test]
fn who_may_use_more_on_the_host_has_no_higher_bound() {
    let mut lower = 0;
    let rows = (0..8).map(|seed| {
        let shape = Shape {
            seed,
            launches: 60,
            block_time: Nanos(1000),
            ..Shape::default()
        };
        Family::Rows.program(&shape).expect("a program")
    });
    for program in programs().chain(rows) {
        let capacity = program.footprint_bytes() / 100 * 40;
        let reaches = [Reach::Nothing, Reach::Indexed, Reach::Everything];
        let [nothing, indexed, everything] = reaches.map(|reach| {
            let class = (true, Deaths::Foreseen);
            let bounds = Bounds::reaching(&program, &test_machine(), class, reach);
            bounds.lb2(capacity).time
        });
        assert!(
            nothing >= indexed && indexed >= everything,
            "{}",
            program.name()
        );
        assert!(program.has_indexed() || nothing == indexed);
        lower += u32::from(indexed < nothing);
    }
    assert!(lower >= 4, "only {lower} programs gain");
}

#[test]
fn sparse_use_on_the_host_costs_what_is_used() {
    // Twelve blocks of which each launch uses a page of a leaf, by an index.
    let mut builder = ProgramBuilder::new("rows");
    builder.alloc(BASE, 13 * BLOCK_BYTES).expect("alloc");
    let at = |block: u64| Region {
        address: BASE + block * BLOCK_BYTES,
        bytes: BLOCK_BYTES,
    };
    let all: Vec<Region> = (0..12).map(at).collect();
    builder.host(&[], &all).expect("host");
    for iteration in 0..8 {
        builder.iteration(iteration).expect("iteration");
        for region in &all {
            let regions = [*region];
            let mut spec = LaunchSpec::kernel("row", Nanos(1), &regions, &[]);
            spec.indexed = Some(Indexed {
                pages: 4,
                leaves: 4,
                bytes: None,
            });
            builder.launch(spec).expect("launch");
        }
    }
    let program = builder.finish();
    let bound = |reach| {
        let class = (true, Deaths::Foreseen);
        let bounds = Bounds::reaching(&program, &test_machine(), class, reach);
        bounds.lb2(4 * BLOCK_BYTES).time.0
    };
    // Eight blocks do not fit: four leaves come of each, or a page of each leaf is read.
    let leaves = 8 * 4 * BLOCK_TIME / 32;
    let moving = bound(Reach::Nothing);
    assert!((leaves * 4 / 5..=leaves + 12).contains(&moving), "{moving}");
    let reading = bound(Reach::Indexed);
    assert!(
        (leaves / 16 * 4 / 5..=leaves / 16 + 12).contains(&reading),
        "{reading}"
    );
}

#[test]
fn less_memory_never_lowers_a_bound() {
    for program in programs() {
        let bounds = Bounds::new(&program, &test_machine(), true, Deaths::Foreseen);
        let at = |percent| program.footprint_bytes() / 100 * percent;
        for pair in [40, 60, 80, 100].windows(2) {
            let less = bounds.strongest(at(pair[0]), Effort::Quick).time;
            assert!(less >= bounds.strongest(at(pair[1]), Effort::Quick).time);
        }
    }
}

#[test]
fn the_same_call_gives_the_same_bound() {
    for program in programs().step_by(5) {
        let capacity = program.footprint_bytes() * 2 / 3;
        let bound = || {
            strongest(
                &program,
                &test_machine(),
                capacity,
                (true, Deaths::Foreseen),
                Effort::Full,
            )
        };
        assert_eq!(bound(), bound());
    }
}

#[test]
fn no_policy_beats_its_bound() {
    let mut machine = test_machine();
    let (mut runs, mut on_host) = (0, 0);
    for program in programs() {
        for lifetimes in [true, false] {
            machine.memory_bytes = program.footprint_bytes() / 100 * 60;
            let bound = |(deaths, reach)| {
                let class = (lifetimes, deaths);
                let bounds = Bounds::reaching(&program, &machine, class, reach);
                bounds.strongest(machine.memory_bytes, Effort::Full)
            };
            let mut bounds = BTreeMap::new();
            for entry in POLICIES {
                let options = Options {
                    lifetimes,
                    timeline: false,
                    explain: None,
                    seed: 0,
                    engine_cost: false,
                    without: Default::default(),
                };
                // Some plans need more memory than this.
                let Ok(outcome) = run(&program, &machine, entry, options) else {
                    continue;
                };
                runs += 1;
                on_host += u32::from(outcome.reach > Reach::Nothing && entry.name == "foresight");
                let class = (entry.deaths(), outcome.reach);
                let bound = bounds.entry(class).or_insert_with(|| bound(class));
                let time = outcome.steady().time;
                assert!(
                    time >= bound.time,
                    "{} on {} with lifetimes {lifetimes}: {time:?} under {bound:?}",
                    entry.name,
                    program.name(),
                );
            }
        }
    }
    assert!(runs >= POLICIES.len() * 12, "only {runs} runs");
    assert!(on_host > 0, "no run uses anything on the host");
}
