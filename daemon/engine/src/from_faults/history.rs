//! In which order a program uses its blocks, as far as its faults show, and where in that
//! order it is now.
//!
//! Owns the sequence and the place in it. What is on the device is [`super::blocks`]'s.
//!
//! The sequence is one long record. The program is somewhere at its end; the *cursor* is
//! where it was when it last did the same, so that what follows the cursor is the
//! prediction. Uses that hit are invisible: when a later use of the prediction shows, those
//! before it that could not show are taken to have happened and are recorded too, so that
//! the record stays whole while prefetches hide most of it. Those that would have shown are
//! waited for a little: devices with many processors use neighbours in changing order.

use std::collections::{HashMap, VecDeque};

use crate::units::BlockId;

/// Earlier uses of a block that are compared with the present, when the place was lost.
const CANDIDATES: usize = 8;
/// Uses before them that are compared.
const CONTEXT: u64 = 8;
/// Predicted uses that may be passed over at once before the place counts as lost.
const JITTER: usize = 4;
/// Blocks passed over that are still waited for.
const SKIPPED: usize = 4 * JITTER;
/// Predictions that must hold in a row before uses that did not show are believed in
/// greater number.
const SETTLED: u32 = 4;

/// How a use fits what was predicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fit {
    /// It was predicted, after uses that were not seen.
    Ahead,
    /// It was predicted, and others had overtaken it.
    Overtaken,
    /// It is known, but not from here: the place was lost, and is guessed anew.
    Elsewhere,
    /// The block was never used before.
    New,
}

/// The record of uses.
#[derive(Debug)]
pub(super) struct History {
    uses: VecDeque<BlockId>,
    /// Position of the first one that is still there.
    first: u64,
    /// Where each block is used, ascending.
    positions: HashMap<BlockId, VecDeque<u64>>,
    cursor: Option<u64>,
    /// Predicted blocks that later uses overtook.
    skipped: VecDeque<BlockId>,
    /// Predictions that held since the place was last lost.
    settled: u32,
    limit: usize,
}

impl History {
    /// An empty record of at most `limit` uses.
    pub fn new(limit: usize) -> Self {
        Self {
            uses: VecDeque::new(),
            first: 0,
            positions: HashMap::new(),
            cursor: None,
            skipped: VecDeque::new(),
            settled: 0,
            limit: limit.max(1),
        }
    }

    /// One past the last position.
    pub fn end(&self) -> u64 {
        self.first + self.uses.len() as u64
    }

