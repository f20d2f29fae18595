//! How long launches took lately: how far the device had come, by time.
//!
//! Owns the marks alone; what is concluded from them is others' business.

use std::collections::VecDeque;

use crate::units::Micros;

/// Marks kept at most, and how many in a turn of the program.
const MARKS: usize = 64;
const MARKS_IN_TURN: u64 = 16;
/// Launches by which time is marked where the program does not repeat itself.
pub(super) const STRIDE: u64 = 4;
/// What is compared is so many times as long as what passes at a time, at least: its ends are
/// known to one of these or so.
const RESOLUTION: u64 = 8;
/// One in so many of the latest steps counts for what passes at a time.
const STEPS: f64 = 16.0;

/// Stretches of launches by which it is told whether these are alike.
const STRETCHES: u64 = 4;
/// So many turns together tell what one takes where it is not the same each time.
const TURNS: u64 = 3;

/// A moment: the oldest launch that was not over, and the time.
pub(super) type Moment = (u64, Micros);

/// Launches, one after the other, and what they took.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Stretch {
    /// When it began.
    pub since: Moment,
    /// What each took, in the mean, microseconds.
    pub launch_us: f64,
}

/// The marks.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    marks: VecDeque<Moment>,
    /// The launch that was the oldest last, and how many pass at a time.
    launch: u64,
    step: f64,
}

impl Marks {
    /// Most launches that are compared where the program does not repeat itself.
    pub(super) const REACH: u64 = 8 * STRIDE;
    /// Most that are known there.
    pub(super) const HELD: u64 = (MARKS as u64 - 1) * STRIDE;

    /// It is so late. `turn`: the launches after which the program repeats itself, where it does.
    pub(super) fn pass(&mut self, moment: Moment, turn: Option<u64>) {
        let passed = moment.0.saturating_sub(self.launch);
        if passed > 0 {
            self.launch = moment.0;
            self.step += (passed as f64 - self.step) / STEPS;
        }
        let stride = turn
            .map_or(STRIDE, |turn| turn.div_ceil(MARKS_IN_TURN))
            .max(1);
        let last = self.marks.back();
        if last.is_none_or(|(last, _)| moment.0 >= last + stride) {
            self.push(moment);
        }
    }

    /// What comes is another matter: there is a mark at this moment.
    pub(super) fn end(&mut self, moment: Moment) {
        let last = self.marks.back();
        if last.is_none_or(|(last, _)| moment.0 > *last) {
            self.push(moment);
        }
    }

    fn push(&mut self, moment: Moment) {
        self.marks.push_back(moment);
        if self.marks.len() > MARKS {
            self.marks.pop_front();
        }
    }

    /// Turns of so many launches, as few as can be told apart from others: where many launches
    /// pass at a time, one turn may be too short.
    pub(super) fn turns(&self, turn: u64) -> u64 {
        let least = (self.step * RESOLUTION as f64) as u64;
        turn * least.div_ceil(turn.max(1)).max(1)
    }

    /// The launches of several turns of so many each, where one of the last turns took more than
    /// `times` as long as another: one tells little then. None where they are alike, or not known.
    pub(super) fn several(&self, turn: u64, times: f64) -> Option<u64> {
        let several = turn * TURNS;
        (self.vary(turn, times) && self.newest(several).is_some()).then_some(several)
    }

    /// When that launch was the oldest that was not over, in microseconds; none where it is not
    /// known.
    fn at(&self, launch: u64) -> Option<f64> {
        let next = self.marks.partition_point(|&(at, _)| at < launch);
        let &(after, until) = self.marks.get(next)?;
        if after == launch {
            return Some(until.0 as f64);
        }
        let &(before, since) = self.marks.get(next.checked_sub(1)?)?;
        let share = (launch - before) as f64 / (after - before) as f64;
        Some(since.0 as f64 + share * (until.0 - since.0) as f64)
    }

    /// What the launches from `first` up to before `end` took when they were last marked, each as
    /// few turns of so many launches ago as lead to that, microseconds; none where that is not
    /// known.
    pub(super) fn took(&self, first: u64, end: u64, turn: u64) -> Option<f64> {
        let ((last, _), turn) = (*self.marks.back()?, turn.max(1));
        let (mut from, mut sum_us) = (first, 0.0);
        while from < end {
            let turns = (from + 1).saturating_sub(last).div_ceil(turn);
            let back = turns * turn;
            let until = end.min(last + back);
            let since_us = self.at(from.checked_sub(back)?)?;
            sum_us += self.at(until - back)? - since_us;
            from = until;
        }
        Some(sum_us)
    }

    /// The last so many launches up to the newest mark: none of them is under way. None where that
    /// is not known any more.
    pub(super) fn newest(&self, launches: u64) -> Option<Stretch> {
        let until = *self.marks.back()?;
        let first = until.0.checked_sub(launches.max(1))?;
        let since_us = self.at(first)?;
        Some(Stretch {
            since: (first, Micros(since_us as u64)),
            launch_us: (until.1.0 as f64 - since_us) / launches.max(1) as f64,
        })
    }

    /// Of the last stretches of so many launches, one took more than `times` as long as another.
    pub(super) fn vary(&self, launches: u64, times: f64) -> bool {
        let newest = self.marks.back().map_or(0, |(newest, _)| *newest);
        let ends = (0..=STRETCHES).map_while(|back| newest.checked_sub(back * launches.max(1)));
        let ends: Vec<f64> = ends.map_while(|end| self.at(end)).collect();
        let took = ends.windows(2).map(|ends| ends[0] - ends[1]);
        let (least, most) = took.fold((f64::INFINITY, 0.0), |(least, most), took| {
            (took.min(least), took.max(most))
        });
        most > times * least
    }

