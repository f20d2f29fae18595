//! A caching allocator, as machine-learning frameworks put before the driver's: it takes
//! segments of at least 20 MiB, hands out parts of them, joins neighbours that are free,
//! and never gives a segment back. It owns addresses only, not memory.
//!
//! All users are in one stream, so a part that was freed can be handed out again at once.

use std::collections::{BTreeMap, BTreeSet};

use crate::size::{MIB, whole_blocks};

/// Sizes are rounded up to multiples of this, bytes.
pub const ROUNDING: u64 = 512;
/// Least length of a segment, bytes.
pub const SEGMENT: u64 = 20 * MIB;
/// Requests from here on get a segment of their own size, in whole blocks, bytes.
const OWN_SEGMENT: u64 = 10 * MIB;
/// A part is split if more than this would be left over, bytes.
const LEAST_REST: u64 = ROUNDING;

/// A part of a segment.
#[derive(Clone, Copy, Debug)]
struct Part {
    bytes: u64,
    /// First address of its segment: parts of different segments never join.
    segment: u64,
    free: bool,
}

/// The allocator, over segments that `reserve` gives by length.
pub struct Caching<R> {
    reserve: R,
    /// All parts by address.
    parts: BTreeMap<u64, Part>,
    /// Free parts by length, then address: the first that is long enough fits best.
    free: BTreeSet<(u64, u64)>,
    reserved: u64,
}

/// An address that was freed without being allocated.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("address {0:#x} was freed but is not allocated")]
pub struct NotAllocated(pub u64);

