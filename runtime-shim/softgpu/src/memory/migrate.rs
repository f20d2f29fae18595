//! Moving the content of blocks: in, out, populated, evicted.
//!
//! Every function here works on one locked block. Frames are acquired before the block is
//! locked, as the driver drops the block's lock to evict (`block_alloc_gpu_chunk`,
//! uvm_va_block.c:1957 in 570), so no thread ever waits for one block while it holds
//! another. A transfer sleeps with only its own block locked.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::block::{BlockGuard, BlockState};
use super::density::{GRANULE_BYTES, Mask, runs};
use super::link::Transfer;
use super::pool::{ChunkId, Free, List};
use super::{BLOCK_BYTES, Memory, lock};
use crate::probes;

/// Discarded content is replaced by this, so that a wrong discard shows in results.
const SCRAMBLE: u8 = 0xDB;

/// Why content comes to the device.
#[derive(Clone, Copy, Debug)]
pub enum In {
    /// A kernel faulted on these granules; the rest is the density prefetcher's.
    Fault(Mask),
    /// A prefetch call.
    Call,
    /// A copy or memset, which wholly overwrites these granules.
    Write(Mask),
}

/// Why content goes to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Out {
    /// Its chunk is needed.
    Eviction,
    /// A prefetch call.
    Call,
    /// The CPU faulted.
    HostFault,
}

/// What to do when no frame can be had at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Wait: others are about to let one go.
    Wait,
    /// Do without: the frames are pinned by the asker's own batch.
    GiveUp,
}

