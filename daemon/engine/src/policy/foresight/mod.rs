//! oversub's own policy: keep what is needed soonest, fetch by deadline, evict ahead.
//!
//! Every block has a next use: the first queued launch that uses it, else where the
//! learned cycle will use it, else unknown. Absent blocks are fetched in the order of
//! next use; each takes the place of the resident block with the latest one, if that is
//! later. This is the aggressive schedule of Cao, Felten, Karlin and Li ("A study of
//! integrated prefetching and caching strategies", SIGMETRICS 1995), whose elapsed time is
//! within a factor of one plus fetch time over memory size of the best. On a cyclic sweep
//! it settles at a kept part and a streamed part: a stalled device shortens the look-ahead
//! until only the excess moves, a busy one leaves the link idle.

mod exchange;
mod late;
mod marks;
mod on_host;
mod plan;
mod rank;
mod reach;
mod reserve;

use super::{Policy, Stops};
use crate::breaker::Breaker;
use crate::command::Command;
use crate::decision::Standing;
use crate::event::Cause;
use crate::stats::{BreakerState, Stats};
use crate::units::{Micros, TICKS};
use crate::world::World;
use exchange::Exchange;
use on_host::OnHost;
use rank::Ranks;
use reach::Reach;

/// The default policy.
#[derive(Debug, Default)]
pub(crate) struct Foresight {
    ranks: Ranks,
    breaker: Breaker,
    reach: Reach,
    on_host: OnHost,
    exchange: Exchange,
    stops: Stops,
}

impl Policy for Foresight {
    fn started(&mut self, world: &World, _exec: u32) {
        self.reach.started(world);
        self.on_host.started(world);
    }

    fn decide(
        &mut self,
        now: Micros,
        world: &mut World,
        stats: &mut Stats,
        commands: &mut Vec<Command>,
    ) {
        world.forget_refusals();
        self.ranks.refresh(world);
        let begun = world.floor() * TICKS;
        let firsts = [self.ranks.first_absent(), self.ranks.first_coming()];
        let [absent, coming] = firsts.map(|first| {
            let within = first.map(|first| first.saturating_sub(begun));
            within.filter(|&first| first < TICKS)
        });
        world.progress.estimate(now, absent, coming);
        if !world.without.feedback {
            let [by_fault, by_density] =
                [Cause::Fault, Cause::Density].map(|cause| stats.migrated_in_bytes[cause as usize]);
            let faulted = by_fault.saturating_add(by_density);
            self.breaker
                .judge((world.floor(), faulted), &world.usefulness, world.capacity);
            stats.breaker_opened = self.breaker.opened();
            self.reach.adapt(now, world);
        }
        world.decisions.breaker = self.breaker.state();
        if !world.without.feedback {
            self.on_host.consider(now, world, stats, commands);
        }
        self.exchange.consider(now, world);
        plan::carry_out(self, now, world, stats, commands);
    }

    fn breaker(&self) -> BreakerState {
        self.breaker.state()
    }

    fn vouch(&mut self, helpful_bytes: u64, wasted_bytes: u64) {
        self.breaker.vouch(helpful_bytes, wasted_bytes);
    }

    fn standing(&self, world: &World, slot: u32) -> Standing {
        self.ranks.standing(world, slot, self.stops)
    }

    fn stops(&self) -> Stops {
        self.stops
    }

    fn table_bytes(&self) -> u64 {
        self.ranks.bytes()
    }
}
