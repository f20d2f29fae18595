//! How much of its blocks is used each time faults bring them back: evidence that an
//! allocation is better used where it lies.
//!
//! Owns the counts, by allocation. A visit is a block's stay on the device that a fault began,
//! after it had been there before. Rows of a table, nodes of a graph: faults bring a few pages
//! of 64 KiB, and the 2 MiB that they take are given up before more of them is used. Such a
//! visit costs a fault, a transfer and an eviction for what one access over the link would
//! have been (on first touches of new memory nothing is known yet: they do not count).

use std::collections::BTreeMap;

use crate::units::{BLOCK_BYTES, Micros};

/// Visits from which it can be told where they lie over a turn of the program or more: they
/// then show all that it does with those blocks.
const VISITS: u64 = 64;
/// Otherwise one in so many blocks of the device, where that is more.
const VISITS_SHARE: u64 = 4;
/// After a disappointment so many times the evidence is wanted, and four times that after each
/// further one: a trial lasts no longer than the first, so all of them cost little.
const DOUBT: u64 = 64;
/// A launch that takes less than this part of what it took before is not settled.
const SETTLED: f64 = 0.95;
/// Launches over which they must lie.
const LAUNCHES: u64 = 4;

/// Whether an allocation's content stays on the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Stay {
    /// Faults bring it.
    #[default]
    Migrates,
    /// It does.
    Stays,
    /// It does, and memory was handed out anew there.
    Renewed,
}

/// What was seen of an allocation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Visit {
    count: u64,
    bytes: u64,
    /// Blocks that commands brought meanwhile.
    fetched: u64,
    /// Oldest launch that was not over, and the time, when the count began.
    since: (u64, Micros),
    /// What a launch took during the count before this one, microseconds; 0: unknown.
    before_us: f64,
    /// How many times the evidence is wanted after a disappointment.
    doubt: u64,
    pub stay: Stay,
}

impl Visit {
    /// Begins to count anew.
    fn clear(&mut self) {
        (self.count, self.bytes, self.fetched) = (0, 0, 0);
    }
}

/// Allocations that had better stay on the host.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Sparse {
    /// Their starts.
    pub addresses: Vec<u64>,
    /// Oldest launch that was not over, and the time, when the first count began.
    pub since: (u64, Micros),
    /// How many times the evidence was wanted of the one that was doubted most; 1: never.
    pub doubt: u64,
}

/// The counts.
#[derive(Debug, Default)]
pub(crate) struct Visits {
    by_allocation: BTreeMap<u64, Visit>,
    /// One of them may be enough.
    looked_for: bool,
}

impl Visits {
    /// A fault, or what the driver brings with it, moved so many bytes of a block that had been
    /// on the device before; `arrives`: it was not there yet.
    pub(crate) fn came(
        &mut self,
        address: u64,
        bytes: u64,
        arrives: bool,
        floor: u64,
        now: Micros,
    ) {
        let visit = self.by_allocation.entry(address).or_default();
        if visit.count == 0 && visit.bytes == 0 {
            visit.since = (floor, now);
        }
        visit.count += u64::from(arrives);
        visit.bytes += bytes;
        self.looked_for |= visit.count >= VISITS;
    }

    /// A command brought a block of the allocation.
    pub(crate) fn fetched(&mut self, address: u64) {
        if let Some(visit) = self.by_allocation.get_mut(&address) {
            visit.fetched += 1;
        }
    }

    /// The allocations whose visits are short of half of their blocks, and more than what is
    /// brought ahead. Others of which as much was seen begin anew. `turn`: the launches after
    /// which the program repeats itself, where it does.
    pub(crate) fn sparse(
        &mut self,
        capacity: u64,
        floor: u64,
        now: Micros,
        turn: Option<u64>,
    ) -> Option<Sparse> {
        if !std::mem::take(&mut self.looked_for) {
            return None;
        }
        let mut found: Option<Sparse> = None;
        for (&address, visit) in &mut self.by_allocation {
            let launches = floor.saturating_sub(visit.since.0);
            let enough = match turn {
                Some(turn) if launches >= turn => VISITS,
                _ => VISITS.max(capacity / VISITS_SHARE),
            };
            let wanted = enough.saturating_mul(visit.doubt.max(1));
            if visit.stay != Stay::Migrates || visit.count < wanted || launches < LAUNCHES {
                continue;
            }
            let sparse = visit.bytes * 2 < visit.count * BLOCK_BYTES && visit.count > visit.fetched;
            let launch_us = now.0.saturating_sub(visit.since.1.0) as f64 / launches.max(1) as f64;
            // While it still gets faster, what it takes says nothing of what it will.
            let settled = visit.before_us > 0.0 && launch_us >= visit.before_us * SETTLED;
            visit.before_us = launch_us;
            visit.clear();
            if sparse && settled {
                let since = visit.since;
                let found = found.get_or_insert(Sparse {
                    addresses: Vec::new(),
                    since,
                    doubt: 1,
                });
                found.doubt = found.doubt.max(visit.doubt);
                found.addresses.push(address);
                found.since = found.since.min(since);
            }
        }
        found
    }

    /// It is treated so from now on. Whoever goes back to migrating wants more evidence the
    /// next time.
    pub(crate) fn set(&mut self, address: u64, stay: Stay) {
        let visit = self.by_allocation.entry(address).or_default();
        if stay == Stay::Migrates && visit.stay != Stay::Migrates {
            visit.doubt = visit.doubt.max(DOUBT / 4).saturating_mul(4);
        }
        visit.stay = stay;
        visit.before_us = 0.0;
        visit.clear();
    }

