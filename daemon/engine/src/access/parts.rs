//! Which part launches use of an array that is larger than they do.
//!
//! A program may pass where an array begins, and as a number which part of it is meant. What such
//! a launch uses is known by its faults alone, and they show what happens to be away, another
//! share each time. But where it touched all that was away between one place and another, and
//! nothing beside, it uses all that lies between them, and so it does when it comes again.
//!
//! That takes many blocks of one launch. Of few, it shows when launches come again: those of an
//! execution ID that go through the same part each time touch of what was away just what they
//! touched before, and those that look rows up leave most of it alone. Which of both a function
//! does with an argument, all of its launches tell together; where it is the former, what one
//! launch touched is its part from then on.

use super::tiles::Tiles;
use crate::access::Argument;
use crate::agreement::Agreement;
use crate::hash::Map;
use crate::identity::UNKNOWN;
use crate::scatter::{Seen, seen};
use crate::units::{BLOCK_BYTES, BlockId, Range};
use crate::world::block::{Extent, normalize};
use crate::world::memory::Memory;
use crate::world::visits::Visits;

/// Blocks that were away from which it can be told of one launch,
const LEAST: usize = 16;
/// and in how many pieces of an object at most they may lie.
const PIECES: usize = 8;
/// Of so many blocks one may say something else.
const STRAYS: usize = 8;
/// Contradictions after which it is not tried any more.
const CONTRADICTIONS: u8 = 3;
/// Words of memory in which all tiles are remembered.
const TILE_WORDS: usize = 1 << 17;
/// Pieces of one object that are remembered; a launch that uses more uses it here and there.
const MOST_PIECES: usize = 64;

/// A function, and an argument of it.
type Word = (u32, u32);

/// What launches of an execution ID were seen to use of an object, in blocks from its start.
#[derive(Debug)]
struct Part {
    name: u64,
    word: Word,
    pieces: Vec<Extent>,
    /// One launch alone told that it is all.
    told: bool,
    contradictions: u8,
    /// It is used here and there.
    scattered: bool,
}

/// What is known of an argument of all launches of a function.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Whether those that come again use the same part,
    agreement: Agreement,
    /// and the most blocks in a row that one of them touched.
    run: u64,
}

impl Known {
    fn comes_again(self) -> bool {
        self.agreement.holds() == Some(true)
    }
}

/// By execution ID, and the names of objects.
#[derive(Debug, Default)]
pub(super) struct Parts {
    of: Map<u32, Vec<Part>>,
    words: Map<Word, Known>,
    /// By argument and the name of the object.
    tiles: Map<(Word, u64), Tiles>,
    tile_words: usize,
    count: usize,
    pieces: usize,
}

/// Of whom something was learned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Learned {
    Nothing,
    /// Of launches of this execution ID.
    Launch,
    /// Of all of the function.
    Function,
}

