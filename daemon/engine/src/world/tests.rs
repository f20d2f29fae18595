use std::sync::Arc;

use super::block::Extent;
use super::*;
use crate::access::Access;
use crate::command::{Command, Operation, Queue};
use crate::decision::Reason;
use crate::{Bytes, PolicyKind};

/// A world of one launch at position 1 that uses block 1 of two, which a prefetch has brought
/// to the device and an eviction has taken away again while the launch ran.
pub(crate) fn evicted_meanwhile() -> (World, u32) {
    let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
    let mut world = World::new(&config);
    world.probes = true;
    let (mut stats, mut commands) = (Stats::default(), Vec::new());
    let range = Range {
        address: BLOCK_BYTES,
        bytes: 2 * BLOCK_BYTES,
    };
    world.alloc(range, false, Residency::Host, &mut stats);
    let set: Arc<[Extent]> = Arc::from([Extent { first: 1, count: 1 }]);
    let position = world.history.push((0, 0), std::iter::empty());
    let slots: Vec<u32> = world.slots(&set).collect();
    let slot = slots[0];
    world
        .blocks
        .get_mut(slot)
        .uses
        .push(position * TICKS + 500, 0, 64);
    let access = Access {
        set,
        loose: Arc::from([]),
        sweep: None,
    };
    let call = (Seq(1), StreamId(0));
    world
        .window
        .push((position, 0), call, access, Arc::from([]));
    world.running_end = position;
    for operation in [Operation::Prefetch, Operation::Evict] {
        world.order(
            Micros(0),
            operation,
            slot,
            Reason::Needed,
            &mut stats,
            &mut commands,
        );
        let queue = [Queue::In, Queue::Out][usize::from(operation == Operation::Evict)];
        let done = world.orders.complete(Micros(1), queue, 1);
        world.settle(done.expect("it was ordered"), false);
    }
    (world, slot)
}

fn judged(world: &World) -> (u64, u64) {
    let usefulness = &world.usefulness;
    let blocks = |bytes| bytes / BLOCK_BYTES;
    (
        blocks(usefulness.useful_bytes),
        blocks(usefulness.wasted_bytes),
    )
}

#[test]
fn a_prefetched_block_that_leaves_during_its_launch_is_judged_by_no_estimate() {
    let (mut world, _) = evicted_meanwhile();
    assert_eq!(judged(&world), (0, 0));
    world.progress.began(Micros(0), (0, None), TICKS, true);
    world.progress.faulted(Micros(1), TICKS - 1);
    assert_eq!(judged(&world), (0, 0));
}

#[test]
fn it_was_useful_if_its_launch_ends_without_a_fault_on_it() {
    let (mut world, slot) = evicted_meanwhile();
    world.used(slot, 1, Share::ALL);
    assert_eq!(judged(&world), (1, 0));
}

#[test]
fn it_was_wasted_if_it_faults_after_all() {
    let (mut world, slot) = evicted_meanwhile();
    world.fault(BlockId(1));
    world.used(slot, 1, Share::ALL);
    assert_eq!(judged(&world), (0, 1));
}

/// A world in which blocks come again after a launch each, with one that a prefetch has brought
/// and that the launch which runs uses half way, of which a fault has shown that it is at `ticks`.
fn gone_past(ticks: u64) -> (World, u32) {
    let (mut world, slot) = evicted_meanwhile();
    for _ in 0..4 {
        world.history.push((0, 0), std::iter::empty());
    }
    assert!(world.history.lag().is_some());
    let block = world.blocks.get_mut(slot);
    (block.unproven, block.undecided) = (true, 0);
    world.blocks.set(slot, Residency::Device);
    world.progress.began(Micros(0), (0, None), TICKS, true);
    world.progress.faulted(Micros(1), ticks);
    world.gone_past(slot);
    (world, slot)
}

#[test]
fn a_block_that_its_launch_has_gone_past_was_useful_before_that_ends() {
    let (world, _) = gone_past(400);
    assert_eq!(judged(&world), (0, 0), "it has not come to it");
    let (mut world, slot) = gone_past(TICKS - 1);
    assert_eq!(judged(&world), (1, 0));
    world.used(slot, 1, Share::ALL);
    assert_eq!(judged(&world), (1, 0), "it counts once");
}

