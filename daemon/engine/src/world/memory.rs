//! Allocations, the parts of pool segments that live, and what pointers into them mean.
//!
//! Owns names: an object is known by its size and by how many of that size were alive
//! when it was born, so that the same program position gives the same name in the next
//! iteration even where the address differs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::runs::Runs;
use crate::hash::{Map, mix};
use crate::units::{BLOCK_BYTES, BlockId, Range};

/// Landmarks kept of one allocation.
const LANDMARKS: usize = 4096;
/// A pointer into a pool part ends what lies at least so far before it. Views of one
/// tensor that lie closer together are taken as interleaved.
const LANDMARK_BYTES: u64 = 32 << 20;
/// Allocations that are gone and still remembered.
const GONE: usize = 1 << 14;
/// Parts of all pool segments together that are tracked.
const PARTS: usize = 1 << 20;

/// Managed memory obtained from the driver.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub range: Range,
    pub pool: bool,
    pub name: u64,
    /// Blocks of it that are tracked; the rest is left to the driver.
    pub tracked_bytes: u64,
    /// Offsets that were ever passed to a launch: what begins there ends what lies before.
    landmarks: BTreeSet<u64>,
}

/// A part of a pool segment that was handed out.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub range: Range,
    pub name: u64,
    /// As of allocations.
    landmarks: BTreeSet<u64>,
}

/// What a pointer means.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    /// Name of the allocation or pool part.
    pub name: u64,
    /// Where the pointer points, from the start of what is named.
    pub offset: u64,
    /// From the pointer to the end of what it can mean.
    pub extent: Range,
    /// The extent ends at a part's end or at a landmark, not merely at the allocation's.
    pub bounded: bool,
    /// It ends at a landmark.
    pub followed: bool,
    /// It is a pool part.
    pub part: bool,
    /// From the pointer to the end of the part or allocation, or of several that are used as one.
    pub rest_bytes: u64,
}

#[derive(Debug, Default)]
struct Names {
    by_size: Map<u64, (BTreeSet<u32>, u32)>,
}

impl Names {
    fn take(&mut self, salt: u64, bytes: u64) -> u64 {
        let (free, next) = self.by_size.entry(mix(salt, bytes)).or_default();
        let index = free.pop_first().unwrap_or_else(|| {
            *next += 1;
            *next - 1
        });
        Self::compose(salt, bytes, index)
    }

    fn give_back(&mut self, salt: u64, bytes: u64, name: u64) {
        let key = mix(salt, bytes);
        let Some((free, next)) = self.by_size.get_mut(&key) else {
            return;
        };
        free.insert((name & 0xFFFF_FFFF) as u32);
        if free.len() == *next as usize {
            self.by_size.remove(&key);
        }
    }

    fn compose(salt: u64, bytes: u64, index: u32) -> u64 {
        (mix(salt, bytes) << 32) | u64::from(index)
    }
}

/// All managed memory of a session.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    allocations: BTreeMap<u64, Allocation>,
    parts: BTreeMap<u64, Part>,
    names: Names,
    by_name: Map<u64, u64>,
    bytes: u64,
    /// Landmarks of all allocations and parts.
    landmarks: usize,
    /// Places and names of allocations that are gone, latest last: a program gives its
    /// memory back before its session ends.
    gone: VecDeque<(Range, u64)>,
    runs: Runs,
}

impl Memory {
    /// Managed bytes that exist.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes in an allocation; nothing where it overlaps one that exists or is empty.
    pub(crate) fn insert(&mut self, range: Range, pool: bool, tracked_bytes: u64) -> bool {
        if range.bytes == 0 || range.address.checked_add(range.bytes).is_none() {
            return false;
        }
        let before = self.allocations.range(..range.end()).next_back();
        if before.is_some_and(|(_, other)| other.range.end() > range.address) {
            return false;
        }
        let name = self.names.take(u64::from(pool), range.bytes);
        self.by_name.insert(name, range.address);
        self.bytes += range.bytes;
        let landmarks = BTreeSet::new();
        let allocation = Allocation {
            range,
            pool,
            name,
            tracked_bytes,
            landmarks,
        };
        self.allocations.insert(range.address, allocation);
        if self.runs.go_on() {
            self.join_to(range.address);
            self.join_to(range.end());
        }
        true
    }

