//! Where each block of the address space stands in the dense table.
//!
//! Owns the mapping alone. Launches ask for long runs of consecutive blocks: those are
//! found page by page, not one by one.

use crate::hash::Map;

/// Blocks of one page.
const PAGE: u64 = 32;
const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Page {
    slots: [u32; PAGE as usize],
    used: u32,
}

/// Slots by block number.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pages: Map<u64, Page>,
    len: usize,
}

impl Index {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, number: u64) -> Option<u32> {
        let page = self.pages.get(&(number / PAGE))?;
        let slot = page.slots[(number % PAGE) as usize];
        (slot != NONE).then_some(slot)
    }

    /// Enters a block that is not there.
    pub(crate) fn insert(&mut self, number: u64, slot: u32) {
        let page = self.pages.entry(number / PAGE).or_insert(Page {
            slots: [NONE; PAGE as usize],
            used: 0,
        });
        let place = &mut page.slots[(number % PAGE) as usize];
        if std::mem::replace(place, slot) == NONE {
            page.used += 1;
            self.len += 1;
        }
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<u32> {
        let page = self.pages.get_mut(&(number / PAGE))?;
        let slot = std::mem::replace(&mut page.slots[(number % PAGE) as usize], NONE);
        if slot == NONE {
            return None;
        }
        page.used -= 1;
        self.len -= 1;
        if page.used == 0 {
            self.pages.remove(&(number / PAGE));
        }
        Some(slot)
    }

    /// The blocks from `first` up to before `end` that are there, with their slots.
    pub(crate) fn within(&self, first: u64, end: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
        let pages = first / PAGE..end.max(first).div_ceil(PAGE);
        pages
            .filter_map(|number| Some((number * PAGE, self.pages.get(&number)?)))
            .flat_map(move |(base, page)| {
                (first.max(base)..end.min(base + PAGE))
                    .map(move |number| (number, page.slots[(number - base) as usize]))
            })
            .filter(|&(_, slot)| slot != NONE)
    }

    /// Estimated size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.pages.capacity() * (size_of::<(u64, Page)>() + 1)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_blocks_is_found_across_pages_and_gaps() {
        let mut index = Index::default();
        for number in 30..100 {
            index.insert(number, number as u32 * 2);
        }
        assert_eq!(index.remove(40), Some(80));
        assert_eq!(index.remove(40), None);
        let found: Vec<_> = index.within(38, 66).collect();
        let expected: Vec<_> = (38..66)
            .filter(|&n| n != 40)
            .map(|n| (n, n as u32 * 2))
            .collect();
        assert_eq!(found, expected);
        assert_eq!(
            (index.len(), index.get(99), index.get(100)),
            (69, Some(198), None)
        );
    }

    #[test]
    fn pages_without_blocks_are_given_up() {
        let mut index = Index::default();
        for number in 0..64 {
            index.insert(number, 1);
        }
        for number in 0..64 {
            index.remove(number);
        }
        assert_eq!((index.len(), index.pages.len()), (0, 0));
        assert_eq!(index.within(0, 64).count(), 0);
        assert_eq!(index.within(64, 0).count(), 0);
    }
}
