use super::lessons::IN_A_ROW;
use super::*;
use crate::world::window::Window;
use crate::{BlockId, FunctionId, Profile, Seq, StreamId};

const ALLOCATION: u64 = 0x100 * BLOCK_BYTES;
/// Argument 0 of function 3, which points to it.
const ARGUMENT: Argument = Argument {
    function: 3,
    word: 0,
    shape: 7,
    address: ALLOCATION,
};

/// A plain allocation of 64 blocks, and nothing known of accesses.
fn one_allocation() -> (Memory, Accesses) {
    let mut memory = Memory::default();
    let range = Range {
        address: ALLOCATION,
        bytes: 64 * BLOCK_BYTES,
    };
    memory.insert(range, false, range.bytes);
    (memory, Accesses::new(1024, 100))
}

/// A launch of function 3.
fn launch(words: &[u64]) -> Launch<'_> {
    Launch {
        seq: Seq(1),
        stream: StreamId(0),
        function: FunctionId(3),
        grid: [1; 3],
        block: [1; 3],
        words,
    }
}

/// What function 3 uses that is given a pointer as its argument `word`.
fn pointer(accesses: &mut Accesses, memory: &mut Memory, word: usize, address: u64) -> Access {
    let words = &[[0, address], [address, 0]][1 - word][..];
    let launch = launch(words);
    let objects: Vec<_> = words.iter().map(|&word| memory.resolve(word)).collect();
    accesses.launch((5, false), &launch, &objects, memory, true)
}

fn blocks(access: &Access) -> Vec<(u64, u64)> {
    let from = |extent: &Extent| (extent.first - 0x100, extent.count);
    access.set.iter().map(from).collect()
}

#[test]
fn an_argument_that_goes_on_behind_a_pointer_into_its_allocation_does_so_in_every_launch() {
    let (mut memory, mut accesses) = one_allocation();
    let slice = |index: u64| ALLOCATION + index * 8 * BLOCK_BYTES;
    for index in 1..8 {
        pointer(&mut accesses, &mut memory, 1, slice(index));
    }
    let cut = pointer(&mut accesses, &mut memory, 0, ALLOCATION);
    assert_eq!(blocks(&cut), [(0, 8)]);

    let mut window = Window::new(10);
    window.push((1, 5), (Seq(1), StreamId(0)), cut, Arc::from([]));
    let fault = |accesses: &mut Accesses, memory: &Memory, block: u64| {
        let launch = window.front().expect("one is queued");
        let id = BlockId(0x100 + block);
        accesses.missed(launch, id, (&[ARGUMENT], true), memory);
    };
    fault(&mut accesses, &memory, 8);
    fault(&mut accesses, &memory, 9);
    // Twice as far as was seen before, then no further than the allocation's end.
    let further = pointer(&mut accesses, &mut memory, 0, ALLOCATION);
    assert_eq!(blocks(&further), [(0, 18)]);
    fault(&mut accesses, &memory, 40);
    fault(&mut accesses, &memory, 63);
    let whole = pointer(&mut accesses, &mut memory, 0, ALLOCATION);
    assert_eq!(blocks(&whole), [(0, 64)]);
}

#[test]
fn an_argument_that_goes_beyond_the_next_pointer_says_nothing_of_the_others() {
    let (mut memory, mut accesses) = (Memory::default(), Accesses::new(1024, 100));
    let parts = [ALLOCATION, 0x200 * BLOCK_BYTES].map(|address| Range {
        address,
        bytes: 64 * BLOCK_BYTES,
    });
    for part in parts {
        memory.insert(part, true, part.bytes);
        assert!(memory.begin_part(part));
    }
    // Both are passed in parts as well, so that each pointer means as much as up to the next.
    let words = parts.map(|part| part.address);
    let tiles = (1..8).map(|index| words.map(|word| word + index * 8 * BLOCK_BYTES));
    let launched = |accesses: &mut Accesses, memory: &mut Memory, exec, words: [u64; 2]| {
        let objects: Vec<_> = words.iter().map(|&word| memory.resolve(word)).collect();
        let launch = launch(&words);
        let access = accesses.launch((exec, false), &launch, &objects, memory, true);
        blocks(&access)
    };
    for (exec, words) in (10..).zip(tiles) {
        launched(&mut accesses, &mut memory, exec, words);
    }
    assert_eq!(
        launched(&mut accesses, &mut memory, 5, words),
        [(0, 16), (0x100, 16)]
    );

    let mut window = Window::new(10);
    let access = accesses.access(5, (&[], &[]), (None, false), &memory);
    window.push((1, 5), (Seq(1), StreamId(0)), access, Arc::from([]));
    let running = window.front().expect("one is queued");
    let faulted = Argument {
        word: 1,
        address: words[1],
        ..ARGUMENT
    };
    let id = BlockId(0x200 + 40);
    accesses.missed(running, id, (&[faulted], true), &memory);
    assert_eq!(
        launched(&mut accesses, &mut memory, 5, words),
        [(0, 16), (0x100, 64)]
    );
}