    /// Plain allocations of which one ends where the other begins are used as one.
    fn join_to(&mut self, bound: u64) {
        let plain = |address| self.allocation_at(address).filter(|found| !found.pool);
        if let Some(before) = bound.checked_sub(1).and_then(plain)
            && let Some(behind) = plain(bound)
        {
            let (before, behind) = (before.range, behind.range);
            self.runs.join(before, behind);
        }
    }

    /// Takes an allocation and its live parts away.
    pub(crate) fn remove(&mut self, address: u64) -> Option<Allocation> {
        let allocation = self.allocations.remove(&address)?;
        self.bytes -= allocation.range.bytes;
        self.landmarks -= allocation.landmarks.len();
        self.names.give_back(
            u64::from(allocation.pool),
            allocation.range.bytes,
            allocation.name,
        );
        self.by_name.remove(&allocation.name);
        if !allocation.pool {
            self.runs.remove(allocation.range);
        }
        if self.gone.len() == GONE {
            self.gone.pop_front();
        }
        self.gone.push_back((allocation.range, allocation.name));
        if allocation.pool {
            // One may begin in the segment before.
            let starts: Vec<u64> = self
                .parts
                .range(..allocation.range.end())
                .rev()
                .take_while(|(_, part)| part.range.end() > address)
                .map(|(&start, _)| start)
                .collect();
            for start in starts {
                self.end_part(start);
            }
        }
        Some(allocation)
    }

    /// A part of a pool segment is handed out. False where it is in no segment, overlaps
    /// a live part, or there are too many.
    pub(crate) fn begin_part(&mut self, range: Range) -> bool {
        let inside = range.bytes > 0 && self.covered(range, |allocation| allocation.pool);
        let before = self.parts.range(..range.end()).next_back();
        let clear = before.is_none_or(|(_, part)| part.range.end() <= range.address);
        if !inside || !clear || self.parts.len() >= PARTS {
            return false;
        }
        let name = self.names.take(2, range.bytes);
        self.parts.insert(
            range.address,
            Part {
                range,
                name,
                landmarks: BTreeSet::new(),
            },
        );
        self.by_name.insert(name, range.address);
        true
    }

    /// A part is taken back: the next part of its size may get its name.
    pub(crate) fn end_part(&mut self, address: u64) -> Option<Part> {
        let part = self.parts.remove(&address)?;
        self.landmarks -= part.landmarks.len();
        self.names.give_back(2, part.range.bytes, part.name);
        self.by_name.remove(&part.name);
        Some(part)
    }

    /// What of a range is tracked, from its start on: nothing says that a client's sizes are
    /// sane. A range may go on into segments that follow without a gap.
    pub(crate) fn tracked(&self, range: Range) -> Range {
        let mut end = range.address;
        while end < range.end()
            && let Some(allocation) = self.allocation_at(end)
        {
            let tracked = allocation.range.address + allocation.tracked_bytes;
            end = end.max(tracked);
            if tracked < allocation.range.end() {
                break;
            }
        }
        Range {
            address: range.address,
            bytes: end.min(range.end()).saturating_sub(range.address),
        }
    }

    /// All of a range lies in allocations of which `each` holds.
    fn covered(&self, range: Range, each: impl Fn(&Allocation) -> bool) -> bool {
        let mut at = range.address;
        while at < range.end() {
            match self.allocation_at(at).filter(|allocation| each(allocation)) {
                Some(allocation) => at = allocation.range.end(),
                None => return false,
            }
        }
        true
    }

    /// Whether two addresses lie in one object: a live pool part, or else an allocation, or several
    /// that are used as one.
    pub(crate) fn same_object(&self, a: u64, b: u64) -> bool {
        let object = |address| match self.part_at(address) {
            Some(part) => Some(part.range.address),
            None => self.allocation_at(address).map(|a| self.run(a).address),
        };
        object(a).is_some_and(|found| object(b) == Some(found))
    }

    fn part_at(&self, address: u64) -> Option<&Part> {
        let (_, part) = self.parts.range(..=address).next_back()?;
        (address < part.range.end()).then_some(part)
    }

    /// Name of the allocation that holds `address`, and where in it that is. Unlike
    /// [`Memory::name_at`] it asks for no part: segments stand for what lies in them.
    pub(crate) fn allocation_name(&self, address: u64) -> Option<(u64, u64)> {
        let allocation = self.allocation_at(address)?;
        Some((allocation.name, address - allocation.range.address))
    }

