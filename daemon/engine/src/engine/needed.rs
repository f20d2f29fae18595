//! How much of what came in time a launch needed, by what it did to blocks that were away.
//!
//! Nobody sees accesses that hit, but an argument's blocks that were away tell of the others: those
//! before the last one that was used are needed as much as these were, those behind are not.

use crate::access::Argument;
use crate::scatter::{Left, Scatter, Seen};
use crate::units::BlockId;
use crate::usefulness::Share;

/// An argument of a launch that is over.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Number of the block that it points into.
    begin: u64,
    word: (u32, u32),
    /// It is known by now that it is used here and there: it is not taken to be used any more.
    scattered: bool,
    /// The last block that was used.
    last: Option<u64>,
    touched: usize,
    /// Blocks that were left alone before that one,
    left: usize,
    /// and behind it, and the first of those.
    beyond: usize,
    behind: u64,
}

/// What a launch needed of its arguments.
#[derive(Debug, Default)]
pub(super) struct Needed {
    parts: Vec<Part>,
    all: Option<Share>,
}

impl Needed {
    /// Of a launch with these pointers, of which that was seen. `alone`: the blocks that were away
    /// are all that tells, as no cycle is known.
    pub(super) fn new(
        arguments: &[Argument],
        seen: impl Iterator<Item = Left>,
        scatter: &Scatter,
        alone: bool,
    ) -> Self {
        let part = |argument: &Argument| {
            let word = (argument.function, argument.word);
            Part {
                begin: argument.block(),
                word,
                scattered: scatter.is_scattered(word, false, false),
                last: None,
                touched: 0,
                left: 0,
                beyond: 0,
                behind: u64::MAX,
            }
        };
        let mut parts: Vec<Part> = arguments.iter().map(part).collect();
        if !alone && !parts.iter().any(|part| part.scattered) {
            return Self::default();
        }
        parts.sort_unstable_by_key(|part| part.begin);
        let (mut touched, mut left) = (0, 0);
        for (BlockId(number), word, seen) in seen {
            let Some(part) = parts.iter_mut().rfind(|part| part.word == word) else {
                continue;
            };
            match seen {
                Seen::Touched => {
                    part.touched += 1;
                    part.last = part.last.max(Some(number));
                }
                Seen::Left => part.left += 1,
                Seen::Beyond => {
                    part.beyond += 1;
                    part.behind = part.behind.min(number);
                }
            }
            if !part.scattered {
                touched += usize::from(seen == Seen::Touched);
                left += usize::from(seen != Seen::Touched);
            }
        }
        let all = alone.then(|| Share::new(touched, left));
        Self { parts, all }
    }

    /// How much it needed of what is like the block of this number.
    pub(super) fn of(&self, number: u64) -> Share {
        let all = self.all.unwrap_or(Share::ALL);
        let before = self.parts.partition_point(|part| part.begin <= number);
        let Some(part) = before.checked_sub(1).map(|index| &self.parts[index]) else {
            return all;
        };
        if part.scattered {
            return Share::UNKNOWN;
        }
        match part.last {
            _ if self.all.is_none() => Share::ALL,
            Some(last) if number <= last => Share::new(part.touched, part.left),
            // It was there in time: it may be what the launch used last, or what it left alone first.
            _ if number < part.behind && part.beyond > 0 => Share::UNKNOWN,
            Some(_) => Share::new(0, part.beyond),
            None => all,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scatter;
    use crate::units::BLOCK_BYTES;

    fn arguments() -> [Argument; 2] {
        [(0, 100), (1, 200)].map(|(word, block)| Argument {
            function: 7,
            word,
            shape: 0,
            address: block * BLOCK_BYTES,
        })
    }

    fn blocks(numbers: std::ops::Range<u64>) -> Vec<BlockId> {
        numbers.map(BlockId).collect()
    }

    fn needed(touched: &[BlockId], left: &[BlockId], scatter: &Scatter) -> Needed {
        let seen = scatter::seen(&arguments(), touched, left).into_iter();
        Needed::new(&arguments(), seen, scatter, true)
    }

    #[test]
    fn what_lies_behind_all_that_is_used_was_not_needed() {
        let scatter = Scatter::new(100);
        let touched = [blocks(100..110), blocks(200..203)].concat();
        let needed = needed(&touched, &blocks(130..180), &scatter);
        assert_eq!(needed.of(105), Share::ALL);
        assert_eq!(needed.of(120), Share::UNKNOWN, "nobody saw");
        assert_eq!(needed.of(185), Share::new(0, 50));
        assert_eq!(needed.of(202), Share::ALL, "of the other argument");
        assert_eq!(needed.of(230), Share::ALL, "nothing was left alone there");
    }

    #[test]
    fn what_lies_before_was_needed_as_much_as_what_was_away() {
        let scatter = Scatter::new(100);
        let touched = blocks(100..164).into_iter().step_by(8).collect::<Vec<_>>();
        let left: Vec<_> = blocks(100..150)
            .into_iter()
            .filter(|id| id.0 % 8 != 4)
            .collect();
        let needed = needed(&touched, &left, &scatter);
        assert_eq!(needed.of(101), Share::new(8, 43));
    }

    #[test]
    fn of_what_came_in_time_and_is_left_alone_behind_nothing_is_known() {
        let scatter = Scatter::new(100);
        let needed = needed(&[], &blocks(120..180), &scatter);
        assert_eq!(needed.of(110), Share::UNKNOWN);
        assert_eq!(
            needed.of(99),
            Share::new(0, 60),
            "it is none of these arguments'"
        );
    }

    #[test]
    fn what_is_known_to_be_used_here_and_there_is_not_judged() {
        let mut scatter = Scatter::new(100);
        let (touched, left) = (blocks(150..151), blocks(100..150));
        scatter.observe(10, &arguments(), (&touched, &left), |_, _| true);
        scatter.observe(200, &[], (&[], &[]), |_, _| true);
        let share = |alone| {
            let seen = scatter::seen(&arguments(), &touched, &left).into_iter();
            let needed = Needed::new(&arguments(), seen, &scatter, alone);
            [needed.of(120), needed.of(220)]
        };
        assert_eq!(share(true), [Share::UNKNOWN, Share::ALL]);
        assert_eq!(share(false), [Share::UNKNOWN, Share::ALL]);
    }
}
