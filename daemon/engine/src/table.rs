//! Tables by slot: dense, and never much larger than what stands in them.
//!
//! A list that doubles takes up to twice what it needs; with hundreds of thousands of blocks that
//! is most of what an engine takes. These grow by an eighth: an entry is copied eight times at
//! most, on average.

/// A table grows by one in so many of its entries, or by so many.
const SHARE: usize = 8;

/// Makes room for one more entry.
pub(crate) fn reserve_one<T>(table: &mut Vec<T>) {
    if table.len() == table.capacity() {
        table.reserve_exact((table.len() / SHARE).max(SHARE));
    }
}

/// The entry of a slot; those that are missing up to there are `empty`.
#[inline]
pub(crate) fn entry<T: Clone>(table: &mut Vec<T>, slot: u32, empty: T) -> &mut T {
    let index = slot as usize;
    if index >= table.len() {
        grow(table, index, empty);
    }
    &mut table[index]
}

#[cold]
fn grow<T: Clone>(table: &mut Vec<T>, index: usize, empty: T) {
    if index >= table.capacity() {
        let grown = table.len() + (table.len() / SHARE).max(SHARE);
        table.reserve_exact(grown.max(index + 1) - table.len());
    }
    table.resize(index + 1, empty);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_an_eighth_larger_than_what_it_holds_at_most() {
        let (mut by_slot, mut in_order) = (Vec::new(), Vec::new());
        for slot in 0..10_000_u32 {
            *entry(&mut by_slot, slot, 0) = slot;
            reserve_one(&mut in_order);
            in_order.push(slot);
        }
        assert_eq!(by_slot, in_order);
        for table in [&by_slot, &in_order] {
            assert!(
                table.capacity() <= 10_000 * 9 / 8 + SHARE,
                "{}",
                table.capacity()
            );
        }
        *entry(&mut by_slot, 20_000, 7) = 1;
        assert_eq!(
            (by_slot.len(), by_slot[10_000], by_slot[20_000]),
            (20_001, 7, 1)
        );
    }
}
