//! Which arguments launches use only here and there: rows of tables, neighbours in graphs.
//!
//! Owns the evidence, by function and argument word: of the blocks that an argument was
//! taken to mean and that were not on the device, how many faulted and how many were left
//! alone. What lay on the device says nothing: nobody sees accesses that hit.
//!
//! A launch that comes again learns its own blocks, one by one (`access`), but only of those
//! that are away: what lies on the device would never be found unused. So an argument that
//! always points to the same place, and of which less than half is used, is left to faults for
//! all launches: a table, a graph, a pool of pages. What faults in each turn is fetched all the
//! same, and what mostly comes back is kept (`world::chance`). One that moves means another part
//! each time, of which the first guess may have been too large, and that is learned: what such a
//! launch left alone behind all that it used says how large the part is, not how it is used.
//! Nor does it count what a launch left alone that others beside it go through (`slices`).

mod slices;

pub(crate) use self::slices::Left;
use self::slices::{Slices, lies_together};
use crate::access::Argument;
use crate::hash::Map;
use crate::units::{BLOCK_BYTES, BlockId};

/// Blocks from which it can be told.
const EVIDENCE: u32 = 16;
/// Evidence counts half as much when there is so much of it.
const MEMORY: u32 = 1024;
/// One in so many blocks that were used may be used by another launch, or by chance.
const STRAYS: usize = 16;
/// An argument of which fewer than one in so many blocks are used is a table in which rows are
/// looked up: taken whole, it would make all of it look needed and recently used.
const SPARSE: u32 = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    touched: u32,
    /// Left alone, though one further on was used,
    left: u32,
    /// and those behind the last one that was used.
    beyond: u32,
    /// Less than half was used,
    scattered: bool,
    /// and of what lies before the last one that was.
    within: bool,
    /// Fewer than one in [`SPARSE`] were used.
    sparse: bool,
    /// How often a launch used a block that it had left alone again and again before.
    back: u32,
}

impl Uses {
    fn judge(&mut self) {
        let touched = self.touched;
        let judged = |so_far: bool, all: u32| {
            let few = touched * 2 < all;
            let told = all >= EVIDENCE && (few || touched * 8 >= all * 7);
            if told { few } else { so_far }
        };
        self.within = judged(self.within, touched + self.left);
        let all = touched + self.left + self.beyond;
        self.scattered = judged(self.scattered, all);
        if all >= EVIDENCE {
            self.sparse = touched * SPARSE < all;
        }
        if all >= MEMORY {
            self.touched /= 2;
            self.left /= 2;
            self.beyond /= 2;
        }
    }
}

/// A function and an argument of it.
type Word = (u32, u32);

/// What was seen of a block that was away and that a launch might have used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    /// It was used.
    Touched,
    /// It was left alone, and one further on was used.
    Left,
    /// It was left alone, and all behind it.
    Beyond,
}

/// What was seen of the absent blocks of a launch with these pointers, by function and word of
/// the argument that each belongs to: it touched some and left the others alone.
pub(crate) fn seen(arguments: &[Argument], touched: &[BlockId], left: &[BlockId]) -> Vec<Left> {
    if touched.is_empty() && left.is_empty() {
        return Vec::new();
    }
    let mut by_address: Vec<&Argument> = arguments.iter().collect();
    by_address.sort_unstable_by_key(|argument| argument.address);
    let word_of = |&block: &BlockId| {
        let before =
            by_address.partition_point(|argument| argument.address / BLOCK_BYTES <= block.0);
        let argument = by_address.get(before.checked_sub(1)?)?;
        Some(((argument.function, argument.word), block))
    };
    let mut used: Map<(u32, u32), Vec<BlockId>> = Map::default();
    for (word, block) in touched.iter().filter_map(word_of) {
        used.entry(word).or_default().push(block);
    }
    for used in used.values_mut() {
        let last = used.len() - 1 - used.len() / STRAYS;
        used.select_nth_unstable(last);
        used.truncate(last + 1);
    }
    let touched = touched.iter().filter_map(word_of);
    let touched = touched.map(|(word, block)| (block, word, Seen::Touched));
    let left = left.iter().filter_map(word_of).map(|(word, block)| {
        let last = used.get(&word).and_then(|used| used.last());
        let further = last.is_some_and(|&last| block < last);
        let seen = if further { Seen::Left } else { Seen::Beyond };
        (block, word, seen)
    });
    touched.chain(left).collect()
}

/// What was seen of each function's arguments.
#[derive(Debug)]
pub(crate) struct Scatter {
    words: Map<Word, Uses>,
    slices: Slices,
    limit: usize,
}

