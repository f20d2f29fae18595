//! The model's contracts: hand-computed times, and what holds whatever a policy does.

use proptest::prelude::*;

use super::blocks::{Frame, ListName};
use super::lane::{Transfer, Why};
use super::*;
use crate::class::{AnyPolicy, DriverNotice, FutureNotice, FuturePolicy};
use crate::machine;
use crate::trace::families::{Family, Shape};
use crate::trace::{LaunchSpec, Piece, ProgramBuilder, Random};
use crate::units::Rate;

const BASE: u64 = 1 << 32;

struct Act<F>(F);

impl<F: FnMut(FutureNotice<'_>, &mut Desk<'_>)> FuturePolicy for Act<F> {
    fn notice(&mut self, notice: FutureNotice<'_>, desk: &mut Desk<'_>) {
        (self.0)(notice, desk);
    }
}

/// 100 us for a block over the link, 45 us for a fault batch, 5 us for a call, one block
/// faulted on at a time.
fn machine(frames: u64) -> Machine {
    Machine {
        memory_bytes: frames * BLOCK_BYTES,
        link_in: Rate(BLOCK_BYTES * 10_000),
        link_out: Rate(BLOCK_BYTES * 10_000),
        fault_blocks: 1,
        ..machine::named(machine::DEFAULT).unwrap()
    }
}

/// `blocks` blocks, all updated by one launch an iteration, 100 us for each.
fn sweep(blocks: u64, iterations: u64) -> Program {
    sweep_at(100, blocks, iterations)
}

/// The same, so many microseconds for each block.
fn sweep_at(each_us: u64, blocks: u64, iterations: u64) -> Program {
    let mut builder = ProgramBuilder::new("sweep");
    let all = [Region {
        address: BASE,
        bytes: blocks * BLOCK_BYTES,
    }];
    builder.alloc(BASE, all[0].bytes).unwrap();
    for iteration in 0..iterations {
        builder.iteration(iteration).unwrap();
        let time = Nanos::from_micros(each_us * blocks);
        let spec = LaunchSpec::kernel("sweep", time, &all, &all);
        builder.launch(spec).unwrap();
    }
    builder.finish()
}

/// The iterations' times in microseconds, and all sums.
fn times(
    program: &Program,
    machine: &Machine,
    act: impl FnMut(FutureNotice<'_>, &mut Desk<'_>),
) -> (Vec<u64>, Totals) {
    let mut policy = AnyPolicy::Future(Box::new(Act(act)));
    let played = play(program, machine, &mut policy, true, None).unwrap();
    let marks = played.marks.iter().skip(1).chain([&played.end]);
    let times = played
        .marks
        .iter()
        .zip(marks)
        .map(|(start, end)| (end.0 - start.0).0 / 1_000);
    (times.collect(), played.end.1)
}

#[test]
fn the_cpu_faults_on_what_has_no_content_or_is_on_the_device() {
    let mut builder = ProgramBuilder::new("host");
    let region = |first, count| Region {
        address: BASE + first * BLOCK_BYTES,
        bytes: count * BLOCK_BYTES,
    };
    builder.alloc(BASE, 3 * BLOCK_BYTES).unwrap();
    builder.alloc(region(4, 1).address, BLOCK_BYTES).unwrap();
    builder.host(&[], &[region(0, 2)]).unwrap();
    builder.host(&[region(1, 1)], &[]).unwrap();
    builder.iteration(0).unwrap();
    let (reads, writes) = ([region(0, 1)], [region(4, 1)]);
    let spec = LaunchSpec::kernel("read", Nanos(1_000), &reads, &writes);
    builder.launch(spec).unwrap();
    builder.host(&[region(0, 1)], &[]).unwrap();
    builder.iteration(1).unwrap();
    builder.launch(spec).unwrap();
    let mut faulted = Vec::new();
    let mut by_program = Vec::new();
    times(&builder.finish(), &machine(8), |notice, desk| {
        let FutureNotice::Driver(notice) = notice else {
            return;
        };
        match notice {
            DriverNotice::HostFault(block) => faulted.push(block.0),
            DriverNotice::Alloc(region) => {
                let blocks = desk.blocks_of(region);
                by_program.extend(blocks.iter().map(|block| desk.is_by_program(*block)));
            }
            _ => {}
        }
    });
    assert_eq!(
        faulted,
        [0, 1, 0],
        "once each, and again when it comes back"
    );
    assert_eq!(by_program, [true, true, true, false]);
}

