//! When launches use one block.
//!
//! Owns the moments of a cycle or so, in half the room that they would take as they are: there
//! are many blocks, and many uses of each.

use std::cell::Cell;

use crate::units::TICKS;

/// Room for uses grows by one in so many of them, or by so many.
const SHARE: usize = 4;
/// Uses beyond the last answer that are looked at one by one.
const STEPS: usize = 4;

/// Moments at which launches use a block, oldest first: position times [`TICKS`], and how
/// far the launch is by then.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses {
    /// What the moments are counted from: the beginning of a launch, before all of them.
    base: u64,
    /// In rising order from `begin` on; what is before it is forgotten.
    moments: Vec<u32>,
    begin: u32,
    /// Where the last answers were, of uses that come and of past ones; they may be anywhere.
    answers: [Cell<u16>; 2],
    /// The newest one that was dropped for want of room.
    cut: u64,
}

impl Uses {
    fn kept(&self) -> &[u32] {
        &self.moments[self.begin as usize..]
    }

    fn moment(&self, kept: u32) -> u64 {
        self.base + u64::from(kept)
    }

    /// How many come before this moment. What is asked for is of the last cycle or queued: it is
    /// looked for from the end on, in steps that double.
    fn before(&self, moment: u64) -> usize {
        let Some(since) = moment.checked_sub(self.base) else {
            return 0;
        };
        let kept = self.kept();
        let earlier = |kept: &u32| u64::from(*kept) < since;
        let (mut step, mut end) = (1, kept.len());
        while let Some(at) = kept.len().checked_sub(step) {
            if earlier(&kept[at]) {
                return at + 1 + kept[at + 1..end].partition_point(earlier);
            }
            (step, end) = (2 * step, at);
        }
        kept[..end].partition_point(earlier)
    }

    /// Adds a use. Moments up to `stale` are never asked for again. Of several in one
    /// launch the first counts. Keeps the newest `most` of them.
    pub(crate) fn push(&mut self, moment: u64, stale: u64, most: usize) {
        if let Some(last) = self.last()
            && last / TICKS == moment / TICKS
        {
            let newest = self.moments.len() - 1;
            self.moments[newest] = (moment.min(last) - self.base) as u32;
            return;
        }
        self.forget(stale);
        if let Some(excess) = (self.kept().len() + 1).checked_sub(most)
            && excess > 0
        {
            self.cut_first(excess);
        }
        let since = self.count_from(moment);
        self.make_room();
        self.moments.push(since);
    }

    /// Adds a use that may come before others, unless there are so many already. Of several in
    /// one launch the first counts.
    pub(crate) fn insert(&mut self, moment: u64, most: usize) {
        let at = self.before(moment);
        let launch = |at: usize| Some(self.moment(*self.kept().get(at)?) / TICKS);
        let next = launch(at) == Some(moment / TICKS);
        if !next && at.checked_sub(1).and_then(launch) == Some(moment / TICKS) {
            return;
        }
        if !next && self.kept().len() >= most {
            return;
        }
        if moment < self.base && !self.kept().is_empty() {
            let earlier = self.base - moment / TICKS * TICKS;
            let last = self.kept().last().copied().map_or(0, u64::from);
            if last.saturating_add(earlier) > u64::from(u32::MAX) {
                // Nothing asks for what is so long before the others.
                return;
            }
            self.base -= earlier;
            for kept in &mut self.moments[self.begin as usize..] {
                *kept += earlier as u32;
            }
        }
        let since = self.count_from(moment);
        if !next {
            self.make_room();
        }
        let at = self.begin as usize + self.before(moment);
        if next {
            self.moments[at] = since;
        } else {
            self.moments.insert(at, since);
        }
    }

    /// Takes out the use in a launch.
    pub(crate) fn remove(&mut self, position: u64) {
        let (at, end) = (
            self.before(position * TICKS),
            self.before((position + 1) * TICKS),
        );
        let begin = self.begin as usize;
        self.moments.drain(begin + at..begin + end);
    }

    /// Forgets moments up to `stale`. Each is gone past once.
    fn forget(&mut self, stale: u64) {
        let Some(stale) = stale.checked_sub(self.base) else {
            return;
        };
        let kept = self.kept().iter();
        let stale = kept.take_while(|&&kept| u64::from(kept) <= stale).count();
        self.go_on(stale);
    }

    /// The first so many are kept no more.
    fn go_on(&mut self, count: usize) {
        self.begin += count as u32;
        for answer in &mut self.answers {
            *answer.get_mut() = answer
                .get()
                .saturating_sub(u16::try_from(count).unwrap_or(u16::MAX));
        }
    }

