//! Where arguments end that nothing says the end of.
//!
//! A pointer into a plain allocation means all up to the next place that any pointer was ever
//! passed to, or to its end. A program that cuts up memory by itself never says where a part ends,
//! so what lies between a part and the next one that is used belongs to the former. A launch tells
//! that was given all of it while it was away: it used what comes first, and left alone all that
//! lies behind. So it is for every launch of that shape, until one goes further: then of that shape
//! nothing is taken to end before the next pointer any more.

use super::{Access, Argument};
use crate::hash::Map;
use crate::units::{BLOCK_BYTES, BlockId};
use crate::world::block::{Extent, Set};
use crate::world::memory::Memory;

/// Blocks that are used, and that are left alone behind them, from which an end can be told.
const LEAST: u32 = 16;
/// It was believed to end, and did not.
pub(super) const NOWHERE: u64 = u64::MAX;

/// Ends that were learned.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// By [`super::shape`], bytes from the pointer.
    bytes: Map<u64, u64>,
}

/// What a launch did behind one of its pointers, up to the next.
#[derive(Clone, Copy, Debug)]
struct Behind {
    used: u32,
    /// The last block that was used,
    last: u64,
    left: u32,
    /// and the first one that was left alone.
    first: u64,
}

impl Ends {
    /// Bytes after which arguments of this shape end.
    pub(super) fn of(&self, shape: u64) -> Option<u64> {
        let bytes = self.bytes.get(&shape).copied();
        bytes.filter(|&bytes| bytes != NOWHERE)
    }

    /// A launch with these pointers is over: of what it was taken to use, or to use some of, and
    /// was away, it touched some blocks and left others alone. Whether an end was learned.
    pub(super) fn learn(
        &mut self,
        arguments: &[Argument],
        (touched, left): (&[BlockId], &[BlockId]),
        (memory, limit): (&Memory, usize),
    ) -> bool {
        if left.len() < LEAST as usize {
            return false;
        }
        let pointers = pointers(arguments);
        let none = Behind {
            used: 0,
            last: 0,
            left: 0,
            first: u64::MAX,
        };
        let mut behind = vec![none; pointers.len()];
        for block in touched {
            if let Some(index) = last_before(&pointers, block.0) {
                let behind = &mut behind[index];
                behind.used += 1;
                behind.last = behind.last.max(block.0);
            }
        }
        for block in left {
            if let Some(index) = last_before(&pointers, block.0) {
                let behind = &mut behind[index];
                behind.left += 1;
                behind.first = behind.first.min(block.0);
            }
        }
        let mut learned = false;
        for argument in arguments {
            let Ok(index) = pointers.binary_search(&argument.address) else {
                continue;
            };
            let behind = behind[index];
            let all = behind.used >= LEAST && behind.left >= LEAST && behind.last < behind.first;
            // Not the last of several slices, whose place is told by a number.
            let before = behind.last + 1 - argument.block().min(behind.last);
            let all = all && u64::from(behind.used) * 2 >= before;
            let room = self.bytes.len() < limit || self.bytes.contains_key(&argument.shape);
            if !all || !room || memory.plain_end(argument.address).is_none() {
                continue;
            }
            let bytes = behind.first * BLOCK_BYTES - argument.address;
            let known = self.bytes.entry(argument.shape).or_insert(0);
            if bytes > *known {
                *known = bytes;
                learned = true;
            }
        }
        learned
    }

    /// A launch with these pointers used a block that it was not taken to use: what its arguments
    /// were believed to end before does not end there.
    pub(super) fn went_on(&mut self, arguments: &[Argument], block: BlockId) {
        let before = arguments.iter().map(|argument| argument.address);
        let before = before.filter(|address| address / BLOCK_BYTES <= block.0);
        let Some(address) = before.max() else { return };
        for argument in arguments.iter().filter(|a| a.address == address) {
            if let Some(bytes) = self.bytes.get_mut(&argument.shape)
                && block.address() >= argument.address.saturating_add(*bytes)
            {
                *bytes = NOWHERE;
            }
        }
    }

    /// How many of these blocks lie behind the end of the argument that they belong to.
    pub(super) fn count_behind(
        &self,
        arguments: &[Argument],
        blocks: &[BlockId],
        memory: &Memory,
    ) -> u64 {
        let tails = self.tails(arguments, memory);
        let behind = |block: &&BlockId| tails.iter().any(|tail| tail.contains(**block));
        blocks.iter().filter(behind).count() as u64
    }

