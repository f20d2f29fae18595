//! `opt`: the best schedule that we can construct from the whole future. An oracle: no
//! system can do it, and what any policy does better is to be added here.
//!
//! The plan says which blocks leave between two of their uses (`oracle/plan.rs`); it is
//! carried out with every block leaving as soon as the device is done with it and coming
//! back in order of need as soon as there is room, so that both directions of the link work
//! at once and ahead. Content that is not needed again is dropped at once. How far a plan
//! should look ahead depends on the program: short sight moves the fewest bytes, long sight
//! keeps the link busy. So several plans are tried in the model itself, and the one with the
//! shortest steady iterations is used.

use std::rc::Rc;

use super::oracle::{Executor, Plan, Uses, When, plan};
use super::{Entry, Make};
use crate::class::{AnyPolicy, Future, FuturePolicy};
use crate::machine::Machine;
use crate::model::play;
use crate::units::{BLOCK_BYTES, Nanos};

/// Missing blocks that a plan without foresight brings ahead of their use, as `belady`.
const AHEAD: u32 = 32;

pub(super) const ENTRY: Entry = Entry {
    name: "opt",
    about: "oracle: the best schedule that can be constructed from the whole future",
    make: Make::Future(make),
};

fn make<'p>(machine: &Machine, future: Future<'p>) -> Box<dyn FuturePolicy + 'p> {
    let uses = Rc::new(Uses::of(future));
    let frames = (machine.memory_bytes / BLOCK_BYTES) as u32;
    // Frames through which transfers pass; the plan does without them.
    let reserve = (frames / 32).clamp(2, 64).min(frames / 2);
    let near = AHEAD.min(frames / 4).max(1);
    let candidates = [
        (frames - reserve, reserve, When::Early),
        (frames - reserve, frames / 16, When::Early),
        (frames - reserve, frames / 4, When::Early),
        (frames - reserve, frames, When::Early),
        (frames - frames / 8, frames, When::Early),
        (frames, near, When::Late(near)),
    ];
    // Everything fits: there is nothing to choose.
    let fits = uses.blocks() <= (frames - reserve) as usize;
    // Nothing is faster than the launches themselves.
    let steady_range = future.program.steady();
    let ideal: Nanos = future.program.iterations()[steady_range]
        .iter()
        .map(|launches| future.program.ideal(launches.clone()))
        .sum();
    let mut tried: Vec<(Rc<Plan>, When)> = Vec::new();
    let mut best: Option<(Nanos, Rc<Plan>, When)> = None;
    for (frames, ahead, when) in candidates {
        let plan = Rc::new(plan(&uses, machine, frames, ahead));
        if tried
            .iter()
            .any(|(old, how)| old.same(&plan) && *how == when)
        {
            continue;
        }
        tried.push((plan.clone(), when));
        let executor = Executor::new(uses.clone(), plan.clone(), when);
        let time = match fits {
            true => Nanos(0),
            false => steady(machine, future, executor),
        };
        if best.as_ref().is_none_or(|(shortest, ..)| time < *shortest) {
            best = Some((time, plan, when));
        }
        if fits || time <= ideal {
            break;
        }
    }
    let (plan, when) = match best {
        Some((_, plan, when)) => (plan, when),
        None => (Rc::new(plan(&uses, machine, frames, 1)), When::Early),
    };
    Box::new(Executor::new(uses, plan, when))
}

/// Time of the steady iterations, together, under a policy.
fn steady(machine: &Machine, future: Future<'_>, executor: Executor) -> Nanos {
    let mut policy = AnyPolicy::Future(Box::new(executor));
    let played = play(future.program, machine, &mut policy, future.lifetimes, None);
    let Ok(played) = played else {
        return Nanos::NEVER;
    };
    let ends: Vec<Nanos> = played
        .marks
        .iter()
        .chain([&played.end])
        .map(|mark| mark.0)
        .collect();
    let steady = future.program.steady();
    let end = ends.get(steady.end).copied().unwrap_or(Nanos::NEVER);
    end - ends.get(steady.start).copied().unwrap_or_default()
}
