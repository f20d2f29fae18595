//! `gather`: launches read rows of a large table at places that only a hash knows.

use crate::args::{ArgumentError, check_bytes};
use crate::checksum;
use crate::parallel;
use crate::sequence::{derive, word};
use crate::size::BLOCK;

/// Words of a row: 64 bytes.
pub const ROW_WORDS: u64 = 16;

/// Slots of the output; each folds its own rows.
pub const SLOTS: u32 = 256;

/// Rows that a slot reads in a launch.
pub const ROWS_PER_SLOT: u32 = 16;

/// What a launch reads.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Slots.
    pub slots: u32,
    /// Rows that each reads.
    pub per_slot: u32,
    /// Key of the places.
    pub key: u32,
}

impl Launch {
    /// Launch `number` of the run.
    pub fn of(number: u32, seed: u32) -> Launch {
        Launch {
            slots: SLOTS,
            per_slot: ROWS_PER_SLOT,
            key: word(number, derive(seed, 20)),
        }
    }
}

/// Rows of the table within `bytes`, one block being the output's.
pub fn table_rows(bytes: u64) -> Result<u32, ArgumentError> {
    // Rows are counted in 32 bits.
    let given = check_bytes(bytes, 2 * BLOCK, (1 << 38) - BLOCK)?;
    Ok(((given / BLOCK - 1) * BLOCK / (ROW_WORDS * 4)) as u32)
}

/// Seed of the table's content.
pub fn table_seed(seed: u32) -> u32 {
    derive(seed, 0)
}

/// Checksum of the output after `launches`, started from zero.
pub fn reference(rows: u32, launches: u32, seed: u32) -> u64 {
    let fill = table_seed(seed);
    parallel::sum(SLOTS as usize, |slot| {
        let mut out = [0u32; ROW_WORDS as usize];
        for number in 0..launches {
            let Launch { per_slot, key, .. } = Launch::of(number, seed);
            for j in 0..per_slot {
                let place = u64::from(word(slot as u32 * per_slot + j, key));
                let row = (place * u64::from(rows)) >> 32;
                let first = (row * ROW_WORDS) as u32;
                for (lane, x) in (0..).zip(&mut out) {
                    let value = word(first.wrapping_add(lane), fill);
                    *x = (*x ^ (*x >> 15))
                        .wrapping_mul(0x9E37_79B1)
                        .wrapping_add(value);
                }
            }
        }
        checksum::of_words(&out, slot as u64 * ROW_WORDS)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_reads_the_table_at_the_hashed_rows() {
        let (rows, launches, seed) = (999u32, 3u32, 7);
        let table: Vec<u32> = (0..rows * ROW_WORDS as u32)
            .map(|i| word(i, table_seed(seed)))
            .collect();
        let run = |table: &[u32]| {
            let mut out = vec![0u32; SLOTS as usize * 16];
            for number in 0..launches {
                let key = Launch::of(number, seed).key;
                for (i, x) in out.iter_mut().enumerate() {
                    for j in 0..ROWS_PER_SLOT {
                        let place = word((i / 16) as u32 * ROWS_PER_SLOT + j, key);
                        let row = (u64::from(place) * u64::from(rows)) >> 32;
                        let value = table[row as usize * 16 + i % 16];
                        *x = (*x ^ (*x >> 15))
                            .wrapping_mul(0x9E37_79B1)
                            .wrapping_add(value);
                    }
                }
            }
            checksum::of_words(&out, 0)
        };
        assert_eq!(reference(rows, launches, seed), run(&table));
        let mut wrong = table;
        wrong.iter_mut().for_each(|x| *x ^= 1 << 31);
        assert_ne!(reference(rows, launches, seed), run(&wrong));
    }

    #[test]
    fn the_table_leaves_a_block_to_the_output() {
        assert_eq!(table_rows(3 * BLOCK), Ok((2 * BLOCK / 64) as u32));
        assert!(table_rows(BLOCK).is_err());
        assert!(table_rows(1 << 40).is_err());
    }
}