#[test]
fn it_was_not_if_it_left_and_faults_after_all() {
    let (mut world, slot) = gone_past(TICKS - 1);
    world.fault(BlockId(1));
    assert_eq!(judged(&world), (1, 0), "it is there");
    world.blocks.set(slot, Residency::Host);
    world.fault(BlockId(1));
    assert_eq!(judged(&world), (0, 1));
}

#[test]
fn what_faults_unforeseen_is_expected_again_a_cycle_later() {
    let (mut world, _) = evicted_meanwhile();
    let other = world.slots(&[Extent { first: 2, count: 1 }]).next();
    let other = other.expect("the second block");
    for exec in [1, 2, 3, 0, 1, 2, 3, 0, 1] {
        world.history.push((exec, exec), std::iter::empty());
    }
    assert_eq!(world.next_use(other), NEVER);
    world.blocks.get_mut(other).surprised = 2 * TICKS;
    assert_eq!(world.history.lag(), Some(4));
    assert_eq!(world.next_use(other), 6 * TICKS);
}

#[test]
fn a_block_that_the_cycle_is_wrong_of_is_kept_for_its_own_next_turn() {
    let (mut world, _) = evicted_meanwhile();
    let other = world.slots(&[Extent { first: 2, count: 1 }]).next();
    let other = other.expect("the second block");
    world.window.pass(StreamId(0), Seq(1));
    assert!(world.window.pop().is_some());
    for position in 2..=1210 {
        world.history.push((position, position), std::iter::empty());
        if position % 100 == 0 {
            let moment = u64::from(position) * TICKS;
            world.blocks.will_use(other, moment, 0, Some(70));
        }
    }
    world.blocks.get_mut(other).last_used = 1200;
    assert_eq!(world.reuse(other, NEVER), NEVER, "it may be dead");
    world.blocks.get_mut(other).pool = true;
    assert_eq!(
        world.reuse(other, NEVER),
        NEVER,
        "there is no content to keep"
    );
    world.blocks.get_mut(other).content = true;
    assert_eq!(world.reuse(other, NEVER), 1300 * TICKS);
    world.blocks.get_mut(other).surprised = 1205 * TICKS;
    assert_eq!(world.reuse(other, NEVER), NEVER, "faults tell of it");
}

#[test]
fn what_comes_before_the_place_in_the_past_is_known_where_the_place_goes_back() {
    let (mut world, _) = evicted_meanwhile();
    let other = world.slots(&[Extent { first: 2, count: 1 }]).next();
    let other = other.expect("the second block");
    // Two launches of each turn use the block; now and then a turn is another.
    let turns = [100, 500, 100, 100, 500].map(|first| first..first + 40);
    for exec in turns.into_iter().flatten() {
        let position = world.history.push((exec, exec), std::iter::empty());
        if matches!(exec % 100, 1 | 30) {
            let (stale, lag) = (world.history.stale() * TICKS, world.history.lag());
            let moment = position * TICKS;
            world.blocks.will_use(other, moment, stale, lag);
        }
    }
    assert_eq!(
        world.history.lag(),
        Some(120),
        "it was 40 before the last turn"
    );
    world.window.pass(StreamId(0), Seq(1));
    assert!(world.window.pop().is_some());
    // The last turn was another one; the next one's second launch comes next.
    assert_eq!(world.next_use(other) / TICKS, world.history.head() + 2);
}

#[test]
fn a_launch_that_leaves_most_of_its_absent_blocks_alone_did_not_need_what_was_there() {
    let (mut world, slot) = evicted_meanwhile();
    world.used(slot, 1, Share::new(10, 30));
    let usefulness = &world.usefulness;
    assert_eq!(usefulness.useful_bytes, BLOCK_BYTES / 4);
    assert_eq!(usefulness.wasted_bytes, BLOCK_BYTES * 3 / 4);
}

#[test]
fn each_time_that_it_comes_and_leaves_is_judged() {
    let (mut world, slot) = evicted_meanwhile();
    let (mut stats, mut commands) = (Stats::default(), Vec::new());
    for operation in [Operation::Prefetch, Operation::Evict] {
        world.order(
            Micros(2),
            operation,
            slot,
            Reason::Needed,
            &mut stats,
            &mut commands,
        );
        let queue = [Queue::In, Queue::Out][usize::from(operation == Operation::Evict)];
        let done = world.orders.complete(Micros(3), queue, 2);
        world.settle(done.expect("it was ordered"), false);
    }
    world.used(slot, 1, Share::ALL);
    assert_eq!(judged(&world), (2, 0));
}

