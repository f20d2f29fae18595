//! How likely what launches use by chance is used again in the next cycle.
//!
//! Owns the evidence, by function and argument word. Accesses that hit are unseen, so what is
//! on the device says nothing; but a block that has left the device and faults within a cycle
//! was needed in that cycle, and one that does not was not. Of a cache's pages that a decoder
//! reads in each step nearly all come back, of rows that are looked up here and there few do.

use crate::hash::Map;

/// Blocks that left from which it can be told.
const EVIDENCE: u32 = 32;
/// Evidence counts half as much when there is so much of it.
const MEMORY: u32 = 512;
/// Used so many times in a cycle, blocks are used soon again; one in so many of those that left must
/// have been missed to tell.
const SOON: u64 = 4;
/// Blocks of which a mean is taken.
const STAYS: u64 = 64;
/// Each time in a row that a block is missed soon it stays twice as long, so often at most.
const MOST_POPULAR: u8 = 6;

/// Blocks that left the device, and of them those that were missed within a cycle.
#[derive(Clone, Copy, Debug, Default)]
struct Returns {
    left: u32,
    missed: u32,
    /// Launches that those were away.
    away: u64,
}

/// Which kind of use a block was last put to by chance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Kind(u16);

/// What was seen, by kind.
#[derive(Debug, Default)]
pub(crate) struct Chances {
    kinds: Map<(u32, u32), u16>,
    returns: Vec<Returns>,
    /// Launches that blocks of all kinds stay of which nothing else is known, in the mean, times
    /// [`STAYS`].
    stay: u64,
}

impl Chances {
    /// The kind of what this argument word of this function is used for; none where there are
    /// too many.
    pub(crate) fn kind(&mut self, function: u32, word: u32, limit: usize) -> Kind {
        if let Some(&index) = self.kinds.get(&(function, word)) {
            return Kind(index);
        }
        if self.returns.is_empty() {
            self.returns.push(Returns::default());
        }
        let Some(index) = u16::try_from(self.returns.len())
            .ok()
            .filter(|_| self.returns.len() < limit)
        else {
            return Kind::default();
        };
        self.returns.push(Returns::default());
        self.kinds.insert((function, word), index);
        Kind(index)
    }

    /// A block of this kind left the device.
    pub(crate) fn left(&mut self, kind: Kind) {
        if let Some(returns) = self.of(kind) {
            returns.left += 1;
            if returns.left >= MEMORY {
                returns.left /= 2;
                returns.missed /= 2;
                returns.away /= 2;
            }
        }
    }

    /// A block stayed for so many launches, though nothing was known of it but that it came.
    pub(crate) fn stayed(&mut self, launches: u64) {
        self.stay = if self.stay == 0 {
            launches.saturating_mul(STAYS)
        } else {
            self.stay - self.stay / STAYS + launches
        };
    }

    /// How often in a row a block was missed soon, if it was again after so many launches.
    pub(crate) fn popular(&self, before: u8, away: u64) -> u8 {
        if away <= self.stay / STAYS {
            (before + 1).min(MOST_POPULAR)
        } else {
            0
        }
    }

    /// How many launches longer than others a block stays that was missed soon so often.
    pub(crate) fn longer(&self, popular: u8) -> u64 {
        (self.stay / STAYS).saturating_mul((1 << popular) - 1)
    }

    /// A block of this kind faulted within a cycle of having left.
    pub(crate) fn missed(&mut self, kind: Kind, away: u64) {
        if let Some(returns) = self.of(kind)
            && returns.missed < returns.left
        {
            returns.missed += 1;
            returns.away += away;
        }
    }

    /// Launches to the next use of a block of this kind, in the mean, where they are much fewer than
    /// a cycle of `lag`.
    pub(crate) fn soon(&self, kind: Kind, lag: u64) -> Option<u64> {
        let returns = self.returns.get(kind.0 as usize).filter(|_| kind.0 > 0)?;
        if returns.left < EVIDENCE || u64::from(returns.missed) * SOON < EVIDENCE.into() {
            return None;
        }
        let others = u64::from(returns.left - returns.missed) * lag;
        let mean = (returns.away + others) / u64::from(returns.missed);
        (mean * SOON < lag).then_some(mean)
    }

