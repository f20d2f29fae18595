//! The engine: one session's memory on one device, and the policy that steers it.

use crate::{Command, Config, ConfigError, Event, Micros, Snapshot, Stats};

/// Steers one session on one device.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    stats: Stats,
}

impl Engine {
    /// An engine that knows nothing yet.
    ///
    /// # Errors
    /// [`ConfigError`] where `config` leaves no room to work in.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        Ok(Self { config, stats: Stats::default() })
    }

    /// Takes in one event. `now` never goes back.
    pub fn step(&mut self, _now: Micros, _event: &Event<'_>) {
        self.stats.events += 1;
    }

    /// Appends what is to be done now. Call it after each group of events, and at
    /// [`Engine::next_wakeup`].
    pub fn decide(&mut self, _now: Micros, _commands: &mut Vec<Command>) {}

    /// When [`Engine::decide`] wants to be called again even if nothing happens; none
    /// while nothing is outstanding.
    pub fn next_wakeup(&self) -> Option<Micros> {
        None
    }

    /// After how many launches in a stream a progress mark is wanted (at least 1).
    pub fn mark_stride(&self) -> u32 {
        1
    }

    /// Totals since the session began.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The state now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            managed_bytes: 0,
            resident_bytes: 0,
            capacity_bytes: self.config.capacity.0,
            inflight_bytes: 0,
            execution_ids: 0,
            history_launches: 0,
            table_bytes: 0,
            breaker: crate::BreakerState::Closed,
            cycle_launches: None,
        }
    }
}
