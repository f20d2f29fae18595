//! `fits`: a working set smaller than device memory, and many short launches: sweeps over
//! small chunks, tiny kernels that the host cannot issue fast enough, and a few that
//! compute for long.

use crate::args::{ArgumentError, check_bytes};
use crate::checksum;
use crate::parallel;
use crate::sequence::{derive, word};
use crate::size::{BLOCK, MIB};
use crate::sweep::{Step, chunks};

/// Words of a sweeping launch: 2 MiB.
pub const CHUNK_WORDS: u64 = 2 * MIB / 4;

/// Words of the vector that the tiny launches work on: 64 KiB.
pub const SMALL_WORDS: u64 = 16 * 1024;

/// Rounds of a tiny launch.
pub const SMALL_ROUNDS: u32 = 2;

/// Every so many chunks, one is also computed on for long.
pub const LONG_EVERY: u64 = 16;

/// Rounds of a long launch.
pub const LONG_ROUNDS: u32 = 64;

/// Words of the state within `bytes`, one block being the small vector's.
pub fn state_words(bytes: u64) -> Result<u64, ArgumentError> {
    Ok((check_bytes(bytes, 2 * BLOCK, 1 << 50)? / BLOCK - 1) * BLOCK / 4)
}

/// A launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Launch {
    /// The step of this iteration on a chunk: first word, length.
    Sweep(u64, u64, Step),
    /// Many rounds on a chunk: first word, length, key.
    Long(u64, u64, u32),
    /// A few rounds on the small vector: key.
    Small(u32),
}

/// The launches of an iteration, in order.
pub fn launches(words: u64, iteration: u32, seed: u32) -> impl Iterator<Item = Launch> {
    let step = Step::of(iteration, seed);
    let keys = derive(seed, 9);
    chunks(words, CHUNK_WORDS)
        .enumerate()
        .flat_map(move |(index, (first, count))| {
            let key = word(
                iteration.wrapping_mul(1 << 16).wrapping_add(index as u32),
                keys,
            );
            let long = (index as u64)
                .is_multiple_of(LONG_EVERY)
                .then_some(Launch::Long(first, count, key));
            [Launch::Sweep(first, count, step), Launch::Small(key)]
                .into_iter()
                .chain(long)
        })
}

/// What `mix_rounds` does to a word.
#[inline(always)]
fn mixed(x: u32, rounds: u32, key: u32) -> u32 {
    (0..rounds).fold(x, |x, round| {
        let folded = x ^ (x >> 15);
        folded
            .wrapping_mul(0x2C1B_3C6D)
            .wrapping_add(key.wrapping_add(round))
    })
}

/// Seeds of the first content: of the state, of the small vector.
pub fn fill_seeds(seed: u32) -> [u32; 2] {
    [derive(seed, 0), derive(seed, 8)]
}

/// Checksum of the state and, behind it, the small vector after `iterations`.
pub fn reference(words: u64, iterations: u32, seed: u32) -> u64 {
    let [state_seed, small_seed] = fill_seeds(seed);
    let plan: Vec<Launch> = (0..iterations)
        .flat_map(|i| launches(words, i, seed))
        .collect();
    let chunk_list: Vec<(u64, u64)> = chunks(words, CHUNK_WORDS).collect();
    // Every launch touches one chunk or the small vector, so each has a history of its own.
    let history = |data: &mut [u32], touches: &dyn Fn(&Launch) -> bool| {
        for launch in plan.iter().filter(|launch| touches(launch)) {
            match *launch {
                Launch::Sweep(_, _, step) => {
                    parallel::vectorised(|| data.iter_mut().for_each(|x| *x = step.apply(*x)));
                }
                Launch::Long(_, _, key) => parallel::vectorised(|| mix_all(data, LONG_ROUNDS, key)),
                Launch::Small(key) => parallel::vectorised(|| mix_all(data, SMALL_ROUNDS, key)),
            }
        }
    };
    let state = parallel::sum(chunk_list.len(), |index| {
        let (first, count) = chunk_list[index];
        let mut data: Vec<u32> = (0..count)
            .map(|i| word((first + i) as u32, state_seed))
            .collect();
        history(&mut data, &|launch| match launch {
            Launch::Sweep(start, ..) | Launch::Long(start, ..) => *start == first,
            Launch::Small(_) => false,
        });
        checksum::of_words(&data, first)
    });
    let mut small: Vec<u32> = (0..SMALL_WORDS as u32)
        .map(|i| word(i, small_seed))
        .collect();
    history(&mut small, &|launch| matches!(launch, Launch::Small(_)));
    state.wrapping_add(checksum::of_words(&small, words))
}

/// All words through the rounds, a few vectors at a time to hide latency.
#[inline(always)]
fn mix_all(data: &mut [u32], rounds: u32, key: u32) {
    let (groups, rest) = data.as_chunks_mut::<64>();
    for group in groups {
        let mut words = *group;
        for round in 0..rounds {
            for x in &mut words {
                *x = mixed(*x, 1, key.wrapping_add(round));
            }
        }
        *group = words;
    }
    rest.iter_mut().for_each(|x| *x = mixed(*x, rounds, key));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_the_plain_run_of_all_launches() {
        let (words, iterations, seed) = (CHUNK_WORDS * 2 + 1000, 2, 5);
        let [state_seed, small_seed] = fill_seeds(seed);
        let mut state: Vec<u32> = (0..words as u32).map(|i| word(i, state_seed)).collect();
        let mut small: Vec<u32> = (0..SMALL_WORDS as u32)
            .map(|i| word(i, small_seed))
            .collect();
        for launch in (0..iterations).flat_map(|i| launches(words, i, seed)) {
            match launch {
                Launch::Sweep(first, count, step) => state[first as usize..][..count as usize]
                    .iter_mut()
                    .for_each(|x| *x = step.apply(*x)),
                Launch::Long(first, count, key) => state[first as usize..][..count as usize]
                    .iter_mut()
                    .for_each(|x| *x = mixed(*x, LONG_ROUNDS, key)),
                Launch::Small(key) => {
                    small
                        .iter_mut()
                        .for_each(|x| *x = mixed(*x, SMALL_ROUNDS, key));
                }
            }
        }
        let sum = |state: &[u32]| {
            checksum::of_words(state, 0).wrapping_add(checksum::of_words(&small, words))
        };
        assert_eq!(reference(words, iterations, seed), sum(&state));
        state[CHUNK_WORDS as usize] ^= 1;
        assert_ne!(reference(words, iterations, seed), sum(&state));
    }

    #[test]
    fn every_chunk_is_swept_and_every_sixteenth_computed_on() {
        let all: Vec<Launch> = launches(CHUNK_WORDS * 33, 0, 1).collect();
        let count = |f: fn(&Launch) -> bool| all.iter().filter(|launch| f(launch)).count();
        assert_eq!(count(|launch| matches!(launch, Launch::Sweep(..))), 33);
        assert_eq!(count(|launch| matches!(launch, Launch::Small(_))), 33);
        assert_eq!(count(|launch| matches!(launch, Launch::Long(..))), 3);
    }
}