#[test]
fn what_fits_runs_at_full_speed_after_its_first_touch() {
    let (times, totals) = times(&sweep(3, 3), &machine(3), |_, _| {});
    assert_eq!(times, [3 * (100 + 45), 300, 300]);
    assert_eq!((totals.bytes_in, totals.bytes_out), (0, 0));
    assert_eq!((totals.faults, totals.batches), (96, 3));
}

#[test]
fn pages_without_content_do_not_wait_behind_transfers() {
    let mut builder = ProgramBuilder::new("births");
    let region = |address, blocks| Region {
        address,
        bytes: blocks * BLOCK_BYTES,
    };
    let (used, unused) = (region(BASE, 3), region(BASE + (1 << 30), 2));
    for region in [used, unused] {
        builder.alloc(region.address, region.bytes).unwrap();
    }
    for iteration in 0..2 {
        builder.iteration(iteration).unwrap();
        let all = [used];
        let spec = LaunchSpec::kernel("sweep", Nanos::from_micros(900), &all, &all);
        builder.launch(spec).unwrap();
    }
    let (mut left, mut ordered, mut arrived) = (0, Nanos(0), Vec::new());
    times(
        &builder.finish(),
        &machine(8),
        |notice, desk| match notice {
            FutureNotice::Finished(launch) if launch.0 == 0 => {
                desk.evict(&desk.blocks_of(used));
            }
            FutureNotice::Driver(DriverNotice::Evicted { .. }) => {
                left += 1;
                if left == 3 {
                    ordered = desk.now();
                    desk.prefetch(&desk.blocks_of(used), Room::Take);
                    let whole = |block| Piece {
                        block,
                        leaves: Leaves::ALL,
                    };
                    let pieces: Vec<Piece> =
                        desk.blocks_of(unused).into_iter().map(whole).collect();
                    desk.populate(&pieces, Room::Take);
                }
            }
            FutureNotice::Driver(DriverNotice::Arrived { block, .. }) if left == 3 => {
                arrived.push((block.0, (desk.now() - ordered).0 / 1000));
            }
            _ => {}
        },
    );
    // A call's time; what the second launch has begun to wait for takes the link.
    assert_eq!(arrived[..2], [(3, 5), (4, 5)]);
    assert_eq!(arrived[2..], [(1, 100), (2, 200)]);
}

#[test]
fn a_fault_without_a_free_frame_evicts_then_fetches() {
    let (times, totals) = times(&sweep(3, 3), &machine(2), |_, _| {});
    let first = 300 + 3 * 45 + 100;
    let each = 300 + 3 * (45 + 100 + 100);
    assert_eq!(times, [first, each, each]);
    assert_eq!(totals.bytes_in, 6 * BLOCK_BYTES);
    assert_eq!(totals.bytes_out, 7 * BLOCK_BYTES);
}

/// Leaves the third block on the host, from the first iteration on.
fn third_on_host(notice: FutureNotice<'_>, desk: &mut Desk<'_>) {
    if matches!(notice, FutureNotice::Starting(launch) if launch.0 == 0) {
        desk.use_on_host(&[Block(2)], true);
    }
}

#[test]
fn what_is_used_on_the_host_takes_no_fault_and_no_frame_but_the_link() {
    let machine = Machine {
        access_percent: 50,
        ..machine(2)
    };
    let (times, totals) = times(&sweep(3, 3), &machine, third_on_host);
    // Its 100 us of compute pass while its 200 us go over the link, both ways at once.
    let first = 2 * (100 + 45) + 200;
    assert_eq!(times, [first, 400, 400]);
    assert_eq!((totals.bytes_in, totals.bytes_out), (0, 0));
    // At first there is nothing to read.
    assert_eq!(totals.host_read, 2 * BLOCK_BYTES);
    assert_eq!(totals.host_written, 3 * BLOCK_BYTES);
    assert_eq!(totals.host_unindexed, 3 * BLOCK_BYTES);
    assert_eq!(
        (totals.faults, totals.stall),
        (64, Nanos::from_micros(90 + 300))
    );
}

