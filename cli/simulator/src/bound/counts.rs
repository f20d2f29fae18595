//! Ways to count what gaps want of the device: in leaves, in frames, in blocks.
//!
//! Each is a bound by itself; which is the strongest depends on the program, so that all are
//! tried. In **leaves** ([`Counted::leaves`]), 32 to a frame, all leaves weigh the same. In
//! **frames** ([`Counted::frames`]): at a boundary, each block with any leaf in a gap holds a
//! frame unless **all** these leaves are away. Weights of the leaves that sum to at least 1
//! therefore bound the frames saved from above by the weighted leaves away. A leaf's weight is 1
//! over the least number of its block's leaves that are in gaps at one time during its own gap
//! (its share): at each boundary the weights of a block then sum to at least 1, and to exactly 1
//! for a block that is used as a whole. In **blocks** ([`Counted::blocks`]) what a block's gaps
//! cost together is asked run by run (see `runs`); it counts 32 leaves, of which all are away or
//! none, and any part of it stands for the same part of its cost.

use super::cost::{merge, to_grid};
use super::gaps::{Gap, Gaps};
use super::runs::runs;
use crate::units::{LEAVES, Leaves};

/// Leaves with the same gap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Cell {
    /// Slot of the use that ends it; the number of slots plus one: after the stretch.
    pub to: u32,
    /// A frame of these is shared by at most so many leaves that are in a gap. One of
    /// [`SHARES`].
    pub share: u32,
    /// What goes in at the least for a leaf that is away, of [`super::cost::WHOLE_LEAF`].
    pub inward: u32,
    /// What goes out at the least.
    pub outward: u32,
    /// Slot of the use that begins it; 0: before the stretch.
    pub from: u32,
    /// How many leaves.
    pub leaves: u64,
}

impl Cell {
    /// What it has in common with others that are alike once idle, wherever they began.
    pub fn pool(&self) -> (u32, u32, u32, u32) {
        (self.to, self.share, self.inward, self.outward)
    }
}

/// The values that [`Cell::share`] is rounded down to.
pub(super) const SHARES: [u32; 6] = [32, 24, 16, 8, 4, 1];

/// Gaps, counted in one of the ways.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Counted {
    /// Sorted.
    pub cells: Vec<Cell>,
    /// By boundary: what is wanted of the device, in leaves.
    pub wanted: Vec<u64>,
}

impl Counted {
    /// In leaves.
    pub fn leaves(gaps: &Gaps) -> Self {
        let cells = gaps.all.iter().map(|gap| cell(gap, LEAVES)).collect();
        Self::equal(cells, gaps.slots)
    }

    /// In blocks.
    pub fn blocks(gaps: &Gaps) -> Self {
        let mut cells = Vec::new();
        for block in gaps.all.chunk_by(|one, other| one.block == other.block) {
            runs(block, &mut cells);
        }
        Self::equal(cells, gaps.slots)
    }

    /// In frames.
    pub fn frames(gaps: &Gaps) -> Self {
        let (shares, wanted) = shares(&gaps.all, gaps.slots);
        let cells = gaps.all.iter().zip(shares);
        let wanted = wanted.into_iter();
        Self {
            cells: to_grid(cells.map(|(gap, share)| cell(gap, share)).collect()),
            wanted: wanted
                .map(|frames| u64::from(frames) * u64::from(LEAVES))
                .collect(),
        }
    }

    /// Cells that all weigh the same.
    fn equal(mut cells: Vec<Cell>, slots: usize) -> Self {
        merge(&mut cells);
        let mut wanted = vec![0; slots + 1];
        let (mut begin, mut end) = (wanted.clone(), wanted.clone());
        for cell in &cells {
            begin[cell.from as usize] += cell.leaves;
            if let Some(end) = end.get_mut(cell.to as usize) {
                *end += cell.leaves;
            }
        }
        let mut open = 0;
        for (boundary, wanted) in wanted.iter_mut().enumerate() {
            open = open + begin[boundary] - end[boundary];
            *wanted = open;
        }
        Self {
            cells: to_grid(cells),
            wanted,
        }
    }
}

fn cell(gap: &Gap, share: u32) -> Cell {
    Cell {
        to: gap.to,
        share,
        inward: gap.inward,
        outward: gap.outward,
        from: gap.from,
        leaves: u64::from(gap.leaves.count()),
    }
}

/// The share of each gap, and the frames wanted at each boundary.
fn shares(gaps: &[Gap], slots: usize) -> (Vec<u32>, Vec<u32>) {
    let mut shares = Vec::with_capacity(gaps.len());
    let mut wanted = vec![0u32; slots + 1];
    // Leaves of one block in gaps, by boundary.
    let mut held = vec![0u32; slots + 1];
    for block in gaps.chunk_by(|one, other| one.block == other.block) {
        for gap in block {
            for boundary in gap.from..gap.to {
                let held = &mut held[boundary as usize];
                wanted[boundary as usize] += u32::from(*held == 0);
                *held += gap.leaves.count();
            }
        }
        for gap in block {
            let least = if gap.leaves == Leaves::ALL {
                LEAVES
            } else {
                let span = &held[gap.from as usize..gap.to as usize];
                span.iter().copied().min().unwrap_or(LEAVES)
            };
            let share = SHARES.into_iter().find(|share| *share <= least);
            shares.push(share.unwrap_or(1));
        }
        for gap in block {
            held[gap.from as usize..gap.to as usize].fill(0);
        }
    }
    (shares, wanted)
}
