//! Indexed accesses: which of a launch's blocks are used sparsely, and how much of each.
//!
//! A trace lists an indexed access (rows of a table, neighbours in a graph, pages of a cache) as
//! the 2 MiB blocks touched, and says for the launch how many 4 KiB and 64 KiB pages would hold
//! what is used ([`Indexed`]); it says neither which regions of the launch those are, nor where
//! the pages lie. What is read out of that, so that at no place less is used than the trace says:
//!
//! - Indexed are the regions that are runs of whole blocks, as far as these lie in the table, and not
//!   just one part that the allocator handed out (a dense operand is), except blocks that another
//!   region shares. A table ends where its part does, or before, within the last block: allocators
//!   round up. Where there are no such runs, every block of a table is touched: it is the largest of
//!   the parts. So are the largest ones as long as the others are more than the launch moves (`by`):
//!   one that looks up rows of several tables touches every block of the small ones.
//! - All pages of the launch are spread over these blocks alone, evenly. Where they would not
//!   fit, the blocks are used whole.
//! - A page of 4 KiB counts whole, though a row may be a few sectors of it.
//! - The same leaves are read each time (fewer of them by a launch that uses less), as hot rows,
//!   hubs and pages of a cache are. That favours whoever migrates leaves. A launch that changes as
//!   much of a block as was read of it last changes what was read: gradients of rows. Otherwise it
//!   changes the leaves next to those changed last: a cache that is filled. Its whole block
//!   counts as written then ([`super::Program::written`]).

use super::program::{Access, Block, Mode};
use crate::units::{BLOCK_BYTES, LEAF_PAGES, LEAVES, Leaves, Region};

/// How much a launch's indexed accesses use of the blocks that they are listed with (trace
/// format, `sp`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Indexed {
    /// Pages of 4 KiB that hold it.
    pub pages: u64,
    /// Leaves of 64 KiB that hold it.
    pub leaves: u64,
    /// Bytes that the launch moves to and from device memory, all in all, where that is known.
    pub bytes: Option<u64>,
}

/// Scratch space, reused from launch to launch.
#[derive(Default)]
pub(super) struct Thinner {
    /// Blocks of runs, by address over 2 MiB, ends exclusive.
    runs: Vec<(u64, u64)>,
    /// Regions that the allocator handed out as one.
    parts: Vec<Region>,
    /// Blocks of all other regions.
    others: Vec<(u64, u64)>,
    /// Accesses to be thinned, by index.
    chosen: Vec<usize>,
    /// By block: how many leaves were read last, and where changes go on, in the block's order.
    blocks: Vec<(u32, u32)>,
}

impl Thinner {
    /// Leaves of a launch's accesses what its indexed ones use. `part_of` tells what the allocator,
    /// or the driver, handed out as one that holds a region; `addresses` are the blocks'. Appends
    /// the blocks of which less is used for it.
    pub fn thin(
        &mut self,
        accesses: &mut [Access],
        regions: impl Iterator<Item = Region>,
        part_of: impl Fn(Region) -> Option<Region>,
        addresses: &[u64],
        indexed: Indexed,
        thinned: &mut Vec<Block>,
    ) {
        self.runs.clear();
        self.others.clear();
        self.parts.clear();
        for region in regions.filter(|region| region.bytes > 0) {
            let part = part_of(region);
            let is_block = |at: u64| at.is_multiple_of(BLOCK_BYTES);
            let begins = part.is_some_and(|part| region.address == part.address);
            // What the allocator rounded up to is handed out, and never used.
            let ends = part.is_some_and(|part| part.end() - region.end() < BLOCK_BYTES);
            if begins && ends {
                self.parts.push(region);
            } else if (begins || is_block(region.address)) && (ends || is_block(region.end())) {
                self.runs.push(blocks_of(region));
            } else {
                self.others.push(blocks_of(region));
            }
        }
        self.parts
            .sort_unstable_by_key(|part| (part.bytes, part.address));
        let mut dense: u64 = self.parts.iter().map(|part| part.bytes).sum();
        while let Some(&largest) = self.parts.last()
            && (self.runs.is_empty() || indexed.bytes.is_some_and(|bytes| dense > bytes))
        {
            // It may be read and written.
            self.parts.retain(|part| *part != largest);
            dense = self.parts.iter().map(|part| part.bytes).sum();
            self.runs.push(blocks_of(largest));
        }
        self.others
            .extend(self.parts.iter().copied().map(blocks_of));
        merge(&mut self.runs);
        merge(&mut self.others);
        self.chosen.clear();
        for (index, access) in accesses.iter().enumerate() {
            let number = addresses[access.block.index()] / BLOCK_BYTES;
            let whole = access.leaves == Leaves::ALL && access.mode != Mode::Overwrite;
            if whole && holds(&self.runs, number) && !holds(&self.others, number) {
                self.chosen.push(index);
            }
        }
        let count = self.chosen.len() as u64;
        let leaves = indexed.leaves.max(count);
        let pages = indexed.pages.max(leaves);
        for (at, index) in self.chosen.iter().enumerate() {
            let share = |all: u64, most: u32| {
                let (at, all) = (at as u128, u128::from(all));
                let count = u128::from(count);
                // Of so many parts the shares add up to all.
                let share = all * (at + 1) / count - all * at / count;
                share.clamp(1, u128::from(most)) as u32
            };
            let access = &mut accesses[*index];
            let whole = *access;
            let leaves = share(leaves, LEAVES);
            let block = access.block.index();
            if self.blocks.len() <= block {
                self.blocks.resize(block + 1, (0, 0));
            }
            let (read, next) = &mut self.blocks[block];
            let mut start = 0;
            if access.mode == Mode::Read {
                *read = leaves;
            } else if *read != leaves {
                start = *next;
                *next = (start + leaves) % LEAVES;
            }
            access.leaves = some_of(access.block.0, start, leaves);
            access.pages = share(pages, leaves * LEAF_PAGES).max(leaves) as u16;
            if *access != whole {
                thinned.push(access.block);
            }
        }
    }
}

