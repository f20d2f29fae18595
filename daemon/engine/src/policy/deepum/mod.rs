//! DeepUM (ASPLOS 2023), for comparison.

use super::Policy;
use super::demand::Demand;
use crate::Config;
use crate::command::Command;
use crate::stats::Stats;
use crate::units::Micros;
use crate::world::World;

/// DeepUM's policy.
#[derive(Debug, Default)]
pub(crate) struct Deepum {
    demand: Demand,
}

impl Deepum {
    pub(crate) fn new(_config: &Config) -> Self {
        Self::default()
    }
}

impl Policy for Deepum {
    fn decide(
        &mut self,
        now: Micros,
        world: &mut World,
        stats: &mut Stats,
        commands: &mut Vec<Command>,
    ) {
        self.demand.decide(now, world, stats, commands);
    }
}
