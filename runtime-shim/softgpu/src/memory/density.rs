//! The density prefetcher: how far a fault's migration grows inside its block.
//!
//! nvidia-uvm climbs, for every faulted page, the binary tree of the block and takes the
//! largest subtree that is more than 51 % resident or faulted
//! (`compute_prefetch_region`, uvm_perf_prefetch.c:102 in 550). Faults are first grown to
//! 64 KiB (`grow_fault_granularity`, uvm_perf_prefetch.c:164), so the tree over the 32
//! 64 KiB granules of a block decides the same as the driver's over 512 pages.

/// Granules of a block.
pub const GRANULES: u32 = 32;
/// Bytes of a granule: the driver's big page.
pub const GRANULE_BYTES: u64 = 64 << 10;
/// `uvm_perf_prefetch_threshold`, percent; strictly more is needed.
const THRESHOLD: u32 = 51;

/// A set of granules of one block, bit 0 first.
pub type Mask = u32;

/// `count` granules from `first`.
pub fn span(first: u32, count: u32) -> Mask {
    if count >= GRANULES {
        Mask::MAX << first
    } else {
        ((1 << count) - 1) << first
    }
}

/// Everything that is to move: the faulted granules and what the tree adds.
///
/// `valid` are the granules that the allocation covers, `resident` those already at the
/// destination.
pub fn grow(valid: Mask, resident: Mask, faulted: Mask) -> Mask {
    reach(valid, resident, faulted) & !resident
}

/// The subtrees that faults reach, with what of them is at the destination already.
pub fn reach(valid: Mask, resident: Mask, faulted: Mask) -> Mask {
    let counted = (resident | faulted) & valid;
    let mut grown = faulted & valid;
    for granule in (0..GRANULES).filter(|g| faulted & valid & (1 << g) != 0) {
        for size in [32, 16, 8, 4, 2] {
            let subtree = span(granule & !(size - 1), size) & valid;
            if (counted & subtree).count_ones() * 100 > subtree.count_ones() * THRESHOLD {
                grown |= subtree;
                break;
            }
        }
    }
    grown
}

/// The contiguous runs of a set: first granule and number.
pub fn runs(mut mask: Mask) -> impl Iterator<Item = (u32, u32)> {
    std::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let first = mask.trailing_zeros();
        let count = (mask >> first).trailing_ones();
        mask &= !span(first, count);
        Some((first, count))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_block_touched_in_order_takes_six_faults() {
        let (mut resident, mut sizes) = (0, Vec::new());
        while resident != Mask::MAX {
            let grown = grow(Mask::MAX, resident, 1 << resident.trailing_ones());
            sizes.push(grown.count_ones());
            resident |= grown;
        }
        // 64K 64K 128K 256K 512K 1M
        assert_eq!(sizes, [1, 1, 2, 4, 8, 16]);
    }

    #[test]
    fn half_a_block_at_once_does_not_grow() {
        assert_eq!(grow(Mask::MAX, 0, span(0, 16)), span(0, 16));
        assert_eq!(grow(Mask::MAX, 0, span(0, 17)), Mask::MAX);
    }

    #[test]
    fn what_is_resident_does_not_move_again() {
        assert_eq!(grow(Mask::MAX, span(0, 20), 1 << 20), Mask::MAX << 20);
    }

    #[test]
    fn the_tree_ends_with_the_allocation() {
        assert_eq!(grow(span(0, 3), 1, 2), 6);
    }

    #[test]
    fn runs_cover_the_mask_once() {
        let mask = 0b1011_0000_0000_0000_0000_0001_1100_0001u32;
        let mut seen = 0;
        for (first, count) in runs(mask) {
            assert_eq!(seen & span(first, count), 0);
            seen |= span(first, count);
        }
        assert_eq!(seen, mask);
        assert_eq!(runs(Mask::MAX).collect::<Vec<_>>(), [(0, 32)]);
    }
}
