//! Where each block is, as far as faults, migrations and our own commands tell, and how
//! much fits on the device.
//!
//! The capacity is nobody's to ask from outside, and other programs share the device. What
//! shows it is the driver's own eviction: at that moment the device is full.

use std::collections::HashMap;

use crate::units::{BLOCK_BYTES, BlockId};

/// Where a block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// On the host, or nowhere yet.
    Host,
    /// On the device.
    Device,
    /// A prefetch of it is under way.
    Coming,
    /// An eviction of it is under way.
    Going,
}

/// What is known of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Where it is.
    pub place: Place,
    /// The next fault on it is a new use: it was away, or a page was left out to show it.
    pub fresh: bool,
    /// Byte, within the block, of the page that last faulted first.
    pub page: u64,
    /// A prefetch brought it, and nothing has shown since that it was needed.
    pub unused: bool,
    /// A command on it was refused: left alone until it faults again.
    pub barred: bool,
    /// The prefetch under way leaves a page out.
    pub page_left: bool,
    /// Bytes that the host took back since the device last faulted.
    pub host_bytes: u64,
}

impl Default for Block {
    fn default() -> Self {
        Self {
            place: Place::Host,
            fresh: true,
            page: 0,
            unused: false,
            barred: false,
            page_left: false,
            host_bytes: 0,
        }
    }
}

/// All blocks.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    known: HashMap<BlockId, Block>,
    /// The same in order of appearance, to go through by and by.
    order: Vec<BlockId>,
    /// Blocks by place: device, coming, going.
    counts: [u64; 3],
    capacity: Option<u64>,
    /// Prefetches that ended since the driver last evicted anything.
    quiet: u64,
    limit: usize,
}

/// Least capacity that is believed, blocks.
const LEAST_CAPACITY: u64 = 4;

impl Blocks {
    pub fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            ..Self::default()
        }
    }

    /// What is known of a block.
    pub fn get(&self, block: BlockId) -> Option<&Block> {
        self.known.get(&block)
    }

    /// Where a block is; unknown ones are on the host.
    pub fn place(&self, block: BlockId) -> Place {
        self.get(block).map_or(Place::Host, |block| block.place)
    }

    /// The block to be changed, known from now on; none where there is no room for it.
    pub fn know(&mut self, block: BlockId) -> Option<&mut Block> {
        if !self.known.contains_key(&block) {
            if self.known.len() >= self.limit {
                return None;
            }
            self.order.push(block);
        }
        Some(self.known.entry(block).or_default())
    }

    /// The block to be changed, where it is known.
    pub fn get_mut(&mut self, block: BlockId) -> Option<&mut Block> {
        self.known.get_mut(&block)
    }

    /// Puts a known block somewhere else.
    pub fn put(&mut self, block: BlockId, place: Place) {
        let Some(found) = self.known.get_mut(&block) else {
            return;
        };
        if let Some(count) = index(found.place) {
            self.counts[count] -= 1;
        }
        if let Some(count) = index(place) {
            self.counts[count] += 1;
        }
        found.place = place;
    }

    /// The memory is no more.
    pub fn forget(&mut self, gone: impl Fn(BlockId) -> bool) {
        let lost: Vec<BlockId> = self.order.iter().copied().filter(|b| gone(*b)).collect();
        for block in &lost {
            self.put(*block, Place::Host);
            self.known.remove(block);
        }
        self.order.retain(|block| self.known.contains_key(block));
    }

    /// Blocks that have, or are about to have, or still have device memory.
    pub fn occupied(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Blocks whose eviction is under way.
    pub fn going(&self) -> u64 {
        self.counts[2]
    }

    /// Blocks on the device.
    pub fn resident(&self) -> u64 {
        self.counts[0]
    }

    /// How many blocks the device holds for this program; none while it has not been full.
    pub fn capacity(&self) -> Option<u64> {
        self.capacity
    }

    /// The driver made room: so many fit, and no more.
    pub fn driver_evicted(&mut self) {
        self.capacity = Some(self.occupied().max(LEAST_CAPACITY));
        self.quiet = 0;
    }

    /// A prefetch ended. Where two rounds of the device have come in without the driver's
    /// having to evict, one block more may fit: other programs give memory back.
    pub fn prefetched(&mut self) {
        let Some(capacity) = &mut self.capacity else {
            return;
        };
        self.quiet += 1;
        if self.quiet >= 2 * *capacity {
            *capacity += 1;
            self.quiet = 0;
        }
    }

    /// Blocks known.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// So many known blocks from a place in their order on, around its end.
    pub fn around(&self, from: usize, count: usize) -> impl Iterator<Item = BlockId> {
        let from = from.checked_rem(self.order.len()).unwrap_or(0);
        let (before, after) = self.order.split_at(from);
        after.iter().chain(before).take(count).copied()
    }

    /// Bytes on the device.
    pub fn resident_bytes(&self) -> u64 {
        self.resident() * BLOCK_BYTES
    }
}

fn index(place: Place) -> Option<usize> {
    match place {
        Place::Host => None,
        Place::Device => Some(0),
        Place::Coming => Some(1),
        Place::Going => Some(2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(places: &[Place]) -> Blocks {
        let mut blocks = Blocks::new(100);
        for (number, place) in places.iter().enumerate() {
            blocks.know(BlockId(number as u64));
            blocks.put(BlockId(number as u64), *place);
        }
        blocks
    }

    #[test]
    fn the_drivers_eviction_shows_how_much_fits() {
        let mut blocks = with(&[Place::Device; 9]);
        assert_eq!(blocks.capacity(), None);
        blocks.put(BlockId(0), Place::Host);
        blocks.driver_evicted();
        assert_eq!(blocks.capacity(), Some(8));
        for _ in 0..16 {
            blocks.prefetched();
        }
        assert_eq!(blocks.capacity(), Some(9), "a careful look for more");
    }

    #[test]
    fn what_is_under_way_takes_room_at_both_ends() {
        let mut blocks = with(&[Place::Device, Place::Coming, Place::Going, Place::Host]);
        assert_eq!(
            (blocks.occupied(), blocks.resident(), blocks.going()),
            (3, 1, 1)
        );
        blocks.put(BlockId(2), Place::Host);
        assert_eq!((blocks.occupied(), blocks.going()), (2, 0));
        blocks.forget(|block| block.0 < 2);
        assert_eq!((blocks.occupied(), blocks.len()), (0, 2));
    }

    #[test]
    fn no_more_than_the_limit_is_known() {
        let mut blocks = Blocks::new(2);
        assert!(blocks.know(BlockId(1)).is_some() && blocks.know(BlockId(2)).is_some());
        assert!(blocks.know(BlockId(3)).is_none() && blocks.know(BlockId(1)).is_some());
        let around: Vec<u64> = blocks.around(3, 9).map(|block| block.0).collect();
        assert_eq!(around, [2, 1]);
    }
}