#[test]
fn tensors_of_one_shape_end_with_the_smallest_allocation_that_one_of_them_lies_in() {
    let (mut memory, mut accesses) = one_allocation();
    let small = Range {
        address: 0x200 * BLOCK_BYTES,
        bytes: 24 * BLOCK_BYTES,
    };
    memory.insert(small, false, small.bytes);
    // Up to another pointer.
    pointer(&mut accesses, &mut memory, 1, ALLOCATION + 40 * BLOCK_BYTES);
    let whole = [(0, 40)];
    let used = |accesses: &mut Accesses, memory: &mut Memory, address| {
        blocks(&pointer(accesses, memory, 0, address))
    };
    assert_eq!(used(&mut accesses, &mut memory, ALLOCATION), whole);
    used(&mut accesses, &mut memory, small.address);
    assert_eq!(used(&mut accesses, &mut memory, ALLOCATION), [(0, 24)]);
    let other = blocks(&pointer(&mut accesses, &mut memory, 1, ALLOCATION));
    assert_eq!(
        other,
        [(0, 24)],
        "another argument, of which one began 24 blocks before the end"
    );

    let mut window = Window::new(10);
    let access = accesses.access(5, (&[], &[]), (None, false), &memory);
    window.push((1, 5), (Seq(1), StreamId(0)), access, Arc::from([]));
    let running = window.front().expect("one is queued");
    let geometry = geometry(&launch(&[]));
    let argument = Argument {
        shape: shape(geometry, 0),
        ..ARGUMENT
    };
    accesses.missed(running, BlockId(0x100 + 24), (&[argument], false), &memory);
    assert_eq!(
        used(&mut accesses, &mut memory, ALLOCATION),
        whole,
        "not of one size"
    );
    used(&mut accesses, &mut memory, small.address);
    assert_eq!(
        used(&mut accesses, &mut memory, ALLOCATION),
        whole,
        "nor later"
    );

    let (mut memory, mut accesses) = one_allocation();
    let tiny = Range {
        bytes: 8 * BLOCK_BYTES,
        ..small
    };
    memory.insert(tiny, false, tiny.bytes);
    pointer(&mut accesses, &mut memory, 1, ALLOCATION + 40 * BLOCK_BYTES);
    used(&mut accesses, &mut memory, tiny.address);
    assert_eq!(
        used(&mut accesses, &mut memory, ALLOCATION),
        whole,
        "so little says nothing"
    );
}

#[test]
fn tiles_end_where_the_next_one_begins() {
    let (mut memory, mut accesses) = one_allocation();
    let tile = |index: u64| ALLOCATION + index * 8 * BLOCK_BYTES;
    for index in 0..8 {
        pointer(&mut accesses, &mut memory, 0, tile(index));
    }
    let first = pointer(&mut accesses, &mut memory, 0, ALLOCATION);
    let mut window = Window::new(10);
    window.push((1, 5), (Seq(1), StreamId(0)), first, Arc::from([]));
    let running = window.front().expect("one is queued");
    // Of another launch, whose turn nobody knew to have come.
    let id = BlockId(0x100 + 20);
    let argument = Argument {
        shape: shape(geometry(&launch(&[])), 0),
        ..ARGUMENT
    };
    assert_eq!(
        accesses.missed(running, id, (&[argument], false), &memory),
        None
    );
    let second = pointer(&mut accesses, &mut memory, 0, tile(1));
    assert_eq!(blocks(&second), [(8, 8), (20, 1)]);
}

