//! What the kernels share: access to parameters and device memory, the hash of the
//! programs' pseudo-random sequences, and the choice of vector instructions.

use super::Shape;

/// Eight floats: one vector register.
pub(super) type Lane8 = [f32; 8];

/// Defines `$run`, which runs `$body` compiled for AVX2 where the processor has it. The
/// feature test is one atomic load (the standard library fills it on first use).
macro_rules! vectorised {
    ($run:ident, $body:ident) => {
        /// Runs one piece with the best instructions at hand.
        ///
        /// # Safety
        ///
        /// As [`super::Kernel::run`].
        unsafe fn $run(shape: &super::Shape, words: &[u64], piece: u64) {
            #[cfg(target_arch = "x86_64")]
            {
                /// The body, compiled for AVX2.
                ///
                /// # Safety
                ///
                /// As [`super::Kernel::run`], on a processor with AVX2.
                #[target_feature(enable = "avx2")]
                unsafe fn avx2(shape: &super::Shape, words: &[u64], piece: u64) {
                    // SAFETY: passed on unchanged.
                    unsafe { $body(shape, words, piece) }
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: the feature is there; the rest is passed on unchanged.
                    return unsafe { avx2(shape, words, piece) };
                }
            }
            // SAFETY: passed on unchanged.
            unsafe { $body(shape, words, piece) }
        }
    };
}
pub(super) use vectorised;

/// Parameter `index`, 0 where the launch has fewer.
#[inline(always)]
pub(super) fn word(words: &[u64], index: usize) -> u64 {
    words.get(index).copied().unwrap_or(0)
}

/// Parameter `index` as a 32-bit integer.
#[inline(always)]
pub(super) fn word32(words: &[u64], index: usize) -> u32 {
    word(words, index) as u32
}

/// Parameter `index` as a float.
#[inline(always)]
pub(super) fn float(words: &[u64], index: usize) -> f32 {
    f32::from_bits(word32(words, index))
}

/// The elements that piece `piece` of `size` covers, of `count` in a launch of `shape`:
/// first index and length.
#[inline(always)]
pub(super) fn extent(shape: &Shape, count: u64, size: u64, piece: u64) -> (usize, usize) {
    let covered = count.min(shape.threads());
    let first = piece.saturating_mul(size).min(covered);
    (first as usize, (covered - first).min(size) as usize)
}

/// How many pieces of `size` elements the launch has.
pub(super) fn piece_count(shape: &Shape, count: u64, size: u64) -> u64 {
    count.min(shape.threads()).div_ceil(size)
}

/// Device memory to read: `length` elements from element `first` of `base`.
///
/// # Safety
///
/// The range lies in memory of the launch, aligned for `T`, and no piece writes it
/// meanwhile.
#[inline(always)]
pub(super) unsafe fn read<'a, T>(base: u64, first: usize, length: usize) -> &'a [T] {
    if length == 0 {
        return &[];
    }
    // SAFETY: given by the caller; a fault on the way is served without being seen here.
    unsafe { std::slice::from_raw_parts((base as *const T).wrapping_add(first), length) }
}

/// Device memory to write: `length` elements from element `first` of `base`.
///
/// # Safety
///
/// The range lies in memory of the launch, aligned for `T`, and no other piece touches it.
#[inline(always)]
pub(super) unsafe fn write<'a, T>(base: u64, first: usize, length: usize) -> &'a mut [T] {
    if length == 0 {
        return &mut [];
    }
    // SAFETY: given by the caller; a fault on the way is served without being seen here.
    unsafe { std::slice::from_raw_parts_mut((base as *mut T).wrapping_add(first), length) }
}

/// The word at `index` of the pseudo-random sequence `seed`.
#[inline(always)]
pub(super) fn hash_word(index: u32, seed: u32) -> u32 {
    let mut x = index.wrapping_mul(0x9E37_79B9).wrapping_add(seed);
    x ^= x >> 16;
    x = x.wrapping_mul(0x7FEB_352D);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846C_A68B);
    x ^ (x >> 16)
}

/// A float in [-1, 1) from the upper 24 bits of a word, exactly.
#[inline(always)]
pub(super) fn unit_float(word: u32) -> f32 {
    ((word >> 8) as i32 - 8_388_608) as f32 * (1.0 / 8_388_608.0)
}
