//! Proven lower bounds on the steady iteration time.
//!
//! A bound holds for every schedule of a **class**: of what may be dropped unsaved
//! (lifetimes on or off, and whether deaths are foreseen or told, see `gaps`), and of what must be
//! on the device at one instant (streaming: what an access touches; atomic: all that a launch
//! touches). All classes keep
//! content in one place at a time, copy out whatever leaves the device, compute nothing
//! twice, and hold a frame of 2 MiB for each block with anything on the device. What they may
//! use over the link without moving it tells classes apart as well ([`Reach`]): nothing; what
//! some launch uses by an index; or everything. An access there takes what it uses of the link,
//! while the launch is at it, at the rate of such accesses. Costs of faults and calls, launch
//! overhead, a limited host and SSDs are left out, which can only make a bound lower.
//!
//! | name | no iteration is shorter because | found by |
//! | --- | --- | --- |
//! | `lb0` | the device computes so long | the sum of launch times |
//! | `lb1-streaming` | at least so many bytes move each way | Belady's rule on gaps (`volume`) |
//! | `lb1-atomic` | the same where all that a launch touches is there at once | the same |
//! | `lb2` | and what must move within a window takes its time there | a dynamic program over tilings (`window`) |
//! | `lb3-streaming` | and it moves into frames that others must have left, and out of them | prices (`price`) from a linear program (`linear`) |
//!
//! Of those that may use on the host what some launch uses by an index, `lb2` and `lb3` are
//! `lb2-indexed` and `lb3-indexed`; of those that may use anything there, `lb2-access` and
//! `lb3-access`. `lb1` counts what moves and is none of these. A schedule is held against the
//! bound of the least class that its policy, and what it did, are in.
//!
//! `lb2` and `lb3` count what is wanted of the device in three ways (`counts`), each a bound: in
//! leaves, in frames shared by leaves, and in blocks, whose gaps are taken together (`runs`).
//!
//! `lb0 <= lb2`, and `lb3` is no less than `lb2` up to the solver's accuracy; `lb1` counts
//! bytes over all steady iterations, so a finer `lb2` is mostly above it, but need not be.
//!
//! What is bounded is the time from the end of the last launch before the steady iterations
//! to the end of their last, over their number. What the device holds at both ends is free:
//! no assumption is made that a schedule repeats. All figures are whole numbers or sums in a
//! fixed order, with no clock and one thread: the same call gives the same bound.

#[cfg(feature = "lp")]
mod coarse;
mod cost;
mod counts;
mod gaps;
#[cfg(feature = "lp")]
mod linear;
#[cfg(any(feature = "lp", test))]
mod price;
mod rates;
mod runs;
mod slots;
#[cfg(test)]
mod tests;
mod volume;
mod window;

use crate::machine::Machine;
use crate::trace::Program;
use crate::units::{BLOCK_BYTES, Nanos};

pub use gaps::Reach;

use counts::Counted;
use gaps::Gaps;
use rates::Rates;
use slots::{Slots, fullest};
use window::Tiling;

/// How a schedule comes to know that content will not be read again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Deaths {
    /// It knows the future: content may be dropped right after its last use.
    Foreseen,
    /// The program tells, by giving the memory back: until the launches before that are over,
    /// content is on the device or was moved out. So it is for whoever must lose nothing and
    /// does not know the future.
    Told,
}

/// How much work a bound may take.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Effort {
    /// No linear program.
    Quick,
    /// A linear program of limited size.
    #[default]
    Full,
}

/// A bound on the steady iteration time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bound {
    /// Which bound it is, and of what reach; `lb2` also where a linear program was too large or
    /// gave no more.
    pub name: &'static str,
    /// No steady iteration is shorter in the mean.
    pub time: Nanos,
    /// The schedules that it holds for.
    pub class: &'static str,
}

/// Least volumes of a steady iteration in the mean, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Volume {
    /// Moved to the device.
    pub bytes_in: u64,
    /// Moved to the host.
    pub bytes_out: u64,
}

