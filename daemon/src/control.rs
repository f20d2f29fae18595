//! The questions that the control socket answers, and the answers. One JSON line each.
//!
//! Used by the daemon and by the command line. Bytes are bytes; times name their unit.
//! What cannot be known is `null`.

pub mod why;

use std::path::PathBuf;

use oversub_engine as engine;
use oversub_protocol::latency;
use serde::{Deserialize, Serialize};

use crate::probes::source::Source;
use why::{SessionWhy, WhyQuestion};

/// Version of these types.
pub const CONTROL_VERSION: u32 = 1;
/// How many ended sessions are remembered.
pub const CLOSED_SESSIONS: usize = 64;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// [`CONTROL_VERSION`] of the asker.
    pub version: u32,
    /// The question.
    pub request: Question,
}

/// A question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Question {
    /// What runs.
    Status,
    /// What this host allows, and why something is off.
    Doctor,
    /// The metrics as Prometheus would get them.
    Metrics,
    /// Why blocks are where they are.
    Why(WhyQuestion),
    /// Steer this process, which runs already, from outside.
    Attach(u32),
    /// Let it go.
    Detach(u32),
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// To [`Question::Status`].
    Status(Status),
    /// To [`Question::Doctor`].
    Doctor(Doctor),
    /// To [`Question::Metrics`]: the text of `/metrics`.
    Metrics(String),
    /// To [`Question::Why`]: the sessions that the asker may see, by number.
    Why(Vec<SessionWhy>),
    /// To [`Question::Attach`].
    Attached(Box<AttachView>),
    /// To [`Question::Detach`]: it will be let go.
    Detaching,
    /// The request was not understood or could not be answered.
    Error(String),
}

/// What runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Process of the daemon.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: f64,
    /// Policy of sessions that ask for none.
    pub policy: String,
    /// Sessions accepted since it started.
    pub sessions_opened: u64,
    /// Sessions that the asker may see, by number.
    pub sessions: Vec<SessionView>,
    /// Sessions that have ended, latest last, that the asker may see: the last
    /// [`CLOSED_SESSIONS`] at most.
    pub closed_sessions: Vec<SessionView>,
    /// Sessions of other users, which the asker may not see.
    pub sessions_hidden: u64,
    /// Processes steered from outside that the asker may see, by number, and the last ones
    /// that were.
    #[serde(default)]
    pub attached: Vec<AttachView>,
    /// Where the driver's events come from; none: an older daemon.
    #[serde(default)]
    pub events: Option<EventsView>,
}

/// Where events of nvidia-uvm come from, in short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsView {
    /// The source in use.
    pub source: Source,
    /// Why that one.
    pub reason: String,
}

/// One process that is steered from outside.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AttachView {
    /// Its number among the attached.
    pub attachment: u64,
    /// Process.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Name of the process.
    pub command: String,
    /// Where the driver's events come from.
    pub source: String,
    /// The device that is steered; none before it has faulted.
    pub gpu: Option<String>,
    /// Seconds attached.
    pub age_s: f64,
    /// Why it was let go; none: it is attached.
    pub ended: Option<String>,
    /// Predictions are good enough to act on.
    pub steering: bool,
    /// Managed bytes that the process maps.
    pub managed_bytes: u64,
    /// Device bytes that its memory may fill; none while the device was not full.
    pub capacity_bytes: Option<u64>,
    /// Bytes moved for it, both ways.
    pub moved_bytes: u64,
    /// Requests made again because the driver was busy.
    pub retries: u64,
    /// Events of devices other than the one that is steered.
    pub other_device_events: u64,
    /// Totals.
    pub stats: AttachStats,
}

