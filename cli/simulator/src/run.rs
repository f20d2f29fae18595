//! One run: a program on a machine under a policy, and what came of it.

use oversub_engine::{Profile, Without};

use crate::bound::Reach;
use crate::class::{AnyPolicy, EngineFigures};
use crate::explain::{Ask, Explanation};
use crate::machine::Machine;
use crate::model::{Played, Stopped, Totals, play};
use crate::policy::{Entry, Make};
use crate::timeline::Timeline;
use crate::trace::Program;
use crate::units::Nanos;

/// How a run is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The policy knows what the framework's allocator hands out and takes back.
    pub lifetimes: bool,
    /// Record a timeline.
    pub timeline: bool,
    /// Have an engine say why a block is where it is.
    pub explain: Option<Ask>,
    /// Seed of policies that search at random.
    pub seed: u64,
    /// Parts that an engine leaves out.
    pub without: Without,
    /// Measure the real time that an engine takes. The only figure that differs from run
    /// to run.
    pub engine_cost: bool,
}

/// One iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Iteration {
    /// From the end of the last launch before it to the end of its last launch.
    pub time: Nanos,
    /// Sum of its launches' times with everything resident.
    pub ideal: Nanos,
    /// What was moved, faulted and waited for meanwhile.
    pub totals: Totals,
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// All iterations, in order.
    pub iterations: Vec<Iteration>,
    /// What launches may use on the host under this policy, or did in the steady iterations:
    /// whose bound it is to be held against.
    pub reach: Reach,
    /// What the policy's engine says of itself.
    pub engine: Option<EngineFigures>,
    /// What the policy's engine has learned, for the program's next run.
    pub profile: Option<Profile>,
    /// The record, where one was asked for.
    pub timeline: Option<Timeline>,
    /// Why the block that was asked for was where it was; none where the policy is no engine,
    /// or no memory lay there then.
    pub explanation: Option<Explanation>,
    steady: Iteration,
}

impl Outcome {
    /// Means over the steady iterations ([`Program::steady`]).
    pub fn steady(&self) -> Iteration {
        self.steady
    }

    /// The first iteration, from cold.
    pub fn first(&self) -> Iteration {
        self.iterations.first().copied().unwrap_or_default()
    }
}

/// Runs `program` on `machine` under the policy of `entry`.
///
/// # Errors
/// [`Stopped`] where the policy lost data or the program cannot run in so little memory.
pub fn run(
    program: &Program,
    machine: &Machine,
    entry: &Entry,
    options: Options,
) -> Result<Outcome, Stopped> {
    run_from(program, machine, entry, options, None)
}

/// As [`run`], by an engine that begins with what an earlier run taught. Policies that are
/// no engines begin as ever.
///
/// # Errors
/// As [`run`].
pub fn run_from(
    program: &Program,
    machine: &Machine,
    entry: &Entry,
    options: Options,
    profile: Option<&Profile>,
) -> Result<Outcome, Stopped> {
    let mut policy = entry.policy(machine, program, options.lifetimes, options.seed);
    if let AnyPolicy::Lifetime(policy) = &mut policy {
        policy.begin_with(options.without, profile);
        policy.record(options.explain, options.timeline);
        if options.engine_cost {
            policy.measure();
        }
    }
    let timeline = options.timeline.then(Timeline::new);
    let mut played = play(program, machine, &mut policy, options.lifetimes, timeline)?;
    let mut explanation = None;
    if let AnyPolicy::Lifetime(policy) = &mut policy {
        let (found, plan) = policy.recorded();
        explanation = found;
        if let (Some(timeline), Some(plan)) = (&mut played.timeline, plan) {
            timeline.set_plan(plan);
        }
    }
    let used = used_in_steady(&played);
    let reach = match &policy {
        _ if used.host_unindexed > 0 => Reach::Everything,
        _ if used.host_read + used.host_written > 0 => Reach::Indexed,
        // It may play the schedule of one that does.
        _ if matches!(entry.make, Make::Best(_)) => Reach::Indexed,
        AnyPolicy::Lifetime(policy) if policy.uses_on_host() => Reach::Indexed,
        _ => Reach::Nothing,
    };
    let (engine, profile) = match &policy {
        // Not where an oracle has one carry out its schedule.
        AnyPolicy::Lifetime(policy) if matches!(entry.make, Make::Lifetime(_)) => {
            (policy.engine(), policy.learned())
        }
        AnyPolicy::Fault(_)
        | AnyPolicy::Launch(_)
        | AnyPolicy::Lifetime(_)
        | AnyPolicy::Future(_) => (None, None),
    };
    let steady = steady(program, &played);
    Ok(Outcome {
        iterations: iterations(program, &played),
        reach,
        engine,
        profile,
        timeline: played.timeline,
        explanation,
        steady,
    })
}

fn iterations(program: &Program, played: &Played) -> Vec<Iteration> {
    let ends = played.marks.iter().skip(1).chain([&played.end]);
    let spans = played.marks.iter().zip(ends);
    spans
        .zip(program.iterations())
        .map(|((start, end), launches)| Iteration {
            time: end.0 - start.0,
            ideal: program.ideal(launches.clone()),
            totals: end.1.minus(&start.1),
        })
        .collect()
}

/// What the steady iterations took together: what a bound has to allow.
fn used_in_steady(played: &Played) -> Totals {
    match (played.steady.first(), played.steady.last()) {
        (Some(begin), Some(end)) => end.1.minus(&begin.1),
        _ => played.end.1,
    }
}

fn steady(program: &Program, played: &Played) -> Iteration {
    let (Some(begin), Some(end)) = (played.steady.first(), played.steady.last()) else {
        return Iteration::default();
    };
    let count = (played.steady.len() as u64 - 1).max(1);
    Iteration {
        time: Nanos((end.0 - begin.0).0 / count),
        ideal: program.ideal_steady(),
        totals: used_in_steady(played).over(count),
    }
}
