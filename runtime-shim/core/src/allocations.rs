//! Which addresses are managed memory, and whose.
//!
//! Lookups take no lock: managed allocations begin at a multiple of 2 MiB and own whole
//! blocks, so a two-level table from block number to entry answers in three loads. Writers
//! hold the caller's lock ([`Allocations`] says where). Entries are bounded; an allocation
//! that finds no entry stays untracked and is left to the driver.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::BLOCK_BYTES;
use crate::mapped::{self, LazyTable, Zeroable};

/// Most allocations tracked at a time.
pub const MAX_ALLOCATIONS: usize = 1 << 16;
/// Blocks that one leaf of the table covers: 32 GiB.
const LEAF_BLOCKS: usize = 1 << 14;
/// Leaves: 256 TiB, all of a 48-bit address space.
const LEAVES: usize = 1 << 13;

/// What is known of one allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// What the program was given.
    pub address: u64,
    /// Whole blocks, bytes.
    pub bytes: u64,
    /// What the program asked for, bytes.
    pub requested: u64,
    /// What the driver gave; differs from `address` where that was not aligned.
    pub driver_address: u64,
    /// Bits of [`flags`].
    pub flags: u32,
}

impl Allocation {
    /// One past the last byte.
    pub fn end(&self) -> u64 {
        self.address + self.bytes
    }

    /// Bytes of it that were prefetched to the device at allocation, from its start.
    pub fn prefetched_bytes(&self) -> u64 {
        if !self.is(flags::PREFETCHED) {
            return 0;
        }
        match self.flags >> flags::PART_SHIFT {
            0 => self.bytes,
            blocks => u64::from(blocks) * BLOCK_BYTES,
        }
    }

    /// Whether any bit of `flags` is set.
    pub fn is(&self, flags: u32) -> bool {
        self.flags & flags != 0
    }
}

/// Bits of [`Allocation::flags`].
pub mod flags {
    /// A segment of the pool.
    pub const POOL: u32 = 1;
    /// Prefetched to the device at allocation: the blocks from its start whose number
    /// stands in the bits from [`PART_SHIFT`] on, or all of it where that is 0.
    pub const PREFETCHED: u32 = 2;
    /// First bit of the number of blocks that were prefetched.
    pub const PART_SHIFT: u32 = 8;
    /// The program asked for managed memory itself.
    pub const BY_PROGRAM: u32 = 4;
    /// The program asked for it to be exported to another process, which cannot be.
    pub const EXPORTED: u32 = 8;
    /// Populated on the host at allocation.
    pub const ON_HOST: u32 = 16;
}

/// One entry. `address` 0: free; then `bytes` links to the next free entry.
#[derive(Debug)]
#[repr(C)]
struct Entry {
    address: AtomicU64,
    bytes: AtomicU64,
    requested: AtomicU64,
    driver_address: AtomicU64,
    flags: AtomicU32,
    padding: [u32; 7],
}

// SAFETY: integers and atomics only.
unsafe impl Zeroable for Entry {}

/// The table. [`Allocations::insert`], [`Allocations::remove`] and [`Allocations::clear`]
/// may run in one thread at a time only: the caller's lock sees to it.
#[derive(Debug, Default)]
pub struct Allocations {
    /// Per leaf: its address.
    leaves: LazyTable<AtomicU64, LEAVES>,
    entries: LazyTable<Entry, MAX_ALLOCATIONS>,
    /// Entries ever used.
    used: AtomicU32,
    /// First free entry below `used`, plus one.
    free: AtomicU32,
    untracked: AtomicU64,
    total_bytes: AtomicU64,
    all_bytes: AtomicU64,
    prefetched_bytes: AtomicU64,
}

impl Allocations {
    /// Empty; maps nothing.
    pub const fn new() -> Self {
        Self {
            leaves: LazyTable::new(),
            entries: LazyTable::new(),
            used: AtomicU32::new(0),
            free: AtomicU32::new(0),
            untracked: AtomicU64::new(0),
            total_bytes: AtomicU64::new(0),
            all_bytes: AtomicU64::new(0),
            prefetched_bytes: AtomicU64::new(0),
        }
    }