    /// Of allocations, or of the last ones that were where none is now: by the number of
    /// the first block, the end and the name.
    pub(crate) fn names_by_place(&self) -> BTreeMap<u64, (u64, u64)> {
        let mut places = BTreeMap::new();
        let live = self.allocations.values().map(|a| (a.range, a.name));
        for (range, name) in self.gone.iter().copied().chain(live) {
            let first = range.address / BLOCK_BYTES;
            let end = range.end().div_ceil(BLOCK_BYTES);
            let over = |places: &BTreeMap<u64, (u64, u64)>| {
                let (&start, &(other, _)) = places.range(..end).next_back()?;
                (other > first).then_some(start)
            };
            while let Some(start) = over(&places) {
                places.remove(&start);
            }
            places.insert(first, (end, name));
        }
        places
    }

    /// The allocation that holds `address`.
    pub(crate) fn allocation_at(&self, address: u64) -> Option<&Allocation> {
        let (_, allocation) = self.allocations.range(..=address).next_back()?;
        (address < allocation.range.end()).then_some(allocation)
    }

    /// Where the object of that name begins now.
    pub(crate) fn address_of(&self, name: u64) -> Option<u64> {
        self.by_name.get(&name).copied()
    }

    /// What a launch argument points to, if it is a pointer; learns the landmark.
    pub(crate) fn resolve(&mut self, pointer: u64) -> Option<Object> {
        let (&base, allocation) = self.allocations.range_mut(..=pointer).next_back()?;
        if pointer >= allocation.range.end() {
            return None;
        }
        if allocation.pool {
            let (&start, part) = self.parts.range_mut(..=pointer).next_back()?;
            if pointer >= part.range.end() {
                return None;
            }
            let offset = pointer - start;
            let large = part.range.bytes > LANDMARK_BYTES;
            if large && offset > 0 && part.landmarks.len() < LANDMARKS {
                self.landmarks += usize::from(part.landmarks.insert(offset));
            }
            let next = part.landmarks.range(offset + LANDMARK_BYTES..).next();
            let end = next.copied().unwrap_or(part.range.bytes);
            return Some(Object {
                name: part.name,
                offset,
                extent: Range {
                    address: pointer,
                    bytes: end - offset,
                },
                bounded: true,
                followed: next.is_some(),
                part: true,
                rest_bytes: part.range.bytes - offset,
            });
        }
        let offset = pointer - base;
        if allocation.landmarks.len() < LANDMARKS {
            self.landmarks += usize::from(allocation.landmarks.insert(offset));
        }
        let own = allocation.landmarks.range(offset + 1..).next().copied();
        let (name, range) = (allocation.name, allocation.range);
        let run_end = self.runs.of(range).end();
        let next = own.or_else(|| Some(self.landmark_within(range.end(), run_end)? - base));
        let whole = run_end - base;
        let end = next.unwrap_or(whole);
        Some(Object {
            name,
            offset,
            extent: Range {
                address: pointer,
                bytes: end - offset,
            },
            bounded: next.is_some(),
            followed: next.is_some(),
            part: false,
            rest_bytes: whole - offset,
        })
    }

    /// All that is used as one with an allocation.
    fn run(&self, allocation: &Allocation) -> Range {
        if allocation.pool {
            allocation.range
        } else {
            self.runs.of(allocation.range)
        }
    }

    /// Where the object in which `address` lies ends, a plain allocation or several that are used as
    /// one; none where there is none.
    pub(crate) fn plain_end(&self, address: u64) -> Option<u64> {
        let allocation = self.allocation_at(address).filter(|found| !found.pool)?;
        Some(self.run(allocation).end())
    }

    /// The first address in the allocations from `first` up to before `end` that was ever passed.
    fn landmark_within(&self, first: u64, end: u64) -> Option<u64> {
        let mut allocations = self.allocations.range(first..end.max(first));
        allocations.find_map(|(start, allocation)| Some(start + allocation.landmarks.first()?))
    }

    /// The launch at `position` used `block`, in a plain allocation into which none of its pointers
    /// leads. Where one leads into what ends right before, of which the launch `uses` all up to its
    /// end, the two may be used as one.
    pub(crate) fn used_behind(
        &mut self,
        (block, position): (BlockId, u64),
        mut pointers: impl Iterator<Item = u64>,
        uses: impl Fn(BlockId) -> bool,
    ) {
        let plain = |address| self.allocation_at(address).filter(|found| !found.pool);
        let Some(behind) = plain(block.address()) else {
            return;
        };
        let Some(last) = behind.range.address.checked_sub(1) else {
            return;
        };
        let Some(before) = plain(last).map(|before| self.run(before)) else {
            return;
        };
        if uses(BlockId::containing(last)) && pointers.any(|pointer| before.contains(pointer)) {
            let joined = self.runs.strayed(before, behind.range, position);
            if joined && self.runs.go_on() {
                let bounds: Vec<u64> = self.allocations.keys().copied().collect();
                for bound in bounds {
                    self.join_to(bound);
                }
            }
        }
    }

