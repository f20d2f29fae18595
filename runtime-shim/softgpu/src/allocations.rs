//! Whose an allocation is, which host memory is pinned, and what is freed in stream order.
//!
//! Residency is `memory`'s; here is only what the API must know to check its arguments
//! and to clean up behind a context.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::CuResult;
use crate::context::Context;
use crate::driver;
use crate::memory::{Allocation, Place};
use crate::stream::event::Position;

/// What the API knows of a device or managed allocation.
#[derive(Clone, Copy)]
pub struct Owned {
    /// Whose it is.
    pub context: &'static Context,
    /// Number of the allocation in the process.
    pub id: u64,
    /// From `cuMemAllocAsync`.
    pub pooled: bool,
    /// `SYNC_MEMOPS` was set.
    pub synchronous: bool,
}

/// Pinned host memory.
#[derive(Clone, Copy)]
pub struct Pinned {
    /// First byte.
    pub base: u64,
    /// Length.
    pub bytes: u64,
    /// Of the call that pinned it.
    pub flags: u32,
    /// Allocated here (and freed here), or the program's own.
    pub allocated: bool,
    /// Whose it is.
    pub context: &'static Context,
    /// Number of the allocation in the process.
    pub id: u64,
}

#[derive(Default)]
struct Known {
    owned: BTreeMap<u64, Owned>,
    pinned: BTreeMap<u64, Pinned>,
    /// Frees that streams have yet to do.
    pending: Vec<Position>,
    ids: u64,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

fn with<R>(work: impl FnOnce(&mut Known) -> R) -> R {
    let mut guard: MutexGuard<'_, _> = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    work(guard.get_or_insert_default())
}

/// Notes a new allocation.
pub fn note(base: u64, context: &'static Context, pooled: bool) {
    with(|known| {
        known.ids += 1;
        let id = known.ids;
        known.owned.insert(
            base,
            Owned {
                context,
                id,
                pooled,
                synchronous: false,
            },
        );
    });
}

/// Forgets an allocation; true if it was known.
pub fn forget(base: u64) -> bool {
    with(|known| known.owned.remove(&base).is_some())
}

/// What is known of the allocation that begins at `base`.
pub fn owner(base: u64) -> Option<Owned> {
    with(|known| known.owned.get(&base).copied())
}

/// Sets `SYNC_MEMOPS` of the allocation that begins at `base`.
pub fn set_synchronous(base: u64, synchronous: bool) {
    with(|known| {
        if let Some(owned) = known.owned.get_mut(&base) {
            owned.synchronous = synchronous;
        }
    });
}

/// Pins a range.
///
/// # Errors
/// `HOST_MEMORY_ALREADY_REGISTERED`, when it overlaps a pinned one.
pub fn pin(
    base: u64,
    bytes: u64,
    flags: u32,
    allocated: bool,
    context: &'static Context,
) -> Result<(), CuResult> {
    let end = base.checked_add(bytes).ok_or(CuResult::INVALID_VALUE)?;
    with(|known| {
        let before = known.pinned.range(..end).next_back();
        if before.is_some_and(|(_, p)| p.base + p.bytes > base) {
            return Err(CuResult::HOST_MEMORY_ALREADY_REGISTERED);
        }
        known.ids += 1;
        let id = known.ids;
        known.pinned.insert(
            base,
            Pinned {
                base,
                bytes,
                flags,
                allocated,
                context,
                id,
            },
        );
        Ok(())
    })
}

/// Unpins the range that begins at `base`, of one or the other origin.
pub fn unpin(base: u64, allocated: bool) -> Option<Pinned> {
    with(|known| {
        known
            .pinned
            .get(&base)
            .filter(|p| p.allocated == allocated)?;
        known.pinned.remove(&base)
    })
}

/// The pinned range that holds an address.
pub fn pinned(address: u64) -> Option<Pinned> {
    with(|known| {
        let (_, range) = known.pinned.range(..=address).next_back()?;
        (address - range.base < range.bytes).then_some(*range)
    })
}

/// Whether all of a range is pinned.
pub fn is_pinned(address: u64, bytes: u64) -> bool {
    pinned(address).is_some_and(|p| bytes <= p.base + p.bytes - address)
}

/// Notes a free that a stream will do.
pub fn note_pending(position: Position) {
    with(|known| {
        known.pending.retain(|p| !p.reached());
        known.pending.push(position);
    });
}

/// Waits for all frees that streams have yet to do; false if there were none.
pub fn wait_for_pending() -> bool {
    let pending = with(|known| std::mem::take(&mut known.pending));
    let any = pending.iter().any(|p| !p.reached());
    for position in pending {
        position.stream.wait_for(position.sequence);
    }
    any
}

/// The allocation that holds a whole range of device or managed memory.
///
/// # Errors
/// `INVALID_VALUE`, when there is none.
pub fn covering(address: u64, bytes: u64) -> Result<Allocation, CuResult> {
    let allocation = driver::device()?
        .lookup(address)
        .ok_or(CuResult::INVALID_VALUE)?;
    let inside = address
        .checked_sub(allocation.base)
        .and_then(|at| at.checked_add(bytes));
    match inside {
        Some(end) if end <= allocation.bytes => Ok(allocation),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

/// Where a word or a copy at an address is: on the device's side or in host memory.
///
/// # Errors
/// `INVALID_VALUE` for null, or for a range that begins in an allocation and leaves it.
pub fn place(address: u64, bytes: u64) -> Result<Place, CuResult> {
    if address == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    match driver::device()?.lookup(address) {
        Some(_) => covering(address, bytes).map(|_| Place::Device(address)),
        None => Ok(Place::Host(address)),
    }
}

/// Ends a context and frees what is its.
pub fn end_context(context: &'static Context) {
    if !context.destroy() {
        return;
    }
    let (owned, pinned) = with(|known| {
        let owned: Vec<u64> = known
            .owned
            .iter()
            .filter(|(_, o)| std::ptr::eq(o.context, context))
            .map(|(base, _)| *base)
            .collect();
        let pinned: Vec<Pinned> = known
            .pinned
            .values()
            .filter(|p| std::ptr::eq(p.context, context))
            .copied()
            .collect();
        for base in &owned {
            known.owned.remove(base);
        }
        for range in &pinned {
            known.pinned.remove(&range.base);
        }
        (owned, pinned)
    });
    if let Ok(device) = driver::device() {
        for base in owned {
            // It was allocated and not freed: its absence would be harmless.
            let _ = device.free(base);
        }
    }
    for range in pinned.iter().filter(|p| p.allocated) {
        // SAFETY: mapped by the call that noted it, and forgotten above.
        unsafe { libc::munmap(range.base as *mut libc::c_void, range.bytes as usize) };
    }
}