#[test]
fn under_a_joint_cap_reads_and_writes_on_the_host_take_turns() {
    let mut machine = Machine {
        access_percent: 100,
        ..machine(2)
    };
    machine.link_total = Some(Rate(machine.link_in.0 * 3 / 4));
    let (times, _) = times(&sweep(3, 3), &machine, third_on_host);
    // At three quarters of the rate: 133.3 us each way.
    assert_eq!(times[1..], [200 + 266, 200 + 266]);
}

#[test]
fn what_moves_is_held_up_by_accesses_in_its_direction() {
    let program = sweep(4, 2);
    let (times, totals) = times(&program, &machine(3), |notice, desk| match notice {
        FutureNotice::Starting(launch) if launch.0 == 0 => {
            desk.use_on_host(&[Block(0)], true);
        }
        FutureNotice::Finished(launch) if launch.0 == 0 => {
            desk.evict(&[Block(3)]);
        }
        FutureNotice::Starting(launch) if launch.0 == 1 => {
            desk.prefetch(&[Block(3)], Room::Wait);
        }
        _ => {}
    });
    // The eviction stands still while the first block is written, 111 us; then the last block
    // comes back, and the launch has waited for it.
    assert_eq!(times[1], (5 + 111 + 100) + (5 + 100) + 100);
    assert_eq!(
        (totals.bytes_in, totals.bytes_out),
        (BLOCK_BYTES, BLOCK_BYTES)
    );
}

#[test]
fn memory_that_was_given_back_and_taken_again_migrates() {
    let mut builder = ProgramBuilder::new("again");
    let one = [Region {
        address: BASE,
        bytes: BLOCK_BYTES,
    }];
    for iteration in 0..2 {
        builder.alloc(BASE, BLOCK_BYTES).unwrap();
        builder.iteration(iteration).unwrap();
        let spec = LaunchSpec::kernel("one", Nanos::from_micros(100), &one, &one);
        builder.launch(spec).unwrap();
        builder.free(BASE).unwrap();
    }
    let program = builder.finish();
    let (_, totals) = times(&program, &machine(2), |notice, desk| {
        if matches!(notice, FutureNotice::Starting(launch) if launch.0 == 0) {
            desk.use_on_host(&[Block(0)], true);
        }
    });
    assert_eq!(totals.host_written, BLOCK_BYTES);
    assert_eq!(totals.faults, 32);
}

#[test]
fn a_launch_waits_for_what_is_under_way_instead_of_faulting() {
    let program = sweep(3, 2);
    let mut last = None;
    let (times, totals) = times(&program, &machine(3), |notice, desk| {
        let block = Block(2);
        match notice {
            FutureNotice::Finished(launch) if launch.0 == 0 => {
                desk.evict(&[block]);
            }
            FutureNotice::Starting(launch) if launch.0 == 1 => {
                last = Some(desk.prefetch(&[block], Room::Wait));
            }
            FutureNotice::Driver(DriverNotice::Done(ticket)) if Some(ticket) == last => {
                assert_eq!(desk.now(), Nanos::from_micros(435 + 210));
            }
            _ => {}
        }
    });
    // Out within 5 + 100 us, in within 5 + 100 more; needed after 200.
    assert_eq!(times, [435, 310]);
    assert_eq!(totals.faults, 96);
    assert_eq!(totals.stall, Nanos::from_micros(135 + 10));
    assert_eq!(totals.prefetch_late, BLOCK_BYTES);
    assert_eq!(totals.prefetch_useful, BLOCK_BYTES);
}

#[test]
fn a_prefetch_in_time_costs_no_launch_anything() {
    let (times, totals) = times(&sweep(4, 3), &machine(3), |notice, desk| {
        // Evict what was just used, fetch what is missing, in both directions at once.
        if let FutureNotice::Finished(_) = notice {
            desk.evict(&[Block(2)]);
            desk.prefetch(&[Block(3)], Room::Wait);
        }
        if let FutureNotice::Driver(DriverNotice::Evicted { block, .. }) = notice
            && block == Block(3)
        {
            desk.prefetch(&[Block(2)], Room::Wait);
        }
    });
    assert!(times[1] >= 400 && totals.bytes_in > 0, "{times:?}");
}