/// Orders the eviction of a block with content on the device, and has it done.
fn evict(world: &mut World, slot: u32, told: impl FnOnce(&mut World)) {
    let (mut stats, mut commands) = (Stats::default(), Vec::new());
    world.blocks.set(slot, Residency::Device);
    world.blocks.set_content(slot, true);
    world.order(
        Micros(2),
        Operation::Evict,
        slot,
        Reason::Needed,
        &mut stats,
        &mut commands,
    );
    told(world);
    let id = commands.last().expect("it is a command").id;
    let done = world.orders.complete(Micros(3), Queue::Out, id);
    world.settle(done.expect("it was ordered"), false);
}

fn leaves(world: &mut World) {
    let range = Range {
        address: BLOCK_BYTES,
        bytes: BLOCK_BYTES,
    };
    world.moved(range, Direction::Out, Cause::Call);
}

#[test]
fn an_eviction_that_nobody_saw_left_the_block_where_it_was() {
    let (mut world, slot) = evicted_meanwhile();
    evict(&mut world, slot, |_| {});
    let residency = world.blocks.get(slot).residency;
    assert_eq!(residency, Residency::Host, "nothing tells of evictions");

    evict(&mut world, slot, leaves);
    assert_eq!(world.blocks.get(slot).residency, Residency::Host);

    evict(&mut world, slot, |_| {});
    let block = world.blocks.get(slot);
    assert_eq!((block.residency, block.refused), (Residency::Device, true));

    leaves(&mut world);
    let residency = world.blocks.get(slot).residency;
    assert_eq!(residency, Residency::Host, "the news was late");
}

#[test]
fn what_a_launch_used_by_chance_is_kept_for_the_next_time_and_fetched_once_that_came_true() {
    let (mut world, _) = evicted_meanwhile();
    let other = world.slots(&[Extent { first: 2, count: 1 }]).next();
    let other = other.expect("the second block");
    for exec in [1, 2, 3, 0, 1, 2, 3, 0, 1] {
        world.history.push((exec, exec), std::iter::empty());
    }
    let by_chance = |world: &mut World, position| {
        let lag = world.history.lag();
        let block = world.blocks.get_mut(other);
        block.surprise(position, lag);
        block.by_chance = true;
    };
    by_chance(&mut world, 2);
    assert_eq!(world.next_use(other), NEVER);
    world.blocks.set(other, Residency::Device);
    assert_eq!(world.next_use(other), 6 * TICKS);
    by_chance(&mut world, 6);
    world.blocks.set(other, Residency::Host);
    assert_eq!(world.next_use(other), 10 * TICKS);
}

/// A cycle that is long enough to look several of it ahead.
const LONG: u64 = 64;

/// The second block faulted by surprise at these launches, of a cycle of which so many were
/// launched; the device comes to the last one.
fn surprised_at(faults: &[u64], launches: u64, cycle: u64) -> (World, u32) {
    let (mut world, _) = evicted_meanwhile();
    let other = world.slots(&[Extent { first: 2, count: 1 }]).next();
    let other = other.expect("the second block");
    world.window.pass(StreamId(0), Seq(1));
    world.window.pop();
    for seq in 2..=launches {
        queue_as(&mut world, (seq % cycle) as u32, seq);
    }
    for &position in faults {
        let block = world.blocks.get_mut(other);
        block.surprise(position, Some(cycle));
    }
    world.window.pass(StreamId(0), Seq(launches - 1));
    while world.window.pop().is_some() {}
    assert_eq!(world.floor(), launches);
    (world, other)
}

