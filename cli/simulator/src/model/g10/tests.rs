//! Times computed by hand: 100 us for a block over the link, 500 us to or from the SSD.

use crate::class::{AnyPolicy, Desk, FutureNotice, FuturePolicy};
use crate::machine::{self, Machine, Ssd};
use crate::model::{Room, Totals, play};
use crate::trace::{Block, Launch, LaunchSpec, Piece, Program, ProgramBuilder};
use crate::units::{BLOCK_BYTES, Leaves, Nanos, Rate, Region};

const BASE: u64 = 1 << 32;

struct Act<F>(F);

impl<F: FnMut(FutureNotice<'_>, &mut Desk<'_>)> FuturePolicy for Act<F> {
    fn notice(&mut self, notice: FutureNotice<'_>, desk: &mut Desk<'_>) {
        (self.0)(notice, desk);
    }
}

fn machine(frames: u64) -> Machine {
    Machine {
        memory_bytes: frames * BLOCK_BYTES,
        link_in: Rate(BLOCK_BYTES * 10_000),
        link_out: Rate(BLOCK_BYTES * 10_000),
        ssd: Some(Ssd {
            read: Rate(BLOCK_BYTES * 2_000),
            write: Rate(BLOCK_BYTES * 2_000),
        }),
        ..machine::named("g10").unwrap()
    }
}

fn blocks(first: u64, count: u64) -> Region {
    Region {
        address: BASE + first * BLOCK_BYTES,
        bytes: count * BLOCK_BYTES,
    }
}

/// Launches of so many microseconds that read and write these regions.
fn program(launches: &[(u64, &[Region], &[Region])]) -> Program {
    let mut builder = ProgramBuilder::new("hand");
    builder.alloc(BASE, 64 * BLOCK_BYTES).unwrap();
    builder.iteration(0).unwrap();
    for (us, reads, writes) in launches {
        let time = Nanos::from_micros(*us);
        let spec = LaunchSpec::kernel("launch", time, reads, writes);
        builder.launch(spec).unwrap();
    }
    builder.finish()
}

/// The whole run's time in microseconds, and its sums.
fn played(
    program: &Program,
    machine: &Machine,
    act: impl FnMut(FutureNotice<'_>, &mut Desk<'_>),
) -> (u64, Totals) {
    let mut policy = AnyPolicy::Future(Box::new(Act(act)));
    let played = play(program, machine, &mut policy, true, None).unwrap();
    (played.end.0.0.div_ceil(1000), played.end.1)
}

fn nothing(_: FutureNotice<'_>, _: &mut Desk<'_>) {}

#[test]
fn first_touch_is_charged_like_a_transfer_and_moves_nothing() {
    let program = program(&[(1000, &[], &[blocks(0, 2)])]);
    let (time, totals) = played(&program, &machine(8), nothing);
    assert_eq!((time, totals.bytes_in, totals.stall.0), (1200, 0, 200_000));
}

#[test]
fn what_nobody_wrote_comes_from_the_ssd() {
    let program = program(&[(1000, &[blocks(0, 1)], &[])]);
    let (time, totals) = played(&program, &machine(8), nothing);
    assert_eq!((time, totals.bytes_in), (1500, BLOCK_BYTES));
}

#[test]
fn faults_hold_a_launch_up_by_their_transfer_while_the_oldest_leave_beside_them() {
    let program = program(&[
        (1000, &[], &[blocks(0, 3)]),
        (1000, &[], &[blocks(3, 3)]),
        (1000, &[blocks(0, 1)], &[]),
    ]);
    let (time, totals) = played(&program, &machine(3), nothing);
    assert_eq!(time, 1300 + 1300 + 1100);
    assert_eq!(totals.bytes_in, BLOCK_BYTES);
    assert_eq!(totals.bytes_out, 4 * BLOCK_BYTES);
}

#[test]
fn a_full_host_sends_victims_to_the_ssd_and_the_launch_waits_for_its_last_part() {
    let program = program(&[(10, &[], &[blocks(0, 3)]), (10, &[], &[blocks(3, 3)])]);
    let machine = Machine {
        host_bytes: Some(0),
        ..machine(3)
    };
    let (time, _) = played(&program, &machine, nothing);
    assert_eq!(time, 310 + 3 * 500);
}

