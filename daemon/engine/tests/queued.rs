//! What is learned of launches holds for those that were queued before it was learned.

use oversub_engine::{
    BLOCK_BYTES, BlockId, Bytes, Cause, Command, Config, Direction, Engine, Event, FunctionId,
    Launch, Micros, Operation, PolicyKind, Range, Seq, StreamId,
};

const ADDRESS: u64 = 0x7000_0000_0000;
/// More than half of the device, so that a launch is not taken to use all of it at first.
const BLOCKS: u64 = 24;

fn block(number: u64) -> Range {
    Range {
        address: ADDRESS + number * BLOCK_BYTES,
        bytes: BLOCK_BYTES,
    }
}

fn moved(number: u64, direction: Direction, cause: Cause) -> Event<'static> {
    let range = block(number);
    Event::Migration {
        range,
        direction,
        cause,
    }
}

fn config() -> Config {
    Config::new(PolicyKind::Foresight, Bytes(32 * BLOCK_BYTES))
}

/// So many blocks are obtained, whose content is on the host.
fn obtain(engine: &mut Engine, blocks: u64) {
    obtain_at(engine, ADDRESS, blocks);
}

fn obtain_at(engine: &mut Engine, address: u64, blocks: u64) -> Range {
    let range = Range {
        address,
        bytes: blocks * BLOCK_BYTES,
    };
    let alloc = Event::Alloc {
        range,
        pool: false,
        prefetched: false,
        on_host: true,
    };
    engine.step(Micros(0), &alloc);
    range
}

/// So many blocks, and so many in another allocation: that one.
fn obtain_two(engine: &mut Engine, blocks: u64, others: u64) -> Range {
    obtain(engine, blocks);
    obtain_at(engine, 2 * ADDRESS, others)
}

fn launch(engine: &mut Engine, seq: u64, function: u32, words: &[u64]) {
    launch_of(engine, seq, function, words, 1 << 20);
}

fn launch_of(engine: &mut Engine, seq: u64, function: u32, words: &[u64], blocks: u32) {
    let launch = Event::Launch(Launch {
        function: FunctionId(function),
        grid: [blocks, 1, 1],
        block: [1024, 1, 1],
        stream: StreamId(0),
        seq: Seq(seq),
        words,
    });
    engine.step(Micros(10), &launch);
}

/// The device faults on so many parts of a block.
fn fault(engine: &mut Engine, now: u64, number: u64, faults: u32) {
    let fault = Event::Fault {
        address: block(number).address,
        faults,
        by_host: false,
    };
    engine.step(Micros(now), &fault);
}

/// Which launches use the first and the last block of a range next.
fn next_uses(engine: &Engine, range: Range) -> [Option<u64>; 2] {
    [range.address, range.end() - 1].map(|address| {
        let why = engine.why(BlockId::containing(address));
        why.expect("it is tracked").next_use
    })
}

/// The oldest launch faults on the first so many blocks, and is over.
fn fault_and_end(engine: &mut Engine, seq: u64, used: u64) {
    for number in 0..used {
        let now = 100 + number * 100;
        fault(engine, now, number, 8);
        engine.step(Micros(now), &moved(number, Direction::In, Cause::Fault));
    }
    end(engine, 5_000, seq);
}

fn end(engine: &mut Engine, now: u64, seq: u64) {
    let (stream, seq) = (StreamId(0), Seq(seq));
    engine.step(Micros(now), &Event::Progress { stream, seq });
}

/// The engine, after it was told of three launches of one function before the first of them ran, of
/// which that one has faulted on so many blocks of its argument, and is over.
fn one_of_three_is_over(mut engine: Engine, used: u64) -> Engine {
    obtain(&mut engine, BLOCKS);
    for seq in 1..=3 {
        launch(&mut engine, seq, 1, &[ADDRESS]);
    }
    fault_and_end(&mut engine, 1, used);
    engine
}

/// What is fetched once the driver has evicted a block.
fn fetched(mut engine: Engine, evicted: u64) -> Vec<Command> {
    let out = moved(evicted, Direction::Out, Cause::Eviction);
    engine.step(Micros(5_100), &out);
    let mut commands = Vec::new();
    engine.decide(Micros(5_200), &mut commands);
    commands.retain(|command| command.operation == Operation::Prefetch);
    commands
}