#[test]
fn what_faulted_in_one_cycle_after_the_other_is_expected_in_more_though_it_faults_no_more() {
    // In cycles. The device is a quarter of one past the place where it faults.
    let next = |faults: &[u64], cycles| {
        let faults: Vec<u64> = faults.iter().map(|at| at * LONG + 32).collect();
        let (world, other) = surprised_at(&faults, cycles * LONG + 48, LONG);
        let next = Some(world.next_use(other)).filter(|&next| next != NEVER);
        next.map(|next| (next / TICKS - 32) / LONG)
    };
    assert_eq!(next(&[5], 5), Some(6));
    assert_eq!(next(&[5], 6), None, "it came once");
    assert_eq!(next(&[4, 5], 6), Some(7), "it came again");
    assert_eq!(next(&[4, 5], 7), None);
    // It was there in the cycle between, since it was foretold.
    assert_eq!(next(&[4, 6], 7), Some(8));
    let stayed_away = [4, 7];
    assert_eq!(next(&stayed_away, 7), Some(8));
    assert_eq!(next(&stayed_away, 8), None, "nothing foretold it");
    let doubled = [4, 6, 9, 14, 23];
    assert_eq!(next(&doubled, 30), Some(31), "eight cycles");
    assert_eq!(next(&doubled, 31), None, "at most");
}

#[test]
fn what_was_fetched_since_it_faulted_by_chance_before_is_neither_useful_nor_wasted() {
    let (mut world, other) = surprised_at(&[4 * LONG + 32, 5 * LONG + 32], 6 * LONG + 48, LONG);
    world.usefulness = Usefulness::default();
    let come = |world: &mut World| {
        let (mut stats, mut commands) = (Stats::default(), Vec::new());
        let (operation, reason) = (Operation::Prefetch, Reason::Needed);
        world.order(
            Micros(2),
            operation,
            other,
            reason,
            &mut stats,
            &mut commands,
        );
        world.blocks.set(other, Residency::Device);
    };
    come(&mut world);
    assert_eq!(world.usefulness.issued_bytes, BLOCK_BYTES);
    world.gone_past(other);
    assert_eq!(world.usefulness.issued_bytes, 0, "as if it had never been");
    let asked = world.usefulness.asked_bytes();
    assert_eq!(asked, BLOCK_BYTES, "a counter never falls");
    evict(&mut world, other, |_| ());
    assert_eq!(judged(&world), (0, 0));

    come(&mut world);
    evict(&mut world, other, |_| ());
    assert_eq!(judged(&world), (0, 1), "it left before its time");
}

#[test]
fn in_a_short_cycle_it_is_expected_in_the_next_one_alone() {
    let next = |launches| {
        let (world, other) = surprised_at(&[18, 22, 26, 30], launches, 4);
        world.next_use(other)
    };
    assert_eq!(next(33), 34 * TICKS);
    assert_eq!(next(36), NEVER);
}

#[test]
fn it_is_not_where_the_cycle_was_another_in_between() {
    let (mut world, other) = surprised_at(&[288, 352], 384, LONG);
    assert_eq!(world.next_use(other), 416 * TICKS);
    for seq in 385..=448 {
        queue_as(&mut world, 100 + seq as u32, seq);
    }
    for seq in 449..=470 {
        queue_as(&mut world, (seq % LONG) as u32, seq);
    }
    world.window.pass(StreamId(0), Seq(448));
    while world.window.pop().is_some() {}
    let lag = world.history.lag().expect("a cycle");
    assert!(world.history.held() < 2 * lag);
    world.blocks.get_mut(other).surprised = (world.floor() - lag - 1) * TICKS;
    assert_eq!(world.next_use(other), NEVER);
}

#[test]
fn what_is_used_by_chance_in_most_cycles_is_kept_though_nobody_sees_it_used() {
    let (mut world, _) = evicted_meanwhile();
    let other = world.slots(&[Extent { first: 2, count: 1 }]).next();
    let other = other.expect("the second block");
    for exec in [1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1] {
        world.history.push((exec, exec), std::iter::empty());
    }
    let kind = world.blocks.chances.kind(7, 2, 10);
    let block = world.blocks.get_mut(other);
    (block.by_chance, block.kind) = (true, kind);
    block.surprise(2, Some(4));
    world.blocks.set(other, Residency::Device);
    // The device is at launch 8: since launch 6 its use is a guess.
    world.window.pass(StreamId(0), Seq(1));
    world.window.pop();
    for position in 2..=8 {
        let nothing = Access {
            set: Arc::from([]),
            loose: Arc::from([]),
            sweep: None,
        };
        let call = (Seq(position), StreamId(0));
        world
            .window
            .push((position, 0), call, nothing, Arc::from([]));
    }
    world.window.pass(StreamId(0), Seq(7));
    while world.window.pop().is_some() {}
    assert_eq!(world.floor(), 8);
    assert_eq!(world.next_use(other), NEVER, "nothing is known of its kind");
    for _ in 0..100 {
        world.blocks.chances.left(kind);
        world.blocks.chances.missed(kind, 1);
    }
    assert_eq!(world.next_use(other), 10 * TICKS);
    world.blocks.set(other, Residency::Host);
    assert_eq!(world.next_use(other), NEVER, "its next fault will tell");
}

