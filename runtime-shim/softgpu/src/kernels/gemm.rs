//! The product of two tiles, words wrapping: C += A x B, B and C in panels of 16 columns.

use super::vector::{read, vectorised, word, word32, write};
use super::{Kernel, Param, Shape};

/// Columns of a panel.
const PANEL: usize = 16;

/// Rows of C that are summed side by side: with 16 columns they fill 8 vector registers.
const ROWS: usize = 4;

/// `gemm_tile(a, b, c, m, k, n)`. A piece is one panel: with 1024 rows of B, 64 KiB of it.
pub(super) const GEMM_TILE: Kernel = Kernel {
    name: "gemm_tile",
    params: &[
        Param::Pointer,
        Param::Pointer,
        Param::Pointer,
        Param::U32,
        Param::U32,
        Param::U32,
    ],
    pieces: |shape, words| {
        let per_panel = u64::from(word32(words, 3)) * PANEL as u64;
        let covered = shape.threads().checked_div(per_panel).unwrap_or(0);
        covered.min(u64::from(word32(words, 5)) / PANEL as u64)
    },
    run: gemm_tile,
};

vectorised!(gemm_tile, gemm_tile_body);

/// # Safety
///
/// As [`Kernel::run`].
#[inline(always)]
unsafe fn gemm_tile_body(_: &Shape, words: &[u64], piece: u64) {
    let (m, k, panel) = (
        word32(words, 3) as usize,
        word32(words, 4) as usize,
        piece as usize,
    );
    // SAFETY: all of A, only read.
    let a: &[u32] = unsafe { read(word(words, 0), 0, m * k) };
    // SAFETY: this panel of B, only read.
    let b: &[[u32; PANEL]] = unsafe { read(word(words, 1), panel * k, k) };
    // SAFETY: this panel of C, which only this piece touches.
    let c: &mut [[u32; PANEL]] = unsafe { write(word(words, 2), panel * m, m) };
    if k == 0 {
        return;
    }
    let (blocks, rest) = c.as_chunks_mut::<ROWS>();
    let mut lines = a.chunks_exact(k);
    for block in blocks {
        let (Some(a0), Some(a1), Some(a2), Some(a3)) =
            (lines.next(), lines.next(), lines.next(), lines.next())
        else {
            return;
        };
        let mut acc = *block;
        for ((((b, x0), x1), x2), x3) in b.iter().zip(a0).zip(a1).zip(a2).zip(a3) {
            for (acc, x) in acc.iter_mut().zip([*x0, *x1, *x2, *x3]) {
                add_scaled(acc, x, b);
            }
        }
        *block = acc;
    }
    for (row, line) in rest.iter_mut().zip(lines) {
        for (b, x) in b.iter().zip(line) {
            add_scaled(row, *x, b);
        }
    }
}

#[inline(always)]
fn add_scaled(acc: &mut [u32; PANEL], factor: u32, values: &[u32; PANEL]) {
    for (acc, value) in acc.iter_mut().zip(values) {
        *acc = acc.wrapping_add(factor.wrapping_mul(*value));
    }
}
