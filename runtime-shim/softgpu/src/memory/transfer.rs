//! Copies and memsets, as the device's copy engines do them.
//!
//! Managed memory is accessed as the device would: a destination is populated on the
//! device, and granules that are wholly overwritten need no fetch. A managed source is
//! read where it is. Only bytes that change sides cross the link.

use super::density::{GRANULE_BYTES, runs};
use super::migrate::{In, Patience};
use super::ranges::Part;
use super::remote::stays_on_host;
use super::{Allocation, BLOCK_BYTES, Fill, Kind, Location, Memory, MemoryError, Place};

/// Bytes that pass through the bounce buffer at once.
const BOUNCE_BYTES: u64 = 256 << 10;

/// A resolved end of a copy.
#[derive(Clone, Copy)]
enum End {
    Pointer(u64, Location),
    Managed(u64, Allocation),
}

impl End {
    fn side(self) -> Option<Location> {
        match self {
            End::Pointer(_, side) => Some(side),
            End::Managed(..) => None,
        }
    }

    fn plus(self, n: u64) -> End {
        match self {
            End::Pointer(p, side) => End::Pointer(p + n, side),
            End::Managed(p, allocation) => End::Managed(p + n, allocation),
        }
    }

    /// Bytes up to where a step has to end.
    fn room(self) -> u64 {
        match self {
            End::Pointer(..) => BOUNCE_BYTES,
            End::Managed(at, _) => {
                (BLOCK_BYTES - at % BLOCK_BYTES).min(BOUNCE_BYTES - at % GRANULE_BYTES)
            }
        }
    }
}

impl Memory {
    /// See [`super::Device::copy`].
    ///
    /// # Safety
    /// A [`Place::Host`] must be valid for `bytes`.
    pub unsafe fn copy(&self, to: Place, from: Place, bytes: u64) -> Result<(), MemoryError> {
        let (to, from) = (self.resolve(to, bytes)?, self.resolve(from, bytes)?);
        let mut transfer_in = self.link_in.begin_queued();
        let mut transfer_out = self.link_out.begin_queued();
        if let (End::Pointer(to, to_side), End::Pointer(from, from_side)) = (to, from) {
            // SAFETY: host ends by the caller; device memory is mapped in V while it lives.
            unsafe {
                match (from_side, to_side) {
                    (Location::Host, Location::Device) => transfer_in.copy(to, from, bytes),
                    (Location::Device, Location::Host) => transfer_out.copy(to, from, bytes),
                    _ => std::ptr::copy(from as *const u8, to as *mut u8, bytes as usize),
                }
            }
            self.count_crossing(from_side, to_side, bytes);
        } else {
            let mut bounce = vec![0u8; BOUNCE_BYTES.min(bytes) as usize];
            let mut done = 0;
            while done < bytes {
                let (to, from) = (to.plus(done), from.plus(done));
                let step = (bytes - done).min(to.room()).min(from.room());
                let buffer = &mut bounce[..step as usize];
                // SAFETY: as above.
                let from_device = unsafe { self.read_end(from, buffer) };
                // SAFETY: as above.
                let away = unsafe { self.write_end(to, buffer) };
                transfer_out.pass(away);
                self.counters.remote_bytes.add(away);
                let to_side = to.side().unwrap_or(Location::Device);
                if to_side == Location::Device {
                    transfer_in.pass(step - from_device);
                } else {
                    transfer_out.pass(from_device);
                }
                self.count_crossing(Location::Device, to_side, from_device);
                self.count_crossing(Location::Host, to_side, step - from_device);
                done += step;
            }
        }
        transfer_in.wait();
        transfer_out.wait();
        self.counters.copies.add(1);
        Ok(())
    }

    fn count_crossing(&self, from: Location, to: Location, bytes: u64) {
        match (from, to) {
            (Location::Host, Location::Device) => self.counters.copied_in_bytes.add(bytes),
            (Location::Device, Location::Host) => self.counters.copied_out_bytes.add(bytes),
            _ => {}
        }
    }

    fn resolve(&self, place: Place, bytes: u64) -> Result<End, MemoryError> {
        let address = match place {
            Place::Host(pointer) => return Ok(End::Pointer(pointer, Location::Host)),
            Place::Device(address) => address,
        };
        let allocation = self.require(address, bytes, None)?;
        Ok(match allocation.kind {
            Kind::Device => End::Pointer(self.areas.to_view(address), Location::Device),
            Kind::Managed => End::Managed(address, allocation),
        })
    }

    fn part(&self, at: u64, allocation: Allocation, bytes: u64) -> Option<Part> {
        self.parts(at..at + bytes, allocation).next()
    }

