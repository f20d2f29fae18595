//! The parts into which the launches of a function divide an array.
//!
//! Of a launch that comes for the first time few blocks may be away, so that little shows of what
//! it uses. But where others of its function went through the array tile by tile, one block tells
//! which tile it is: a tile ends where some launch used one of two neighbours and left the other
//! alone.

use super::parts::Block;
use crate::world::block::Extent;

/// Most blocks of an array of which that is remembered.
const BLOCKS: u64 = 1 << 19;
/// Most blocks of a tile on either side of one of them; what is larger is no tile.
const REACH: usize = 1 << 10;

/// A bit for each block.
#[derive(Debug, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn set(&mut self, index: u64) {
        let word = (index / 64) as usize;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (index % 64);
    }

    fn get(&self, index: u64) -> bool {
        let word = self.0.get((index / 64) as usize);
        word.is_some_and(|word| word >> (index % 64) & 1 == 1)
    }
}

/// What was seen of one array, by block from its start.
#[derive(Debug, Default)]
pub(super) struct Tiles {
    /// A launch used it and the next one.
    joined: Bits,
    /// A launch used it or the next one, and left the other alone.
    cut: Bits,
}

impl Tiles {
    /// Words of memory that it takes.
    pub(super) fn len(&self) -> usize {
        self.joined.0.len() + self.cut.0.len()
    }

    /// A launch used some of these blocks and left others alone.
    pub(super) fn learn(&mut self, seen: &[Block]) {
        for pair in seen.windows(2) {
            let [a, b] = pair else { continue };
            if a.block + 1 != b.block || a.block >= BLOCKS {
                continue;
            }
            match (a.used, b.used) {
                (true, true) => self.joined.set(a.block),
                (false, false) => {}
                _ => self.cut.set(a.block),
            }
        }
    }

    /// The tile in which a block lies, as far as is known; at least the block.
    pub(super) fn find(&self, block: u64) -> Extent {
        let goes_on = |after: &u64| self.joined.get(*after) && !self.cut.get(*after);
        let before = (0..block).rev().take_while(goes_on).take(REACH).count();
        let behind = (block..).take_while(goes_on).take(REACH).count();
        let (first, count) = if before.max(behind) < REACH {
            (block - before as u64, (before + 1 + behind) as u64)
        } else {
            (block, 1)
        };
        Extent { first, count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 100;

    /// The tile of a block after launches touched the blocks of these ranges and left the others alone
    /// but those before 8, which are on the device.
    fn tile(launches: &[&[(u64, u64)]], block: u64) -> (u64, u64) {
        let mut tiles = Tiles::default();
        for touched in launches {
            let used = |block| {
                touched
                    .iter()
                    .any(|&(first, end)| first <= block && block < end)
            };
            let away = (0..SIZE).filter(|&block| block >= 8);
            let seen: Vec<Block> = away.map(|block| Block::seen(block, used(block))).collect();
            tiles.learn(&seen);
        }
        let tile = tiles.find(block);
        (tile.first, tile.end())
    }

    #[test]
    fn a_tile_is_what_launches_go_through_up_to_where_one_left_the_next_block_alone() {
        let launches: [&[(u64, u64)]; 2] = [&[(10, 20)], &[(40, 50), (60, 70)]];
        for (block, expected) in [
            (10, (10, 20)),
            (19, (10, 20)),
            (45, (40, 50)),
            (69, (60, 70)),
        ] {
            assert_eq!(tile(&launches, block), expected, "{block}");
        }
        assert_eq!(tile(&launches, 30), (30, 31), "nothing is known");
        assert_eq!(
            tile(&[&[(0, 20)]], 9),
            (8, 20),
            "the first ones were on the device"
        );
    }

    #[test]
    fn tiles_that_lie_side_by_side_or_overlap_are_parted_where_one_ends() {
        assert_eq!(tile(&[&[(10, 20)], &[(10, 30)]], 15), (10, 20));
        assert_eq!(tile(&[&[(10, 30)], &[(20, 30)]], 15), (10, 20));
        let halo: [&[(u64, u64)]; 3] = [&[(8, 20)], &[(12, 24)], &[(16, 28)]];
        assert_eq!(tile(&halo, 17), (16, 20));
    }

    #[test]
    fn what_a_launch_goes_through_at_length_is_no_tile() {
        let mut tiles = Tiles::default();
        let all: Vec<Block> = (0..5_000).map(|block| Block::seen(block, true)).collect();
        tiles.learn(&all);
        assert_eq!(tiles.find(2_000).count, 1);
    }

    #[test]
    fn where_rows_are_looked_up_each_block_is_by_itself() {
        assert_eq!(
            tile(&[&[(10, 11), (12, 13)], &[(11, 12)], &[(10, 12)]], 11),
            (11, 12)
        );
    }
}