    /// The last so many launches before a moment, or a few more; none where it is not known any
    /// more.
    pub(super) fn last(&self, launches: u64, until: Moment) -> Option<Stretch> {
        let mut marks = self.marks.iter().rev();
        let since = *marks.find(|(at, _)| at + launches.max(1) <= until.0)?;
        let launches = (until.0 - since.0) as f64;
        Some(Stretch {
            since,
            launch_us: until.1.0.saturating_sub(since.1.0) as f64 / launches,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marks of launches up to `until`, each of which takes as long as its number says.
    fn marks(until: u64, turn: Option<u64>) -> (Marks, Moment) {
        let (mut marks, mut now) = (Marks::default(), 0);
        for launch in 0..=until {
            now += launch;
            marks.pass((launch, Micros(now)), turn);
        }
        (marks, (until, Micros(now)))
    }

    #[test]
    fn the_last_launches_take_what_passed_since_the_mark_before_them() {
        let (marks, until) = marks(100, None);
        let last = marks.last(20, until);
        let launch_us = (81..=100).sum::<u64>() as f64 / 20.0;
        assert_eq!(
            last,
            Some(Stretch {
                since: (80, Micros(80 * 81 / 2)),
                launch_us
            })
        );
    }

    #[test]
    fn launches_vary_where_one_stretch_of_them_takes_longer_than_another() {
        // The last stretches of 10 take 6.5 to 9.6 ms.
        let (marks, _) = marks(1000, None);
        assert!(!marks.vary(10, 2.0));
        let (long, _) = self::marks(200, None);
        assert!(long.vary(40, 2.0), "from 2.4 to 7.2 ms");
        assert!(!Marks::default().vary(10, 2.0), "nothing is known");
    }

    #[test]
    fn what_runs_now_does_not_count_for_the_newest_launches() {
        // One in four launches takes a hundred times as long; there is a mark at every second one.
        let (mut marks, mut now) = (Marks::default(), 0);
        let mut launch_us = Vec::new();
        for launch in 0..=200 {
            // While it runs, and when it is over.
            for took in [0, if launch % 4 == 3 { 1_000 } else { 10 }] {
                now += took;
                marks.pass((launch + took.min(1), Micros(now)), Some(32));
                launch_us.extend(marks.newest(32).map(|newest| newest.launch_us));
            }
        }
        let mean = (1_000.0 + 3.0 * 10.0) / 4.0;
        assert!(launch_us.len() > 300, "{}", launch_us.len());
        assert!(launch_us.iter().all(|&us| us == mean), "{launch_us:?}");
    }

    #[test]
    fn two_turns_are_known_however_long_they_are() {
        for turn in [16, 19, 300, 5000] {
            let (marks, until) = marks(4 * turn, Some(turn));
            let last = marks.last(turn, until);
            let before = last.and_then(|last| marks.last(turn, last.since));
            assert!(before.is_some(), "{turn}");
        }
    }

    #[test]
    fn what_launches_took_is_that_of_the_same_ones_some_turns_ago() {
        // The last of four launches takes long.
        let mut marks = Marks::default();
        for launch in 0..=20_u64 {
            let now = launch / 4 * 1000 + launch % 4 * 10;
            marks.pass((launch, Micros(now)), Some(4));
        }
        assert_eq!(marks.took(16, 20, 4), Some(1000.0));
        assert_eq!(marks.took(24, 29, 4), Some(1010.0));
        assert_eq!(marks.took(25, 27, 4), Some(20.0));
        assert_eq!(
            marks.took(24, 29, 40),
            None,
            "a turn longer than what is known"
        );
        assert_eq!(Marks::default().took(24, 29, 4), None);
    }

    #[test]
    fn what_launches_took_is_that_of_the_newest_ones_like_each() {
        // In the first turn of four each takes long.
        let (mut marks, mut now) = (Marks::default(), 0);
        for launch in 0..=10_u64 {
            marks.pass((launch, Micros(now)), Some(4));
            now += if launch < 4 { 1000 } else { 10 };
        }
        assert_eq!(marks.took(12, 16, 4), Some(40.0));
        assert_eq!(
            marks.took(13, 17, 4),
            Some(40.0),
            "two of them two turns ago"
        );
    }

    #[test]
    fn several_turns_are_compared_where_they_differ_if_they_are_known() {
        let turns = |long: u64, turns: u64| {
            let (mut marks, mut now) = (Marks::default(), 0);
            for launch in 0..=turns * 32 {
                marks.pass((launch, Micros(now)), Some(32));
                now += if launch / 32 % 3 == 1 { long } else { 10 };
            }
            marks.several(32, 2.0)
        };
        assert_eq!(turns(15, 6), None);
        assert_eq!(turns(30, 6), Some(96));
        assert_eq!(turns(30, 2), None, "there were not so many");
    }

    #[test]
    fn many_turns_are_compared_where_launches_pass_many_at_a_time() {
        let mut marks = Marks::default();
        for at in 0..100 {
            marks.pass((at * 20, Micros(at)), Some(18));
        }
        assert_eq!(marks.turns(18), 162);
        assert_eq!(marks.turns(900), 900);
    }

    #[test]
    fn what_is_too_long_ago_is_not_known() {
        let (marks, until) = marks(10_000, None);
        assert_eq!(marks.last(2_000, until), None);
        assert!(marks.last(Marks::REACH, until).is_some());
    }
}
