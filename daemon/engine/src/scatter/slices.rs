//! What launches leave alone because others beside them use it: slices of one argument.
//!
//! Owns what was left alone until it shows whose it is. Libraries give one argument to several
//! launches in a row, each of which goes through a slice of it: PyTorch's multi-tensor kernels
//! cut their lists of tensors so (`multi_tensor_apply`). Each leaves most of the argument alone,
//! which says nothing of how it is used. What such a launch left is held back for some launches;
//! what others of the same function touch meanwhile is no evidence, nor is what was on the device
//! then or shortly before, where nobody sees who uses it.

use std::collections::VecDeque;

use super::{Seen, Word};
use crate::units::BlockId;

/// Launches for which it is held back.
const LAUNCHES: u64 = 16;
/// Blocks that are held back at most.
const BLOCKS: usize = 1 << 14;
/// Of what a launch goes through in one go, less than one block in so many lies beside one that it
/// left alone.
const EDGES: usize = 4;

/// A block that a launch left alone, the argument that it belongs to, and where it lies.
pub(crate) type Left = (BlockId, Word, Seen);

/// What launches left alone of late that went through what they used in one go.
#[derive(Debug, Default)]
pub(super) struct Slices {
    launches: VecDeque<Launch>,
    blocks: usize,
}

/// One of them.
#[derive(Debug)]
struct Launch {
    position: u64,
    function: u32,
    left: Vec<Left>,
}

/// Whether a launch may have gone through a slice: it used nothing that was away, or what it used
/// lies together.
pub(super) fn lies_together(touched: &[BlockId], left: &[BlockId]) -> bool {
    if touched.is_empty() || left.is_empty() {
        return true;
    }
    let mut left = left.to_vec();
    left.sort_unstable();
    let is_left = |number: u64| left.binary_search(&BlockId(number)).is_ok();
    let edges = touched
        .iter()
        .filter(|block| is_left(block.0 + 1) || is_left(block.0.wrapping_sub(1)));
    edges.count() * EDGES < touched.len()
}

impl Slices {
    /// The launch at `position` left this alone. What there is no room for is given back.
    pub(super) fn hold(
        &mut self,
        position: u64,
        function: u32,
        mut left: Vec<Left>,
    ) -> Option<Vec<Left>> {
        if self.blocks + left.len() > BLOCKS {
            return Some(left);
        }
        left.shrink_to_fit();
        self.blocks += left.len();
        self.launches.push_back(Launch {
            position,
            function,
            left,
        });
        None
    }

    /// A launch of the function used these blocks, which it had to wait for.
    pub(super) fn used(&mut self, function: u32, touched: &[BlockId]) {
        if touched.is_empty() || self.launches.is_empty() {
            return;
        }
        let mut touched = touched.to_vec();
        touched.sort_unstable();
        for launch in &mut self.launches {
            if launch.function == function {
                let before = launch.left.len();
                let other = |left: &Left| touched.binary_search(&left.0).is_err();
                launch.left.retain(other);
                self.blocks -= before - launch.left.len();
            }
        }
    }

    /// What was held back for long enough when the launch at `position` is over, and was not on
    /// the device meanwhile, nor as long before: another may have used it there.
    pub(super) fn over(&mut self, position: u64, away: impl Fn(BlockId, u64) -> bool) -> Vec<Left> {
        let mut over = Vec::new();
        while let Some(launch) = self.launches.front()
            && launch.position + LAUNCHES <= position
        {
            let since = launch.position.saturating_sub(LAUNCHES);
            self.blocks -= launch.left.len();
            let left = self.launches.pop_front().map_or(Vec::new(), |l| l.left);
            over.extend(left.into_iter().filter(|left| away(left.0, since)));
        }
        over
    }

    /// Estimated size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let launches = self.launches.capacity() * size_of::<Launch>();
        (launches + self.blocks * size_of::<Left>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_is_no_room_for_is_given_back() {
        let mut slices = Slices::default();
        let left = |count: usize| vec![(BlockId(1), (7, 0), Seen::Beyond); count];
        assert!(slices.hold(1, 7, left(BLOCKS)).is_none());
        assert_eq!(slices.hold(2, 7, left(1)).map(|left| left.len()), Some(1));
        slices.used(8, &[BlockId(1)]);
        assert_eq!(slices.blocks, BLOCKS, "another function");
        slices.used(7, &[BlockId(1)]);
        assert_eq!(slices.blocks, 0);
        assert!(slices.hold(3, 7, left(1)).is_none());
        assert!(slices.over(3 + LAUNCHES - 1, |_, _| true).is_empty());
        assert_eq!(slices.over(3 + LAUNCHES, |_, _| true).len(), 1);
        assert_eq!(slices.blocks, 0);
    }

    #[test]
    fn whether_it_lies_together_is_told_by_the_edges_of_what_was_used() {
        let ids = |numbers: &[u64]| numbers.iter().map(|&n| BlockId(n)).collect::<Vec<_>>();
        let left: Vec<_> = (0..100).filter(|n| !(40..60).contains(n)).collect();
        let run: Vec<_> = (40..60).collect();
        assert!(lies_together(&ids(&run), &ids(&left)));
        assert!(!lies_together(&ids(&[10, 30]), &ids(&[9, 11, 12, 29])));
        assert!(lies_together(&[], &ids(&left)), "nothing tells");
        assert!(lies_together(&ids(&[0]), &[]));
    }
}