    /// Reads a step into the buffer; answers how many bytes of it were on the device.
    ///
    /// # Safety
    /// A pointer must be valid for the buffer's length.
    unsafe fn read_end(&self, from: End, buffer: &mut [u8]) -> u64 {
        let bytes = buffer.len() as u64;
        let (at, allocation) = match from {
            End::Pointer(pointer, side) => {
                // SAFETY: by the caller.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        pointer as *const u8,
                        buffer.as_mut_ptr(),
                        buffer.len(),
                    )
                };
                return if side == Location::Device { bytes } else { 0 };
            }
            End::Managed(at, allocation) => (at, allocation),
        };
        let Some(part) = self.part(at, allocation, bytes) else {
            return 0;
        };
        let base = self.block_address(part.block);
        let state = self.blocks.lock(part.block);
        let mut on_device = 0;
        let sources = [
            (state.device, self.areas.to_view(base)),
            (state.lent, self.areas.to_view(base)),
            (state.mapped & !state.lent, base),
            (
                state.host & !state.mapped & !state.lent,
                self.areas.to_host(base),
            ),
        ];
        // What is nowhere reads as zeros.
        buffer.fill(0);
        for (index, (mask, source)) in sources.into_iter().enumerate() {
            for (first, count) in runs(mask & part.touched) {
                let from = (base + u64::from(first) * GRANULE_BYTES).max(at);
                let to = (base + u64::from(first + count) * GRANULE_BYTES).min(at + bytes);
                let into = &mut buffer[(from - at) as usize..(to - at) as usize];
                let source = (source + (from - base)) as *const u8;
                // SAFETY: the lock keeps these granules where the state says they are, so
                // the page is mapped at `source`.
                unsafe { std::ptr::copy_nonoverlapping(source, into.as_mut_ptr(), into.len()) };
                on_device += if index == 0 { to - from } else { 0 };
            }
        }
        on_device
    }

    /// Writes a step out of the buffer; answers how many bytes of managed memory it wrote
    /// on the host.
    ///
    /// # Safety
    /// A pointer must be valid for the buffer's length.
    unsafe fn write_end(&self, to: End, buffer: &[u8]) -> u64 {
        match to {
            End::Pointer(pointer, _) => {
                // SAFETY: by the caller.
                unsafe {
                    std::ptr::copy_nonoverlapping(buffer.as_ptr(), pointer as *mut u8, buffer.len())
                };
                0
            }
            End::Managed(at, allocation) => {
                self.write_managed(at, allocation, buffer.len() as u64, |view, _| {
                    // SAFETY: `view` is mapped for the buffer's length (it is one part).
                    unsafe {
                        std::ptr::copy_nonoverlapping(
                            buffer.as_ptr(),
                            view as *mut u8,
                            buffer.len(),
                        )
                    };
                })
            }
        }
    }

    /// Brings a managed range to the device for writing, as far as advice does not keep it
    /// on the host, and calls `write` with each part's address in the kernels' view and
    /// length, while it is sure to be there. Answers the bytes that were written on the
    /// host: a copy engine's fault goes where a kernel's would (uvm_va_block.c:11612 in
    /// 580 serves both).
    fn write_managed(
        &self,
        at: u64,
        allocation: Allocation,
        bytes: u64,
        mut write: impl FnMut(u64, u64),
    ) -> u64 {
        let mut transfer = self.link_in.begin();
        let mut away_bytes = 0;
        for part in self.parts(at..at + bytes, allocation) {
            let mut state = self.blocks.lock(part.block);
            if stays_on_host(&state, part.touched) != part.touched {
                drop(state);
                let with_chunk = self.lock_with_chunk(part.block, Patience::Wait, &mut transfer);
                let Some(locked) = with_chunk else { continue };
                state = locked;
            }
            let away = stays_on_host(&state, part.touched);
            let cause = In::Write(part.whole);
            self.bring_in(
                part.block,
                &mut state,
                part.touched & !away,
                cause,
                &mut transfer,
            );
            self.map_remote(part.block, &mut state, away, part.whole);
            let lent = away & !state.lent;
            self.lend(part.block, &mut state, lent);
            write(self.areas.to_view(part.address), part.bytes);
            self.take_back(part.block, &mut state, lent);
            if away != part.touched {
                self.settle(&state, false);
            }
            away_bytes += part.bytes_of(away);
        }
        away_bytes
    }

    /// See [`super::Device::memset`].
    pub fn memset(&self, address: u64, fill: Fill, count: u64) -> Result<(), MemoryError> {
        let width = match fill {
            Fill::Bytes(_) => 1,
            Fill::Halves(_) => 2,
            Fill::Words(_) => 4,
        };
        let wanted = "aligned device or managed memory";
        let bytes = count
            .checked_mul(width)
            .filter(|_| address.is_multiple_of(width));
        let bytes = bytes.ok_or(MemoryError::InvalidRange {
            wanted,
            address,
            bytes: count,
        })?;
        let allocation = self.require(address, bytes, None)?;
        // SAFETY: `view` is mapped for `bytes`, aligned to the element, and a part's
        // length is a multiple of it, as parts are cut at block boundaries.
        let write = |view: u64, bytes: u64| unsafe {
            let n = (bytes / width) as usize;
            match fill {
                Fill::Bytes(v) => std::ptr::write_bytes(view as *mut u8, v, n),
                Fill::Halves(v) => std::slice::from_raw_parts_mut(view as *mut u16, n).fill(v),
                Fill::Words(v) => std::slice::from_raw_parts_mut(view as *mut u32, n).fill(v),
            }
        };
        match allocation.kind {
            Kind::Device => write(self.areas.to_view(address), bytes),
            Kind::Managed => {
                let away = self.write_managed(address, allocation, bytes, write);
                let mut transfer = self.link_out.begin_queued();
                transfer.pass(away);
                transfer.wait();
                self.counters.remote_bytes.add(away);
            }
        }
        self.counters.copies.add(1);
        Ok(())
    }
}