impl<R, E> Caching<R>
where
    R: FnMut(u64) -> Result<u64, E>,
{
    /// An allocator with no segment yet.
    pub fn new(reserve: R) -> Caching<R> {
        Caching {
            reserve,
            parts: BTreeMap::new(),
            free: BTreeSet::new(),
            reserved: 0,
        }
    }

    /// Address of `bytes` bytes. Fails only where a new segment is needed and refused.
    pub fn allocate(&mut self, bytes: u64) -> Result<u64, E> {
        let bytes = bytes.max(1).next_multiple_of(ROUNDING);
        let (length, address) = match self.free.range((bytes, 0)..).next().copied() {
            Some(best) => {
                self.free.remove(&best);
                best
            }
            None => self.grow(bytes)?,
        };
        let segment = self
            .parts
            .get(&address)
            .map_or(address, |part| part.segment);
        let rest = length - bytes;
        let taken = if rest >= LEAST_REST { bytes } else { length };
        self.parts.insert(
            address,
            Part {
                bytes: taken,
                segment,
                free: false,
            },
        );
        if taken < length {
            self.put(
                address + taken,
                Part {
                    bytes: rest,
                    segment,
                    free: true,
                },
            );
        }
        Ok(address)
    }

    /// Takes `address` back and joins it with its free neighbours.
    pub fn free(&mut self, address: u64) -> Result<(), NotAllocated> {
        let mut part = match self.parts.get(&address) {
            Some(part) if !part.free => *part,
            _ => return Err(NotAllocated(address)),
        };
        part.free = true;
        let mut start = address;
        let joins = |other: &Part| other.free && other.segment == part.segment;
        let after = self
            .parts
            .range(address + 1..)
            .next()
            .map(|(at, part)| (*at, *part));
        let before = self
            .parts
            .range(..address)
            .next_back()
            .map(|(at, part)| (*at, *part));
        let mut bytes = part.bytes;
        if let Some((at, next)) = after.filter(|(_, next)| joins(next)) {
            self.take(at, next);
            bytes += next.bytes;
        }
        if let Some((at, previous)) = before.filter(|(_, previous)| joins(previous)) {
            self.take(at, previous);
            self.parts.remove(&address);
            bytes += previous.bytes;
            start = at;
        }
        self.put(start, Part { bytes, ..part });
        Ok(())
    }

    /// All segments together, bytes.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved
    }

    fn grow(&mut self, bytes: u64) -> Result<(u64, u64), E> {
        let length = if bytes >= OWN_SEGMENT {
            whole_blocks(bytes)
        } else {
            SEGMENT
        };
        let length = length.max(SEGMENT);
        let address = (self.reserve)(length)?;
        self.reserved += length;
        Ok((length, address))
    }

    fn put(&mut self, address: u64, part: Part) {
        self.free.insert((part.bytes, address));
        self.parts.insert(address, part);
    }

    fn take(&mut self, address: u64, part: Part) {
        self.free.remove(&(part.bytes, address));
        self.parts.remove(&address);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    /// Segments one after the other without a gap, so that joining across is tempting.
    fn allocator() -> Caching<impl FnMut(u64) -> Result<u64, Infallible>> {
        let mut next = 1 << 32;
        Caching::new(move |bytes| {
            next += bytes;
            Ok(next - bytes)
        })
    }

    #[test]
    fn a_freed_part_serves_the_next_request_of_its_size() {
        let mut caching = allocator();
        let Ok(first) = caching.allocate(4 * MIB);
        let Ok(_second) = caching.allocate(4 * MIB);
        caching.free(first).expect("allocated");
        assert_eq!(caching.allocate(4 * MIB), Ok(first));
        assert_eq!(caching.reserved_bytes(), SEGMENT);
    }

    #[test]
    fn the_best_fit_is_taken_not_the_first() {
        let mut caching = allocator();
        let parts: Vec<u64> = [6, 1, 4, 1]
            .iter()
            .map(|mib| caching.allocate(mib * MIB).expect("room"))
            .collect();
        caching.free(parts[0]).expect("allocated");
        caching.free(parts[2]).expect("allocated");
        assert_eq!(caching.allocate(3 * MIB), Ok(parts[2]));
    }

    #[test]
    fn large_requests_get_segments_in_whole_blocks() {
        let mut caching = allocator();
        let Ok(_) = caching.allocate(31 * MIB);
        assert_eq!(caching.reserved_bytes(), 32 * MIB);
    }

    #[test]
    fn freeing_twice_or_a_stranger_is_an_error() {
        let mut caching = allocator();
        let Ok(address) = caching.allocate(10);
        assert_eq!(caching.free(address + 1), Err(NotAllocated(address + 1)));
        assert_eq!(caching.free(address), Ok(()));
        assert_eq!(caching.free(address), Err(NotAllocated(address)));
    }

    #[test]
    fn a_refused_segment_is_passed_on_and_leaves_the_allocator_whole() {
        let mut left = 1;
        let mut caching = Caching::new(move |_| {
            left -= 1;
            if left < 0 { Err("full") } else { Ok(1 << 40) }
        });
        assert_eq!(caching.allocate(SEGMENT), Ok(1 << 40));
        assert_eq!(caching.allocate(1), Err("full"));
        caching.free(1 << 40).expect("allocated");
        assert_eq!(caching.allocate(1), Ok(1 << 40));
    }

    proptest! {
        #[test]
        fn live_parts_never_overlap_and_all_comes_back(
            requests in prop::collection::vec((1u64..40 * MIB, any::<prop::sample::Index>(), any::<bool>()), 1..200),
        ) {
            let mut caching = allocator();
            let mut live: BTreeMap<u64, u64> = BTreeMap::new();
            for (bytes, index, free) in requests {
                if free && !live.is_empty() {
                    let address = *index.get(&live.keys().copied().collect::<Vec<_>>());
                    live.remove(&address);
                    prop_assert_eq!(caching.free(address), Ok(()));
                } else {
                    let Ok(address) = caching.allocate(bytes);
                    prop_assert_eq!(address % ROUNDING, 0);
                    live.insert(address, bytes);
                }
                let ends: Vec<(u64, u64)> = live.iter().map(|(at, n)| (*at, at + n)).collect();
                prop_assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0));
                let used: u64 = live.values().sum();
                prop_assert!(used <= caching.reserved_bytes());
                let all: u64 = caching.parts.values().map(|part| part.bytes).sum();
                prop_assert_eq!(all, caching.reserved_bytes());
                let free: BTreeSet<(u64, u64)> = caching.parts.iter()
                    .filter(|(_, part)| part.free).map(|(at, part)| (part.bytes, *at)).collect();
                prop_assert_eq!(&free, &caching.free);
            }
            for address in live.into_keys() {
                prop_assert_eq!(caching.free(address), Ok(()));
            }
            // Everything is joined again: one free part for each segment.
            prop_assert!(caching.parts.iter().all(|(at, part)| part.free && part.segment == *at));
        }
    }
}