#[test]
fn what_was_refused_is_asked_again_later_and_later() {
    let (mut world, slot) = evicted_meanwhile();
    let pass = |world: &mut World| {
        let floor = world.floor();
        world.window.pass(StreamId(0), Seq(floor));
        world.window.pop();
        let nothing = Access {
            set: Arc::from([]),
            loose: Arc::from([]),
            sweep: None,
        };
        let call = (Seq(floor + 1), StreamId(0));
        let next = (floor + 1, 0);
        world.window.push(next, call, nothing, Arc::from([]));
        world.forget_refusals();
    };
    let mut waits = Vec::new();
    for _ in 0..3 {
        world.refuse(slot);
        let mut launches = 0;
        while world.blocks.get(slot).refused {
            pass(&mut world);
            launches += 1;
        }
        waits.push(launches);
    }
    assert_eq!(waits, [1, 2, 4]);
}

#[test]
fn guessed_births_are_trusted_as_far_as_they_came_true_until_a_cycle_is_known() {
    let config = Config::new(PolicyKind::Foresight, Bytes(1024 * BLOCK_BYTES));
    let mut world = World::new(&config);
    let (mut stats, mut commands) = (Stats::default(), Vec::new());
    let range = Range {
        address: BLOCK_BYTES,
        bytes: 16 * BLOCK_BYTES,
    };
    world.alloc(range, false, Residency::Unpopulated, &mut stats);
    let start = world.births_trusted();
    let slots: Vec<u32> = (1..=16)
        .filter_map(|n| world.blocks.find(BlockId(n)))
        .collect();
    for &slot in &slots {
        let why = Reason::Born;
        let operation = Operation::Populate;
        world.order(Micros(0), operation, slot, why, &mut stats, &mut commands);
    }
    assert_eq!(world.births_trusted(), start - 16, "open guesses");
    for &slot in &slots {
        world.blocks.set(slot, Residency::Device);
    }
    // One is used, and one leaves unused.
    world.used(slots[0], 1, Share::ALL);
    let after_use = world.births_trusted();
    assert!(after_use > start - 16, "{after_use} of {start}");
    let (operation, why) = (Operation::Evict, Reason::Reserve);
    world.order(
        Micros(0),
        operation,
        slots[1],
        why,
        &mut stats,
        &mut commands,
    );
    assert_eq!(world.births_trusted(), after_use, "a wrong guess stays one");
    for exec in [0, 1, 0, 1] {
        world.history.push((exec, exec), std::iter::empty());
    }
    assert!(world.history.lag().is_some());
    assert_eq!(world.births_trusted(), u64::MAX);
}

#[test]
fn calls_wait_for_room_for_whole_ones_unless_a_call_is_a_block() {
    let mut config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
    config.inflight_bytes = Bytes(8 * BLOCK_BYTES);
    for (bytes_per_us, blocks, takes) in [
        (16_000.0, 4, true),
        (16_000.0, 5, false),
        // Six milliseconds of this link are three blocks.
        (1_050.0, 2, true),
    ] {
        config.link_bytes_per_us = bytes_per_us;
        let mut world = World::new(&config);
        let (mut stats, mut commands) = (Stats::default(), Vec::new());
        let range = Range {
            address: BLOCK_BYTES,
            bytes: blocks * BLOCK_BYTES,
        };
        world.alloc(range, false, Residency::Host, &mut stats);
        let set = [Extent {
            first: 1,
            count: blocks,
        }];
        let slots: Vec<u32> = world.slots(&set).collect();
        for slot in slots {
            let because = Reason::Needed;
            let operation = Operation::Prefetch;
            world.order(
                Micros(0),
                operation,
                slot,
                because,
                &mut stats,
                &mut commands,
            );
        }
        let limit = world.inflight_limit(Queue::In);
        assert_eq!(
            world.takes_calls(Queue::In, limit),
            takes,
            "{blocks} blocks"
        );
    }
}

