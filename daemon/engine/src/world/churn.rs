//! How much faults bring again in a turn of the program, against how much has no room at all.
//!
//! Owns the sums, of all allocations together. Where the device is a little too small for a
//! program whose launches use each time something else, the driver gives up what is used next to
//! bring what is used now: a turn then moves many times what does not fit, though launches use
//! whole blocks. What does not fit could lie on the host, and each use of it would cost the link
//! about what it is large. What a running launch is known to use does not count: launches may come
//! to it many times in a turn, and the link brings it ahead as far as it has time.

use crate::units::BLOCK_BYTES;

/// Faults bring more again than they need to where it is more than so many times what has no room.
const CHURN: u64 = 2;
/// Turns in a row in which they must: in the first one or two of a program that does the same in
/// each turn nothing is fetched ahead yet.
const TURNS: u64 = 2;

/// Turns in a row in which it should have been learned what launches use when they come again.
const LONG: u64 = 5;

/// The sums.
#[derive(PartialEq, Debug, Default)]
pub(crate) struct Churn {
    /// Bytes that faults brought again since.
    again: u64,
    /// Most blocks with content that had no frame meanwhile.
    away: u64,
    /// Oldest launch that was not over when the sums began.
    since: u64,
    /// Turns in a row in which more came than had to.
    turns: u64,
}

impl Churn {
    /// A fault, or what the driver brings with it, moved so many bytes of a block that had been on
    /// the device before, and that no running launch was known to use.
    pub(crate) fn came(&mut self, bytes: u64) {
        self.again += bytes;
    }

    /// So many blocks with content have no frame: what has none at some time of a turn must come
    /// again in it, though it may be when others have given theirs up.
    pub(crate) fn lack(&mut self, away: u64) {
        self.away = self.away.max(away);
    }

    /// More comes again than must, turn after turn, as far as is known when launches before
    /// `floor` are over. `turn`: the launches after which the program repeats itself, where it
    /// does.
    pub(crate) fn is_seen(&mut self, floor: u64, turn: Option<u64>) -> bool {
        let Some(turn) = turn else {
            return false;
        };
        let launches = floor.saturating_sub(self.since);
        if launches >= turn {
            let of_turn = self.again as f64 * turn as f64 / launches.max(1) as f64;
            let churns = self.away > 0 && of_turn > (CHURN * self.away * BLOCK_BYTES) as f64;
            *self = Self {
                since: floor,
                turns: if churns { self.turns + 1 } else { 0 },
                ..Self::default()
            };
        }
        self.turns >= TURNS
    }

    /// It has gone on for so long that what is learned meanwhile does not end it.
    pub(crate) fn lasts(&self) -> bool {
        self.turns >= LONG
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of ten launches in each of which `again` blocks come while `away` have no frame;
    /// whether churn is seen after each.
    fn turns<const N: usize>(again: u64, away: u64) -> [bool; N] {
        let mut churn = Churn::default();
        std::array::from_fn(|turn| {
            for _ in 0..again {
                churn.came(BLOCK_BYTES);
            }
            churn.lack(away);
            churn.lack(away / 2);
            churn.is_seen(10 * (turn as u64 + 1), Some(10))
        })
    }

    #[test]
    fn more_than_twice_of_what_has_no_room_is_churn_in_the_second_turn() {
        assert_eq!(turns(101, 50), [false, true, true]);
        assert_eq!(turns(100, 50), [false; 3], "twice");
    }

    #[test]
    fn what_comes_though_all_has_room_is_none() {
        assert_eq!(turns(100, 0), [false; 3]);
    }

    #[test]
    fn what_has_no_room_at_any_time_of_the_turn_counts() {
        let mut churn = Churn::default();
        for turn in 1..=4 {
            churn.lack(60);
            churn.came(101 * BLOCK_BYTES);
            churn.lack(50);
            assert!(!churn.is_seen(10 * turn, Some(10)), "turn {turn}");
        }
    }

    #[test]
    fn turns_must_follow_each_other_and_be_whole() {
        let mut churn = Churn::default();
        let mut after = |blocks: u64, floor, turn| {
            churn.lack(10);
            churn.came(blocks * BLOCK_BYTES);
            churn.is_seen(floor, turn)
        };
        assert!(!after(100, 10, Some(10)));
        assert!(!after(1, 20, Some(10)), "this one does with little");
        assert!(!after(100, 30, Some(10)));
        assert!(!after(100, 39, Some(10)), "not a whole turn");
        assert!(after(100, 40, Some(10)));
        assert!(!after(30, 50, None), "no turn is known");
        assert!(!after(45, 80, Some(10)), "75 in four turns");
    }
}