    /// Blocks of this kind are used in most cycles.
    pub(crate) fn lasts(&self, kind: Kind) -> bool {
        let returns = self.returns.get(kind.0 as usize).filter(|_| kind.0 > 0);
        returns.is_some_and(|r| r.left >= EVIDENCE && r.missed * 2 > r.left)
    }

    fn of(&mut self, kind: Kind) -> Option<&mut Returns> {
        self.returns.get_mut(kind.0 as usize).filter(|_| kind.0 > 0)
    }

    /// Estimated size of the table in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.kinds.capacity() * 13 + self.returns.capacity() * size_of::<Returns>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(left: u32, missed: u32) -> (Chances, Kind) {
        let mut chances = Chances::default();
        let kind = chances.kind(7, 2, 10);
        for _ in 0..left {
            chances.left(kind);
        }
        for _ in 0..missed {
            chances.missed(kind, 1);
        }
        (chances, kind)
    }

    #[test]
    fn what_is_missed_sooner_than_others_stay_stays_longer_each_time() {
        let mut chances = Chances::default();
        assert_eq!(chances.longer(MOST_POPULAR), 0, "nothing is known");
        for _ in 0..1_000 {
            chances.stayed(20);
        }
        assert_eq!((chances.popular(0, 20), chances.popular(3, 21)), (1, 0));
        assert_eq!(
            [0, 1, 2].map(|popular| chances.longer(popular)),
            [0, 20, 60]
        );
        assert_eq!(chances.popular(MOST_POPULAR, 1), MOST_POPULAR);
        for _ in 0..1_000 {
            chances.stayed(4);
        }
        assert!(chances.longer(1) <= 5, "it is another program");
    }

    #[test]
    fn how_soon_a_kind_is_used_again_counts_what_stayed_away_for_a_cycle() {
        let soon = |left: u32, missed: u32, away: u64| {
            let (mut chances, kind) = seen(left, 0);
            for _ in 0..missed {
                chances.missed(kind, away);
            }
            (
                chances.soon(kind, 1_000),
                chances.soon(Kind::default(), 1_000),
            )
        };
        assert_eq!(soon(100, 100, 20), (Some(20), None));
        assert_eq!(soon(100, 90, 20).0, Some(131), "ten for a cycle each");
        assert_eq!(soon(100, 75, 20).0, None, "hardly sooner than in a cycle");
        assert_eq!(soon(100, 7, 20).0, None, "too few to tell");
        assert_eq!(soon(31, 31, 20).0, None, "too few left");
    }

    #[test]
    fn what_mostly_comes_back_lasts_and_what_mostly_stays_away_does_not() {
        let lasts = |(chances, kind): (Chances, Kind)| chances.lasts(kind);
        assert!(lasts(seen(100, 90)));
        assert!(!lasts(seen(100, 40)));
        assert!(!lasts(seen(EVIDENCE - 1, EVIDENCE - 1)), "too few to tell");
    }

    #[test]
    fn kinds_are_told_apart_by_function_and_word() {
        let (mut chances, kind) = seen(100, 90);
        assert_eq!(chances.kind(7, 2, 10), kind);
        let other = chances.kind(7, 3, 10);
        assert!(other != kind && !chances.lasts(other));
    }

    #[test]
    fn what_was_seen_long_ago_is_outweighed() {
        let (mut chances, kind) = seen(MEMORY - 1, MEMORY - 1);
        for _ in 0..2 * MEMORY {
            chances.left(kind);
        }
        assert!(!chances.lasts(kind));
    }

    #[test]
    fn the_table_keeps_its_limit() {
        let mut chances = Chances::default();
        for word in 0..100 {
            chances.kind(1, word, 8);
        }
        assert!(chances.returns.len() <= 8 && chances.kinds.len() < 8);
        assert!(!chances.lasts(Kind::default()));
    }
}