/// One session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionView {
    /// Its number.
    pub session: u64,
    /// Process.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Name of the process.
    pub command: String,
    /// Label of the GPU in the metrics.
    pub gpu: String,
    /// Name of the device.
    pub device: String,
    /// Policy in force.
    pub policy: String,
    /// Residency budget; none where there is none.
    pub budget_bytes: Option<u64>,
    /// Seconds since it began.
    pub age_s: f64,
    /// The state now.
    pub snapshot: SnapshotView,
    /// Totals.
    pub stats: StatsView,
    /// Records taken from the event ring.
    pub records: u64,
    /// Of them, dropped because they were wrong.
    pub records_rejected: u64,
    /// Of them, skipped because their kind is unknown.
    pub records_unknown: u64,
    /// Managed bytes left to the driver because limits were reached.
    pub untracked_bytes: u64,
    /// Commands that found the command ring full and waited.
    pub commands_deferred: u64,
    /// Events of probes that were this session's.
    pub probe_events: u64,
    /// Records that the program could not write because the ring was full.
    pub events_dropped: u64,
    /// Commands that the driver refused, as the program says.
    pub commands_failed: u64,
    /// Discards that the program declined because the range was in use again.
    pub discards_declined: u64,
    /// Launches after which the program waited, so as not to get far ahead of the device.
    #[serde(default)]
    pub held_launches: u64,
    /// Microseconds that it waited.
    #[serde(default)]
    pub held_us: u64,
    /// From the daemon's having the event to the command's hand-over to the driver.
    pub latency: LatencyView,
}

/// Latency of commands, on the scale of [`oversub_protocol::latency`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyView {
    /// Commands measured.
    pub count: u64,
    /// Upper end of the bucket with the median, microseconds.
    pub p50_us: Option<u64>,
    /// Upper end of the bucket with the 99th percentile, microseconds.
    pub p99_us: Option<u64>,
    /// Four to each power of two of a microsecond.
    pub buckets: Vec<u64>,
}

impl LatencyView {
    /// From the counts in the shared page.
    pub fn from_buckets(buckets: &[u64]) -> Self {
        let count = buckets
            .iter()
            .fold(0u64, |sum, bucket| sum.saturating_add(*bucket));
        let quantile = |share: f64| {
            let rank = ((count as f64 * share).ceil() as u64).max(1);
            let mut seen = 0u64;
            let index = buckets.iter().position(|bucket| {
                seen = seen.saturating_add(*bucket);
                seen >= rank
            })?;
            // The last bucket has no upper end.
            (index + 1 < buckets.len()).then(|| latency::bounds(index).1)
        };
        Self {
            count,
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            buckets: buckets.to_vec(),
        }
    }
}

macro_rules! mirror {
    ($(#[$doc:meta])* $name:ident of $source:ty { $($field:ident: $kind:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[allow(missing_docs)] // as in the engine
        pub struct $name { $(pub $field: $kind,)* }

        impl From<&$source> for $name {
            fn from(source: &$source) -> Self {
                Self { $($field: source.$field,)* }
            }
        }
    };
}

mirror! {
    /// [`engine::Stats`] on the wire.
    StatsView of engine::Stats {
        events: u64,
        launches: u64,
        faults: u64,
        fault_batches: u64,
        host_faults: u64,
        migrated_in_bytes: [u64; 6],
        migrated_out_bytes: [u64; 6],
        commands: u64,
        prefetch_issued_bytes: u64,
        prefetch_useful_bytes: u64,
        prefetch_late_bytes: u64,
        prefetch_wasted_bytes: u64,
        evicted_bytes: u64,
        discarded_bytes: u64,
        populated_bytes: u64,
        refused: u64,
        breaker_opened: u64,
        blocks_untracked: u64,
        history_dropped: u64,
    }
}

mirror! {
    /// [`engine::FaultStats`] on the wire.
    AttachStats of engine::FaultStats {
        faults: u64,
        uses: u64,
        predicted: u64,
        late: u64,
        prefetched_bytes: u64,
        evicted_bytes: u64,
        useful_bytes: u64,
        wasted_bytes: u64,
        driver_evictions: u64,
        refused: u64,
        blocks_untracked: u64,
        known_bytes: u64,
        resident_bytes: u64,
    }
}

/// [`engine::Snapshot`] on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // as in the engine
pub struct SnapshotView {
    pub managed_bytes: u64,
    pub resident_bytes: u64,
    pub capacity_bytes: u64,
    pub inflight_bytes: u64,
    pub execution_ids: u64,
    pub history_launches: u64,
    pub table_bytes: u64,
    /// `closed`, `open` or `half-open`.
    pub breaker: Breaker,
    pub cycle_launches: Option<u64>,
}

/// Whether prefetching is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Breaker {
    /// On.
    Closed,
    /// On trial.
    HalfOpen,
    /// Off.
    Open,
}

