//! Which memory is the session's: what it obtained and has not given back.
//!
//! Every address that a record or a probe names is looked up here before the engine
//! hears of it.

use std::collections::BTreeMap;

use oversub_engine::{BLOCK_BYTES, Range};

/// One past the highest address of user space with five-level page tables.
const ADDRESS_LIMIT: u64 = 1 << 56;

/// Managed memory of one session.
#[derive(Debug)]
pub struct Memory {
    /// By start address.
    allocations: BTreeMap<u64, Allocation>,
    max_allocations: usize,
    max_bytes: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Allocation {
    bytes: u64,
    pool: bool,
}

impl Memory {
    /// Nothing yet; room for so many allocations and bytes.
    pub fn new(max_allocations: usize, max_bytes: u64) -> Self {
        Self {
            allocations: BTreeMap::new(),
            max_allocations,
            max_bytes,
            bytes: 0,
        }
    }

    /// Takes a new allocation in. `false`: it is impossible (not aligned, overlapping,
    /// beyond the address space) or beyond the limits.
    pub fn insert(&mut self, range: Range, pool: bool) -> bool {
        let Range { address, bytes } = range;
        let good = bytes > 0
            && address.is_multiple_of(BLOCK_BYTES)
            && address
                .checked_add(bytes)
                .is_some_and(|end| end <= ADDRESS_LIMIT)
            && self.allocations.len() < self.max_allocations
            && bytes <= self.max_bytes.saturating_sub(self.bytes)
            && !self.overlaps(range);
        if good {
            self.allocations.insert(address, Allocation { bytes, pool });
            self.bytes += bytes;
        }
        good
    }

    /// Takes out what begins at `address`; `false`: nothing does.
    pub fn remove(&mut self, address: u64) -> bool {
        let removed = self.allocations.remove(&address);
        self.bytes -= removed.map_or(0, |allocation| allocation.bytes);
        removed.is_some()
    }

    /// `range` lies wholly in one allocation.
    pub fn holds(&self, range: Range) -> bool {
        self.find(range.address)
            .is_some_and(|(found, _)| range.end() <= found.end())
    }

    /// `range` lies wholly in one pool segment.
    pub fn pool_holds(&self, range: Range) -> bool {
        self.find(range.address)
            .is_some_and(|(found, pool)| pool && range.end() <= found.end())
    }

    /// The part of `range` that lies in the allocation that holds its start.
    pub fn clip(&self, range: Range) -> Option<Range> {
        let (found, _) = self.find(range.address)?;
        let bytes = range.end().min(found.end()) - range.address;
        (bytes > 0).then_some(Range {
            address: range.address,
            bytes,
        })
    }

    /// Whole blocks only: an allocation's last block may be shared with nobody, since
    /// allocations begin at blocks.
    pub fn holds_blocks(&self, range: Range) -> bool {
        let whole = |bytes: u64| bytes.next_multiple_of(BLOCK_BYTES);
        self.find(range.address).is_some_and(|(found, _)| {
            range.end() <= found.address.saturating_add(whole(found.bytes))
        })
    }

    fn find(&self, address: u64) -> Option<(Range, bool)> {
        let (start, allocation) = self.allocations.range(..=address).next_back()?;
        let range = Range {
            address: *start,
            bytes: allocation.bytes,
        };
        (address < range.end()).then_some((range, allocation.pool))
    }

    fn overlaps(&self, range: Range) -> bool {
        // Starts are multiples of a block: the last block of the one before counts whole.
        self.allocations
            .range(..range.end())
            .next_back()
            .is_some_and(|(start, allocation)| {
                start.saturating_add(allocation.bytes.next_multiple_of(BLOCK_BYTES)) > range.address
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = BLOCK_BYTES;

    fn range(address: u64, bytes: u64) -> Range {
        Range { address, bytes }
    }

    #[test]
    fn only_aligned_separate_possible_ranges_are_taken_in() {
        let mut memory = Memory::new(8, 1 << 40);
        assert!(memory.insert(range(4 * BLOCK, 3 * BLOCK), false));
        assert!(!memory.insert(range(BLOCK + 1, BLOCK), false));
        assert!(!memory.insert(range(6 * BLOCK, BLOCK), false));
        assert!(!memory.insert(range(2 * BLOCK, 3 * BLOCK), false));
        assert!(!memory.insert(range(8 * BLOCK, 0), false));
        assert!(!memory.insert(range(u64::MAX / BLOCK * BLOCK, BLOCK), false));
        assert!(memory.insert(range(7 * BLOCK, 1), false));
        assert!(!memory.insert(range(7 * BLOCK, 1), false));
    }

    #[test]
    fn limits_on_number_and_bytes_hold() {
        let mut memory = Memory::new(2, 4 * BLOCK);
        assert!(memory.insert(range(0, 3 * BLOCK), false));
        assert!(!memory.insert(range(8 * BLOCK, 2 * BLOCK), false));
        assert!(memory.insert(range(8 * BLOCK, BLOCK), false));
        assert!(memory.remove(0) && !memory.remove(0));
        assert!(memory.insert(range(0, BLOCK), false));
        assert!(!memory.insert(range(16 * BLOCK, BLOCK), false));
    }

    #[test]
    fn what_was_given_back_or_lies_outside_is_not_held() {
        let mut memory = Memory::new(8, 1 << 40);
        assert!(memory.insert(range(4 * BLOCK, BLOCK + 5), true));
        assert!(memory.insert(range(16 * BLOCK, BLOCK), false));
        assert!(memory.holds(range(4 * BLOCK + 7, 64)));
        assert!(memory.pool_holds(range(4 * BLOCK, BLOCK)));
        assert!(!memory.pool_holds(range(16 * BLOCK, BLOCK)));
        assert!(!memory.holds(range(5 * BLOCK, 6)));
        assert!(memory.holds_blocks(range(5 * BLOCK, BLOCK)));
        assert!(!memory.holds(range(3 * BLOCK, BLOCK)));
        assert_eq!(
            memory.clip(range(5 * BLOCK, BLOCK)),
            Some(range(5 * BLOCK, 5))
        );
        assert!(memory.remove(4 * BLOCK));
        assert!(!memory.holds(range(4 * BLOCK, 1)));
    }
}