#[test]
fn host_and_ssd_traffic_run_side_by_side() {
    // Block 0 goes to the SSD, 1 to 3 to the host; both come back for the last launch.
    let program = program(&[
        (1000, &[], &[blocks(0, 4)]),
        (5000, &[], &[blocks(4, 1)]),
        (1000, &[blocks(0, 4)], &[]),
    ]);
    let machine = machine(8);
    let (time, totals) = played(&program, &machine, |notice, desk| {
        if let FutureNotice::Starting(Launch(1)) = notice {
            desk.evict_deep(&[Block(0)]);
            desk.evict(&[Block(1), Block(2), Block(3)]);
        }
    });
    // 500 us from the SSD beside 3 x 125 us at what the SSD leaves of the link.
    assert_eq!(time, 1400 + 5100 + 1500);
    assert_eq!(totals.bytes_out, 4 * BLOCK_BYTES);
    assert_eq!(totals.bytes_in, 4 * BLOCK_BYTES);
}

#[test]
fn what_leaves_goes_both_ways_at_once_where_that_is_asked_for() {
    // Five blocks leave: over the link in 500 us, or one to the SSD beside four to the host.
    let program = program(&[
        (1000, &[], &[blocks(0, 5)]),
        (5000, &[], &[blocks(5, 1)]),
        (1000, &[blocks(0, 1)], &[]),
        (1000, &[blocks(1, 1)], &[]),
    ]);
    // The block that came from the SSD is the first that left.
    for (asked, first) in [(true, 500), (false, 100)] {
        let (time, totals) = played(&program, &machine(8), |notice, desk| match notice {
            FutureNotice::Begin if asked => desk.use_both_tiers(),
            FutureNotice::Starting(Launch(1)) => {
                let all: Vec<Block> = (0..5).map(Block).collect();
                desk.evict(&all);
            }
            _ => {}
        });
        assert_eq!(time, 1500 + 5100 + 1000 + first + 1000 + 100, "{asked}");
        assert_eq!(totals.bytes_out, 5 * BLOCK_BYTES);
    }
}

#[test]
fn a_queued_prefetch_is_no_fault_and_the_launch_runs_while_it_comes() {
    let program = program(&[
        (1000, &[], &[blocks(0, 2)]),
        (1000, &[], &[blocks(4, 1)]),
        (1000, &[blocks(0, 2)], &[]),
    ]);
    let (time, totals) = played(&program, &machine(8), |notice, desk| match notice {
        FutureNotice::Starting(Launch(1)) => {
            desk.evict(&[Block(0), Block(1)]);
        }
        FutureNotice::Starting(Launch(2)) => {
            desk.prefetch(&[Block(0), Block(1)], Room::Wait);
        }
        _ => {}
    });
    assert_eq!(time, 1200 + 1100 + 1000);
    assert_eq!(totals.bytes_in, 2 * BLOCK_BYTES);
}

#[test]
fn a_prefetch_that_waits_for_room_takes_it_when_its_launch_runs() {
    let program = program(&[
        (1000, &[], &[blocks(0, 2)]),
        (1000, &[], &[blocks(2, 2)]),
        (1000, &[blocks(0, 1)], &[]),
    ]);
    let (time, totals) = played(&program, &machine(2), |notice, desk| {
        if let FutureNotice::Starting(Launch(2)) = notice {
            desk.prefetch(&[Block(0)], Room::Wait);
        }
    });
    assert_eq!(time, 1200 + 1200 + 1000);
    assert_eq!(totals.bytes_in, BLOCK_BYTES);
}

#[test]
fn what_no_launch_has_written_leaves_without_a_transfer_where_births_are_known() {
    let program = program(&[(1000, &[], &[blocks(8, 1)]), (1000, &[], &[blocks(9, 1)])]);
    for (known, out) in [(true, 0), (false, BLOCK_BYTES)] {
        let (_, totals) = played(&program, &machine(2), |notice, desk| match notice {
            FutureNotice::Begin if known => desk.drop_unwritten(),
            FutureNotice::Starting(Launch(0)) => {
                let whole = Piece {
                    block: Block(0),
                    leaves: Leaves::ALL,
                };
                desk.populate(&[whole], Room::Take);
            }
            _ => {}
        });
        assert_eq!(totals.bytes_out, out);
    }
}