#[test]
fn what_the_cpu_writes_first_is_on_the_host() {
    let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
    let mut world = World::new(&config);
    let range = Range {
        address: BLOCK_BYTES,
        bytes: 2 * BLOCK_BYTES,
    };
    world.alloc(range, false, Residency::Unpopulated, &mut Stats::default());
    world.touched_by_host(BlockId(1));
    let residency = |id| {
        let slot = world.blocks.find(BlockId(id)).expect("it was allocated");
        world.blocks.get(slot).residency
    };
    assert_eq!(residency(1), Residency::Host);
    assert_eq!(residency(2), Residency::Unpopulated);
}

#[test]
fn a_block_of_which_a_command_brings_the_rest_tells_nothing() {
    let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
    let mut world = World::new(&config);
    let range = Range {
        address: BLOCK_BYTES,
        bytes: 16 * BLOCK_BYTES,
    };
    world.alloc(range, false, Residency::Host, &mut Stats::default());
    let thin = |world: &World| {
        let slot = world.blocks.find(BlockId(1)).expect("it was allocated");
        world.is_thin(slot)
    };
    // Of each block so many bytes by a fault, and the rest by a command.
    let mut bring = |blocks: std::ops::Range<u64>, bytes: u64| {
        for id in blocks {
            let address = id * BLOCK_BYTES;
            world.moved(Range { address, bytes }, Direction::In, Cause::Fault);
            let (address, bytes) = (address + bytes, BLOCK_BYTES - bytes);
            if bytes > 0 {
                world.moved(Range { address, bytes }, Direction::In, Cause::Call);
            }
        }
        thin(&world)
    };
    assert!(bring(1..5, 1 << 16), "nothing else is known");
    assert!(!bring(5..10, BLOCK_BYTES));
    assert!(!bring(10..17, 1 << 16));
}

#[test]
fn little_use_of_one_part_of_a_segment_says_nothing_of_the_others() {
    let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
    let mut world = World::new(&config);
    let part = |first| Range {
        address: first * BLOCK_BYTES,
        bytes: 8 * BLOCK_BYTES,
    };
    let segment = Range {
        bytes: 16 * BLOCK_BYTES,
        ..part(1)
    };
    world.alloc(segment, true, Residency::Host, &mut Stats::default());
    for first in [1, 9] {
        world.begin_part(part(first));
    }
    for id in 1..6 {
        let (address, bytes) = (id * BLOCK_BYTES, 1 << 16);
        world.moved(Range { address, bytes }, Direction::In, Cause::Fault);
    }
    let thin = |id| {
        let slot = world.blocks.find(BlockId(id)).expect("it was allocated");
        world.is_thin(slot)
    };
    assert!(thin(8), "as the rest of its part");
    assert!(!thin(9), "another part");
}

/// A world with one pool segment of two blocks, handed out, and one launch that uses the first
/// one and is not over; the slot of that.
fn handed_out() -> (World, Stats, u32) {
    let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
    let mut world = World::new(&config);
    let mut stats = Stats::default();
    let range = Range {
        address: BLOCK_BYTES,
        bytes: 2 * BLOCK_BYTES,
    };
    world.alloc(range, true, Residency::Device, &mut stats);
    world.begin_part(range);
    let slot = world.blocks.find(BlockId(1)).expect("it is tracked");
    let set: Arc<[Extent]> = Arc::from([Extent { first: 1, count: 1 }]);
    let (loose, sweep) = (Arc::from([]), None);
    let position = world.history.push((0, 0), std::iter::empty());
    let access = Access { set, loose, sweep };
    let call = (Seq(1), StreamId(0));
    world
        .window
        .push((position, 0), call, access, Arc::from([]));
    world.used(slot, position, Share::ALL);
    (world, stats, slot)
}

/// Queues a launch that uses nothing.
fn queue(world: &mut World, seq: u64) {
    queue_as(world, 0, seq);
}

/// Queues a launch of this execution ID that uses nothing.
pub(crate) fn queue_as(world: &mut World, exec: u32, seq: u64) {
    let none: Arc<[Extent]> = Arc::from([]);
    let access = Access {
        set: none.clone(),
        loose: none,
        sweep: None,
    };
    let position = world.history.push((exec, 0), std::iter::empty());
    let call = (Seq(seq), StreamId(0));
    let arguments = Arc::from([]);
    world.window.push((position, exec), call, access, arguments);
}

