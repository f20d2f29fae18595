//! Handles: what a program holds of a stream, an event, a module, a function, a context.
//!
//! A handle is a number that is checked, never an address that is followed: index,
//! generation and kind. Objects live for ever, so a handle used by one thread while
//! another destroys it finds an object, though a dead one. Streams and events are used
//! again after their end ([`Table::revive`]), under a new generation.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Objects of a chunk.
const CHUNK: usize = 256;
/// Chunks of a table: 262,144 objects of a kind at once.
const CHUNKS: usize = 1024;
const INDEX_BITS: u32 = 18;
const GENERATION_BITS: u32 = 24;
/// The low bits stay zero, as in the pointers of other drivers.
const LOW_BITS: u32 = 4;

struct Slot<T> {
    /// Odd: live. Even: free or dead.
    generation: AtomicU32,
    object: OnceLock<T>,
}

type Chunk<T> = Box<[Slot<T>]>;

/// All objects of one kind.
pub struct Table<T: 'static> {
    kind: u8,
    chunks: [OnceLock<Chunk<T>>; CHUNKS],
    used: AtomicUsize,
    growth: Mutex<()>,
}

impl<T: 'static> Table<T> {
    /// An empty table; `kind` (1 to 15) tells its handles from those of other tables.
    pub const fn new(kind: u8) -> Self {
        Table {
            kind,
            chunks: [const { OnceLock::new() }; CHUNKS],
            used: AtomicUsize::new(0),
            growth: Mutex::new(()),
        }
    }

    /// Adds an object, which is told its index. None: the table is full.
    pub fn insert(&'static self, make: impl FnOnce(u32) -> T) -> Option<(usize, &'static T)> {
        let _growth = self.growth.lock().unwrap_or_else(PoisonError::into_inner);
        let index = self.used.load(Ordering::Relaxed);
        let chunk = self.chunks.get(index / CHUNK)?.get_or_init(|| {
            (0..CHUNK)
                .map(|_| Slot {
                    generation: AtomicU32::new(0),
                    object: OnceLock::new(),
                })
                .collect()
        });
        let slot = chunk.get(index % CHUNK)?;
        let index = u32::try_from(index).ok()?;
        let object = slot.object.get_or_init(|| make(index));
        self.used.store(index as usize + 1, Ordering::Release);
        slot.generation.store(1, Ordering::Release);
        Some((self.handle(index, 1), object))
    }

    /// The live object of a handle.
    #[inline]
    pub fn get(&'static self, handle: usize) -> Option<&'static T> {
        let (slot, generation) = self.find(handle)?;
        if slot.generation.load(Ordering::Acquire) != generation {
            return None;
        }
        slot.object.get()
    }

    /// Ends the handle's life; none if it is not live.
    pub fn remove(&'static self, handle: usize) -> Option<&'static T> {
        let (slot, generation) = self.find(handle)?;
        let next = (generation + 1) & ((1 << GENERATION_BITS) - 1);
        slot.generation
            .compare_exchange(generation, next, Ordering::AcqRel, Ordering::Relaxed)
            .ok()?;
        slot.object.get()
    }

    /// Gives the dead object at an index a new life and a new handle.
    pub fn revive(&'static self, index: u32) -> Option<(usize, &'static T)> {
        let slot = self.slot(index as usize)?;
        let generation = slot.generation.load(Ordering::Acquire);
        if generation % 2 == 1 {
            return None;
        }
        let next = (generation + 1) & ((1 << GENERATION_BITS) - 1);
        slot.generation
            .compare_exchange(generation, next, Ordering::AcqRel, Ordering::Relaxed)
            .ok()?;
        Some((self.handle(index, next), slot.object.get()?))
    }

    /// The live handle of the object at an index.
    pub fn handle_of(&'static self, index: u32) -> Option<usize> {
        let generation = self
            .slot(index as usize)?
            .generation
            .load(Ordering::Acquire);
        (generation % 2 == 1).then(|| self.handle(index, generation))
    }

    /// All live objects.
    pub fn live(&'static self) -> impl Iterator<Item = &'static T> {
        (0..self.used.load(Ordering::Acquire)).filter_map(|index| {
            let slot = self.slot(index)?;
            let live = slot.generation.load(Ordering::Acquire) % 2 == 1;
            slot.object.get().filter(|_| live)
        })
    }

    fn handle(&self, index: u32, generation: u32) -> usize {
        let body = (generation as usize) << INDEX_BITS | index as usize;
        ((self.kind as usize) << (INDEX_BITS + GENERATION_BITS) | body) << LOW_BITS
    }

    #[inline]
    fn slot(&'static self, index: usize) -> Option<&'static Slot<T>> {
        self.chunks.get(index / CHUNK)?.get()?.get(index % CHUNK)
    }

    /// The slot that a handle names, with the generation that it claims: an odd one.
    #[inline]
    fn find(&'static self, handle: usize) -> Option<(&'static Slot<T>, u32)> {
        let body = handle >> LOW_BITS;
        let index = body & ((1 << INDEX_BITS) - 1);
        let generation = (body >> INDEX_BITS) as u32 & ((1 << GENERATION_BITS) - 1);
        let kind = body >> (INDEX_BITS + GENERATION_BITS);
        let plain = handle & ((1 << LOW_BITS) - 1) == 0;
        if !plain || kind != self.kind as usize || generation.is_multiple_of(2) {
            return None;
        }
        Some((self.slot(index)?, generation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_finds_its_object_until_it_is_removed() {
        static TABLE: Table<u64> = Table::new(3);
        let (handle, object) = TABLE.insert(|_| 7).expect("room");
        assert_eq!((TABLE.get(handle), *object), (Some(&7), 7));
        assert_eq!(TABLE.remove(handle), Some(&7));
        assert_eq!(TABLE.get(handle), None);
        assert_eq!(TABLE.remove(handle), None);
    }

    #[test]
    fn a_revived_object_has_another_handle_and_the_old_stays_dead() {
        static TABLE: Table<u64> = Table::new(4);
        let (old, _) = TABLE.insert(|_| 9).expect("room");
        assert!(TABLE.revive(0).is_none(), "it still lives");
        TABLE.remove(old);
        let (new, _) = TABLE.revive(0).expect("dead before");
        assert_ne!(old, new);
        assert_eq!((TABLE.get(old), TABLE.get(new)), (None, Some(&9)));
        assert_eq!(TABLE.handle_of(0), Some(new));
    }

    #[test]
    fn numbers_that_are_not_handles_find_nothing() {
        static TABLE: Table<u64> = Table::new(5);
        static OTHER: Table<u64> = Table::new(6);
        let (handle, _) = TABLE.insert(|_| 1).expect("room");
        OTHER.insert(|_| 2).expect("room");
        for wrong in [
            0,
            1,
            2,
            usize::MAX,
            handle + 1,
            handle | 1 << 62,
            0xdead_beef_0000,
        ] {
            assert_eq!(TABLE.get(wrong), None, "{wrong:#x}");
        }
        assert_eq!(OTHER.get(handle), None, "of another kind");
    }

    #[test]
    fn tables_grow_over_many_chunks() {
        static TABLE: Table<usize> = Table::new(7);
        let handles: Vec<_> = (0..3 * CHUNK)
            .map(|n| TABLE.insert(move |_| n).expect("room").0)
            .collect();
        for (n, handle) in handles.iter().enumerate() {
            assert_eq!(TABLE.get(*handle), Some(&n));
        }
        assert_eq!(TABLE.live().count(), 3 * CHUNK);
    }
}
