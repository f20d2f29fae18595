//! LB3's prices, from a linear program solved with HiGHS.
//!
//! The program is the transfer problem on slots, streaming: what is used in a slot is there
//! at the slot's beginning or comes during it; what leaves may leave during the slot in which
//! it was used. It minimises the time by which the slots are longer than their compute.
//! Leaves that are used next in the same slot (and have the same share) are one object,
//! whenever they were used last: once idle they differ in nothing, so this is exact. Its dual
//! values are the prices that [`super::price`] turns into a bound; nothing here has to be
//! exact, or even right, for the bound to hold.
//!
//! Deterministic: one thread, limits on sizes and iterations, never on time.

use highs::{ColProblem, Row, Sense};

use super::coarse::Coarse;
use super::cost::WHOLE_LEAF;
use super::counts::{Cell, Counted};
use super::price::{Prices, Stretch};
use super::slots::Slots;
use super::window::Tiling;

/// Most columns of the linear program.
const COLUMNS: usize = 40_000;
/// Numbers of slots to try, the first whose program is small enough.
const COUNTS: [usize; 6] = [192, 144, 112, 80, 56, 40];

/// The bound of the prices found, nanoseconds; none where the linear program would be too
/// large or gave no prices.
///
/// The program's slots end where the windows of LB2's best tiling end, and some more. LB2's
/// windows are prices too (a link that is priced throughout a window, frames at the boundary
/// where it begins or ends), so with exact arithmetic the program's are no worse.
pub(super) fn bound(
    slots: &Slots,
    gaps: &Counted,
    tiling: &Tiling,
    frames: u64,
    leaf: [f64; 3],
) -> Option<f64> {
    COUNTS.iter().find_map(|count| {
        let coarse = Coarse::of(slots, gaps, &tiling.ends, *count);
        let transfer = Transfer {
            stretch: &coarse,
            frames,
            leaf,
        };
        if transfer.columns() > COLUMNS {
            return None;
        }
        let stretch = Stretch {
            times: &coarse.times,
            wanted: &coarse.wanted,
            cells: &coarse.cells,
            frames,
            leaf,
        };
        Some(stretch.bound(transfer.prices()?))
    })
}

/// The transfer problem over some slots.
struct Transfer<'a> {
    /// Slots, boundaries and gaps.
    stretch: &'a Coarse,
    /// Frames there are.
    frames: u64,
    /// Nanoseconds for a leaf: inward, outward, joint (0 where there is no cap).
    leaf: [f64; 3],
}

/// Most iterations of the simplex method. Where it stops early its prices are poorer, and the
/// bound is lower, but a bound.
const ITERATIONS: i32 = 60_000;
/// Leaves in the program's unit of content.
const UNIT: f64 = 32.0;
/// Nanoseconds in the program's unit of time.
const TIME: f64 = 1e3;