#[test]
fn it_is_known_by_when_content_is_dead_that_was_given_back() {
    let (mut world, _, slot) = handed_out();
    let range = Range {
        address: BLOCK_BYTES,
        bytes: 2 * BLOCK_BYTES,
    };
    let last_of = |launch: u64| Some(launch * TICKS + TICKS - 1);
    let dies = |world: &World| world.dies(slot);
    assert_eq!(dies(&world), None, "it is handed out");
    // A program that is handed it for one launch after the other, far ahead of the device.
    for launch in 1..=4 {
        world.end_part(range.address, StreamId(0), Seq(launch + 1));
        queue(&mut world, launch + 1);
        world.begin_part(range);
    }
    // Of the next two deaths it is known.
    for expected in [last_of(1), last_of(2), None, None] {
        assert_eq!(dies(&world), expected);
        world.bury(range);
    }
    world.end_part(range.address, StreamId(0), Seq(6));
    assert_eq!(dies(&world), last_of(5));
}

#[test]
fn a_death_after_more_ends_than_are_kept_is_not_known() {
    for (parts, known) in [(64, true), (70, false)] {
        let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
        let mut world = World::new(&config);
        let part = |number: u64| Range {
            address: BLOCK_BYTES + number * 4096,
            bytes: 4096,
        };
        let segment = Range {
            bytes: BLOCK_BYTES,
            ..part(0)
        };
        world.alloc(segment, true, Residency::Device, &mut Stats::default());
        queue(&mut world, 1);
        for number in 0..parts {
            world.begin_part(part(number));
        }
        for number in 0..parts {
            world.end_part(part(number).address, StreamId(0), Seq(1));
        }
        let slot = world.blocks.find(BlockId(1)).expect("it is tracked");
        assert_eq!(world.dies(slot).is_some(), known, "{parts} parts");
    }
}

#[test]
fn a_block_is_ranked_anew_unless_an_earlier_launch_that_waits_uses_it() {
    let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
    let mut world = World::new(&config);
    let range = Range {
        address: BLOCK_BYTES,
        bytes: BLOCK_BYTES,
    };
    world.alloc(range, false, Residency::Device, &mut Stats::default());
    let blocks = &mut world.blocks;
    let slot = blocks.find(BlockId(1)).expect("it is tracked");
    let mut changes = |running: u64, position: u64| {
        while blocks.next_changed().is_some() {}
        blocks.set_running(running);
        blocks.will_use(slot, position * TICKS, 0, None);
        blocks.next_changed() == Some(slot)
    };
    assert!(changes(1, 3), "its first use");
    assert!(!changes(2, 5), "launch 3 comes first");
    assert!(
        changes(5, 7),
        "launch 5 runs by now: the next use is this one's"
    );
    assert!(changes(9, 11), "nothing that waits uses it");
}

#[test]
fn what_comes_while_a_launch_that_may_run_uses_it_is_awaited() {
    let awaited = |operation: Operation, use_at: u64, content: bool| {
        let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
        let mut world = World::new(&config);
        let (mut stats, mut commands) = (Stats::default(), Vec::new());
        let range = Range {
            address: BLOCK_BYTES,
            bytes: BLOCK_BYTES,
        };
        world.alloc(range, false, Residency::Host, &mut stats);
        let slot = world.blocks.find(BlockId(1)).expect("it is tracked");
        world.blocks.set_content(slot, content);
        world.blocks.will_use(slot, use_at * TICKS, 0, None);
        world.running_end = 4;
        let why = Reason::Needed;
        world.order(Micros(1), operation, slot, why, &mut stats, &mut commands);
        let Command { queue, id, .. } = commands[0];
        let done = world.orders.complete(Micros(2), queue, id);
        world.settle(done.expect("it was ordered"), false);
        world.awaited
    };
    assert_eq!(awaited(Operation::Prefetch, 4, true), 1);
    assert_eq!(awaited(Operation::Prefetch, 5, true), 0, "in time");
    assert_eq!(
        awaited(Operation::Prefetch, 4, false),
        0,
        "it holds nothing"
    );
    assert_eq!(
        awaited(Operation::Populate, 4, true),
        0,
        "nothing is brought"
    );
}