    /// Drops the first so many for want of room.
    fn cut_first(&mut self, count: usize) {
        self.cut = self.moment(self.kept()[count - 1]);
        self.go_on(count);
    }

    /// The moment as it is kept. What is too far away from it is dropped.
    fn count_from(&mut self, moment: u64) -> u32 {
        if self.kept().is_empty() {
            self.base = moment / TICKS * TICKS;
            self.moments.clear();
            self.begin = 0;
        }
        if let Ok(since) = u32::try_from(moment.saturating_sub(self.base)) {
            return since;
        }
        let least = moment / TICKS * TICKS - u64::from(u32::MAX) / 2;
        let away = self.before(least);
        if away > 0 {
            self.cut_first(away);
        }
        let base = self
            .kept()
            .first()
            .map_or(moment, |&first| self.moment(first));
        let base = base / TICKS * TICKS;
        let later = base - self.base;
        for kept in &mut self.moments[self.begin as usize..] {
            *kept = (u64::from(*kept) - later) as u32;
        }
        self.base = base;
        (moment - base) as u32
    }

    /// Makes room for one more.
    fn make_room(&mut self) {
        if self.moments.len() < self.moments.capacity() {
            return;
        }
        // What is moved was paid for by those that are forgotten.
        if self.begin as usize * SHARE > self.moments.len() {
            self.moments.drain(..self.begin as usize);
            self.begin = 0;
            if self.moments.len() * 2 < self.moments.capacity() {
                self.moments
                    .shrink_to(self.moments.len() + self.moments.len() / SHARE + 1);
            }
        } else {
            self.moments
                .reserve_exact((self.moments.len() / SHARE).max(SHARE));
        }
    }

    /// The newest one.
    pub(crate) fn last(&self) -> Option<u64> {
        self.kept().last().map(|&kept| self.moment(kept))
    }

    /// First use at that moment or later.
    pub(crate) fn at_or_after(&self, moment: u64) -> Option<u64> {
        self.found(self.before(moment), moment)
    }

    /// As [`Uses::at_or_after`], of the present, which comes on slowly.
    pub(crate) fn to_come(&self, moment: u64) -> Option<u64> {
        self.near(&self.answers[0], moment)
    }

    /// As [`Uses::at_or_after`], of the place in the past that the present repeats.
    pub(crate) fn repeated(&self, moment: u64) -> Option<u64> {
        self.near(&self.answers[1], moment)
    }

    /// As [`Uses::at_or_after`], at the last answer, or a little behind it.
    fn near(&self, answer: &Cell<u16>, moment: u64) -> Option<u64> {
        let (kept, since) = (self.kept(), moment.saturating_sub(self.base));
        let earlier = |at: usize| u64::from(kept[at]) < since;
        let last = usize::from(answer.get());
        let near = (last..=kept.len()).take(STEPS);
        let follows = last == 0 || (last <= kept.len() && earlier(last - 1));
        let mut near = near.filter(|&at| follows && (at == kept.len() || !earlier(at)));
        let index = near.next().unwrap_or_else(|| self.before(moment));
        answer.set(u16::try_from(index).unwrap_or(0));
        self.found(index, moment)
    }

    /// The use with so many before it, which is the first one at that moment or later.
    fn found(&self, index: usize, moment: u64) -> Option<u64> {
        if index == 0 && self.cut >= moment {
            return Some(moment);
        }
        self.kept().get(index).map(|&kept| self.moment(kept))
    }