    /// Bytes of all tracked allocations but the program's own managed ones.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of all tracked allocations.
    pub fn all_bytes(&self) -> u64 {
        self.all_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of those that were prefetched to the device at allocation.
    pub fn prefetched_bytes(&self) -> u64 {
        self.prefetched_bytes.load(Ordering::Relaxed)
    }

    /// Allocations that found no room in the table since the beginning.
    pub fn untracked(&self) -> u64 {
        self.untracked.load(Ordering::Relaxed)
    }

    /// The allocation that `address` lies in.
    #[inline]
    pub fn find(&self, address: u64) -> Option<Allocation> {
        let index = self.index_of(address)?;
        let entry = self.entries.get()?.get(index)?;
        let found = read(entry);
        // A concurrent removal may have emptied the entry or given it to another.
        (found.address <= address && address < found.address.checked_add(found.bytes)?)
            .then_some(found)
    }

    /// Whether `address` lies in managed memory: for the launch and copy paths.
    #[inline]
    pub fn contains(&self, address: u64) -> bool {
        self.index_of(address).is_some()
    }

    #[inline]
    fn index_of(&self, address: u64) -> Option<usize> {
        let cell = self.cell(address / BLOCK_BYTES)?.load(Ordering::Acquire);
        (cell as usize).checked_sub(1)
    }

    #[inline]
    fn cell(&self, block: u64) -> Option<&AtomicU32> {
        let block = usize::try_from(block).ok()?;
        let leaf = self
            .leaves
            .get()?
            .get(block / LEAF_BLOCKS)?
            .load(Ordering::Acquire);
        let leaf = core::ptr::with_exposed_provenance::<AtomicU32>(leaf as usize);
        if leaf.is_null() {
            return None;
        }
        // SAFETY: `map_leaf` published a mapping of LEAF_BLOCKS cells, never unmapped.
        Some(unsafe { &*leaf.add(block % LEAF_BLOCKS) })
    }

    fn map_leaves(&self, first: u64, last: u64) -> Option<()> {
        let leaves = self.leaves.get_or_map()?;
        let range = first / LEAF_BLOCKS as u64..=last / LEAF_BLOCKS as u64;
        for index in range {
            let leaf = leaves.get(usize::try_from(index).ok()?)?;
            if leaf.load(Ordering::Relaxed) == 0 {
                let mapped = mapped::map::<AtomicU32>(LEAF_BLOCKS)?;
                leaf.store(
                    mapped.as_ptr().expose_provenance() as u64,
                    Ordering::Release,
                );
            }
        }
        Some(())
    }

    /// Tracks an allocation of whole blocks. `false`: no room (counted), or not block-wise.
    pub fn insert(&self, allocation: Allocation) -> bool {
        let done = self.try_insert(allocation).is_some();
        if !done {
            self.untracked.fetch_add(1, Ordering::Relaxed);
        }
        done
    }

    fn try_insert(&self, allocation: Allocation) -> Option<()> {
        let Allocation { address, bytes, .. } = allocation;
        let whole = address != 0
            && address.is_multiple_of(BLOCK_BYTES)
            && bytes.is_multiple_of(BLOCK_BYTES);
        if !whole || bytes == 0 {
            return None;
        }
        let first = address / BLOCK_BYTES;
        let last = address.checked_add(bytes - 1)? / BLOCK_BYTES;
        self.map_leaves(first, last)?;
        let entries = self.entries.get_or_map()?;
        let free = self.free.load(Ordering::Relaxed);
        let index = match free {
            0 => self.used.load(Ordering::Relaxed),
            next => next - 1,
        };
        let entry = entries.get(index as usize)?;
        if free == 0 {
            self.used.store(index + 1, Ordering::Relaxed);
        } else {
            self.free.store(
                entry.bytes.load(Ordering::Relaxed) as u32,
                Ordering::Relaxed,
            );
        }
        entry.bytes.store(bytes, Ordering::Relaxed);
        entry
            .requested
            .store(allocation.requested, Ordering::Relaxed);
        entry
            .driver_address
            .store(allocation.driver_address, Ordering::Relaxed);
        entry.flags.store(allocation.flags, Ordering::Relaxed);
        entry.address.store(address, Ordering::Release);
        for block in first..=last {
            if let Some(cell) = self.cell(block) {
                cell.store(index + 1, Ordering::Release);
            }
        }
        self.count(&allocation, true);
        Some(())
    }

    fn count(&self, allocation: &Allocation, add: bool) {
        let change = |counter: &AtomicU64, bytes: u64| {
            let now = counter.load(Ordering::Relaxed);
            let next = if add {
                now.saturating_add(bytes)
            } else {
                now.saturating_sub(bytes)
            };
            counter.store(next, Ordering::Relaxed);
        };
        change(&self.all_bytes, allocation.bytes);
        if !allocation.is(flags::BY_PROGRAM) {
            change(&self.total_bytes, allocation.bytes);
        }
        change(&self.prefetched_bytes, allocation.prefetched_bytes());
    }

    /// Forgets the allocation that begins exactly at `address`.
    pub fn remove(&self, address: u64) -> Option<Allocation> {
        let index = self.index_of(address)?;
        let entry = self.entries.get()?.get(index)?;
        let found = read(entry);
        if found.address != address {
            return None;
        }
        for block in address / BLOCK_BYTES..found.end() / BLOCK_BYTES {
            if let Some(cell) = self.cell(block) {
                cell.store(0, Ordering::Release);
            }
        }
        entry.address.store(0, Ordering::Release);
        entry.bytes.store(
            u64::from(self.free.load(Ordering::Relaxed)),
            Ordering::Relaxed,
        );
        self.free.store(index as u32 + 1, Ordering::Relaxed);
        self.count(&found, false);
        Some(found)
    }

    /// Marks the allocation at `address` as one that the program wanted to export. `true`
    /// the first time.
    pub fn mark_exported(&self, address: u64) -> bool {
        let entry = self
            .index_of(address)
            .and_then(|index| self.entries.get()?.get(index));
        entry.is_some_and(|entry| {
            entry.flags.fetch_or(flags::EXPORTED, Ordering::Relaxed) & flags::EXPORTED == 0
        })
    }

    /// All of them, in no order. Under the writers' lock.
    pub fn iter(&self) -> impl Iterator<Item = Allocation> + '_ {
        let used = self.used.load(Ordering::Relaxed) as usize;
        let entries = self.entries.get().unwrap_or_default();
        entries
            .iter()
            .take(used)
            .map(read)
            .filter(|entry| entry.address != 0)
    }

    /// Forgets all.
    pub fn clear(&self) {
        let used = self.used.load(Ordering::Relaxed) as usize;
        for entry in self.entries.get().unwrap_or_default().iter().take(used) {
            let address = entry.address.load(Ordering::Relaxed);
            if address != 0 {
                self.remove(address);
            }
        }
    }
}

fn read(entry: &Entry) -> Allocation {
    Allocation {
        address: entry.address.load(Ordering::Acquire),
        bytes: entry.bytes.load(Ordering::Relaxed),
        requested: entry.requested.load(Ordering::Relaxed),
        driver_address: entry.driver_address.load(Ordering::Relaxed),
        flags: entry.flags.load(Ordering::Relaxed),
    }
}

#[cfg(test)]
mod tests;
