//! Where in its turn the program is, by what runs alone.
//!
//! Where sizes vary, or a framework hands memory out elsewhere in each turn, few launches come
//! again with the same arguments, but functions do come in the same order. Which of the launches
//! a turn or more ago the present repeats only arguments can tell; but they tell it for a stretch
//! at most, and the last stretch of that kind may have been followed by something else: another
//! batch of an accumulation, and not the optimizer. Owns the length of a turn, which is believed
//! once a whole one was as the one before it.

use crate::hash::{Map, mix};

/// Launches by which a lost place is found again.
const CONTEXT: usize = 16;
/// Launches that may be missing or new before the place counts as lost.
pub(super) const PATIENCE: u64 = 8;

/// Hash of the last `length` launches, of which `newest` is the newest and `before` come before it,
/// the newest first; 0 where they are fewer.
pub(super) fn context(newest: u32, before: impl Iterator<Item = u32>, length: usize) -> u64 {
    let (mut context, mut count) = (mix(0, u64::from(newest)), 1);
    for launch in before.take(length - 1) {
        context = mix(context, u64::from(launch));
        count += 1;
    }
    if count == length { context | 1 } else { 0 }
}

/// The launch that runs what the newest one does, a turn before.
#[derive(Debug, Default)]
pub(super) struct Phase {
    /// Where each context was seen last.
    seen: Map<u64, u64>,
    matched: Option<u64>,
    misses: u64,
    /// For how many launches it has been as long ago.
    held: u64,
}

impl Phase {
    /// The launches of a turn, if the newest one, at `position`, is in its place and a whole turn
    /// before it was as the one before that. None where they are few: of those that run the same
    /// again and again it says nothing.
    pub(super) fn turn(&self, position: u64) -> Option<u64> {
        let turn = position - self.matched?;
        let told = turn > CONTEXT as u64 && self.held >= turn;
        (self.misses == 0 && told).then_some(turn)
    }

    /// Goes on to the launch at `position`, which runs `code`, and gives the hash of its context;
    /// 0 where too few were launched. `before`: what ran before it, the newest first; `at`: and
    /// what at some position.
    pub(super) fn follow(
        &mut self,
        (position, code): (u64, u32),
        before: impl Iterator<Item = u32>,
        at: impl Fn(u64) -> Option<u32>,
    ) -> u64 {
        let context = context(code, before, CONTEXT);
        let ago = self.matched.map(|matched| position - 1 - matched);
        let next = self.matched.and_then(|matched| {
            let mut ahead = (1..=self.misses + 2).map(|ahead| matched + ahead);
            ahead.find(|&place| place < position && at(place) == Some(code))
        });
        let found = || self.seen.get(&context).filter(|_| context != 0).copied();
        if let Some(place) = next.or_else(found) {
            (self.matched, self.misses) = (Some(place), 0);
        } else {
            self.misses += 1;
            if self.misses > PATIENCE {
                (self.matched, self.misses) = (None, 0);
            }
        }
        let same = self.matched.map(|matched| position - matched) == ago;
        self.held = if same { self.held + 1 } else { 0 };
        if context != 0 {
            self.seen.insert(context, position);
        }
        context
    }

    /// The launch at `position`, which had this context, is forgotten, as all before it.
    pub(super) fn forget(&mut self, position: u64, context: u64) {
        if self.seen.get(&context) == Some(&position) {
            self.seen.remove(&context);
        }
        self.matched = self.matched.filter(|&matched| matched > position);
    }

    /// Estimated size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        (self.seen.capacity() * (size_of::<(u64, u64)>() + 1)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Follows launches from position 1 on.
    fn run(codes: &[u32]) -> Phase {
        let mut phase = Phase::default();
        for (index, &code) in codes.iter().enumerate() {
            let before = codes[..index].iter().rev().copied();
            let at = |place: u64| codes[..index].get(place as usize - 1).copied();
            phase.follow((index as u64 + 1, code), before, at);
        }
        phase
    }

    fn turn(codes: &[u32]) -> Option<u64> {
        run(codes).turn(codes.len() as u64)
    }

    /// Four batches and an optimizer.
    fn accumulation() -> Vec<u32> {
        let batch: Vec<u32> = (0..30).collect();
        [batch.repeat(4), (100..120).collect()].concat()
    }

    #[test]
    fn a_turn_is_as_long_as_all_of_it_though_parts_of_it_repeat() {
        let all = accumulation();
        assert_eq!(turn(&all.repeat(4)), Some(140));
        // In whatever part of it.
        for cut in [10, 40, 115, 130] {
            assert_eq!(turn(&[&all.repeat(4)[..], &all[..cut]].concat()), Some(140));
        }
    }

    #[test]
    fn it_is_believed_once_a_whole_one_was_the_same() {
        let codes: Vec<u32> = (0..50).collect();
        assert_eq!(turn(&codes), None);
        assert_eq!(turn(&[&codes[..], &codes[..40]].concat()), None);
        assert_eq!(turn(&codes.repeat(3)), Some(50));
    }

    #[test]
    fn what_is_missing_or_new_does_not_lose_it() {
        let codes: Vec<u32> = (0..50).collect();
        let missing = [&codes.repeat(3)[..], &codes[..20], &codes[21..]].concat();
        assert_eq!(turn(&missing), None, "that turn had 49");
        assert_eq!(turn(&[missing, codes.repeat(4)].concat()), Some(50));
        let mut new = codes.repeat(4);
        new.insert(170, 99);
        assert_eq!(turn(&[new, codes.repeat(4)].concat()), Some(50));
    }

    #[test]
    fn what_never_comes_again_has_no_turn() {
        let codes: Vec<u32> = (0..500).map(|n| n * n % 1009).collect();
        assert_eq!(turn(&codes), None);
    }

    #[test]
    fn a_few_functions_again_and_again_are_no_turn() {
        assert_eq!(turn(&[7; 500]), None);
        assert_eq!(turn(&[7, 8, 9].repeat(100)), None);
        // Between others they are part of one.
        let codes = [&[7, 8, 9].repeat(20)[..], &[1, 2, 3, 4]].concat();
        assert_eq!(turn(&codes.repeat(6)), Some(64));
    }

    #[test]
    fn what_is_forgotten_is_not_repeated() {
        let codes: Vec<u32> = (0..50).collect();
        let mut phase = run(&codes.repeat(3));
        let contexts = phase.seen.len();
        assert!(contexts <= 150);
        for position in 1..=100 {
            let had = phase.seen.iter().find(|(_, at)| **at == position);
            let context = had.map_or(0, |(context, _)| *context);
            phase.forget(position, context);
        }
        assert!(phase.seen.values().all(|&at| at > 100));
        assert_eq!(phase.turn(150), None);
    }
}