#[test]
fn the_last_tile_goes_no_further_than_the_others_until_it_is_seen_to() {
    for pool in [true, false] {
        let mut memory = Memory::default();
        let range = Range {
            address: ALLOCATION,
            bytes: 128 * BLOCK_BYTES,
        };
        memory.insert(range, pool, range.bytes);
        assert_eq!(memory.begin_part(range), pool);
        let mut accesses = Accesses::new(1024, 100);
        // So many bytes for each thread that it goes on to what bounds it.
        accesses.wide.insert((3, 0), MOST_BYTES_PER_THREAD + 1);
        let tile = |index: u64| ALLOCATION + index * 16 * BLOCK_BYTES;
        let mut turn = |accesses: &mut Accesses| {
            let tiles = [0, 1, 2, 3].map(|index| pointer(accesses, &mut memory, 0, tile(index)));
            tiles.map(|tile| blocks(&tile))
        };
        let first = turn(&mut accesses);
        assert_eq!(first[3], [(48, 80)], "nothing is known to follow another");
        let tiles = [[(0, 16)], [(16, 16)], [(32, 16)], [(48, 16)]];
        assert_eq!(turn(&mut accesses), tiles);

        let argument = Argument {
            shape: shape(geometry(&launch(&[])), 0),
            address: tile(3),
            ..ARGUMENT
        };
        let access = pointer(&mut accesses, &mut memory, 0, tile(3));
        let mut window = Window::new(10);
        window.push((1, 5), (Seq(1), StreamId(0)), access, Arc::from([]));
        let running = window.front().expect("one is queued");
        for block in 64..80 {
            let id = BlockId(0x100 + block);
            accesses.missed(running, id, (&[argument], true), &memory);
        }
        let longer = pointer(&mut accesses, &mut memory, 0, tile(3));
        assert_eq!(blocks(&longer)[0].0, 48);
        assert!(blocks(&longer)[0].1 >= 32, "{longer:?}");
    }
}

#[test]
fn how_far_one_launch_goes_holds_for_all_of_its_shape_wherever_they_point() {
    let (mut memory, mut accesses) = one_allocation();
    let at = |block: u64| ALLOCATION + block * BLOCK_BYTES;
    // Tensors that lay there before begin where these go on.
    for block in [4, 36] {
        pointer(&mut accesses, &mut memory, 1, at(block));
    }
    let cut = pointer(&mut accesses, &mut memory, 0, at(0));
    let queued = pointer(&mut accesses, &mut memory, 0, at(32));
    assert_eq!(
        (blocks(&cut), blocks(&queued)),
        (vec![(0, 4)], vec![(32, 4)])
    );

    let argument = |address: u64| Argument {
        shape: shape(geometry(&launch(&[])), 0),
        address,
        ..ARGUMENT
    };
    let mut window = Window::new(10);
    window.push((1, 5), (Seq(1), StreamId(0)), cut, Arc::from([]));
    let running = window.front().expect("one is queued");
    let mut fault = |block: u64| {
        let id = BlockId(0x100 + block);
        accesses.missed(running, id, (&[argument(at(0))], true), &memory)
    };
    assert_eq!(fault(9), Some(argument(0).shape));
    assert_eq!(fault(5), None, "no further");
    let longer = accesses.with_missed(6, &queued, &[argument(at(32))], &memory);
    assert_eq!(longer.as_ref().map(blocks), Some(vec![(32, 10)]));
    let later = pointer(&mut accesses, &mut memory, 0, at(32));
    assert_eq!(
        later.set.last().map(|extent| extent.end()),
        Some(0x100 + 42)
    );
    // Not beyond the allocation, nor for other arguments.
    let last = pointer(&mut accesses, &mut memory, 0, at(60));
    assert_eq!(last.set.last().map(|extent| extent.end()), Some(0x100 + 64));
    let other = pointer(&mut accesses, &mut memory, 1, at(32));
    assert_eq!(
        other.set.last().map(|extent| extent.end()),
        Some(0x100 + 36)
    );
}

