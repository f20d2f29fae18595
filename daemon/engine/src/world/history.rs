//! What was launched, in order, and where in the past the present repeats.
//!
//! Owns positions: the launches of a session are numbered from 1 in the order in which
//! the program made them. Knows nothing of blocks' residency.

use std::collections::VecDeque;
use std::iter;

use super::anchors::Anchors;
use super::phase::{PATIENCE, Phase, context};
use crate::hash::Map;
use crate::units::Micros;

/// Lengths of the contexts by which a lost place is found again, longest first.
const CONTEXTS: [usize; 3] = [16, 4, 1];
/// Positions whose highest count of live blocks is kept together.
const CHUNK: u64 = 64;
/// Turns back at most in which a launch with the same arguments is looked for.
const TURNS: u64 = 8;
/// Launches of the session's beginning that are kept for its profile.
const OPENING: usize = 1 << 14;

#[derive(Debug)]
struct Entry {
    exec: u32,
    /// What it runs, whatever on.
    code: u32,
    /// Blocks with content once it was over.
    live: u32,
    /// When it was over, microseconds, the lower half; 0: not known.
    over: u32,
    contexts: [u64; CONTEXTS.len()],
    /// The context of what it runs ([`Phase::follow`]).
    codes: u64,
}

/// The launches remembered.
#[derive(Debug)]
pub(crate) struct History {
    ring: VecDeque<Entry>,
    /// Position of the oldest one.
    first: u64,
    limit: usize,
    /// Where each context was seen last.
    seen: [Map<u64, u64>; CONTEXTS.len()],
    /// The launch in the past that the newest one repeats.
    matched: Option<u64>,
    misses: u64,
    /// How long the place has held, in launches.
    held: u64,
    dropped: u64,
    /// The first launches of the session, for its profile: execution ID and live blocks.
    opening: Vec<(u32, u32)>,
    /// Launches of an earlier run that come before them.
    restored: u64,
    /// Most of `live` in each part of [`CHUNK`] positions; the first one holds `first`.
    peaks: VecDeque<u32>,
    anchors: Anchors,
    phase: Phase,
}

