//! Launches that the device has not passed yet, per stream and in program order.
//!
//! Owns the exact future (what is queued), the floor (the oldest launch that may still
//! run) and the deaths that wait for a stream to pass them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::block::{Extent, Set};
use crate::access::{Access, Argument};
use crate::units::{BlockId, Range, Seq, StreamId};

/// A stream this many launches behind another one's progress, with no more than
/// [`UNMARKED`] launches left, merely got no mark for its tail.
const IDLE_POSITIONS: u64 = 512;
/// Most launches that a stream can have run without a mark (the largest stride).
const UNMARKED: usize = 64;

/// A launch in its stream.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub position: u64,
    pub seq: Seq,
    pub stream: StreamId,
    pub exec: u32,
    /// Blocks that it uses, as far as known.
    pub set: Set,
    /// Memory of which it uses an unknown part.
    pub loose: Set,
    /// Its arguments' blocks, where it goes through a large part of the device.
    pub sweep: Option<Set>,
    /// Its pointers.
    pub arguments: Arc<[Argument]>,
    /// [`Window::stride`] when it came.
    stride: u32,
    passed: bool,
}

impl Pending {
    /// What it uses.
    pub(crate) fn access(&self) -> Access {
        Access {
            set: self.set.clone(),
            loose: self.loose.clone(),
            sweep: self.sweep.clone(),
        }
    }

    /// It uses something else than was thought.
    pub(crate) fn uses_instead(&mut self, Access { set, loose, sweep }: Access) {
        (self.set, self.loose, self.sweep) = (set, loose, sweep);
    }

    pub(crate) fn uses(&self, id: BlockId) -> bool {
        let index = self
            .set
            .partition_point(|extent: &Extent| extent.end() <= id.0);
        self.set
            .get(index)
            .is_some_and(|extent| extent.contains(id))
    }
}

/// A part of a pool segment that dies when its stream has passed a launch.
#[derive(Clone, Copy, Debug)]
struct Death {
    after: Seq,
    range: Range,
}

#[derive(Debug, Default)]
struct Stream {
    passed: Seq,
    /// The device was seen to have passed this, though nobody may take it so yet.
    reached: Seq,
    last: Seq,
    queue: VecDeque<u64>,
    deaths: VecDeque<Death>,
}

/// The launches under way.
#[derive(Debug)]
pub(crate) struct Window {
    launches: VecDeque<Pending>,
    streams: BTreeMap<u8, Stream>,
    limit: usize,
    /// A mark comes after so many launches of a stream: the device may have passed as many that
    /// came since, and nobody knows. Those that were put there before it changed keep theirs.
    pub stride: u32,
}