/// The first of several layers was taken to use the weights of all, as where the others' begin was
/// not known. It used these blocks and is over, if it `ends`. Whether the launches that are queued
/// are known to use the first and the last block of the layer.
fn known_after_the_first_layer(used: &[u64], ends: bool) -> [bool; 2] {
    let mut engine = Engine::new(config()).expect("a good configuration");
    let weights = obtain_at(&mut engine, ADDRESS, 3 * BLOCKS);
    for seq in 0..6 {
        let layer = seq % 3;
        let part = weights.address + layer * BLOCKS * BLOCK_BYTES;
        // No two are alike, so that nothing but the queue foretells what is used.
        let blocks = (1 << 20) + seq as u32;
        launch_of(&mut engine, seq + 1, 1, &[part], blocks);
    }
    for (&number, now) in used.iter().zip((100..).step_by(100)) {
        fault(&mut engine, now, number, 8);
        engine.step(Micros(now), &moved(number, Direction::In, Cause::Fault));
    }
    if ends {
        end(&mut engine, 10_000, 1);
    }
    [0, BLOCKS - 1].map(|number| {
        let why = engine.why(BlockId::containing(block(number).address));
        why.expect("it is tracked").queued
    })
}

#[test]
fn launches_in_the_queue_use_their_parts_whole_though_the_first_was_taken_for_more() {
    let layer: Vec<u64> = (0..BLOCKS).collect();
    assert_eq!(known_after_the_first_layer(&layer, false), [false; 2]);
    assert_eq!(known_after_the_first_layer(&layer, true), [true; 2]);
    // One more, far behind: by chance, or another launch's.
    let stray = [&layer[..], &[2 * BLOCKS + 5]].concat();
    assert_eq!(known_after_the_first_layer(&stray, true), [true; 2]);
    // Rows, here and there.
    let rows: Vec<u64> = (0..BLOCKS).map(|row| row * 3).collect();
    assert_eq!(known_after_the_first_layer(&rows, true), [false; 2]);
}

#[test]
fn launches_in_the_queue_use_all_that_the_first_one_was_seen_to_use() {
    let engine = Engine::new(config()).unwrap();
    let commands = fetched(one_of_three_is_over(engine, BLOCKS), BLOCKS - 1);
    assert!(
        commands
            .iter()
            .any(|command| command.range == block(BLOCKS - 1)),
        "{commands:?}"
    );
}

#[test]
fn nothing_is_fetched_for_them_where_it_used_a_part() {
    let mut engine = one_of_three_is_over(Engine::new(config()).unwrap(), BLOCKS / 2);
    // It was there though nobody saw it come.
    let number = BLOCKS - 1;
    engine.step(Micros(5_050), &moved(number, Direction::In, Cause::Other));
    assert_eq!(fetched(engine, number), []);
}

/// The engine, after the first of two launches of a function, which was given the allocation's
/// beginning, has faulted on so many blocks of it. Another was given pointers to the fifth block and
/// to the seventeenth, so that they are taken to use no more than four and two. Others come between
/// and after them, so that it is known which one runs, and no cycle tells when anything is used
/// again. The second one was given a pointer to block `second`.
fn first_of_two_is_over(mut engine: Engine, used: u64, second: u64) -> Engine {
    obtain(&mut engine, 24);
    launch(&mut engine, 1, 2, &[block(4).address, block(16).address]);
    launch(&mut engine, 2, 1, &[ADDRESS]);
    for seq in 3..50 {
        match seq {
            25 => launch(&mut engine, seq, 1, &[block(second).address]),
            _ => launch(&mut engine, seq, seq as u32, &[]),
        }
    }
    end(&mut engine, 50, 1);
    fault_and_end(&mut engine, 2, used);
    engine
}

#[test]
fn launches_in_the_queue_use_what_the_first_one_used_beyond_what_was_known() {
    for (used, count) in [(8, 1), (4, 0)] {
        let engine = first_of_two_is_over(Engine::new(config()).unwrap(), used, 0);
        let mut commands = fetched(engine, 5);
        commands.retain(|command| command.range == block(5));
        assert_eq!(commands.len(), count, "{used} blocks used: {commands:?}");
    }
}

#[test]
fn launches_in_the_queue_go_as_far_as_the_first_one_wherever_they_point() {
    for (used, fetches) in [(8, true), (4, false)] {
        let engine = first_of_two_is_over(Engine::new(config()).unwrap(), used, 14);
        // Launch 1 had brought it.
        let commands = fetched(engine, 17);
        let found = commands.iter().any(|command| command.range == block(17));
        assert_eq!(found, fetches, "{used} blocks used: {commands:?}");
    }
}