#[test]
fn how_far_one_launch_goes_beyond_the_next_pointer_holds_for_parts_of_pools_as_well() {
    let (mut memory, mut accesses) = (Memory::default(), Accesses::new(1024, 100));
    let range = |first: u64| Range {
        address: ALLOCATION + first * BLOCK_BYTES,
        bytes: 64 * BLOCK_BYTES,
    };
    let both = Range {
        bytes: 128 * BLOCK_BYTES,
        ..range(0)
    };
    memory.insert(both, true, both.bytes);
    assert!(memory.begin_part(range(0)) && memory.begin_part(range(64)));
    let at = |block: u64| ALLOCATION + block * BLOCK_BYTES;
    // The function is given slices of both.
    for block in [32, 96] {
        pointer(&mut accesses, &mut memory, 1, at(block));
    }
    let cut = pointer(&mut accesses, &mut memory, 0, at(0));
    let queued = pointer(&mut accesses, &mut memory, 0, at(64));
    assert_eq!(
        (blocks(&cut), blocks(&queued)),
        (vec![(0, 32)], vec![(64, 32)])
    );

    let argument = |address: u64| Argument {
        shape: shape(geometry(&launch(&[])), 0),
        address,
        ..ARGUMENT
    };
    let mut window = Window::new(10);
    // Another launch than those of `pointer`, so that what it learns for itself is its own.
    window.push((1, 9), (Seq(1), StreamId(0)), cut, Arc::from([]));
    let running = window.front().expect("one is queued");
    for block in 37..40 {
        let id = BlockId(0x100 + block);
        accesses.missed(running, id, (&[argument(at(0))], true), &memory);
        let longer = accesses.with_missed(6, &queued, &[argument(at(64))], &memory);
        assert!(longer.is_none(), "a few may be another launch's");
    }
    let id = BlockId(0x100 + 40);
    accesses.missed(running, id, (&[argument(at(0))], true), &memory);
    let longer = accesses.with_missed(6, &queued, &[argument(at(64))], &memory);
    assert_eq!(longer.as_ref().map(blocks), Some(vec![(64, 41)]));
    let later = pointer(&mut accesses, &mut memory, 0, at(64));
    assert_eq!(blocks(&later), [(64, 41)]);
    let last = pointer(&mut accesses, &mut memory, 0, at(120));
    assert_eq!(blocks(&last), [(120, 8)], "not beyond the part");
}

#[test]
fn a_queued_launch_that_is_followed_is_followed_through_what_it_uses_beyond_a_pointer() {
    let (mut memory, mut accesses) = one_allocation();
    pointer(&mut accesses, &mut memory, 1, ALLOCATION + 32 * BLOCK_BYTES);
    // Its 32 blocks are much of so small a device.
    accesses.set_capacity(100);
    let queued = pointer(&mut accesses, &mut memory, 0, ALLOCATION);
    let extent = |count| Extent {
        first: 0x100,
        count,
    };
    assert_eq!(queued.sweep.as_deref(), Some(&[extent(32)][..]));
    accesses.reaches.insert(ARGUMENT.shape, 48 * BLOCK_BYTES);
    let longer = accesses.with_missed(6, &queued, &[ARGUMENT], &memory);
    let longer = longer.expect("it uses more");
    assert_eq!(longer.sweep.as_deref(), Some(&[extent(48)][..]));
    let small = Access {
        sweep: None,
        ..queued
    };
    // It was taken for small.
    for (capacity, sweep) in [(100, Some(&[extent(48)][..])), (1_000, None)] {
        accesses.set_capacity(capacity);
        let longer = accesses.with_missed(6, &small, &[ARGUMENT], &memory);
        let longer = longer.expect("it uses more");
        assert_eq!(longer.sweep.as_deref(), sweep, "{capacity}");
    }
}

#[test]
fn a_function_that_used_a_part_once_uses_all_after_many_launches_in_a_row_that_did() {
    let (_, mut accesses) = one_allocation();
    let mut observe = |touched: u64| accesses.observe(3, 64, touched);
    assert!(!observe(20), "a part");
    for _ in 0..2 {
        for _ in 1..IN_A_ROW {
            assert!(!observe(64));
        }
        assert!(!observe(40), "a part again");
    }
    for _ in 1..IN_A_ROW {
        assert!(!observe(60));
    }
    assert!(observe(60));
    assert!(!observe(64), "it is known");
    assert!(!observe(20));
    assert!(!observe(64), "no more");
}

