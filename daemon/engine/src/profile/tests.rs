use super::*;
use crate::{Bytes, PolicyKind};

fn config() -> Config {
    Config::new(PolicyKind::Foresight, Bytes(1 << 30))
}

fn profile() -> Profile {
    let part = |n: u64| Part {
        name: mix(n, n),
        first: n * 100,
        count: n,
    };
    Profile {
        functions: vec![mix(1, 1), mix(2, 2)],
        identities: (0..40).map(|n| mix(7, n)).collect(),
        skeletons: vec![Skeleton {
            hash: 9,
            words: vec![(u64::MAX, true), (0, false)],
        }],
        launches: (0..200).map(|n| (n % 40, 1000 + n)).collect(),
        used: (0..40)
            .map(|exec| Used {
                exec,
                sweep: exec % 7 == 0,
                parts: (0..u64::from(exec % 5)).map(part).collect(),
            })
            .collect(),
        times: vec![(3, 1 << 40)],
        wide: vec![((1, 2), 64)],
        tiled: vec![1],
        beyond: vec![(4, 1)],
        regular: vec![(0, true), (1, false)],
        regular_words: vec![((0, 2), false), ((1, 5), true)],
        corrected: vec![Corrected {
            exec: 5,
            places: vec![(77, 3, 5, 0), (78, 4, 1, 2)],
        }],
        scattered: vec![((0, 3), [7, 1_000, 30, 40])],
        reaches: vec![(u64::MAX, 3 << 30)],
        on_host: vec![mix(3, 3)],
        prefetched: (1 << 40, 3),
    }
}

/// Bytes with a checksum that is right for them, so that the content itself is judged.
fn sealed(content: &[u8]) -> Vec<u8> {
    let mut all = Writer(MAGIC.to_vec());
    all.fixed(PROFILE_VERSION);
    all.fixed(checksum(content));
    all.0.extend_from_slice(content);
    all.0
}

const HEAD: usize = 24;

#[test]
fn what_is_written_is_read() {
    let profile = profile();
    assert_eq!(Profile::decode(&profile.encode(), &config()), Ok(profile));
    let nothing = Profile::default();
    assert_eq!(Profile::decode(&nothing.encode(), &config()), Ok(nothing));
}

#[test]
fn each_kind_of_wrong_bytes_is_refused_with_its_reason() {
    let good = profile().encode();
    let decode = |bytes: &[u8]| Profile::decode(bytes, &config()).unwrap_err();
    assert_eq!(decode(b""), ProfileError::Foreign);
    assert_eq!(decode(b"#!/bin/sh"), ProfileError::Foreign);
    assert_eq!(decode(&good[..12]), ProfileError::Truncated("head"));
    assert_eq!(decode(&good[..good.len() - 1]), ProfileError::Damaged);
    let mut bytes = good.clone();
    bytes[8] = 9;
    assert_eq!(decode(&bytes), ProfileError::Version(9));
    let mut bytes = good.clone();
    bytes[HEAD + 3] ^= 1;
    assert_eq!(decode(&bytes), ProfileError::Damaged);
    let cut = sealed(&good[HEAD..HEAD + 30]);
    assert_eq!(decode(&cut), ProfileError::Truncated("execution IDs"));
    let mut longer = good[HEAD..].to_vec();
    longer.push(0);
    assert_eq!(
        decode(&sealed(&longer)),
        ProfileError::Truncated("last bytes")
    );
    let large = vec![0; PROFILE_BYTES + 1];
    assert_eq!(decode(&large), ProfileError::TooLarge(large.len()));
}

#[test]
fn more_than_the_configuration_allows_is_refused() {
    let bytes = profile().encode();
    let mut config = config();
    config.execution_ids = 39;
    let refused = Profile::decode(&bytes, &config);
    assert_eq!(refused, Err(ProfileError::Limit("execution IDs")));
    config.execution_ids = 40;
    config.history_launches = 199;
    let refused = Profile::decode(&bytes, &config);
    assert_eq!(refused, Err(ProfileError::Limit("launches")));
}

/// A small generator with a seed, so that a failure can be run again.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = mix(self.0, 1);
        (self.0 % limit.max(1) as u64) as usize
    }
}

#[test]
fn any_bytes_are_read_or_refused_and_what_is_read_is_written_again() {
    let good = profile().encode();
    let mut random = Random(4);
    let (mut read, mut refused) = (0, 0);
    for round in 0..6_000 {
        let mut content = good[HEAD..].to_vec();
        for _ in 0..=random.below(4) {
            let at = random.below(content.len());
            match random.below(5) {
                0 => content[at] = random.below(256) as u8,
                1 => content[at] ^= 1 << random.below(8),
                2 => content.truncate(at.max(1)),
                3 => content.insert(at, 0xFF),
                _ => {
                    let from = random.below(content.len());
                    let piece = content[from..(from + 9).min(content.len())].to_vec();
                    content.splice(at..at, piece);
                }
            }
        }
        // Half with a right checksum, which lets the mutation into the content.
        let bytes = if round % 2 == 0 {
            sealed(&content)
        } else {
            let mut bytes = good.clone();
            bytes.truncate(HEAD);
            bytes.extend_from_slice(&content);
            bytes
        };
        match Profile::decode(&bytes, &config()) {
            Ok(profile) => {
                read += 1;
                assert_eq!(Profile::decode(&profile.encode(), &config()), Ok(profile));
            }
            Err(_) => refused += 1,
        }
    }
    assert!(
        read > 300 && refused > 3_000,
        "{read} read, {refused} refused"
    );
}
