//! The pseudo-random sequences that the kernels fill memory with, computed on the CPU.

/// Odd constant that spreads neighbouring indices.
const SPREAD: u32 = 0x9E37_79B9;

/// Word `index` of sequence `seed`, as `hash_word` in `kernels.cu`.
#[inline(always)]
pub fn word(index: u32, seed: u32) -> u32 {
    let x = index.wrapping_mul(SPREAD).wrapping_add(seed);
    let x = (x ^ (x >> 16)).wrapping_mul(0x7FEB_352D);
    let x = (x ^ (x >> 15)).wrapping_mul(0x846C_A68B);
    x ^ (x >> 16)
}

/// A word as a float in [-1, 1), exactly, as `unit_float` in `kernels.cu`.
#[inline(always)]
pub fn unit(word: u32) -> f32 {
    let centred = (word >> 8) as i32 - (1 << 23);
    centred as f32 / (1u32 << 23) as f32
}

/// A seed for purpose `stream` of a run with seed `seed`.
pub fn derive(seed: u32, stream: u32) -> u32 {
    word(stream, seed ^ 0x5851_F42D)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_span_the_interval_exactly() {
        assert_eq!(unit(0), -1.0);
        assert_eq!(unit(0x8000_0000), 0.0);
        assert_eq!(unit(u32::MAX), 1.0 - f32::EPSILON);
    }

    #[test]
    fn neighbours_and_seeds_differ() {
        let words: std::collections::BTreeSet<u32> = (0..1000)
            .map(|i| word(i, 3))
            .chain((0..1000).map(|i| word(i, 4)))
            .collect();
        assert!(words.len() > 1995);
    }
}
