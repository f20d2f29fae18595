//! Kernels that treat memory as words, each by itself: fills, the sweep, the mixer.

use super::vector::{
    extent, float, hash_word, piece_count, unit_float, vectorised, word, word32, write,
};
use super::{Kernel, Param, Shape};

/// Words of a piece: 64 KiB.
const PIECE: u64 = 16 * 1024;

fn pieces(shape: &Shape, words: &[u64]) -> u64 {
    piece_count(shape, word(words, 1), PIECE)
}

/// `fill_u32(out, count, first, seed)`
pub(super) const FILL_U32: Kernel = Kernel {
    name: "fill_u32",
    params: &[Param::Pointer, Param::U64, Param::U32, Param::U32],
    pieces,
    run: fill_u32,
};

vectorised!(fill_u32, fill_u32_body);

/// # Safety
///
/// As [`Kernel::run`].
#[inline(always)]
unsafe fn fill_u32_body(shape: &Shape, words: &[u64], piece: u64) {
    let (start, length) = extent(shape, word(words, 1), PIECE, piece);
    let (first, seed) = (
        word32(words, 2).wrapping_add(start as u32),
        word32(words, 3),
    );
    // SAFETY: the piece's part of the array, which only this piece touches.
    let out: &mut [u32] = unsafe { write(word(words, 0), start, length) };
    for (i, value) in out.iter_mut().enumerate() {
        *value = hash_word(first.wrapping_add(i as u32), seed);
    }
}

/// `fill_f32(out, count, first, seed, scale)`
pub(super) const FILL_F32: Kernel = Kernel {
    name: "fill_f32",
    params: &[
        Param::Pointer,
        Param::U64,
        Param::U32,
        Param::U32,
        Param::F32,
    ],
    pieces,
    run: fill_f32,
};

vectorised!(fill_f32, fill_f32_body);

/// # Safety
///
/// As [`Kernel::run`].
#[inline(always)]
unsafe fn fill_f32_body(shape: &Shape, words: &[u64], piece: u64) {
    let (start, length) = extent(shape, word(words, 1), PIECE, piece);
    let (first, seed) = (
        word32(words, 2).wrapping_add(start as u32),
        word32(words, 3),
    );
    let scale = float(words, 4);
    // SAFETY: the piece's part of the array, which only this piece touches.
    let out: &mut [f32] = unsafe { write(word(words, 0), start, length) };
    for (i, value) in out.iter_mut().enumerate() {
        *value = unit_float(hash_word(first.wrapping_add(i as u32), seed)) * scale;
    }
}

/// `sweep_step(state, count, a, b, c)`
pub(super) const SWEEP_STEP: Kernel = Kernel {
    name: "sweep_step",
    params: &[
        Param::Pointer,
        Param::U64,
        Param::U32,
        Param::U32,
        Param::U32,
    ],
    pieces,
    run: sweep_step,
};

vectorised!(sweep_step, sweep_step_body);

/// # Safety
///
/// As [`Kernel::run`].
#[inline(always)]
unsafe fn sweep_step_body(shape: &Shape, words: &[u64], piece: u64) {
    let (start, length) = extent(shape, word(words, 1), PIECE, piece);
    let (a, b, c) = (word32(words, 2), word32(words, 3), word32(words, 4));
    // SAFETY: the piece's part of the array, which only this piece touches.
    let state: &mut [u32] = unsafe { write(word(words, 0), start, length) };
    for value in state {
        *value = value.wrapping_mul(a).wrapping_add(b) ^ c;
    }
}

/// `mix_rounds(state, count, rounds, key)`
pub(super) const MIX_ROUNDS: Kernel = Kernel {
    name: "mix_rounds",
    params: &[Param::Pointer, Param::U64, Param::U32, Param::U32],
    pieces: |shape, words| piece_count(shape, word(words, 1), MIX_PIECE),
    run: mix_rounds,
};

/// Words of a piece of the mixer: fewer, because each word takes long.
const MIX_PIECE: u64 = 4 * 1024;

/// Words that the mixer carries through the rounds side by side, to hide latency.
const MIX_LANES: usize = 32;

vectorised!(mix_rounds, mix_rounds_body);

/// # Safety
///
/// As [`Kernel::run`].
#[inline(always)]
unsafe fn mix_rounds_body(shape: &Shape, words: &[u64], piece: u64) {
    let (start, length) = extent(shape, word(words, 1), MIX_PIECE, piece);
    let (rounds, key) = (word32(words, 2), word32(words, 3));
    let mix = |x: u32, round: u32| {
        (x ^ (x >> 15))
            .wrapping_mul(0x2C1B_3C6D)
            .wrapping_add(key.wrapping_add(round))
    };
    // SAFETY: the piece's part of the array, which only this piece touches.
    let state: &mut [u32] = unsafe { write(word(words, 0), start, length) };
    let (groups, rest) = state.as_chunks_mut::<MIX_LANES>();
    for group in groups {
        let mut lanes = *group;
        for round in 0..rounds {
            for lane in &mut lanes {
                *lane = mix(*lane, round);
            }
        }
        *group = lanes;
    }
    for value in rest {
        *value = (0..rounds).fold(*value, mix);
    }
}
