//! LB2: the window bound, a dynamic program over ways to tile the stretch with windows.
//!
//! Take a window of slots `i + 1 ..= j`. Content that is used in it after a gap that began
//! before it is on the device when the window begins, or moves in during it; at most what
//! the frames hold can be there, the rest moves in. Content used in it and needed after it is
//! on the device when it ends, or moves out during it; again at most what the frames hold can
//! stay. (A tail is content needed after what comes before its end, and is used by nothing.)
//! So the window takes at least the time of its compute, of these bytes in, of these
//! bytes out, and of both under a joint cap. Windows that follow each other are disjoint in
//! time: their times add up. Any set of windows gives a bound, so coarse cuts do too.
//!
//! What the frames hold: of the gaps across a boundary, weighted by `1 / share`, at least
//! (frames wanted - frames there are) must be away; that those of the window are away costs
//! one leaf per leaf, and the others are away for nothing. The least cost is a fractional
//! knapsack, whose dual says: for every `theta`, a leaf of share `s` of which `u` must move
//! counts `min(u, theta / s)`, and `theta` times (frames there are + weight beyond the frames
//! wanted) is held. The best of all `u s` as `theta` is taken. Counted in leaves all shares are 32,
//! there is no weight beyond, and `theta` = 32 is the best: 32 leaves are held to a frame.

use std::collections::BTreeSet;

use super::cost::WHOLE_LEAF;
use super::counts::{Cell, Counted, SHARES};
use super::rates::Rates;
use super::slots::Slots;
use crate::units::LEAVES;

/// Frames are counted in so many parts: all weights are whole numbers.
const PARTS: u64 = 96;
/// And leaves in so many.
const LEAF_PARTS: u64 = PARTS * WHOLE_LEAF as u64;

/// The best tiling of the whole stretch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tiling {
    /// The sum of its windows' times, nanoseconds.
    pub time: u64,
    /// The boundaries at which its windows end, in order.
    pub ends: Vec<u32>,
}

/// Finds the best tiling; of equal ones one with few windows.
pub(super) fn tile(slots: &Slots, gaps: &Counted, rates: &Rates, frames: u64) -> Tiling {
    let count = slots.len();
    // Cells by their end: each boundary adds those that end in its slot.
    let mut ending: Vec<&[Cell]> = vec![&[]; count + 2];
    for cells in gaps.cells.chunk_by(|one, other| one.to == other.to) {
        ending[cells[0].to as usize] = cells;
    }
    let excess = excess(gaps, count);
    let mut sides: Vec<Sides> = thetas(gaps)
        .into_iter()
        .map(|theta| Sides::new(theta, frames, gaps, &excess))
        .collect();
    let mut best = vec![0u64; count + 1];
    let mut begin = vec![0usize; count + 1];
    let mut before = vec![0u64; count + 1];
    for j in 1..=count {
        before[j] = before[j - 1] + slots.times[j];
        for side in &mut sides {
            side.extend(j, ending[j]);
        }
        for i in (0..j).rev() {
            let mut time = before[j] - before[i];
            let mut most = [0; 3];
            for side in &mut sides {
                let (inward, outward) = side.window(i);
                let (inward, outward) = (inward / LEAF_PARTS, outward / LEAF_PARTS);
                for (most, leaves) in most.iter_mut().zip([inward, outward, inward + outward]) {
                    *most = leaves.max(*most);
                }
            }
            time = time.max(rates.least(most));
            if best[i] + time >= best[j] {
                best[j] = best[i] + time;
                begin[j] = i;
            }
        }
    }
    let mut ends = Vec::new();
    let mut end = count;
    while end > 0 {
        ends.push(end as u32);
        end = begin[end];
    }
    ends.reverse();
    Tiling {
        time: best[count],
        ends,
    }
}

