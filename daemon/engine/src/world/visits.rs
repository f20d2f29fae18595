//! How much of its blocks is used each time faults bring them back: evidence that an
//! allocation is better used where it lies.
//!
//! Owns the counts, by allocation, and by object how much of its blocks faults bring. A visit
//! is a block's stay on the device that a fault began, after it had been there before. Rows of
//! a table, nodes of a graph: faults bring a few pages of 64 KiB, and the 2 MiB that they take
//! are given up before more of them is used. Such a visit costs a fault, a transfer and an
//! eviction for what one access over the link would have been (on first touches of new memory
//! nothing is known yet: they do not count). Where faults bring again many times what has no
//! room ([`super::churn`]), whole blocks tell the same.

use std::collections::{BTreeMap, BTreeSet};

use super::churn::Churn;
use crate::agreement::Agreement;
use crate::hash::Map;
use crate::profile::ON_HOST;
use crate::units::{BLOCK_BYTES, Micros, Range};

/// Visits from which it can be told where they lie over a turn of the program or more: they
/// then show all that it does with those blocks.
const VISITS: u64 = 64;
/// In each so many turns of it there must be as many: a few in each turn cost nothing that is worth
/// a trial, however many come together.
const VISITS_TURNS: u64 = 16;
/// Otherwise one in so many blocks of the device, where that is more.
const VISITS_SHARE: u64 = 4;
/// One of several allocations that are told together was visited so often.
const LEAST_VISITS: u64 = 4;
/// Disappointments after which it makes no difference how many there were.
const DISAPPOINTMENTS: u32 = 16;
/// Launches over which they must lie.
const LAUNCHES: u64 = 4;
/// Blocks that faults brought from which it can be told how much of them is used; of so many
/// times as many, half are forgotten.
const BROUGHT: u64 = 4;
const BROUGHT_MEMORY: u64 = 128;
/// Most objects of which that is counted.
const OBJECTS: usize = 1 << 14;
/// Less than one in so many bytes of them is little.
const THIN: u64 = 2;

/// Most ranges handed out anew that are remembered one by one.
const RENEWED: usize = 256;
/// An allocation of which one in so many blocks was handed out anew is another.
const RENEWED_SHARE: u64 = 2;

/// After so many times as many blocks as an allocation has it is not waited any longer for launches
/// to come again.
const FRESH: f64 = 8.0;

/// Whether an allocation's content stays on the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Stay {
    /// Faults bring it.
    #[default]
    Migrates,
    /// It does.
    Stays,
    /// It does, and memory was handed out anew in much of it.
    Renewed,
    /// It did, and faults bring it for a while.
    Compared,
}

/// What was seen of an allocation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Visit {
    count: u64,
    bytes: u64,
    /// Blocks that commands brought meanwhile.
    fetched: u64,
    /// Oldest launch that was not over when the count began.
    since: u64,
    /// How often it was tried in vain, and until when nothing is concluded.
    disappointments: u32,
    until: Micros,
    /// That was when the program was not known to repeat itself: other launches were compared.
    guessed: bool,
    stay: Stay,
    /// It stayed on the host in an earlier run.
    expected: bool,
    /// Blocks that migrate though it stays: memory was handed out anew there.
    migrate: u64,
    /// Whether launches that come again use the same of it, and how many blocks were used of which
    /// that is not known yet, in so many times as many as it has.
    agreement: Agreement,
    fresh: f64,
}

impl Visit {
    /// Begins to count anew.
    fn clear(&mut self) {
        (self.count, self.bytes, self.fetched) = (0, 0, 0);
    }

    /// The visits were short of half of the blocks, and more than what was brought ahead.
    fn is_sparse(&self) -> bool {
        self.bytes * 2 < self.count * BLOCK_BYTES && self.is_by_faults()
    }

    /// What launches use of it is learned as they come again, or it may be: it is fetched ahead then.
    fn is_learned(&self) -> bool {
        let holds = self.agreement.holds();
        holds.unwrap_or(self.fresh > 0.0 && self.fresh < FRESH)
    }

    /// They were more than what was brought ahead.
    fn is_by_faults(&self) -> bool {
        self.count > self.fetched
    }
}

