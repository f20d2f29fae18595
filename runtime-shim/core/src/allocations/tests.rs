use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn allocation(block: u64, blocks: u64) -> Allocation {
    Allocation {
        address: block * BLOCK_BYTES,
        bytes: blocks * BLOCK_BYTES,
        requested: blocks * BLOCK_BYTES - 5,
        driver_address: block * BLOCK_BYTES,
        flags: 0,
    }
}

#[test]
fn every_address_inside_finds_its_allocation_and_none_outside() {
    let table = Allocations::new();
    assert_eq!(table.find(0x7f00_0000_0000), None);
    let one = allocation(0x3_f800, 3);
    assert!(table.insert(one));
    assert_eq!(table.find(one.address), Some(one));
    assert_eq!(table.find(one.end() - 1), Some(one));
    assert_eq!(table.find(one.end()), None);
    assert_eq!(table.find(one.address - 1), None);
    assert_eq!(table.find(u64::MAX), None);
    assert_eq!(table.remove(one.address + BLOCK_BYTES), None);
    assert_eq!(table.remove(one.address), Some(one));
    assert_eq!(table.find(one.address), None);
    assert_eq!(table.total_bytes(), 0);
}

#[test]
fn what_is_not_whole_blocks_or_beyond_the_table_stays_untracked() {
    let table = Allocations::new();
    assert!(!table.insert(Allocation {
        address: BLOCK_BYTES + 4096,
        ..allocation(1, 1)
    }));
    assert!(!table.insert(Allocation {
        bytes: 0,
        ..allocation(1, 1)
    }));
    assert!(!table.insert(allocation(1 << 40, 1)));
    assert_eq!(table.untracked(), 3);
}

#[test]
fn a_full_table_refuses_and_counts_and_takes_again_after_a_removal() {
    let table = Allocations::new();
    for block in 1..=MAX_ALLOCATIONS as u64 {
        assert!(table.insert(allocation(block, 1)));
    }
    let one_more = allocation(MAX_ALLOCATIONS as u64 + 1, 1);
    assert!(!table.insert(one_more));
    assert_eq!(table.untracked(), 1);
    assert!(table.remove(5 * BLOCK_BYTES).is_some());
    assert!(table.insert(one_more));
    table.clear();
    assert_eq!((table.total_bytes(), table.iter().count()), (0, 0));
}

#[test]
fn an_export_is_remembered_once() {
    let table = Allocations::new();
    assert!(table.insert(allocation(9, 1)));
    assert!(table.mark_exported(9 * BLOCK_BYTES));
    assert!(!table.mark_exported(9 * BLOCK_BYTES));
    assert!(!table.mark_exported(99 * BLOCK_BYTES));
}

proptest! {
    #[test]
    fn it_answers_as_an_ordered_map_would(
        steps in prop::collection::vec((any::<bool>(), 1_u64..200, 1_u64..9), 1..300)
    ) {
        let table = Allocations::new();
        let mut map: BTreeMap<u64, Allocation> = BTreeMap::new();
        for (add, block, blocks) in steps {
            let new = allocation(block, blocks);
            let free = !map.values().any(|a| a.address < new.end() && new.address < a.end());
            if add && free {
                prop_assert!(table.insert(new));
                map.insert(new.address, new);
            } else if !add {
                prop_assert_eq!(table.remove(new.address), map.remove(&new.address));
            }
            for block in 0..210 {
                let address = block * BLOCK_BYTES + 77;
                let expected = map.range(..=address).next_back();
                let expected = expected.map(|(_, a)| *a).filter(|a| address < a.end());
                prop_assert_eq!(table.find(address), expected);
                prop_assert_eq!(table.contains(address), expected.is_some());
            }
            let total: u64 = map.values().map(|a| a.bytes).sum();
            prop_assert_eq!(table.total_bytes(), total);
        }
    }
}