#[test]
fn what_queued_launches_use_is_all_once_their_function_is_seen_to_use_all() {
    let mut memory = Memory::default();
    let range = Range {
        address: ALLOCATION,
        bytes: 64 * BLOCK_BYTES,
    };
    memory.insert(range, false, range.bytes);
    // More than half of the device.
    let mut accesses = Accesses::new(100, 100);
    // A pointer behind it, so that it is bounded and not guessed from threads.
    memory.resolve(ALLOCATION + 64 * BLOCK_BYTES - 1);
    let queued = pointer(&mut accesses, &mut memory, 0, ALLOCATION);
    assert_eq!((blocks(&queued), queued.loose.len()), (vec![], 1));
    assert!(!accesses.observe(3, 10, 10), "too few to tell");
    assert!(!accesses.observe(3, 40, 30), "a part alone");
    assert!(accesses.observe(3, 40, 40));
    assert!(!accesses.observe(3, 40, 40), "it was known");
    let whole = accesses.whole(&queued, &[ARGUMENT]).expect("it uses more");
    assert_eq!((blocks(&whole), whole.loose.len()), (vec![(0, 64)], 0));
    assert_eq!(whole.sweep.as_deref(), Some(&whole.set[..]));
    let later = pointer(&mut accesses, &mut memory, 0, ALLOCATION);
    assert_eq!(blocks(&later), blocks(&whole), "as if it came later");
    assert!(accesses.whole(&later, &[ARGUMENT]).is_none());
}

#[test]
fn a_queued_launch_that_turns_out_to_use_all_goes_through_its_arguments_side_by_side() {
    let (mut memory, mut accesses) = one_allocation();
    memory.resolve(ALLOCATION + 64 * BLOCK_BYTES - 1);
    accesses.set_capacity(40);
    let second = ALLOCATION + 40 * BLOCK_BYTES;
    pointer(&mut accesses, &mut memory, 1, second);
    let words = [ALLOCATION, second, ALLOCATION];
    let objects: Vec<_> = words.iter().map(|&word| memory.resolve(word)).collect();
    let queued = accesses.launch((5, false), &launch(&words), &objects, &memory, true);
    assert_eq!((blocks(&queued), queued.loose.len()), (vec![], 1));
    assert!(accesses.observe(3, 40, 40));
    let arguments = words.map(|address| Argument {
        address,
        ..ARGUMENT
    });
    let whole = accesses.whole(&queued, &arguments).expect("it uses more");
    let extent = |first: u64, count| Extent {
        first: 0x100 + first,
        count,
    };
    let sweep = [extent(0, 40), extent(40, 24)];
    assert_eq!(whole.sweep.as_deref(), Some(&sweep[..]));
    assert_eq!(blocks(&whole), [(0, 64)]);
}

#[test]
fn of_a_launch_that_uses_all_of_one_argument_and_a_part_of_another_that_one_is_known_to_be_used() {
    let (mut memory, mut accesses) = one_allocation();
    memory.resolve(ALLOCATION + 64 * BLOCK_BYTES - 1);
    accesses.set_capacity(40);
    let second = ALLOCATION + 32 * BLOCK_BYTES;
    memory.resolve(second);
    let words = [ALLOCATION, second];
    let objects = words.map(|word| memory.resolve(word));
    let launch = |accesses: &mut Accesses| {
        accesses.launch((5, false), &launch(&words), &objects, &memory, true)
    };
    let queued = launch(&mut accesses);
    assert_eq!(queued.set.len(), 0, "each is more than half of the device");
    let arguments = [0, 1].map(|word| Argument {
        word,
        address: words[word as usize],
        ..ARGUMENT
    });
    let ids = |numbers: std::ops::Range<u64>| numbers.map(|number| BlockId(0x100 + number));
    let touched: Vec<_> = ids(0..32).chain(ids(62..63)).collect();
    let left: Vec<_> = ids(32..62).collect();
    assert!(!accesses.observe(3, 63, 33), "not of all arguments");
    assert!(accesses.observe_arguments(&arguments, &touched, &left));
    let later = launch(&mut accesses);
    assert_eq!(blocks(&later), [(0, 32)]);
    assert_eq!(later.loose.len(), 1);
    let known = accesses.whole(&queued, &arguments);
    let known = known.expect("one that is queued is known to use it too");
    assert_eq!(blocks(&known), blocks(&later));
    assert_eq!((&known.loose, &known.sweep), (&later.loose, &later.sweep));
    // Then it leaves half of it alone.
    let (touched, left): (Vec<_>, Vec<_>) = (ids(0..15).collect(), ids(15..32).collect());
    assert!(!accesses.observe_arguments(&arguments, &touched, &left));
    assert_eq!(launch(&mut accesses).set.len(), 0);
}