/// Allocations that had better stay on the host.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Sparse {
    /// Their starts, and how often a launch visited each, in the mean.
    pub visited: Vec<(u64, f64)>,
    /// Oldest launch that was not over when the first count began.
    pub since: u64,
    /// Visits, all in all.
    pub count: u64,
}

/// The counts.
#[derive(Debug, Default)]
pub(crate) struct Visits {
    by_allocation: BTreeMap<u64, Visit>,
    /// By the name of an object, an allocation or a part that is handed out: blocks that faults
    /// brought, for the first time or again, and bytes of them.
    brought: Map<u64, (u64, u64)>,
    /// Of all of them together.
    churn: Churn,
    /// Visits since they were last looked at.
    unseen: u64,
    /// One of them may be enough.
    looked_for: bool,
    /// Of those that stayed on the host in an earlier run, the ones that faults would bring.
    missed: Vec<u64>,
    /// Names of those that stayed when they were given back, at most [`ON_HOST`].
    stayed: BTreeSet<u64>,
    /// Memory that was handed out anew in allocations that stay, at most [`RENEWED`].
    renewed: Vec<(u64, Range)>,
}

impl Visits {
    /// A fault, or what the driver brings with it, moved so many bytes of a block that had been on
    /// the device before; `arrives`: it was not there yet.
    pub(crate) fn came(&mut self, address: u64, (bytes, arrives): (u64, bool), floor: u64) {
        let visit = self.by_allocation.entry(address).or_default();
        if visit.count == 0 && visit.bytes == 0 {
            visit.since = floor;
        }
        visit.count += u64::from(arrives);
        visit.bytes += bytes;
        self.unseen += u64::from(arrives);
        self.looked_for |= visit.count >= VISITS || self.unseen >= VISITS;
    }

    /// So many of these bytes were of blocks that no launch was known to use.
    pub(crate) fn came_unforetold(&mut self, bytes: u64) {
        self.churn.came(bytes);
    }

    /// So many blocks with content have no frame.
    pub(crate) fn lack(&mut self, away: u64) {
        self.churn.lack(away);
    }

    /// A fault, or what the driver brings with it, moved so many bytes of a block of the object of
    /// this name; `arrives`: it was not there yet.
    pub(crate) fn brought(&mut self, name: u64, bytes: u64, arrives: bool) {
        if self.brought.len() >= OBJECTS && !self.brought.contains_key(&name) {
            return;
        }
        let (blocks, sum) = self.brought.entry(name).or_default();
        (*blocks, *sum) = (*blocks + u64::from(arrives), *sum + bytes);
        if *blocks >= BROUGHT * BROUGHT_MEMORY {
            (*blocks, *sum) = (*blocks / 2, *sum / 2);
        }
    }

    /// Of a block of which faults brought so many bytes a command brought the rest: it does not
    /// count, but where there is hardly another.
    pub(crate) fn not_brought(&mut self, name: u64, bytes: u64) {
        if let Some((blocks, sum)) = self.brought.get_mut(&name)
            && *blocks > BROUGHT
        {
            (*blocks, *sum) = (*blocks - 1, sum.saturating_sub(bytes));
        }
    }

    /// Launches use little of each block of the object that faults bring.
    pub(crate) fn is_thin(&self, name: u64) -> bool {
        let brought = self.brought.get(&name);
        brought.is_some_and(|&(blocks, bytes)| {
            blocks >= BROUGHT && bytes * THIN < blocks * BLOCK_BYTES
        })
    }

    /// Of blocks of this allocation that launches are known to use and that were away they used some
    /// again, and others not; of further ones nothing was known, of all that it has.
    pub(crate) fn came_again(&mut self, address: u64, [same, other, fresh]: [u64; 3], blocks: u64) {
        let visit = self.by_allocation.entry(address).or_default();
        visit.agreement.add(same, other);
        visit.fresh += fresh as f64 / blocks.max(1) as f64;
    }

    /// A command brought a block of the allocation.
    pub(crate) fn fetched(&mut self, address: u64) {
        if let Some(visit) = self.by_allocation.get_mut(&address) {
            visit.fetched += 1;
        }
    }