/// Slots that the stretch of steady iterations is cut into.
const SLOTS: usize = 1536;
/// And that it is cut into first, of which those are kept.
const FINEST: usize = 8 * SLOTS;

const STREAMING_ON: &str = "lifetimes on, streaming: all schedules that move content whole, at \
     any time, and drop it only if it is dead or will be overwritten unread";
const STREAMING_TOLD: &str = "lifetimes on, streaming: all schedules that move content whole, at \
     any time, and drop it only if its memory was given back or a copy or fill overwrites it";
const STREAMING_OFF_TOLD: &str = "lifetimes off, streaming: all schedules that move content \
     whole, at any time, and preserve it until its memory is given back, even what is given back \
     unused";
const STREAMING_OFF: &str = "lifetimes off, streaming: all schedules that move content whole, at \
     any time, and preserve it until its memory is given back";
const INDEXED_ON: &str = "lifetimes on, indexed: as streaming, and may use on the host, over \
     the link, the blocks that some launch uses by an index";
const INDEXED_TOLD: &str = "lifetimes on, indexed: as streaming where deaths are told, and \
     may use on the host, over the link, the blocks that some launch uses by an index";
const INDEXED_OFF: &str = "lifetimes off, indexed: as streaming, and may use on the host, \
     over the link, the blocks that some launch uses by an index";
const INDEXED_OFF_TOLD: &str = "lifetimes off, indexed: as streaming where deaths are told, \
     and may use on the host, over the link, the blocks that some launch uses \
     by an index";
const ACCESS_ON: &str = "lifetimes on, access: as streaming, and may use anything on the \
     host, over the link";
const ACCESS_TOLD: &str = "lifetimes on, access: as streaming where deaths are told, and may \
     use anything on the host, over the link";
const ACCESS_OFF: &str = "lifetimes off, access: as streaming, and may use anything on the \
     host, over the link";
const ACCESS_OFF_TOLD: &str = "lifetimes off, access: as streaming where deaths are told, \
     and may use anything on the host, over the link";
const ATOMIC_ON: &str = "lifetimes on, atomic: as streaming, with all that a launch touches on \
     the device at one instant";
const ATOMIC_OFF: &str = "lifetimes off, atomic: as streaming, with all that a launch touches on \
     the device at one instant";

/// The strongest bound that holds for every policy of the simulator, or for every one that is
/// told of deaths.
///
/// `capacity_bytes` is the device memory, of which whole frames count; the memory of
/// `machine` is not looked at.
pub fn strongest(
    program: &Program,
    machine: &Machine,
    capacity_bytes: u64,
    (lifetimes, deaths): (bool, Deaths),
    effort: Effort,
) -> Bound {
    let bounds = Bounds::new(program, machine, lifetimes, deaths);
    bounds.strongest(capacity_bytes, effort)
}

/// A program prepared for its bounds at any capacity.
#[derive(Clone, Debug)]
pub struct Bounds {
    slots: Slots,
    /// Most leaves that a launch touches, by slot.
    widest: Vec<u64>,
    /// Most blocks that a launch touches.
    widest_blocks: u64,
    leaves: Counted,
    frames: Counted,
    blocks: Counted,
    rates: Rates,
    lifetimes: bool,
    deaths: Deaths,
    reach: Reach,
}

impl Bounds {
    /// Finds what the program needs, in time linear in its accesses, where all that is used
    /// moves.
    pub fn new(program: &Program, machine: &Machine, lifetimes: bool, deaths: Deaths) -> Self {
        Self::reaching(program, machine, (lifetimes, deaths), Reach::Nothing)
    }

    /// The same where some content may also be used on the host.
    pub fn reaching(
        program: &Program,
        machine: &Machine,
        (lifetimes, deaths): (bool, Deaths),
        reach: Reach,
    ) -> Self {
        Self::cut(program, machine, (lifetimes, deaths), reach, SLOTS)
    }

