//! TMOF: tensors by reuse distance, moved under duplex tokens.
//!
//! TMOF (tensor movement orchestration), HPCA'23: chooses what to swap by reuse distance,
//! and orders the copies so that one in and one out are under way at a time, in both
//! directions of the link at once (bidirectional overlap); between devices that share a
//! link, no two hold the token of one direction (disjoint swapping).
//!
//! Written from summaries: the paper itself was not at hand, so what is said of it above is
//! all that is taken from it.
//!
//! Choices: one device, so the tokens are its own: the next tensor of a direction is ordered
//! when the one before has arrived. A period whose swap-in was not begun before its launch
//! comes ahead of the others, as an operand that the eager framework needs now. Its
//! alternative choice by integer program is not built. How far ahead a tensor comes back, how
//! much room is kept for births ([`SPARE`]) and how prefetches that do not fit are delayed
//! are ours: latest moment in time, then as early as there is room, as for `g10`.

use std::collections::VecDeque;

use crate::class::{Desk, DriverNotice, Future, FutureNotice, FuturePolicy, Ticket};
use crate::machine::Machine;
use crate::model::Room;
use crate::trace::Block;
use crate::units::BLOCK_BYTES;

use super::plan::{
    Furthest, Gaps, Script, Way, by_reuse, drop_dead, hasten, latest, populate_births, relieve,
    script, times,
};
use super::{Entry, Make};

pub(super) const ENTRY: Entry = Entry {
    name: "tmof",
    about: "TMOF (HPCA 2023): longest reuse distance out, one tensor each way at a time",
    make: Make::Future(make),
};

/// Percent of the device that stays free for births.
const SPARE: u64 = 2;

fn make<'p>(machine: &Machine, future: Future<'p>) -> Box<dyn FuturePolicy + 'p> {
    let gaps = Gaps::of(future);
    let times = times(&gaps);
    let frames = machine.memory_bytes / BLOCK_BYTES * (100 - SPARE) / 100;
    let line = u32::try_from(frames).unwrap_or(u32::MAX);
    let chosen = relieve(&gaps, by_reuse(&gaps), &times, line);
    let timed = latest(&gaps, chosen, &mut Way::link(machine, &times));
    let script = script(&gaps, &hasten(&gaps, timed, line));
    Box::new(Tmof {
        furthest: Furthest::new(future.program),
        gaps,
        script,
        evicted: 0,
        prefetched: 0,
        out: Token::default(),
        inward: Token::default(),
    })
}

/// One direction: what waits for it, and what has it.
#[derive(Default)]
struct Token {
    waiting: VecDeque<u32>,
    held: Option<Ticket>,
}

struct Tmof<'p> {
    furthest: Furthest<'p>,
    gaps: Gaps,
    script: Script,
    evicted: usize,
    prefetched: usize,
    out: Token,
    inward: Token,
}

impl Tmof<'_> {
    fn starting(&mut self, launch: u32, desk: &mut Desk<'_>) {
        while let Some(&(at, gap)) = self.script.evictions.get(self.evicted)
            && at <= launch
        {
            self.evicted += 1;
            self.out.waiting.push_back(gap);
        }
        populate_births(&self.gaps, launch, desk);
        while let Some(&(at, gap)) = self.script.prefetches.get(self.prefetched)
            && at <= launch
        {
            self.prefetched += 1;
            self.inward.waiting.push_back(gap);
        }
        // What this launch needs and was not begun goes without a token.
        let (gaps, out) = (&self.gaps, &mut self.out.waiting);
        self.inward.waiting.retain(|&number| {
            let gap = &gaps.list()[number as usize];
            if gap.to <= launch {
                out.retain(|&waiting| waiting != number);
                desk.prefetch(gaps.blocks(gap), Room::Take);
            }
            gap.to > launch
        });
        self.hand_out(desk);
    }

    /// Gives each free token to the next in line.
    fn hand_out(&mut self, desk: &mut Desk<'_>) {
        if self.out.held.is_none()
            && let Some(gap) = self.out.waiting.pop_front()
        {
            self.out.held = Some(desk.evict(self.blocks(gap)));
        }
        if self.inward.held.is_none()
            && let Some(&gap) = self.inward.waiting.front()
            // Its own eviction comes first.
            && !self.out.waiting.contains(&gap)
        {
            self.inward.waiting.pop_front();
            self.inward.held = Some(desk.prefetch(self.blocks(gap), Room::Wait));
        }
    }

    fn blocks(&self, gap: u32) -> &[Block] {
        self.gaps.blocks(&self.gaps.list()[gap as usize])
    }
}

impl FuturePolicy for Tmof<'_> {
    fn notice(&mut self, notice: FutureNotice<'_>, desk: &mut Desk<'_>) {
        self.furthest.notice(&notice);
        match notice {
            FutureNotice::Starting(launch) => self.starting(launch.0, desk),
            FutureNotice::Dead(pieces) => drop_dead(pieces, desk),
            FutureNotice::Driver(DriverNotice::Done(ticket)) => {
                for token in [&mut self.out, &mut self.inward] {
                    token.held = token.held.filter(|held| *held != ticket);
                }
                self.hand_out(desk);
            }
            _ => {}
        }
    }

    fn victim(&mut self, desk: &Desk<'_>) -> Option<Block> {
        self.furthest.victim(desk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::checks::{contract, outcome};
    use crate::policy::samples::Training;

    #[test]
    fn keeps_the_contract() {
        contract(&ENTRY);
    }

    #[test]
    fn both_directions_are_hidden_behind_long_launches() {
        let training = Training {
            layers: 24,
            launch_us: 5_000,
            ..Training::SMALL
        };
        let run = outcome(&training.program(), &ENTRY, 80);
        let last = run.iterations[2];
        assert!(last.totals.bytes_in > 0);
        assert!(last.time.0 < last.ideal.0 + last.ideal.0 / 20);
    }
}
