//! What the G10 artifact's planner has promised of each launch's time on the link and on the
//! SSD behind it, one iteration like the other.
//!
//! Source: `platformxlab/G10`, `analysis.cc`, the functions `*_BWcheck`, `*_BWgiveIndx` and
//! `*_BWsim`. Its rules, which an exact planner would not have:
//!
//! - The link may be promised whole to the host, beside what the SSD was promised before.
//! - What the SSD is promised counts on the link, too. Of what the host is promised, all that
//!   reaches into the SSD's share of a launch counts on the SSD, and counts again with every
//!   further promise during that launch: host traffic closes the SSD early.
//! - A transfer that does not fit ends with the iteration's last launch, or begins with its
//!   first.
//!
//! Owns the promises alone; what they are asked for is the policy's.

use std::ops::Range;

use crate::units::{Nanos, Rate};

/// Where idle content goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::policy) enum Store {
    /// The host, over the whole link.
    Host,
    /// The SSD, over its share of the link.
    Ssd,
}

/// Bytes that one launch's time carries, and those promised.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    most: u64,
    taken: u64,
    full: bool,
}

impl Slot {
    fn left(&self) -> u64 {
        if self.full {
            0
        } else {
            self.most.saturating_sub(self.taken)
        }
    }

    fn fill(&mut self) {
        self.taken = self.most;
        self.full = true;
    }

    fn add(&mut self, bytes: u64) {
        self.taken += bytes;
        self.full |= self.taken >= self.most;
    }
}

/// The promises of one direction.
#[derive(Clone, Debug)]
pub(in crate::policy) struct Promised {
    link: Vec<Slot>,
    ssd: Vec<Slot>,
}

impl Promised {
    /// Nothing promised yet; by launch the bytes that its time carries.
    pub fn new(link: Rate, ssd: Rate, times: &[Nanos]) -> Self {
        let slots = |rate: Rate| {
            let carried = |time: &Nanos| {
                let bytes = u128::from(rate.0) * u128::from(time.0) / 1_000_000_000;
                Slot {
                    most: bytes as u64,
                    ..Slot::default()
                }
            };
            times.iter().map(carried).collect()
        };
        Self {
            link: slots(link),
            ssd: slots(ssd),
        }
    }

    fn slots(&self, store: Store) -> &[Slot] {
        match store {
            Store::Host => &self.link,
            Store::Ssd => &self.ssd,
        }
    }

    /// Some launch of these still has time for the store.
    pub fn open(&self, store: Store, mut launches: Range<u32>) -> bool {
        launches.any(|launch| !self.slots(store)[launch as usize].full)
    }

    /// The launch during which so many bytes are over that begin with the first of these, or
    /// the last.
    pub fn over(&self, store: Store, bytes: u64, launches: Range<u32>) -> u32 {
        let last = launches.end - 1;
        self.reach(store, bytes, launches).unwrap_or(last)
    }

    /// The launch with which so many bytes must begin to be there after the last of these, or
    /// the first.
    pub fn begin(&self, store: Store, bytes: u64, launches: Range<u32>) -> u32 {
        let first = launches.start;
        self.reach(store, bytes, launches.rev()).unwrap_or(first)
    }

    fn reach(
        &self,
        store: Store,
        bytes: u64,
        mut launches: impl Iterator<Item = u32>,
    ) -> Option<u32> {
        let mut rest = bytes;
        launches.find(|launch| {
            rest = rest.saturating_sub(self.slots(store)[*launch as usize].left());
            rest == 0
        })
    }

    /// Promises so many bytes, from the first of these launches on.
    pub fn promise(&mut self, store: Store, bytes: u64, launches: Range<u32>) {
        let mut rest = bytes;
        for launch in launches {
            let (link, ssd) = (
                &mut self.link[launch as usize],
                &mut self.ssd[launch as usize],
            );
            let own = match store {
                Store::Host => &mut *link,
                Store::Ssd => &mut *ssd,
            };
            if own.full {
                continue;
            }
            let left = own.left();
            match store {
                Store::Ssd => {
                    link.add(rest.min(left));
                    if rest > left {
                        ssd.fill();
                    } else {
                        ssd.taken += rest;
                    }
                }
                Store::Host if rest > left => {
                    link.fill();
                    ssd.fill();
                }
                Store::Host => {
                    link.taken += rest;
                    let others = link.most.saturating_sub(ssd.most);
                    if link.taken >= others {
                        ssd.add(link.taken - others);
                    }
                }
            }
            if rest <= left {
                return;
            }
            rest -= left;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Launches of 1 s that carry 10 bytes over the link, 2 of them to the SSD.
    fn promised() -> Promised {
        Promised::new(Rate(10), Rate(2), &[Nanos(1_000_000_000); 4])
    }

    #[test]
    fn transfers_end_where_the_time_is_used_up_or_with_the_last_launch() {
        let promised = promised();
        assert_eq!(promised.over(Store::Host, 15, 0..4), 1);
        assert_eq!(promised.over(Store::Ssd, 15, 0..4), 3);
        assert_eq!(promised.begin(Store::Host, 15, 0..4), 2);
        assert_eq!(promised.begin(Store::Ssd, 15, 0..4), 0);
    }

    #[test]
    fn the_ssds_traffic_counts_on_the_link() {
        let mut promised = promised();
        promised.promise(Store::Ssd, 3, 0..4);
        assert!(!promised.open(Store::Ssd, 0..1));
        assert!(promised.open(Store::Ssd, 0..2));
        // 8 left in the first launch, 9 in the second.
        assert_eq!(promised.over(Store::Host, 17, 0..4), 1);
        assert_eq!(promised.over(Store::Host, 18, 0..4), 2);
    }

    #[test]
    fn host_traffic_in_the_ssds_share_counts_again_with_every_promise() {
        let mut promised = promised();
        promised.promise(Store::Host, 9, 0..4);
        assert!(promised.open(Store::Ssd, 0..1));
        // Nothing more, and yet it is closed now: 1 of 2 counts twice.
        promised.promise(Store::Host, 0, 0..4);
        assert!(!promised.open(Store::Ssd, 0..1));
        assert!(promised.open(Store::Host, 0..1));
    }

    #[test]
    fn a_full_link_closes_the_ssd() {
        let mut promised = promised();
        promised.promise(Store::Host, 11, 1..4);
        assert!(!promised.open(Store::Ssd, 1..2));
        assert!(!promised.open(Store::Host, 1..2));
        assert!(promised.open(Store::Ssd, 2..3));
    }
}