impl Window {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            launches: VecDeque::new(),
            streams: BTreeMap::new(),
            limit,
            stride: 1,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Pending> {
        self.launches.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Pending> {
        self.launches.iter_mut()
    }

    pub(crate) fn front(&self) -> Option<&Pending> {
        self.launches.front()
    }

    /// The launch at a position, if it is under way.
    pub(crate) fn at(&self, position: u64) -> Option<&Pending> {
        let first = self.launches.front()?.position;
        self.launches.get(position.checked_sub(first)? as usize)
    }

    pub(crate) fn len(&self) -> usize {
        self.launches.len()
    }

    /// The program put a launch into a stream.
    pub(crate) fn push(
        &mut self,
        (position, exec): (u64, u32),
        (seq, stream): (Seq, StreamId),
        Access { set, loose, sweep }: Access,
        arguments: Arc<[Argument]>,
    ) {
        let state = self.streams.entry(stream.0).or_default();
        // A number from the past would wait for ever: it is passed with the next one.
        let seq = seq.max(state.last);
        state.last = seq;
        state.queue.push_back(position);
        let (stride, passed) = (self.stride, false);
        let launch = Pending {
            position,
            seq,
            stream,
            exec,
            set,
            loose,
            sweep,
            arguments,
            stride,
            passed,
        };
        self.launches.push_back(launch);
        if seq <= state.passed {
            // The mark was sampled before this record was read.
            let passed = state.passed;
            self.pass(stream, passed);
        }
        if self.launches.len() > self.limit
            && let Some(front) = self.launches.front()
        {
            let (stream, seq) = (front.stream, front.seq);
            self.pass(stream, seq);
        }
    }

    /// The device passed `seq` in `stream`. Take the launches with [`Window::pop`] and
    /// the deaths with [`Window::pop_death`].
    pub(crate) fn pass(&mut self, stream: StreamId, seq: Seq) {
        let state = self.streams.entry(stream.0).or_default();
        state.passed = state.passed.max(seq);
        let mut reached = 0;
        Self::pass_queue(&mut self.launches, state, seq, &mut reached);
        if reached == 0 || self.streams.len() == 1 {
            return;
        }
        for state in self.streams.values_mut() {
            let idle = state.queue.len() <= UNMARKED
                && state
                    .queue
                    .back()
                    .is_some_and(|&last| last + IDLE_POSITIONS < reached);
            if idle {
                state.passed = state.last;
                let last = state.last;
                Self::pass_queue(&mut self.launches, state, last, &mut reached);
            }
        }
    }

    fn pass_queue(
        launches: &mut VecDeque<Pending>,
        state: &mut Stream,
        seq: Seq,
        reached: &mut u64,
    ) {
        let Some(first) = launches.front().map(|launch| launch.position) else {
            return;
        };
        while let Some(&position) = state.queue.front() {
            let launch = &mut launches[(position - first) as usize];
            if launch.seq > seq {
                break;
            }
            launch.passed = true;
            *reached = (*reached).max(position);
            state.queue.pop_front();
        }
    }

    /// The oldest launch, if it is over.
    pub(crate) fn pop(&mut self) -> Option<Pending> {
        if self.launches.front()?.passed {
            self.launches.pop_front()
        } else {
            None
        }
    }

    /// The device was seen to have passed `seq` in `stream`: what is told of it until
    /// [`Window::pass`] may be of any launch up to the next one.
    pub(crate) fn reach(&mut self, stream: StreamId, seq: Seq) {
        let state = self.streams.entry(stream.0).or_default();
        state.reached = state.reached.max(seq);
    }

    /// The last position that may be running if each stream runs any of its next `launches`, or
    /// any before its next mark.
    pub(crate) fn running_end(&self, launches: u32) -> u64 {
        let first = self.launches.front().map_or(0, |launch| launch.position);
        let launch = |position: u64| &self.launches[(position - first) as usize];
        self.streams
            .values()
            .filter_map(|stream| {
                let reached = if stream.reached > stream.passed {
                    let over = |&position: &u64| launch(position).seq <= stream.reached;
                    stream.queue.partition_point(over)
                } else {
                    0
                };
                let next = stream.queue.get(reached).copied();
                let marked = next.map_or(1, |next| launch(next).stride);
                let ahead = launches.max(marked) as usize;
                let last = stream.queue.len().min(reached + ahead).checked_sub(1)?;
                stream.queue.get(last).copied()
            })
            .max()
            .unwrap_or(0)
    }

    /// `range` dies when `stream` has passed everything before `seq`.
    pub(crate) fn push_death(&mut self, stream: StreamId, seq: Seq, range: Range) {
        let state = self.streams.entry(stream.0).or_default();
        let after = state.last.min(Seq(seq.0.saturating_sub(1)));
        let after = state
            .deaths
            .back()
            .map_or(after, |last| after.max(last.after));
        state.deaths.push_back(Death { after, range });
    }

    /// A part that died before a launch that is over.
    pub(crate) fn pop_death_before(&mut self, launch: &Pending) -> Option<Range> {
        let deaths = &mut self.streams.get_mut(&launch.stream.0)?.deaths;
        let death = deaths.pop_front_if(|death| death.after < launch.seq)?;
        Some(death.range)
    }

    /// A part whose death has come.
    pub(crate) fn pop_death(&mut self) -> Option<Range> {
        for state in self.streams.values_mut() {
            if state
                .deaths
                .front()
                .is_some_and(|death| death.after <= state.passed)
            {
                return state.deaths.pop_front().map(|death| death.range);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: StreamId = StreamId(0);

    /// Launches with these numbers, in one stream, at these positions.
    fn push(window: &mut Window, numbers: std::ops::RangeInclusive<u64>) {
        for number in numbers {
            let nothing = Access {
                set: Arc::from([]),
                loose: Arc::from([]),
                sweep: None,
            };
            window.push((number, 0), (Seq(number), STREAM), nothing, Arc::from([]));
        }
    }

    #[test]
    fn any_launch_before_the_next_mark_may_run() {
        let mut window = Window::new(100);
        window.stride = 4;
        push(&mut window, 1..=8);
        window.stride = 1;
        push(&mut window, 9..=16);
        let ends: Vec<u64> = (1..=16)
            .map(|passed| {
                let end = window.running_end(1);
                window.pass(STREAM, Seq(passed));
                while window.pop().is_some() {}
                end
            })
            .collect();
        // The last ones before the change may have one beside them that was put there behind it.
        assert_eq!(
            ends,
            [4, 5, 6, 7, 8, 9, 10, 11, 9, 10, 11, 12, 13, 14, 15, 16]
        );
        assert_eq!(window.running_end(1), 0);
    }

    #[test]
    fn the_launch_behind_what_the_device_was_seen_to_have_passed_may_run() {
        let mut window = Window::new(100);
        push(&mut window, 1..=8);
        assert_eq!(window.running_end(1), 1);
        window.reach(STREAM, Seq(3));
        assert_eq!(window.running_end(1), 4);
        assert_eq!(window.running_end(3), 6);
        window.pass(STREAM, Seq(2));
        while window.pop().is_some() {}
        assert_eq!(window.running_end(1), 4);
        window.pass(STREAM, Seq(6));
        while window.pop().is_some() {}
        assert_eq!(window.running_end(1), 7);
        window.reach(STREAM, Seq(20));
        assert_eq!(window.running_end(1), 8, "no further than what was told of");
    }
}