    /// The allocations whose visits were more than what is brought ahead, and short of half of
    /// their blocks or part of a churn: each by visits enough of its own, or several, none of
    /// which was wrong before, by as many short ones together. Others of which as much was seen
    /// begin anew. `turn`: the launches after which the program repeats itself, where it does.
    pub(crate) fn sparse(
        &mut self,
        capacity: u64,
        (floor, now): (u64, Micros),
        turn: Option<u64>,
    ) -> Option<Sparse> {
        if !std::mem::take(&mut self.looked_for) {
            return None;
        }
        self.unseen = 0;
        if turn.is_some() {
            for visit in self.by_allocation.values_mut() {
                if std::mem::take(&mut visit.guessed) {
                    (visit.disappointments, visit.until) = (0, Micros(0));
                }
            }
        }
        let churns = self.churn.is_seen(floor, turn);
        let lasts = self.churn.lasts();
        let share = |visit: &Visit| {
            let launches = floor.saturating_sub(visit.since);
            let enough = match turn {
                Some(turn) if launches >= turn => {
                    VISITS * launches.div_ceil(turn.saturating_mul(VISITS_TURNS))
                }
                _ => VISITS.max(capacity / VISITS_SHARE),
            };
            let seen = visit.stay == Stay::Migrates && launches >= LAUNCHES && now >= visit.until;
            if seen {
                visit.count as f64 / enough as f64
            } else {
                0.0
            }
        };
        let joins = |visit: &Visit| {
            visit.disappointments == 0 && visit.count >= LEAST_VISITS && visit.is_sparse()
        };
        let all = self.by_allocation.values();
        let together: f64 = all.filter(|visit| joins(visit)).map(share).sum();
        let mut found: Option<Sparse> = None;
        for (&address, visit) in &mut self.by_allocation {
            let share = share(visit);
            let joins = together >= 1.0 && share > 0.0 && joins(visit);
            if share < 1.0 && !joins {
                continue;
            }
            if visit.is_sparse() || churns && visit.is_by_faults() && (lasts || !visit.is_learned())
            {
                let found = found.get_or_insert(Sparse {
                    visited: Vec::new(),
                    since: visit.since,
                    count: 0,
                });
                let launches = floor.saturating_sub(visit.since).max(1);
                let visits = visit.count as f64 / launches as f64;
                found.visited.push((address, visits));
                found.since = found.since.min(visit.since);
                found.count += visit.count;
            }
            visit.clear();
        }
        found
    }

    /// It is treated so from now on.
    pub(crate) fn set(&mut self, address: u64, stay: Stay) {
        let visit = self.by_allocation.entry(address).or_default();
        visit.stay = stay;
        visit.migrate = 0;
        visit.clear();
    }

    /// It migrates again, and was tried in vain: nothing is concluded until then, and for four
    /// times as long after each further disappointment. `guessed`: it was not the same launches
    /// that were compared, so it is tried anew as soon as they can be.
    pub(crate) fn disappointed(&mut self, address: u64, now: Micros, until: Micros, guessed: bool) {
        self.set(address, Stay::Migrates);
        let visit = self.by_allocation.entry(address).or_default();
        visit.guessed = guessed;
        let wait_us = until.0.saturating_sub(now.0) << (2 * visit.disappointments);
        visit.until = Micros(now.0.saturating_add(wait_us));
        visit.disappointments = (visit.disappointments + 1).min(DISAPPOINTMENTS);
    }

    /// Whether it is treated so.
    pub(crate) fn is(&self, address: u64, stay: Stay) -> bool {
        let visit = self.by_allocation.get(&address);
        visit.is_some_and(|visit| visit.stay == stay)
    }

    /// The driver does not do so.
    pub(crate) fn refused(&mut self, address: u64) {
        self.set(address, Stay::Migrates);
        let visit = self.by_allocation.entry(address).or_default();
        (visit.until, visit.guessed) = (Micros(u64::MAX), false);
    }

    /// Memory is handed out in this allocation.
    pub(crate) fn renewed(&mut self, address: u64, range: Range) {
        let Some(visit) = self.by_allocation.get_mut(&address) else {
            return;
        };
        visit.stay = match visit.stay {
            Stay::Migrates | Stay::Renewed => return,
            stay if self.renewed.len() < RENEWED => {
                self.renewed.push((address, range));
                stay
            }
            Stay::Stays => Stay::Renewed,
            Stay::Compared => Stay::Migrates,
        };
    }