    fn cut(
        program: &Program,
        machine: &Machine,
        class: (bool, Deaths),
        reach: Reach,
        count: usize,
    ) -> Self {
        let (lifetimes, deaths) = class;
        let rates = Rates::of(machine);
        let gaps = |slots: &Slots| Gaps::of(program, slots, class, reach, rates.access_percent);
        let mut slots = Slots::cut(program, machine.rules, FINEST);
        if slots.len() > count {
            let wanted = Counted::leaves(&gaps(&slots)).wanted;
            slots = slots.only(fullest(&wanted, count.saturating_sub(1)));
        }
        let gaps = gaps(&slots);
        Self {
            leaves: Counted::leaves(&gaps),
            frames: Counted::frames(&gaps),
            blocks: Counted::blocks(&gaps),
            widest: gaps.widest,
            widest_blocks: gaps.widest_blocks,
            rates,
            slots,
            lifetimes,
            deaths,
            reach,
        }
    }

    /// The strongest bound of all, of the streaming class, which no policy of the simulator
    /// with the same reach is outside of. Of equal ones the simplest.
    pub fn strongest(&self, capacity_bytes: u64, effort: Effort) -> Bound {
        let (counted, tiling) = self.tile(capacity_bytes);
        let mut best = self.lb0();
        let mut candidates = vec![self.streaming("lb2", tiling.time)];
        if self.reach == Reach::Nothing {
            candidates.insert(0, self.lb1_streaming(capacity_bytes));
        }
        if effort == Effort::Full {
            candidates.extend(self.priced(counted, &tiling, capacity_bytes));
        }
        for bound in candidates {
            if bound.time > best.time {
                best = bound;
            }
        }
        best
    }

    /// Compute alone.
    pub fn lb0(&self) -> Bound {
        self.streaming("lb0", self.slots.times.iter().sum())
    }

    /// Least volumes that any policy moves that uses nothing on the host.
    pub fn volume(&self, capacity_bytes: u64) -> Volume {
        self.volume_of(capacity_bytes, false)
    }

    /// Compute, or the least volume of either direction, or of both under a joint cap, where
    /// nothing is used on the host.
    pub fn lb1_streaming(&self, capacity_bytes: u64) -> Bound {
        self.streaming("lb1-streaming", self.volume_time(capacity_bytes, false))
    }

    /// The same for schedules that hold all that a launch touches at one instant; none where
    /// a launch touches more than the device holds, so that there is no such schedule.
    pub fn lb1_atomic(&self, capacity_bytes: u64) -> Option<Bound> {
        (self.widest_blocks <= capacity_bytes / BLOCK_BYTES).then(|| {
            let bound = self.streaming("lb1-atomic", self.volume_time(capacity_bytes, true));
            Bound {
                class: if self.lifetimes {
                    ATOMIC_ON
                } else {
                    ATOMIC_OFF
                },
                ..bound
            }
        })
    }

    /// The best tiling of the steady iterations with windows.
    pub fn lb2(&self, capacity_bytes: u64) -> Bound {
        self.streaming("lb2", self.tile(capacity_bytes).1.time)
    }

    /// The bound of the linear program's prices; none where it was too large, gave no prices,
    /// or the feature `lp` is off.
    pub fn lb3(&self, capacity_bytes: u64) -> Option<Bound> {
        let (counted, tiling) = self.tile(capacity_bytes);
        self.priced(counted, &tiling, capacity_bytes)
    }

    /// LB3 of each way to count.
    #[cfg(test)]
    fn every_lb3(&self, capacity_bytes: u64) -> Vec<Bound> {
        let frames = capacity_bytes / BLOCK_BYTES;
        let ways = [&self.leaves, &self.frames, &self.blocks].into_iter();
        let all = ways.filter_map(|way| {
            let tiling = window::tile(&self.slots, way, &self.rates, frames);
            self.priced(way, &tiling, capacity_bytes)
        });
        all.collect()
    }