#[test]
fn what_a_launch_leaves_alone_behind_a_part_that_moves_does_not_tell_that_a_part_is_used() {
    let (mut memory, mut accesses) = one_allocation();
    memory.resolve(ALLOCATION + 64 * BLOCK_BYTES - 1);
    accesses.set_capacity(40);
    let ids = |numbers: std::ops::Range<u64>| numbers.map(|number| BlockId(0x100 + number));
    let (touched, left): (Vec<_>, Vec<_>) = (ids(0..20).collect(), ids(20..64).collect());
    pointer(&mut accesses, &mut memory, 0, ALLOCATION + 2 * BLOCK_BYTES);
    assert!(!accesses.observe_arguments(&[ARGUMENT], &touched, &left));
    for _ in 0..IN_A_ROW {
        pointer(&mut accesses, &mut memory, 0, ALLOCATION);
        accesses.observe_arguments(&[ARGUMENT], &touched, &left);
    }
    let access = pointer(&mut accesses, &mut memory, 0, ALLOCATION + 3 * BLOCK_BYTES);
    assert_eq!((blocks(&access), access.loose.len()), (vec![(3, 61)], 0));
}

#[test]
fn what_is_known_of_arguments_is_kept_from_one_run_to_the_next() {
    let (mut memory, mut accesses) = one_allocation();
    memory.resolve(ALLOCATION + 64 * BLOCK_BYTES - 1);
    let touched: Vec<_> = (0..64).map(|number| BlockId(0x100 + number)).collect();
    assert!(accesses.observe_arguments(&[ARGUMENT], &touched, &[]));
    let mut profile = Profile::default();
    accesses.learned(&mut profile);
    let uses_all = |profile: &Profile, memory: &mut Memory| {
        let mut next = Accesses::new(100, 100);
        next.restore(profile);
        !pointer(&mut next, memory, 0, ALLOCATION).set.is_empty()
    };
    assert!(uses_all(&profile, &mut memory));
    assert!(!uses_all(&Profile::default(), &mut memory));
}

#[test]
fn an_argument_that_is_used_here_and_there_stays_so_in_queued_launches() {
    let (mut memory, mut accesses) = one_allocation();
    let id = |number: u64| BlockId(0x100 + number);
    let left: Vec<BlockId> = (0..64).map(id).collect();
    let scatter = &mut accesses.scatter;
    scatter.observe(1, &[ARGUMENT], (&[], &left), |_, _| true);
    scatter.observe(100, &[], (&[], &[]), |_, _| true);
    let queued = pointer(&mut accesses, &mut memory, 0, ALLOCATION);
    assert!(!queued.loose.is_empty());
    assert!(accesses.whole(&queued, &[ARGUMENT]).is_none());
}

#[test]
fn a_launch_is_followed_through_fewer_blocks_where_it_is_known_how_far_its_arguments_go() {
    let blocks = SWEEP_BLOCKS + 64;
    let is_followed = |pool: bool, cut: bool, capacity: u64| {
        let mut memory = Memory::default();
        let range = Range {
            address: ALLOCATION,
            bytes: blocks * BLOCK_BYTES,
        };
        memory.insert(range, pool, range.bytes);
        assert_eq!(memory.begin_part(range), pool);
        let mut accesses = Accesses::new(capacity, 100);
        // So many bytes for each thread that it goes on to the end, or to what bounds it.
        accesses.wide.insert((3, 0), MOST_BYTES_PER_THREAD + 1);
        if cut {
            memory.resolve(range.end() - BLOCK_BYTES);
        }
        let access = pointer(&mut accesses, &mut memory, 0, ALLOCATION);
        access.sweep.is_some()
    };
    let large = SWEEP_SHARE * 2 * blocks;
    assert!(is_followed(true, false, large), "a part");
    assert!(is_followed(false, false, large), "a whole allocation");
    assert!(!is_followed(false, true, large), "up to another pointer");
    assert!(is_followed(false, true, large / 4), "much of the device");
}

#[test]
fn what_lies_behind_the_end_of_an_argument_does_not_tell_that_a_part_is_used() {
    let (memory, mut accesses) = one_allocation();
    let id = |number: u64| BlockId(0x100 + number);
    let (touched, left): (Vec<_>, Vec<_>) = ((0..30).map(id).collect(), (30..64).map(id).collect());
    let seen = (&touched[..], &left[..]);
    assert_eq!(accesses.beyond(&[ARGUMENT], seen.0, seen.1, &memory), 0);
    assert!(accesses.see_ends(&[ARGUMENT], seen, &memory));
    assert_eq!(accesses.beyond(&[ARGUMENT], seen.0, seen.1, &memory), 34);
}