    /// What was handed out anew in allocations that stay. Of those that are compared it is kept
    /// until they do again.
    pub(crate) fn take_renewed(&mut self) -> Vec<(u64, Range)> {
        let all = std::mem::take(&mut self.renewed);
        let compared = |&(address, _): &(u64, Range)| self.is(address, Stay::Compared);
        let (kept, taken) = all.into_iter().partition(compared);
        self.renewed = kept;
        taken
    }

    /// So many more of the so many blocks of an allocation migrate though it stays. Where those that
    /// do are much of it by now, it is another.
    pub(crate) fn migrate(&mut self, address: u64, more: u64, blocks: u64) {
        let Some(visit) = self.by_allocation.get_mut(&address) else {
            return;
        };
        visit.migrate += more;
        let stays = visit.stay == Stay::Stays;
        if stays && visit.migrate * RENEWED_SHARE >= blocks {
            visit.stay = Stay::Renewed;
        }
    }

    /// An allocation that stays though memory was handed out anew in much of it.
    pub(crate) fn first_renewed(&self) -> Option<u64> {
        let mut all = self.by_allocation.iter();
        all.find(|(_, visit)| visit.stay == Stay::Renewed)
            .map(|(&address, _)| address)
    }

    /// It is gone.
    pub(crate) fn forget(&mut self, address: u64, name: u64) {
        let gone = self.by_allocation.remove(&address);
        if gone.is_some_and(|visit| visit.stay == Stay::Stays) && self.stayed.len() < ON_HOST {
            self.stayed.insert(name);
        }
    }

    /// It stayed on the host in an earlier run.
    pub(crate) fn expect(&mut self, address: u64) {
        self.by_allocation.entry(address).or_default().expected = true;
    }

    /// The device faults on what is on the host, where not all fits on the device.
    pub(crate) fn missed(&mut self, address: u64) {
        if let Some(visit) = self.by_allocation.get_mut(&address)
            && std::mem::take(&mut visit.expected)
            && visit.stay == Stay::Migrates
        {
            self.missed.push(address);
        }
    }

    /// Those that stayed on the host in an earlier run, each once, as soon as faults would bring
    /// it.
    pub(crate) fn take_missed(&mut self) -> Vec<u64> {
        let mut missed = std::mem::take(&mut self.missed);
        missed.retain(|address| self.is(*address, Stay::Migrates));
        missed
    }

    /// Where those begin whose content stays.
    pub(crate) fn staying(&self) -> impl Iterator<Item = u64> {
        let all = self.by_allocation.iter();
        all.filter(|(_, visit)| visit.stay == Stay::Stays)
            .map(|(&address, _)| address)
    }

    /// Names of those that stayed when they were given back.
    pub(crate) fn stayed(&self) -> impl Iterator<Item = u64> {
        self.stayed.iter().copied()
    }

    /// Estimated size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let allocations = self.by_allocation.len() * size_of::<(u64, Visit)>() * 3 / 2;
        let objects = self.brought.capacity() * (size_of::<(u64, (u64, u64))>() + 1);
        (allocations + objects) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::tests::evicted_meanwhile;
    use crate::{Cause, Direction};

    const NOW: Micros = Micros(1_000_000);
    const TABLE: u64 = 1 << 40;
    const GRANULE: u64 = 64 << 10;

    /// `count` visits of so many bytes each, ten to a launch, a launch a millisecond.
    fn seen(visits: &mut Visits, count: u64, bytes: u64) {
        for visit in 0..count {
            let launch = visit / 10;
            visits.came(TABLE, (bytes, true), launch);
        }
    }

    fn found(visits: u64, launches: u64) -> Option<Sparse> {
        Some(Sparse {
            visited: vec![(TABLE, visits as f64 / launches as f64)],
            since: 0,
            count: visits,
        })
    }

