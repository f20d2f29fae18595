//! Capuchin: measures tensor accesses in one iteration, then swaps by free time.
//!
//! Peng et al., ASPLOS'20. The first iteration runs in passive mode: out of memory evicts
//! the least recently used, a missing tensor is swapped in when it is accessed (section
//! 4.1), and all accesses are recorded. Then, for two accesses in a row of a tensor (section
//! 4.3): its swap-out ends at the end of the first plus size over the link's rate, its
//! swap-in must begin at the second less the same; what lies between is its free time, FT.
//! Candidates are tensors whose gap spans the time in which memory is over the limit;
//! they are taken by descending FT until the rest fits. The swap-in is triggered by the last access of any tensor before its start
//! (section 4.4). When a tensor is still on its way at its second access, its trigger moves
//! earlier by 5 % of its swap time for the next iteration.
//!
//! What it knows: the accesses of the iterations that it has seen, in order and in time, and
//! which tensor of one iteration is which of the next. Nothing ahead of them: an iteration
//! that launches something else than any before it runs in passive mode and is measured.
//!
//! Choices: recomputation (section 4.5) is left out, as a trace cannot run an operator
//! again; swapping takes what it would have taken, also at negative FT. Measured times are
//! undisturbed ones: the paper, too, takes its own waiting out of them. A trigger is kept
//! after the launch that lets the tensor go. Where the plan leaves too little room, passive
//! mode goes on beneath it, as in the paper.

use std::collections::HashMap;

use super::plan::Levels;
use super::swap::{Swapper, budget, fits};
use super::tensors::{Gap, Iteration, Role, TensorId, Tensors};
use super::{Entry, Make};
use crate::class::{Desk, Future, FutureNotice, FuturePolicy};
use crate::machine::Machine;
use crate::trace::{Block, Launch};
use crate::units::Nanos;

pub(super) const ENTRY: Entry = Entry {
    name: "capuchin",
    about: "Capuchin (ASPLOS'20): one iteration measured, swaps by free time, with feedback",
    make: Make::Future(make),
};

/// By how much of its swap time a late tensor is triggered earlier: one part of so many.
const FEEDBACK: u64 = 20;

fn make<'p>(machine: &Machine, future: Future<'p>) -> Box<dyn FuturePolicy + 'p> {
    let tensors = Tensors::of(future);
    Box::new(Capuchin {
        passive: fits(machine, &tensors),
        machine: machine.clone(),
        swapper: Swapper::new(tensors),
        plans: HashMap::new(),
        active: None,
    })
}

/// One swap, by its place in any iteration of the shape. Launches count from the start of
/// the iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Swap {
    role: Role,
    from: u32,
    to: u32,
    /// Time to swap in.
    back: Nanos,
    /// What feedback has added to it.
    earlier: Nanos,
}

/// The free time of a gap, negative where the copies take longer: FT, nanoseconds.
fn free_time(machine: &Machine, tensors: &Tensors<'_>, gap: Gap) -> i128 {
    let bytes = tensors.get(gap.tensor).bytes();
    let out = tensors.end(gap.from) + machine.link_out.time(bytes);
    let back = i128::from(tensors.start(gap.to).0) - i128::from(machine.link_in.time(bytes).0);
    back - i128::from(out.0)
}

/// Chooses from what one iteration's accesses were.
fn plan(machine: &Machine, tensors: &Tensors<'_>, number: usize) -> Vec<Swap> {
    let iteration = &tensors.iterations()[number];
    let first = iteration.launches.start;
    let mut gaps = gaps(tensors, iteration);
    gaps.sort_by_cached_key(|gap| {
        let free = free_time(machine, tensors, *gap);
        (std::cmp::Reverse(free), gap.tensor, gap.from)
    });
    let limit = budget(machine) as i64;
    let launches = iteration.launches.clone();
    let loads: Vec<i64> = launches.map(|at| tensors.load(Launch(at)) as i64).collect();
    let mut levels = Levels::new(loads.into_iter());
    let mut swaps = Vec::new();
    for gap in gaps {
        if levels.highest() <= limit {
            break;
        }
        let (from, to) = (gap.from.0 - first, gap.to.0 - first);
        if levels.last_above(to, limit).is_none_or(|over| over <= from) {
            continue;
        }
        let bytes = tensors.get(gap.tensor).bytes();
        let Some(role) = tensors.role(number, gap.tensor) else {
            continue;
        };
        levels.add(from + 1, to, -(bytes as i64));
        swaps.push(Swap {
            role,
            from,
            to,
            back: machine.link_in.time(bytes),
            earlier: Nanos(0),
        });
    }
    swaps
}

