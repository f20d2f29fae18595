//! Blocks in the order of a key that each of them has at most one of.
//!
//! Owns the order alone. Sorted runs in one list: what a balanced tree does in a dozen
//! cache lines takes two here, a search among the runs and a short move within one.

use crate::table::entry;

/// Most entries of a run: it is split when it would have more, and joined with the next
/// one where the two have fewer than half as many together.
const RUN: usize = 128;
/// Room for entries grows by so many.
const ROOM: usize = 16;
const UNRANKED: u64 = u64::MAX;

/// A key and the block that has it.
type Entry = (u64, u32);

/// A sorted run; never empty.
#[derive(Debug)]
struct Run {
    last: Entry,
    entries: Vec<Entry>,
}

impl Run {
    fn insert(&mut self, at: usize, entry: Entry) {
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact(ROOM);
        }
        self.entries.insert(at, entry);
    }
}

/// Blocks in the order of keys that whoever keeps them knows.
#[derive(Debug, Default)]
pub(crate) struct Order {
    runs: Vec<Run>,
    len: usize,
    /// Where the last one came in, and where the last one went out: blocks change side by side.
    /// Either may be anywhere.
    came: Spot,
    went: Spot,
}

/// A place: which run, and how many of it come before.
type Spot = (usize, usize);

impl Order {
    /// The run in which an entry is, or belongs.
    fn run_of(&self, entry: Entry) -> usize {
        self.runs.partition_point(|run| run.last < entry)
    }

    /// Where an entry is, or belongs: perhaps beside `last`.
    fn spot_of(&self, entry: Entry, last: Spot) -> Spot {
        let follows = |run: usize| run == 0 || self.runs[run - 1].last < entry;
        let here = self.runs.get(last.0).is_some_and(|run| entry <= run.last);
        let index = if here && follows(last.0) {
            last.0
        } else {
            self.run_of(entry)
        };
        let Some(run) = self.runs.get(index) else {
            return (index, 0);
        };
        let entries = &run.entries;
        let is_at = |&at: &usize| {
            (at == 0 || entries.get(at - 1).is_some_and(|before| *before < entry))
                && entries.get(at).is_some_and(|at| entry <= *at)
        };
        let mut near = [last.1, last.1 + 1, last.1.saturating_sub(1)].into_iter();
        let at = near
            .find(is_at)
            .unwrap_or_else(|| entries.partition_point(|other| *other < entry));
        (index, at)
    }

    pub(crate) fn insert(&mut self, key: u64, slot: u32) {
        let entry = (key, slot);
        self.len += 1;
        let (index, at) = self.spot_of(entry, self.came);
        self.came = (index, at);
        if index == self.runs.len() {
            // Beyond all: behind the last one, or alone, so that what comes in rising
            // order fills runs.
            match self.runs.last_mut() {
                Some(run) if run.entries.len() < RUN => {
                    run.insert(run.entries.len(), entry);
                    run.last = entry;
                }
                _ => self.runs.push(Run {
                    last: entry,
                    entries: vec![entry],
                }),
            }
            return;
        }
        let run = &mut self.runs[index];
        run.insert(at, entry);
        if run.entries.len() > RUN {
            let upper = run.entries.split_off(RUN / 2);
            run.entries.shrink_to(RUN / 2 + ROOM);
            let last = std::mem::replace(&mut run.last, run.entries[RUN / 2 - 1]);
            let entries = upper;
            self.runs.insert(index + 1, Run { last, entries });
        }
    }

    /// Takes a block out that has this key; nothing if it is not there.
    pub(crate) fn remove(&mut self, key: u64, slot: u32) {
        let entry = (key, slot);
        let (index, at) = self.spot_of(entry, self.went);
        self.went = (index, at);
        let Some(run) = self.runs.get_mut(index) else {
            return;
        };
        if run.entries.get(at) != Some(&entry) {
            return;
        }
        run.entries.remove(at);
        self.len -= 1;
        let Some(&last) = run.entries.last() else {
            self.runs.remove(index);
            return;
        };
        run.last = last;
        let few = run.entries.len() < RUN / 4;
        let next = self.runs.get(index + 1).map_or(RUN, |n| n.entries.len());
        if few && self.runs[index].entries.len() + next < RUN / 2 {
            let next = self.runs.remove(index + 1);
            let run = &mut self.runs[index];
            run.entries.extend_from_slice(&next.entries);
            run.last = next.last;
        }
    }