    /// Bytes that it takes beside itself.
    pub(crate) fn bytes(&self) -> usize {
        self.moments.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same with nothing spared.
    #[derive(Default)]
    struct Plain {
        moments: Vec<u64>,
        cut: u64,
    }

    impl Plain {
        fn push(&mut self, moment: u64, stale: u64, most: usize) {
            if let Some(last) = self.moments.last_mut()
                && *last / TICKS == moment / TICKS
            {
                *last = moment.min(*last);
                return;
            }
            self.moments.retain(|&kept| kept > stale);
            let excess = (self.moments.len() + 1).saturating_sub(most);
            if excess > 0 {
                self.cut = self.moments[excess - 1];
                self.moments.drain(..excess);
            }
            self.moments.push(moment);
        }

        fn insert(&mut self, moment: u64, most: usize) {
            let launch = moment / TICKS;
            let same = self
                .moments
                .iter_mut()
                .find(|kept| **kept / TICKS == launch);
            if let Some(kept) = same {
                *kept = moment.min(*kept);
            } else if self.moments.len() < most {
                self.moments.push(moment);
                self.moments.sort_unstable();
            }
        }

        fn remove(&mut self, launch: u64) {
            self.moments.retain(|kept| kept / TICKS != launch);
        }

        fn at_or_after(&self, moment: u64) -> Option<u64> {
            let next = self.moments.iter().find(|&&kept| kept >= moment).copied();
            let dropped = self.moments.first() == next.as_ref() && self.cut >= moment;
            if dropped { Some(moment) } else { next }
        }
    }

    /// A step: launches since the last one, a moment in it, and what is asked for.
    fn step() -> impl Strategy<Value = (u64, u64, u8)> {
        (
            prop_oneof![4 => 0..4_u64, 2 => 0..3_000_u64, 1 => 0..200_000_u64],
            0..TICKS,
            0..9_u8,
        )
    }

    proptest! {
        #[test]
        fn it_tells_what_a_plain_list_does(
            steps in prop::collection::vec(step(), 1..300),
            first in 0..1_u64 << 50,
            most in 3..40_usize,
        ) {
            let (mut uses, mut plain) = (Uses::default(), Plain::default());
            let mut launch = first / TICKS + 1;
            for (later, tick, what) in steps {
                if what == 0 {
                    // A use of a launch that is queued, before the newest ones.
                    let moment = launch.saturating_sub(later).max(first / TICKS) * TICKS + tick;
                    uses.insert(moment, most);
                    plain.insert(moment, most);
                } else if what == 7 {
                    let queued = launch.saturating_sub(later).max(first / TICKS);
                    uses.remove(queued);
                    plain.remove(queued);
                } else {
                    launch += later;
                    let stale = if what < 4 { 0 } else { (launch - later / 2) * TICKS };
                    let stale = stale.min(launch * TICKS).saturating_sub(TICKS);
                    uses.push(launch * TICKS + tick, stale, most);
                    plain.push(launch * TICKS + tick, stale, most);
                }
                prop_assert_eq!(uses.last(), plain.moments.last().copied());
                prop_assert_eq!(uses.kept().len(), plain.moments.len());
                for moment in plain.moments.iter().flat_map(|&at| [at - 1, at, at + 1]) {
                    prop_assert_eq!(uses.at_or_after(moment), plain.at_or_after(moment));
                    prop_assert_eq!(uses.to_come(moment), plain.at_or_after(moment));
                    prop_assert_eq!(uses.repeated(moment), plain.at_or_after(moment));
                }
                let room = uses.moments.capacity();
                prop_assert!(room <= most * 2 + 2 * SHARE, "{} of {}", room, most);
            }
        }
    }

    #[test]
    fn what_is_further_away_than_can_be_told_is_forgotten() {
        let mut uses = Uses::default();
        let (soon, late) = (7 * TICKS, 7 * TICKS + (1 << 33));
        uses.push(soon, 0, 8);
        uses.push(late, 0, 8);
        uses.push(late + 3 * TICKS + 5, 0, 8);
        assert_eq!(uses.at_or_after(late), Some(late));
        assert_eq!(uses.at_or_after(late + 1), Some(late + 3 * TICKS + 5));
        assert_eq!(uses.kept().len(), 2);
        uses.insert(soon, 8);
        assert_eq!(
            (uses.kept().len(), uses.last()),
            (2, Some(late + 3 * TICKS + 5))
        );
        uses.insert(late - 2 * TICKS, 8);
        assert_eq!(uses.at_or_after(late - 3 * TICKS), Some(late - 2 * TICKS));
        assert_eq!(uses.at_or_after(late), Some(late));
    }

    #[test]
    fn a_use_that_is_known_late_takes_its_place_among_the_others() {
        let mut uses = Uses::default();
        for position in [3, 5, 9] {
            uses.push(position * TICKS, 0, 8);
        }
        uses.insert(7 * TICKS + 40, 8);
        assert_eq!(uses.at_or_after(6 * TICKS), Some(7 * TICKS + 40));
        assert_eq!(uses.at_or_after(8 * TICKS), Some(9 * TICKS));
        // Of several in one launch the first counts.
        uses.insert(7 * TICKS + 10, 8);
        uses.insert(7 * TICKS + 90, 8);
        assert_eq!(uses.kept().len(), 4);
        assert_eq!(uses.at_or_after(6 * TICKS), Some(7 * TICKS + 10));
        uses.insert(6 * TICKS, 4);
        assert_eq!(uses.kept().len(), 4, "there are so many already");
    }
}