    /// The driver does not do so.
    pub(crate) fn refused(&mut self, address: u64) {
        self.set(address, Stay::Migrates);
        self.by_allocation.entry(address).or_default().doubt = u64::MAX;
    }

    /// Memory is handed out in this allocation.
    pub(crate) fn renewed(&mut self, address: u64) {
        if let Some(visit) = self.by_allocation.get_mut(&address)
            && visit.stay == Stay::Stays
        {
            visit.stay = Stay::Renewed;
        }
    }

    /// An allocation that stays though memory was handed out anew there.
    pub(crate) fn first_renewed(&self) -> Option<u64> {
        let mut all = self.by_allocation.iter();
        all.find(|(_, visit)| visit.stay == Stay::Renewed)
            .map(|(&address, _)| address)
    }

    /// It is gone.
    pub(crate) fn forget(&mut self, address: u64) {
        self.by_allocation.remove(&address);
    }

    /// Estimated size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.by_allocation.len() * size_of::<(u64, Visit)>() * 3 / 2) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: u64 = 1 << 40;
    const GRANULE: u64 = 64 << 10;

    /// `count` visits of so many bytes each, ten to a launch, a launch a millisecond.
    fn seen(visits: &mut Visits, count: u64, bytes: u64) {
        for visit in 0..count {
            let launch = visit / 10;
            visits.came(TABLE, bytes, true, launch, Micros(launch * 1000));
        }
    }

    /// What is found at that launch where all launches took a millisecond, these and those of
    /// the count before.
    fn sparse(visits: &mut Visits, capacity: u64, floor: u64, turn: Option<u64>) -> Option<Sparse> {
        for visit in visits.by_allocation.values_mut() {
            visit.before_us = 1000.0;
        }
        visits.sparse(capacity, floor, Micros(floor * 1000), turn)
    }

    fn found() -> Option<Sparse> {
        Some(Sparse {
            addresses: vec![TABLE],
            since: (0, Micros(0)),
            doubt: 1,
        })
    }

    #[test]
    fn short_visits_to_little_of_a_block_tell_that_it_had_better_stay() {
        let mut visits = Visits::default();
        seen(&mut visits, 64, 3 * GRANULE);
        assert_eq!(sparse(&mut visits, 256, 6, None), found());
        visits.set(TABLE, Stay::Stays);
        seen(&mut visits, 64, 3 * GRANULE);
        assert_eq!(sparse(&mut visits, 256, 12, None), None, "it does");
    }

    #[test]
    fn whole_blocks_and_few_visits_tell_nothing() {
        let mut visits = Visits::default();
        seen(&mut visits, 640, BLOCK_BYTES);
        assert_eq!(sparse(&mut visits, 256, 64, Some(10)), None);
        let mut visits = Visits::default();
        seen(&mut visits, 63, GRANULE);
        assert_eq!(sparse(&mut visits, 256, 64, None), None, "too few");
        let mut visits = Visits::default();
        seen(&mut visits, 64, GRANULE);
        let large = sparse(&mut visits, 1 << 20, 64, None);
        assert_eq!(large, None, "a small share of a large device");
    }

    #[test]
    fn a_turn_of_the_program_tells_with_fewer_visits() {
        let mut visits = Visits::default();
        seen(&mut visits, 64, GRANULE);
        assert_eq!(
            sparse(&mut visits, 1 << 20, 6, Some(7)),
            None,
            "not a whole turn"
        );
        visits.came(TABLE, GRANULE, true, 6, Micros(6000));
        assert_eq!(sparse(&mut visits, 1 << 20, 6, Some(6)), found());
    }

    #[test]
    fn what_is_mostly_brought_ahead_is_no_matter_of_faults() {
        let mut visits = Visits::default();
        seen(&mut visits, 64, GRANULE);
        for _ in 0..64 {
            visits.fetched(TABLE);
        }
        assert_eq!(sparse(&mut visits, 256, 6, Some(6)), None);
    }

    #[test]
    fn nothing_is_concluded_while_launches_still_get_faster() {
        let mut visits = Visits::default();
        for (count, launch_us) in [(0, 5000), (1, 3000), (2, 1000), (3, 990)] {
            for visit in 0..64 {
                let launch = visit / 10;
                visits.came(TABLE, GRANULE, true, launch, Micros(launch * launch_us));
            }
            let found = visits.sparse(256, 7, Micros(7 * launch_us), None);
            assert_eq!(found.is_some(), count == 3, "{launch_us} us a launch");
        }
    }

    #[test]
    fn who_was_wrong_wants_more_evidence() {
        let mut visits = Visits::default();
        visits.set(TABLE, Stay::Stays);
        visits.set(TABLE, Stay::Migrates);
        let wanted = DOUBT * 64;
        seen(&mut visits, wanted - 1, GRANULE);
        let launch = wanted / 10;
        assert_eq!(sparse(&mut visits, 256, launch, None), None);
        visits.came(TABLE, GRANULE, true, launch, Micros(launch * 1000));
        let found = sparse(&mut visits, 256, launch, None);
        assert_eq!(found.map(|found| found.doubt), Some(DOUBT));
    }
}
