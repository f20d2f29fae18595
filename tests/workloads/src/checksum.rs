//! The checksum that device and reference are compared by.
//!
//! It is a sum over all words of a one-to-one mix of place and value. So it can be taken
//! piece by piece in any order, a single wrong word always changes it, and two words
//! changing places does too.

/// Checksum of `words`, the first of which stands at place `first`. Parts add up by
/// [`u64::wrapping_add`].
#[inline(always)]
pub fn of_words(words: &[u32], first: u64) -> u64 {
    let mut sum = 0u64;
    for (place, word) in (first..).zip(words) {
        sum = sum.wrapping_add(mix(place, *word));
    }
    sum
}

/// Checksum of the bits of `values`.
#[inline(always)]
pub fn of_floats(values: &[f32], first: u64) -> u64 {
    let mut sum = 0u64;
    for (place, value) in (first..).zip(values) {
        sum = sum.wrapping_add(mix(place, value.to_bits()));
    }
    sum
}

#[inline(always)]
fn mix(place: u64, word: u32) -> u64 {
    let x = place.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(word);
    let x = (x ^ (x >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^ (x >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_seen() {
        let words: Vec<u32> = (0..64).map(|i| crate::sequence::word(i, 1)).collect();
        let sum = of_words(&words, 10);
        for place in 0..words.len() {
            for bit in 0..32 {
                let mut other = words.clone();
                other[place] ^= 1 << bit;
                assert_ne!(of_words(&other, 10), sum, "word {place}, bit {bit}");
            }
        }
    }

    #[test]
    fn exchanged_and_shifted_words_are_seen() {
        assert_ne!(of_words(&[1, 2], 0), of_words(&[2, 1], 0));
        assert_ne!(of_words(&[1, 2], 0), of_words(&[1, 2], 1));
    }

    #[test]
    fn parts_add_up() {
        let words = [5, 6, 7, 8, 9];
        let parts = of_words(&words[..2], 0).wrapping_add(of_words(&words[2..], 2));
        assert_eq!(parts, of_words(&words, 0));
    }
}