#[test]
fn dropped_content_costs_no_transfer_and_its_frame_is_taken_first() {
    let program = two_lives();
    let (_, totals) = times(&program, &machine(2), |notice, desk| {
        if let FutureNotice::Dead(pieces) = notice {
            desk.discard(pieces);
        }
    });
    assert_eq!((totals.bytes_in, totals.bytes_out), (0, 0));
    let (_, totals) = times(&program, &machine(2), |_, _| {});
    assert!(totals.bytes_out > 0);
}

/// Two blocks are written, die, and two others are written.
fn two_lives() -> Program {
    let mut builder = ProgramBuilder::new("two lives");
    builder.alloc(BASE, 4 * BLOCK_BYTES).unwrap();
    builder.iteration(0).unwrap();
    for part in 0..2 {
        let region = [Region {
            address: BASE + part * 2 * BLOCK_BYTES,
            bytes: 2 * BLOCK_BYTES,
        }];
        builder.use_(region[0].address, region[0].bytes).unwrap();
        let spec = LaunchSpec::kernel("fill", Nanos::from_micros(100), &[], &region);
        builder.launch(spec).unwrap();
        builder.unuse(region[0].address).unwrap();
    }
    builder.finish()
}

#[test]
fn reading_dropped_content_ends_the_run() {
    let program = sweep(3, 2);
    let mut policy = AnyPolicy::Future(Box::new(Act(
        |notice: FutureNotice<'_>, desk: &mut Desk<'_>| {
            if let FutureNotice::Finished(_) = notice {
                desk.discard(&[Piece {
                    block: Block(1),
                    leaves: Leaves::ALL,
                }]);
            }
        },
    )));
    let stopped = play(&program, &machine(3), &mut policy, true, None).unwrap_err();
    assert!(matches!(stopped, Stopped::Loss(loss) if loss.address == BASE + BLOCK_BYTES));
}

#[test]
fn content_that_is_overwritten_may_be_dropped_only_where_lifetimes_are_known() {
    let mut builder = ProgramBuilder::new("overwrite");
    let all = [Region {
        address: BASE,
        bytes: BLOCK_BYTES,
    }];
    builder.alloc(BASE, BLOCK_BYTES).unwrap();
    builder.iteration(0).unwrap();
    for _ in 0..2 {
        let spec = LaunchSpec::kernel("fill", Nanos::from_micros(100), &[], &all);
        builder.launch(spec).unwrap();
    }
    let program = builder.finish();
    for (lifetimes, survives) in [(true, true), (false, false)] {
        let drop_it = |notice: FutureNotice<'_>, desk: &mut Desk<'_>| {
            if let FutureNotice::Finished(_) = notice {
                desk.discard(&[Piece {
                    block: Block(0),
                    leaves: Leaves::ALL,
                }]);
            }
        };
        let mut policy = AnyPolicy::Future(Box::new(Act(drop_it)));
        let played = play(&program, &machine(1), &mut policy, lifetimes, None);
        assert_eq!(played.is_ok(), survives);
    }
}

#[test]
fn a_prefetch_that_waits_for_room_waits_and_one_that_takes_it_evicts() {
    for (room, came) in [(Room::Wait, false), (Room::Take, true)] {
        let mut arrived = false;
        times(
            &sweep_at(1_000, 3, 2),
            &machine(2),
            |notice, desk| match notice {
                FutureNotice::Driver(DriverNotice::Evicted {
                    block: Block(0), ..
                }) => {
                    desk.prefetch(&[Block(0)], room);
                }
                FutureNotice::Driver(DriverNotice::Arrived {
                    block: Block(0),
                    by: crate::class::Arrival::Prefetch,
                    ..
                }) => arrived = true,
                _ => {}
            },
        );
        assert_eq!(arrived, came, "{room:?}");
    }
}

