//! When the blocks of chosen periods leave and come back, within what the link can carry.

use crate::machine::Machine;
use crate::units::{Nanos, Rate};

use super::{Excess, Gap, Gaps, Levels, Script, Track};

/// A way out of the device and back, with what of it is promised already.
pub(in crate::policy) struct Way {
    out_rate: Rate,
    in_rate: Rate,
    latency: Nanos,
    out_track: Track,
    in_track: Track,
}

impl Way {
    /// All of it free.
    pub fn new(out_rate: Rate, in_rate: Rate, latency: Nanos, times: &[Nanos]) -> Self {
        Self {
            out_rate,
            in_rate,
            latency,
            out_track: Track::new(times),
            in_track: Track::new(times),
        }
    }

    /// The machine's link to the host.
    pub fn link(machine: &Machine, times: &[Nanos]) -> Self {
        Self::new(machine.link_out, machine.link_in, machine.call, times)
    }

    /// Time that leaving and coming back take, unhindered.
    pub fn cost(&self, gap: &Gap) -> Nanos {
        self.out_rate.time(gap.bytes) + self.in_rate.time(gap.bytes) + self.latency + self.latency
    }

    /// Launches during which the eviction ends and at whose start the prefetch begins at
    /// the latest, for one part in `share` of the bytes. Promises the link where `take`.
    pub fn fit(&mut self, gap: &Gap, share: u64, take: bool) -> Option<(u32, u32)> {
        let out = self.out_rate.time(gap.bytes / share);
        let gone = self.out_track.forward(gap.from + 1, gap.to, out, false)?;
        let back = self.in_rate.time(gap.bytes / share);
        let begin = self.in_track.backward(gone + 1, gap.to, back, false)?;
        if take {
            self.out_track.forward(gap.from + 1, gap.to, out, true);
            self.in_track.backward(gone + 1, gap.to, back, true);
        }
        Some((gone, begin))
    }

    /// Nothing of the way out is left between the gap's beginning and the launch `end`.
    pub fn taken(&mut self, gap: &Gap, end: u32) -> bool {
        let least = Nanos(1);
        self.out_track
            .forward(gap.from + 1, end, least, false)
            .is_none()
    }

    /// Time that leaving takes, unhindered.
    pub fn out_time(&self, gap: &Gap) -> Nanos {
        self.out_rate.time(gap.bytes)
    }
}

/// A period that leaves, with the launches found for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::policy) struct Timed {
    /// Its number.
    pub gap: u32,
    /// The launch during which the eviction ends.
    pub gone: u32,
    /// The launch at whose start it is asked for again.
    pub begin: u32,
    /// It goes to the SSD.
    pub deep: bool,
}

/// Durations of all launches.
pub(in crate::policy) fn times(gaps: &Gaps) -> Vec<Nanos> {
    (0..gaps.launches())
        .map(|launch| gaps.start(launch + 1) - gaps.start(launch))
        .collect()
}

/// The periods, the longest reuse distance (in time) first.
pub(in crate::policy) fn by_reuse(gaps: &Gaps) -> Vec<u32> {
    let mut order: Vec<u32> = (0..gaps.list().len() as u32).collect();
    order.sort_by_key(|&number| {
        let gap = &gaps.list()[number as usize];
        (std::cmp::Reverse(gaps.idle(gap)), number)
    });
    order
}

/// Takes periods in this order, each that lies where the device is too full, until it is
/// nowhere.
pub(in crate::policy) fn relieve(
    gaps: &Gaps,
    order: impl IntoIterator<Item = u32>,
    times: &[Nanos],
    line: u32,
) -> Vec<u32> {
    let mut excess = Excess::new(gaps.occupied(), times, line);
    let mut chosen = Vec::new();
    for number in order {
        if !excess.any() {
            break;
        }
        let gap = &gaps.list()[number as usize];
        if excess.time(gap.from + 1, gap.to) > Nanos(0) {
            excess.relieve(gap.from + 1, gap.to, gap.frames());
            chosen.push(number);
        }
    }
    chosen
}

/// Gives every chosen period its times: gone as soon as the link allows, back at the latest
/// moment that is in time; where the link cannot do both, back at the launch itself.
pub(in crate::policy) fn latest(gaps: &Gaps, mut chosen: Vec<u32>, way: &mut Way) -> Vec<Timed> {
    // The link promises itself in the order of need.
    chosen.sort_unstable();
    chosen
        .into_iter()
        .map(|number| {
            let gap = &gaps.list()[number as usize];
            let (gone, begin) = way.fit(gap, 1, true).unwrap_or((gap.to, gap.to));
            Timed {
                gap: number,
                gone,
                begin,
                deep: false,
            }
        })
        .collect()
}

/// Moves each prefetch from its latest safe launch to the earliest from which the estimate
/// of the device's use stays within the line. The most urgent first; all are returned.
pub(in crate::policy) fn hasten(gaps: &Gaps, chosen: Vec<Timed>, line: u32) -> Vec<Timed> {
    hasten_beside(gaps, chosen, Vec::new(), |frames| i64::from(line) - frames)
}

/// The same where some are `fixed`, and each may come while the estimate is not above `room`
/// of its frames.
pub(in crate::policy) fn hasten_beside(
    gaps: &Gaps,
    mut chosen: Vec<Timed>,
    fixed: Vec<Timed>,
    room: impl Fn(i64) -> i64,
) -> Vec<Timed> {
    let mut levels = Levels::new(gaps.occupied().iter().map(|&frames| i64::from(frames)));
    for one in chosen.iter().chain(&fixed) {
        let frames = i64::from(gaps.list()[one.gap as usize].frames());
        levels.add(one.gone + 1, one.begin, -frames);
    }
    chosen.sort_by_key(|one| (one.begin, one.gap));
    for one in &mut chosen {
        let frames = i64::from(gaps.list()[one.gap as usize].frames());
        let after = levels
            .last_above(one.begin, room(frames))
            .map_or(0, |full| full + 1);
        let begin = after.max(one.gone + 1).min(one.begin);
        levels.add(begin, one.begin, frames);
        one.begin = begin;
    }
    chosen.extend(fixed);
    chosen
}

/// The plan that does so.
pub(in crate::policy) fn script(gaps: &Gaps, chosen: &[Timed]) -> Script {
    let mut script = Script::default();
    for one in chosen {
        let gap = &gaps.list()[one.gap as usize];
        let evictions = if one.deep {
            &mut script.deep_evictions
        } else {
            &mut script.evictions
        };
        evictions.push((gap.from + 1, one.gap));
        if gap.to < gaps.launches() {
            script.prefetches.push((one.begin, one.gap));
        }
    }
    script.sort();
    script
}
