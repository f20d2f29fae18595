//! The multilayer perceptron's layers: groups of 32 features with weights of their own, a
//! batch of 8, activations stored feature by feature with the batch innermost, groups
//! shifted by half a group from layer to layer.

use super::vector::{
    Lane8, extent, hash_word, piece_count, read, unit_float, vectorised, word, word32, write,
};
use super::{Kernel, Param, Shape};

/// Features of a group.
const WIDTH: usize = 32;
/// Samples of a batch: one vector.
const BATCH: usize = 8;
/// Groups of a piece: with weights and three activations, 56 KiB.
const GROUPS: u64 = 8;
/// Elements of a piece of the elementwise kernel: three arrays of 16 KiB.
const ELEMENTS: u64 = 4 * 1024;

/// A group's activations.
type Rows = [Lane8; WIDTH];
/// A group's weights: feature by input.
type Weights = [[f32; WIDTH]; WIDTH];

/// Groups that a launch with `per_group` threads for each covers.
fn covered(shape: &Shape, groups: u32, per_group: usize) -> u64 {
    u64::from(groups).min(shape.threads() / per_group as u64)
}

/// The groups of one piece.
#[inline(always)]
fn group_range(shape: &Shape, groups: u32, per_group: usize, piece: u64) -> std::ops::Range<usize> {
    let end = covered(shape, groups, per_group);
    let first = piece.saturating_mul(GROUPS).min(end);
    first as usize..(first + GROUPS).min(end) as usize
}

/// Row of a layer's input that feeds its feature `feature`.
#[inline(always)]
fn shifted(feature: usize, groups: u32) -> usize {
    let (row, height) = (feature + WIDTH / 2, groups as usize * WIDTH);
    if row >= height { row - height } else { row }
}

/// The two halves of a group's shifted rows: each is contiguous.
#[inline(always)]
fn shifted_halves(group: usize, groups: u32) -> [usize; 2] {
    let first = group * WIDTH;
    [shifted(first, groups), shifted(first + WIDTH / 2, groups)]
}

/// A group's shifted rows of `x`.
///
/// # Safety
///
/// `x` has `groups` groups and is only read meanwhile.
#[inline(always)]
unsafe fn shifted_rows(x: u64, group: usize, groups: u32) -> Rows {
    let mut rows = [[0.0; BATCH]; WIDTH];
    let (halves, _) = rows.as_chunks_mut::<{ WIDTH / 2 }>();
    for (half, row) in halves.iter_mut().zip(shifted_halves(group, groups)) {
        // SAFETY: half a group of rows below `groups` groups.
        half.copy_from_slice(unsafe { read(x, row, WIDTH / 2) });
    }
    rows
}

/// Element `group` of an array of groups, to read.
///
/// # Safety
///
/// The array has more than `group` elements and is only read meanwhile.
#[inline(always)]
unsafe fn group_of<'a, T>(base: u64, group: usize) -> &'a T {
    // SAFETY: given by the caller.
    unsafe { &*(base as *const T).wrapping_add(group) }
}

/// Element `group` of an array of groups, to write.
///
/// # Safety
///
/// The array has more than `group` elements and nothing else touches this one.
#[inline(always)]
unsafe fn group_mut<'a, T>(base: u64, group: usize) -> &'a mut T {
    // SAFETY: given by the caller.
    unsafe { &mut *(base as *mut T).wrapping_add(group) }
}

#[inline(always)]
fn add_scaled<const N: usize>(acc: &mut [f32; N], factor: f32, values: &[f32; N]) {
    for (acc, value) in acc.iter_mut().zip(values) {
        *acc += factor * *value;
    }
}

/// `mlp_forward(w, x, pre, y, groups)`
pub(super) const FORWARD: Kernel = Kernel {
    name: "mlp_forward",
    params: &[
        Param::Pointer,
        Param::Pointer,
        Param::Pointer,
        Param::Pointer,
        Param::U32,
    ],
    pieces: |shape, words| covered(shape, word32(words, 4), WIDTH * BATCH).div_ceil(GROUPS),
    run: forward,
};

