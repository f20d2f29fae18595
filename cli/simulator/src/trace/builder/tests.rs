use super::super::program::{Access, Mode};
use super::*;

const MIB: u64 = 1 << 20;
const BASE: u64 = 0x7f00_0000_0000;

fn at(offset: u64, bytes: u64) -> Region {
    Region {
        address: BASE + offset,
        bytes,
    }
}

fn builder(bytes: u64) -> ProgramBuilder {
    let mut builder = ProgramBuilder::new("test");
    builder.alloc(BASE, bytes).unwrap();
    builder
}

fn kernel(builder: &mut ProgramBuilder, reads: &[Region], writes: &[Region]) -> Launch {
    builder
        .launch(LaunchSpec::kernel(
            "k",
            Nanos::from_micros(10),
            reads,
            writes,
        ))
        .unwrap()
}

/// The pieces that the last `unuse` or `free` killed, as block number and leaf mask.
fn last_dead(program: &Program) -> Vec<(u32, u32)> {
    let (Step::Free(_, span) | Step::Unuse(_, span)) = program.steps().last().unwrap() else {
        panic!("the last step kills nothing");
    };
    program
        .dead(*span)
        .iter()
        .map(|piece| (piece.block.0, piece.leaves.0))
        .collect()
}

#[test]
fn blocks_are_numbered_in_order_of_allocation_and_keep_their_number_when_retaken() {
    let mut builder = builder(4 * MIB);
    builder.alloc(BASE - 64 * MIB, 2 * MIB).unwrap();
    builder.free(BASE).unwrap();
    builder.alloc(BASE, 6 * MIB).unwrap();
    let program = builder.finish();
    assert_eq!(program.blocks(), 4);
    assert_eq!(program.block_at(BASE), Some(Block(0)));
    assert_eq!(program.block_at(BASE - 63 * MIB), Some(Block(2)));
    assert_eq!(program.block_at(BASE + 5 * MIB), Some(Block(3)));
    assert_eq!(program.address(Block(3)), BASE + 4 * MIB);
}

#[test]
fn equal_access_sets_are_the_same_set_whatever_lies_between() {
    let mut builder = builder(8 * MIB);
    let first = kernel(&mut builder, &[at(0, 4 * MIB)], &[]);
    let other = kernel(&mut builder, &[], &[at(0, 4 * MIB)]);
    let again = kernel(&mut builder, &[at(0, 4 * MIB)], &[]);
    let program = builder.finish();
    assert_eq!(program.access_set(first), program.access_set(again));
    assert_ne!(program.access_set(first), program.access_set(other));
    let read = |block| Access::whole(Block(block), Leaves::ALL, Mode::Read);
    assert_eq!(program.accesses(first), [read(0), read(1)]);
}

#[test]
fn pointers_are_the_starts_of_what_is_read_then_written_unless_given() {
    let mut builder = builder(8 * MIB);
    let plain = kernel(&mut builder, &[at(8, 8)], &[at(0, 8)]);
    let (reads, pointers) = ([at(0, 8)], [1, 2, 3]);
    let mut spec = LaunchSpec::kernel("given", Nanos(1), &reads, &[]);
    spec.pointers = Some(&pointers);
    let given = builder.launch(spec).unwrap();
    let program = builder.finish();
    assert_eq!(program.pointers(plain), [BASE + 8, BASE]);
    assert_eq!(program.pointers(given), [1, 2, 3]);
    assert_eq!(program.kernel_name(given), "given");
}

#[test]
fn a_leaf_dies_only_when_no_other_part_shares_it() {
    let kib = 1 << 10;
    let mut builder = builder(4 * MIB);
    builder.use_(BASE, 96 * kib).unwrap();
    builder.use_(BASE + 96 * kib, 64 * kib).unwrap();
    builder.use_(BASE + 160 * kib, 3 * MIB).unwrap();
    builder.unuse(BASE + 96 * kib).unwrap();
    let mut builder = {
        let program = builder.finish();
        assert_eq!(last_dead(&program), []);
        self::builder(4 * MIB)
    };
    builder.use_(BASE, 96 * kib).unwrap();
    builder.use_(BASE + 96 * kib, 3 * MIB).unwrap();
    builder.unuse(BASE).unwrap();
    builder.unuse(BASE + 96 * kib).unwrap();
    let program = builder.finish();
    let killed: Vec<_> = program
        .steps()
        .iter()
        .filter_map(|step| match step {
            Step::Unuse(_, span) => Some(program.dead(*span)),
            _ => None,
        })
        .collect();
    assert_eq!(
        killed[0],
        [Piece {
            block: Block(0),
            leaves: Leaves(1)
        }]
    );
    assert_eq!(
        killed[1][0],
        Piece {
            block: Block(0),
            leaves: Leaves(!1)
        }
    );
    assert_eq!(
        killed[1][1].leaves,
        Leaves::between(0, 18),
        "3 MiB + 96 KiB, rounded up"
    );
}