#[test]
fn what_launches_in_the_queue_use_is_not_over_before_they_come_to_it() {
    const MOST: u64 = 600;
    const REST: u64 = 100;
    let capacity = Bytes(1_000 * BLOCK_BYTES);
    let mut engine = Engine::new(Config::new(PolicyKind::Foresight, capacity)).unwrap();
    let other = obtain_two(&mut engine, MOST, REST);
    // More than half of the device, and a part of it that is known to be used.
    for seq in 1..=3 {
        launch(&mut engine, seq, 1, &[ADDRESS, other.address]);
    }
    fault_and_end(&mut engine, 1, MOST);
    // The second one has come to the middle of both.
    fault(&mut engine, 80_000, MOST / 2, 1);
    assert_eq!(next_uses(&engine, other), [Some(3), Some(2)]);
}

#[test]
fn what_launches_in_the_queue_use_beyond_a_pointer_they_use_when_they_come_to_it() {
    const MOST: u64 = 600;
    const REST: u64 = 100;
    let capacity = Bytes(1_400 * BLOCK_BYTES);
    // Taken for small, a launch was not followed on its way.
    for cut in [MOST / 2, REST / 5] {
        let mut engine = Engine::new(Config::new(PolicyKind::Foresight, capacity)).unwrap();
        let other = obtain_two(&mut engine, MOST, REST);
        // Its pointer cuts the allocation in two for the others.
        launch(&mut engine, 1, 2, &[block(cut).address]);
        for seq in 2..50 {
            match seq {
                2 | 25 | 30 => launch(&mut engine, seq, 1, &[ADDRESS, other.address]),
                _ => launch(&mut engine, seq, seq as u32, &[]),
            }
        }
        end(&mut engine, 50, 1);
        fault_and_end(&mut engine, 2, MOST);
        end(&mut engine, 70_000, 24);
        // It has come to the middle of both.
        fault(&mut engine, 80_000, MOST / 2, 1);
        assert_eq!(next_uses(&engine, other), [Some(30), Some(25)], "{cut}");
    }
}

/// A function that is given one tile of two blocks after another has gone through eight of them
/// twice, and the device faulted on the second one of a turn before the daemon was told that it had
/// passed the first; `seen` if it had looked. The blocks that the next launch, of the first tile, is
/// taken to use.
fn used_after_a_fault_of_the_next_launch(seen: bool) -> Vec<u64> {
    const TILES: u64 = 8;
    let mut engine = Engine::new(config()).expect("a good configuration");
    obtain(&mut engine, 2 * TILES);
    let first = |seq: u64| (seq - 1) * 3 % TILES * 2;
    for seq in 1..=2 * TILES {
        launch_of(&mut engine, seq, 1, &[block(first(seq)).address], 1);
    }
    let reached = Event::Reached {
        stream: StreamId(0),
        seq: Seq(TILES + 1),
    };
    for seq in 1..=2 * TILES {
        let now = seq * 1_000;
        if seq == TILES + 2 && seen {
            engine.step(Micros(now), &reached);
        }
        for number in first(seq)..first(seq) + 2 {
            fault(&mut engine, now, number, 32);
            engine.step(Micros(now), &moved(number, Direction::In, Cause::Fault));
        }
        // Of the first one of the second turn nothing is told before it is passed by another.
        if seq != TILES + 1 {
            end(&mut engine, now + 900, seq);
        }
        for number in first(seq)..first(seq) + 2 {
            let out = moved(number, Direction::Out, Cause::Eviction);
            engine.step(Micros(now + 950), &out);
        }
    }
    launch_of(&mut engine, 2 * TILES + 1, 1, &[ADDRESS], 1);
    let used = (0..2 * TILES).filter(|&number| {
        let why = engine.why(BlockId::containing(block(number).address));
        why.expect("it is tracked").queued
    });
    used.collect()
}

#[test]
fn what_the_next_launch_faults_on_is_no_word_on_the_one_that_the_device_has_passed() {
    assert_eq!(used_after_a_fault_of_the_next_launch(true), [0, 1]);
    // Where nobody looked it can only be the one's that is taken to run.
    assert_ne!(used_after_a_fault_of_the_next_launch(false), [0, 1]);
}