/// The gaps between accesses of an iteration.
fn gaps(tensors: &Tensors<'_>, iteration: &Iteration) -> Vec<Gap> {
    let mut last: HashMap<TensorId, Launch> = HashMap::new();
    let mut gaps = Vec::new();
    for launch in iteration.launches.clone().map(Launch) {
        for u in tensors.of_launch(launch) {
            let before = last.insert(u.tensor, launch);
            if let Some(from) = before
                && u.reads
                && launch.0 > from.0 + 1
            {
                gaps.push(Gap {
                    tensor: u.tensor,
                    from,
                    to: launch,
                });
            }
        }
    }
    gaps
}

/// The launch of an iteration whose start triggers a swap-in, from the iteration's start.
fn trigger(tensors: &Tensors<'_>, iteration: &Iteration, swap: &Swap) -> u32 {
    let first = iteration.launches.start;
    let due = tensors.start(Launch(first + swap.to));
    let launch = tensors.launch_at(due - swap.back - swap.earlier);
    let offset = launch.0.saturating_sub(first);
    offset.max(swap.from + 1).min(swap.to)
}

/// The plan at work in the iteration that runs. Numbers are of swaps in the plan.
struct Active {
    shape: u64,
    number: usize,
    tensors: Vec<Option<TensorId>>,
    outs: Vec<(u32, usize)>,
    triggers: Vec<(u32, usize)>,
    accesses: Vec<(u32, usize)>,
    out: usize,
    triggered: usize,
    accessed: usize,
}

impl Active {
    fn new(tensors: &Tensors<'_>, number: usize, swaps: &[Swap]) -> Self {
        let iteration = &tensors.iterations()[number];
        let sorted = |launch: &dyn Fn(&Swap) -> u32| {
            let mut order: Vec<(u32, usize)> = swaps
                .iter()
                .enumerate()
                .map(|(at, swap)| (launch(swap), at))
                .collect();
            order.sort_unstable();
            order
        };
        Self {
            shape: iteration.shape,
            number,
            tensors: swaps
                .iter()
                .map(|swap| tensors.with_role(number, swap.role))
                .collect(),
            outs: sorted(&|swap| swap.from),
            triggers: sorted(&|swap| trigger(tensors, iteration, swap)),
            accesses: sorted(&|swap| swap.to),
            out: 0,
            triggered: 0,
            accessed: 0,
        }
    }
}

/// The next number of a list whose launch has come.
fn next(list: &[(u32, usize)], at: &mut usize, offset: u32) -> Option<usize> {
    let &(launch, number) = list.get(*at)?;
    if launch > offset {
        return None;
    }
    *at += 1;
    Some(number)
}

struct Capuchin<'p> {
    /// Everything fits: nothing to plan.
    passive: bool,
    machine: Machine,
    swapper: Swapper<'p>,
    /// What was chosen, by the shape of the iteration.
    plans: HashMap<u64, Vec<Swap>>,
    active: Option<Active>,
}

impl Capuchin<'_> {
    fn starting(&mut self, launch: Launch, desk: &mut Desk<'_>) {
        let Some(number) = self.swapper.tensors.iteration_of(launch) else {
            return;
        };
        let iteration = &self.swapper.tensors.iterations()[number];
        let offset = launch.0 - iteration.launches.start;
        if offset == 0 {
            let swaps = self.plans.get(&iteration.shape);
            self.active = swaps.map(|swaps| Active::new(&self.swapper.tensors, number, swaps));
        }
        let Some(active) = &mut self.active else {
            return;
        };
        // Before anything else is done for this launch: what is not here now is late.
        while let Some(at) = next(&active.accesses, &mut active.accessed, offset) {
            if let Some(tensor) = active.tensors[at]
                && !self.swapper.is_here(tensor, desk)
                && let Some(swaps) = self.plans.get_mut(&active.shape)
            {
                feedback(&mut swaps[at]);
            }
        }
        while let Some(at) = next(&active.triggers, &mut active.triggered, offset) {
            if let Some(tensor) = active.tensors[at] {
                self.swapper.swap_in(tensor, desk);
            }
        }
    }

    fn finished(&mut self, launch: Launch, desk: &mut Desk<'_>) {
        let Some(number) = self.swapper.tensors.iteration_of(launch) else {
            return;
        };
        let iteration = &self.swapper.tensors.iterations()[number];
        let (launches, shape) = (iteration.launches.clone(), iteration.shape);
        if let Some(active) = &mut self.active
            && active.number == number
        {
            let offset = launch.0 - launches.start;
            while let Some(at) = next(&active.outs, &mut active.out, offset) {
                if let Some(tensor) = active.tensors[at] {
                    self.swapper.swap_out(tensor, desk);
                }
            }
        }
        let over = launch.0 + 1 == launches.end;
        if over && !self.passive && !self.plans.contains_key(&shape) {
            let swaps = plan(&self.machine, &self.swapper.tensors, number);
            self.plans.insert(shape, swaps);
        }
    }
}

