//! The gather kernel: rows of a table at hashed places, folded into a small output.

use super::vector::{hash_word, read, vectorised, word, word32, write};
use super::{Kernel, Param, Shape};

/// Words of a row, and of a slot's output.
const ROW: usize = 16;

/// `gather_rows(table, out, rows, slots, per_slot, key)`. A piece is one slot: its rows lie
/// on as many pages.
pub(super) const GATHER_ROWS: Kernel = Kernel {
    name: "gather_rows",
    params: &[
        Param::Pointer,
        Param::Pointer,
        Param::U32,
        Param::U32,
        Param::U32,
        Param::U32,
    ],
    pieces: |shape, words| u64::from(word32(words, 3)).min(shape.threads() / ROW as u64),
    run: gather_rows,
};

vectorised!(gather_rows, gather_rows_body);

/// # Safety
///
/// As [`Kernel::run`].
#[inline(always)]
unsafe fn gather_rows_body(_: &Shape, words: &[u64], piece: u64) {
    let (table, out) = (word(words, 0), word(words, 1));
    let (rows, per_slot, key) = (word32(words, 2), word32(words, 4), word32(words, 5));
    let first = (piece as u32).wrapping_mul(per_slot);
    // SAFETY: the slot's output, which only this piece touches.
    let out: &mut [[u32; ROW]] = unsafe { write(out, piece as usize, 1) };
    let [out] = out else { return };
    let mut acc = *out;
    for j in 0..per_slot {
        let hash = hash_word(first.wrapping_add(j), key);
        let row = (u64::from(hash) * u64::from(rows)) >> 32;
        // SAFETY: below `rows`; the table is only read.
        let line: &[[u32; ROW]] = unsafe { read(table, row as usize, 1) };
        let [line] = line else { return };
        for (acc, value) in acc.iter_mut().zip(line) {
            *acc = (*acc ^ (*acc >> 15))
                .wrapping_mul(0x9E37_79B1)
                .wrapping_add(*value);
        }
    }
    *out = acc;
}