vectorised!(forward, forward_body);

/// # Safety
///
/// As [`Kernel::run`].
#[inline(always)]
unsafe fn forward_body(shape: &Shape, words: &[u64], piece: u64) {
    let groups = word32(words, 4);
    for group in group_range(shape, groups, WIDTH * BATCH, piece) {
        // SAFETY: a group of a launch; weights and input are only read, and the outputs'
        // group belongs to this piece.
        let (w, x, pre, y): (&Weights, Rows, &mut Rows, &mut Rows) = unsafe {
            (
                group_of(word(words, 0), group),
                shifted_rows(word(words, 1), group, groups),
                group_mut(word(words, 2), group),
                group_mut(word(words, 3), group),
            )
        };
        let (w, _) = w.as_chunks::<4>();
        let (blocks, _) = pre.as_chunks_mut::<4>();
        for (w, block) in w.iter().zip(blocks) {
            let mut acc = [[0.0; BATCH]; 4];
            for (k, x) in x.iter().enumerate() {
                for (acc, w) in acc.iter_mut().zip(w) {
                    add_scaled(acc, w[k & (WIDTH - 1)], x);
                }
            }
            *block = acc;
        }
        for ((y, x), pre) in y.iter_mut().zip(&x).zip(pre.iter()) {
            for ((y, x), pre) in y.iter_mut().zip(x).zip(pre) {
                *y = *x + *pre / (1.0 + pre.abs());
            }
        }
    }
}

/// `mlp_loss(x, dy, partial, groups, seed)`
pub(super) const LOSS: Kernel = Kernel {
    name: "mlp_loss",
    params: &[
        Param::Pointer,
        Param::Pointer,
        Param::Pointer,
        Param::U32,
        Param::U32,
    ],
    pieces: |shape, words| covered(shape, word32(words, 3), WIDTH * BATCH).div_ceil(GROUPS),
    run: loss,
};

vectorised!(loss, loss_body);

/// # Safety
///
/// As [`Kernel::run`].
#[inline(always)]
unsafe fn loss_body(shape: &Shape, words: &[u64], piece: u64) {
    let (groups, seed) = (word32(words, 3), word32(words, 4));
    for group in group_range(shape, groups, WIDTH * BATCH, piece) {
        // SAFETY: a group of a launch; the input is only read, and the outputs' group
        // belongs to this piece.
        let (x, dy, partial): (&[f32; WIDTH * BATCH], &mut [f32; WIDTH * BATCH], &mut f32) = unsafe {
            (
                group_of(word(words, 0), group),
                group_mut(word(words, 1), group),
                group_mut(word(words, 2), group),
            )
        };
        let first = (group * WIDTH * BATCH) as u32;
        for (i, (dy, x)) in dy.iter_mut().zip(x).enumerate() {
            *dy = *x - unit_float(hash_word(first.wrapping_add(i as u32), seed));
        }
        *partial = dy.iter().fold(0.0, |acc, d| acc + d * d);
    }
}

/// `mlp_activation_grad(pre, dy, dpre, count)`
pub(super) const ACTIVATION_GRAD: Kernel = Kernel {
    name: "mlp_activation_grad",
    params: &[Param::Pointer, Param::Pointer, Param::Pointer, Param::U64],
    pieces: |shape, words| piece_count(shape, word(words, 3), ELEMENTS),
    run: activation_grad,
};

vectorised!(activation_grad, activation_grad_body);

/// # Safety
///
/// As [`Kernel::run`].
#[inline(always)]
unsafe fn activation_grad_body(shape: &Shape, words: &[u64], piece: u64) {
    let (start, length) = extent(shape, word(words, 3), ELEMENTS, piece);
    // SAFETY: the piece's parts of two inputs, only read.
    let (pre, dy): (&[f32], &[f32]) = unsafe {
        (
            read(word(words, 0), start, length),
            read(word(words, 1), start, length),
        )
    };
    // SAFETY: the piece's part of the output, which only this piece touches.
    let dpre: &mut [f32] = unsafe { write(word(words, 2), start, length) };
    for ((dpre, pre), dy) in dpre.iter_mut().zip(pre).zip(dy) {
        let s = 1.0 + pre.abs();
        *dpre = *dy / (s * s);
    }
}

