//! A lower bound from prices: the Lagrangian of the transfer problem.
//!
//! Put a price on a frame at each boundary and on a nanosecond of each direction of the link
//! in each slot, so that in no slot the link's prices sum to more than 1 (the price of a
//! nanosecond of the device). Then no schedule takes less than
//!
//! > sum of slots: compute x (1 - link prices) + sum of boundaries: frame price x (frames
//! > wanted - frames there are) + sum of gaps: the least that the gap can cost at these
//! > prices, or 0
//!
//! where a gap earns the frame prices of the boundaries at which it is away and pays the
//! link's prices in the slots in which it leaves and comes. This is weak duality: **any**
//! prices give a bound, whoever made them and however inexactly. So what an LP solver says
//! of its own accuracy does not matter, and an LP over an average iteration may propose
//! prices that are then applied to the whole stretch, gap by gap.

use super::cost::WHOLE_LEAF;
use super::counts::Cell;
use crate::units::LEAVES;

/// Prices by slot (`0 ..= count + 1`) and boundary (`0 ..= count`).
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Prices {
    /// Of a frame at each boundary, nanoseconds.
    pub frame: Vec<f64>,
    /// Of a nanosecond of the link in each slot: inward, outward, joint.
    pub link: Vec<[f64; 3]>,
}

impl Prices {
    pub fn free(count: usize) -> Self {
        Self {
            frame: vec![0.0; count + 1],
            link: vec![[0.0; 3]; count + 2],
        }
    }

    /// Makes any prices admissible: none negative or infinite, none outside of the stretch,
    /// and the link's at most 1 together.
    pub fn admit(&mut self) {
        let clean = |price: &mut f64| {
            if !price.is_finite() || *price < 0.0 {
                *price = 0.0;
            }
        };
        self.frame.iter_mut().for_each(clean);
        let last = self.link.len() - 1;
        for (slot, link) in self.link.iter_mut().enumerate() {
            link.iter_mut().for_each(clean);
            let sum: f64 = link.iter().sum();
            if slot == 0 || slot == last {
                *link = [0.0; 3];
            } else if sum > 1.0 {
                link.iter_mut().for_each(|price| *price /= sum);
            }
        }
    }
}

/// A stretch, as the transfer problem sees it.
pub(super) struct Stretch<'a> {
    /// Compute time by slot, nanoseconds.
    pub times: &'a [u64],
    /// Leaves wanted by boundary.
    pub wanted: &'a [u64],
    /// Sorted.
    pub cells: &'a [Cell],
    /// Frames there are.
    pub frames: u64,
    /// Nanoseconds for a leaf: inward, outward, joint (0 where there is no cap).
    pub leaf: [f64; 3],
}

impl Stretch<'_> {
    /// The bound that these prices give, nanoseconds. Makes them admissible first.
    pub fn bound(&self, mut prices: Prices) -> f64 {
        prices.admit();
        let count = self.times.len() - 2;
        let (mut sum, mut size) = (0.0, 0.0);
        let mut add = |value: f64| {
            sum += value;
            size += value.abs();
        };
        for (time, link) in self.times.iter().zip(&prices.link) {
            add(*time as f64 * (1.0 - link.iter().sum::<f64>()).max(0.0));
        }
        for (wanted, price) in self.wanted.iter().zip(&prices.frame) {
            add(price * (*wanted as f64 / f64::from(LEAVES) - self.frames as f64));
        }
        // What a leaf pays to come in or go out in each slot.
        let [inward, outward, joint] = self.leaf;
        let pay: Vec<[f64; 2]> = prices
            .link
            .iter()
            .map(|link| [link[0] * inward, link[1] * outward].map(|own| own + link[2] * joint))
            .collect();
        let mut costs = vec![0.0; count + 1];
        for cells in self.cells.chunk_by(|one, other| one.pool() == other.pool()) {
            let first = cells.iter().map(|cell| cell.from).min().unwrap_or(0);
            let span = first as usize..cells[0].to as usize;
            least_costs(&prices, &pay, span, &cells[0], &mut costs);
            for cell in cells {
                add(cell.leaves as f64 * costs[cell.from as usize]);
            }
        }
        // Sums of this many terms are exact to far better than this.
        sum - size * 1e-10
    }
}

/// The least cost of a gap like `cell` that ends in slot `span.end`, by the slot in which it
/// begins.
fn least_costs(
    prices: &Prices,
    pay: &[[f64; 2]],
    span: std::ops::Range<usize>,
    cell: &Cell,
    costs: &mut [f64],
) {
    let end = span.end;
    let share = f64::from(cell.share);
    let of_leaf = |cost: u32| f64::from(cost) / f64::from(WHOLE_LEAF);
    let [use_in, use_out] = [cell.inward, cell.outward].map(of_leaf);
    // From the boundary at hand to the end: while it is there, while it is away.
    let (mut there, mut away) = (0.0f64, use_in * pay[end][0]);
    for boundary in span.rev() {
        away -= prices.frame[boundary] / share;
        let [inward, outward] = [use_in * pay[boundary][0], use_out * pay[boundary][1]];
        let stays = there.min(outward + away);
        costs[boundary] = stays;
        away = away.min(inward + there);
        there = stays;
    }
}
