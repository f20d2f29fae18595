//! Which part launches use of an array that is larger than they do.
//!
//! A program may pass where an array begins, and as a number which part of it is meant. What such
//! a launch uses is known by its faults alone, and they show what happens to be away, another
//! share each time. But where it touched all that was away between one place and another, and
//! nothing beside, it uses all that lies between them, and so it does when it comes again.

use crate::hash::Map;
use crate::identity::UNKNOWN;
use crate::units::{BLOCK_BYTES, BlockId};
use crate::world::block::Extent;
use crate::world::memory::Memory;

/// Blocks that were away from which it can be told,
const LEAST: usize = 16;
/// and in how many pieces of an object at most they may lie.
const PIECES: usize = 8;
/// Of so many blocks one may say something else.
const STRAYS: usize = 8;
/// Contradictions after which it is not tried any more.
const CONTRADICTIONS: u8 = 3;

/// What launches of an execution ID were seen to use of an object, in blocks from its start.
#[derive(Debug, Default)]
struct Part {
    pieces: Vec<Extent>,
    contradictions: u8,
}

/// By execution ID, and the names of objects.
#[derive(Debug, Default)]
pub(super) struct Parts {
    of: Map<u32, Vec<(u64, Part)>>,
    count: usize,
}

impl Parts {
    /// A launch is over: of memory that it was taken to use some of and that was away it touched
    /// some blocks and left others alone. Whether something was learned of what it uses.
    pub(super) fn learn(
        &mut self,
        exec: u32,
        (touched, left): (&[BlockId], &[BlockId]),
        (memory, limit): (&Memory, usize),
    ) -> bool {
        let nothing = touched.is_empty() && !self.of.contains_key(&exec);
        if exec == UNKNOWN || nothing {
            return false;
        }
        let seen = sorted(touched, left, memory);
        let mut learned = false;
        for seen in seen.chunk_by(|a, b| a.name == b.name) {
            let name = seen[0].name;
            let parts = self.of.get_mut(&exec);
            let known = parts.and_then(|parts| parts.iter_mut().find(|part| part.0 == name));
            if let Some((_, part)) = known {
                learned |= part.learn(seen);
            } else if self.count < limit && seen.iter().any(|seen| seen.used) {
                let mut part = Part::default();
                learned |= part.learn(seen);
                self.of.entry(exec).or_default().push((name, part));
                self.count += 1;
            }
        }
        learned
    }

    /// What launches of this execution ID are known to use of memory of which they use some.
    pub(super) fn of(&self, exec: u32, loose: &[Extent], memory: &Memory) -> Vec<Extent> {
        let mut known = Vec::new();
        for (name, part) in self.of.get(&exec).into_iter().flatten() {
            let Some(address) = memory.address_of(*name) else {
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
        let part = size_of::<(u64, Part)>() + PIECES * size_of::<Extent>();
        self.of.capacity() * size_of::<(u32, Vec<Part>)>() + self.count * part
    }
}

impl Part {
    fn learn(&mut self, seen: &[Seen]) -> bool {
        if self.contradictions >= CONTRADICTIONS {
            return false;
        }
        let before = self.pieces.clone();
        if !self.pieces.is_empty() && !self.agrees(seen) {
            self.contradictions += 1;
            self.pieces.clear();
        }
        if self.pieces.is_empty() && self.contradictions < CONTRADICTIONS {
            self.pieces = pieces(seen).unwrap_or_default();
        }
        self.pieces != before && !self.pieces.is_empty()
    }

    /// Whether that is no more than was known; what lies beside and is new is added to it.
    fn agrees(&mut self, seen: &[Seen]) -> bool {
        let (mut outside, mut inside, mut touched) = (0, 0, 0);
        for (index, &Seen { block, used, .. }) in seen.iter().enumerate() {
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
                let between = |seen: &&Seen| low <= seen.block && seen.block <= high;
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
struct Seen {
    /// Of the object, and from its start.
    name: u64,
    block: u64,
    used: bool,
}

fn sorted(touched: &[BlockId], left: &[BlockId], memory: &Memory) -> Vec<Seen> {
    let place = |block: &BlockId, used| {
        let (name, offset) = memory.name_at(block.address())?;
        let block = offset / BLOCK_BYTES;
        Some(Seen { name, block, used })
    };
    let touched = touched.iter().filter_map(|block| place(block, true));
    let left = left.iter().filter_map(|block| place(block, false));
    let mut seen: Vec<_> = touched.chain(left).collect();
    seen.sort_unstable();
    seen
}

/// The pieces in which all was touched, if there are few.
fn pieces(seen: &[Seen]) -> Option<Vec<Extent>> {
    let mut pieces: Vec<Extent> = Vec::new();
    let (mut touched, mut open) = (0, false);
    for &Seen { block, used, .. } in seen {
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
    use crate::units::Range;

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
            parts.learn(1, seen, (&memory, 10));
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