impl Parts {
    /// A launch with these pointers is over: of memory that it was taken to use some of and that
    /// was away it touched some blocks and left others alone.
    pub(super) fn learn(
        &mut self,
        (exec, arguments): (u32, &[Argument]),
        (touched, left): (&[BlockId], &[BlockId]),
        (memory, visits, limit): (&Memory, &mut Visits, usize),
    ) -> Learned {
        let nothing = touched.is_empty() && !self.of.contains_key(&exec);
        if exec == UNKNOWN || nothing {
            return Learned::Nothing;
        }
        let seen = sorted(arguments, (touched, left), memory);
        let mut learned = Learned::Nothing;
        for seen in seen.chunk_by(|a, b| a.name == b.name) {
            let (name, word) = (seen[0].name, seen[0].word);
            let parts = self.of.get_mut(&exec);
            let known = parts.and_then(|parts| parts.iter_mut().find(|part| part.name == name));
            let part = match known {
                Some(part) => part,
                None if self.count < limit && seen.iter().any(|seen| seen.used) => {
                    self.count += 1;
                    let parts = self.of.entry(exec).or_default();
                    parts.push(Part::new(name, word));
                    let last = parts.len() - 1;
                    &mut parts[last]
                }
                None => continue,
            };
            let [same, other] = part.again(seen);
            let address = memory.address_of(name);
            if let Some(allocation) = address.and_then(|address| memory.allocation_at(address)) {
                let Range { address, bytes } = allocation.range;
                let touched = seen.iter().filter(|seen| seen.used).count() as u64;
                let blocks = bytes.div_ceil(BLOCK_BYTES);
                visits.came_again(address, [same, other, touched - same], blocks);
            }
            let before = part.pieces.len();
            let full = self.words.len() >= limit && !self.words.contains_key(&word);
            let mut unknown = Known::default();
            let known = if full {
                &mut unknown
            } else {
                self.words.entry(word).or_default()
            };
            known.run = known.run.max(longest_run(seen));
            let mut none = Tiles::default();
            let full = self.tile_words >= TILE_WORDS && !self.tiles.contains_key(&(word, name));
            let tiles = if full {
                &mut none
            } else {
                self.tiles.entry((word, name)).or_default()
            };
            let had = tiles.len();
            tiles.learn(seen);
            self.tile_words += tiles.len() - had;
            let mut news = part.learn(seen, known.run, tiles);
            let room = limit * STRAYS;
            self.pieces = self.pieces + part.pieces.len() - before;
            if self.pieces > room && part.pieces.len() > before {
                self.pieces -= part.pieces.len();
                part.pieces = Vec::new();
                news = false;
            }
            let told = part.told;
            let held = known.comes_again();
            known.agreement.add(same, other);
            let holds = known.comes_again();
            if holds && !held {
                learned = Learned::Function;
            }
            if news && (told || holds) && learned == Learned::Nothing {
                learned = Learned::Launch;
            }
        }
        learned
    }

    /// What launches of this execution ID are known to use of memory of which they use some.
    pub(super) fn of(&self, exec: u32, loose: &[Extent], memory: &Memory) -> Vec<Extent> {
        let mut known = Vec::new();
        if loose.is_empty() {
            return known;
        }
        let holds = |word| self.words.get(word).is_some_and(|word| word.comes_again());
        for part in self.of.get(&exec).into_iter().flatten() {
            if part.pieces.is_empty() || !part.told && !holds(&part.word) {
                continue;
            }
            let Some(address) = memory.address_of(part.name) else {
                continue;
            };
            known.extend(part.pieces.iter().map(|piece| Extent {
                first: address / BLOCK_BYTES + piece.first,
                ..*piece
            }));
        }
        known.retain(|piece| {
            let within = |loose: &Extent| loose.first <= piece.first && piece.end() <= loose.end();
            loose.iter().any(within)
        });
        known
    }

    /// Estimated size of the table in bytes.
    pub(super) fn bytes(&self) -> usize {
        let words = self.words.capacity() * size_of::<(Word, Known)>();
        let parts = self.count * size_of::<Part>() + 2 * self.pieces * size_of::<Extent>();
        let tiles = self.tiles.capacity() * size_of::<((Word, u64), Tiles)>();
        let tiles = tiles + self.tile_words * size_of::<u64>();
        self.of.capacity() * size_of::<(u32, Vec<Part>)>() + words + parts + tiles
    }
}

impl Part {
    fn new(name: u64, word: Word) -> Self {
        Self {
            name,
            word,
            pieces: Vec::new(),
            told: false,
            contradictions: 0,
            scattered: false,
        }
    }

    fn holds(&self, block: u64) -> bool {
        let after = self.pieces.partition_point(|piece| piece.end() <= block);
        self.pieces
            .get(after)
            .is_some_and(|piece| piece.first <= block)
    }

    /// Of the blocks that it was known to use, how many it used again and how many it did not.
    fn again(&self, seen: &[Block]) -> [u64; 2] {
        let known = seen.iter().filter(|seen| self.holds(seen.block));
        known.fold([0, 0], |[same, other], seen| {
            [same + u64::from(seen.used), other + u64::from(!seen.used)]
        })
    }