#[test]
fn both_directions_together_stay_under_a_joint_cap() {
    let mut inward = Lane::new(Rate(12));
    let mut outward = Lane::new(Rate(12));
    let total = Rate(20);
    let one = Transfer {
        block: Block(0),
        leaves: Leaves::ALL,
        why: Why::Room,
    };
    let now = Nanos(1_000_000);
    let time = |rate: u64| Rate(rate).time(Leaves::ALL.bytes());
    let rate = inward.share(&outward, Some(total)).unwrap();
    inward.begin(one, now, Nanos(0), rate);
    assert_eq!((rate, inward.end()), (Rate(12), now + time(12)));
    // Half of the way in the other direction begins: from then on each gets half.
    let half = now + Nanos(time(12).0 / 2);
    let rate = outward.share(&inward, Some(total)).unwrap();
    outward.begin(one, half, Nanos(0), rate);
    Lane::share_out(&mut inward, &mut outward, total, half);
    let ends = [&inward, &outward].map(|lane| lane.end().0 - half.0);
    let near = |one: u64, other: u64| one.abs_diff(other) <= 2;
    assert!(near(ends[0], time(10).0 / 2) && near(ends[1], time(10).0));
    // Alone again, it is as fast as it can, unless the device's accesses go the other way.
    let late = inward.end();
    inward.current = None;
    inward.accesses = Some((late, Rate(10)));
    Lane::share_out(&mut inward, &mut outward, total, late);
    assert!(near(outward.end().0 - late.0, time(10).0 / 2));
    inward.accesses = None;
    Lane::share_out(&mut inward, &mut outward, total, late);
    assert!(near(outward.end().0 - late.0, time(12).0 / 2));
}

#[test]
fn a_block_that_comes_and_one_that_leaves_share_a_joint_cap() {
    let mut builder = ProgramBuilder::new("both");
    let all = [Region {
        address: BASE,
        bytes: 3 * BLOCK_BYTES,
    }];
    builder.alloc(BASE, all[0].bytes).unwrap();
    let first = [Region {
        address: BASE,
        bytes: BLOCK_BYTES,
    }];
    for (iteration, used) in [&all, &first].into_iter().enumerate() {
        builder.iteration(iteration as u64).unwrap();
        let spec = LaunchSpec::kernel("use", Nanos::from_micros(2_000), used, used);
        builder.launch(spec).unwrap();
    }
    let program = builder.finish();
    // One alone takes 105 us, its call included.
    for (share, each_us) in [(200, 105), (150, 140), (100, 210)] {
        let mut machine = machine(4);
        machine.link_total = Some(Rate(machine.link_in.0 * share / 100));
        let (mut begun, mut took) = (Nanos(0), Vec::new());
        times(&program, &machine, |notice, desk| match notice {
            FutureNotice::Finished(launch) if launch.0 == 0 => {
                desk.evict(&[Block(2)]);
            }
            FutureNotice::Driver(DriverNotice::Evicted { block, .. }) => {
                if block == Block(2) {
                    desk.evict(&[Block(1)]);
                    desk.prefetch(&[block], Room::Wait);
                    begun = desk.now();
                } else {
                    took.push((desk.now() - begun).0 / 1_000);
                }
            }
            FutureNotice::Driver(DriverNotice::Arrived {
                block: Block(2), ..
            }) if begun > Nanos(0) => took.push((desk.now() - begun).0 / 1_000),
            _ => {}
        });
        assert_eq!(took, [each_us; 2], "at {share} percent of one direction");
    }
}

#[test]
fn what_the_slower_direction_cannot_use_of_a_joint_cap_is_the_other_ones() {
    let rates = |inward: u64, outward: u64| {
        let mut lanes = [inward, outward].map(|rate| Lane::new(Rate(rate)));
        let one = Transfer {
            block: Block(0),
            leaves: Leaves::ALL,
            why: Why::Room,
        };
        for (lane, rate) in lanes.iter_mut().zip([inward, outward]) {
            lane.begin(one, Nanos(0), Nanos(0), Rate(rate));
        }
        let [inward, outward] = &mut lanes;
        Lane::share_out(inward, outward, Rate(20), Nanos(0));
        lanes.map(|lane| lane.current.unwrap().rate().0)
    };
    assert_eq!(rates(12, 12), [10, 10]);
    assert_eq!(rates(8, 12), [8, 12]);
    assert_eq!(rates(18, 4), [16, 4]);
    assert_eq!(rates(4, 18), [4, 16]);
    assert_eq!(rates(8, 8), [8, 8]);
}

#[test]
fn a_transfer_waits_for_accesses_that_leave_less_than_half() {
    let mut inward = Lane::new(Rate(12));
    let outward = Lane::new(Rate(12));
    inward.accesses = Some((Nanos(1), Rate(11)));
    assert_eq!(outward.share(&inward, Some(Rate(20))), None);
    assert_eq!(outward.share(&inward, Some(Rate(22))), Some(Rate(11)));
    assert_eq!(outward.share(&inward, None), Some(Rate(12)));
}