    #[test]
    fn short_visits_to_little_of_a_block_tell_that_it_had_better_stay() {
        let mut visits = Visits::default();
        seen(&mut visits, 64, 3 * GRANULE);
        assert_eq!(visits.sparse(256, (6, NOW), None), found(64, 6));
        visits.set(TABLE, Stay::Stays);
        seen(&mut visits, 64, 3 * GRANULE);
        assert_eq!(visits.sparse(256, (12, NOW), None), None, "it does");
    }

    #[test]
    fn whole_blocks_and_few_visits_tell_nothing() {
        let mut visits = Visits::default();
        seen(&mut visits, 640, BLOCK_BYTES);
        assert_eq!(visits.sparse(256, (64, NOW), Some(10)), None);
        let mut visits = Visits::default();
        seen(&mut visits, 63, GRANULE);
        assert_eq!(visits.sparse(256, (64, NOW), None), None, "too few");
        let mut visits = Visits::default();
        seen(&mut visits, 64, GRANULE);
        let large = visits.sparse(1 << 20, (64, NOW), None);
        assert_eq!(large, None, "a small share of a large device");
    }

    #[test]
    fn a_turn_of_the_program_tells_with_fewer_visits() {
        let mut visits = Visits::default();
        seen(&mut visits, 64, GRANULE);
        assert_eq!(
            visits.sparse(1 << 20, (6, NOW), Some(7)),
            None,
            "not a whole turn"
        );
        visits.came(TABLE, (GRANULE, true), 6);
        assert_eq!(visits.sparse(1 << 20, (6, NOW), Some(6)), found(65, 6));
    }

    #[test]
    fn a_few_visits_in_each_turn_tell_nothing_however_many_they_are() {
        let tells = |turns: u64| {
            let mut visits = Visits::default();
            seen(&mut visits, 64, GRANULE);
            visits.sparse(256, (6 * turns, NOW), Some(6)).is_some()
        };
        assert_eq!([1, 16, 17].map(tells), [true, true, false]);
    }

    #[test]
    fn what_is_mostly_brought_ahead_is_no_matter_of_faults() {
        let mut visits = Visits::default();
        seen(&mut visits, 64, GRANULE);
        for _ in 0..64 {
            visits.fetched(TABLE);
        }
        assert_eq!(visits.sparse(256, (6, NOW), Some(6)), None);
    }

    #[test]
    fn whole_blocks_tell_where_they_come_again_and_again_for_want_of_little_room() {
        let mut visits = Visits::default();
        let mut turn = |launch: u64, fetched: u64| {
            for _ in 0..64 {
                visits.came(TABLE, (BLOCK_BYTES, true), launch);
                visits.came_unforetold(BLOCK_BYTES);
            }
            for _ in 0..fetched {
                visits.fetched(TABLE);
            }
            visits.lack(31);
            visits.sparse(256, (launch + 10, NOW), Some(10))
        };
        assert_eq!(turn(0, 0), None, "one turn may be the first");
        let found = turn(10, 0).expect("two");
        assert_eq!((found.since, found.count), (10, 64));
        assert_eq!(turn(20, 64), None, "as much was brought ahead");
    }

    #[test]
    fn what_launches_use_again_when_they_come_again_is_waited_for() {
        // In each turn all 64 blocks come, of which so many were known to be used and so many not.
        let found_after = |same: u64, other: u64, fresh: u64| {
            let mut visits = Visits::default();
            (1..=8).find(|turn| {
                for _ in 0..64 {
                    visits.came(TABLE, (BLOCK_BYTES, true), 10 * turn - 10);
                    visits.came_unforetold(BLOCK_BYTES);
                }
                visits.came_again(TABLE, [same, other, fresh], 64);
                visits.lack(31);
                visits.sparse(256, (10 * turn, NOW), Some(10)).is_some()
            })
        };
        assert_eq!(
            found_after(0, 32, 64),
            Some(2),
            "they use something else each time"
        );
        assert_eq!(
            found_after(32, 0, 64),
            Some(5),
            "it should have been learned by then"
        );
        assert_eq!(found_after(0, 0, 64), Some(5), "none came again");
        assert_eq!(found_after(0, 0, 256), Some(2), "none did for long");
    }

