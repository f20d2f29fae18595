//! What faults add to and take from the accesses that a launch's arguments declare.

use crate::hash::Map;
use crate::units::{BLOCK_BYTES, BlockId};
use crate::world::block::{Extent, normalize};
use crate::world::memory::Memory;

/// Corrections kept of one execution ID; one that needs more is data-dependent.
pub(super) const CORRECTIONS: usize = 256;
/// Times that a block must be left alone before it is no longer expected.
pub(super) const STRIKES: u8 = 2;

/// A block by the object it lies in.
pub(super) type Place = (u64, u64);

#[derive(Debug, Default)]
pub(super) struct Correction {
    /// Touched, though not declared: parts of objects, in blocks from their start.
    pub(super) extra: Vec<(u64, Extent)>,
    /// Declared, though left alone: how often in a row.
    pub(super) absent: Map<Place, u8>,
}

impl Correction {
    /// What it takes at most, in places: a table's are not all in use.
    pub(super) fn places(&self) -> usize {
        2 * self.extra.capacity() + 2 * self.absent.capacity()
    }

    /// Joins a block to the part that it continues, else begins another if there is room.
    pub(super) fn add(&mut self, (name, block): Place) {
        for (of, extent) in &mut self.extra {
            if *of != name || block + 1 < extent.first || block > extent.end() {
                continue;
            }
            let end = extent.end().max(block + 1);
            extent.first = extent.first.min(block);
            extent.count = end - extent.first;
            return;
        }
        if self.extra.len() < CORRECTIONS {
            let (first, count) = (block, 1);
            self.extra.push((name, Extent { first, count }));
        }
    }

    pub(super) fn take_out(&mut self, (name, block): Place) {
        let holds = |&(of, extent): &(u64, Extent)| of == name && extent.contains(BlockId(block));
        while let Some(index) = self.extra.iter().position(holds) {
            let (_, extent) = self.extra.swap_remove(index);
            for (first, end) in [(extent.first, block), (block + 1, extent.end())] {
                let count = end - first;
                if count > 0 && self.extra.len() < CORRECTIONS {
                    self.extra.push((name, Extent { first, count }));
                }
            }
        }
    }

    /// Adds what is touched though it is not declared.
    pub(super) fn extend(&self, strict: &mut Vec<Extent>, memory: &Memory) {
        for &(name, extent) in &self.extra {
            if let Some(address) = memory.address_of(name) {
                let first = (address / BLOCK_BYTES).saturating_add(extent.first);
                strict.push(Extent { first, ..extent });
            }
        }
        normalize(strict);
    }

    pub(super) fn apply(&self, strict: &mut Vec<Extent>, memory: &Memory) {
        self.extend(strict, memory);
        if self.absent.values().all(|&strikes| strikes < STRIKES) {
            return;
        }
        let whole = std::mem::take(strict);
        for number in whole.iter().flat_map(|extent| extent.first..extent.end()) {
            let place = memory.name_at(number * BLOCK_BYTES);
            let place = place.map(|(name, offset)| (name, offset / BLOCK_BYTES));
            let strikes = place
                .and_then(|place| self.absent.get(&place))
                .copied()
                .unwrap_or(0);
            if strikes < STRIKES {
                strict.push(Extent {
                    first: number,
                    count: 1,
                });
            }
        }
        normalize(strict);
    }
}