    #[cfg(feature = "lp")]
    fn priced(&self, counted: &Counted, tiling: &Tiling, capacity_bytes: u64) -> Option<Bound> {
        let frames = capacity_bytes / BLOCK_BYTES;
        let leaf = self.rates.leaf();
        let time = linear::bound(&self.slots, counted, tiling, frames, leaf)?;
        // Rounded down; negative only where the prices were poor.
        Some(self.streaming("lb3-streaming", time.max(0.0) as u64))
    }

    #[cfg(not(feature = "lp"))]
    fn priced(&self, _: &Counted, _: &Tiling, _: u64) -> Option<Bound> {
        None
    }

    /// The best tiling of those that count in leaves, in frames and in blocks, and how it counts;
    /// of equal ones the simplest.
    fn tile(&self, capacity_bytes: u64) -> (&Counted, Tiling) {
        let frames = capacity_bytes / BLOCK_BYTES;
        let tile = |way| (way, window::tile(&self.slots, way, &self.rates, frames));
        let mut best = tile(&self.leaves);
        for way in [&self.frames, &self.blocks] {
            let other = tile(way);
            if other.1.time > best.1.time {
                best = other;
            }
        }
        best
    }

    fn volume_of(&self, capacity_bytes: u64, atomic: bool) -> Volume {
        let frames = capacity_bytes / BLOCK_BYTES;
        let (inward, outward) = self.least(frames, atomic);
        let count = self.slots.iterations as u64;
        Volume {
            bytes_in: inward * crate::units::LEAF_BYTES / count,
            bytes_out: outward * crate::units::LEAF_BYTES / count,
        }
    }

    fn volume_time(&self, capacity_bytes: u64, atomic: bool) -> u64 {
        let frames = capacity_bytes / BLOCK_BYTES;
        let (inward, outward) = self.least(frames, atomic);
        let compute: u64 = self.slots.times.iter().sum();
        compute.max(self.rates.least([inward, outward, inward + outward]))
    }

    fn least(&self, frames: u64, atomic: bool) -> (u64, u64) {
        let widest = atomic.then_some(self.widest.as_slice());
        volume::least(&self.slots, &self.leaves, frames, widest)
    }

    /// A bound of the streaming class from one on the whole stretch.
    fn streaming(&self, name: &'static str, total: u64) -> Bound {
        Bound {
            name: match (name, self.reach) {
                ("lb2", Reach::Indexed) => "lb2-indexed",
                ("lb2", Reach::Everything) => "lb2-access",
                ("lb3-streaming", Reach::Indexed) => "lb3-indexed",
                ("lb3-streaming", Reach::Everything) => "lb3-access",
                _ => name,
            },
            time: Nanos(total / self.slots.iterations as u64),
            class: match self.reach {
                Reach::Nothing => match (self.lifetimes, self.deaths) {
                    (true, Deaths::Foreseen) => STREAMING_ON,
                    (true, Deaths::Told) => STREAMING_TOLD,
                    (false, Deaths::Foreseen) => STREAMING_OFF,
                    (false, Deaths::Told) => STREAMING_OFF_TOLD,
                },
                Reach::Indexed => match (self.lifetimes, self.deaths) {
                    (true, Deaths::Foreseen) => INDEXED_ON,
                    (true, Deaths::Told) => INDEXED_TOLD,
                    (false, Deaths::Foreseen) => INDEXED_OFF,
                    (false, Deaths::Told) => INDEXED_OFF_TOLD,
                },
                Reach::Everything => match (self.lifetimes, self.deaths) {
                    (true, Deaths::Foreseen) => ACCESS_ON,
                    (true, Deaths::Told) => ACCESS_TOLD,
                    (false, Deaths::Foreseen) => ACCESS_OFF,
                    (false, Deaths::Told) => ACCESS_OFF_TOLD,
                },
            },
        }
    }
}