#[test]
fn freeing_kills_everything_and_takes_the_parts_back() {
    let mut builder = builder(3 * MIB);
    builder.use_(BASE + MIB, MIB).unwrap();
    builder.free(BASE).unwrap();
    assert_eq!(
        builder.unuse(BASE + MIB),
        Err(BuildError::NotUsed {
            address: BASE + MIB
        })
    );
    builder.alloc(BASE, 3 * MIB).unwrap();
    builder.free(BASE).unwrap();
    assert_eq!(last_dead(&builder.finish()), [(0, u32::MAX), (1, 0xffff)]);
}

#[test]
fn a_part_may_lie_across_allocations_that_touch() {
    let mut builder = builder(2 * MIB);
    builder.alloc(BASE + 2 * MIB, 2 * MIB).unwrap();
    builder.use_(BASE + MIB, 2 * MIB).unwrap();
    builder.unuse(BASE + MIB).unwrap();
    assert_eq!(
        last_dead(&builder.finish()),
        [(0, 0xffff_0000), (1, 0xffff)]
    );
}

#[test]
fn two_allocations_in_one_block_live_and_die_apart() {
    let mut builder = builder(MIB);
    builder.alloc(BASE + MIB, MIB).unwrap();
    builder.free(BASE).unwrap();
    kernel(&mut builder, &[at(MIB, MIB)], &[]);
    builder.free(BASE + MIB).unwrap();
    let error = builder.launch(LaunchSpec::kernel("k", Nanos(1), &[at(MIB, 8)], &[]));
    assert_eq!(error, Err(BuildError::NotAllocated { address: BASE }));
    assert_eq!(last_dead(&builder.finish()), [(0, 0xffff_0000)]);
}

#[test]
fn the_footprint_is_the_most_blocks_touched_and_not_given_back() {
    let mut builder = builder(8 * MIB);
    builder.alloc(BASE + 64 * MIB, 64 * MIB).unwrap();
    kernel(&mut builder, &[at(0, 6 * MIB)], &[]);
    builder.free(BASE).unwrap();
    kernel(&mut builder, &[], &[at(64 * MIB, 4 * MIB)]);
    assert_eq!(builder.populated_bytes(), 6 * MIB);
    builder.footprint(10 * MIB);
    assert_eq!(builder.finish().footprint_bytes(), 10 * MIB);
}

#[test]
fn launches_belong_to_the_iteration_begun_before_them() {
    let mut builder = builder(2 * MIB);
    kernel(&mut builder, &[], &[at(0, 8)]);
    builder.iteration(0).unwrap();
    kernel(&mut builder, &[at(0, 8)], &[]);
    kernel(&mut builder, &[at(0, 8)], &[]);
    builder.iteration(1).unwrap();
    assert_eq!(
        builder.iteration(1),
        Err(BuildError::Iteration {
            found: 1,
            expected: 2
        })
    );
    let program = builder.finish();
    assert_eq!(program.iterations(), [1..3, 3..3]);
    assert_eq!(program.launch(Launch(0)).iteration, None);
    assert_eq!(program.launch(Launch(2)).iteration, Some(0));
    assert_eq!(program.ideal(1..3), Nanos::from_micros(20));
}

/// Five iterations of four launches, after one of set-up; each hands memory out before its second
/// and takes it back before its fourth, but for one that hands more out before its third.
fn five_iterations() -> ProgramBuilder {
    let mut builder = builder(8 * MIB);
    kernel(&mut builder, &[], &[at(0, 8)]);
    for iteration in 0..5 {
        builder.iteration(iteration).unwrap();
        for launch in 0..4 {
            match (launch, iteration) {
                (1, _) => builder.use_(BASE + 2 * MIB, 2 * MIB).unwrap(),
                (2, 3) => builder.use_(BASE + 4 * MIB, 2 * MIB).unwrap(),
                (3, _) => builder.unuse(BASE + 2 * MIB).unwrap(),
                _ => {}
            }
            if (launch, iteration) == (3, 3) {
                builder.unuse(BASE + 4 * MIB).unwrap();
            }
            kernel(&mut builder, &[at(0, 8)], &[]);
        }
    }
    builder
}