impl Transfer<'_> {
    /// How many columns the program has.
    fn columns(&self) -> usize {
        let pools = self.stretch.cells.chunk_by(same_pool);
        let lengths = pools.map(|pool| (pool[0].to - pool[0].from) as usize);
        3 * lengths.sum::<usize>() + self.stretch.len()
    }

    /// Prices; none where the solver has none to give.
    fn prices(&self) -> Option<Prices> {
        let count = self.stretch.len();
        let mut problem = ColProblem::default();
        let times = self.stretch.times[1..=count].iter();
        let links: Vec<[Row; 3]> = times
            .map(|time| [(); 3].map(|()| problem.add_row(..=*time as f64 / TIME)))
            .collect();
        let caps: Vec<Row> = self
            .short()
            .into_iter()
            .map(|short| problem.add_row(short..))
            .collect();
        for rows in &links {
            let rows = rows.map(|row| (row, -1.0));
            problem.add_column(1.0, 0.0.., rows);
        }
        for pool in self.stretch.cells.chunk_by(same_pool) {
            self.add_pool(&mut problem, pool, &links, &caps);
        }
        let mut model = problem.try_optimise(Sense::Minimise).ok()?;
        model.make_quiet();
        for (option, value) in [("solver", "simplex"), ("parallel", "off")] {
            model.try_set_option(option, value).ok()?;
        }
        model.try_set_option("threads", 1).ok()?;
        model
            .try_set_option("simplex_iteration_limit", ITERATIONS)
            .ok()?;
        let solved = model.try_solve().ok()?;
        let solution = solved.get_solution();
        let duals = solution.dual_rows();
        let mut prices = Prices::free(count);
        for (slot, link) in prices.link[1..=count].iter_mut().enumerate() {
            *link = [0, 1, 2].map(|kind| -duals[3 * slot + kind]);
        }
        for (boundary, frame) in prices.frame.iter_mut().enumerate() {
            *frame = duals[3 * count + boundary] * TIME;
        }
        Some(prices)
    }

    /// Frames to be saved by boundary, no more than the gaps across it can save.
    fn short(&self) -> Vec<f64> {
        let mut most = vec![0.0; self.stretch.wanted.len()];
        for cell in &self.stretch.cells {
            for most in &mut most[cell.from as usize..cell.to as usize] {
                *most += cell.leaves as f64 / f64::from(cell.share);
            }
        }
        let wanted = self.stretch.wanted.iter().zip(most);
        wanted
            .map(|(wanted, most)| {
                let short = *wanted as f64 / UNIT - self.frames as f64;
                short.min(most * (1.0 - 1e-9)).max(0.0)
            })
            .collect()
    }

    /// Adds the columns and rows of the gaps that end in one slot.
    fn add_pool(&self, problem: &mut ColProblem, pool: &[Cell], links: &[[Row; 3]], caps: &[Row]) {
        let (first, to) = (pool[0].from, pool[0].to);
        let saved = UNIT / f64::from(pool[0].share);
        let moves =
            [pool[0].inward, pool[0].outward].map(|cost| f64::from(cost) / f64::from(WHOLE_LEAF));
        let mut gaps = pool.iter().peekable();
        let mut idle = 0.0;
        // away[at] = away[at - 1] + out[at] - in[at], by boundary.
        let mut balance = problem.add_row(0.0..=0.0);
        for at in first..to {
            while let Some(gap) = gaps.next_if(|gap| gap.from == at) {
                idle += gap.leaves as f64 / UNIT;
            }
            let moved = |kind, balanced: f64| {
                let link = self.link(at, kind, moves[kind], links);
                link.into_iter().flatten().chain([(balance, balanced)])
            };
            problem.add_column(0.0, 0.0.., moved(1, -1.0));
            if at > first {
                problem.add_column(0.0, 0.0.., moved(0, 1.0));
            }
            let cap = caps[at as usize];
            let mut rows = vec![(balance, 1.0), (cap, saved)];
            if at + 1 < to {
                balance = problem.add_row(0.0..=0.0);
                rows.push((balance, -1.0));
            } else {
                rows.extend(self.link(to, 0, moves[0], links).into_iter().flatten());
            }
            problem.add_column(0.0, 0.0..=idle, rows);
        }
    }

    /// The link's rows that a unit moved in a slot, or so much of it, counts in: 0 inward, 1
    /// outward. None before and after the stretch.
    fn link(
        &self,
        slot: u32,
        kind: usize,
        part: f64,
        links: &[[Row; 3]],
    ) -> [Option<(Row, f64)>; 2] {
        let rows = (slot as usize)
            .checked_sub(1)
            .and_then(|slot| links.get(slot));
        let row = |kind: usize| {
            let time = self.leaf[kind] * part * UNIT / TIME;
            rows.filter(|_| time > 0.0).map(|rows| (rows[kind], time))
        };
        [row(kind), row(2)]
    }
}

fn same_pool(one: &Cell, other: &Cell) -> bool {
    one.pool() == other.pool()
}
