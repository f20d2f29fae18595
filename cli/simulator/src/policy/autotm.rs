//! AutoTM: placement and movement as an integer program over the profiled graph.
//!
//! Hildebrand et al., ASPLOS 2020, section 4: for every tensor and every gap between its
//! uses, whether it stays on the device or goes and comes back, at the least total time of
//! movement that no kernel hides, so that each kernel's memory fits.
//!
//! The program here: choose frames of each idle period to evict, such that at every launch
//! the frames taken away are at least those too many, at the least sum of costs. Its
//! matrix has consecutive ones, so the linear relaxation is exact; it is solved by pricing
//! the launches (Lagrangian relaxation, subgradient steps), then rounded: periods are taken
//! by reduced cost until all fits, and those that turn out to be superfluous given back,
//! dearest first. [`ROUNDS`] rounds, each linear in the trace.
//!
//! Choices: a period costs the time of its two transfers that does not fit into it, plus a
//! hundredth of that which does (a tie between hidden ones goes to the smaller); asynchronous
//! movement as in section 4.4, begun as late as is in time; a period that the link cannot
//! carry in time is moved synchronously at its launch.

use crate::class::{Future, FuturePolicy};
use crate::machine::Machine;
use crate::model::Room;
use crate::units::BLOCK_BYTES;

use super::plan::{Fallback, Gaps, Levels, Scripted, Way, latest, relieve, script, times};
use super::{Entry, Make};

pub(super) const ENTRY: Entry = Entry {
    name: "autotm",
    about: "AutoTM (ASPLOS 2020): placement by a linear program over the profiled graph",
    make: Make::Future(make),
};

/// Percent of the device that stays free.
const SPARE: u64 = 2;
/// Subgradient steps.
const ROUNDS: u32 = 64;

fn make<'p>(machine: &Machine, future: Future<'p>) -> Box<dyn FuturePolicy + 'p> {
    let gaps = Gaps::of(future);
    let times = times(&gaps);
    let frames = machine.memory_bytes / BLOCK_BYTES * (100 - SPARE) / 100;
    let line = u32::try_from(frames).unwrap_or(u32::MAX);
    let mut way = Way::link(machine, &times);
    let costs = costs(&gaps, &way);
    let prices = prices(&gaps, &costs, line);
    let mut order: Vec<u32> = (0..gaps.list().len() as u32).collect();
    let reduced = reduced(&gaps, &costs, &prices);
    order.sort_by(|&a, &b| {
        reduced[a as usize]
            .total_cmp(&reduced[b as usize])
            .then(a.cmp(&b))
    });
    let chosen = relieve(&gaps, order, &times, line);
    let chosen = without_superfluous(&gaps, &costs, chosen, line);
    let script = script(&gaps, &latest(&gaps, chosen, &mut way));
    Box::new(Scripted::new(
        future.program,
        gaps,
        script,
        Room::Take,
        Fallback::Furthest,
    ))
}

/// Nanoseconds for each frame of each period.
fn costs(gaps: &Gaps, way: &Way) -> Vec<f64> {
    let cost = |gap| {
        let transfers = way.cost(gap).0 as f64;
        let idle = gaps.idle(gap).0 as f64;
        let hidden = transfers.min(idle);
        (transfers - hidden + hidden / 100.0) / f64::from(gap.frames().max(1))
    };
    gaps.list().iter().map(cost).collect()
}

/// Cost of each period less what the launches within it would pay for its frames.
fn reduced(gaps: &Gaps, costs: &[f64], prices: &[f64]) -> Vec<f64> {
    let mut until = vec![0.0; prices.len() + 1];
    for (launch, price) in prices.iter().enumerate() {
        until[launch + 1] = until[launch] + price;
    }
    let pay = |(gap, cost): (&super::plan::Gap, &f64)| {
        cost - (until[gap.to as usize] - until[gap.from as usize + 1])
    };
    gaps.list().iter().zip(costs).map(pay).collect()
}