    /// Uses recorded.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.uses.len()
    }

    /// What the program did the last time that it was where it is now.
    pub fn cursor(&self) -> Option<u64> {
        self.cursor
    }

    /// The block used at a position.
    pub fn at(&self, position: u64) -> Option<BlockId> {
        let index = position.checked_sub(self.first)?;
        self.uses.get(usize::try_from(index).ok()?).copied()
    }

    /// The position of the next use that is predicted for a block.
    pub fn next_use(&self, block: BlockId) -> Option<u64> {
        let cursor = self.cursor?;
        let positions = self.positions.get(&block)?;
        let index = positions.partition_point(|position| *position <= cursor);
        positions.get(index).copied()
    }

    /// Takes in a use that a fault showed. `shows` says of a block that its use would show.
    pub fn used(&mut self, block: BlockId, shows: impl Fn(BlockId) -> bool) -> Fit {
        if let Some(index) = self.skipped.iter().position(|skipped| *skipped == block) {
            self.skipped.remove(index);
            self.push(block);
            return Fit::Overtaken;
        }
        if let Some((next, overtaken, hits)) = self.until(block, shows)
            && overtaken.len() <= JITTER
            && (hits.len() <= JITTER || self.settled >= SETTLED)
        {
            self.settled = self.settled.saturating_add(1);
            self.cursor = Some(next);
            for block in hits {
                self.push(block);
            }
            self.push(block);
            self.skipped.extend(overtaken);
            while self.skipped.len() > SKIPPED {
                self.skipped.pop_front();
            }
            return Fit::Ahead;
        }
        self.settled = 0;
        self.skipped.clear();
        self.cursor = self.most_alike(block);
        self.push(block);
        self.cursor.map_or(Fit::New, |_| Fit::Elsewhere)
    }

    /// The next predicted use of a block, and those before it: which would have shown, and
    /// which not.
    fn until(
        &self,
        block: BlockId,
        shows: impl Fn(BlockId) -> bool,
    ) -> Option<(u64, Vec<BlockId>, Vec<BlockId>)> {
        let (cursor, next) = (self.cursor?, self.next_use(block)?);
        let between = (cursor + 1..next).filter_map(|position| self.at(position));
        let (overtaken, hits) = between.partition(|block| shows(*block));
        Some((next, overtaken, hits))
    }

    /// The earlier use of a block that came after the same uses as this one.
    fn most_alike(&self, block: BlockId) -> Option<u64> {
        let alike = |position: u64| {
            let same = |back: &u64| {
                let (then, now) = (position.checked_sub(*back), self.end().checked_sub(*back));
                let both = then
                    .and_then(|p| self.at(p))
                    .zip(now.and_then(|p| self.at(p)));
                both.is_some_and(|(then, now)| then == now)
            };
            (1..=CONTEXT).take_while(same).count()
        };
        let recent = self.positions.get(&block)?.iter().rev().take(CANDIDATES);
        // Of equals the latest.
        recent
            .map(|position| (alike(*position), *position))
            .max()
            .map(|(_, position)| position)
    }

    fn push(&mut self, block: BlockId) {
        if self.uses.len() == self.limit
            && let Some(oldest) = self.uses.pop_front()
        {
            if let Some(positions) = self.positions.get_mut(&oldest) {
                positions.pop_front();
                if positions.is_empty() {
                    self.positions.remove(&oldest);
                }
            }
            self.first += 1;
            self.cursor = self.cursor.filter(|cursor| *cursor >= self.first);
        }
        let position = self.end();
        self.uses.push_back(block);
        self.positions.entry(block).or_default().push_back(position);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(blocks: &[u64]) -> History {
        let mut history = History::new(1000);
        for block in blocks {
            history.used(BlockId(*block), |_| true);
        }
        history
    }

    fn ahead(history: &History, count: u64) -> Vec<u64> {
        let cursor = history.cursor().expect("the place is known");
        let next = (cursor + 1..=cursor + count).filter_map(|position| history.at(position));
        next.map(|block| block.0).collect()
    }

    #[test]
    fn after_one_round_the_next_is_predicted() {
        let mut history = record(&[1, 2, 3, 4, 5]);
        assert_eq!(history.cursor(), None);
        assert_eq!(history.used(BlockId(1), |_| true), Fit::Elsewhere);
        assert_eq!(ahead(&history, 4), [2, 3, 4, 5]);
        assert_eq!(history.used(BlockId(2), |_| true), Fit::Ahead);
        assert_eq!(ahead(&history, 4), [3, 4, 5, 1]);
        assert_eq!(history.next_use(BlockId(1)), Some(5));
        assert_eq!(history.next_use(BlockId(9)), None);
    }

    #[test]
    fn uses_that_hit_are_inferred_from_a_later_one_and_stay_in_the_record() {
        let around: Vec<u64> = (0..20).chain(0..5).collect();
        let mut history = record(&around);
        assert_eq!(history.used(BlockId(12), |_| false), Fit::Ahead);
        assert_eq!(history.len(), 33);
        for block in [19, 0, 4] {
            assert_eq!(history.used(BlockId(block), |_| false), Fit::Ahead);
        }
        let round: Vec<u64> = (5..20).chain(0..5).collect();
        assert_eq!(ahead(&history, 20), round, "the round as it was");
    }

    #[test]
    fn little_is_inferred_while_the_place_is_not_sure() {
        let around: Vec<u64> = (0..20).chain([0, 99, 3]).collect();
        let mut history = record(&around);
        assert_eq!(history.used(BlockId(15), |_| false), Fit::Elsewhere);
        assert_eq!(history.len(), 24, "it may as well have gone there at once");
    }

    #[test]
    fn blocks_that_would_have_faulted_were_not_passed() {
        let around: Vec<u64> = (0..20).chain([0]).collect();
        let mut history = record(&around);
        assert_eq!(history.used(BlockId(10), |_| true), Fit::Elsewhere);
        assert_eq!(history.len(), 22, "nothing is inferred");
        assert_eq!(ahead(&history, 2), [11, 12]);
    }

    #[test]
    fn what_was_overtaken_is_recorded_when_it_comes() {
        let mut history = record(&[1, 2, 3, 4, 5, 1, 2]);
        assert_eq!(history.used(BlockId(4), |_| true), Fit::Ahead);
        assert_eq!(history.used(BlockId(3), |_| true), Fit::Overtaken);
        assert_eq!(history.used(BlockId(5), |_| true), Fit::Ahead);
        assert_eq!(ahead(&history, 5), [1, 2, 4, 3, 5], "as it was this time");
    }

    #[test]
    fn a_block_of_two_places_is_told_apart_by_what_came_before() {
        // 7 comes twice a round, after 1 and after 2; 9 was never seen and breaks the thread.
        let mut history = record(&[1, 7, 3, 2, 7, 4, 1, 7, 3, 2, 7, 4]);
        history.used(BlockId(99), |_| true);
        assert_eq!(history.used(BlockId(1), |_| true), Fit::Elsewhere);
        history.used(BlockId(7), |_| true);
        assert_eq!(ahead(&history, 1), [3]);
    }

    #[test]
    fn a_full_record_forgets_its_beginning() {
        let mut history = History::new(8);
        for block in 0..100 {
            history.used(BlockId(block % 16), |_| true);
        }
        assert_eq!((history.len(), history.positions.len()), (8, 8));
        assert_eq!(history.cursor(), None, "a round does not fit");
        let mut history = History::new(40);
        for block in 0..100 {
            history.used(BlockId(block % 16), |_| true);
        }
        assert_eq!(history.len(), 40);
        assert_eq!(ahead(&history, 2), [4, 5]);
    }
}
