//! Fewer, longer slots made of the fine ones, so that an LP over them stays small.
//!
//! Longer slots bound from below too: what every schedule satisfies slot by slot, it
//! satisfies summed over slots, and the boundaries that are left are boundaries still. Gaps
//! within one long slot are dropped; they cost nothing then.

use super::cost::merge;
use super::counts::{Cell, Counted};
use super::slots::{Slots, fullest};

/// A stretch on longer slots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Coarse {
    /// Compute time by slot, nanoseconds; 0 for the first and the last.
    pub times: Vec<u64>,
    /// Leaves wanted by boundary.
    pub wanted: Vec<u64>,
    /// Sorted.
    pub cells: Vec<Cell>,
}

impl Coarse {
    /// Keeps the boundaries of `ends`, and where they are fewer than `count` others, of even
    /// parts the fullest, so that there are no more than `count` slots.
    pub fn of(slots: &Slots, gaps: &Counted, ends: &[u32], count: usize) -> Self {
        let fine = slots.len();
        let mut keep = vec![false; fine + 1];
        for end in ends {
            keep[*end as usize] = true;
        }
        keep[fine] = true;
        let kept = keep.iter().filter(|keep| **keep).count();
        let more = count.saturating_sub(kept).min(fine);
        for boundary in fullest(&gaps.wanted, more) {
            keep[boundary] = true;
        }
        keep[0] = false;
        let mut coarse = Self {
            times: vec![0, 0],
            wanted: vec![gaps.wanted[0]],
            cells: Vec::new(),
        };
        // By fine slot: the long slot that it belongs to.
        let mut slot = vec![0u32; fine + 2];
        for at in 1..=fine {
            let number = coarse.times.len() - 1;
            slot[at] = number as u32;
            coarse.times[number] += slots.times[at];
            if keep[at] {
                coarse.wanted.push(gaps.wanted[at]);
                coarse.times.push(0);
            }
        }
        slot[fine + 1] = coarse.times.len() as u32 - 1;
        let cells = gaps.cells.iter().map(|cell| Cell {
            from: slot[cell.from as usize],
            to: slot[cell.to as usize],
            ..*cell
        });
        coarse.cells = cells.filter(|cell| cell.from < cell.to).collect();
        merge(&mut coarse.cells);
        coarse
    }

    /// How many slots.
    pub fn len(&self) -> usize {
        self.times.len() - 2
    }
}
