//! From the byte regions that a launch reads and writes to the blocks that it touches, in
//! order, each with its leaves and mode. Knows nothing of launches or of time.

use super::program::{Access, Block, Mode};
use crate::units::{BLOCK_BYTES, LEAF_BYTES, Leaves, Region};

/// What one launch does to one block.
struct Entry {
    block: Block,
    /// Where in its range the block lies: fraction of the range before it, times 2^32.
    position: u64,
    read: Leaves,
    written: Leaves,
    /// Written from the first byte to the last.
    covered: Leaves,
}

/// Scratch space for turning regions into accesses, reused from launch to launch.
#[derive(Default)]
pub(super) struct Touches {
    entries: Vec<Entry>,
    /// By block: its place in `entries` plus one, or 0.
    places: Vec<u32>,
    merged: Vec<Region>,
    accesses: Vec<Access>,
}

impl Touches {
    /// The accesses of a launch, in order of first touch. All ranges advance together: a
    /// block in the middle of its range comes with the middles of all others (what is
    /// assumed in the capture of the traces; real kernels differ by tiles and swizzles).
    ///
    /// A leaf that is read and written, or written only in part, is [`Mode::Update`];
    /// one that is only written, from end to end, is [`Mode::Overwrite`]. A block whose
    /// leaves differ in mode gives one access for each mode.
    ///
    /// `number` gives the block of an address divided by 2 MiB; `Err` ends the walk.
    pub(super) fn of<E>(
        &mut self,
        reads: &[Region],
        writes: &[Region],
        mut number: impl FnMut(u64) -> Result<Block, E>,
    ) -> Result<&mut [Access], E> {
        self.clear();
        for region in reads {
            self.walk(*region, &mut number, |entry, leaves| entry.read |= leaves)?;
        }
        for region in writes {
            self.walk(*region, &mut number, |entry, leaves| {
                entry.written |= leaves
            })?;
        }
        self.cover(writes, &mut number)?;
        self.entries.sort_by_key(|entry| entry.position);
        for entry in &self.entries {
            let overwritten = entry.covered.minus(entry.read);
            let parts = [
                (entry.read.minus(entry.written), Mode::Read),
                (entry.written.minus(overwritten), Mode::Update),
                (overwritten, Mode::Overwrite),
            ];
            for (leaves, mode) in parts {
                if !leaves.is_empty() {
                    self.accesses.push(Access::whole(entry.block, leaves, mode));
                }
            }
        }
        Ok(&mut self.accesses)
    }

    fn clear(&mut self) {
        for entry in self.entries.drain(..) {
            self.places[entry.block.index()] = 0;
        }
        self.accesses.clear();
    }

    fn entry(&mut self, block: Block, position: u64) -> &mut Entry {
        if self.places.len() <= block.index() {
            self.places.resize(block.index() + 1, 0);
        }
        let place = &mut self.places[block.index()];
        if *place == 0 {
            self.entries.push(Entry {
                block,
                position,
                read: Leaves::NONE,
                written: Leaves::NONE,
                covered: Leaves::NONE,
            });
            *place = self.entries.len() as u32;
        }
        let entry = &mut self.entries[*place as usize - 1];
        entry.position = entry.position.min(position);
        entry
    }

    fn walk<E>(
        &mut self,
        region: Region,
        number: &mut impl FnMut(u64) -> Result<Block, E>,
        mark: impl Fn(&mut Entry, Leaves),
    ) -> Result<(), E> {
        for (address, leaves) in region.parts() {
            let before = (address * BLOCK_BYTES).saturating_sub(region.address);
            let position = (u128::from(before) << 32) / u128::from(region.bytes.max(1));
            mark(self.entry(number(address)?, position as u64), leaves);
        }
        Ok(())
    }

    /// Marks the leaves that the writes, taken together, cover from end to end.
    fn cover<E>(
        &mut self,
        writes: &[Region],
        number: &mut impl FnMut(u64) -> Result<Block, E>,
    ) -> Result<(), E> {
        self.merged.clear();
        self.merged.extend_from_slice(writes);
        self.merged.sort_unstable();
        self.merged.dedup_by(|next, last| {
            let joins = next.address <= last.end();
            if joins {
                last.bytes = last.bytes.max(next.end() - last.address);
            }
            joins
        });
        let merged = std::mem::take(&mut self.merged);
        for region in &merged {
            let first = region.address.div_ceil(LEAF_BYTES) * LEAF_BYTES;
            let end = region.end() / LEAF_BYTES * LEAF_BYTES;
            let inner = Region {
                address: first,
                bytes: end.saturating_sub(first),
            };
            for (address, leaves) in inner.parts() {
                // Touched before: its position is known.
                self.entry(number(address)?, u64::MAX).covered |= leaves;
            }
        }
        self.merged = merged;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const BASE: u64 = 100 * BLOCK_BYTES;

    fn region(offset: u64, bytes: u64) -> Region {
        Region {
            address: BASE + offset,
            bytes,
        }
    }

    fn of(reads: &[Region], writes: &[Region]) -> Vec<(u32, u32, Mode)> {
        let mut touches = Touches::default();
        // Twice: the scratch space must not remember the first.
        for _ in 0..2 {
            let number = |n: u64| Ok::<_, ()>(Block((n - 100) as u32));
            touches.of(reads, writes, number).unwrap();
        }
        touches
            .accesses
            .iter()
            .map(|a| (a.block.0, a.leaves.0, a.mode))
            .collect()
    }

    #[test]
    fn only_a_leaf_written_from_end_to_end_and_not_read_is_overwritten() {
        assert_eq!(
            of(&[], &[region(0, 100 * KIB)]),
            [(0, 0b10, Mode::Update), (0, 0b01, Mode::Overwrite)]
        );
        assert_eq!(
            of(&[region(0, 8)], &[region(0, 64 * KIB)]),
            [(0, 1, Mode::Update)]
        );
        assert_eq!(of(&[region(0, 64 * KIB)], &[]), [(0, 1, Mode::Read)]);
    }

    #[test]
    fn writes_that_cover_a_leaf_only_together_overwrite_it() {
        let halves = [region(32 * KIB, 32 * KIB), region(0, 32 * KIB)];
        assert_eq!(of(&[], &halves), [(0, 1, Mode::Overwrite)]);
        let gap = [region(40 * KIB, 24 * KIB), region(0, 32 * KIB)];
        assert_eq!(of(&[], &gap), [(0, 1, Mode::Update)]);
    }

    #[test]
    fn ranges_of_different_length_advance_together() {
        let long = region(0, 4 * BLOCK_BYTES);
        let short = region(8 * BLOCK_BYTES, 2 * BLOCK_BYTES);
        let blocks: Vec<u32> = of(&[long], &[short]).iter().map(|a| a.0).collect();
        assert_eq!(blocks, [0, 8, 1, 2, 9, 3]);
    }

    #[test]
    fn a_block_in_two_ranges_comes_once_at_its_first_touch() {
        let inner = region(3 * BLOCK_BYTES, BLOCK_BYTES);
        let outer = region(0, 4 * BLOCK_BYTES);
        let blocks: Vec<u32> = of(&[outer, inner], &[]).iter().map(|a| a.0).collect();
        assert_eq!(blocks, [0, 3, 1, 2]);
    }

    #[test]
    fn nothing_is_touched_by_empty_regions() {
        assert_eq!(of(&[region(5, 0)], &[region(7, 0)]), []);
    }
}