    /// What of a range lies in the object in which it begins, a live pool part, a plain allocation or
    /// several that are used as one; nothing where it begins in none.
    pub(crate) fn within(&self, range: Range) -> Range {
        let end = match self.allocation_at(range.address) {
            Some(allocation) if allocation.pool => {
                let part = self.part_at(range.address);
                part.map_or(0, |part| part.range.end())
            }
            Some(allocation) => self.run(allocation).end(),
            None => 0,
        };
        let bytes = range.bytes.min(end.saturating_sub(range.address));
        Range { bytes, ..range }
    }

    /// `address` lies in a plain allocation into which pointers further on were passed.
    pub(crate) fn is_cut(&self, address: u64) -> bool {
        self.allocation_at(address).is_some_and(|allocation| {
            let offset = address - allocation.range.address;
            let own = allocation.landmarks.range(offset + 1..).next();
            let (end, run_end) = (allocation.range.end(), self.run(allocation).end());
            let further = || self.landmark_within(end, run_end).is_some();
            !allocation.pool && (own.is_some() || further())
        })
    }

    /// `address` lies in a pool part into which pointers to several places were passed.
    pub(crate) fn has_landmarks(&self, address: u64) -> bool {
        self.part_at(address)
            .is_some_and(|part| !part.landmarks.is_empty())
    }

    /// Name and offset of whatever lives at `address`.
    pub(crate) fn name_at(&self, address: u64) -> Option<(u64, u64)> {
        let allocation = self.allocation_at(address)?;
        if !allocation.pool {
            return Some((allocation.name, address - allocation.range.address));
        }
        let part = self.part_at(address)?;
        Some((part.name, address - part.range.address))
    }

