//! DeepTM: tensors by reuse distance, aggregated into contiguous migrations.
//!
//! DeepTM, IEEE TPDS 2024: a tensor manager that keeps what is reused soonest on the
//! device, and moves pages of a tensor together because one large migration is cheaper than
//! many faults.
//!
//! Written from summaries: the paper itself was not at hand, so what is said of it above is
//! all that is taken from it.
//!
//! Choices: its learned (reinforcement) chooser is its own integer program's rule, longest
//! reuse distance first; a period that lies beside another with the same next use is moved
//! in one call with it, in address order, up to [`RUN`] blocks a call; a run comes back when
//! the most urgent of its periods has to. Memory that the plan does not fill is kept at
//! [`SPARE`] percent.

use crate::class::{Future, FuturePolicy};
use crate::machine::Machine;
use crate::model::Room;
use crate::units::BLOCK_BYTES;

use super::plan::{Fallback, Gaps, Scripted, Timed, Way, by_reuse, latest, relieve, script, times};
use super::{Entry, Make};

pub(super) const ENTRY: Entry = Entry {
    name: "deeptm",
    about: "DeepTM (TPDS 2024): longest reuse distance out, contiguous runs moved together",
    make: Make::Future(make),
};

/// Percent of the device that stays free.
const SPARE: u64 = 2;
/// Blocks in one call: 64 MiB.
const RUN: u32 = 32;

fn make<'p>(machine: &Machine, future: Future<'p>) -> Box<dyn FuturePolicy + 'p> {
    let gaps = Gaps::of(future);
    let chosen = plan(machine, &gaps);
    let script = script(&gaps, &chosen);
    Box::new(Scripted::new(
        future.program,
        gaps,
        script,
        Room::Take,
        Fallback::Furthest,
    ))
}

fn plan(machine: &Machine, gaps: &Gaps) -> Vec<Timed> {
    let times = times(gaps);
    let frames = machine.memory_bytes / BLOCK_BYTES * (100 - SPARE) / 100;
    let line = u32::try_from(frames).unwrap_or(u32::MAX);
    let chosen = relieve(gaps, by_reuse(gaps), &times, line);
    aggregate(gaps, latest(gaps, chosen, &mut Way::link(machine, &times)))
}

/// Gives neighbours in memory with the same next use the earliest of their times, and puts
/// them one after the other.
fn aggregate(gaps: &Gaps, mut chosen: Vec<Timed>) -> Vec<Timed> {
    let first = |one: &Timed| gaps.blocks(&gaps.list()[one.gap as usize]).first().copied();
    let to = |one: &Timed| gaps.list()[one.gap as usize].to;
    chosen.sort_by_key(|one| (to(one), first(one)));
    let mut start = 0;
    while start < chosen.len() {
        let mut end = start + 1;
        let mut frames = gaps.list()[chosen[start].gap as usize].frames();
        while end < chosen.len() && to(&chosen[end]) == to(&chosen[start]) {
            let before = &gaps.list()[chosen[end - 1].gap as usize];
            let next = gaps.blocks(before).last().map(|block| block.0 + 1);
            frames += gaps.list()[chosen[end].gap as usize].frames();
            if next != first(&chosen[end]).map(|block| block.0) || frames > RUN {
                break;
            }
            end += 1;
        }
        let begin = chosen[start..end].iter().map(|one| one.begin).min();
        for one in &mut chosen[start..end] {
            // No earlier than it has left.
            one.begin = begin
                .unwrap_or(one.begin)
                .max((one.gone + 1).min(one.begin));
        }
        start = end;
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::checks::{contract, machine};
    use crate::policy::samples::Training;

    #[test]
    fn keeps_the_contract() {
        contract(&ENTRY);
    }

    #[test]
    fn what_is_reused_last_leaves_first() {
        let training = Training::SMALL;
        let program = training.program();
        let gaps = Gaps::of(Future {
            program: &program,
            lifetimes: true,
        });
        let peak = *gaps.occupied().iter().max().unwrap();
        let at = gaps.occupied().iter().position(|&f| f == peak).unwrap() as u32;
        let longest = gaps
            .list()
            .iter()
            .filter(|gap| gap.from < at && at < gap.to)
            .max_by_key(|gap| gaps.idle(gap))
            .unwrap();
        let chosen = plan(&machine(peak - 1), &gaps);
        let idle = |one: &Timed| gaps.idle(&gaps.list()[one.gap as usize]);
        assert_eq!(chosen.iter().map(idle).max(), Some(gaps.idle(longest)));
    }
}
