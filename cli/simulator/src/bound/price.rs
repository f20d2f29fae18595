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

use super::gaps::Cell;
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
        for cells in self.cells.chunk_by(same_pool) {
            let first = cells.iter().map(|cell| cell.from).min().unwrap_or(0);
            let (to, share) = (cells[0].to as usize, f64::from(cells[0].share));
            let comes = if cells[0].tail { 0.0 } else { pay[to][0] };
            least_costs(
                &prices,
                &pay,
                first as usize..to,
                (share, comes),
                &mut costs,
            );
            for cell in cells {
                add(cell.leaves as f64 * costs[cell.from as usize]);
            }
        }
        // Sums of this many terms are exact to far better than this.
        sum - size * 1e-10
    }
}

/// Gaps that differ in their beginnings alone.
pub(super) fn same_pool(one: &Cell, other: &Cell) -> bool {
    (one.to, one.share, one.tail) == (other.to, other.share, other.tail)
}

/// The least cost of a gap that ends in slot `span.end`, by the slot in which it begins; `comes`
/// is what coming in at its end costs.
fn least_costs(
    prices: &Prices,
    pay: &[[f64; 2]],
    span: std::ops::Range<usize>,
    (share, comes): (f64, f64),
    costs: &mut [f64],
) {
    // From the boundary at hand to the end: while it is there, while it is away.
    let (mut there, mut away) = (0.0f64, comes);
    for boundary in span.rev() {
        away -= prices.frame[boundary] / share;
        let [inward, outward] = pay[boundary];
        let stays = there.min(outward + away);
        costs[boundary] = stays;
        away = away.min(inward + there);
        there = stays;
    }
}
