//! How soon a policy is at its steady speed again after a program has changed its phase.
//!
//! The steady time of a phase is that of the same phase alone, under the same policy in the same
//! memory. A change is over with the first iteration that takes no more than 10 % longer, if so do
//! those after it in the mean: iterations of a steady phase need not all take the same time. The
//! last one of a stay is left out of that mean, as the host is ahead of the device and the next
//! phase's transfers have begun. What counts is the **cycles**, the iterations until then: a new
//! phase cannot have been seen whole before one has passed.

use crate::machine::Machine;
use crate::model::Stopped;
use crate::policy::Entry;
use crate::run::{Options, run};
use crate::trace::{BuildError, Program, changes::Changes};
use crate::units::{BLOCK_BYTES, Nanos};

/// Iterations of a phase alone; the last [`MEAN`] of them are its steady state.
const ALONE: u64 = 16;
/// Iterations in the mean that is steady.
const MEAN: usize = 4;
/// Percent of the steady time within which an iteration is back.
const BACK_PERCENT: u64 = 110;

/// One change of phase.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Change {
    /// Seed of the program.
    pub seed: u64,
    /// Number of the stay that begins, from 1.
    pub stay: usize,
    /// The program was in the phase before.
    pub returns: bool,
    /// Iterations until all are within 10 % of the steady time; none: not in this stay.
    pub cycles: Option<u64>,
    /// Iterations of the stay.
    pub iterations: u64,
    /// Steady time of the phase alone, nanoseconds.
    pub steady_ns: u64,
    /// Time of each iteration of the stay, nanoseconds.
    pub times_ns: Vec<u64>,
}

/// What keeps changes from being measured.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The program could not be made.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The program could not be run.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// The changes of the program of `seed`, with device memory of `1 / ratio` of what its widest
/// phase uses.
///
/// # Errors
/// [`RecoveryError`] where the program cannot be made or run.
pub fn measure(
    seed: u64,
    ratio: f64,
    machine: &Machine,
    entry: &Entry,
) -> Result<Vec<Change>, RecoveryError> {
    let changes = Changes::draw(seed);
    let mut machine = machine.clone();
    machine.memory_bytes =
        (changes.widest_bytes() as f64 / ratio) as u64 / BLOCK_BYTES * BLOCK_BYTES;
    let times = |program: &Program| -> Result<Vec<Nanos>, Stopped> {
        let options = Options {
            lifetimes: true,
            timeline: false,
            explain: None,
            seed: 0,
            engine_cost: false,
            without: Default::default(),
        };
        let outcome = run(program, &machine, entry, options)?;
        Ok(outcome.iterations.iter().map(|one| one.time).collect())
    };
    let mut steady = Vec::new();
    for phase in 0..changes.phases() {
        let alone = times(&changes.alone(phase, ALONE)?)?;
        let last = &alone[alone.len() - MEAN..];
        let sum: u64 = last.iter().map(|time| time.0).sum();
        steady.push(sum / MEAN as u64);
    }
    let all = times(&changes.program()?)?;
    let stays = changes.stays();
    Ok(stays
        .into_iter()
        .enumerate()
        .skip(1)
        .map(|(number, stay)| {
            let steady_ns = steady[stay.phase];
            let times_ns: Vec<u64> = all[stay.iterations].iter().map(|time| time.0).collect();
            let cycles = cycles(&times_ns, steady_ns);
            Change {
                seed,
                stay: number,
                returns: stay.returns,
                cycles,
                iterations: times_ns.len() as u64,
                steady_ns,
                times_ns,
            }
        })
        .collect())
}

/// Iterations of a stay until they take their steady time.
fn cycles(times: &[u64], steady: u64) -> Option<u64> {
    let before_last = times.len().saturating_sub(1);
    let is_back = |at: usize| {
        let rest = &times[at..before_last.max(at + 1)];
        let limit = steady * BACK_PERCENT;
        times[at] * 100 <= limit && rest.iter().sum::<u64>() * 100 <= limit * rest.len() as u64
    };
    (0..times.len()).find(|at| is_back(*at)).map(|at| at as u64)
}

/// Figures over some changes.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub struct Summary {
    /// How many.
    pub changes: usize,
    /// Cycles of the median; none: more than the stay's.
    pub median_cycles: Option<u64>,
    /// Most cycles; none: some were not back within their stay.
    pub worst_cycles: Option<u64>,
    /// Share that is back after at most one cycle.
    pub within_one_cycle: f64,
    /// Share that is back after at most two.
    pub within_two_cycles: f64,
    /// Share that is not back within its stay.
    pub never: f64,
}

impl Summary {
    /// Of changes to phases that return, or to new ones.
    pub fn of(changes: &[Change], returns: bool) -> Self {
        let of_kind = changes.iter().filter(|change| change.returns == returns);
        let mut cycles: Vec<u64> = of_kind
            .map(|change| change.cycles.unwrap_or(u64::MAX))
            .collect();
        cycles.sort_unstable();
        let known = |cycles: Option<&u64>| cycles.copied().filter(|cycles| *cycles < u64::MAX);
        let share = |most: u64| {
            let within = cycles.iter().filter(|cycles| **cycles <= most).count();
            within as f64 / cycles.len().max(1) as f64
        };
        Self {
            changes: cycles.len(),
            median_cycles: known(cycles.get(cycles.len() / 2)),
            worst_cycles: known(cycles.last()),
            within_one_cycle: share(1),
            within_two_cycles: share(2),
            never: 1.0 - share(u64::MAX - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_over_once_iterations_take_their_steady_time() {
        assert_eq!(cycles(&[100, 101, 99], 100), Some(0));
        assert_eq!(cycles(&[150, 111, 110, 100, 100], 100), Some(2));
        // One is fast by chance, the others are not.
        assert_eq!(cycles(&[150, 100, 130, 130, 130], 100), None);
        // Now and then one is slow.
        assert_eq!(cycles(&[90, 115, 90, 115, 90, 115], 100), Some(0));
        // The next phase has begun.
        assert_eq!(cycles(&[150, 100, 100, 200], 100), Some(1));
    }
}