impl Memory {
    /// Takes a frame out of the pool, evicting a block when none is free. The eviction
    /// comes before whatever `transfer` does next.
    pub fn acquire_chunk(
        &self,
        patience: Patience,
        transfer: &mut Transfer<'_>,
    ) -> Option<ChunkId> {
        loop {
            let mut pool = lock(&self.pool);
            match pool.take_free() {
                Some(Free::Existing(chunk)) => return Some(chunk),
                Some(Free::New(chunk)) => {
                    drop(pool);
                    self.areas.create_frame(chunk);
                    return Some(chunk);
                }
                None => {}
            }
            // A block that is locked is being migrated right now: not a victim.
            let victim = pool.victims().find_map(|(chunk, block, list)| {
                Some((chunk, block, list, self.blocks.try_lock(block)?))
            });
            if let Some((chunk, block, list, guard)) = victim {
                pool.unlink(chunk);
                drop(pool);
                self.evict(block, guard, list, transfer);
                return Some(chunk);
            }
            if patience == Patience::GiveUp {
                return None;
            }
            // All of them are being migrated or pinned by a batch, which does not last.
            drop(pool);
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Gives a frame back to the pool.
    pub fn release_chunk(&self, chunk: ChunkId) {
        lock(&self.pool).release(chunk);
    }

    /// Takes the chunk of a block away (`uvm_va_block_evict_chunks`, uvm_va_block.c:12825
    /// in 570): what is resident is copied to the host, dirty or not.
    fn evict(&self, block: u32, mut state: BlockGuard<'_>, list: List, before: &mut Transfer<'_>) {
        let resident = state.device;
        if resident != 0 {
            let mut transfer = self.link_out.begin_at(before.end_ns());
            self.bring_out(block, &mut state, resident, Out::Eviction, &mut transfer);
            before.not_before(transfer.end_ns());
        }
        state.chunk = None;
        match list {
            List::Unused => self.counters.evictions_unused.add(1),
            List::Discarded => self.counters.evictions_discarded.add(1),
            List::Used => self.counters.evictions_used.add(1),
        }
        probes::oversub_softgpu_eviction(self.block_address(block), BLOCK_BYTES, list as u64);
    }

    /// Locks a block that has a device frame. `None`: the block has no allocation, or no
    /// frame is to be had.
    pub fn lock_with_chunk(
        &self,
        block: u32,
        patience: Patience,
        transfer: &mut Transfer<'_>,
    ) -> Option<BlockGuard<'_>> {
        let mut spare = None;
        loop {
            let mut state = self.blocks.lock(block);
            if state.valid == 0 {
                drop(state);
                spare.inspect(|chunk| self.release_chunk(*chunk));
                return None;
            }
            if state.chunk.is_none() {
                let Some(chunk) = spare.take() else {
                    drop(state);
                    spare = Some(self.acquire_chunk(patience, transfer)?);
                    continue;
                };
                lock(&self.pool).assign(chunk, block);
                state.chunk = Some(chunk);
            }
            spare.inspect(|chunk| self.release_chunk(*chunk));
            return Some(state);
        }
    }

    /// Puts a block's chunk at the tail of the list where it now belongs.
    pub fn settle(&self, state: &BlockState, pin: bool) {
        let Some(chunk) = state.chunk else { return };
        let list = match (state.device, state.discarded) {
            (0, 0) => List::Unused,
            (0, _) => List::Discarded,
            _ => List::Used,
        };
        let mut pool = lock(&self.pool);
        pool.settle(chunk, list);
        if pin {
            pool.pin(chunk);
        }
    }

    /// Makes granules resident on the device (`uvm_va_block_make_resident_copy`,
    /// uvm_va_block.c:4784 in 570). The block must have a chunk; the caller settles it.
    ///
    /// Content on the host is copied, unless it is wholly overwritten; what is nowhere is
    /// populated with zeros and no transfer.
    pub fn bring_in(
        &self,
        block: u32,
        state: &mut BlockState,
        want: Mask,
        cause: In,
        transfer: &mut Transfer<'_>,
    ) {
        let Some(chunk) = state.chunk else { return };
        let need = want & state.valid & !state.device;
        if need == 0 {
            return;
        }
        let overwritten = if let In::Write(mask) = cause { mask } else { 0 };
        let moved = need & state.host & !overwritten;
        let fresh = need & !moved;
        let base = self.block_address(block);
        let frame = self.areas.frame(chunk);

        self.take_back(block, state, need);
        for (first, count) in runs(need & state.mapped) {
            let (offset, bytes) = extent(first, count);
            self.areas.unmap_cpu(base + offset, bytes);
        }
        state.mapped &= !need;
        state.remote &= !need;
        state.host &= !need;

        let blank = fresh & !overwritten;
        let scrambled = blank & state.discarded;
        let zeroed = blank & !scrambled & self.blocks.dirty(chunk);
        for (mask, byte) in [(scrambled, SCRAMBLE), (zeroed, 0)] {
            for (first, count) in runs(mask) {
                let (offset, bytes) = extent(first, count);
                // SAFETY: pages of the frame that no view maps, since `device` lacks them.
                unsafe { std::ptr::write_bytes((frame + offset) as *mut u8, byte, bytes as usize) };
            }
        }
        self.blocks.mark_dirty(chunk, need);
        for (first, count) in runs(moved) {
            let (offset, bytes) = extent(first, count);
            // SAFETY: both frames' pages are mapped by no view and kept so by the lock.
            unsafe { transfer.copy(frame + offset, self.areas.to_host(base + offset), bytes) };
        }
        if moved != 0 {
            transfer.wait();
        }
        for (first, count) in runs(need) {
            let (offset, bytes) = extent(first, count);
            self.areas.map_view(base + offset, frame + offset, bytes);
        }
        state.device |= need;
        state.discarded &= !need;
        let resident = self.blocks.add_resident(need);
        self.counters.managed_peak_resident_bytes.raise(resident);
        self.count_in(base, moved, cause);
        for (first, count) in runs(fresh) {
            let (offset, bytes) = extent(first, count);
            self.counters.populated_bytes.add(bytes);
            self.populated(base + offset, bytes);
        }
    }

    fn count_in(&self, base: u64, moved: Mask, cause: In) {
        let counters = &self.counters;
        let parts = match cause {
            // The faulted pages and the prefetcher's are reported apart: one event for each
            // contiguous run of equal cause (uvm_va_block.c:3975 in 570).
            In::Fault(faulted) => [
                (
                    moved & faulted,
                    &counters.bytes_in_fault,
                    probes::CAUSE_FAULT,
                ),
                (
                    moved & !faulted,
                    &counters.bytes_in_density,
                    probes::CAUSE_DENSITY,
                ),
            ],
            In::Call => [
                (moved, &counters.bytes_in_call, probes::CAUSE_CALL),
                (0, &counters.bytes_in_call, probes::CAUSE_CALL),
            ],
            In::Write(_) => [
                (moved, &counters.bytes_in_copy, probes::CAUSE_FAULT),
                (0, &counters.bytes_in_copy, probes::CAUSE_FAULT),
            ],
        };
        for (mask, counter, number) in parts {
            for (first, count) in runs(mask) {
                let (offset, bytes) = extent(first, count);
                counter.add(bytes);
                self.migrated(base + offset, bytes, 0, number);
            }
        }
    }

    /// Copies granules from the device to the host frame, where they stay unmapped. The
    /// caller settles the chunk, or takes it.
    pub fn bring_out(
        &self,
        block: u32,
        state: &mut BlockState,
        want: Mask,
        cause: Out,
        transfer: &mut Transfer<'_>,
    ) {
        let moved = want & state.device;
        let Some(chunk) = state.chunk.filter(|_| moved != 0) else {
            return;
        };
        let base = self.block_address(block);
        let frame = self.areas.frame(chunk);
        self.ensure_host(base, state);
        for (first, count) in runs(moved) {
            let (offset, bytes) = extent(first, count);
            self.areas.unmap_view(base + offset, frame + offset, bytes);
        }
        for (first, count) in runs(moved) {
            let (offset, bytes) = extent(first, count);
            // SAFETY: the frame's pages were just unmapped, the host frame's are in H
            // since `host` lacks them; the lock keeps both so.
            unsafe { transfer.copy(self.areas.to_host(base + offset), frame + offset, bytes) };
        }
        transfer.wait();
        state.device &= !moved;
        state.host |= moved;
        state.host_dirty |= moved;
        if state.accessed_by_device {
            // Mapped again where it is now (`uvm_va_block_add_mappings_after_migration`,
            // uvm_va_block.c:11211 in 580; by a work item after an eviction, :13227).
            state.remote |= moved;
        }
        self.blocks.sub_resident(moved);
        let (counter, number) = match cause {
            Out::Eviction => (&self.counters.bytes_out_eviction, probes::CAUSE_EVICTION),
            Out::Call => (&self.counters.bytes_out_call, probes::CAUSE_CALL),
            Out::HostFault => (&self.counters.bytes_out_host_fault, probes::CAUSE_FAULT),
        };
        for (first, count) in runs(moved) {
            let (offset, bytes) = extent(first, count);
            counter.add(bytes);
            self.migrated(base + offset, bytes, 1, number);
        }
    }

    /// Makes granules visible to the CPU: moved out of the device, or populated.
    pub fn bring_to_cpu(
        &self,
        block: u32,
        state: &mut BlockState,
        want: Mask,
        cause: Out,
        transfer: &mut Transfer<'_>,
    ) {
        let need = want & state.valid & !state.mapped;
        if need == 0 {
            return;
        }
        let base = self.block_address(block);
        self.bring_out(block, state, need, cause, transfer);
        self.populate_host(base, state, need & !state.host, 0);
        self.take_back(block, state, need);
        for (first, count) in runs(need) {
            let (offset, bytes) = extent(first, count);
            self.areas.map_cpu(base + offset, bytes);
        }
        state.mapped |= need;
        state.host_dirty |= need;
        if state.accessed_by_device {
            state.remote |= need;
        }
    }

    /// Gives granules that are nowhere their place in the host frame: zeros, unless they
    /// are wholly `overwritten` next.
    pub fn populate_host(&self, base: u64, state: &mut BlockState, blank: Mask, overwritten: Mask) {
        self.ensure_host(base, state);
        let scrambled = blank & state.discarded & !overwritten;
        let zeroed = blank & !scrambled & !overwritten & state.host_dirty;
        for (mask, byte) in [(scrambled, SCRAMBLE), (zeroed, 0)] {
            for (first, count) in runs(mask) {
                let (offset, bytes) = extent(first, count);
                let at = self.areas.to_host(base + offset) as *mut u8;
                // SAFETY: pages of the host frame that are in H, as they are not mapped.
                unsafe { std::ptr::write_bytes(at, byte, bytes as usize) };
            }
        }
        state.host |= blank;
        state.host_dirty |= blank;
        state.discarded &= !blank;
    }

    fn ensure_host(&self, base: u64, state: &mut BlockState) {
        if !state.host_frame {
            self.areas.create_host(base);
            (state.host_frame, state.host_dirty) = (true, 0);
        }
    }

    /// Gives up the content of granules: both views lose them, nothing is copied.
    pub fn drop_content(&self, block: u32, state: &mut BlockState, mask: Mask) {
        let mask = mask & state.valid;
        let base = self.block_address(block);
        self.take_back(block, state, mask);
        for (first, count) in runs(mask & state.mapped) {
            let (offset, bytes) = extent(first, count);
            self.areas.unmap_cpu(base + offset, bytes);
        }
        if let Some(chunk) = state.chunk {
            for (first, count) in runs(mask & state.device) {
                let (offset, bytes) = extent(first, count);
                self.areas
                    .unmap_view(base + offset, self.areas.frame(chunk) + offset, bytes);
            }
        }
        self.blocks.sub_resident(mask & state.device);
        // Only what had content can be discarded: the rest stays never touched.
        state.discarded |= mask & (state.device | state.host);
        state.mapped &= !mask;
        state.remote &= !mask;
        state.host &= !mask;
        state.device &= !mask;
    }

    fn migrated(&self, address: u64, bytes: u64, direction: u64, cause: u64) {
        probes::oversub_softgpu_migration(address, bytes, direction, cause);
    }

    fn populated(&self, address: u64, bytes: u64) {
        probes::oversub_softgpu_populate(address, bytes);
    }

    /// The next number of a batch of faults.
    pub fn next_batch(&self) -> u64 {
        self.batch_id.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Offset and length of a run of granules, bytes.
pub fn extent(first: u32, count: u32) -> (u64, u64) {
    (
        u64::from(first) * GRANULE_BYTES,
        u64::from(count) * GRANULE_BYTES,
    )
}
