//! The live allocations, as the driver's notices tell of them.

use std::collections::BTreeMap;

use crate::class::{Desk, DriverNotice};
use crate::trace::Block;
use crate::units::{BLOCK_BYTES, Region};

/// By first byte.
#[derive(Clone, Debug, Default)]
pub(super) struct Allocations {
    live: BTreeMap<u64, Region>,
}

impl Allocations {
    /// Follows what was obtained and given back.
    pub fn notice(&mut self, notice: &DriverNotice<'_>) {
        match *notice {
            DriverNotice::Alloc(region) => {
                self.live.insert(region.address, region);
            }
            DriverNotice::Free(region) => {
                self.live.remove(&region.address);
            }
            _ => {}
        }
    }

    /// The allocation that holds an address. Where several begin in one block, for the
    /// block's address the first that reaches into it.
    pub fn of(&self, address: u64) -> Option<Region> {
        let before = self.live.range(..=address).next_back();
        let after = self.live.range(address..address + BLOCK_BYTES).next();
        before
            .map(|(_, region)| *region)
            .filter(|region| address < region.end())
            .or_else(|| after.map(|(_, region)| *region))
    }

    /// The block `steps` blocks after (or before) a block, where it is in the same
    /// allocation.
    pub fn neighbour(&self, block: Block, steps: i64, desk: &Desk<'_>) -> Option<Block> {
        let address = desk.address(block);
        let region = self.of(address)?;
        let bytes = steps.checked_mul(BLOCK_BYTES as i64)?;
        let to = address.checked_add_signed(bytes)?;
        let inside = to < region.end() && to + BLOCK_BYTES > region.address;
        if inside { desk.block_at(to) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_the_allocation_that_holds_it_until_that_is_given_back() {
        let mut allocations = Allocations::default();
        let region = Region {
            address: 4 * BLOCK_BYTES,
            bytes: 2 * BLOCK_BYTES,
        };
        allocations.notice(&DriverNotice::Alloc(region));
        assert_eq!(allocations.of(5 * BLOCK_BYTES), Some(region));
        assert_eq!(allocations.of(6 * BLOCK_BYTES), None);
        assert_eq!(allocations.of(2 * BLOCK_BYTES), None);
        allocations.notice(&DriverNotice::Free(region));
        assert_eq!(allocations.of(5 * BLOCK_BYTES), None);
    }

    #[test]
    fn a_block_whose_allocation_begins_inside_it_is_found() {
        let mut allocations = Allocations::default();
        let region = Region {
            address: BLOCK_BYTES + 4096,
            bytes: 8192,
        };
        allocations.notice(&DriverNotice::Alloc(region));
        assert_eq!(allocations.of(BLOCK_BYTES), Some(region));
    }
}