/// A tensor was still on its way: it is triggered earlier from the next iteration on.
fn feedback(swap: &mut Swap) {
    swap.earlier += Nanos(swap.back.0 / FEEDBACK);
}

impl FuturePolicy for Capuchin<'_> {
    fn notice(&mut self, notice: FutureNotice<'_>, desk: &mut Desk<'_>) {
        if let FutureNotice::Starting(launch) = notice {
            self.starting(launch, desk);
        }
        self.swapper.notice(&notice, desk);
        if let FutureNotice::Finished(launch) = notice {
            self.finished(launch, desk);
        }
    }

    fn victim(&mut self, desk: &Desk<'_>) -> Option<Block> {
        self.swapper.victim(desk)
    }
}

#[cfg(test)]
mod tests {
    use super::super::checks::{self, machine};
    use super::super::samples::Training;
    use super::*;
    use crate::trace::Program;

    fn of(program: &Program) -> Tensors<'_> {
        Tensors::of(Future {
            program,
            lifetimes: true,
        })
    }

    #[test]
    fn those_with_the_most_free_time_go_until_the_rest_fits() {
        let training = Training::SMALL;
        let program = training.program();
        let tensors = of(&program);
        let machine = machine(40);
        let swaps = plan(&machine, &tensors, 0);
        let regions: Vec<_> = swaps
            .iter()
            .filter_map(|swap| tensors.with_role(0, swap.role))
            .map(|id| tensors.get(id).region)
            .collect();
        // The longest gaps are those of the first weights and activations; 13 blocks less.
        assert_eq!(regions[0], training.weights(0));
        assert!(regions.contains(&training.activation(0)));
        assert!(!regions.contains(&training.activation(6)));
        let bytes: u64 = regions.iter().map(|region| region.bytes).sum();
        assert!(bytes >= tensors.peak() - budget(&machine));
    }

    #[test]
    fn the_trigger_is_the_last_launch_that_starts_early_enough() {
        let training = Training::SMALL;
        let program = training.program();
        let tensors = of(&program);
        let swaps = plan(&machine(40), &tensors, 0);
        for swap in swaps {
            let iteration = &tensors.iterations()[1];
            let at = trigger(&tensors, iteration, &swap);
            let launch = |offset: u32| Launch(iteration.launches.start + offset);
            let need = tensors.start(launch(swap.to)) - swap.back;
            assert!(tensors.start(launch(at)) <= need);
            assert!(tensors.start(launch(at + 1)) > need);
        }
    }

    #[test]
    fn a_late_tensor_is_triggered_earlier_by_a_twentieth_of_its_swap_time() {
        let program = Training::SMALL.program();
        let tensors = of(&program);
        let mut swap = plan(&machine(40), &tensors, 0)[1];
        let iteration = &tensors.iterations()[1];
        let before = trigger(&tensors, iteration, &swap);
        feedback(&mut swap);
        assert_eq!(swap.earlier, Nanos(swap.back.0 / 20));
        for _ in 0..400 {
            feedback(&mut swap);
        }
        assert_eq!(swap.earlier, Nanos(swap.back.0 / 20 * 401));
        assert!(trigger(&tensors, iteration, &swap) < before);
    }

    #[test]
    fn only_iterations_like_one_that_was_measured_are_guided() {
        let training = Training {
            iterations: 6,
            launch_us: 600,
            ..Training::SMALL
        };
        let varied = Training {
            varies: true,
            ..training
        };
        let guided = checks::outcome(&training.program(), &ENTRY, 40).iterations;
        let passive = checks::outcome(&varied.program(), &ENTRY, 40).iterations;
        assert_eq!(guided[0], passive[0]);
        // Passive mode goes by recency alone, iteration after iteration.
        assert_eq!(passive[2], passive[4]);
        let swapped = |at: usize| guided[at].totals.prefetch_issued;
        assert!((1..6).all(|at| swapped(at) > passive[at].totals.prefetch_issued));
    }

    #[test]
    fn it_takes_less_time_than_demand_paging() {
        let program = Training::SMALL.program();
        let ours = checks::outcome(&program, &ENTRY, 32).steady();
        let driver = checks::outcome(&program, &super::super::driver::ENTRY, 32).steady();
        assert!(ours.time < driver.time, "{ours:?} {driver:?}");
    }

    #[test]
    fn it_keeps_the_contract_of_every_policy() {
        checks::contract(&ENTRY);
    }
}