    #[test]
    fn what_a_running_launch_is_known_to_use_is_no_churn() {
        let come = |known: bool| {
            let (mut world, slot) = evicted_meanwhile();
            world.use_on_host = true;
            if !known {
                world.blocks.will_not_use(slot, world.floor());
            }
            world.blocks.get_mut(slot).left = 1;
            let id = world.blocks.get(slot).id;
            let range = Range {
                address: id.address(),
                bytes: BLOCK_BYTES,
            };
            world.moved(range, Direction::In, Cause::Fault);
            assert_eq!(world.visits.unseen, 1, "it came again");
            world.visits.churn
        };
        let mut once = Churn::default();
        once.came(BLOCK_BYTES);
        assert_eq!([true, false].map(come), [Churn::default(), once]);
    }

    #[test]
    fn several_that_were_never_wrong_are_told_together() {
        let tables = [TABLE, 2 * TABLE, 3 * TABLE, 4 * TABLE];
        let mut visits = Visits::default();
        for visit in 0..80 {
            let bytes = if visit % 4 == 3 { BLOCK_BYTES } else { GRANULE };
            let table = tables[visit % 4];
            visits.came(table, (bytes, true), visit as u64 / 10);
        }
        assert_eq!(
            visits.sparse(256, (8, NOW), Some(8)),
            None,
            "60 sparse ones"
        );
        for visit in 0..80 {
            visits.came(tables[visit % 3], (GRANULE, true), 8);
        }
        let found = visits.sparse(256, (8, NOW), Some(8));
        let found = found.map(|found| found.visited.iter().map(|one| one.0).collect());
        assert_eq!(found, Some(tables[..3].to_vec()));
    }

    #[test]
    fn who_was_wrong_waits_longer_each_time() {
        let mut visits = Visits::default();
        let (mut now, mut waited) = (Micros(0), Vec::new());
        for _ in 0..3 {
            visits.set(TABLE, Stay::Stays);
            visits.disappointed(TABLE, now, Micros(now.0 + 100), false);
            let since = now;
            loop {
                seen(&mut visits, 64, GRANULE);
                if visits.sparse(256, (6, now), None).is_some() {
                    break;
                }
                now.0 += 10;
            }
            waited.push(now.0 - since.0);
        }
        assert_eq!(waited, [100, 400, 1600]);
    }

    #[test]
    fn who_was_wrong_by_a_guess_is_tried_anew_once_the_program_repeats_itself() {
        for (guessed, anew) in [(true, true), (false, false)] {
            let mut visits = Visits::default();
            visits.disappointed(TABLE, NOW, Micros(NOW.0 * 1000), guessed);
            seen(&mut visits, 64, GRANULE);
            assert_eq!(visits.sparse(256, (8, NOW), None), None);
            seen(&mut visits, 64, GRANULE);
            let found = visits.sparse(256, (8, NOW), Some(8));
            assert_eq!(found.is_some(), anew, "{guessed}");
        }
    }

    #[test]
    fn what_is_handed_out_anew_is_told_of_once_it_stays_again() {
        let mut visits = Visits::default();
        let range = Range {
            address: TABLE + BLOCK_BYTES,
            bytes: BLOCK_BYTES,
        };
        for (stay, told) in [
            (Stay::Migrates, vec![]),
            (Stay::Compared, vec![]),
            (Stay::Stays, vec![(TABLE, range)]),
        ] {
            visits.set(TABLE, stay);
            if stay != Stay::Stays {
                visits.renewed(TABLE, range);
            }
            assert_eq!(visits.take_renewed(), told, "{stay:?}");
        }
        for _ in 0..=RENEWED {
            visits.renewed(TABLE, range);
        }
        assert_eq!(visits.first_renewed(), Some(TABLE), "too many to remember");
    }

    #[test]
    fn an_object_is_thin_where_faults_bring_less_than_half_of_a_block() {
        let mut visits = Visits::default();
        for block in 0..4 {
            assert!(!visits.is_thin(TABLE), "{block} tell nothing");
            visits.brought(TABLE, GRANULE, true);
            visits.brought(TABLE, 8 * GRANULE, false);
        }
        assert!(visits.is_thin(TABLE));
        for _ in 0..2_000 {
            visits.brought(TABLE, BLOCK_BYTES, true);
        }
        assert!(!visits.is_thin(TABLE), "other use counts more");
    }
}