/// The `theta` to try, of [`WHOLE_LEAF`]. Where whole leaves move, the shares.
fn thetas(gaps: &Counted) -> BTreeSet<u64> {
    let mut thetas = BTreeSet::from([u64::from(LEAVES * WHOLE_LEAF)]);
    let shares = SHARES.into_iter();
    let finest = gaps.cells.iter().map(|cell| cell.share).min();
    let used = shares.filter(|share| finest.is_some_and(|finest| finest <= *share));
    thetas.extend(used.map(|share| u64::from(share * WHOLE_LEAF)));
    for cell in &gaps.cells {
        for cost in [cell.inward, cell.outward] {
            thetas.insert(u64::from(cell.share * cost));
        }
    }
    thetas.remove(&0);
    thetas
}

/// What must move in each window that ends at one boundary, for one `theta`.
struct Sides {
    /// Of [`WHOLE_LEAF`].
    theta: u64,
    /// What the frames hold across each boundary, in parts of leaves.
    held: Vec<u64>,
    /// The boundary at which windows end.
    end: usize,
    /// By boundary `i`: weight that is used in the window and comes from before it.
    inward: Vec<u64>,
    /// By slot: weight of gaps that begin in it and reach beyond the window.
    leaving: Vec<u64>,
    /// Weight of gaps that begin within the window at hand and reach beyond it.
    outward: u64,
    /// By slot: what begins in it, and where it ends.
    begins: Vec<u64>,
}

impl Sides {
    fn new(theta: u64, frames: u64, gaps: &Counted, excess: &[u64]) -> Self {
        let count = excess.len() - 1;
        let mut begins = vec![0; count + 2];
        for cell in &gaps.cells {
            begins[cell.from as usize] += weight(theta, cell, cell.outward);
        }
        let held = |excess: &u64| theta * (frames * PARTS + excess);
        let mut leaving = vec![0; count + 2];
        leaving[0] = begins[0];
        Self {
            theta,
            held: excess.iter().map(held).collect(),
            end: 0,
            inward: vec![0; count + 1],
            leaving,
            outward: 0,
            begins,
        }
    }

    /// Windows now end at boundary `j`; `ending` are the gaps that end in slot `j`.
    fn extend(&mut self, j: usize, ending: &[Cell]) {
        self.end = j;
        self.leaving[j] = self.begins[j];
        self.outward = 0;
        let mut since = vec![0; j];
        for cell in ending {
            self.leaving[cell.from as usize] -= weight(self.theta, cell, cell.outward);
            // What dies in the window need not be there: it counts nothing.
            since[cell.from as usize] += weight(self.theta, cell, cell.inward);
        }
        // A gap from slot `a` comes from before every window that begins at `a` or later.
        let mut from_before = 0;
        for (i, weight) in since.into_iter().enumerate() {
            from_before += weight;
            self.inward[i] += from_before;
        }
    }

    /// Weights that move in and out at least in the window from boundary `i`; boundaries
    /// must come from the latest to the first.
    fn window(&mut self, i: usize) -> (u64, u64) {
        self.outward += self.leaving[i + 1];
        (
            self.inward[i].saturating_sub(self.held[i]),
            self.outward.saturating_sub(self.held[self.end]),
        )
    }
}

/// By boundary: weight of the gaps across it beyond the frames wanted, in parts of frames.
fn excess(gaps: &Counted, count: usize) -> Vec<u64> {
    let mut steps = vec![0i64; count + 2];
    for cell in &gaps.cells {
        let weight = (cell.leaves * PARTS / u64::from(cell.share)) as i64;
        steps[cell.from as usize] += weight;
        steps[cell.to as usize] -= weight;
    }
    let mut weight = 0;
    let wanted = gaps.wanted.iter();
    let over = wanted.zip(steps).map(|(wanted, step)| {
        weight += step;
        (weight as u64).saturating_sub(*wanted * PARTS / u64::from(LEAVES))
    });
    over.collect()
}

/// What a cell counts, in parts of leaves, where so much of each leaf must move.
fn weight(theta: u64, cell: &Cell, cost: u32) -> u64 {
    let share = u64::from(cell.share);
    cell.leaves * PARTS * theta.min(share * u64::from(cost)) / share
}
