//! What it costs the link that content is away, and how such costs are rounded.
//!
//! Costs are counted in [`WHOLE_LEAF`] parts of what it takes to move a leaf whole. Methods that
//! look at gaps one kind after the other want few kinds, so costs are kept to those of a
//! [`GRID`]. Rounding down would give away up to a third. But the least that a gap costs is the
//! least over ways to be away, each of which costs a sum of (price x cost inward) and (price x
//! cost outward): it is concave in the two costs together. So if of many like gaps some are
//! counted at the value of the grid above theirs and the others at the one below, in proportions
//! that keep the mean, they cost no more together than they do in truth.

use super::counts::Cell;

/// Parts in what it takes to move a leaf: 128 bytes each, a transaction of the link.
pub(super) const WHOLE_LEAF: u32 = 512;

/// The values that [`Cell::inward`] and [`Cell::outward`] are of.
const GRID: [u32; 15] = [
    0, 1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, WHOLE_LEAF,
];

/// Where a cost lies on the grid: the value below, the value above, and how far it is from the
/// one to the other, in [`ONE`].
fn place(cost: u32) -> (u32, u32, u64) {
    let cost = cost.min(WHOLE_LEAF);
    let above = GRID.partition_point(|value| *value < cost);
    let upper = GRID[above];
    if upper == cost {
        return (cost, cost, 0);
    }
    let lower = GRID[above - 1];
    let share = u64::from(cost - lower) * ONE / u64::from(upper - lower);
    (lower, upper, share)
}

/// A whole leaf, in the sums of shares.
const ONE: u64 = 1 << 10;

/// Cells of any costs as cells of the grid, sorted, with those that differ in nothing else added
/// up. Of each kind together no more than a leaf per value of the grid is rounded down.
pub(super) fn to_grid(mut exact: Vec<Cell>) -> Vec<Cell> {
    exact.sort_unstable_by_key(|cell| {
        let (inward, outward) = (place(cell.inward).0, place(cell.outward).0);
        (cell.to, cell.share, cell.from, inward, outward)
    });
    let mut cells = Vec::new();
    let same = |one: &Cell, other: &Cell| {
        let kind = |cell: &Cell| {
            let (inward, outward) = (place(cell.inward), place(cell.outward));
            let costs = (inward.0, inward.1, outward.0, outward.1);
            (cell.to, cell.share, cell.from, costs)
        };
        kind(one) == kind(other)
    };
    for alike in exact.chunk_by(same) {
        let (inward, outward) = (place(alike[0].inward), place(alike[0].outward));
        // As if each leaf drew its two costs by itself: how many draw which.
        let (mut all, mut drawn) = (0, [0u64; 3]);
        for cell in alike {
            let (more, out) = (place(cell.inward).2, place(cell.outward).2);
            all += cell.leaves;
            drawn[0] += cell.leaves * more * out;
            drawn[1] += cell.leaves * more * (ONE - out);
            drawn[2] += cell.leaves * (ONE - more) * out;
        }
        let drawn = drawn.map(|sum| sum / (ONE * ONE));
        let least = all - drawn.iter().sum::<u64>();
        let counts = [
            (inward.1, outward.1, drawn[0]),
            (inward.1, outward.0, drawn[1]),
            (inward.0, outward.1, drawn[2]),
            (inward.0, outward.0, least),
        ];
        let counts = counts.into_iter().filter(|(.., leaves)| *leaves > 0);
        cells.extend(counts.map(|(inward, outward, leaves)| Cell {
            inward,
            outward,
            leaves,
            ..alike[0]
        }));
    }
    merge(&mut cells);
    cells
}

/// Sorts cells and adds up those that differ in nothing else.
pub(super) fn merge(cells: &mut Vec<Cell>) {
    cells.sort_unstable();
    cells.dedup_by(|next, kept| {
        let same = next.from == kept.from && next.pool() == kept.pool();
        if same {
            kept.leaves += next.leaves;
        }
        same
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(inward: u32, outward: u32, leaves: u64) -> Cell {
        Cell {
            to: 5,
            share: 32,
            inward,
            outward,
            from: 2,
            leaves,
        }
    }

    fn sums(cells: &[Cell]) -> [u64; 3] {
        let sum = |of: fn(&Cell) -> u64| cells.iter().map(of).sum();
        [
            sum(|cell| cell.leaves),
            sum(|cell| cell.leaves * u64::from(cell.inward)),
            sum(|cell| cell.leaves * u64::from(cell.outward)),
        ]
    }

    #[test]
    fn the_grid_keeps_what_many_leaves_cost_together() {
        let exact = vec![cell(301, 0, 1000), cell(290, 7, 1000), cell(512, 512, 9)];
        let grid = to_grid(exact.clone());
        let ([leaves, inward, outward], [count, truth_in, truth_out]) = (sums(&grid), sums(&exact));
        assert_eq!(leaves, count);
        assert!(inward <= truth_in && inward * 1000 >= truth_in * 995);
        assert!(outward <= truth_out && outward * 100 >= truth_out * 99);
        assert!(grid.iter().all(|cell| GRID.contains(&cell.inward)));
        assert_eq!(grid.iter().filter(|cell| cell.inward == 512).count(), 1);
    }

    #[test]
    fn one_leaf_is_rounded_down() {
        assert_eq!(to_grid(vec![cell(301, 7, 1)]), [cell(256, 4, 1)]);
        assert_eq!(to_grid(vec![cell(9999, 0, 1)]), [cell(512, 0, 1)]);
    }
}
