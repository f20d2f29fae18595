//! `gemm`: the product C = A x B of matrices in tiles, larger together than device memory.
//!
//! A is short (32 rows) and B is wide, as in a network's forward pass: so a tile of B is
//! used for little arithmetic, and moving it matters. Tiles are stored one after the
//! other, row by row, and the loops take them row by row, as a program does that knows
//! nothing of paging. Words wrap, so the result does not depend on the order of sums.

use crate::args::{ArgumentError, check_bytes};
use crate::checksum;
use crate::parallel;
use crate::sequence::{derive, word};
use crate::size::{BLOCK, MIB, whole_blocks};

/// Rows of a tile of A and of C.
pub const TILE_M: u64 = 16;
/// Columns of a tile of A, rows of a tile of B.
pub const TILE_K: u64 = 1024;
/// Columns of a tile of B and of C.
pub const TILE_N: u64 = 1024;
/// Columns of a panel, in which tiles of B and C are stored.
pub const PANEL: u64 = 16;

/// Words of a tile of A: 64 KiB.
pub const TILE_A: u64 = TILE_M * TILE_K;
/// Words of a tile of B: 4 MiB.
pub const TILE_B: u64 = TILE_K * TILE_N;
/// Words of a tile of C: 64 KiB.
pub const TILE_C: u64 = TILE_M * TILE_N;

/// Tile rows of A and C.
pub const ROWS: u64 = 2;

/// How many tiles there are along k and n.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Tile columns of A, tile rows of B.
    pub depth: u64,
    /// Tile columns of B and C.
    pub columns: u64,
}

impl Shape {
    /// The largest shape within `bytes` whose sides differ by at most a factor of two.
    pub fn within(bytes: u64) -> Result<Shape, ArgumentError> {
        let least = Shape {
            depth: 1,
            columns: 1,
        };
        // Words of B are counted in 32 bits.
        check_bytes(bytes, least.bytes(), 16 << 30)?;
        let largest = bytes / (TILE_B * 4);
        let mut best = least;
        for depth in 1..=largest {
            for columns in depth.div_ceil(2)..=(2 * depth).min(largest / depth) {
                let shape = Shape { depth, columns };
                if shape.bytes() <= bytes && shape.bytes() > best.bytes() {
                    best = shape;
                }
            }
        }
        Ok(best)
    }

    /// Words of A, B and C.
    pub fn words(self) -> [u64; 3] {
        [
            ROWS * self.depth * TILE_A,
            self.depth * self.columns * TILE_B,
            ROWS * self.columns * TILE_C,
        ]
    }

    /// Footprint of the three matrices, bytes.
    pub fn bytes(self) -> u64 {
        self.words()
            .iter()
            .map(|words| whole_blocks(words * 4))
            .sum()
    }

    /// The tile products of a pass, in order: first words of the tiles of A, B and C.
    pub fn launches(self) -> impl Iterator<Item = [u64; 3]> {
        let Shape { depth, columns } = self;
        (0..ROWS).flat_map(move |i| {
            (0..columns).flat_map(move |j| {
                (0..depth).map(move |k| {
                    [
                        (i * depth + k) * TILE_A,
                        (k * columns + j) * TILE_B,
                        (i * columns + j) * TILE_C,
                    ]
                })
            })
        })
    }
}

/// Seeds of A and B.
pub fn fill_seeds(seed: u32) -> [u32; 2] {
    [derive(seed, 30), derive(seed, 31)]
}

