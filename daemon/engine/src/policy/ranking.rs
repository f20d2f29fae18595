//! Blocks in the order of a key that each of them has at most one of.

use std::collections::BTreeSet;

const UNRANKED: u64 = u64::MAX;

/// An ordered set of blocks by slot.
#[derive(Debug, Default)]
pub(crate) struct Ranking {
    order: BTreeSet<(u64, u32)>,
    keys: Vec<u64>,
}

impl Ranking {
    /// Gives a block a key (below `u64::MAX`), or none.
    pub(crate) fn set(&mut self, slot: u32, key: Option<u64>) {
        let index = slot as usize;
        if index >= self.keys.len() {
            if key.is_none() {
                return;
            }
            self.keys.resize(index + 1, UNRANKED);
        }
        let key = key.map_or(UNRANKED, |key| key.min(UNRANKED - 1));
        let old = std::mem::replace(&mut self.keys[index], key);
        if old == key {
            return;
        }
        if old != UNRANKED {
            self.order.remove(&(old, slot));
        }
        if key != UNRANKED {
            self.order.insert((key, slot));
        }
    }

    /// How many have a place.
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn first(&self) -> Option<(u64, u32)> {
        self.order.first().copied()
    }

    pub(crate) fn last(&self) -> Option<(u64, u32)> {
        self.order.last().copied()
    }

    /// In rising order of keys.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u32)> + '_ {
        self.order.iter().copied()
    }

    /// As [`Ranking::iter`], from this key on.
    pub(crate) fn iter_from(&self, key: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.order.range((key, 0)..).copied()
    }

    /// Estimated size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.order.len() * 24 + self.keys.len() * 8) as u64
    }
}

#[cfg(test)]
mod tests {
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
            (ranking.first(), ranking.last()),
            (Some((5, 1)), Some((5, 1)))
        );
    }
}
