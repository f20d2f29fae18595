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
//!
//! What any other system makes of the trace is a schedule too, and an oracle may know it: where
//! our plans stay away from the bound, the systems that are strong somewhere ([`RIVALS`]) are
//! played as well, and if one is faster, its schedule is the one that is used.

use std::rc::Rc;

use super::oracle::{Executor, Plan, Uses, When, plan};
use super::{Entry, Make, named};
use crate::bound::{Bounds, Deaths, Effort, Reach};
use crate::class::{AnyPolicy, Future};
use crate::machine::Machine;
use crate::model::play;
use crate::units::{BLOCK_BYTES, Nanos};

/// Missing blocks that a plan without foresight brings ahead of their use, as `belady`.
const AHEAD: u32 = 32;

/// The systems whose schedules are tried where ours might be beaten: those that come closest
/// to the bound on recorded traces.
pub(super) const RIVALS: [&str; 8] = [
    "foresight",
    "flashneuron",
    "autoswap",
    "autotm",
    "sentinel",
    "capuchin",
    "g10",
    "deepum",
];

pub(super) const ENTRY: Entry = Entry {
    name: "opt",
    about: "oracle: the best schedule that can be constructed from the whole future",
    make: Make::Best(make),
};

fn make<'p>(machine: &Machine, future: Future<'p>, seed: u64) -> AnyPolicy<'p> {
    let uses = Rc::new(Uses::of(future));
    let (own, time) = own(machine, future, &uses);
    // No schedule is faster than the bound: within half a percent of it, none can be much.
    if time <= floor(machine, future) {
        return AnyPolicy::Future(Box::new(own));
    }
    let rivals = RIVALS.iter().filter_map(|name| named(name));
    let fastest = rivals
        .map(|entry| {
            let mut policy = entry.policy(machine, future.program, future.lifetimes, seed);
            (steady(machine, future, &mut policy), entry)
        })
        .min_by_key(|(time, _)| *time);
    match fastest {
        Some((fastest, entry)) if fastest < time => {
            entry.policy(machine, future.program, future.lifetimes, seed)
        }
        _ => AnyPolicy::Future(Box::new(own)),
    }
}

/// The best of our own constructions, and the time of its steady iterations together; zero
/// where there is nothing to choose.
fn own(machine: &Machine, future: Future<'_>, uses: &Rc<Uses>) -> (Executor, Nanos) {
    let frames = (machine.memory_bytes / BLOCK_BYTES) as u32;
    // Frames through which transfers pass; the plan does without them.
    let least = (frames / 32).clamp(2, 8).min(frames / 2);
    let reserve = (frames / 32).clamp(2, 32).min(frames / 2);
    let near = AHEAD.min(frames / 4).max(1);
    let candidates = [
        (frames - least, near, When::Early),
        (frames - reserve, near, When::Early),
        (frames - least, 2 * near, When::Early),
        (frames - least, frames / 16, When::Early),
        (frames - least, frames, When::Early),
        (frames - frames / 8, frames, When::Early),
        (frames, near, When::Late(near)),
    ];
    // Everything fits: there is nothing to choose.
    let fits = uses.blocks() <= (frames - least) as usize;
    // Nothing is faster than the launches themselves.
    let steady_ones = future.program.steady().into_iter();
    let ideal: Nanos = steady_ones
        .map(|launches| future.program.ideal(launches))
        .sum();
    let mut tried: Vec<(Rc<Plan>, When)> = Vec::new();
    let mut best: Option<(Nanos, Rc<Plan>, When)> = None;
    for (frames, ahead, when) in candidates {
        let plan = Rc::new(plan(uses, machine, frames, ahead));
        if tried
            .iter()
            .any(|(old, how)| old.same(&plan) && *how == when)
        {
            continue;
        }
        tried.push((plan.clone(), when));
        let time = match fits {
            true => Nanos(0),
            false => {
                let executor = Executor::new(uses.clone(), plan.clone(), when);
                steady(machine, future, &mut AnyPolicy::Future(Box::new(executor)))
            }
        };
        if best.as_ref().is_none_or(|(shortest, ..)| time < *shortest) {
            best = Some((time, plan, when));
        }
        if fits || time <= ideal {
            break;
        }
    }
    let (time, plan, when) = match best {
        Some(best) => best,
        None => {
            let plan = Rc::new(plan(uses, machine, frames, 1));
            (Nanos(0), plan, When::Early)
        }
    };
    (Executor::new(uses.clone(), plan, when), time)
}

/// What no schedule can be far below: the bound on the steady iterations together, and half
/// a percent more.
fn floor(machine: &Machine, future: Future<'_>) -> Nanos {
    // A rival may do what we do not.
    let class = (future.lifetimes, Deaths::Foreseen);
    let bounds = Bounds::reaching(future.program, machine, class, Reach::Indexed);
    let bound = bounds.strongest(machine.memory_bytes, Effort::Quick).time;
    let together = bound.0 * future.program.steady().len() as u64;
    Nanos(together + together / 200)
}

/// Time of the steady iterations, together, under a policy.
fn steady(machine: &Machine, future: Future<'_>, policy: &mut AnyPolicy<'_>) -> Nanos {
    let played = play(future.program, machine, policy, future.lifetimes, None);
    let Ok(played) = played else {
        return Nanos::NEVER;
    };
    match (played.steady.first(), played.steady.last()) {
        (Some(begin), Some(end)) => end.0 - begin.0,
        _ => Nanos::NEVER,
    }
}