/// First block of a region and the one behind it, by address over 2 MiB.
fn blocks_of(region: Region) -> (u64, u64) {
    let end = (region.end() - 1) / BLOCK_BYTES + 1;
    (region.address / BLOCK_BYTES, end)
}

/// Sorts ranges and joins those that touch.
fn merge(ranges: &mut Vec<(u64, u64)>) {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let joins = next.0 <= last.1;
        if joins {
            last.1 = last.1.max(next.1);
        }
        joins
    });
}

fn holds(ranges: &[(u64, u64)], number: u64) -> bool {
    let after = ranges.partition_point(|(first, _)| *first <= number);
    after > 0 && number < ranges[after - 1].1
}

/// So many leaves of a block from place `first` of its own order on: a step through its leaves
/// that is odd, so that it comes by all of them.
fn some_of(block: u32, first: u32, count: u32) -> Leaves {
    // Fibonacci hashing: the high bits depend on all bits of the number.
    let mixed = u64::from(block).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let (start, step) = (mixed as u32, (mixed >> 8) as u32 | 1);
    let mut leaves = 0;
    for at in first..first + count {
        leaves |= 1 << (start.wrapping_add(step.wrapping_mul(at)) % LEAVES);
    }
    Leaves(leaves)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: u64 = 1000;

    /// Six blocks of which the last is shared with a dense region, and a dense part behind.
    fn thinned(indexed: Indexed) -> Vec<Access> {
        let at = |block: u64, bytes: u64| Region {
            address: (FIRST + block) * BLOCK_BYTES,
            bytes,
        };
        let part = at(6, 2 * BLOCK_BYTES);
        let runs = [at(0, 3 * BLOCK_BYTES), at(3, 3 * BLOCK_BYTES)];
        let regions = [runs[0], runs[1], at(5, 4096), part];
        let addresses: Vec<u64> = (0..8).map(|block| at(block, 0).address).collect();
        let mut accesses: Vec<Access> = (0..8)
            .map(|block| Access::whole(Block(block), Leaves::ALL, Mode::Read))
            .collect();
        let mut thinned = Vec::new();
        Thinner::default().thin(
            &mut accesses,
            regions.into_iter(),
            |region| Some(part).filter(|part| region == *part),
            &addresses,
            indexed,
            &mut thinned,
        );
        let thin = accesses.iter().filter(|access| access.pages < 512);
        assert!(thin.map(|access| access.block).eq(thinned));
        accesses
    }

    fn used(accesses: &[Access]) -> Vec<(u32, u16)> {
        let each = accesses.iter();
        each.map(|access| (access.leaves.count(), access.pages))
            .collect()
    }

    #[test]
    fn whole_blocks_that_are_no_part_of_their_own_are_used_as_far_as_the_launch_says() {
        let accesses = thinned(Indexed {
            pages: 23,
            leaves: 12,
            bytes: None,
        });
        let used = used(&accesses);
        let (leaves, pages) = used[..5].iter().fold((0, 0), |(leaves, pages), one| {
            (leaves + one.0, pages + u32::from(one.1))
        });
        assert_eq!((leaves, pages), (12, 23));
        assert_eq!(used[5..], [(32, 512); 3], "dense, or shared with dense");
    }

    #[test]
    fn a_table_of_which_every_block_is_touched_is_used_as_far_as_the_launch_says() {
        let at = |block: u64, bytes: u64| Region {
            address: (FIRST + block) * BLOCK_BYTES,
            bytes,
        };
        // It ends within a block that the indices share.
        let (table, indices) = (at(0, 3 * BLOCK_BYTES + 4096), at(4, BLOCK_BYTES));
        let addresses: Vec<u64> = (0..5).map(|block| at(block, 0).address).collect();
        let mut accesses: Vec<Access> = (0..5)
            .map(|block| Access::whole(Block(block), Leaves::ALL, Mode::Update))
            .collect();
        accesses[3].leaves = Leaves(1);
        let indexed = Indexed {
            pages: 30,
            leaves: 12,
            bytes: None,
        };
        // Read and written: the same region twice.
        let regions = [indices, table, table].into_iter();
        let (part_of, thinned) = (Some, &mut Vec::new());
        Thinner::default().thin(
            &mut accesses,
            regions,
            part_of,
            &addresses,
            indexed,
            thinned,
        );
        assert_eq!(used(&accesses)[..3], [(4, 10); 3]);
        assert_eq!(accesses[3].leaves, Leaves(1));
        assert_eq!(used(&accesses)[4], (32, 512), "dense");
    }

    #[test]
    fn a_table_may_end_before_what_the_allocator_rounded_up_to() {
        let at = |block: u64, bytes: u64| Region {
            address: (FIRST + block) * BLOCK_BYTES,
            bytes,
        };
        // Four blocks are handed out of which three and a half are the table.
        let part = at(0, 4 * BLOCK_BYTES);
        let end = 3 * BLOCK_BYTES + BLOCK_BYTES / 2;
        let all = vec![at(0, end)];
        let without_the_second = vec![at(0, BLOCK_BYTES), at(2, end - 2 * BLOCK_BYTES)];
        for (regions, touched) in [(all, vec![0, 1, 2, 3]), (without_the_second, vec![0, 2, 3])] {
            let addresses: Vec<u64> = (0..4).map(|block| at(block, 0).address).collect();
            let accesses = touched.iter().map(|&block| {
                let leaves = if block == 3 {
                    Leaves(0xffff)
                } else {
                    Leaves::ALL
                };
                Access::whole(Block(block), leaves, Mode::Read)
            });
            let mut accesses: Vec<Access> = accesses.collect();
            let indexed = Indexed {
                pages: 8 * touched.len() as u64,
                leaves: 4 * touched.len() as u64,
                bytes: None,
            };
            Thinner::default().thin(
                &mut accesses,
                regions.into_iter(),
                |_| Some(part),
                &addresses,
                indexed,
                &mut Vec::new(),
            );
            let whole = used(&accesses).iter().filter(|one| one.1 > 20).count();
            assert_eq!(whole, 1, "the last block alone: {accesses:?}");
        }
    }

    #[test]
    fn parts_larger_than_all_that_the_launch_moves_are_tables_too() {
        let mut indexed = Indexed {
            pages: 24,
            leaves: 24,
            bytes: Some(2 * BLOCK_BYTES),
        };
        let accesses = thinned(indexed);
        assert_eq!(used(&accesses)[6..], [(32, 512); 2], "it may be used whole");
        indexed.bytes = Some(2 * BLOCK_BYTES - 1);
        let accesses = thinned(indexed);
        let used = used(&accesses);
        let leaves = [&used[..5], &used[6..]].concat();
        let leaves = leaves.iter().map(|one| u64::from(one.0));
        assert_eq!(leaves.sum::<u64>(), indexed.leaves);
        assert!(used[6].0 < 32 && used[7].0 < 32);
    }

    /// What is used of six blocks, of regions in these parts: first block, and bytes.
    fn used_of(parts: &[(u64, u64)], regions: &[(u64, u64)], bytes: u64) -> Vec<(u32, u16)> {
        let at = |&(block, bytes): &(u64, u64)| Region {
            address: (FIRST + block) * BLOCK_BYTES,
            bytes,
        };
        let addresses: Vec<u64> = (0..6).map(|block| at(&(block, 0)).address).collect();
        let mut accesses: Vec<Access> = (0..6)
            .map(|block| Access::whole(Block(block), Leaves::ALL, Mode::Read))
            .collect();
        let indexed = Indexed {
            pages: 6,
            leaves: 6,
            bytes: Some(bytes),
        };
        let part_of = |region: Region| {
            let mut parts = parts.iter().map(at);
            parts.find(|part| part.address <= region.address && region.end() <= part.end())
        };
        let (regions, thinned) = (regions.iter().map(at), &mut Vec::new());
        let mut thinner = Thinner::default();
        thinner.thin(
            &mut accesses,
            regions,
            part_of,
            &addresses,
            indexed,
            thinned,
        );
        used(&accesses)
    }

    #[test]
    fn the_last_run_of_a_table_may_end_within_a_block() {
        let end = BLOCK_BYTES + 4096;
        let table = (0, 4 * BLOCK_BYTES + 4096);
        let used = used_of(&[table], &[(0, BLOCK_BYTES), (3, end)], 0);
        for block in [0, 3, 4] {
            assert!(used[block].0 < 32, "{block}: {used:?}");
        }
        // Not where the table goes on.
        let used = used_of(&[(0, 6 * BLOCK_BYTES)], &[(0, BLOCK_BYTES), (3, end)], 0);
        assert_eq!(used[3..5], [(32, 512); 2]);
    }

    #[test]
    fn as_many_of_the_largest_parts_are_tables_as_the_launch_cannot_move_whole() {
        let parts = [1, 2, 3].map(|blocks| (blocks * (blocks - 1) / 2, blocks * BLOCK_BYTES));
        for (moved, dense) in [(0, 0), (1, 1), (2, 1), (3, 3), (5, 3)] {
            let used = used_of(&parts, &parts, moved * BLOCK_BYTES);
            let whole = used.iter().take_while(|one| **one == (32, 512)).count();
            assert_eq!(whole, dense, "{moved} blocks: {used:?}");
            assert!(used[dense..].iter().all(|one| one.0 < 32), "{used:?}");
        }
    }

    #[test]
    fn a_launch_that_uses_less_uses_some_of_the_same_leaves() {
        let many = thinned(Indexed {
            pages: 200,
            leaves: 60,
            bytes: None,
        });
        let few = thinned(Indexed {
            pages: 5,
            leaves: 5,
            bytes: None,
        });
        for (many, few) in many.iter().zip(&few) {
            assert!(many.leaves.covers(few.leaves));
        }
        assert_eq!(used(&few)[..5], [(1, 1); 5]);
    }

    #[test]
    fn changes_of_as_much_as_was_read_are_to_that_and_others_go_on_where_the_last_ended() {
        let region = Region {
            address: FIRST * BLOCK_BYTES,
            bytes: BLOCK_BYTES,
        };
        let mut thinner = Thinner::default();
        let mut leaves = |mode, leaves| {
            let mut accesses = [Access::whole(Block(0), Leaves::ALL, mode)];
            let indexed = Indexed {
                pages: leaves,
                leaves,
                bytes: None,
            };
            let addresses = [region.address];
            let regions = std::iter::once(region);
            let thinned = &mut Vec::new();
            thinner.thin(
                &mut accesses,
                regions,
                |_| None,
                &addresses,
                indexed,
                thinned,
            );
            accesses[0].leaves
        };
        let read = leaves(Mode::Read, 8);
        assert_eq!(leaves(Mode::Update, 8), read);
        let filled = (0..8).map(|_| leaves(Mode::Update, 4));
        let filled = filled.fold(Leaves::NONE, |all, some| all | some);
        assert_eq!(filled, Leaves::ALL);
    }

    #[test]
    fn what_is_used_nearly_whole_is_used_whole() {
        let accesses = thinned(Indexed {
            pages: 512 * 6,
            leaves: 32 * 6,
            bytes: None,
        });
        assert_eq!(used(&accesses), [(32, 512); 8]);
    }

    #[test]
    fn the_order_of_a_block_comes_by_all_leaves() {
        for block in 0..1000 {
            assert_eq!(some_of(block, 0, LEAVES), Leaves::ALL);
            assert_eq!(some_of(block, 0, 7).count(), 7);
            let halves = some_of(block, 0, 16) | some_of(block, 16, 16);
            assert_eq!(halves, Leaves::ALL);
        }
    }
}
