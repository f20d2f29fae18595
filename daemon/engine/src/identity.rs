//! Execution IDs: what makes two launches the same launch of two iterations.
//!
//! A launch is known by its function, its geometry and the objects its pointers name. A
//! by-value word that changes between otherwise equal launches is left out, until one of
//! its old values comes back: then it tells launches apart and is taken in from there on.
//! The paper is silent on by-value words (facts: DeepUM section 3.1 hashes "name and
//! arguments"); `literal` mode takes that at its word and hashes everything raw.

use crate::event::{Copy, Launch};
use crate::hash::{Map, mix};
use crate::profile::Skeleton;
use crate::world::memory::Object;

/// By-value words of a launch that may tell it from others. Kernels on lists of tensors have
/// more, sizes and which thread does what: their pointers tell them apart.
pub(crate) const BY_VALUE: usize = 128;
/// Old values remembered of one changing word.
const VALUES: usize = 16;
/// The identity of launches that came when the table was full.
pub(crate) const UNKNOWN: u32 = u32::MAX;

/// A by-value word of launches that are equal otherwise.
#[derive(Debug, Default)]
struct Word {
    last: u64,
    seen: Vec<u64>,
    tells_apart: bool,
}

impl Word {
    fn observe(&mut self, value: u64) {
        if value == self.last {
            return;
        }
        if self.seen.contains(&value) {
            self.tells_apart = true;
        }
        if self.seen.len() < VALUES && !self.seen.contains(&self.last) {
            self.seen.push(self.last);
        }
        self.last = value;
    }
}

/// The table of execution IDs.
#[derive(Debug)]
pub(crate) struct Identities {
    literal: bool,
    limit: usize,
    skeletons: Map<u64, Vec<Word>>,
    /// By-value words of all skeletons, and old values remembered of them.
    words: usize,
    values: usize,
    ids: Map<u64, u32>,
}

