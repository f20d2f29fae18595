//! Calls on ranges of managed memory: prefetch, discard, advice, and their attributes.

use std::ops::Range;

use super::density::{GRANULE_BYTES, Mask, runs, span};
use super::migrate::{In, Out, Patience};
use super::{
    Advice, Allocation, BLOCK_BYTES, Kind, Location, Memory, MemoryError, RangeState, lock,
};

/// The part of a range that lies in one block.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The block.
    pub block: u32,
    /// First byte, a program address.
    pub address: u64,
    /// Length, bytes.
    pub bytes: u64,
    /// Granules that it touches.
    pub touched: Mask,
    /// Granules that it covers wholly, as far as the allocation goes.
    pub whole: Mask,
}

impl Part {
    /// Bytes of the part that lie in granules of `mask`.
    pub fn bytes_of(&self, mask: Mask) -> u64 {
        let base = self.address & !(BLOCK_BYTES - 1);
        let end = self.address + self.bytes;
        runs(mask)
            .map(|(first, count)| {
                let from = base + u64::from(first) * GRANULE_BYTES;
                let to = from + u64::from(count) * GRANULE_BYTES;
                to.min(end).saturating_sub(from.max(self.address))
            })
            .sum()
    }
}

impl Memory {
    /// Cuts a range of one managed allocation into its blocks' parts.
    pub fn parts(
        &self,
        range: Range<u64>,
        allocation: Allocation,
    ) -> impl Iterator<Item = Part> + '_ {
        let end_of_content = allocation.base + allocation.bytes;
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let block = self.block_of(at)?;
            let base = self.block_address(block);
            let end = range.end.min(base + BLOCK_BYTES);
            let first = (at - base) / GRANULE_BYTES;
            let after = (end - base).div_ceil(GRANULE_BYTES);
            let whole_first = (at - base).div_ceil(GRANULE_BYTES);
            let whole_after = if end == end_of_content {
                after
            } else {
                (end - base) / GRANULE_BYTES
            };
            let mask = |from: u64, to: u64| {
                if from < to {
                    span(from as u32, (to - from) as u32)
                } else {
                    0
                }
            };
            let part = Part {
                block,
                address: at,
                bytes: end - at,
                touched: mask(first, after),
                whole: mask(whole_first, whole_after),
            };
            at = end;
            Some(part)
        })
    }

    fn managed_parts(
        &self,
        address: u64,
        bytes: u64,
    ) -> Result<impl Iterator<Item = Part> + '_, MemoryError> {
        let allocation = self.require(address, bytes, Some(Kind::Managed))?;
        Ok(self.parts(address..address + bytes, allocation))
    }

    /// See [`super::Device::prefetch`]. Also populates what was never touched
    /// (`uvm_va_block_migrate_locked`, uvm_migrate.c:196 in 570).
    pub fn prefetch(&self, address: u64, bytes: u64, to: Location) -> Result<(), MemoryError> {
        let parts = self.managed_parts(address, bytes)?;
        match to {
            Location::Device => {
                let mut transfer = self.link_in.begin_queued();
                for part in parts {
                    // None: freed meanwhile, which the program did.
                    let Some(mut state) =
                        self.lock_with_chunk(part.block, Patience::Wait, &mut transfer)
                    else {
                        continue;
                    };
                    self.bring_in(
                        part.block,
                        &mut state,
                        part.touched,
                        In::Call,
                        &mut transfer,
                    );
                    state.last_prefetch = Some(to);
                    self.settle(&state, false);
                }
            }
            Location::Host => {
                let mut transfer = self.link_out.begin_queued();
                for part in parts {
                    let mut state = self.blocks.lock(part.block);
                    let (block, want) = (part.block, part.touched);
                    self.bring_to_cpu(block, &mut state, want, Out::Call, &mut transfer);
                    state.last_prefetch = Some(to);
                    self.settle_if_left(&state);
                }
            }
        }
        Ok(())
    }

    /// See [`super::Device::needs_transfer`].
    pub fn needs_transfer(&self, address: u64, bytes: u64, to: Location) -> bool {
        let Ok(mut parts) = self.managed_parts(address, bytes) else {
            return false;
        };
        parts.any(|part| match (self.blocks.try_lock(part.block), to) {
            // It is being migrated: what is left to do shows when that is over.
            (None, _) => true,
            (Some(state), Location::Device) => part.touched & state.valid & !state.device != 0,
            (Some(state), Location::Host) => part.touched & state.device != 0,
        })
    }

    /// See [`super::Device::needs_link`].
    pub fn needs_link(&self, address: u64, bytes: u64, to: Location) -> bool {
        let Ok(parts) = self.managed_parts(address, bytes) else {
            return false;
        };
        let mut frames = 0;
        for part in parts {
            // It is being migrated: what is left to do shows when that is over.
            let Some(state) = self.blocks.try_lock(part.block) else {
                return true;
            };
            let moves = match to {
                Location::Device => part.touched & state.host,
                Location::Host => part.touched & state.device,
            };
            if moves != 0 {
                return true;
            }
            frames += u32::from(to == Location::Device && state.chunk.is_none());
        }
        // Without a free frame a victim's content goes over the link.
        frames > 0 && frames > lock(&self.pool).free_frames()
    }

    /// See [`super::Device::discard`]. As UVM_DISCARD with UNMAP (580): both views lose
    /// the pages, so the next access or prefetch populates them again.
    pub fn discard(&self, address: u64, bytes: u64) -> Result<(), MemoryError> {
        for part in self.managed_parts(address, bytes)? {
            let mut state = self.blocks.lock(part.block);
            self.drop_content(part.block, &mut state, part.whole);
            self.settle_if_left(&state);
        }
        Ok(())
    }

    /// See [`super::Device::advise`].
    pub fn advise(&self, address: u64, bytes: u64, advice: Advice) -> Result<(), MemoryError> {
        if advice == Advice::ReadMostly(true) {
            return Err(MemoryError::NotSupported("read-mostly advice"));
        }
        for part in self.managed_parts(address, bytes)? {
            let mut state = self.blocks.lock(part.block);
            match advice {
                Advice::Preferred(location) => {
                    state.preferred = location;
                    if location == Some(Location::Device) {
                        // Its own remote mappings go, so that faults bring the pages
                        // (uvm_policy.c:175 in 580).
                        self.take_back(part.block, &mut state, Mask::MAX);
                        state.remote = 0;
                    }
                }
                Advice::AccessedByDevice(on) => {
                    state.accessed_by_device = on;
                    if on {
                        // At once, wherever it is (uvm_va_block.c:11478 in 580). What was
                        // mapped stays so when the advice is taken back.
                        state.remote |= state.host;
                    }
                }
                Advice::ReadMostly(_) => {}
            }
        }
        Ok(())
    }

    /// See [`super::Device::range_state`].
    pub fn range_state(&self, address: u64, bytes: u64) -> Result<RangeState, MemoryError> {
        let mut all: Option<RangeState> = None;
        for part in self.managed_parts(address, bytes)? {
            let state = self.blocks.lock(part.block);
            let this = RangeState {
                preferred: Some(state.preferred),
                last_prefetch: Some(state.last_prefetch),
                accessed_by_device: state.accessed_by_device,
            };
            all = Some(match all {
                None => this,
                Some(before) => RangeState {
                    preferred: before.preferred.filter(|p| Some(*p) == this.preferred),
                    last_prefetch: before
                        .last_prefetch
                        .filter(|p| Some(*p) == this.last_prefetch),
                    accessed_by_device: before.accessed_by_device && this.accessed_by_device,
                },
            });
        }
        all.ok_or(MemoryError::InvalidRange {
            wanted: "non-empty managed range",
            address,
            bytes,
        })
    }
}
