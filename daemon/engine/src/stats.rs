//! What the engine counts, and what it says of itself. Counters only grow.

/// Totals since the session began. Bytes are bytes, times microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // each name is its own description; see the metrics' help texts
pub struct Stats {
    pub events: u64,
    pub launches: u64,
    pub faults: u64,
    pub fault_batches: u64,
    pub host_faults: u64,
    pub migrated_in_bytes: [u64; CAUSES],
    pub migrated_out_bytes: [u64; CAUSES],
    pub commands: u64,
    pub prefetch_issued_bytes: u64,
    pub prefetch_useful_bytes: u64,
    pub prefetch_late_bytes: u64,
    pub prefetch_wasted_bytes: u64,
    pub evicted_bytes: u64,
    pub discarded_bytes: u64,
    pub populated_bytes: u64,
    pub refused: u64,
    pub breaker_opened: u64,
    pub blocks_untracked: u64,
    pub history_dropped: u64,
}

/// Causes that migrated bytes are counted by, in the order of [`crate::Cause`].
pub const CAUSES: usize = 6;

/// The state now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Snapshot {
    /// Managed bytes that exist.
    pub managed_bytes: u64,
    /// Of them, on the device, as far as the engine knows.
    pub resident_bytes: u64,
    /// Device bytes that managed memory may fill.
    pub capacity_bytes: u64,
    /// Bytes of prefetches in flight.
    pub inflight_bytes: u64,
    /// Distinct execution IDs.
    pub execution_ids: u64,
    /// Launches remembered.
    pub history_launches: u64,
    /// Bytes that tables take, estimated from their lengths.
    pub table_bytes: u64,
    /// Whether prefetching is on.
    pub breaker: BreakerState,
    /// Launches of the learned cycle; none while there is none.
    pub cycle_launches: Option<u64>,
}

/// Whether the engine steers or leaves everything to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Steering.
    Closed,
    /// Left to the driver: prefetches did not help.
    Open,
    /// Trying again with little.
    HalfOpen,
}