#[test]
fn marks_come_closer_where_any_of_several_launches_may_have_faulted() {
    let strides = |pointed: u64| {
        let mut engine = Engine::new(config()).expect("a good configuration");
        let other = obtain_two(&mut engine, BLOCKS, 2);
        for seq in 1..=1_000 {
            launch_of(&mut engine, seq, 1, &[other.address], 1);
            end(&mut engine, 10 + seq * 45, seq);
        }
        for seq in 1_001..=1_000 + pointed {
            launch_of(&mut engine, seq, 1, &[block(4).address], 1);
        }
        launch_of(&mut engine, 1_001 + pointed, 1, &[other.address], 1);
        engine.decide(Micros(45_010), &mut Vec::new());
        let before = engine.mark_stride();
        // No pointer leads there but that to the same allocation.
        fault(&mut engine, 45_020, 0, 8);
        (before, engine.mark_stride())
    };
    assert_eq!(strides(1), (11, 11), "it can only be that one");
    assert_eq!(strides(2), (11, 2));
}

#[test]
fn an_argument_behind_which_all_is_left_alone_ends_there_in_queued_launches() {
    let config = Config::new(PolicyKind::Foresight, Bytes(1024 * BLOCK_BYTES));
    let mut engine = Engine::new(config).expect("a valid configuration");
    obtain(&mut engine, 64);
    let words = [ADDRESS, ADDRESS + 60 * BLOCK_BYTES];
    for seq in 1..=3 {
        launch_of(&mut engine, seq, 0, &words, 1 << 20);
    }
    let range = |first: u64, last: u64| Range {
        address: block(first).address,
        bytes: (last + 1 - first) * BLOCK_BYTES,
    };
    assert_eq!(next_uses(&engine, range(0, 59)), [Some(1); 2]);
    fault_and_end(&mut engine, 1, 30);
    assert_eq!(next_uses(&engine, range(0, 29)), [Some(2); 2]);
    assert_eq!(next_uses(&engine, range(30, 59)), [None; 2]);
    launch_of(&mut engine, 4, 0, &words, 1 << 20);
    end(&mut engine, 6_000, 3);
    assert_eq!(next_uses(&engine, range(29, 30)), [Some(4), None]);
    // It goes on after all.
    fault(&mut engine, 7_000, 40, 8);
    engine.step(Micros(7_000), &moved(40, Direction::In, Cause::Fault));
    launch_of(&mut engine, 5, 0, &words, 1 << 20);
    end(&mut engine, 8_000, 4);
    assert_eq!(next_uses(&engine, range(30, 59)), [Some(5); 2]);
}

/// Whether the next launch, which is given a pointer to the sixth block, is taken to use the last one of
/// the allocation right behind the first, which has eight blocks, after one with a pointer to the fifth
/// used so many blocks of it, from `first` on. `passed`: another was given a pointer to that allocation.
fn goes_on_behind(first: u64, used: u64, passed: bool) -> bool {
    let mut engine = Engine::new(config()).expect("a good configuration");
    obtain(&mut engine, 8);
    let behind = obtain_at(&mut engine, block(8).address, 8);
    let mut seq = 0;
    let mut run = |engine: &mut Engine, function: u32, number: u64, used: &[u64]| {
        seq += 1;
        launch(engine, seq, function, &[block(number).address]);
        for &number in used {
            fault(engine, 100 * seq, number, 8);
            engine.step(
                Micros(100 * seq),
                &moved(number, Direction::In, Cause::Fault),
            );
        }
        end(engine, 100 * seq + 50, seq);
        seq
    };
    if passed {
        run(&mut engine, 1, 8, &[]);
    }
    let across: Vec<u64> = (4..8).chain(first..first + used).collect();
    run(&mut engine, 2, 4, &across);
    launch(&mut engine, 9, 3, &[block(5).address]);
    next_uses(&engine, behind)[1].is_some()
}

#[test]
fn what_is_used_across_the_bound_of_two_allocations_is_taken_for_one() {
    assert!(goes_on_behind(8, 6, false));
    assert!(!goes_on_behind(8, 3, false), "by chance, or another's");
    assert!(!goes_on_behind(8, 0, false));
    assert!(
        !goes_on_behind(8, 6, true),
        "a pointer to it ends what lies before"
    );
}

#[test]
fn an_allocation_somewhere_else_is_another() {
    let mut engine = Engine::new(config()).expect("a good configuration");
    obtain(&mut engine, 8);
    // One block lies between them.
    let apart = obtain_at(&mut engine, block(9).address, 8);
    launch(&mut engine, 1, 2, &[block(4).address]);
    for number in (4..8).chain(9..15) {
        fault(&mut engine, 100, number, 8);
    }
    end(&mut engine, 200, 1);
    launch(&mut engine, 2, 3, &[block(5).address]);
    assert_eq!(next_uses(&engine, apart), [None; 2]);
}
