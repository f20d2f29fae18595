//! Where the present repeats the past, by single pointers.
//!
//! Where a framework hands memory out unseen, temporary buffers lie elsewhere in each turn, and
//! few launches come again with the same arguments; but weights stay where they are. Each pointer
//! that was passed to the same argument of the same function before tells how long ago that was.
//! Where the last launches agree on it, the program is that far from where it was then. Owns
//! these votes.

use std::collections::VecDeque;

use crate::hash::Map;

/// Pointers of one generation; there are two.
const POINTERS: usize = 1 << 16;
/// Launches that vote.
const VOTERS: usize = 32;
/// So many of them must agree.
const QUORUM: usize = 4;
/// Of so many, no more may have a pointer that was never passed before.
const NOVEL: usize = VOTERS / 4;
/// Votes of one launch that count.
const VOTES: usize = 4;

/// The votes of one launch: how many launches ago, at most [`VOTES`] of them.
#[derive(Clone, Copy, Debug, Default)]
struct Votes {
    lags: [u64; VOTES],
    /// It has a pointer that was never passed before.
    novel: bool,
}

impl Votes {
    fn add(&mut self, lag: u64) {
        if self.contains(lag) {
            return;
        }
        // The longest ones tell the most: what is rarely used tells places apart.
        if let Some(least) = self.lags.iter_mut().min()
            && *least < lag
        {
            *least = lag;
        }
    }

    fn contains(&self, lag: u64) -> bool {
        self.lags.contains(&lag)
    }
}

/// What is remembered of pointers.
#[derive(Debug, Default)]
pub(crate) struct Anchors {
    /// Where each was passed last; what is older is in the second one.
    young: Map<u64, u64>,
    old: Map<u64, u64>,
    voters: VecDeque<Votes>,
}

impl Anchors {
    /// A launch was expected: it repeats the one `lag` before.
    pub(crate) fn expected(&mut self, lag: u64) {
        let mut votes = Votes::default();
        votes.add(lag);
        self.vote(votes);
    }

    /// The launch at `position`, which was not expected, has these pointers. False if it has none.
    pub(crate) fn unexpected(
        &mut self,
        position: u64,
        pointers: impl Iterator<Item = u64>,
    ) -> bool {
        let (mut votes, mut any) = (Votes::default(), false);
        for pointer in pointers {
            any = true;
            let young = self.young.insert(pointer, position);
            match young.or_else(|| self.old.get(&pointer).copied()) {
                Some(last) if last < position => votes.add(position - last),
                Some(_) => {}
                None => votes.novel = true,
            }
            if self.young.len() >= POINTERS {
                self.old = std::mem::take(&mut self.young);
            }
        }
        self.vote(votes);
        any
    }

    fn vote(&mut self, votes: Votes) {
        if self.voters.len() == VOTERS {
            self.voters.pop_front();
        }
        self.voters.push_back(votes);
    }

    fn count(&self, lag: u64) -> usize {
        self.voters
            .iter()
            .filter(|votes| votes.contains(lag))
            .count()
    }

    /// Enough of the last launches agree on it.
    pub(crate) fn agree_on(&self, lag: u64) -> bool {
        self.count(lag) >= QUORUM
    }

    /// The longest time on which the newest launch and enough others agree; none where too much is
    /// new: what comes again then is temporary memory, as often as not.
    pub(crate) fn elected(&self) -> Option<u64> {
        let newest = self.voters.back()?;
        let novel = self.voters.iter().filter(|votes| votes.novel);
        if novel.count() > NOVEL {
            return None;
        }
        let lags = newest.lags.iter().copied().filter(|&lag| lag > 0);
        lags.filter(|&lag| self.agree_on(lag)).max()
    }

    /// Estimated size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let entries = self.young.capacity() + self.old.capacity();
        (entries * (size_of::<(u64, u64)>() + 1) + size_of_val(&self.voters)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of a hundred launches, each with a weight of its own and a buffer that four of them
    /// share, or that is new.
    fn run(anchors: &mut Anchors, positions: std::ops::Range<u64>, shared: bool) {
        for position in positions {
            let weight = position % 100;
            let buffer = if shared { position % 4 } else { position };
            anchors.unexpected(position, [weight, 1_000_000 + buffer].into_iter());
        }
    }

    #[test]
    fn weights_tell_how_long_a_turn_is_and_shared_buffers_do_not_hide_it() {
        let mut anchors = Anchors::default();
        run(&mut anchors, 1..100, true);
        assert_eq!(anchors.elected(), None, "the weights are new");
        run(&mut anchors, 100..200, true);
        assert_eq!(anchors.elected(), Some(100));
        assert!(anchors.agree_on(4), "so far apart the buffers come again");
    }

    #[test]
    fn nothing_is_elected_where_much_is_new() {
        let mut anchors = Anchors::default();
        run(&mut anchors, 1..300, false);
        assert!(anchors.agree_on(100));
        assert_eq!(anchors.elected(), None);
    }

    #[test]
    fn launches_that_were_expected_agree() {
        let mut anchors = Anchors::default();
        for _ in 0..QUORUM {
            assert!(!anchors.agree_on(7));
            anchors.expected(7);
        }
        assert!(anchors.agree_on(7));
    }

    #[test]
    fn old_pointers_make_room() {
        let mut anchors = Anchors::default();
        for position in 1..4 * POINTERS as u64 {
            anchors.unexpected(position, std::iter::once(position));
            assert!(anchors.young.len() <= POINTERS && anchors.old.len() <= POINTERS);
        }
        let bytes = anchors.bytes();
        assert!(bytes < 10 << 20, "{bytes}");
    }
}