/// What a frame is worth during each launch: the multipliers of the capacity.
fn prices(gaps: &Gaps, costs: &[f64], line: u32) -> Vec<f64> {
    let launches = gaps.launches() as usize;
    let mut prices = vec![0.0; launches];
    let over = |launch: usize| (i64::from(gaps.occupied()[launch]) - i64::from(line)).max(0);
    if (0..launches).all(|launch| over(launch) == 0) {
        return prices;
    }
    let dearest = costs.iter().copied().fold(0.0, f64::max);
    for round in 0..ROUNDS {
        let mut taken = vec![0i64; launches + 1];
        for (gap, reduced) in gaps.list().iter().zip(reduced(gaps, costs, &prices)) {
            if reduced < 0.0 {
                taken[gap.from as usize + 1] += i64::from(gap.frames());
                taken[gap.to as usize] -= i64::from(gap.frames());
            }
        }
        let mut lacking = Vec::with_capacity(launches);
        let (mut now, mut norm) = (0, 0.0);
        for (launch, change) in taken[..launches].iter().enumerate() {
            now += change;
            // Where nothing is too much, nothing is worth anything.
            let lack = if over(launch) == 0 {
                0
            } else {
                over(launch) - now
            };
            norm += (lack * lack) as f64;
            lacking.push(lack as f64);
        }
        if norm == 0.0 {
            break;
        }
        let step = dearest / f64::from(round + 1) / norm.sqrt();
        for (price, lack) in prices.iter_mut().zip(lacking) {
            *price = (*price + step * lack).max(0.0);
        }
    }
    prices
}

/// Gives back, dearest first, what is not needed for all to fit.
fn without_superfluous(gaps: &Gaps, costs: &[f64], chosen: Vec<u32>, line: u32) -> Vec<u32> {
    // Frames too many: a period can stay where it lifts nothing above the line.
    let mut levels = Levels::new(gaps.occupied().iter().map(|&frames| i64::from(frames)));
    for &number in &chosen {
        let gap = &gaps.list()[number as usize];
        levels.add(gap.from + 1, gap.to, -i64::from(gap.frames()));
    }
    let mut order = chosen;
    let whole =
        |number: u32| costs[number as usize] * f64::from(gaps.list()[number as usize].frames());
    order.sort_by(|&a, &b| whole(b).total_cmp(&whole(a)).then(a.cmp(&b)));
    order.retain(|&number| {
        let gap = &gaps.list()[number as usize];
        let frames = i64::from(gap.frames());
        let full = levels.last_above(gap.to, i64::from(line) - frames);
        let stays = full.is_none_or(|launch| launch <= gap.from);
        if stays {
            levels.add(gap.from + 1, gap.to, frames);
        }
        !stays
    });
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::checks::{contract, machine};
    use crate::policy::samples::Training;
    use crate::units::Nanos;

    #[test]
    fn keeps_the_contract() {
        contract(&ENTRY);
    }

    #[test]
    fn the_plan_is_near_the_relaxations_own_bound() {
        let training = Training {
            layers: 24,
            ..Training::SMALL
        };
        let program = training.program();
        let gaps = Gaps::of(Future {
            program: &program,
            lifetimes: true,
        });
        let times = times(&gaps);
        let way = Way::link(&machine(100), &times);
        let costs = costs(&gaps, &way);
        let line = 90;
        let prices = prices(&gaps, &costs, line);
        let reduced = reduced(&gaps, &costs, &prices);
        // The dual: what the launches pay for, less what the periods gain by it.
        let mut dual = 0.0;
        for (price, &frames) in prices.iter().zip(gaps.occupied()) {
            dual += price * (f64::from(frames) - f64::from(line));
        }
        for (gap, gain) in gaps.list().iter().zip(&reduced) {
            dual += gain.min(0.0) * f64::from(gap.frames());
        }
        let mut order: Vec<u32> = (0..gaps.list().len() as u32).collect();
        order.sort_by(|&a, &b| reduced[a as usize].total_cmp(&reduced[b as usize]));
        let chosen = relieve(&gaps, order, &times, line);
        let chosen = without_superfluous(&gaps, &costs, chosen, line);
        let whole = |n: &u32| costs[*n as usize] * f64::from(gaps.list()[*n as usize].frames());
        let primal: f64 = chosen.iter().map(whole).sum();
        assert!(dual > 0.0 && dual <= primal * 1.000_001, "{dual} {primal}");
        assert!(primal < 2.0 * dual, "{dual} {primal}");
        assert!(
            chosen
                .iter()
                .all(|&n| gaps.idle(&gaps.list()[n as usize]) > Nanos(0))
        );
    }
}