    /// Whether it is known of another part now that launches use it.
    fn learn(&mut self, seen: &[Block], run: u64, tiles: &Tiles) -> bool {
        if self.scattered {
            return false;
        }
        let before = self.pieces.clone();
        if self.told && !self.agrees(seen) {
            self.contradictions += 1;
            self.told = false;
            self.pieces.clear();
        }
        if !self.told
            && self.contradictions < CONTRADICTIONS
            && let Some(pieces) = pieces(seen)
        {
            self.told = true;
            self.pieces = pieces;
        } else if !self.told {
            self.follow(seen, run);
        }
        self.complete(seen, tiles);
        if self.pieces.len() > MOST_PIECES {
            self.pieces = Vec::new();
            self.scattered = true;
        }
        self.pieces != before && !self.pieces.is_empty()
    }

    /// Takes out what was left alone, and adds what was touched, and what lies between as far as a
    /// launch may go through so many blocks in a row. Ends where there are too many pieces.
    fn follow(&mut self, seen: &[Block], run: u64) {
        for &Block { block, .. } in seen.iter().filter(|seen| !seen.used) {
            if self.pieces.len() > MOST_PIECES {
                return;
            }
            let after = self.pieces.partition_point(|piece| piece.end() <= block);
            let Some(piece) = self
                .pieces
                .get_mut(after)
                .filter(|piece| piece.first <= block)
            else {
                continue;
            };
            let (first, end) = (piece.first, piece.end());
            let rest = Extent {
                first: block + 1,
                count: end - block - 1,
            };
            piece.count = block - first;
            if rest.count > 0 {
                self.pieces.insert(after + 1, rest);
            }
            if block == first {
                self.pieces.remove(after);
            }
        }
        for (index, &Block { block, used, .. }) in seen.iter().enumerate() {
            if self.pieces.len() > MOST_PIECES {
                return;
            }
            if !used || self.holds(block) {
                continue;
            }
            let after = self.pieces.partition_point(|piece| piece.end() <= block);
            // What lies between was on the device, or used.
            let unseen = |low: u64, high: u64| {
                let between = |seen: &&Block| low <= seen.block && seen.block <= high;
                let before = seen[..index].iter().rev().take_while(between);
                let mut all = before.chain(seen[index + 1..].iter().take_while(between));
                all.all(|seen| seen.used)
            };
            let joins = |piece: &Extent| {
                let (low, high) = (block.min(piece.end()), block.max(piece.first));
                let joined = piece.end().max(block + 1) - piece.first.min(block);
                joined <= run.max(piece.count * 3 / 2) && unseen(low, high)
            };
            if let Some(piece) = after.checked_sub(1).map(|at| &mut self.pieces[at])
                && joins(piece)
            {
                piece.count = block + 1 - piece.first;
            } else if let Some(piece) = self.pieces.get_mut(after)
                && joins(piece)
            {
                piece.count = piece.end() - block;
                piece.first = block;
            } else {
                let (first, count) = (block, 1);
                self.pieces.insert(after, Extent { first, count });
                continue;
            }
            normalize(&mut self.pieces);
        }
    }

    /// Adds all of the tiles of which it touched some and left nothing alone.
    fn complete(&mut self, seen: &[Block], tiles: &Tiles) {
        let before = self.pieces.len();
        let mut last = Extent { first: 0, count: 0 };
        for &Block { block, .. } in seen.iter().filter(|seen| seen.used) {
            if last.contains(BlockId(block)) {
                continue;
            }
            last = tiles.find(block);
            let from = seen.partition_point(|seen| seen.block < last.first);
            let mut within = seen[from..]
                .iter()
                .take_while(|seen| seen.block < last.end());
            if last.count > 1 && within.all(|seen| seen.used) {
                self.pieces.push(last);
            }
        }
        if self.pieces.len() > before {
            normalize(&mut self.pieces);
        }
    }