#[test]
fn steady_iterations_begin_where_most_is_handed_out() {
    let program = five_iterations().finish();
    assert_eq!(program.iterations()[2..], [9..13, 13..17, 17..21]);
    // Before the second launch of the third and the fifth, before the third of the fourth.
    assert_eq!(program.steady(), [10..15, 15..18]);
    assert_eq!(program.ideal_steady(), Nanos::from_micros(40));
}

#[test]
fn where_nothing_is_handed_out_steady_iterations_begin_with_their_marks() {
    // Three are too few: the last one is steady.
    for (iterations, count) in [(3, 1), (5, 2)] {
        let mut builder = builder(2 * MIB);
        for iteration in 0..iterations {
            builder.iteration(iteration).unwrap();
            kernel(&mut builder, &[], &[at(0, 8)]);
            kernel(&mut builder, &[at(0, 8)], &[]);
        }
        assert_eq!(builder.finish().steady(), [4..6, 6..8][..count]);
    }
}

#[test]
fn what_cannot_be_is_refused_with_the_address_at_fault() {
    let mut builder = builder(2 * MIB);
    let error = |result: Result<(), BuildError>| result.unwrap_err();
    assert_eq!(
        error(builder.alloc(BASE + MIB, MIB)),
        BuildError::Allocated {
            address: BASE + MIB
        }
    );
    assert_eq!(error(builder.alloc(0, 0)), BuildError::Empty { address: 0 });
    assert_eq!(
        error(builder.free(3)),
        BuildError::NotAllocated { address: 3 }
    );
    assert_eq!(
        error(builder.use_(BASE + MIB, 2 * MIB)),
        BuildError::NotAllocated {
            address: BASE + 2 * MIB
        }
    );
    builder.use_(BASE, MIB).unwrap();
    assert_eq!(
        error(builder.use_(BASE, 1)),
        BuildError::Used { address: BASE }
    );
    assert!(matches!(
        error(builder.alloc(u64::MAX, 2)),
        BuildError::Address { .. }
    ));
    assert!(matches!(
        error(builder.alloc(1, 1 << 60)),
        BuildError::Address { .. }
    ));
    assert_eq!(
        error(builder.host(&[at(0, 4 * MIB)], &[])),
        BuildError::NotAllocated {
            address: BASE + 2 * MIB
        }
    );
}

#[test]
fn sizes_over_the_limits_are_refused_before_memory_is_taken() {
    let limits = Limits {
        blocks: 2,
        launches: 1,
        touches: 3,
        ..Limits::default()
    };
    let mut builder = ProgramBuilder::with_limits("small", limits);
    let refused = |what, limit| Err(BuildError::TooMany { what, limit });
    assert_eq!(builder.alloc(BASE, 1 << 50), refused("blocks", 2));
    builder.alloc(BASE, 4 * MIB).unwrap();
    assert_eq!(builder.alloc(0, 1), refused("blocks", 2));
    assert_eq!(
        builder.host(&[at(0, MIB); 4], &[]),
        refused("blocks in one launch", 3)
    );
    kernel(&mut builder, &[], &[]);
    let second = builder.launch(LaunchSpec::kernel("k", Nanos(1), &[], &[]));
    assert_eq!(
        second,
        Err(BuildError::TooMany {
            what: "launches",
            limit: 1
        })
    );
}

#[test]
fn varied_times_are_spread_evenly_within_their_percent() {
    let mut builder = builder(2 * MIB);
    builder.iteration(0).unwrap();
    for _ in 0..1000 {
        let time = Nanos::from_micros(1000);
        let reads = [at(0, MIB)];
        let spec = LaunchSpec::kernel("k", time, &reads, &[]);
        builder.launch(spec).unwrap();
    }
    let varied = builder.finish().varied(20.0, 7);
    let times: Vec<u64> = varied.launches().iter().map(|info| info.time.0).collect();
    let within = |range: std::ops::Range<u64>| times.iter().filter(|t| range.contains(t)).count();
    assert_eq!(within(800_000..1_200_001), 1000);
    for quarter in 0..4 {
        let start = 800_000 + quarter * 100_000;
        assert!((200..300).contains(&within(start..start + 100_000)));
    }
}