#[test]
fn too_little_memory_for_anything_is_an_error() {
    let mut policy = AnyPolicy::Future(Box::new(Act(|_: FutureNotice<'_>, _: &mut Desk<'_>| {})));
    let stopped = play(&sweep(2, 1), &machine(0), &mut policy, true, None).unwrap_err();
    assert!(matches!(stopped, Stopped::Stuck { frames: 0, .. }));
}

/// What holds at every moment.
fn check(model: &Model<'_>) {
    let (mut frames, mut used, mut dropped) = (0, 0, 0);
    for index in 0..model.program.blocks() as u32 {
        let state = model.blocks.get(Block(index));
        frames += u32::from(state.frame != Frame::None);
        used += u32::from(state.list == ListName::Used);
        dropped += u32::from(state.list == ListName::Discarded);
        assert!(state.populated.covers(state.device), "{state:?}");
        assert!((state.device & state.moving).is_empty(), "{state:?}");
        assert!(state.list == ListName::None || state.frame == Frame::Held);
        assert!(
            state.frame != Frame::None || state.device.is_empty(),
            "{state:?}"
        );
        assert!(
            (state.alive & !state.populated & !state.lost).is_empty(),
            "{state:?}"
        );
    }
    if let Some(current) = model.lane_in.current {
        let state = model.blocks.get(current.transfer.block);
        let still = current.transfer.leaves & state.populated;
        assert!(state.moving.covers(still), "{state:?} of {current:?}");
    }
    assert_eq!(frames, model.blocks.taken());
    assert!(frames <= model.blocks.capacity());
    assert_eq!(used as usize, model.blocks.in_order().count());
    assert_eq!(dropped, model.blocks.discarded());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Random orders at random times, on programs of every family.
    #[test]
    fn no_order_breaks_frames_or_loses_content(
        seed in any::<u64>(),
        family in 0..Family::ALL.len(),
        ratio in 1.0..3.0f64,
    ) {
        let shape = Shape { seed, iterations: 4, noise_percent: 20, partial: true, ..Shape::default() };
        let program = Family::ALL[family].program(&shape).unwrap();
        let frames = ((program.footprint_bytes() / BLOCK_BYTES) as f64 / ratio).max(8.0) as u64;
        let mut random = Random::new(seed);
        let mut dead: Vec<Piece> = Vec::new();
        let mut fetched: Vec<Block> = Vec::new();
        let blocks = program.blocks() as u64;
        let act = |notice: FutureNotice<'_>, desk: &mut Desk<'_>| {
            check(desk.core());
            match notice {
                FutureNotice::Dead(pieces) => dead.extend_from_slice(pieces),
                // What died may be born again from here on.
                FutureNotice::Starting(_) => dead.clear(),
                _ => {}
            }
            let some: Vec<Block> = (0..random.below(4))
                .map(|_| Block(random.below(blocks) as u32))
                .collect();
            match random.below(12) {
                0 => { desk.prefetch(&some, Room::Take); fetched = some; }
                1 => { desk.prefetch(&some, Room::Wait); fetched = some; }
                2 => { desk.evict(&some); }
                3 => desk.discard(&dead),
                4 => desk.cancel_prefetches(),
                5 => desk.wake_at(Nanos(desk.now().0 + random.below(1_000_000))),
                // Some of them are on their way.
                6 | 7 => {
                    let pieces: Vec<Piece> = some
                        .iter()
                        .chain(&fetched)
                        .map(|block| Piece { block: *block, leaves: Leaves(random.next_u64() as u32) })
                        .collect();
                    desk.populate(&pieces, Room::Take);
                }
                _ => {}
            }
        };
        let mut policy = AnyPolicy::Future(Box::new(Act(act)));
        let played = play(&program, &machine(frames), &mut policy, true, None);
        let played = played.map_err(|stopped| TestCaseError::fail(stopped.to_string()))?;
        let (end, totals) = played.end;
        let ideal = program.ideal(0..program.launches().len() as u32);
        prop_assert!(end >= ideal);
        // A launch waits only where something is missing.
        prop_assert!(end.0 <= ideal.0 + totals.stall.0);
    }
}
