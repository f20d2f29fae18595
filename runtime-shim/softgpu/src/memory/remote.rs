//! Access of kernels and copy engines to content that stays on the host.
//!
//! Where advice says so, a fault of the device does not migrate: its page tables are made
//! to name the host's page, and each access goes over the link
//! (`block_select_processor_residency`, uvm_va_block.c:11612 in 580, whose rules
//! [`stays_on_host`] gives). Such a mapping lasts until the content moves; no access
//! through it faults again.
//!
//! Here a page can be in one view only. So a mapping is a mark of its own (`remote`), and a
//! granule's host page is lent to V, frame and all, when a kernel touches it, and taken
//! back when that kernel ends: each kernel pays for what it touches, once. That an access
//! through a mapping first ends in our SIGBUS is no fault of the device's: it is not
//! counted, not told to probes, and costs no service. A touch by the CPU takes the granule
//! back at once, without a migration; the kernel then pays again.

use super::block::BlockState;
use super::density::{GRANULE_BYTES, Mask, reach, runs};
use super::link::{now_ns, sleep_until_ns};
use super::migrate::extent;
use super::{Location, Memory, lock};

/// What the running kernel has been lent.
#[derive(Debug, Default)]
pub struct Lent {
    blocks: Vec<u32>,
    /// When what it wrote there is over the link.
    written_ns: f64,
}

/// The granules of an access by the device that are served where they are, or populated on
/// the host:
///
/// - those that its page tables name on the host already;
/// - on the host, and advised as accessed by the device (uvm_va_block.c:11700);
/// - not on the device, and the host is preferred, as the device can access all of it:
///   first touch included (:11683, :11723).
pub fn stays_on_host(state: &BlockState, touched: Mask) -> Mask {
    let by_advice = match state.preferred {
        Some(Location::Host) => Mask::MAX,
        _ if state.accessed_by_device => state.host,
        _ => 0,
    };
    touched & state.valid & !state.device & (state.remote | by_advice)
}

/// What is mapped remotely for faults on granules of the host: on first touch of a block
/// that prefers the host all of it (uvm_perf_prefetch.c:361 in 580), else what the density
/// prefetcher reaches without what the CPU has mapped (the same function). What lies on
/// the device is left there, which the driver would fetch back.
pub fn remote_hint(state: &BlockState, faulted: Mask) -> Mask {
    if state.device | state.host == 0 && state.preferred == Some(Location::Host) {
        return state.valid;
    }
    let reached = reach(state.valid, state.host, faulted);
    faulted | (reached & !state.device & !state.mapped & (state.host | by_preference(state)))
}

fn by_preference(state: &BlockState) -> Mask {
    match state.preferred {
        Some(Location::Host) => Mask::MAX,
        _ => 0,
    }
}

impl Memory {
    /// Makes the device's page tables name granules of the host, which must not be on the
    /// device. What is nowhere is populated there, with zeros unless it is `overwritten`.
    pub fn map_remote(&self, block: u32, state: &mut BlockState, want: Mask, overwritten: Mask) {
        let want = want & state.valid & !state.device;
        let base = self.block_address(block);
        self.populate_host(base, state, want & !state.host, overwritten);
        state.remote |= want;
    }

    /// Lends granules that are mapped remotely to V.
    pub fn lend(&self, block: u32, state: &mut BlockState, mask: Mask) {
        let mask = mask & state.remote & !state.lent;
        if mask == 0 {
            return;
        }
        let base = self.block_address(block);
        let host = self.areas.to_host(base);
        for (part, from) in [(mask & state.mapped, base), (mask & !state.mapped, host)] {
            for (first, count) in runs(part) {
                let (offset, bytes) = extent(first, count);
                self.areas.lend(base + offset, from + offset, bytes);
            }
        }
        state.lent |= mask;
        state.host_dirty |= mask;
    }

    /// Takes lent granules back to where they were.
    pub fn take_back(&self, block: u32, state: &mut BlockState, mask: Mask) {
        let mask = mask & state.lent;
        if mask == 0 {
            return;
        }
        let base = self.block_address(block);
        let host = self.areas.to_host(base);
        for (part, to) in [(mask & state.mapped, base), (mask & !state.mapped, host)] {
            for (first, count) in runs(part) {
                let (offset, bytes) = extent(first, count);
                self.areas.take_back(base + offset, to + offset, bytes);
            }
        }
        state.lent &= !mask;
    }

    /// Serves the part of a kernel's faults that stays on the host; answers the bytes that
    /// go over the link for it.
    pub fn serve_remote(&self, block: u32, state: &mut BlockState, faulted: Mask) -> u64 {
        let new = faulted & !state.remote;
        if new != 0 {
            let want = remote_hint(state, new);
            self.map_remote(block, state, want, 0);
        }
        let lent = faulted & !state.lent;
        self.lend(block, state, lent);
        if lent != 0 {
            let mut all = lock(&self.lent);
            if all.blocks.last() != Some(&block) {
                all.blocks.push(block);
            }
        }
        u64::from(lent.count_ones()) * GRANULE_BYTES
    }

    /// Counts bytes that a kernel accessed over the link, and puts them into the line to
    /// the host: which of them it wrote is not known, so all of them are taken to be.
    pub fn note_remote(&self, bytes: u64, began_ns: f64) {
        if bytes == 0 {
            return;
        }
        self.counters.remote_bytes.add(bytes);
        let mut back = self.link_out.begin_at(began_ns);
        back.post(bytes);
        let mut all = lock(&self.lent);
        all.written_ns = all.written_ns.max(back.end_ns());
    }

    /// A kernel is over: what it wrote is on the host, and what it was lent goes back.
    pub fn end_remote(&self) {
        let lent = std::mem::take(&mut *lock(&self.lent));
        if lent.blocks.is_empty() {
            return;
        }
        let began = now_ns();
        for block in lent.blocks {
            let mut state = self.blocks.lock(block);
            self.take_back(block, &mut state, Mask::MAX);
        }
        sleep_until_ns(lent.written_ns);
        let waited = (now_ns() - began).max(0.0) as u64;
        self.counters.stall_ns.add(waited);
    }
}
