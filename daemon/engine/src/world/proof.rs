//! Whether launches use what their arguments are taken to mean.
//!
//! What is on the device in time does not fault, so nothing tells that a launch left it alone: a
//! table that is taken to be used whole, though each launch reads some rows of it, would be kept and
//! fetched for ever. So an argument that points to the same place each time is put to the test: where
//! a frame is needed, a block of it leaves before others that are used as late, and where one of its
//! blocks would be fetched, it is not. The launch shows whether it misses it. Of what is used whole
//! two blocks are missed, once for each argument of a function; where blocks are left alone, more are
//! put to the test, until it can be told how much is used (`scatter`). Owns what was seen.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::access::Argument;
use crate::hash::Map;
use crate::scatter::{Left, Seen};

/// Blocks that are missed where nothing is left alone.
const USED: u32 = 2;
/// For each block that was left alone so many more are put to the test, and so many must be used for
/// the argument to be taken to be used whole.
const MORE: u32 = 3;
/// Blocks from which all that can be told is told.
const ENOUGH: u32 = 64;
/// Blocks that wait for a frame to be needed.
const CANDIDATES: usize = 256;
/// Launches with more pointers work on lists.
const POINTERS: usize = 16;

#[derive(Clone, Debug, Default)]
struct Proof {
    /// Where it points to.
    address: u64,
    /// It pointed elsewhere once: one launch says nothing of another.
    moves: bool,
    /// Blocks that were away and used,
    used: u32,
    /// and that were away and left alone.
    left: u32,
    /// Numbers of the blocks that are not fetched until a launch is over.
    withheld: Vec<u64>,
}

impl Proof {
    fn is_open(&self) -> bool {
        let few = self.used < USED || self.used < MORE * self.left;
        few && self.used + self.left < ENOUGH && !self.moves
    }

    /// Blocks that may be put to the test at once.
    fn room(&self) -> u32 {
        if self.is_open() {
            (1 + MORE * self.left).min(ENOUGH - self.used - self.left)
        } else {
            0
        }
    }
}

/// What was seen of arguments.
#[derive(Debug, Default)]
pub(crate) struct Proofs {
    /// By function and word.
    words: Map<(u32, u32), Proof>,
    /// By execution ID, the pointers of launches that have one which is put to the test.
    open: Map<u32, Arc<[Argument]>>,
    /// Slots of blocks of such arguments, on the device when a launch with them was over.
    candidates: VecDeque<u32>,
}

impl Proofs {
    /// A launch is over: what became of the blocks that it may have used and that were away.
    /// `limit`: arguments remembered at most.
    pub(crate) fn observe(
        &mut self,
        (exec, arguments): (u32, &Arc<[Argument]>),
        seen: &[Left],
        limit: usize,
    ) {
        if arguments.is_empty() || arguments.len() > POINTERS {
            return;
        }
        let mut open = false;
        for argument in arguments.iter() {
            let word = (argument.function, argument.word);
            if self.words.len() < limit || self.words.contains_key(&word) {
                let address = argument.address;
                let new = || Proof {
                    address,
                    ..Proof::default()
                };
                let proof = self.words.entry(word).or_insert_with(new);
                proof.moves |= proof.address != address;
                proof.withheld.clear();
                open |= proof.is_open();
            }
        }
        for (_, word, seen) in seen {
            let Some(proof) = self.words.get_mut(word) else {
                continue;
            };
            match seen {
                Seen::Touched => proof.used = proof.used.saturating_add(1),
                Seen::Left | Seen::Beyond => proof.left = proof.left.saturating_add(1),
            }
        }
        if !open {
            self.open.remove(&exec);
        } else if self.open.len() < limit || self.open.contains_key(&exec) {
            self.open.insert(exec, arguments.clone());
        }
    }

    /// A launch with these pointers is over, which was taken to use these blocks on the device: their
    /// numbers, ascending, and slots. The last ones of an argument come first: it may end sooner.
    pub(crate) fn offer(
        &mut self,
        arguments: &[Argument],
        blocks: impl DoubleEndedIterator<Item = (u64, u32)>,
    ) {
        if arguments.is_empty() || arguments.len() > POINTERS {
            return;
        }
        let room = |argument: &Argument| {
            let proof = self.words.get(&(argument.function, argument.word));
            proof.map_or(0, Proof::room)
        };
        let begins = arguments
            .iter()
            .map(|argument| (argument.block(), room(argument)));
        // In the order of the arguments, wherever they lie.
        let mut begins: Vec<_> = begins
            .zip(0..)
            .map(|((at, room), of)| (at, of, room))
            .collect();
        if begins.iter().all(|&(.., room)| room == 0) {
            return;
        }
        begins.sort_unstable();
        let mut offered = Vec::new();
        for (number, slot) in blocks.rev() {
            let before = begins.partition_point(|&(begin, ..)| begin <= number);
            let Some((_, of, room)) = before.checked_sub(1).map(|index| &mut begins[index]) else {
                continue;
            };
            if *room > 0 {
                *room -= 1;
                offered.push((*of, slot));
            }
        }
        offered.sort_by_key(|&(of, _): &(u32, u32)| of);
        self.candidates
            .extend(offered.into_iter().map(|(_, slot)| slot));
        while self.candidates.len() > CANDIDATES {
            self.candidates.pop_front();
        }
    }

    /// The slot of a block that may leave to see whether it is used. It may have left since, or be no
    /// more.
    pub(crate) fn next_candidate(&mut self) -> Option<u32> {
        self.candidates.pop_back()
    }

    /// The pointers of the last launch of this execution ID, where one of them is put to the test.
    pub(crate) fn arguments(&self, exec: u32) -> Option<Arc<[Argument]>> {
        self.open.get(&exec).cloned()
    }