/// `mlp_input_grad(w, dpre, dy, dx, groups)`
pub(super) const INPUT_GRAD: Kernel = Kernel {
    name: "mlp_input_grad",
    params: &[
        Param::Pointer,
        Param::Pointer,
        Param::Pointer,
        Param::Pointer,
        Param::U32,
    ],
    pieces: |shape, words| covered(shape, word32(words, 4), WIDTH * BATCH).div_ceil(GROUPS),
    run: input_grad,
};

vectorised!(input_grad, input_grad_body);

/// # Safety
///
/// As [`Kernel::run`].
#[inline(always)]
unsafe fn input_grad_body(shape: &Shape, words: &[u64], piece: u64) {
    let groups = word32(words, 4);
    for group in group_range(shape, groups, WIDTH * BATCH, piece) {
        // SAFETY: a group of a launch; all three are only read.
        let (w, dpre, dy): (&Weights, &Rows, &Rows) = unsafe {
            (
                group_of(word(words, 0), group),
                group_of(word(words, 1), group),
                group_of(word(words, 2), group),
            )
        };
        let mut dx = [[0.0; BATCH]; WIDTH];
        let (blocks, _) = dx.as_chunks_mut::<4>();
        for (block, acc) in blocks.iter_mut().enumerate() {
            let mut sums = [[0.0; BATCH]; 4];
            for (w, dpre) in w.iter().zip(dpre) {
                let (w, _) = w.as_chunks::<4>();
                for (sum, w) in sums.iter_mut().zip(&w[block & (WIDTH / 4 - 1)]) {
                    add_scaled(sum, *w, dpre);
                }
            }
            *acc = sums;
        }
        for (dx, dy) in dx.as_flattened_mut().iter_mut().zip(dy.as_flattened()) {
            *dx += *dy;
        }
        let (halves, _) = dx.as_chunks::<{ WIDTH / 2 }>();
        for (half, row) in halves.iter().zip(shifted_halves(group, groups)) {
            // SAFETY: half a group of rows below `groups` groups; the shift is one to one,
            // so no other group writes them.
            unsafe { write(word(words, 3), row, WIDTH / 2) }.copy_from_slice(half);
        }
    }
}

/// `mlp_weight_grad(dpre, x, dw, groups)`
pub(super) const WEIGHT_GRAD: Kernel = Kernel {
    name: "mlp_weight_grad",
    params: &[Param::Pointer, Param::Pointer, Param::Pointer, Param::U32],
    pieces: |shape, words| covered(shape, word32(words, 3), WIDTH * WIDTH).div_ceil(GROUPS),
    run: weight_grad,
};

vectorised!(weight_grad, weight_grad_body);

/// # Safety
///
/// As [`Kernel::run`].
#[inline(always)]
unsafe fn weight_grad_body(shape: &Shape, words: &[u64], piece: u64) {
    let groups = word32(words, 3);
    for group in group_range(shape, groups, WIDTH * WIDTH, piece) {
        // SAFETY: a group of a launch; the inputs are only read, and the output's group
        // belongs to this piece.
        let (dpre, x, dw): (&Rows, Rows, &mut Weights) = unsafe {
            (
                group_of(word(words, 0), group),
                shifted_rows(word(words, 1), group, groups),
                group_mut(word(words, 2), group),
            )
        };
        let mut samples = [[0.0; WIDTH]; BATCH];
        for (k, row) in x.iter().enumerate() {
            for (sample, value) in samples.iter_mut().zip(row) {
                sample[k & (WIDTH - 1)] = *value;
            }
        }
        for (dw, dpre) in dw.iter_mut().zip(dpre) {
            let mut acc = [0.0; WIDTH];
            for (sample, factor) in samples.iter().zip(dpre) {
                add_scaled(&mut acc, *factor, sample);
            }
            *dw = acc;
        }
    }
}
