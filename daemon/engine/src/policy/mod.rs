//! Policies: what to move, given the world.
//!
//! A policy owns its own tables and asks the world for moves; it never changes what is
//! known. `foresight` is the product, the others are for comparison.

mod deepum;
mod demand;
mod foresight;
mod ranking;

pub(crate) use demand::budget_reserve;

use std::fmt::Debug;

use crate::command::Command;
use crate::decision::{Standing, Stop};
use crate::stats::{BreakerState, Stats};
use crate::units::Micros;
use crate::world::World;
use crate::{Config, PolicyKind};

/// Decides what to move.
pub(crate) trait Policy: Debug + Send {
    /// The launch at the head of the window changed: `exec` is what runs now.
    fn started(&mut self, _world: &World, _exec: u32) {}

    /// The device faulted on a block while `exec` ran.
    fn faulted(&mut self, _world: &World, _slot: u32, _exec: u32) {}

    /// Asks for what is to be done now. Takes all changed blocks from the world.
    fn decide(
        &mut self,
        now: Micros,
        world: &mut World,
        stats: &mut Stats,
        commands: &mut Vec<Command>,
    );

    /// Whether it steers.
    fn breaker(&self) -> BreakerState {
        BreakerState::Closed
    }

    /// In an earlier run so many prefetched bytes helped, and so many did not.
    fn vouch(&mut self, _helpful_bytes: u64, _wasted_bytes: u64) {}

    /// What it has in mind for a block, as of its last decision.
    fn standing(&self, _world: &World, _slot: u32) -> Standing {
        Standing::Unsaid
    }

    /// Why it went no further when it last decided.
    fn stops(&self) -> Stops {
        Stops::default()
    }

    /// Estimated size of its tables in bytes.
    fn table_bytes(&self) -> u64 {
        0
    }
}

/// Why a policy went no further than it did when it last decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stops {
    /// Why the next victim stays.
    pub room: Stop,
    /// Why the next fetch, or birth, waits.
    pub fetch: Stop,
}

impl Default for Stops {
    fn default() -> Self {
        let stop = Stop::Nothing;
        Self {
            room: stop,
            fetch: stop,
        }
    }
}

/// The policy that a configuration asks for.
pub(crate) fn make(config: &Config) -> Box<dyn Policy> {
    match config.policy {
        PolicyKind::Foresight => Box::new(foresight::Foresight::default()),
        PolicyKind::Deepum => Box::new(deepum::Deepum::new(config)),
        PolicyKind::Demand => Box::new(demand::Demand::default()),
        PolicyKind::Driver => Box::new(Driver),
    }
}

/// Leaves everything to the driver.
#[derive(Debug)]
struct Driver;

impl Policy for Driver {
    fn decide(&mut self, _: Micros, world: &mut World, _: &mut Stats, _: &mut Vec<Command>) {
        while world.blocks.next_changed().is_some() {}
        world.blocks.recycle();
    }

    fn breaker(&self) -> BreakerState {
        BreakerState::Open
    }
}
