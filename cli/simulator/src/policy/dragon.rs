//! DRAGON: memory beyond the host's on NVMe, with read-ahead.
//!
//! Markthub et al., SC 2018, sections 4 and 5: extends the driver's fault handling to files
//! on NVMe; a fault reads ahead in the order of the file as Linux's page cache does, the
//! host's memory being the cache between, and written content goes back when it is evicted.
//!
//! Choices: the window starts at [`FIRST`] blocks, doubles with every fault that continues
//! the sequence up to [`MOST`], and starts anew where one does not (Linux's on-demand
//! read-ahead); it ends with the allocation, as with a file. Where content is read ahead to
//! is the device, as the driver has no call for host memory alone, and it makes room as the
//! driver does. On a machine without an SSD it is read-ahead from the host. Only faults are
//! seen, so a stream that has caught up with its window faults once for each.

use std::collections::BTreeMap;

use crate::class::{Desk, DriverNotice, FaultPolicy};
use crate::model::Room;
use crate::trace::Block;
use crate::units::{BLOCK_BYTES, Region};

use super::{Entry, Make};

pub(super) const ENTRY: Entry = Entry {
    name: "dragon",
    about: "DRAGON (SC 2018): NVMe below the host, sequential read-ahead on faults",
    make: Make::Fault(|_| Box::new(Dragon::default())),
};

/// Blocks of a first read-ahead.
const FIRST: u64 = 2;
/// Blocks of the largest: 32 MiB.
const MOST: u64 = 16;

/// A file's read-ahead.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    end: u64,
    /// Where it faulted last, where the sequence goes on, and the window of the last
    /// read-ahead.
    last: u64,
    next: u64,
    window: u64,
}

#[derive(Default)]
struct Dragon {
    /// By first address.
    files: BTreeMap<u64, Stream>,
}

impl Dragon {
    /// A batch of faults: whether the sequence goes on shows its first, and where, its last.
    fn faulted(&mut self, first: Block, last: Block, desk: &mut Desk<'_>) {
        let (address, last) = (desk.address(first), desk.address(last));
        let Some((_, stream)) = self.files.range_mut(..=address).next_back() else {
            return;
        };
        // From the last fault to just behind what was read ahead: it goes on.
        let follows =
            stream.window > 0 && address >= stream.last && address <= stream.next + BLOCK_BYTES;
        stream.last = address;
        stream.window = if follows {
            (stream.window * 2).min(MOST)
        } else {
            FIRST
        };
        let first = last.max(address) + BLOCK_BYTES;
        let end = (first + stream.window * BLOCK_BYTES).min(stream.end);
        stream.next = end;
        if first >= end {
            return;
        }
        let ahead = Region {
            address: first,
            bytes: end - first,
        };
        let wanted: Vec<Block> = desk
            .blocks_of(ahead)
            .into_iter()
            .filter(|block| !desk.missing(*block).is_empty())
            // Never more than half of the device at once.
            .take(desk.capacity() as usize / 2)
            .collect();
        if !wanted.is_empty() {
            desk.prefetch(&wanted, Room::Take);
        }
    }
}

impl FaultPolicy for Dragon {
    fn notice(&mut self, notice: DriverNotice<'_>, desk: &mut Desk<'_>) {
        match notice {
            DriverNotice::Alloc(region) => {
                let stream = Stream {
                    end: region.end(),
                    ..Stream::default()
                };
                self.files.insert(region.address, stream);
            }
            DriverNotice::Free(region) => {
                self.files.remove(&region.address);
            }
            DriverNotice::Faults(faults) => {
                if let [(first, _), ..] = faults
                    && let [.., (last, _)] = faults
                {
                    self.faulted(*first, *last, desk);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::checks::{contract, outcome};
    use crate::policy::driver;
    use crate::policy::samples::{BASE, blocks, launch};
    use crate::units::Nanos;

    #[test]
    fn keeps_the_contract() {
        contract(&ENTRY);
    }

    #[test]
    fn a_sequence_faults_a_fraction_of_what_it_does_without_read_ahead() {
        // Launches of four blocks, slow enough for the link to stay ahead.
        let mut builder = crate::trace::ProgramBuilder::new("slow");
        builder.alloc(BASE, 256 * BLOCK_BYTES).unwrap();
        for iteration in 0..3 {
            builder.iteration(iteration).unwrap();
            for part in 0..64 {
                let part = [blocks(4 * part, 4)];
                launch(&mut builder, "part", Nanos(2_000_000), &part, &part);
            }
        }
        let program = builder.finish();
        let ours = outcome(&program, &ENTRY, 160).iterations[2].totals;
        let plain = outcome(&program, &driver::ENTRY, 160).iterations[2].totals;
        assert!(3 * ours.batches < 2 * plain.batches, "{ours:?} {plain:?}");
        assert!(3 * ours.prefetch_useful > ours.bytes_in, "{ours:?}");
    }
}