    /// What a launch with these pointers uses that was taken to use `access` before; none if it is
    /// the same.
    pub(super) fn cut(
        &self,
        access: &Access,
        arguments: &[Argument],
        memory: &Memory,
    ) -> Option<Access> {
        let tails = self.tails(arguments, memory);
        let reaches = |set: &Set| {
            let met = |extent: &Extent| tails.iter().any(|tail| overlap(extent, tail));
            set.iter().any(met)
        };
        if !reaches(&access.set) && !reaches(&access.loose) {
            return None;
        }
        Some(Access {
            set: without(&access.set, &tails),
            loose: without(&access.loose, &tails),
            sweep: access.sweep.as_ref().map(|sweep| without(sweep, &tails)),
        })
    }

    /// Blocks from where arguments end to the next pointer, or to the end of their allocation.
    fn tails(&self, arguments: &[Argument], memory: &Memory) -> Vec<Extent> {
        let pointers = pointers(arguments);
        let tail = |argument: &Argument| {
            // What several arguments point to ends where the last of them does.
            let others = arguments.iter().filter(|a| a.address == argument.address);
            let mut ends = others.map(|other| self.of(other.shape));
            let bytes = ends.try_fold(0, |most: u64, end| Some(most.max(end?)))?;
            let end = memory.plain_end(argument.address)?;
            let next = pointers.partition_point(|&pointer| pointer <= argument.address);
            let next = pointers.get(next).map(|&pointer| pointer / BLOCK_BYTES);
            let whole = end.div_ceil(BLOCK_BYTES);
            let end = next.map_or(whole, |next| next.min(whole));
            let first = (argument.address + bytes).div_ceil(BLOCK_BYTES);
            (first < end).then(|| Extent {
                first,
                count: end - first,
            })
        };
        arguments.iter().filter_map(tail).collect()
    }

    /// Estimated size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.capacity() * size_of::<(u64, u64)>()
    }
}

/// Where arguments point to, in order.
fn pointers(arguments: &[Argument]) -> Vec<u64> {
    let mut pointers: Vec<u64> = arguments.iter().map(|a| a.address).collect();
    pointers.sort_unstable();
    pointers.dedup();
    pointers
}

/// The last pointer that does not point behind a block.
fn last_before(pointers: &[u64], block: u64) -> Option<usize> {
    let before = pointers.partition_point(|pointer| pointer / BLOCK_BYTES <= block);
    before.checked_sub(1)
}

fn overlap(one: &Extent, other: &Extent) -> bool {
    one.first < other.end() && other.first < one.end()
}

