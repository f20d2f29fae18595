//! The optimizer's step.

use super::vector::{extent, float, piece_count, read, vectorised, word, write};
use super::{Kernel, Param, Shape};

/// Parameters of a piece: four arrays of 16 KiB.
const PIECE: u64 = 4 * 1024;

/// `adam_step(w, m, v, g, count, rate, beta1, beta2, epsilon)`
pub(super) const ADAM_STEP: Kernel = Kernel {
    name: "adam_step",
    params: &[
        Param::Pointer,
        Param::Pointer,
        Param::Pointer,
        Param::Pointer,
        Param::U64,
        Param::F32,
        Param::F32,
        Param::F32,
        Param::F32,
    ],
    pieces: |shape, words| piece_count(shape, word(words, 4), PIECE),
    run: adam_step,
};

vectorised!(adam_step, adam_step_body);

/// # Safety
///
/// As [`Kernel::run`].
#[inline(always)]
unsafe fn adam_step_body(shape: &Shape, words: &[u64], piece: u64) {
    let (start, length) = extent(shape, word(words, 4), PIECE, piece);
    let (rate, beta1, beta2, epsilon) = (
        float(words, 5),
        float(words, 6),
        float(words, 7),
        float(words, 8),
    );
    let (rest1, rest2) = (1.0 - beta1, 1.0 - beta2);
    // SAFETY: the piece's parts of three arrays, which only this piece touches.
    let (w, m, v): (&mut [f32], &mut [f32], &mut [f32]) = unsafe {
        (
            write(word(words, 0), start, length),
            write(word(words, 1), start, length),
            write(word(words, 2), start, length),
        )
    };
    // SAFETY: the piece's part of the gradient, only read.
    let g: &[f32] = unsafe { read(word(words, 3), start, length) };
    for (((w, m), v), g) in w.iter_mut().zip(m).zip(v).zip(g) {
        *m = beta1 * *m + rest1 * *g;
        *v = beta2 * *v + rest2 * (*g * *g);
        *w -= rate * *m / (v.sqrt() + epsilon);
    }
}
