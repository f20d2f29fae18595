//! FlashNeuron: offload forward tensors from the first layer on until the rest fits.
//!
//! Bae et al., FAST'21, section 3.3: the intermediate tensors are gone through in the order
//! in which the forward pass makes them, and each is offloaded, until what stays fits the
//! memory (phase 1, linear selection); the choice is accepted if the sum of the transfers
//! is no longer than the forward pass, else compressible tensors are preferred (phase 2).
//! A tensor is offloaded when its last forward use is over, in order of production, and
//! fetched in the backward pass in the order of need as early as memory allows.
//!
//! What it knows: sizes, order and lifetimes of tensors from a profiled iteration, and how
//! long the forward pass takes.
//!
//! Choices: the other end is host memory, as in the paper's "FlashNeuron (Memory)" variant,
//! not an SSD; there is no codec in the model, so where phase 1 is not accepted its choice
//! stands all the same (that is what phase 2 would move before compression); the backward
//! pass begins at the turning point. Only forward tensors are candidates: weights and
//! optimizer state stay, and where they alone are too much the paper's system cannot run.
//! Here the driver's demand paging goes on below it.

use super::plan::Levels;
use super::swap::{Plan, Planned, budget};
use super::tensors::{Gap, Tensors};
use super::{Entry, Make};
use crate::class::{Future, FuturePolicy};
use crate::machine::Machine;
use crate::trace::Launch;

pub(super) const ENTRY: Entry = Entry {
    name: "flashneuron",
    about: "FlashNeuron (FAST'21): forward tensors offloaded in order until the rest fits",
    make: Make::Future(make),
};

fn make<'p>(machine: &Machine, future: Future<'p>) -> Box<dyn FuturePolicy + 'p> {
    Planned::make(machine, future, plan)
}

fn plan(machine: &Machine, tensors: &Tensors<'_>) -> Plan {
    let limit = budget(machine) as i64;
    let launches = 0..tensors.program().launches().len() as u32;
    let loads: Vec<i64> = launches.map(|at| tensors.load(Launch(at)) as i64).collect();
    let mut levels = Levels::new(loads.into_iter());
    // Tensors are numbered as they are made.
    let maps = tensors.feature_maps();
    let mut chosen: Vec<Gap> = Vec::new();
    for gap in maps {
        let Some(iteration) = tensors.iteration_of(gap.from) else {
            continue;
        };
        // What is left of this iteration's pass fits already.
        let end = tensors.iterations()[iteration].launches.end;
        let start = tensors.iterations()[iteration].launches.start;
        if levels.last_above(end, limit).is_none_or(|at| at < start) {
            continue;
        }
        let bytes = tensors.get(gap.tensor).bytes() as i64;
        levels.add(gap.from.0 + 1, gap.to.0, -bytes);
        chosen.push(gap);
    }
    let outs = chosen.iter().map(|gap| (gap.from, gap.tensor)).collect();
    let ins = fetches(tensors, chosen, &mut levels, limit);
    Plan { outs, ins }
}

/// The earliest launch of the backward pass from which each tensor has room until its use,
/// none before the one that is needed before it.
fn fetches(
    tensors: &Tensors<'_>,
    mut chosen: Vec<Gap>,
    levels: &mut Levels,
    limit: i64,
) -> Vec<(Launch, super::tensors::TensorId)> {
    chosen.sort_by_key(|gap| gap.to);
    let mut earliest = 0;
    let mut ins = Vec::with_capacity(chosen.len());
    for gap in chosen {
        let bytes = tensors.get(gap.tensor).bytes() as i64;
        let turn = tensors.iteration_of(gap.to).map_or(0, |at| {
            let turns = &tensors.iterations()[at].turns;
            let first = turns.partition_point(|&turn| turn <= gap.from);
            turns.get(first).map_or(0, |turn| turn.0)
        });
        let room = levels
            .last_above(gap.to.0, limit - bytes)
            .map_or(0, |at| at + 1);
        earliest = room.max(turn).max(earliest).min(gap.to.0);
        levels.add(earliest.max(gap.from.0 + 1), gap.to.0, bytes);
        ins.push((Launch(earliest), gap.tensor));
    }
    ins
}

#[cfg(test)]
mod tests {
    use super::super::checks::{self, machine};
    use super::super::samples::Training;
    use super::*;
    use crate::trace::Program;

    fn planned(program: &Program, frames: u32) -> (Tensors<'_>, Plan) {
        let tensors = Tensors::of(Future {
            program,
            lifetimes: true,
        });
        let plan = plan(&machine(frames), &tensors);
        (tensors, plan)
    }

    #[test]
    fn the_first_tensors_leave_and_the_last_stay() {
        let training = Training::SMALL;
        let program = training.program();
        let (tensors, plan) = planned(&program, 40);
        let first: Vec<_> = plan
            .outs
            .iter()
            .filter(|(launch, _)| launch.0 < training.launches())
            .map(|&(_, id)| tensors.get(id).region)
            .collect();
        // 48 blocks at the peak, 35 to fill: four activations of four blocks are enough.
        let expected: Vec<_> = (0..4).map(|layer| training.activation(layer)).collect();
        assert_eq!(first, expected);
    }

    #[test]
    fn more_memory_means_fewer_tensors() {
        let program = Training::SMALL.program();
        let outs = |frames| planned(&program, frames).1.outs.len();
        assert!(outs(48) < outs(40) && outs(40) < outs(32));
        assert_eq!(outs(60), 0);
    }

    #[test]
    fn fetches_come_in_the_order_of_need_in_the_backward_pass_and_not_before_there_is_room() {
        let training = Training::SMALL;
        let program = training.program();
        let (tensors, plan) = planned(&program, 40);
        let turn = tensors.iterations()[0].turn;
        let first: Vec<_> = plan.ins.iter().take(4).collect();
        let regions: Vec<_> = first
            .iter()
            .map(|(_, id)| tensors.get(*id).region)
            .collect();
        let expected: Vec<_> = (0..4)
            .rev()
            .map(|layer| training.activation(layer))
            .collect();
        assert_eq!(regions, expected);
        assert!(first.iter().all(|(launch, _)| *launch > turn));
        assert!(first.is_sorted_by_key(|(launch, _)| *launch));
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
