//! Service of a batch of kernel faults.
//!
//! As `service_fault_batch` (uvm_gpu_replayable_faults.c:2232 in 570): at most 256
//! entries, sorted by address, duplicates merged, block by block, each block grown by the
//! density prefetcher; kernels go on when the whole batch is done (replay policy
//! BATCH_FLUSH). Serial: one batch at a time, eviction before fetch.

use super::density::{GRANULE_BYTES, Mask, grow};
use super::link::{now_ns, sleep_until_ns};
use super::migrate::{In, Patience};
use super::remote::stays_on_host;
use super::{BLOCK_BYTES, Location, Memory, lock};
use crate::probes;

/// `uvm_perf_fault_batch_count` (uvm_gpu_replayable_faults.c:72).
pub const BATCH_LIMIT: usize = 256;

/// Most lateness that is carried from one batch to the next: about a block's transfer.
const MOST_DEBT_NS: f64 = 2_000_000.0;

/// One faulting access of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuFault {
    /// Program address of the page.
    pub address: u64,
    /// Who waits: thread and fibre, for the caller to find it again.
    pub waiter: (u32, u32),
}

/// What became of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The page is, or was, on the device: try again.
    Yes,
    /// All frames are pinned by this batch: it belongs into the next one.
    Later,
    /// No live managed allocation is there.
    Illegal,
}

impl Memory {
    /// Serves a batch; tells `outcome` what became of each fault.
    pub fn serve_batch(&self, faults: &mut [GpuFault], mut outcome: impl FnMut(GpuFault, Served)) {
        const PAGE: u64 = 4096;
        let began = now_ns();
        let mut number = None;
        faults.sort_unstable_by_key(|fault| fault.address);
        let (mut pages, mut pins, mut remote) = (0, 0, 0);
        // What the last batch took longer than its transfers and its fixed cost, because this
        // machine wakes threads late, is taken off this one: the mean is the model's.
        let mut debt = lock(&self.batch_debt_ns);
        let mut transfer = self.link_in.begin_at(began - *debt);
        for group in faults.chunk_by(|a, b| a.address / BLOCK_BYTES == b.address / BLOCK_BYTES) {
            let Some(block) = self.block_of(group[0].address) else {
                group
                    .iter()
                    .for_each(|fault| outcome(*fault, Served::Illegal));
                continue;
            };
            let patience = if pins == 0 {
                Patience::Wait
            } else {
                Patience::GiveUp
            };
            let base = self.block_address(block);
            let granule = |address: u64| 1 << ((address - base) / GRANULE_BYTES);
            let faulted = group
                .iter()
                .fold(0, |mask, fault| mask | granule(fault.address));
            let mut state = self.blocks.lock(block);
            // What is mapped already, although we see the access, is no fault.
            let faulting = || {
                let mapped = state.remote;
                group
                    .iter()
                    .filter(move |fault| granule(fault.address) & mapped == 0)
            };
            let mut merged = 0;
            if let Some(first) = faulting().next() {
                let number = *number.get_or_insert_with(|| self.next_batch());
                let page = |fault: &GpuFault| fault.address / PAGE;
                let mut last = None;
                merged = faulting()
                    .filter(|fault| last.replace(page(fault)) != Some(page(fault)))
                    .count() as u64;
                probes::oversub_softgpu_fault(first.address & !(PAGE - 1), merged, 0, number);
            }
            if state.valid != 0 && stays_on_host(&state, faulted) == faulted & state.valid {
                let away = faulted & state.valid;
                remote += self.serve_remote(block, &mut state, away);
                pages += merged;
                for fault in group {
                    let valid = state.valid & granule(fault.address) != 0;
                    outcome(*fault, if valid { Served::Yes } else { Served::Illegal });
                }
                continue;
            }
            drop(state);
            let Some(mut state) = self.lock_with_chunk(block, patience, &mut transfer) else {
                let dead = self.blocks.lock(block).valid == 0;
                let fate = if dead { Served::Illegal } else { Served::Later };
                group.iter().for_each(|fault| outcome(*fault, fate));
                continue;
            };
            pages += merged;
            let away = stays_on_host(&state, faulted);
            let want = device_hint(&state, faulted, away);
            remote += self.serve_remote(block, &mut state, away);
            self.bring_in(block, &mut state, want, In::Fault(faulted), &mut transfer);
            self.settle(&state, true);
            pins += 1;
            for fault in group {
                let valid = state.valid & granule(fault.address) != 0;
                outcome(*fault, if valid { Served::Yes } else { Served::Illegal });
            }
        }
        lock(&self.pool).unpin_all();
        self.note_remote(remote, began);
        transfer.pass(remote);
        let service = number.map_or(0.0, |_| self.config.fault.as_nanos() as f64);
        let due = transfer.end_ns() + service;
        sleep_until_ns(due);
        let over = now_ns();
        *debt = (over - due).clamp(0.0, MOST_DEBT_NS);
        drop(debt);
        if let Some(number) = number {
            self.counters.faults.add(pages);
            self.counters.batches.add(1);
            probes::oversub_softgpu_batch(number, pages, (over - began) as u64);
        }
    }
}

/// What a kernel's fault brings in (`uvm_perf_prefetch_get_hint_va_block`,
/// uvm_perf_prefetch.c:447 in 570): on first touch of a block that prefers the device the
/// whole of it; nothing where the host is preferred; only what faulted where a part stays
/// `away`, as the prefetcher looks at faults with one destination alone
/// (uvm_va_block.c:11889 in 580); else by density.
fn device_hint(state: &super::block::BlockState, faulted: Mask, away: Mask) -> Mask {
    match state.preferred {
        Some(Location::Device) if state.device | state.host == 0 => state.valid,
        Some(Location::Host) => 0,
        _ if away != 0 => faulted & !away,
        _ => grow(state.valid, state.device, faulted),
    }
}