/// Checksum of C after `passes`, each of which adds the product to C, started from zero.
pub fn reference(shape: Shape, passes: u32, seed: u32) -> u64 {
    let Shape { depth, columns } = shape;
    let [a_seed, b_seed] = fill_seeds(seed);
    let height = (ROWS * TILE_M) as usize;
    // A by columns, so that the inner loop reads it in order.
    let mut a = vec![0u32; height * (depth * TILE_K) as usize];
    for (k, column) in (0u64..).zip(a.chunks_exact_mut(height)) {
        for (row, x) in (0u64..).zip(column) {
            let tile = (row / TILE_M * depth + k / TILE_K) * TILE_A;
            *x = word((tile + row % TILE_M * TILE_K + k % TILE_K) as u32, a_seed);
        }
    }
    let panels = TILE_N / PANEL;
    parallel::sum((columns * panels) as usize, |item| {
        let (j, panel) = (item as u64 / panels, item as u64 % panels);
        let mut c = [[0u32; PANEL as usize]; (ROWS * TILE_M) as usize];
        parallel::vectorised(|| {
            for k in 0..depth * TILE_K {
                let tile = (k / TILE_K * columns + j) * TILE_B;
                let first = (tile + (panel * TILE_K + k % TILE_K) * PANEL) as u32;
                let mut b = [0u32; PANEL as usize];
                for (lane, b) in (0..).zip(&mut b) {
                    *b = word(first + lane, b_seed);
                }
                let a = &a[k as usize * height..][..height];
                for (c, a) in c.iter_mut().zip(a) {
                    for (c, b) in c.iter_mut().zip(&b) {
                        *c = c.wrapping_add(a.wrapping_mul(*b));
                    }
                }
            }
        });
        let mut sum = 0u64;
        for (row, line) in (0u64..).zip(&mut c) {
            line.iter_mut().for_each(|x| *x = x.wrapping_mul(passes));
            let tile = (row / TILE_M * columns + j) * TILE_C;
            let place = tile + (panel * TILE_M + row % TILE_M) * PANEL;
            sum = sum.wrapping_add(checksum::of_words(line, place));
        }
        sum
    })
}

/// The default working set, bytes.
pub const DEFAULT_BYTES: u64 = 768 * MIB;

/// The least footprint that [`Shape::within`] takes, bytes.
pub const LEAST_BYTES: u64 = TILE_B * 4 + 2 * BLOCK;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_use_most_of_what_they_may_and_never_more() {
        for mib in [8u64, 20, 64, 256, 512, 768, 1000, 4096, 16384] {
            let shape = Shape::within(mib * MIB).expect("large enough");
            assert!(shape.bytes() <= mib * MIB, "{mib}: {shape:?}");
            assert!(
                mib < 64 || shape.bytes() > mib * MIB * 9 / 10,
                "{mib}: {shape:?}"
            );
            assert!(shape.words()[1] <= 1 << 32);
        }
        assert!(Shape::within(LEAST_BYTES - 1).is_err());
        assert_eq!(
            Shape::within(LEAST_BYTES),
            Ok(Shape {
                depth: 1,
                columns: 1
            })
        );
    }

    #[test]
    fn a_pass_takes_every_product_once_row_by_row() {
        let shape = Shape {
            depth: 2,
            columns: 3,
        };
        let all: Vec<_> = shape.launches().collect();
        assert_eq!(all.len() as u64, ROWS * 6);
        assert_eq!(all[0], [0, 0, 0]);
        assert_eq!(all[1], [TILE_A, 3 * TILE_B, 0]);
        assert_eq!(all[2], [0, TILE_B, TILE_C]);
        assert_eq!(all[6], [2 * TILE_A, 0, 3 * TILE_C]);
    }

    #[test]
    fn the_reference_is_the_product_word_by_word() {
        let (shape, passes, seed) = (
            Shape {
                depth: 1,
                columns: 1,
            },
            3u32,
            11,
        );
        let [a_seed, b_seed] = fill_seeds(seed);
        let mut sum = 0u64;
        for place in 0..ROWS * TILE_C {
            let (tile, inner) = (place / TILE_C, place % TILE_C);
            let (panel, rest) = (inner / (TILE_M * PANEL), inner % (TILE_M * PANEL));
            let (row, column) = (rest / PANEL, rest % PANEL);
            let mut x = 0u32;
            for k in 0..TILE_K {
                let a = word((tile * TILE_A + row * TILE_K + k) as u32, a_seed);
                let b = word(((panel * TILE_K + k) * PANEL + column) as u32, b_seed);
                x = x.wrapping_add(a.wrapping_mul(b));
            }
            sum = sum.wrapping_add(checksum::of_words(&[x.wrapping_mul(passes)], place));
        }
        assert_eq!(reference(shape, passes, seed), sum);
        assert_ne!(reference(shape, passes + 1, seed), sum);
    }
}
