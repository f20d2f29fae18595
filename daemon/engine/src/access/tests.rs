use super::*;
use crate::world::window::Window;
use crate::{BlockId, FunctionId, Seq, StreamId};

const ALLOCATION: u64 = 0x100 * BLOCK_BYTES;
/// Argument 0 of function 3, which points to it.
const ARGUMENT: Argument = Argument {
    function: 3,
    word: 0,
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

/// What function 3 uses that is given a pointer as its argument `word`.
fn pointer(accesses: &mut Accesses, memory: &mut Memory, word: usize, address: u64) -> Access {
    let words = &[[0, address], [address, 0]][1 - word][..];
    let launch = Launch {
        seq: Seq(1),
        stream: StreamId(0),
        function: FunctionId(3),
        grid: [1; 3],
        block: [1; 3],
        words,
    };
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
        accesses.missed(launch, id, &[ARGUMENT], memory);
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
fn tiles_end_where_the_next_one_begins() {
    let (mut memory, mut accesses) = one_allocation();
    let tile = |index: u64| ALLOCATION + index * 8 * BLOCK_BYTES;
    for index in 0..8 {
        pointer(&mut accesses, &mut memory, 0, tile(index));
    }
    let first = pointer(&mut accesses, &mut memory, 0, ALLOCATION);
    let mut window = Window::new(10);
    window.push((1, 5), (Seq(1), StreamId(0)), first, Arc::from([]));
    let launch = window.front().expect("one is queued");
    // Of another launch, whose turn nobody knew to have come.
    accesses.missed(launch, BlockId(0x100 + 20), &[ARGUMENT], &memory);
    let second = pointer(&mut accesses, &mut memory, 0, tile(1));
    assert_eq!(blocks(&second), [(8, 8), (20, 1)]);
}