/// What of these extents lies in none of `others`.
fn without(extents: &[Extent], others: &[Extent]) -> Set {
    let mut left = extents.to_vec();
    for other in others {
        let parts = left.iter().flat_map(|extent| {
            let before = (extent.first, extent.end().min(other.first));
            let after = (extent.first.max(other.end()), extent.end());
            let whole = (extent.first, extent.end());
            let parts = if overlap(extent, other) {
                [before, after]
            } else {
                [whole, (0, 0)]
            };
            parts.map(|(first, end)| Extent {
                first,
                count: end.saturating_sub(first),
            })
        });
        left = parts.filter(|extent| extent.count > 0).collect();
    }
    Set::from(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Range;

    const BASE: u64 = 0x100;

    /// 100 blocks; one pointer to the first of them, twice, and one to the 60th.
    fn arguments() -> [Argument; 3] {
        [(0, 0), (1, 60), (2, 0)].map(|(word, block)| Argument {
            function: 3,
            word,
            shape: 10 + u64::from(word),
            address: (BASE + block) * BLOCK_BYTES,
        })
    }

    fn memory(pool: bool) -> Memory {
        let mut memory = Memory::default();
        let range = Range {
            address: BASE * BLOCK_BYTES,
            bytes: 100 * BLOCK_BYTES,
        };
        memory.insert(range, pool, range.bytes);
        memory
    }

    fn blocks(numbers: std::ops::Range<u64>) -> Vec<BlockId> {
        numbers.map(|number| BlockId(BASE + number)).collect()
    }

    fn extent(first: u64, count: u64) -> Extent {
        Extent {
            first: BASE + first,
            count,
        }
    }

    /// Whether an end is learned from a launch, and where the arguments end, in blocks.
    fn learn(ends: &mut Ends, touched: &[BlockId], left: &[BlockId]) -> (bool, [Option<u64>; 3]) {
        let seen = (touched, left);
        let learned = ends.learn(&arguments(), seen, (&memory(false), 100));
        let end = |word: u64| ends.of(10 + word).map(|bytes| bytes / BLOCK_BYTES);
        (learned, [0, 1, 2].map(end))
    }

    #[test]
    fn arguments_end_where_all_behind_is_left_alone() {
        let mut ends = Ends::default();
        let learned = learn(&mut ends, &blocks(0..40), &blocks(40..60));
        assert_eq!(learned, (true, [Some(40), None, Some(40)]));
        // What is between was on the device: it may be used.
        let further = learn(&mut ends, &blocks(0..30), &blocks(44..60));
        assert_eq!(further, (true, [Some(44), None, Some(44)]));
        let sooner = learn(&mut ends, &blocks(0..30), &blocks(30..60));
        assert_eq!(sooner, (false, [Some(44), None, Some(44)]));
        let last = learn(&mut ends, &blocks(60..80), &blocks(80..100));
        assert_eq!(last, (true, [Some(44), Some(20), Some(44)]));
    }

    #[test]
    fn what_is_used_far_behind_a_pointer_is_a_slice_and_no_end() {
        let mut ends = Ends::default();
        let slice = learn(&mut ends, &blocks(20..36), &blocks(36..60));
        assert_eq!(slice, (false, [None; 3]));
        let most = learn(&mut ends, &blocks(20..41), &blocks(41..60));
        assert_eq!(most, (true, [Some(41), None, Some(41)]));
    }

    #[test]
    fn a_little_is_no_end_nor_is_what_lies_before_or_in_a_pool() {
        let mut ends = Ends::default();
        let none = (false, [None; 3]);
        assert_eq!(learn(&mut ends, &blocks(0..50), &blocks(50..60)), none);
        assert_eq!(learn(&mut ends, &blocks(0..10), &blocks(20..60)), none);
        assert_eq!(learn(&mut ends, &blocks(40..60), &blocks(0..40)), none);
        let (used, left) = (blocks(0..40), blocks(40..60));
        let pool = memory(true);
        assert!(!ends.learn(&arguments(), (&used, &left), (&pool, 100)));
        let memory = memory(false);
        assert!(!ends.learn(&arguments(), (&used, &left), (&memory, 0)));
    }

    #[test]
    fn what_goes_on_once_is_not_believed_to_end_again() {
        let mut ends = Ends::default();
        learn(&mut ends, &blocks(0..40), &blocks(40..60));
        ends.went_on(&arguments(), BlockId(BASE + 39));
        ends.went_on(&arguments(), BlockId(BASE + 70));
        assert_eq!(ends.of(10), Some(40 * BLOCK_BYTES));
        ends.went_on(&arguments(), BlockId(BASE + 41));
        assert_eq!((ends.of(10), ends.of(12)), (None, None));
        let again = learn(&mut ends, &blocks(0..40), &blocks(40..60));
        assert_eq!(again, (false, [None; 3]));
    }

    #[test]
    fn what_lies_behind_an_end_goes_on_to_that_of_all_that_is_used_as_one() {
        let mut memory = memory(false);
        let behind = Range {
            address: (BASE + 100) * BLOCK_BYTES,
            bytes: 50 * BLOCK_BYTES,
        };
        memory.insert(behind, false, behind.bytes);
        let mut ends = Ends::default();
        learn(&mut ends, &blocks(60..80), &blocks(80..100));
        let arguments = arguments();
        let count = |memory: &Memory| ends.count_behind(&arguments, &blocks(0..150), memory);
        assert_eq!(count(&memory), 20);
        for id in blocks(100..104) {
            let pointers = arguments.iter().map(|argument| argument.address);
            memory.used_behind((id, 1), pointers, |_| true);
        }
        assert_eq!(count(&memory), 70);
    }

    #[test]
    fn queued_launches_lose_what_lies_behind_the_ends() {
        let mut ends = Ends::default();
        let access = Access {
            set: Set::from([extent(0, 60), extent(200, 10)]),
            loose: Set::from([extent(60, 40)]),
            sweep: Some(Set::from([extent(0, 60), extent(200, 10)])),
        };
        assert!(ends.cut(&access, &arguments(), &memory(false)).is_none());
        learn(&mut ends, &blocks(0..40), &blocks(40..60));
        learn(&mut ends, &blocks(60..80), &blocks(80..100));
        let cut = ends.cut(&access, &arguments(), &memory(false));
        let cut = cut.expect("it ends sooner");
        assert_eq!(*cut.set, [extent(0, 40), extent(200, 10)]);
        assert_eq!(*cut.loose, [extent(60, 20)]);
        assert_eq!(cut.sweep, Some(cut.set.clone()));
        assert!(ends.cut(&cut, &arguments(), &memory(false)).is_none());
        // One that points there as well goes on.
        ends.bytes.insert(12, NOWHERE);
        let cut = ends.cut(&access, &arguments(), &memory(false));
        assert_eq!(*cut.expect("the other ends").set, *access.set);
        ends.bytes.insert(12, 40 * BLOCK_BYTES);
        let left = blocks(35..45);
        assert_eq!(
            ends.count_behind(&arguments(), &left, &memory(false)),
            5,
            "from the 40th on"
        );
    }

    #[test]
    fn what_is_cut_out_of_the_middle_leaves_both_sides() {
        let left = without(&[extent(0, 30)], &[extent(10, 5), extent(28, 9)]);
        assert_eq!(*left, [extent(0, 10), extent(15, 13)]);
    }
}