impl Identities {
    pub(crate) fn new(limit: usize, literal: bool) -> Self {
        Self {
            literal,
            limit,
            skeletons: Map::default(),
            words: 0,
            values: 0,
            ids: Map::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// The execution ID of a launch whose argument words name `objects`.
    pub(crate) fn launch(&mut self, launch: &Launch<'_>, objects: &[Option<Object>]) -> u32 {
        let mut hash = mix(1, u64::from(launch.function.0));
        for extent in launch.grid {
            hash = mix(hash, u64::from(extent));
        }
        for extent in launch.block {
            hash = mix(hash, u64::from(extent));
        }
        hash = mix(hash, launch.words.len() as u64);
        if self.literal {
            let hash = launch
                .words
                .iter()
                .fold(hash, |hash, &word| mix(hash, word));
            return self.intern(hash);
        }
        for (index, object) in objects.iter().enumerate() {
            if let Some(object) = object {
                hash = mix(mix(mix(hash, index as u64), object.name), object.offset);
            }
        }
        let values = || {
            let pairs = launch.words.iter().zip(objects);
            pairs
                .filter(|(_, object)| object.is_none())
                .map(|(&word, _)| word)
                .take(BY_VALUE)
        };
        if let Some(words) = self.skeletons.get_mut(&hash) {
            for (word, value) in words.iter_mut().zip(values()) {
                let before = word.seen.capacity();
                word.observe(value);
                self.values += word.seen.capacity() - before;
                if word.tells_apart {
                    hash = mix(hash, value);
                }
            }
        } else if self.skeletons.len() < self.limit {
            let words: Vec<Word> = values()
                .map(|last| Word {
                    last,
                    ..Word::default()
                })
                .collect();
            self.words += words.len();
            self.skeletons.insert(hash, words);
        }
        self.intern(hash)
    }

    /// The execution ID of a copy between named places.
    pub(crate) fn copy(
        &mut self,
        copy: &Copy,
        dst: Option<(u64, u64)>,
        src: Option<(u64, u64)>,
    ) -> u32 {
        let mut hash = 2;
        for (range, name) in [(copy.dst, dst), (copy.src, src)] {
            let (name, offset) = name.unwrap_or((0, 0));
            let bytes = range.map_or(0, |range| range.bytes);
            hash = mix(mix(mix(hash, bytes), name), offset);
        }
        self.intern(hash)
    }

    fn intern(&mut self, hash: u64) -> u32 {
        let next = self.ids.len();
        if let Some(&id) = self.ids.get(&hash) {
            return id;
        }
        if next >= self.limit {
            return UNKNOWN;
        }
        self.ids.insert(hash, next as u32);
        next as u32
    }

    /// Hashes of identities by execution ID, and the words of all skeletons.
    pub(crate) fn learned(&self) -> (Vec<u64>, Vec<Skeleton>) {
        let mut ids: Vec<(u32, u64)> = self.ids.iter().map(|(&hash, &id)| (id, hash)).collect();
        ids.sort_unstable();
        let skeletons = self.skeletons.iter().map(|(&hash, words)| Skeleton {
            hash,
            words: words.iter().map(|w| (w.last, w.tells_apart)).collect(),
        });
        let mut skeletons: Vec<Skeleton> = skeletons.collect();
        skeletons.sort_unstable_by_key(|skeleton| skeleton.hash);
        (ids.into_iter().map(|(_, hash)| hash).collect(), skeletons)
    }

    /// Begins with these.
    pub(crate) fn restore(&mut self, identities: &[u64], skeletons: &[Skeleton]) {
        for &hash in identities {
            self.intern(hash);
        }
        for skeleton in skeletons.iter().take(self.limit) {
            let words = skeleton.words.iter().map(|&(last, tells_apart)| Word {
                last,
                seen: Vec::new(),
                tells_apart,
            });
            self.words += skeleton.words.len();
            self.skeletons.insert(skeleton.hash, words.collect());
        }
    }

    /// Estimated size of the tables in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let ids = self.ids.capacity() * (size_of::<(u64, u32)>() + 1);
        let skeletons = self.skeletons.capacity() * (size_of::<(u64, Vec<Word>)>() + 1);
        let words = self.words * size_of::<Word>() + self.values * size_of::<u64>();
        (ids + skeletons + words) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{FunctionId, Range, Seq, StreamId};

    fn launch(ids: &mut Identities, address: u64, name: u64, offset: u64, value: u64) -> u32 {
        let words = [address, value];
        let extent = Range { address, bytes: 1 };
        let object = Object {
            name,
            offset,
            extent,
            bounded: false,
            followed: false,
            part: false,
            rest_bytes: 4096,
        };
        launch_with(ids, &words, &[Some(object), None])
    }

    fn launch_with(ids: &mut Identities, words: &[u64], objects: &[Option<Object>]) -> u32 {
        let launch = Launch {
            seq: Seq(1),
            stream: StreamId(0),
            function: FunctionId(0),
            grid: [1, 1, 1],
            block: [32, 1, 1],
            words,
        };
        ids.launch(&launch, objects)
    }

    #[test]
    fn a_moved_allocation_keeps_its_launches() {
        let mut ids = Identities::new(100, false);
        assert_eq!(
            launch(&mut ids, 0x20_0000, 7, 64, 1),
            launch(&mut ids, 0x80_0000, 7, 64, 1)
        );
        assert_ne!(
            launch(&mut ids, 0x20_0000, 7, 64, 1),
            launch(&mut ids, 0x20_0000, 7, 128, 1)
        );
    }

    #[test]
    fn a_step_counter_is_left_out() {
        let mut ids = Identities::new(100, false);
        let first = launch(&mut ids, 0x20_0000, 7, 0, 1);
        assert!((2..100).all(|step| launch(&mut ids, 0x20_0000, 7, 0, step) == first));
    }

    #[test]
    fn a_word_whose_values_come_back_tells_launches_apart() {
        let mut ids = Identities::new(100, false);
        for turn in 0..3 {
            let seen: Vec<u32> = (0..4)
                .map(|v| launch(&mut ids, 0x20_0000, 7, 0, v))
                .collect();
            assert_eq!(turn < 1, seen[1] == seen[2], "turn {turn}: {seen:?}");
        }
    }

    #[test]
    fn of_a_kernel_with_very_many_by_value_words_the_pointers_tell() {
        let mut ids = Identities::new(100, false);
        let mut launch = |values: u64, last: u64| {
            let words: Vec<u64> = (0..values - 1).chain([last]).collect();
            launch_with(&mut ids, &words, &vec![None; words.len()])
        };
        // Values that come back tell launches apart, as far as they are looked at.
        for (values, tells) in [(BY_VALUE as u64, true), (BY_VALUE as u64 + 1, false)] {
            for turn in 0..3 {
                let (a, b) = (launch(values, 1001), launch(values, 1002));
                assert_eq!(a != b, tells && turn > 0, "{values} values, turn {turn}");
            }
        }
        let words: usize = ids.learned().1.iter().map(|s| s.words.len()).sum();
        assert_eq!(words, 2 * BY_VALUE);
    }

    #[test]
    fn literal_mode_hashes_raw_words() {
        let mut ids = Identities::new(100, true);
        let first = launch(&mut ids, 0x20_0000, 7, 0, 1);
        assert_ne!(first, launch(&mut ids, 0x20_0000, 7, 0, 2));
        assert_ne!(first, launch(&mut ids, 0x40_0000, 7, 0, 1));
        assert_eq!(first, launch(&mut ids, 0x20_0000, 8, 0, 1));
    }

    #[test]
    fn a_full_table_gives_no_new_ids() {
        let mut ids = Identities::new(3, false);
        let given: Vec<u32> = (0..5)
            .map(|n| launch(&mut ids, 0x20_0000, n, 0, 0))
            .collect();
        assert_eq!(given, [0, 1, 2, UNKNOWN, UNKNOWN]);
        assert!(ids.skeletons.len() <= 3);
    }
}
