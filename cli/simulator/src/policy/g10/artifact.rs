//! The planner of G10's public artifact (commit de2c8c6, `scheduling_prefetch` in
//! `analysis.cc`) where it differs from the paper's: what the `g10` machine is planned with.
//!
//! - It counts a GB/s as 2^30 bytes, 7.4 % more than the link carries.
//! - It weighs every period by what half of a transfer to the SSD, within what the SSD has
//!   left, leaves of it, wherever the period then goes.
//! - A period goes to the host only where the SSD has nothing left until the period's
//!   eviction would be over, or where it is too short for the SSD.
//! - Host traffic closes the SSD early ([`super::super::plan::Promised`]).
//! - A period that crosses the end of an iteration (a weight's) is asked for again one and
//!   a half transfers ahead, and is promised no bandwidth, however many are due then.
//! - A prefetch moves ahead over launches that are within the line without it.

use std::ops::Range;

use crate::machine::{Machine, Ssd};
use crate::trace::Program;
use crate::units::{BLOCK_BYTES, Nanos, Rate};

use super::super::plan::{
    Gap, Gaps, Levels, Promised, Script, Store, Timed, hasten_beside, script, times,
};
use super::{HOST_LATENCY, Placed, SSD_LATENCY, Ways, choose};

/// Bytes of what it takes for a GB.
const PLANNED_GB: u64 = 1 << 30;

/// Its plan, with the device full up to `line`.
pub(super) fn plan(
    machine: &Machine,
    ssd: Ssd,
    gaps: &Gaps,
    program: &Program,
    line: u32,
) -> Script {
    let times = times(gaps);
    let mut ways = Artifact::new(machine, ssd, gaps, program, &times);
    let chosen = choose(gaps, &times, line, &mut ways);
    let crosses = |one: &Timed| ways.looped(&gaps.list()[one.gap as usize]);
    let (looped, local) = chosen.into_iter().partition(crosses);
    let room = |_| i64::from(line) - 1;
    script(gaps, &hasten_beside(gaps, local, looped, room))
}

/// What it reckons with.
struct Artifact<'g> {
    gaps: &'g Gaps,
    link: Rate,
    ssd: Rate,
    out: Promised,
    back: Promised,
    /// Frames' worth of content on the host during each launch, and how much it takes.
    host_levels: Levels,
    host_frames: i64,
    /// First launches of the iterations.
    iterations: Vec<u32>,
}

impl<'g> Artifact<'g> {
    /// Nothing is promised yet.
    fn new(
        machine: &Machine,
        ssd: Ssd,
        gaps: &'g Gaps,
        program: &Program,
        times: &[Nanos],
    ) -> Self {
        let believed = |rate: Rate| Rate(rate.0 / 1_000 * PLANNED_GB / 1_000_000);
        let frames = machine.host_bytes.unwrap_or(u64::MAX) / BLOCK_BYTES;
        let starts = program.iterations().iter().map(|launches| launches.start);
        Self {
            gaps,
            link: believed(machine.link_out),
            ssd: believed(ssd.write),
            out: Promised::new(believed(machine.link_out), believed(ssd.write), times),
            back: Promised::new(believed(machine.link_in), believed(ssd.read), times),
            host_levels: Levels::new((0..gaps.launches()).map(|_| 0)),
            host_frames: i64::try_from(frames).unwrap_or(i64::MAX),
            iterations: starts.collect(),
        }
    }

    /// The launches of the iteration in which a period begins.
    fn iteration(&self, gap: &Gap) -> Range<u32> {
        let after = self.iterations.partition_point(|start| *start <= gap.from);
        let start = after.checked_sub(1).map_or(0, |at| self.iterations[at]);
        let end = self.iterations.get(after).copied();
        start..end.unwrap_or(self.gaps.launches())
    }

    /// Time that a transfer one way takes, unhindered.
    fn transfer(&self, gap: &Gap, store: Store) -> Nanos {
        match store {
            Store::Host => self.link.time(gap.bytes) + HOST_LATENCY,
            Store::Ssd => self.ssd.time(gap.bytes) + SSD_LATENCY,
        }
    }

    /// The period is two and a half transfers long.
    fn pays(&self, gap: &Gap, store: Store) -> bool {
        let transfer = self.transfer(gap, store).0;
        self.gaps.idle(gap).0 > 2 * transfer + transfer / 2
    }

    /// The host has room for a period throughout its iteration.
    fn host_has_room(&self, gap: &Gap) -> bool {
        let room = self.host_frames - i64::from(gap.frames());
        let iteration = self.iteration(gap);
        let full = self.host_levels.last_above(iteration.end, room);
        full.is_none_or(|launch| launch < iteration.start)
    }

    fn looped(&self, gap: &Gap) -> bool {
        gap.to >= self.iteration(gap).end
    }

    fn place_looped(&self, gap: &Gap, store: Store) -> Option<Placed> {
        let transfer = self.transfer(gap, store);
        let gone = self
            .gaps
            .launch_at(self.gaps.start(gap.from + 1) + transfer);
        let ahead = transfer + Nanos(transfer.0 / 2);
        let begin = self
            .gaps
            .launch_at(self.gaps.start(gap.to).saturating_sub(ahead));
        (begin > gone).then_some(Placed {
            gone,
            begin,
            deep: store == Store::Ssd,
        })
    }

    fn place_local(&mut self, gap: &Gap, store: Store) -> Option<Placed> {
        let iteration = self.iteration(gap);
        let begin = self.back.begin(store, gap.bytes, iteration.start..gap.to);
        let gone = self.out.over(store, gap.bytes, gap.from + 1..iteration.end);
        if begin <= gone {
            return None;
        }
        self.back.promise(store, gap.bytes, begin..iteration.end);
        self.out
            .promise(store, gap.bytes, gap.from + 1..iteration.end);
        Some(Placed {
            gone,
            begin,
            deep: store == Store::Ssd,
        })
    }

    /// Where a period goes; none where it is too short or there is no room.
    fn store(&self, gap: &Gap) -> Option<Store> {
        if self.pays(gap, Store::Ssd) {
            if self.looped(gap) {
                return Some(Store::Ssd);
            }
            let over = self.gaps.start(gap.from + 1) + self.transfer(gap, Store::Ssd);
            let end = self.gaps.launch_at(over).max(gap.from + 1);
            let open = self.out.open(Store::Ssd, gap.from + 1..end);
            return Some(match open || !self.host_has_room(gap) {
                true => Store::Ssd,
                false => Store::Host,
            });
        }
        (self.pays(gap, Store::Host) && self.host_has_room(gap)).then_some(Store::Host)
    }
}

impl Ways for Artifact<'_> {
    fn usable(&mut self, gap: &Gap) -> Option<Range<u32>> {
        if gap.to <= gap.from + 2 {
            // A single launch between: never.
            return None;
        }
        if self.looped(gap) {
            return Some(gap.from + 1..gap.to);
        }
        let iteration = self.iteration(gap);
        let half = gap.bytes / 2;
        let gone = self.out.over(Store::Ssd, half, gap.from + 1..iteration.end);
        let begin = self.back.begin(Store::Ssd, half, iteration.start..gap.to);
        (gone < begin).then_some(gone..begin)
    }

    fn place(&mut self, gap: &Gap) -> Option<Placed> {
        let store = self.store(gap)?;
        let placed = match self.looped(gap) {
            true => self.place_looped(gap, store)?,
            false => self.place_local(gap, store)?,
        };
        if store == Store::Host {
            let frames = i64::from(gap.frames());
            self.host_levels.add(gap.from + 1, gap.to, frames);
        }
        Some(placed)
    }
}