    /// Whether that is no more than was known; what lies beside and is new is added to it.
    fn agrees(&mut self, seen: &[Block]) -> bool {
        let (mut outside, mut inside, mut touched) = (0, 0, 0);
        for (index, &Block { block, used, .. }) in seen.iter().enumerate() {
            touched += usize::from(used);
            let holds = |extent: &Extent| extent.contains(BlockId(block));
            let is_known = self.pieces.iter().any(holds);
            if is_known || !used {
                inside += usize::from(is_known && !used);
                continue;
            }
            // Nothing between it and a piece was left alone.
            let joins = |extent: &Extent| {
                let (low, high) = (block.min(extent.end()), block.max(extent.first));
                let between = |seen: &&Block| low <= seen.block && seen.block <= high;
                let before = seen[..index].iter().rev().take_while(between);
                let mut all = before.chain(seen[index + 1..].iter().take_while(between));
                let near = (high - low) as usize <= LEAST.max(extent.count as usize / 2);
                near && all.all(|seen| seen.used)
            };
            match self.pieces.iter().position(joins) {
                Some(piece) => {
                    let extent = &mut self.pieces[piece];
                    let end = extent.end().max(block + 1);
                    extent.first = extent.first.min(block);
                    extent.count = end - extent.first;
                }
                None => outside += 1,
            }
        }
        outside * STRAYS <= touched && inside * STRAYS <= touched.max(LEAST)
    }
}

/// What was seen of a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Block {
    /// Of the object, and from its start.
    name: u64,
    pub(super) block: u64,
    pub(super) used: bool,
    word: Word,
}

#[cfg(test)]
impl Block {
    pub(super) fn seen(block: u64, used: bool) -> Self {
        let (name, word) = (0, (0, 0));
        Self {
            name,
            block,
            used,
            word,
        }
    }
}

fn sorted(
    arguments: &[Argument],
    seen_of: (&[BlockId], &[BlockId]),
    memory: &Memory,
) -> Vec<Block> {
    let (touched, left) = seen_of;
    let seen = seen(arguments, touched, left).into_iter();
    let seen = seen.filter_map(|(id, word, seen)| {
        let (name, offset) = memory.name_at(id.address())?;
        Some(Block {
            name,
            block: offset / BLOCK_BYTES,
            used: seen == Seen::Touched,
            word,
        })
    });
    let mut seen: Vec<_> = seen.collect();
    seen.sort_unstable();
    seen
}

/// The most blocks in a row that were touched.
fn longest_run(seen: &[Block]) -> u64 {
    let follows = |a: &Block, b: &Block| a.used && b.used && a.block + 1 == b.block;
    let runs = seen.chunk_by(follows).filter(|run| run[0].used);
    runs.map(|run| run.len() as u64).max().unwrap_or(0)
}

