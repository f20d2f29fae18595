//! LB1: the volume that any policy must move, as if all of it could be moved at any time.
//!
//! Which gaps to keep is Belady's question, and his rule answers it: sweep the boundaries,
//! and where more is in gaps than the frames hold, give up first what is used last. In the
//! reverse direction of time the same rule gives the least volume out. Leaves are counted,
//! 32 to a frame, so that all units are equal and the rule is exact; what was there when the
//! stretch began may be whatever suits best, and so may what is there when it ends.

use super::counts::{Cell, Counted};
use super::slots::Slots;
use crate::units::LEAVES;

/// Least leaves in and out over the whole stretch.
///
/// `widest`: everything that a launch touches is on the device at one instant, by slot at most so
/// many leaves; otherwise only what an access touches.
pub(super) fn least(
    slots: &Slots,
    leaves: &Counted,
    frames: u64,
    widest: Option<&[u64]>,
) -> (u64, u64) {
    let count = slots.len();
    let held = frames * u64::from(LEAVES);
    let limits = widest.map(|widest| {
        let limits = widest.iter();
        limits.map(|widest| held.saturating_sub(*widest)).collect()
    });
    let span = |cell: &Cell| Span {
        from: cell.from as usize,
        to: cell.to as usize,
        leaves: cell.leaves,
    };
    // A tail away never comes in.
    let uses = leaves.cells.iter().filter(|cell| cell.inward > 0).map(span);
    let inward = sweep(count, held, limits.as_deref(), uses);
    let backward = leaves.cells.iter().map(span).map(|span| Span {
        from: count + 1 - span.to,
        to: count + 1 - span.from,
        ..span
    });
    let limits = limits.map(|mut limits: Vec<u64>| {
        limits.reverse();
        limits
    });
    let outward = sweep(count, held, limits.as_deref(), backward);
    (inward, outward)
}

/// Leaves in a gap across the boundaries `from .. to`.
#[derive(Clone, Copy)]
struct Span {
    from: usize,
    to: usize,
    leaves: u64,
}

/// Gives up gaps, those that end last first; the sum of those given up that cost anything.
fn sweep(count: usize, held: u64, limits: Option<&[u64]>, gaps: impl Iterator<Item = Span>) -> u64 {
    let mut begin: Vec<Vec<Span>> = vec![Vec::new(); count + 2];
    for gap in gaps {
        begin[gap.from].push(gap);
    }
    // By end: what is kept. Only gaps beyond the stretch cost nothing, and they end last.
    let mut kept = vec![0u64; count + 2];
    let (mut sum, mut cost) = (0, 0);
    let mut give_up = |kept: &mut [u64], sum: &mut u64, end: usize, limit: u64| {
        let mut last = count + 1;
        while *sum > limit && last > end {
            let less = kept[last].min(*sum - limit);
            kept[last] -= less;
            *sum -= less;
            if last <= count {
                cost += less;
            }
            last -= 1;
        }
    };
    for boundary in 0..=count {
        // What is used in this slot is there anyhow; the rest spans the slot.
        sum -= std::mem::take(&mut kept[boundary]);
        if let Some(limits) = limits
            && boundary > 0
        {
            give_up(&mut kept, &mut sum, boundary, limits[boundary]);
        }
        for gap in &begin[boundary] {
            kept[gap.to] += gap.leaves;
            sum += gap.leaves;
        }
        give_up(&mut kept, &mut sum, boundary, held);
    }
    cost
}
