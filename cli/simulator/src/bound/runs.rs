//! Blocks taken as wholes: what it costs that a block holds no frame for a while.
//!
//! A block holds no frame at a boundary only if all of it that is in a gap there is away. Between
//! two neighbouring ends of its gaps, a **run**, these are the same gaps; so whoever is without
//! the frame anywhere in a run `[p, q)` has moved out, since then, what a gap begins with at `p`
//! that goes on beyond `q`, and moves in by `q` what a gap ends with there that began before
//! `p`. Each gap pays inward at its end and outward at its beginning, once, and so what runs cost
//! adds up. Whatever else is away is not counted. Where all of a block is always used together
//! that is exactly what its gaps cost.
//!
//! Runs may also reach over an end of some gaps, where these are few and little is used of them:
//! any choice of runs that do not overlap gives a bound. The one is taken that costs most, where
//! no run counts more than a rate that the block is worth in the mean.

use super::cost::WHOLE_LEAF;
use super::counts::Cell;
use super::gaps::Gap;
use crate::units::LEAVES;

/// Ends of gaps that a run may reach over.
const OVER: usize = 4;
/// How many times what a block costs in the mean over time a run may count.
const WORTH: u64 = 2;

/// One end of some gaps of a block.
#[derive(Clone, Default)]
struct Point {
    slot: u32,
    /// Those that begin there, with the point at which each ends.
    begin: Vec<(usize, Gap)>,
    /// Those that end there, with the point at which each begins.
    end: Vec<(usize, Gap)>,
}

/// Adds the runs of one block, as 32 leaves of which all are away or none. `gaps` are all of it.
pub(super) fn runs(gaps: &[Gap], cells: &mut Vec<Cell>) {
    let mut slots: Vec<u32> = gaps.iter().flat_map(|gap| [gap.from, gap.to]).collect();
    slots.sort_unstable();
    slots.dedup();
    let point = |slot: &u32| Point {
        slot: *slot,
        ..Point::default()
    };
    let mut points: Vec<Point> = slots.iter().map(point).collect();
    let at = |slot: u32| slots.partition_point(|point| *point < slot);
    for gap in gaps {
        let (from, to) = (at(gap.from), at(gap.to));
        points[from].begin.push((to, *gap));
        points[to].end.push((from, *gap));
    }
    for (from, to) in choose(&points) {
        let (inward, outward) = cost(&points, from, to);
        if inward + outward > 0 {
            cells.push(Cell {
                to: points[to].slot,
                share: LEAVES,
                inward: (inward / LEAVES).min(WHOLE_LEAF),
                outward: (outward / LEAVES).min(WHOLE_LEAF),
                from: points[from].slot,
                leaves: u64::from(LEAVES),
            });
        }
    }
}

/// The runs that cost most, by the points at which they begin and end.
fn choose(points: &[Point]) -> Vec<(usize, usize)> {
    let length = |from: usize, to: usize| u64::from(points[to].slot - points[from].slot);
    let cost = |from, to| {
        let (inward, outward) = cost(points, from, to);
        u64::from(inward) + u64::from(outward)
    };
    let all: u64 = (1..points.len()).map(|to| cost(to - 1, to)).sum();
    let span = length(0, points.len() - 1).max(1);
    // By point: what the runs before it count at the most, and where the last of them begins.
    let mut best = vec![(0u64, 0usize); points.len()];
    for to in 1..points.len() {
        for from in (to.saturating_sub(OVER + 1)..to).rev() {
            let worth = (cost(from, to) * span).min(WORTH * all * length(from, to));
            let sum = best[from].0 + worth;
            if sum > best[to].0 || from + 1 == to {
                best[to] = (sum, from);
            }
        }
    }
    let mut chosen = Vec::new();
    let mut to = points.len() - 1;
    while to > 0 {
        let from = best[to].1;
        chosen.push((from, to));
        to = from;
    }
    chosen
}

/// What goes in and out at the least where all of a block is away somewhere between two points.
fn cost(points: &[Point], from: usize, to: usize) -> (u32, u32) {
    let ends = points[to].end.iter().filter(|(begin, _)| *begin <= from);
    let begins = points[from].begin.iter().filter(|(end, _)| *end >= to);
    let inward = ends.map(|(_, gap)| gap.leaves.count() * gap.inward).sum();
    let outward = begins
        .map(|(_, gap)| gap.leaves.count() * gap.outward)
        .sum();
    (inward, outward)
}