impl From<engine::Snapshot> for SnapshotView {
    fn from(snapshot: engine::Snapshot) -> Self {
        Self {
            managed_bytes: snapshot.managed_bytes,
            resident_bytes: snapshot.resident_bytes,
            capacity_bytes: snapshot.capacity_bytes,
            inflight_bytes: snapshot.inflight_bytes,
            execution_ids: snapshot.execution_ids,
            history_launches: snapshot.history_launches,
            table_bytes: snapshot.table_bytes,
            breaker: snapshot.breaker.into(),
            cycle_launches: snapshot.cycle_launches,
        }
    }
}

/// What this host allows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Doctor {
    /// Version of the daemon.
    pub version: String,
    /// Configuration file; none where the defaults are in force.
    pub config: Option<PathBuf>,
    /// Session socket.
    pub socket: PathBuf,
    /// HTTP listener; none where it is off.
    pub http: Option<String>,
    /// User that the daemon runs as.
    pub uid: u32,
    /// Effective capabilities, as names or numbers.
    pub capabilities: Vec<String>,
    /// Each probe's state.
    pub probes: Vec<ProbeView>,
    /// Why probes as a whole are off; none where they are on.
    pub probes_off: Option<String>,
    /// Events lost between kernel and daemon.
    pub probe_drops: u64,
    /// Where the driver's events come from; none: an older daemon.
    #[serde(default)]
    pub driver: Option<DriverView>,
    /// What is known of the host, by name.
    pub host: Vec<(String, String)>,
    /// Limits in force, by configuration key.
    pub limits: Vec<(String, u64)>,
}

/// Where events of nvidia-uvm come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverView {
    /// The source in use.
    pub source: Source,
    /// Why that one.
    pub reason: String,
    /// How far the driver's structures are believed.
    pub layout: String,
    /// They are not read: blocks and directions are seen, no counts and no bytes.
    pub scalar: bool,
    /// Structures whose contents were checked.
    pub checked: u64,
    /// Of them, those with impossible contents.
    pub implausible: u64,
    /// Processes observed by the driver's event queue.
    pub observed: Vec<u32>,
}

/// One probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeView {
    /// Its name.
    pub probe: String,
    /// It is attached.
    pub attached: bool,
    /// How, or why not.
    pub detail: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_line_with_version_and_question() {
        let request: Request =
            serde_json::from_str(r#"{"version":1,"request":"status"}"#).expect("reads");
        assert_eq!(
            request,
            Request {
                version: 1,
                request: Question::Status
            }
        );
        let attach: Request =
            serde_json::from_str(r#"{"version":1,"request":{"attach":42}}"#).expect("reads");
        assert_eq!(attach.request, Question::Attach(42));
        assert!(serde_json::from_str::<Request>(r#"{"version":1,"request":"stop"}"#).is_err());
    }

    #[test]
    fn quantiles_are_upper_ends_of_buckets_and_unknown_where_nothing_was_measured() {
        assert_eq!(LatencyView::from_buckets(&[0; 4]).p50_us, None);
        let mut buckets = [0; latency::BUCKETS];
        (buckets[latency::bucket(70)], buckets[latency::bucket(300)]) = (90, 10);
        let view = LatencyView::from_buckets(&buckets);
        assert_eq!(
            (view.count, view.p50_us, view.p99_us),
            (100, Some(80), Some(320))
        );
        let view = LatencyView::from_buckets(&[0, 0, 0, 5]);
        assert_eq!(view.p50_us, None, "the last bucket has no upper end");
        assert_eq!(
            LatencyView::from_buckets(&[u64::MAX, u64::MAX, 0]).p50_us,
            Some(1)
        );
    }
}
