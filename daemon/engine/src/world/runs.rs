//! Plain allocations of which launches use several as one.
//!
//! A framework may obtain memory piece by piece, each right behind the one before, and hand it out
//! across their bounds, as PyTorch does with expandable segments. Nothing tells of it but faults:
//! launches use what no pointer of theirs leads to, right behind what they use up to its end.
//! Allocations that happen to lie side by side are not one: what ends with the first would seem to
//! go on.

use std::collections::BTreeMap;

use crate::units::Range;

/// Blocks that one launch uses behind a bound before it is taken to be none.
const STRAYS: u32 = 4;
/// Bounds that turned out to be none before all are taken for such.
const BOUNDS: u32 = 8;

/// Which allocations are used as one.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// Where each run ends, by where it begins.
    ends: BTreeMap<u64, u64>,
    /// The bound behind which a launch was last seen to use what no pointer leads to, its position,
    /// and how many blocks.
    strayed: (u64, u64, u32),
    /// Bounds that turned out to be none.
    bounds: u32,
}

impl Runs {
    /// All that is used as one with an allocation: itself at least.
    pub(super) fn of(&self, allocation: Range) -> Range {
        let before = self.ends.range(..=allocation.address).next_back();
        match before {
            Some((&address, &end)) if allocation.address < end => Range {
                address,
                bytes: end - address,
            },
            _ => allocation,
        }
    }

    /// The launch at `position` used a block of the allocation `behind` that no pointer leads to,
    /// and all before it of the run `before`, which ends where that one begins. They are used as one
    /// if it uses more such blocks than might be another's; whether they are.
    pub(super) fn strayed(&mut self, before: Range, behind: Range, position: u64) -> bool {
        let (bound, last, count) = self.strayed;
        let again = (bound, last) == (behind.address, position);
        let count = if again { count + 1 } else { 1 };
        self.strayed = (behind.address, position, count);
        let joins = count >= STRAYS;
        if joins {
            self.bounds += 1;
            self.join(before, behind);
        }
        joins
    }

    /// So many bounds were none that no other is taken for one any more.
    pub(super) fn go_on(&self) -> bool {
        self.bounds >= BOUNDS
    }

    /// An allocation is used as one with the one right behind it.
    pub(super) fn join(&mut self, before: Range, behind: Range) {
        let (first, end) = (self.of(before).address, self.of(behind).end());
        self.ends.remove(&behind.address);
        self.ends.insert(first, end);
    }

    /// An allocation is gone: what lies before it ends there.
    pub(super) fn remove(&mut self, allocation: Range) {
        let run = self.of(allocation);
        self.ends.remove(&run.address);
        for (first, end) in [
            (run.address, allocation.address),
            (allocation.end(), run.end()),
        ] {
            if first < end {
                self.ends.insert(first, end);
            }
        }
    }

    /// Estimated size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.ends.len() * size_of::<(u64, u64)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = 0x1000;

    /// The allocation of that number: each begins where the one before it ends.
    fn piece(number: u64) -> Range {
        Range {
            address: number * STEP,
            bytes: STEP,
        }
    }

    fn pieces(first: u64, end: u64) -> Range {
        Range {
            address: first * STEP,
            bytes: (end - first) * STEP,
        }
    }

    /// A launch uses so many blocks of a piece behind the run before it.
    fn stray(runs: &mut Runs, behind: u64, position: u64, blocks: u32) {
        for _ in 0..blocks {
            let before = runs.of(piece(behind - 1));
            runs.strayed(before, piece(behind), position);
        }
    }

    #[test]
    fn pieces_are_one_once_a_launch_used_several_blocks_behind_their_bound() {
        let mut runs = Runs::default();
        stray(&mut runs, 2, 7, STRAYS - 1);
        stray(&mut runs, 2, 8, STRAYS - 1);
        assert_eq!(runs.of(piece(1)), piece(1), "several launches, of each few");
        stray(&mut runs, 2, 8, 1);
        assert_eq!(runs.of(piece(1)), pieces(1, 3));
        assert_eq!(runs.of(piece(2)), pieces(1, 3));
        assert_eq!(runs.of(piece(0)), piece(0));
        assert_eq!(runs.of(piece(3)), piece(3));
    }

    #[test]
    fn after_many_bounds_that_are_none_no_other_is_taken_for_one() {
        let mut runs = Runs::default();
        for behind in 1..=u64::from(BOUNDS) {
            assert!(!runs.go_on());
            stray(&mut runs, behind, 7, STRAYS - 1);
            stray(&mut runs, behind, 8, STRAYS);
        }
        assert!(runs.go_on());
    }

    #[test]
    fn runs_grow_at_both_ends_and_into_each_other() {
        let mut runs = Runs::default();
        for behind in [2, 4, 3] {
            stray(&mut runs, behind, 7, STRAYS);
        }
        for number in 1..5 {
            assert_eq!(runs.of(piece(number)), pieces(1, 5));
        }
    }

    #[test]
    fn a_piece_that_is_gone_parts_what_lies_before_from_what_lies_behind() {
        let mut runs = Runs::default();
        for behind in 1..5 {
            stray(&mut runs, behind, 7, STRAYS);
        }
        runs.remove(piece(2));
        assert_eq!(runs.of(piece(1)), pieces(0, 2));
        assert_eq!(runs.of(piece(3)), pieces(3, 5));
        runs.remove(piece(0));
        assert_eq!(runs.of(piece(1)), piece(1));
        // What is obtained there later is another one.
        assert_eq!(runs.of(piece(0)), piece(0));
        runs.remove(piece(9));
        assert_eq!(runs.of(piece(4)), pieces(3, 5));
    }
}
