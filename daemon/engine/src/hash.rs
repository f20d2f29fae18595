//! Hashing that is the same in every run: keys and tables of the engine.
//!
//! The standard library's tables seed themselves at random, which would make two runs of
//! the same events differ wherever an order leaks out. A session can only slow down its
//! own engine by choosing colliding keys, and every table is bounded.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table with the fixed hash function.
pub(crate) type Map<K, V> = HashMap<K, V, BuildHasherDefault<FixedHasher>>;

/// Folds `word` into `state` (the finalizer of splitmix64, public domain).
pub(crate) fn mix(state: u64, word: u64) -> u64 {
    let mut z = (state.rotate_left(23) ^ word).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The hash function of [`Map`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FixedHasher(u64);

impl Hasher for FixedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = mix(self.0, value);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}