impl History {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            ring: VecDeque::new(),
            first: 1,
            limit,
            seen: Default::default(),
            matched: None,
            misses: 0,
            held: 0,
            dropped: 0,
            peaks: VecDeque::new(),
            opening: Vec::new(),
            restored: 0,
            anchors: Anchors::default(),
            phase: Phase::default(),
        }
    }

    /// Position of the newest launch; 0 before the first.
    pub(crate) fn head(&self) -> u64 {
        self.first + self.ring.len() as u64 - 1
    }

    pub(crate) fn len(&self) -> usize {
        self.ring.len()
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// How far in the past the present repeats, in launches.
    pub(crate) fn lag(&self) -> Option<u64> {
        self.matched.map(|matched| self.head() - matched)
    }

    /// Launches for which the present lag has held, each of them with the same arguments as then.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Uses up to this position are of no more interest.
    pub(crate) fn stale(&self) -> u64 {
        self.matched
            .map_or(0, |matched| matched.saturating_sub(PATIENCE))
    }

    fn entry(&self, position: u64) -> Option<&Entry> {
        self.ring.get(position.checked_sub(self.first)? as usize)
    }

    /// The launch that is expected `ahead` launches after the newest one (1: next).
    #[cfg(test)]
    fn expected(&self, ahead: u64) -> Option<u32> {
        let lag = self.lag()?;
        let back = lag - (ahead - 1) % lag - 1;
        self.entry(self.head().checked_sub(back)?)
            .map(|entry| entry.exec)
    }

    /// So many blocks had content when the launch at `position` was over.
    pub(crate) fn set_live(&mut self, position: u64, live: u64) {
        let live = u32::try_from(live).unwrap_or(u32::MAX);
        let Some(index) = position.checked_sub(self.first) else {
            return;
        };
        if let Some(entry) = self.ring.get_mut(index as usize) {
            entry.live = live;
        }
        let opening = position.checked_sub(self.restored + 1);
        let opening = opening.and_then(|index| self.opening.get_mut(index as usize));
        if let Some((_, opening)) = opening {
            *opening = live;
        }
        let chunk = (position / CHUNK - self.first / CHUNK) as usize;
        if let Some(peak) = self.peaks.get_mut(chunk) {
            *peak = (*peak).max(live);
        }
    }

    /// The launch at `position` was over at this time.
    pub(crate) fn set_over(&mut self, position: u64, now: Micros) {
        if let Some(index) = position.checked_sub(self.first)
            && let Some(entry) = self.ring.get_mut(index as usize)
        {
            entry.over = (now.0 as u32).max(1);
        }
    }

    /// Microseconds from the end of a launch to that of a later one, at most some 71 minutes; none
    /// where one of the two is not known.
    pub(crate) fn between(&self, from: u64, until: u64) -> Option<u64> {
        let over = |position| self.entry(position).map_or(0, |entry| entry.over);
        let (from, until) = (over(from), over(until));
        (from > 0 && until > 0).then(|| until.wrapping_sub(from).into())
    }

    /// Live blocks when the launch at `position` was over, before anything died after it.
    pub(crate) fn live_after(&self, position: u64) -> Option<u32> {
        self.entry(position).map(|entry| entry.live)
    }

    /// Live blocks before the launch at `from`, and the most of them from there up to
    /// before `until`. All of these launches must be over.
    pub(crate) fn live_within(&self, from: u64, until: u64) -> (u32, u32) {
        let live = |position: u64| self.entry(position).map_or(0, |entry| entry.live);
        let now = live(from.saturating_sub(1).max(self.first));
        let mut peak = now;
        let mut position = from.max(self.first);
        while position < until {
            let whole = position.is_multiple_of(CHUNK) && position + CHUNK <= until;
            if whole {
                let chunk = (position / CHUNK - self.first / CHUNK) as usize;
                peak = peak.max(self.peaks.get(chunk).copied().unwrap_or(0));
                position += CHUNK;
            } else {
                peak = peak.max(live(position));
                position += 1;
            }
        }
        (now, peak)
    }

    /// Adds a launch, by its execution ID and what it runs, and returns its position. `pointers`
    /// are what it was given, and where.
    pub(crate) fn push(
        &mut self,
        (exec, code): (u32, u32),
        pointers: impl Iterator<Item = u64>,
    ) -> u64 {
        let position = self.head() + 1;
        let contexts = self.contexts(exec);
        let (lag, ring, first) = (self.lag(), &self.ring, self.first);
        let before = ring.iter().rev().map(|entry| entry.code);
        let at = |place: u64| Some(ring.get(place.checked_sub(first)? as usize)?.code);
        let codes = self.phase.follow((position, code), before, at);
        let same = self.follow((exec, code), &contexts, pointers);
        for (map, &context) in self.seen.iter_mut().zip(&contexts) {
            if context != 0 {
                map.insert(context, position);
            }
        }
        let live = self.ring.back().map_or(0, |entry| entry.live);
        self.ring.push_back(Entry {
            exec,
            code,
            live,
            over: 0,
            contexts,
            codes,
        });
        if self.opening.len() < OPENING {
            self.opening.push((exec, live));
        }
        if self.peaks.is_empty() || position.is_multiple_of(CHUNK) {
            self.peaks.push_back(live);
        }
        if self.ring.len() > self.limit {
            self.drop_oldest();
        }
        if same && self.lag() == lag {
            self.held += 1;
        } else {
            self.held = 0;
        }
        position
    }

    /// Hashes of the last launches with this one, for each length; 0 where too few.
    fn contexts(&self, exec: u32) -> [u64; CONTEXTS.len()] {
        let before = self.ring.iter().rev().map(|entry| entry.exec);
        CONTEXTS.map(|length| context(exec, before.clone(), length))
    }

    /// Moves the place in the past along with a launch that is not in the ring yet. False where
    /// that launch is in the place of one with other arguments.
    fn follow(
        &mut self,
        (exec, code): (u32, u32),
        contexts: &[u64; CONTEXTS.len()],
        pointers: impl Iterator<Item = u64>,
    ) -> bool {
        let head = self.head();
        if let Some(matched) = self.matched {
            let expects = |ahead: u64| self.entry(matched + ahead).is_some_and(|e| e.exec == exec);
            // `matched` was for the newest launch in the ring; skipped or replaced
            // launches are stepped over.
            for ahead in 1..=self.misses + 2 {
                if matched + ahead <= head && expects(ahead) {
                    self.matched = Some(matched + ahead);
                    self.misses = 0;
                    self.anchors.expected(head + 1 - (matched + ahead));
                    return true;
                }
            }
        }
        if let Some(place) = self.place_by_turns(contexts[0]) {
            (self.matched, self.misses) = (Some(place), 0);
            self.anchors.expected(head + 1 - place);
            return true;
        }
        if let Some(place) = self.place_in_turn(code) {
            (self.matched, self.misses) = (Some(place), 0);
            self.anchors.unexpected(head + 1, pointers);
            return false;
        }
        let place = self.place_by_pointers(code, pointers);
        self.misses += 1;
        let known = self.matched.is_some();
        for (index, context) in contexts.iter().enumerate() {
            // A few launches that are the same may be others of many, as fills are.
            if index == 1 && place.is_some() {
                (self.matched, self.misses) = (place, 0);
                return true;
            }
            // A single launch is too weak a sign to give up a place for, or to find one
            // by while the last place may still come back.
            if CONTEXTS[index] == 1 && known {
                break;
            }
            if let Some(&position) = self.seen[index].get(context)
                && *context != 0
                && position >= self.first
            {
                self.matched = Some(position);
                self.misses = 0;
                return true;
            }
        }
        if self.misses > PATIENCE {
            self.matched = None;
            self.misses = 0;
        }
        true
    }

    /// The place whole turns ago where the same was launched as now, in this context: where
    /// memory is handed out as some turns ago, that tells what comes next, and not what was
    /// launched last in the same context.
    fn place_by_turns(&self, context: u64) -> Option<u64> {
        let position = self.head() + 1;
        let turn = self.phase.turn(position).filter(|_| context != 0)?;
        let mut places = (1..=TURNS).map_while(|turns| position.checked_sub(turns * turn));
        places.find(|&place| self.entry(place).is_some_and(|e| e.contexts[0] == context))
    }

    /// The place whole turns ago, where the place was so far, if the same runs there as now: sizes
    /// or addresses are others, but what comes next is known all the same.
    fn place_in_turn(&self, code: u32) -> Option<u64> {
        let position = self.head() + 1;
        let (turn, place) = (self.phase.turn(position)?, self.matched? + 1);
        let in_turn = (position - place).is_multiple_of(turn);
        (in_turn && self.entry(place)?.code == code).then_some(place)
    }

    /// The place in the past that pointers tell of, for a launch that is not in the ring yet: the
    /// one from which on the present repeats the most, of where it was and where the last launches
    /// agree that it is.
    fn place_by_pointers(&mut self, code: u32, pointers: impl Iterator<Item = u64>) -> Option<u64> {
        let position = self.head() + 1;
        if !self.anchors.unexpected(position, pointers) {
            return None;
        }
        let runs_the_same = |place: &u64| self.entry(*place).is_some_and(|e| e.code == code);
        let elected = self.anchors.elected();
        let elected = elected.and_then(|lag| position.checked_sub(lag));
        let next = self.matched.map(|matched| matched + 1);
        let agreed = next.filter(|place| self.anchors.agree_on(position - place));
        let places = elected.into_iter().chain(agreed);
        places.filter(runs_the_same).min()
    }

    fn drop_oldest(&mut self) {
        let Some(entry) = self.ring.pop_front() else {
            return;
        };
        for (map, context) in self.seen.iter_mut().zip(entry.contexts) {
            if map.get(&context) == Some(&self.first) {
                map.remove(&context);
            }
        }
        self.phase.forget(self.first, entry.codes);
        self.first += 1;
        if self.first.is_multiple_of(CHUNK) {
            self.peaks.pop_front();
        }
        self.dropped += 1;
        if self.matched.is_some_and(|matched| matched < self.first) {
            self.matched = None;
        }
    }

    /// The launches of a turn, if it is known.
    pub(crate) fn turn(&self) -> Option<u64> {
        self.phase.turn(self.head())
    }

    /// The execution ID of the launch at a position, if it is remembered.
    pub(crate) fn exec(&self, position: u64) -> Option<u32> {
        self.entry(position).map(|entry| entry.exec)
    }

    /// The newest launches, at most so many, oldest first: execution ID and live blocks.
    pub(crate) fn newest(&self, count: usize) -> Vec<(u32, u32)> {
        let skipped = self.ring.len().saturating_sub(count);
        let newest = self.ring.iter().skip(skipped);
        newest.map(|entry| (entry.exec, entry.live)).collect()
    }

    /// Launches of this session, without those of an earlier run.
    pub(crate) fn own(&self) -> usize {
        (self.head() - self.restored) as usize
    }

    /// The number within this session of the launch at `position`, from 1.
    pub(crate) fn own_number(&self, position: u64) -> u64 {
        position.saturating_sub(self.restored)
    }

    /// The first launches of the session, at most so many.
    pub(crate) fn opening(&self, count: usize) -> &[(u32, u32)] {
        &self.opening[..self.opening.len().min(count)]
    }

    /// Begins behind the launches of an earlier run, which is expected to be repeated from
    /// its first launch on.
    pub(crate) fn restore(&mut self, launches: &[(u32, u32)]) {
        for &(exec, live) in launches {
            let position = self.push((exec, exec), iter::empty());
            self.set_live(position, u64::from(live));
        }
        self.opening.clear();
        self.restored = self.head();
        self.matched = Some(self.first - 1).filter(|_| !launches.is_empty());
        (self.misses, self.held) = (0, 0);
        // What they ran is not known.
        self.phase = Phase::default();
    }

    /// Estimated size of the tables in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let contexts: usize = self.seen.iter().map(|map| map.capacity()).sum();
        let opening = self.opening.capacity() * size_of::<(u32, u32)>();
        (self.ring.capacity() * size_of::<Entry>() + opening + contexts * 24) as u64
            + self.anchors.bytes()
            + self.phase.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(history: &mut History, execs: impl IntoIterator<Item = u32>) {
        for exec in execs {
            history.push((exec, exec), iter::empty());
        }
    }

    #[test]
    fn a_cycle_is_found_in_its_second_turn() {
        let mut history = History::new(1000);
        run(&mut history, 0..20);
        assert_eq!(history.lag(), None);
        run(&mut history, 0..20);
        assert_eq!(history.lag(), Some(20));
        assert_eq!(history.expected(1), Some(0));
        assert_eq!(history.expected(21), Some(0));
    }

    #[test]
    fn a_skipped_launch_does_not_lose_the_place() {
        let mut history = History::new(1000);
        run(&mut history, (0..20).chain(0..10).chain(11..20));
        assert_eq!(history.expected(1), Some(0));
        assert_eq!(history.expected(10), Some(9));
    }

    #[test]
    fn a_new_launch_in_between_does_not_lose_the_place() {
        let mut history = History::new(1000);
        run(&mut history, (0..20).chain(0..10).chain([99]).chain(10..15));
        assert_eq!(history.expected(1), Some(15));
    }

    #[test]
    fn another_phase_is_found_by_its_context() {
        let mut history = History::new(1000);
        run(
            &mut history,
            (0..20).chain(50..70).chain(0..20).chain(50..60),
        );
        assert_eq!(history.expected(1), Some(60));
    }

    #[test]
    fn a_place_is_found_by_weights_where_all_else_differs() {
        let mut history = History::new(1000);
        for turn in 0..3 {
            for launch in 0..50 {
                let exec = turn * 50 + launch;
                // Sometimes there is another launch in between.
                if launch == 20 && turn == 2 {
                    history.push((999, 999), iter::once(999));
                }
                history.push((exec, launch % 5), iter::once(u64::from(launch)));
            }
        }
        assert_eq!(history.lag(), Some(51));
    }

    /// Launches that run these, with arguments of their own in each `layout`.
    fn run_laid_out(history: &mut History, layout: u32, codes: std::ops::Range<u32>) {
        for code in codes {
            history.push((code + 1000 * layout, code), iter::empty());
        }
    }

    #[test]
    fn the_place_is_kept_where_arguments_are_new_in_each_turn() {
        let mut history = History::new(10_000);
        for turn in 0..5 {
            run(&mut history, 0..20);
            run_laid_out(&mut history, turn, 20..60);
            assert!(turn < 3 || history.lag() == Some(60), "turn {turn}");
            let same = history.held();
            assert!(turn < 3 || same == 0, "{same} launches were the same");
        }
        assert_eq!(history.expected(1), Some(0));
        run(&mut history, 0..20);
        assert!(history.held() >= 19, "{}", history.held());
    }

    #[test]
    fn a_layout_that_comes_again_after_some_turns_is_found_there_and_not_in_the_last_batch() {
        const BATCH: u32 = 40;
        let mut history = History::new(10_000);
        for turn in 0..12 {
            for batch in 0..4 {
                // Each batch as the one before, so that each looks as if another were to come.
                run_laid_out(&mut history, turn % 3, 0..BATCH);
                let next = if batch == 3 { 500 } else { turn % 3 * 1000 };
                let expected = history.expected(1);
                assert!(turn < 7 || expected == Some(next), "{turn}: {expected:?}");
            }
            run(&mut history, 500..520);
        }
        assert_eq!(history.lag(), Some(3 * (4 * u64::from(BATCH) + 20)));
    }

    #[test]
    fn the_ring_keeps_its_limit_and_counts_what_it_drops() {
        let mut history = History::new(50);
        run(&mut history, (0..200).map(|n| n % 20));
        assert_eq!(history.len(), 50);
        assert_eq!(history.dropped(), 150);
        assert_eq!(history.lag(), Some(20));
        assert!(history.seen.iter().all(|map| map.len() <= 50));
    }

    #[test]
    fn the_most_live_blocks_of_a_stretch_are_found_across_its_parts() {
        let mut history = History::new(1000);
        for position in 1..=300 {
            history.push((0, 0), iter::empty());
            history.set_live(position, if position == 200 { 90 } else { position % 7 });
        }
        assert_eq!(history.live_within(3, 190), (2, 6));
        assert_eq!(history.live_within(3, 201), (2, 90));
        assert_eq!(
            history.live_within(201, 300),
            (90, 90),
            "what is before counts"
        );
        let (_, peak) = history.live_within(202, 300);
        assert_eq!(peak, 6);
    }

    #[test]
    fn live_blocks_are_forgotten_with_their_launches() {
        let mut history = History::new(100);
        for position in 1..=500 {
            history.push((0, 0), iter::empty());
            history.set_live(position, if position < 450 { 50 } else { 5 });
        }
        assert_eq!(history.live_within(460, 500), (5, 5));
        assert!(history.peaks.len() <= 3, "{} parts", history.peaks.len());
    }
}