    /// In rising order of keys.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u32)> + '_ {
        self.runs.iter().flat_map(|run| run.entries.iter().copied())
    }

    /// As [`Order::iter`], from this key on.
    pub(crate) fn iter_from(&self, key: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
        let entry = (key, 0);
        let index = self.run_of(entry);
        let at = self
            .runs
            .get(index)
            .map_or(0, |run| run.entries.partition_point(|other| *other < entry));
        let runs = self.runs[index..].iter();
        runs.flat_map(|run| run.entries.iter().copied()).skip(at)
    }

    /// How many have a key below this one.
    pub(crate) fn below(&self, key: u64) -> usize {
        let entry = (key, 0);
        let mut count = 0;
        for run in &self.runs {
            if run.last >= entry {
                return count + run.entries.partition_point(|other| *other < entry);
            }
            count += run.entries.len();
        }
        count
    }

    /// How many others come before a block with this key.
    pub(crate) fn before(&self, key: u64, slot: u32) -> usize {
        let others = self.iter().filter(|&(_, other)| other != slot);
        others.take_while(|&entry| entry < (key, slot)).count()
    }

    /// How many others come after a block with this key, and the last of them.
    pub(crate) fn after(&self, key: u64, slot: u32) -> (usize, Option<(u64, u32)>) {
        let others = self.iter().rev().filter(|&(_, other)| other != slot);
        let after = others.take_while(|&entry| entry > (key, slot));
        after.fold((0, None), |(count, last), entry| {
            (count + 1, last.or(Some(entry)))
        })
    }

    /// How many have a place.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn first(&self) -> Option<(u64, u32)> {
        self.runs.first()?.entries.first().copied()
    }

    pub(crate) fn last(&self) -> Option<(u64, u32)> {
        self.runs.last().map(|run| run.last)
    }

    /// The one with so many before it.
    pub(crate) fn nth(&self, mut index: usize) -> Option<(u64, u32)> {
        for run in &self.runs {
            match run.entries.get(index) {
                Some(&entry) => return Some(entry),
                None => index -= run.entries.len(),
            }
        }
        None
    }

    /// Estimated size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let entries = self.runs.iter().map(|run| run.entries.capacity());
        let entries = entries.sum::<usize>() * size_of::<Entry>();
        (self.runs.capacity() * size_of::<Run>() + entries) as u64
    }
}

/// A key (below `u64::MAX`) of each block, or none.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    by_slot: Vec<u64>,
}

impl Keys {
    /// Gives a block a key, or none; the one that it had.
    pub(crate) fn replace(&mut self, slot: u32, key: Option<u64>) -> Option<u64> {
        if key.is_none() && slot as usize >= self.by_slot.len() {
            return None;
        }
        debug_assert_ne!(key, Some(UNRANKED));
        let key = key.unwrap_or(UNRANKED);
        let old = std::mem::replace(entry(&mut self.by_slot, slot, UNRANKED), key);
        (old != UNRANKED).then_some(old)
    }

    /// A block has a key.
    pub(crate) fn has(&self, slot: u32) -> bool {
        let key = self.by_slot.get(slot as usize);
        key.is_some_and(|&key| key != UNRANKED)
    }

    /// Estimated size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.by_slot.capacity() * size_of::<u64>()) as u64
    }
}

/// An ordered set of blocks by slot.
#[derive(Debug, Default)]
pub(crate) struct Ranking {
    order: Order,
    keys: Keys,
}

impl Ranking {
    /// Gives a block a key (below `u64::MAX`), or none.
    pub(crate) fn set(&mut self, slot: u32, key: Option<u64>) {
        let old = self.keys.replace(slot, key);
        if old == key {
            return;
        }
        if let Some(old) = old {
            self.order.remove(old, slot);
        }
        if let Some(key) = key {
            self.order.insert(key, slot);
        }
    }

    /// In rising order of keys.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u32)> + '_ {
        self.order.iter()
    }

    /// As [`Ranking::iter`], from this key on.
    pub(crate) fn iter_from(&self, key: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.order.iter_from(key)
    }

    /// Estimated size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.order.bytes() + self.keys.bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_block_has_one_key() {
        let mut ranking = Ranking::default();
        ranking.set(3, Some(10));
        ranking.set(1, Some(5));
        ranking.set(3, Some(2));
        assert_eq!(ranking.iter().collect::<Vec<_>>(), [(2, 3), (5, 1)]);
        ranking.set(3, None);
        assert_eq!(
            (ranking.order.first(), ranking.order.last()),
            (Some((5, 1)), Some((5, 1)))
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn it_is_the_order_that_a_tree_keeps(
            steps in prop::collection::vec((0u32..600, prop::option::weighted(0.7, 0u64..900)), 1..4000),
            from in 0u64..900,
        ) {
            let mut ranking = Ranking::default();
            let mut tree = BTreeSet::new();
            let mut keys = vec![None; 600];
            for (slot, key) in steps {
                ranking.set(slot, key);
                if let Some(old) = std::mem::replace(&mut keys[slot as usize], key) {
                    tree.remove(&(old, slot));
                }
                tree.extend(key.map(|key| (key, slot)));
                prop_assert_eq!(ranking.order.first(), tree.first().copied());
                prop_assert_eq!(ranking.order.last(), tree.last().copied());
                prop_assert_eq!(ranking.order.len(), tree.len());
            }
            prop_assert!(ranking.iter().eq(tree.iter().copied()));
            prop_assert!(ranking.order.iter_from(from).eq(tree.range((from, 0)..).copied()));
            let nth: Vec<_> = (0..=tree.len()).map(|index| ranking.order.nth(index)).collect();
            prop_assert!(nth.into_iter().eq(tree.iter().copied().map(Some).chain([None])));
            let filled = |run: &Run| !run.entries.is_empty() && run.entries.len() <= RUN;
            prop_assert!(ranking.order.runs.iter().all(filled));
        }
    }
}