    /// Estimated size of the tables in bytes.
    pub(crate) fn table_bytes(&self) -> u64 {
        // A tree's nodes are about two thirds full.
        let allocations = self.allocations.len() * size_of::<(u64, Allocation)>();
        let parts = self.parts.len() * size_of::<(u64, Part)>();
        let names = self.by_name.capacity() * (size_of::<(u64, u64)>() + 1);
        let trees = allocations + parts + self.landmarks * size_of::<u64>();
        ((trees + self.runs.bytes()) * 3 / 2 + names) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn part(bytes: u64) -> Memory {
        let mut memory = Memory::default();
        let range = Range {
            address: 64 * MIB,
            bytes,
        };
        assert!(memory.insert(range, true, bytes) && memory.begin_part(range));
        memory
    }

    #[test]
    fn a_pointer_to_a_tile_means_no_more_than_up_to_the_next_tile() {
        let mut memory = part(1024 * MIB);
        memory.resolve(64 * MIB + 256 * MIB);
        let first = memory.resolve(64 * MIB).map(|object| object.extent.bytes);
        assert_eq!(first, Some(256 * MIB));
        let last = memory.resolve(64 * MIB + 256 * MIB);
        assert_eq!(last.map(|object| object.extent.bytes), Some(768 * MIB));
        assert!(memory.has_landmarks(64 * MIB));
    }

    #[test]
    fn views_that_lie_close_together_do_not_bound_one_another() {
        let mut memory = part(1024 * MIB);
        memory.resolve(64 * MIB + 4096);
        let whole = memory.resolve(64 * MIB).map(|object| object.extent.bytes);
        assert_eq!(whole, Some(1024 * MIB));
    }

    #[test]
    fn a_part_may_lie_across_segments_that_follow_each_other() {
        let mut memory = Memory::default();
        for number in [64, 96] {
            let address = number * MIB;
            let bytes = 32 * MIB;
            assert!(memory.insert(Range { address, bytes }, true, bytes));
        }
        let part = Range {
            address: 80 * MIB,
            bytes: 40 * MIB,
        };
        assert!(memory.begin_part(part));
        assert_eq!(memory.tracked(part), part);
        let whole = memory.resolve(80 * MIB).map(|object| object.extent);
        assert_eq!(whole, Some(part));
        assert!(memory.same_object(81 * MIB, 119 * MIB));
        let beyond = Range {
            address: 120 * MIB,
            bytes: 16 * MIB,
        };
        assert!(!memory.begin_part(beyond), "it ends in no segment");
        memory.remove(96 * MIB);
        assert!(memory.name_at(80 * MIB).is_none(), "it ends with either");
    }

    #[test]
    fn small_parts_are_meant_whole() {
        let mut memory = part(32 * MIB);
        memory.resolve(64 * MIB + 16 * MIB);
        assert!(!memory.has_landmarks(64 * MIB));
    }

    /// A launch whose pointer leads into what ends at `bound` uses four blocks behind it.
    fn use_behind(memory: &mut Memory, bound: u64, position: u64) {
        for number in 0..4 {
            let id = BlockId(bound / BLOCK_BYTES + number);
            memory.used_behind((id, position), [bound - 1].into_iter(), |_| true);
        }
    }

    fn adjoining(memory: &mut Memory, numbers: std::ops::Range<u64>) {
        for number in numbers {
            let range = Range {
                address: number * 16 * MIB,
                bytes: 16 * MIB,
            };
            assert!(memory.insert(range, false, range.bytes));
        }
    }

    /// Where a pointer to that allocation ends, in MiB.
    fn end(memory: &mut Memory, number: u64) -> u64 {
        let object = memory.resolve(number * 16 * MIB).unwrap();
        assert_eq!(object.rest_bytes, object.extent.bytes, "nothing bounds it");
        object.extent.end() / MIB
    }

    #[test]
    fn a_pointer_into_what_is_used_as_one_leads_to_its_end_or_to_the_next_pointer() {
        let mut memory = Memory::default();
        adjoining(&mut memory, 1..5);
        use_behind(&mut memory, 32 * MIB, 1);
        use_behind(&mut memory, 48 * MIB, 1);
        assert_eq!([end(&mut memory, 1), end(&mut memory, 4)], [64, 80]);
        assert!(memory.same_object(16 * MIB, 63 * MIB));
        assert!(!memory.same_object(16 * MIB, 64 * MIB));
        assert_eq!(memory.plain_end(20 * MIB), Some(64 * MIB));
        let whole = Range {
            address: 20 * MIB,
            bytes: 100 * MIB,
        };
        assert_eq!(memory.within(whole).end(), 64 * MIB);
        assert!(!memory.is_cut(16 * MIB));
        memory.resolve(56 * MIB);
        assert!(memory.is_cut(16 * MIB));
        let object = memory.resolve(20 * MIB).unwrap();
        assert_eq!((object.extent.end(), object.followed), (56 * MIB, true));
        assert_eq!(object.rest_bytes, 44 * MIB);
        memory.remove(32 * MIB);
        assert_eq!(memory.plain_end(20 * MIB), Some(32 * MIB));
        assert_eq!(memory.plain_end(50 * MIB), Some(64 * MIB));
    }

    #[test]
    fn only_what_the_launch_uses_up_to_its_end_goes_on() {
        let mut memory = Memory::default();
        adjoining(&mut memory, 1..3);
        for number in 0..8 {
            let id = BlockId(32 * MIB / BLOCK_BYTES + number);
            memory.used_behind((id, 1), [15 * MIB].into_iter(), |_| true);
            memory.used_behind((id, 1), [16 * MIB].into_iter(), |_| false);
        }
        assert_eq!(end(&mut memory, 1), 32);
        // Nothing lies before what begins there.
        adjoining(&mut memory, 0..1);
        memory.used_behind((BlockId(0), 1), [0].into_iter(), |_| true);
    }

    #[test]
    fn once_many_bounds_were_none_what_adjoins_is_one_also_what_comes_later() {
        let mut memory = Memory::default();
        adjoining(&mut memory, 1..20);
        for bound in 2..9 {
            use_behind(&mut memory, bound * 16 * MIB, 1);
        }
        assert_eq!(
            [end(&mut memory, 8), end(&mut memory, 18)],
            [9 * 16, 19 * 16]
        );
        use_behind(&mut memory, 10 * 16 * MIB, 1);
        assert_eq!(end(&mut memory, 18), 20 * 16);
        adjoining(&mut memory, 30..32);
        adjoining(&mut memory, 20..21);
        assert_eq!(
            [end(&mut memory, 30), end(&mut memory, 20)],
            [32 * 16, 21 * 16]
        );
        assert_eq!(memory.plain_end(16 * MIB), Some(21 * 16 * MIB));
        // What is obtained right before others goes on into them.
        adjoining(&mut memory, 29..30);
        assert_eq!(memory.plain_end(29 * 16 * MIB), Some(32 * 16 * MIB));
    }
}
