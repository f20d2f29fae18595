//! What an engine is made with.

use crate::Without;
use crate::units::Bytes;

/// Which policy decides.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PolicyKind {
    /// oversub's own, the default.
    Foresight,
    /// DeepUM (ASPLOS 2023), exact, for comparison.
    Deepum,
    /// No prefetch; keeps the budget by least recently migrated out, as the driver does.
    Demand,
    /// No commands at all: the driver alone.
    Driver,
}

/// Limits and machine figures of one engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Which policy decides.
    pub policy: PolicyKind,
    /// Device bytes that managed memory of this session may fill.
    pub capacity: Bytes,
    /// The capacity is a budget inside a larger device: the engine alone keeps it. False:
    /// the driver evicts when the device is full.
    pub enforce: bool,
    /// A fault of the device maps the host's page and moves nothing, and so does a first
    /// touch: only commands bring content to the device.
    pub remote: bool,
    /// Single allocations may be treated so, by command ([`crate::Operation::UseOnHost`]).
    pub use_on_host: bool,
    /// First guess of the link's rate, bytes per microsecond; measured from then on.
    pub link_bytes_per_us: f64,
    /// Most bytes that prefetches may have in flight.
    pub inflight_bytes: Bytes,
    /// The driver can discard.
    pub discard: bool,
    /// The program may be asked to wait with its launches ([`crate::Engine::run_ahead`]).
    pub hold_launches: bool,
    /// Parts of `foresight` that are left out, to see what they are worth.
    pub without: Without,
    /// DeepUM's table geometry and look-ahead.
    pub deepum: DeepumConfig,
    /// Most launches remembered.
    pub history_launches: usize,
    /// Most distinct execution IDs.
    pub execution_ids: usize,
    /// Most blocks of managed memory tracked; beyond it, memory is left to the driver.
    pub blocks: usize,
    /// Decisions remembered, to say why; 0: none.
    pub decisions: usize,
}

/// DeepUM's parameters (paper sections 4 and 6.2; its defaults are Config9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeepumConfig {
    /// Rows of each block table.
    pub rows: usize,
    /// Ways of each row.
    pub ways: usize,
    /// Successors of each way.
    pub successors: usize,
    /// Kernels looked ahead.
    pub lookahead: usize,
    /// Hash raw argument words, as the paper says; otherwise words that change are masked.
    pub literal: bool,
}

impl Default for DeepumConfig {
    fn default() -> Self {
        Self {
            rows: 2048,
            ways: 2,
            successors: 4,
            lookahead: 32,
            literal: false,
        }
    }
}

impl Config {
    /// Defaults for a device with `capacity` bytes for managed memory.
    pub fn new(policy: PolicyKind, capacity: Bytes) -> Self {
        Self {
            policy,
            capacity,
            enforce: false,
            remote: false,
            use_on_host: false,
            link_bytes_per_us: 12_000.0,
            inflight_bytes: Bytes(16 << 20),
            discard: true,
            hold_launches: true,
            without: Without::default(),
            deepum: DeepumConfig::default(),
            history_launches: 1 << 18,
            execution_ids: 20_000,
            blocks: 1 << 20,
            decisions: 1 << 12,
        }
    }

    /// Checks that an engine can work with it, in at least `least_bytes`.
    pub(crate) fn validate(&self, least_bytes: u64) -> Result<(), ConfigError> {
        if self.capacity.0 < least_bytes {
            return Err(ConfigError::CapacityTooSmall(self.capacity.0, least_bytes));
        }
        let sizes = [
            ("history_launches", self.history_launches),
            ("execution_ids", self.execution_ids),
            ("blocks", self.blocks),
            ("deepum.rows", self.deepum.rows),
            ("deepum.ways", self.deepum.ways),
            ("deepum.successors", self.deepum.successors),
            ("deepum.lookahead", self.deepum.lookahead),
            (
                "link_bytes_per_us",
                usize::from(self.link_bytes_per_us > 0.0),
            ),
        ];
        match sizes.iter().find(|(_, size)| *size == 0) {
            Some((name, _)) => Err(ConfigError::Zero(name)),
            None => Ok(()),
        }
    }
}

/// A configuration that no engine can be made with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Less than a few blocks of capacity.
    #[error("a capacity of {0} bytes is below the {1} bytes that a policy needs to work")]
    CapacityTooSmall(u64, u64),
    /// A table would have no room.
    #[error("`{0}` must be at least 1")]
    Zero(&'static str),
}