#[test]
fn what_the_running_launch_loses_comes_back_before_its_end_where_that_is_asked_for() {
    // Block 1 is the oldest when block 0 comes back, and both are needed.
    let program = program(&[
        (1000, &[], &[blocks(0, 2)]),
        (1000, &[], &[blocks(2, 1)]),
        (1000, &[blocks(0, 2)], &[]),
    ]);
    for (asked, brought) in [(true, 2), (false, 1)] {
        let (_, totals) = played(&program, &machine(2), |notice, desk| {
            if asked && matches!(notice, FutureNotice::Begin) {
                desk.bring_back();
            }
        });
        assert_eq!(totals.bytes_in, brought * BLOCK_BYTES);
    }
}

#[test]
fn a_block_that_comes_leaves_its_place_on_a_full_host_to_the_next_that_goes() {
    // Blocks 2 and 3 make room for 0 and 1, which fill the host: the first goes to the SSD.
    let program = program(&[
        (1000, &[], &[blocks(0, 2)]),
        (1000, &[], &[blocks(2, 2)]),
        (10, &[blocks(0, 2)], &[]),
    ]);
    let machine = Machine {
        host_bytes: Some(2 * BLOCK_BYTES),
        ..machine(2)
    };
    let (time, totals) = played(&program, &machine, nothing);
    assert_eq!(time, 1200 + 1200 + 500 + 100 + 100);
    assert_eq!(totals.bytes_out, 4 * BLOCK_BYTES);
}

#[test]
fn parts_of_a_block_are_queued_one_by_one() {
    // Two parts of block 0 are asked for at once and come; a third is queued behind what has
    // to wait for room, which the launch that needs the second does not wait for.
    let second = Region {
        address: BASE + BLOCK_BYTES / 8,
        bytes: BLOCK_BYTES / 8,
    };
    let program = program(&[
        (1000, &[], &[blocks(8, 2)]),
        (1000, &[], &[]),
        (10, &[], &[second]),
    ]);
    let part = |block, leaves| Piece {
        block: Block(block),
        leaves: Leaves(leaves),
    };
    let (time, totals) = played(&program, &machine(2), |notice, desk| match notice {
        FutureNotice::Starting(Launch(1)) => {
            desk.populate(&[part(0, 0xf), part(0, 0xf0)], Room::Take);
        }
        FutureNotice::Starting(Launch(2)) => {
            assert_eq!(desk.resident(Block(0)), Leaves(0xff));
            desk.populate(&[part(1, 0xf), part(0, 0xf00)], Room::Take);
        }
        _ => {}
    });
    assert_eq!(time, 1200 + 1000 + 10);
    // Only the first launch's two blocks.
    assert_eq!(totals.faults, 64);
}

#[test]
fn dropped_content_gives_its_frame_up_at_once_though_others_wait_to_leave() {
    let program = program(&[(1000, &[], &[blocks(0, 4)]), (10, &[], &[blocks(4, 1)])]);
    let (time, totals) = played(&program, &machine(4), |notice, desk| {
        if let FutureNotice::Starting(Launch(1)) = notice {
            desk.evict(&[Block(0), Block(2)]);
            let whole = |block| Piece {
                block,
                leaves: Leaves::ALL,
            };
            desk.discard(&[whole(Block(1))]);
            desk.evict(&[Block(1)]);
            desk.populate(&[whole(Block(4))], Room::Wait);
        }
    });
    assert_eq!((time, totals.stall.0), (1400 + 10, 400_000));
}

#[test]
fn content_that_is_dropped_on_the_ssd_makes_no_room_on_the_host() {
    let program = program(&[
        (1000, &[], &[blocks(0, 4)]),
        (10_000, &[], &[blocks(4, 1)]),
        (10_000, &[], &[blocks(5, 1)]),
        (1000, &[blocks(2, 1)], &[]),
    ]);
    let machine = Machine {
        host_bytes: Some(BLOCK_BYTES),
        ..machine(8)
    };
    // The first block fills the host, the second goes to the SSD and is dropped there: for the
    // third the host is as full as before.
    let (time, _) = played(&program, &machine, |notice, desk| match notice {
        FutureNotice::Starting(Launch(1)) => {
            desk.evict(&[Block(0), Block(1)]);
        }
        FutureNotice::Starting(Launch(2)) => {
            desk.discard(&[Piece {
                block: Block(1),
                leaves: Leaves::ALL,
            }]);
            desk.evict(&[Block(2)]);
        }
        _ => {}
    });
    assert_eq!(time, 1400 + 10_100 + 10_100 + 1000 + 500);
}