impl Scatter {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            words: Map::default(),
            slices: Slices::default(),
            limit,
        }
    }

    /// The launch at `position`, with these pointers, is over: of its absent blocks it touched
    /// some and left the others alone. `away`: a block is not on the device, nor was it since the
    /// launch at a position.
    pub(crate) fn observe(
        &mut self,
        position: u64,
        arguments: &[Argument],
        (touched, left): (&[BlockId], &[BlockId]),
        away: impl Fn(BlockId, u64) -> bool,
    ) {
        let over = self.slices.over(position, away);
        self.count(over);
        let Some(&Argument { function, .. }) = arguments.first() else {
            return;
        };
        self.slices.used(function, touched);
        let seen = seen(arguments, touched, left).into_iter();
        let (used, alone): (Vec<_>, Vec<_>) = seen.partition(|left| left.2 == Seen::Touched);
        self.count(used);
        let alone = if alone.is_empty() || !lies_together(touched, left) {
            Some(alone)
        } else {
            self.slices.hold(position, function, alone)
        };
        self.count(alone.unwrap_or_default());
    }

    fn count(&mut self, seen: impl IntoIterator<Item = Left>) {
        for (_, word, seen) in seen {
            if self.words.len() >= self.limit && !self.words.contains_key(&word) {
                continue;
            }
            let uses = self.words.entry(word).or_default();
            match seen {
                Seen::Touched => uses.touched += 1,
                Seen::Left => uses.left += 1,
                Seen::Beyond => uses.beyond += 1,
            }
            uses.judge();
        }
    }

    /// A launch that comes again used a block of this argument though it had left it alone again
    /// and again before: what it uses differs from turn to turn.
    pub(crate) fn came_back(&mut self, function: u32, word: u32) {
        if let Some(uses) = self.words.get_mut(&(function, word)) {
            uses.back = uses.back.saturating_add(1);
        }
    }

    /// Launches of this function use what this word points to here and there. One that is not
    /// `novel` has learned its own blocks: where the word `moves`, it is so only if nearly
    /// nothing of what it was taken to use is used, and not the same in each turn.
    pub(crate) fn is_scattered(
        &self,
        (function, word): (u32, u32),
        novel: bool,
        moves: bool,
    ) -> bool {
        let uses = self.words.get(&(function, word));
        uses.is_some_and(|uses| match (moves, novel) {
            (false, _) => uses.scattered,
            (true, true) => uses.within,
            (true, false) => uses.scattered && uses.sparse && uses.back >= EVIDENCE,
        })
    }

    /// What was seen, for a profile: by function and word, blocks that were used, left alone
    /// before and behind the last one that was, and how often one was used after all.
    pub(crate) fn learned(&self) -> Vec<((u32, u32), [u32; 4])> {
        let words = self.words.iter();
        let mut all: Vec<_> = words
            .map(|(&word, uses)| (word, [uses.touched, uses.left, uses.beyond, uses.back]))
            .collect();
        all.sort_unstable();
        all
    }

    /// Begins with what a profile tells.
    pub(crate) fn restore(&mut self, seen: &[((u32, u32), [u32; 4])]) {
        for &(word, [touched, left, beyond, back]) in seen.iter().take(self.limit) {
            let mut uses = Uses {
                touched: touched.min(MEMORY),
                left: left.min(MEMORY),
                beyond: beyond.min(MEMORY),
                back,
                ..Uses::default()
            };
            uses.judge();
            self.words.insert(word, uses);
        }
    }

    /// Estimated size of the table in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.words.len() * (size_of::<(Word, Uses)>() + 1)) as u64 + self.slices.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(numbers: std::ops::Range<u64>) -> Vec<BlockId> {
        numbers.map(BlockId).collect()
    }

    fn arguments() -> [Argument; 2] {
        [(1, 1_000), (0, 10)].map(|(word, block)| Argument {
            function: 7,
            word,
            shape: u64::from(word),
            address: block * BLOCK_BYTES + 4096,
        })
    }

    /// A launch is over that touched some blocks and left others alone, and many others since.
    fn see(scatter: &mut Scatter, touched: &[BlockId], left: &[BlockId]) {
        scatter.observe(100, &arguments(), (touched, left), |_, _| true);
        scatter.observe(200, &[], (&[], &[]), |_, _| true);
    }

    #[test]
    fn an_argument_of_which_most_is_left_alone_is_scattered_and_the_others_are_not() {
        let mut scatter = Scatter::new(100);
        let touched = [blocks(10..60), blocks(1_040..1_041)].concat();
        see(&mut scatter, &touched, &blocks(1_000..1_040));
        assert!(scatter.is_scattered((7, 1), true, true));
        assert!(!scatter.is_scattered((7, 0), true, true));
        assert!(
            !scatter.is_scattered((8, 1), true, true),
            "another function"
        );
    }

    #[test]
    fn a_launch_that_comes_again_is_left_to_its_faults_only_where_rows_differ_and_are_few() {
        let mut scatter = Scatter::new(100);
        see(&mut scatter, &blocks(1_080..1_100), &blocks(1_000..1_080));
        for _ in 0..EVIDENCE {
            scatter.came_back(7, 1);
        }
        assert!(scatter.is_scattered((7, 1), true, true));
        assert!(
            !scatter.is_scattered((7, 1), false, true),
            "a fifth is used"
        );
        see(&mut scatter, &[], &blocks(2_000..2_100));
        assert!(scatter.is_scattered((7, 1), false, true));
    }

    #[test]
    fn what_always_points_to_the_same_place_is_left_to_faults_where_less_than_half_is_used() {
        let mut scatter = Scatter::new(100);
        see(&mut scatter, &blocks(1_000..1_040), &blocks(1_040..1_100));
        assert!(scatter.is_scattered((7, 1), false, false));
        assert!(!scatter.is_scattered((7, 1), false, true), "it moves");
        let mut scatter = Scatter::new(100);
        see(&mut scatter, &blocks(1_000..1_060), &blocks(1_060..1_100));
        assert!(!scatter.is_scattered((7, 1), false, false), "most is used");
    }

    #[test]
    fn the_same_few_blocks_in_each_turn_are_no_reason_to_look_at_faults_alone() {
        let mut scatter = Scatter::new(100);
        see(&mut scatter, &blocks(1_100..1_101), &blocks(1_000..1_100));
        assert!(scatter.is_scattered((7, 1), true, true));
        assert!(!scatter.is_scattered((7, 1), false, true));
    }

    /// The weights of a layer are a part of those of all, and where the next layer's begin is
    /// not known before it ran.
    #[test]
    fn what_lies_behind_all_that_is_used_tells_how_large_a_part_is_not_how_it_is_used() {
        let mut scatter = Scatter::new(100);
        see(&mut scatter, &blocks(1_000..1_026), &blocks(1_026..2_000));
        assert!(!scatter.is_scattered((7, 1), true, true));
        // Of what was used nothing was away.
        see(&mut scatter, &[], &blocks(1_026..2_000));
        assert!(!scatter.is_scattered((7, 1), true, true));
        assert!(
            scatter.is_scattered((7, 1), true, false),
            "it is always there"
        );
    }

    /// Four launches in a row go through an argument, each through a quarter of it.
    #[test]
    fn what_launches_go_through_in_slices_is_not_scattered() {
        let slices = |used: &[u64], on_device: fn(BlockId, u64) -> bool| {
            let mut scatter = Scatter::new(100);
            for (&slice, position) in used.iter().zip(100..) {
                let (begin, end) = (1_000 + slice * 25, 1_025 + slice * 25);
                let left = [blocks(1_000..begin), blocks(end..1_100)].concat();
                let seen = (&blocks(begin..end)[..], &left[..]);
                scatter.observe(position, &arguments(), seen, |block, since| {
                    !on_device(block, since)
                });
            }
            let away = |block, since| !on_device(block, since);
            scatter.observe(200, &[], (&[], &[]), away);
            scatter.is_scattered((7, 1), false, false)
        };
        let never = |_, _| false;
        assert!(slices(&[0], never), "nobody uses the others");
        assert!(slices(&[0, 0, 0, 0], never));
        // The first one was there shortly before the others, and its blocks are away again.
        let before = |block: BlockId, since| since < 100 && block.0 < 1_075;
        assert!(!slices(&[0, 1, 2, 3], before));
        assert!(slices(&[0, 1, 2, 3], never), "it was not");
        // What a launch leaves alone and a later one uses does not count against it.
        let first = |block: BlockId, since| since < 100 && block.0 < 1_025;
        assert!(!slices(&[0, 1, 2, 3], first));
        // What the others use is there when they use it.
        assert!(!slices(&[3], before));
    }

    #[test]
    fn rows_here_and_there_are_told_at_once() {
        let mut scatter = Scatter::new(100);
        let touched: Vec<_> = (0..10).map(|row| BlockId(1_000 + 9 * row)).collect();
        let left: Vec<_> = blocks(1_000..1_100);
        let left: Vec<_> = left.into_iter().filter(|b| !touched.contains(b)).collect();
        scatter.observe(100, &arguments(), (&touched, &left), |_, _| false);
        assert!(scatter.is_scattered((7, 1), false, false));
    }

    #[test]
    fn what_was_seen_in_an_earlier_run_counts() {
        let mut scatter = Scatter::new(100);
        see(&mut scatter, &[], &blocks(1_000..1_100));
        for _ in 0..EVIDENCE {
            scatter.came_back(7, 1);
        }
        let mut next = Scatter::new(100);
        next.restore(&scatter.learned());
        assert!(next.is_scattered((7, 1), false, true));
        assert_eq!(next.learned(), scatter.learned());
    }

    #[test]
    fn a_few_blocks_tell_nothing() {
        let mut scatter = Scatter::new(100);
        see(&mut scatter, &[], &blocks(1_000..1_020));
        assert!(!scatter.is_scattered((7, 1), true, true));
    }

    #[test]
    fn it_is_so_no_longer_once_nearly_all_is_used() {
        let mut scatter = Scatter::new(100);
        see(&mut scatter, &blocks(1_100..1_101), &blocks(1_000..1_100));
        assert!([true, false].map(|moves| scatter.is_scattered((7, 1), true, moves)) == [true; 2]);
        for _ in 0..10 {
            see(&mut scatter, &blocks(1_000..1_500), &[]);
        }
        assert!([true, false].map(|moves| scatter.is_scattered((7, 1), true, moves)) == [false; 2]);
    }

    #[test]
    fn the_table_keeps_its_limit() {
        let mut scatter = Scatter::new(1);
        see(&mut scatter, &blocks(10..60), &blocks(1_000..1_100));
        assert_eq!(scatter.words.len(), 1);
    }
}