/// The pieces in which all was touched, if there are few.
fn pieces(seen: &[Block]) -> Option<Vec<Extent>> {
    let mut pieces: Vec<Extent> = Vec::new();
    let (mut touched, mut open) = (0, false);
    for &Block { block, used, .. } in seen {
        let last = pieces.last_mut().filter(|_| open);
        open = used;
        touched += usize::from(used);
        match last {
            _ if !used => {}
            Some(piece) => piece.count = block + 1 - piece.first,
            None => pieces.push(Extent {
                first: block,
                count: 1,
            }),
        }
    }
    let few = pieces.len() <= PIECES && touched >= LEAST.max(pieces.len() * STRAYS);
    (few && seen.len() - touched >= LEAST).then_some(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x100;

    /// 200 blocks, all of which a launch may use.
    fn memory() -> (Memory, Extent) {
        let mut memory = Memory::default();
        let range = Range {
            address: BASE * BLOCK_BYTES,
            bytes: 200 * BLOCK_BYTES,
        };
        memory.insert(range, false, range.bytes);
        (memory, extent(0, 200))
    }

    fn extent(first: u64, count: u64) -> Extent {
        Extent {
            first: BASE + first,
            count,
        }
    }

    const ARGUMENTS: [Argument; 1] = [Argument {
        function: 7,
        word: 0,
        shape: 0,
        address: BASE * BLOCK_BYTES,
    }];

    /// From one up to before another.
    type Blocks = (u64, u64);

    /// What is known of a launch after these were seen, of which some touched the blocks of some
    /// ranges and left those of others alone.
    fn known(seen: &[(&[Blocks], &[Blocks])]) -> Vec<Extent> {
        let (memory, all) = memory();
        let mut parts = Parts::default();
        let blocks = |ranges: &[Blocks]| -> Vec<BlockId> {
            let numbers = ranges.iter().flat_map(|&(from, end)| from..end);
            numbers.map(|number| BlockId(BASE + number)).collect()
        };
        for &(touched, left) in seen {
            let seen = (&blocks(touched)[..], &blocks(left)[..]);
            let mut visits = Visits::default();
            parts.learn((1, &ARGUMENTS), seen, (&memory, &mut visits, 10));
        }
        assert!(parts.of(2, &[all], &memory).is_empty(), "another launch");
        let elsewhere = [extent(25, 10), extent(190, 10)];
        assert!(parts.of(1, &elsewhere, &memory).is_empty());
        parts.of(1, &[all], &memory)
    }

    #[test]
    fn all_between_the_first_and_the_last_block_that_was_away_is_used() {
        let seen: (&[Blocks], &[Blocks]) = (&[(40, 50), (70, 80)], &[(0, 30), (100, 120)]);
        assert_eq!(known(&[seen]), [extent(40, 40)]);
        let two: (&[Blocks], &[Blocks]) = (&[(40, 50), (70, 80)], &[(0, 30), (60, 61), (100, 120)]);
        assert_eq!(known(&[two]), [extent(40, 10), extent(70, 10)]);
    }

    #[test]
    fn it_takes_enough_blocks_and_few_pieces_to_tell() {
        let (touched, left) = ((40, 60), (100, 120));
        assert!(known(&[(&[(40, 55)], &[(100, 120)])]).is_empty());
        assert!(
            known(&[(&[touched], &[(100, 115)])]).is_empty(),
            "all, it seems"
        );
        let rows: Vec<Blocks> = (0..20).map(|row| (3 * row, 3 * row + 1)).collect();
        let between: Vec<Blocks> = (0..20).map(|row| (3 * row + 1, 3 * row + 3)).collect();
        assert!(known(&[(&rows, &between)]).is_empty(), "here and there");
        assert!(known(&[(&[], &[left])]).is_empty());
    }

    #[test]
    fn what_lies_beside_is_used_as_well_unless_something_between_was_left_alone() {
        let first: (&[Blocks], &[Blocks]) = (&[(40, 60)], &[(100, 120)]);
        assert_eq!(known(&[first, (&[(64, 70)], &[])]), [extent(40, 30)]);
        assert_eq!(known(&[first, (&[(30, 34)], &[(0, 20)])]), [extent(30, 30)]);
        let apart: (&[Blocks], &[Blocks]) = (&[(64, 70)], &[(62, 63)]);
        assert!(known(&[first, apart]).is_empty(), "it was another part");
    }

    /// What launches see when they come: their execution ID, what they touched, and what they left alone.
    type Launches<'a> = &'a [(u32, &'a [Blocks], &'a [Blocks])];

    /// What a launch of an execution ID is known to use after these, and of whom each of them taught
    /// something.
    fn known_of(exec: u32, launches: Launches<'_>) -> (Vec<Extent>, Vec<Learned>) {
        let (memory, all) = memory();
        let (mut parts, mut visits) = (Parts::default(), Visits::default());
        let blocks = |ranges: &[Blocks]| -> Vec<BlockId> {
            let numbers = ranges.iter().flat_map(|&(from, end)| from..end);
            numbers.map(|number| BlockId(BASE + number)).collect()
        };
        let learned = launches.iter().map(|&(exec, touched, left)| {
            let seen = (&blocks(touched)[..], &blocks(left)[..]);
            parts.learn((exec, &ARGUMENTS), seen, (&memory, &mut visits, 10))
        });
        let learned = learned.collect();
        (parts.of(exec, &[all], &memory), learned)
    }

    #[test]
    fn of_few_blocks_it_shows_when_launches_come_again_and_for_all_of_the_function() {
        let slices: [(u32, &[Blocks], &[Blocks]); 5] = [
            (0, &[(0, 8)], &[(16, 24)]),
            (1, &[(8, 16)], &[(16, 24)]),
            (2, &[(16, 24)], &[(0, 8)]),
            (3, &[(24, 32)], &[(0, 8)]),
            (4, &[(32, 40)], &[(0, 8)]),
        ];
        let (known, learned) = known_of(0, &slices);
        assert!(known.is_empty(), "none of them came again");
        assert_eq!(learned, [Learned::Nothing; 5]);
        let again = [&slices[..], &slices[..4]].concat();
        let (known, learned) = known_of(4, &again);
        assert_eq!(
            known,
            [extent(32, 8)],
            "it did not, but others of its function did"
        );
        assert_eq!(learned[7..], [Learned::Nothing, Learned::Function]);
        let new = [&again[..], &[(5, &[(40, 48)], &[(0, 8)])]].concat();
        let (known, learned) = known_of(5, &new);
        assert_eq!((known, learned[9]), (vec![extent(40, 8)], Learned::Launch));
    }

    #[test]
    fn rows_that_are_others_each_time_are_left_to_faults() {
        let rows = |first: u64| (0..8).map(move |row| (first + 9 * row, first + 9 * row + 1));
        let (first, second): (Vec<_>, Vec<_>) = (rows(0).collect(), rows(4).collect());
        let launches = [(&first, &second), (&second, &first)].repeat(8);
        let launches: Vec<(u32, &[Blocks], &[Blocks])> = launches
            .iter()
            .map(|(used, left)| (1, &used[..], &left[..]))
            .collect();
        assert!(known_of(1, &launches).0.is_empty());
    }

    #[test]
    fn one_block_tells_the_whole_tile_once_others_went_through_it() {
        let tile = |number: u64| [(16 * number, 16 * number + 16)];
        let tiles: Vec<[Blocks; 1]> = (0..4).map(tile).collect();
        let mut launches: Vec<(u32, &[Blocks], &[Blocks])> = Vec::new();
        for number in 0..3 {
            let (used, left) = (&tiles[number], &tiles[number + 1]);
            launches.extend([(number as u32, &used[..], &left[..]); 3]);
        }
        launches.push((9, &[(20, 21)], &[(60, 61)]));
        assert_eq!(known_of(9, &launches).0, [extent(16, 16)]);
        launches.push((9, &[], &[(24, 25)]));
        let rest = [extent(16, 8), extent(25, 7)];
        assert_eq!(known_of(9, &launches).0, rest, "it left one alone");
    }

    #[test]
    fn a_launch_whose_part_is_another_each_time_is_left_to_faults() {
        let slice = |number: u64| (40 * number, 40 * number + 20);
        let mut slices: Vec<[Blocks; 2]> = Vec::new();
        let mut seen = |number: u64, other: u64| {
            slices.push([slice(number), slice(other)]);
            let seen = slices.iter();
            let seen: Vec<(&[Blocks], &[Blocks])> =
                seen.map(|pair| (&pair[..1], &pair[1..])).collect();
            known(&seen)
        };
        for number in 0..3 {
            assert_eq!(seen(number, number + 1), [extent(40 * number, 20)]);
        }
        assert!(seen(3, 0).is_empty(), "three times");
        assert!(seen(3, 0).is_empty());
    }
}