    /// Whether a block that a launch with these pointers is taken to use is not to be fetched for it.
    /// `more`: it may be one that is not withheld yet.
    pub(crate) fn withhold(&mut self, arguments: &[Argument], block: u64, more: bool) -> bool {
        if arguments.len() > POINTERS {
            return false;
        }
        let before = arguments
            .iter()
            .filter(|argument| argument.block() <= block);
        let Some(argument) = before.max_by_key(|argument| argument.address) else {
            return false;
        };
        let Some(proof) = self.words.get_mut(&(argument.function, argument.word)) else {
            return false;
        };
        if proof.withheld.contains(&block) {
            return true;
        }
        let room = more && proof.withheld.len() < proof.room() as usize;
        if room {
            proof.withheld.push(block);
        }
        room
    }

    /// Estimated size of the table in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let open = self.open.capacity() * size_of::<(u32, Arc<[Argument]>)>();
        (self.words.capacity() * (size_of::<((u32, u32), Proof)>() + 1) + open) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{BLOCK_BYTES, BlockId};

    const LIMIT: usize = 100;

    /// A launch with a pointer to the block 100, and one to a block of its own.
    fn arguments(other: u64) -> Arc<[Argument]> {
        let argument = |(word, block): (u32, u64)| Argument {
            function: 7,
            word,
            shape: 0,
            address: block * BLOCK_BYTES,
        };
        Arc::from([(0, 100), (1, other)].map(argument))
    }

    /// What it did to blocks of the first argument.
    fn over(proofs: &mut Proofs, other: u64, touched: u64, left: u64) {
        let of = |number: u64, seen| (BlockId(100 + number), (7, 0), seen);
        let touched = (0..touched).map(|number| of(number, Seen::Touched));
        let left = (0..left).map(|number| of(40 + number, Seen::Left));
        let seen: Vec<Left> = touched.chain(left).collect();
        proofs.observe((3, &arguments(other)), &seen, LIMIT);
    }

    /// How many of the first argument's blocks are not fetched for the next launch.
    fn withheld(proofs: &mut Proofs) -> usize {
        let arguments = arguments(1_000);
        let mut blocks = 100..200;
        blocks
            .by_ref()
            .filter(|&block| proofs.withhold(&arguments, block, true))
            .count()
    }

    fn offered(proofs: &mut Proofs) -> Vec<u32> {
        proofs.offer(
            &arguments(1_000),
            (0..10).map(|slot| (100 + u64::from(slot), slot)),
        );
        std::iter::from_fn(|| proofs.next_candidate()).collect()
    }

    #[test]
    fn what_is_used_whole_misses_two_blocks() {
        let mut proofs = Proofs::default();
        assert_eq!(withheld(&mut proofs), 0, "it was not seen yet");
        over(&mut proofs, 1_000, 0, 0);
        assert_eq!(withheld(&mut proofs), 1);
        assert_eq!(withheld(&mut proofs), 1, "the same one");
        over(&mut proofs, 1_000, 1, 0);
        assert_eq!((withheld(&mut proofs), offered(&mut proofs)), (1, vec![9]));
        over(&mut proofs, 1_000, 1, 0);
        assert_eq!((withheld(&mut proofs), offered(&mut proofs)), (0, vec![]));
    }

    #[test]
    fn what_is_left_alone_is_put_to_the_test_the_more() {
        let mut proofs = Proofs::default();
        over(&mut proofs, 1_000, 0, 1);
        assert_eq!(withheld(&mut proofs), 1 + MORE as usize);
        assert_eq!(offered(&mut proofs), [6, 7, 8, 9], "the last ones");
        over(&mut proofs, 1_000, 2, 6);
        assert_eq!(withheld(&mut proofs), 1 + 7 * MORE as usize);
        over(&mut proofs, 1_000, 10, 41);
        assert_eq!(withheld(&mut proofs), 4, "of 64 blocks 60 were seen");
        over(&mut proofs, 1_000, 0, 4);
        assert_eq!(withheld(&mut proofs), 0);
    }

    #[test]
    fn most_of_what_was_away_must_be_used() {
        let mut proofs = Proofs::default();
        over(&mut proofs, 1_000, 2, 1);
        assert!(withheld(&mut proofs) > 0);
        over(&mut proofs, 1_000, 1, 0);
        assert_eq!(withheld(&mut proofs), 0, "three of four");
    }

    #[test]
    fn what_points_elsewhere_each_time_is_not_put_to_the_test() {
        let mut proofs = Proofs::default();
        over(&mut proofs, 1_000, 0, 0);
        over(&mut proofs, 2_000, 0, 0);
        let next = arguments(3_000);
        assert!(!proofs.withhold(&next, 3_001, true));
        assert!(proofs.withhold(&next, 101, true), "that one does not");
        assert!(proofs.arguments(3).is_some());
    }

    #[test]
    fn launches_on_lists_and_more_than_fits_are_left_alone() {
        let mut proofs = Proofs::default();
        let many: Arc<[Argument]> = (0..POINTERS + 1).map(|_| arguments(5)[0]).collect();
        proofs.observe((4, &many), &[], LIMIT);
        assert!(!proofs.withhold(&many, 101, true) && proofs.words.is_empty());
        proofs.observe((4, &arguments(5)), &[], 1);
        assert_eq!(proofs.words.len(), 1);
        let blocks = |_| (100..400).map(|number| (number, number as u32));
        for _ in 0..CANDIDATES {
            over(&mut proofs, 1_000, 0, 1);
            proofs.offer(&arguments(1_000), blocks(()));
        }
        assert!(proofs.candidates.len() <= CANDIDATES);
    }
}
