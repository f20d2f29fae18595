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
        multiply(block, [a0, a1, a2, a3], b);
    }
    for (row, line) in rest.iter_mut().zip(lines) {
        for (b, x) in b.iter().zip(line) {
            add_scaled(row, *x, b);
        }
    }
}

/// Adds to four rows of C the product of four rows of A with a panel of B.
#[inline(always)]
fn multiply(c: &mut [[u32; PANEL]; ROWS], a: [&[u32]; ROWS], b: &[[u32; PANEL]]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the feature is there.
        return unsafe { multiply_avx2(c, a, b) };
    }
    for ((((b, x0), x1), x2), x3) in b.iter().zip(a[0]).zip(a[1]).zip(a[2]).zip(a[3]) {
        for (c, x) in c.iter_mut().zip([*x0, *x1, *x2, *x3]) {
            add_scaled(c, x, b);
        }
    }
}

/// [`multiply`], with the sums in eight registers: the compiler does not find that by
/// itself.
///
/// # Safety
///
/// Only on a processor with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn multiply_avx2(c: &mut [[u32; PANEL]; ROWS], a: [&[u32]; ROWS], b: &[[u32; PANEL]]) {
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi32, _mm256_loadu_si256, _mm256_mullo_epi32, _mm256_set1_epi32,
        _mm256_setzero_si256, _mm256_storeu_si256,
    };
    let halves = |row: &[u32; PANEL]| {
        let first = row.as_ptr().cast::<__m256i>();
        // SAFETY: a row is two registers long.
        unsafe {
            [
                _mm256_loadu_si256(first),
                _mm256_loadu_si256(first.wrapping_add(1)),
            ]
        }
    };
    let mut sums = [[_mm256_setzero_si256(); 2]; ROWS];
    for (sum, row) in sums.iter_mut().zip(c.iter()) {
        *sum = halves(row);
    }
    for ((((b, x0), x1), x2), x3) in b.iter().zip(a[0]).zip(a[1]).zip(a[2]).zip(a[3]) {
        let b = halves(b);
        for (sum, x) in sums.iter_mut().zip([*x0, *x1, *x2, *x3]) {
            let x = _mm256_set1_epi32(x.cast_signed());
            sum[0] = _mm256_add_epi32(sum[0], _mm256_mullo_epi32(x, b[0]));
            sum[1] = _mm256_add_epi32(sum[1], _mm256_mullo_epi32(x, b[1]));
        }
    }
    for (row, sum) in c.iter_mut().zip(&sums) {
        let first = row.as_mut_ptr().cast::<__m256i>();
        // SAFETY: a row is two registers long.
        unsafe {
            _mm256_storeu_si256(first, sum[0]);
            _mm256_storeu_si256(first.wrapping_add(1), sum[1]);
        }
    }
}

#[inline(always)]
fn add_scaled(acc: &mut [u32; PANEL], factor: u32, values: &[u32; PANEL]) {
    for (acc, value) in acc.iter_mut().zip(values) {
        *acc = acc.wrapping_add(factor.wrapping_mul(*value));
    }
}
