//! `sweep`: every iteration reads and writes a whole state, chunk by chunk, in order.

use crate::args::{ArgumentError, check_bytes};
use crate::checksum;
use crate::parallel;
use crate::sequence::{derive, word};
use crate::size::{BLOCK, MIB};

/// Bytes of a launch, unless another number is asked for.
pub const CHUNK_BYTES: u64 = 8 * MIB;

/// The same in words.
pub const CHUNK_WORDS: u64 = CHUNK_BYTES / 4;

/// What an iteration does to each word `x`: `(x * a + b) ^ c`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Odd factor.
    pub a: u32,
    /// Summand.
    pub b: u32,
    /// Pattern.
    pub c: u32,
}

impl Step {
    /// That of iteration `iteration`.
    pub fn of(iteration: u32, seed: u32) -> Step {
        Step {
            a: word(iteration, derive(seed, 1)) | 1,
            b: word(iteration, derive(seed, 2)),
            c: word(iteration, derive(seed, 3)),
        }
    }

    /// The word that follows `x`.
    #[inline(always)]
    pub fn apply(self, x: u32) -> u32 {
        x.wrapping_mul(self.a).wrapping_add(self.b) ^ self.c
    }
}

/// Words of the state within `bytes`: whole 2 MiB blocks.
pub fn state_words(bytes: u64) -> Result<u64, ArgumentError> {
    Ok(check_bytes(bytes, BLOCK, 1 << 50)? / BLOCK * BLOCK / 4)
}

/// The launches of an iteration: first word and length of each.
pub fn chunks(words: u64, chunk: u64) -> impl Iterator<Item = (u64, u64)> + Clone {
    (0..words)
        .step_by(chunk as usize)
        .map(move |first| (first, chunk.min(words - first)))
}

/// Seed of the state's first content.
pub fn fill_seed(seed: u32) -> u32 {
    derive(seed, 0)
}

/// Checksum of the state after `iterations`.
pub fn reference(words: u64, iterations: u32, seed: u32) -> u64 {
    /// Words that stay in the processor's cache.
    const PART: u64 = 4096;
    let steps: Vec<Step> = (0..iterations).map(|i| Step::of(i, seed)).collect();
    let fill = fill_seed(seed);
    parallel::sum(words.div_ceil(PART) as usize, |part| {
        let first = part as u64 * PART;
        let mut state = [0u32; PART as usize];
        let state = &mut state[..PART.min(words - first) as usize];
        for (i, x) in state.iter_mut().enumerate() {
            *x = word((first as u32).wrapping_add(i as u32), fill);
        }
        parallel::vectorised(|| {
            for step in &steps {
                for x in state.iter_mut() {
                    *x = step.apply(*x);
                }
            }
        });
        checksum::of_words(state, first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_the_plain_loop() {
        let (words, iterations, seed) = (10_000u64, 5, 42);
        let mut state: Vec<u32> = (0..words)
            .map(|i| word(i as u32, fill_seed(seed)))
            .collect();
        for iteration in 0..iterations {
            let step = Step::of(iteration, seed);
            state
                .iter_mut()
                .for_each(|x| *x = (x.wrapping_mul(step.a).wrapping_add(step.b)) ^ step.c);
        }
        assert_eq!(
            reference(words, iterations, seed),
            checksum::of_words(&state, 0)
        );
        state[7_777] ^= 1 << 13;
        assert_ne!(
            reference(words, iterations, seed),
            checksum::of_words(&state, 0)
        );
    }

    #[test]
    fn a_lost_iteration_or_another_seed_is_seen() {
        let sum = reference(5000, 4, 1);
        assert_ne!(sum, reference(5000, 3, 1));
        assert_ne!(sum, reference(5000, 4, 2));
    }

    #[test]
    fn chunks_cover_the_state_in_order() {
        let all: Vec<_> = chunks(25, 10).collect();
        assert_eq!(all, [(0, 10), (10, 10), (20, 5)]);
    }

    #[test]
    fn the_state_is_whole_blocks_and_not_empty() {
        assert_eq!(
            state_words(BLOCK * 3 + 5).map(|words| words * 4),
            Ok(BLOCK * 3)
        );
        assert!(state_words(BLOCK - 1).is_err());
    }
}
