//! Which addresses are live, and what was advised for them.

use std::collections::BTreeMap;
use std::ops::Range;

use super::super::allocate::Ranges;
use super::super::{Advice, Allocation, BLOCK_BYTES, Kind, Location, MemoryError, RangeState};

/// Advice and the last prefetch of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Policy {
    preferred: Option<Location>,
    last_prefetch: Option<Location>,
    accessed_by_device: bool,
}

/// Live allocations and free address space. Every allocation has blocks of its own.
pub struct Book {
    live: BTreeMap<u64, Allocation>,
    managed: Ranges,
    device: Ranges,
    device_bytes: u64,
    policies: BTreeMap<u64, Policy>,
}

fn blocks(start: u64, length: u64) -> impl Iterator<Item = u64> {
    (start / BLOCK_BYTES * BLOCK_BYTES..start + length).step_by(BLOCK_BYTES as usize)
}

impl Book {
    /// Address space for both kinds.
    pub fn new(managed: Range<u64>, device: Range<u64>) -> Self {
        Self {
            live: BTreeMap::new(),
            managed: Ranges::new(managed.start, managed.end - managed.start),
            device: Ranges::new(device.start, device.end - device.start),
            device_bytes: 0,
            policies: BTreeMap::new(),
        }
    }

    /// Takes addresses for an allocation.
    ///
    /// # Errors
    /// [`MemoryError`], for no bytes and for too many.
    pub fn take(&mut self, bytes: u64, kind: Kind) -> Result<u64, MemoryError> {
        if bytes == 0 {
            return Err(MemoryError::InvalidRange {
                wanted: "positive size",
                address: 0,
                bytes,
            });
        }
        let ranges = match kind {
            Kind::Managed => &mut self.managed,
            Kind::Device => &mut self.device,
        };
        let span = bytes.checked_next_multiple_of(BLOCK_BYTES);
        let Some(base) = span.and_then(|span| ranges.take(span)) else {
            return Err(MemoryError::OutOfMemory {
                requested: bytes,
                available: ranges.longest(),
            });
        };
        if kind == Kind::Device {
            self.device_bytes += bytes;
        }
        self.live.insert(base, Allocation { base, bytes, kind });
        Ok(base)
    }

    /// The allocation that begins at an address.
    ///
    /// # Errors
    /// [`MemoryError::InvalidRange`]: none does.
    pub fn start(&self, address: u64) -> Result<Allocation, MemoryError> {
        self.live
            .get(&address)
            .copied()
            .ok_or(MemoryError::InvalidRange {
                wanted: "start of an allocation",
                address,
                bytes: 0,
            })
    }

    /// Gives the addresses of the allocation that begins there back.
    pub fn give(&mut self, address: u64) {
        let Some(gone) = self.live.remove(&address) else {
            return;
        };
        let span = gone.bytes.next_multiple_of(BLOCK_BYTES);
        for block in blocks(address, span) {
            self.policies.remove(&block);
        }
        match gone.kind {
            Kind::Managed => self.managed.give(address, span),
            Kind::Device => {
                self.device_bytes -= gone.bytes;
                self.device.give(address, span);
            }
        }
    }

    /// The allocation that holds an address.
    pub fn find(&self, address: u64) -> Option<Allocation> {
        let (_, found) = self.live.range(..=address).next_back()?;
        (address - found.base < found.bytes).then_some(*found)
    }

    /// Device memory in use.
    pub fn device_bytes(&self) -> u64 {
        self.device_bytes
    }

    /// Notes where a range was sent.
    pub fn note_prefetch(&mut self, start: u64, length: u64, to: Location) {
        for block in blocks(start, length) {
            self.policies.entry(block).or_default().last_prefetch = Some(to);
        }
    }

    /// Notes what was advised for a range.
    pub fn note_advice(&mut self, start: u64, length: u64, advice: Advice) {
        for block in blocks(start, length) {
            let policy = self.policies.entry(block).or_default();
            match advice {
                Advice::Preferred(at) => policy.preferred = at,
                Advice::AccessedByDevice(yes) => policy.accessed_by_device = yes,
                Advice::ReadMostly(_) => {}
            }
        }
    }

    /// What is known of a range.
    pub fn state(&self, start: u64, length: u64) -> RangeState {
        let policies: Vec<_> = blocks(start, length)
            .map(|block| self.policies.get(&block).copied().unwrap_or_default())
            .collect();
        let first = policies.first().copied().unwrap_or_default();
        let same = |equal: fn(&Policy, &Policy) -> bool| policies.iter().all(|p| equal(p, &first));
        RangeState {
            preferred: same(|a, b| a.preferred == b.preferred).then_some(first.preferred),
            last_prefetch: same(|a, b| a.last_prefetch == b.last_prefetch)
                .then_some(first.last_prefetch),
            accessed_by_device: policies.iter().all(|policy| policy.accessed_by_device),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book() -> Book {
        let managed = 0..16 * BLOCK_BYTES;
        let device = managed.end..managed.end + 4 * BLOCK_BYTES;
        Book::new(managed, device)
    }

    #[test]
    fn an_address_belongs_to_the_allocation_around_it_until_it_is_given_back() {
        let mut book = book();
        let one = book.take(BLOCK_BYTES + 1, Kind::Managed).unwrap();
        let other = book.take(100, Kind::Device).unwrap();
        assert_eq!(
            book.find(one + BLOCK_BYTES).map(|found| found.base),
            Some(one)
        );
        assert_eq!(book.find(one + BLOCK_BYTES + 1), None, "behind its end");
        assert_eq!(book.device_bytes(), 100);
        book.give(one);
        book.give(other);
        assert_eq!((book.find(one), book.device_bytes()), (None, 0));
        assert!(
            book.take(16 * BLOCK_BYTES, Kind::Managed).is_ok(),
            "all of it is free again"
        );
    }

    #[test]
    fn advice_holds_for_a_range_only_where_all_its_blocks_have_it() {
        let mut book = book();
        let base = book.take(2 * BLOCK_BYTES, Kind::Managed).unwrap();
        book.note_advice(base, BLOCK_BYTES, Advice::Preferred(Some(Location::Host)));
        book.note_advice(base, 2 * BLOCK_BYTES, Advice::AccessedByDevice(true));
        let state = book.state(base, 2 * BLOCK_BYTES);
        assert_eq!(state.preferred, None, "the blocks differ");
        assert!(state.accessed_by_device);
        let state = book.state(base, BLOCK_BYTES);
        assert_eq!(state.preferred, Some(Some(Location::Host)));
    }
}
