//! What Prometheus gets: every family with its name, unit, help and labels.
//!
//! Figures of sessions are copied from their views when asked for. When a session ends its
//! series go, and what they counted is added to the series `session="closed"` of the same
//! GPU, so that sums over a GPU never go back and the number of series stays bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use oversub_protocol::latency;
use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

use crate::control::{Breaker, SessionView};

/// Label of what ended sessions counted.
pub const CLOSED: &str = "closed";
/// Causes by the position that [`oversub_engine::Stats`] counts them at.
const CAUSES: [&str; 6] = [
    "fault",
    "density",
    "eviction",
    "call",
    "host_fault",
    "other",
];
const SESSION_LABELS: [&str; 2] = ["gpu", "session"];
const MIGRATION_LABELS: [&str; 4] = ["gpu", "session", "direction", "cause"];

type Value = fn(&SessionView) -> u64;

/// Counters of a session: name, help, where the figure is.
const COUNTERS: [(&str, &str, Value); 25] = [
    (
        "oversub_events_total",
        "Events that the engine has taken in.",
        |v| v.stats.events,
    ),
    ("oversub_launches_total", "Kernel launches seen.", |v| {
        v.stats.launches
    }),
    (
        "oversub_gpu_faults_total",
        "Faults of the device on managed memory.",
        |v| v.stats.faults,
    ),
    (
        "oversub_gpu_fault_batches_total",
        "Batches in which the driver served faults.",
        |v| v.stats.fault_batches,
    ),
    (
        "oversub_host_faults_total",
        "Faults of the host on managed memory.",
        |v| v.stats.host_faults,
    ),
    (
        "oversub_commands_total",
        "Commands given to the program's executor.",
        |v| v.stats.commands,
    ),
    (
        "oversub_commands_refused_total",
        "Commands that the driver refused or the program declined.",
        |v| v.stats.refused,
    ),
    (
        "oversub_commands_deferred_total",
        "Commands that waited because the command ring was full.",
        |v| v.commands_deferred,
    ),
    (
        "oversub_commands_failed_total",
        "Commands that failed in the driver, as the program reports.",
        |v| v.commands_failed,
    ),
    (
        "oversub_discards_declined_total",
        "Discards not made because the memory was in use again.",
        |v| v.discards_declined,
    ),
    (
        "oversub_held_launches_total",
        "Launches after which the program waited, so as not to get far ahead of the device.",
        |v| v.held_launches,
    ),
    (
        "oversub_prefetch_issued_bytes_total",
        "Bytes for which a prefetch was issued.",
        |v| v.stats.prefetch_issued_bytes,
    ),
    (
        "oversub_prefetch_useful_bytes_total",
        "Prefetched bytes that a launch used before their eviction.",
        |v| v.stats.prefetch_useful_bytes,
    ),
    (
        "oversub_prefetch_late_bytes_total",
        "Prefetched bytes still in flight when a launch needed them.",
        |v| v.stats.prefetch_late_bytes,
    ),
    (
        "oversub_prefetch_wasted_bytes_total",
        "Prefetched bytes evicted before any launch used them.",
        |v| v.stats.prefetch_wasted_bytes,
    ),
    (
        "oversub_evicted_bytes_total",
        "Bytes evicted to the host on command.",
        |v| v.stats.evicted_bytes,
    ),
    (
        "oversub_discarded_bytes_total",
        "Bytes of dead content discarded on command.",
        |v| v.stats.discarded_bytes,
    ),
    (
        "oversub_populated_bytes_total",
        "Bytes given device memory on command without a transfer.",
        |v| v.stats.populated_bytes,
    ),
    (
        "oversub_breaker_opened_total",
        "Times that the circuit breaker turned prefetching off.",
        |v| v.stats.breaker_opened,
    ),
    (
        "oversub_untracked_bytes_total",
        "Managed bytes left to the driver because a limit was reached.",
        |v| v.untracked_bytes,
    ),
    (
        "oversub_history_dropped_launches_total",
        "Launches forgotten because the history was full.",
        |v| v.stats.history_dropped,
    ),
    (
        "oversub_ring_records_total",
        "Records taken from the event ring.",
        |v| v.records,
    ),
    (
        "oversub_ring_rejected_records_total",
        "Records dropped because they were wrong or of unknown kind.",
        |v| v.records_rejected.saturating_add(v.records_unknown),
    ),
    (
        "oversub_ring_dropped_records_total",
        "Records that the program could not write because the event ring was full.",
        |v| v.events_dropped,
    ),
    (
        "oversub_probe_events_total",
        "Events of probes that were attributed to the session.",
        |v| v.probe_events,
    ),
];

/// Gauges of a session: name, help, where the figure is.
const GAUGES: [(&str, &str, Value); 9] = [
    (
        "oversub_managed_bytes",
        "Managed memory that exists.",
        |v| v.snapshot.managed_bytes,
    ),
    (
        "oversub_resident_bytes",
        "Managed memory on the device, as far as is known.",
        |v| v.snapshot.resident_bytes,
    ),
    (
        "oversub_capacity_bytes",
        "Device memory that managed memory may fill.",
        |v| v.snapshot.capacity_bytes,
    ),
    ("oversub_inflight_bytes", "Prefetches in flight.", |v| {
        v.snapshot.inflight_bytes
    }),
    (
        "oversub_table_bytes",
        "Memory that the engine's tables take.",
        |v| v.snapshot.table_bytes,
    ),
    (
        "oversub_execution_ids",
        "Distinct execution IDs known.",
        |v| v.snapshot.execution_ids,
    ),
    ("oversub_history_launches", "Launches remembered.", |v| {
        v.snapshot.history_launches
    }),
    (
        "oversub_cycle_launches",
        "Launches of the learned cycle; 0 while there is none.",
        |v| v.snapshot.cycle_launches.unwrap_or(0),
    ),
    (
        "oversub_breaker_state",
        "Circuit breaker: 0 closed (prefetching), 1 half open, 2 open.",
        |v| match v.snapshot.breaker {
            Breaker::Closed => 0,
            Breaker::HalfOpen => 1,
            Breaker::Open => 2,
        },
    ),
];

/// All families, registered.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    counters: Vec<IntCounterVec>,
    gauges: Vec<IntGaugeVec>,
    migrated: IntCounterVec,
    sessions: IntGaugeVec,
    latency: HistogramVec,
    decision: HistogramVec,
    fault_service: HistogramVec,
    probe_attached: IntGaugeVec,
    probe_drops: IntCounter,
    /// Sessions accepted.
    pub sessions_opened: IntCounter,
    /// Connections turned away, by reason.
    pub sessions_refused: IntCounterVec,
    /// Sessions ended because the client broke a rule.
    pub sessions_expelled: IntCounter,
    published: Mutex<BTreeMap<u64, Published>>,
}

/// What was last published of one session.
#[derive(Debug)]
struct Published {
    gpu: String,
    counters: Vec<u64>,
    migrated: [[u64; CAUSES.len()]; 2],
    latency: Vec<u64>,
}

/// The histograms into which one GPU's thread observes.
#[derive(Clone, Debug)]
pub struct GpuHistograms {
    /// Seconds that one turn took: taking in and deciding.
    pub decision: Histogram,
    /// Seconds of the driver's service of one fault batch.
    pub fault_service: Histogram,
}

impl Metrics {
    /// All families with no series yet.
    ///
    /// # Errors
    /// A family is wrong in itself: impossible once a test has made one.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let mut counters = Vec::with_capacity(COUNTERS.len());
        for (name, help, _) in COUNTERS {
            counters.push(register(
                &registry,
                IntCounterVec::new(Opts::new(name, help), &SESSION_LABELS)?,
            )?);
        }
        let mut gauges = Vec::with_capacity(GAUGES.len());
        for (name, help, _) in GAUGES {
            gauges.push(register(
                &registry,
                IntGaugeVec::new(Opts::new(name, help), &SESSION_LABELS)?,
            )?);
        }
        let counter = |name, help| register(&registry, IntCounter::new(name, help)?);
        let counter_vec = |name: &str, help: &str, labels: &[&str]| {
            register(
                &registry,
                IntCounterVec::new(Opts::new(name, help), labels)?,
            )
        };
        let gauge_vec = |name: &str, help: &str, labels: &[&str]| {
            register(&registry, IntGaugeVec::new(Opts::new(name, help), labels)?)
        };
        let histogram = |name: &str, help: &str, from: f64, factor: f64, count: usize| {
            let buckets = prometheus::exponential_buckets(from, factor, count)?;
            let options = HistogramOpts::new(name, help).buckets(buckets);
            register(&registry, HistogramVec::new(options, &["gpu"])?)
        };
        let metrics = Self {
            counters,
            gauges,
            migrated: counter_vec(
                "oversub_migrated_bytes_total",
                "Bytes of managed memory that the driver moved, as probes saw.",
                &MIGRATION_LABELS,
            )?,
            sessions: gauge_vec("oversub_sessions", "Sessions that stand.", &["gpu"])?,
            latency: histogram(
                "oversub_command_latency_seconds",
                "From an event in the daemon to the command's hand-over to the driver, as the program measures it.",
                1e-6,
                2.0,
                24,
            )?,
            decision: histogram(
                "oversub_decision_seconds",
                "Time of one turn of the engine: events taken in, commands decided.",
                1e-6,
                2.0,
                18,
            )?,
            fault_service: histogram(
                "oversub_fault_service_seconds",
                "The driver's service of one batch of faults, as probes saw.",
                1e-6,
                2.0,
                20,
            )?,
            probe_attached: gauge_vec(
                "oversub_probe_attached",
                "1 where the probe is attached, 0 where it is not; `oversub doctor` says why.",
                &["probe"],
            )?,
            probe_drops: counter(
                "oversub_probe_dropped_events_total",
                "Events of probes lost because the daemon did not keep up.",
            )?,
            sessions_opened: counter("oversub_sessions_opened_total", "Sessions accepted.")?,
            sessions_refused: counter_vec(
                "oversub_sessions_refused_total",
                "Connections turned away, by reason.",
                &["reason"],
            )?,
            sessions_expelled: counter(
                "oversub_sessions_expelled_total",
                "Sessions ended because the program broke a rule of the protocol.",
            )?,
            published: Mutex::new(BTreeMap::new()),
            registry,
        };
        let labels = Opts::new("oversub_build_info", "Always 1; the version is a label.")
            .const_label("version", env!("CARGO_PKG_VERSION"));
        register(&metrics.registry, IntGauge::with_opts(labels)?)?.set(1);
        Ok(metrics)
    }

    /// The histograms of one GPU.
    pub fn histograms(&self, gpu: &str) -> GpuHistograms {
        GpuHistograms {
            decision: self.decision.with_label_values(&[gpu]),
            fault_service: self.fault_service.with_label_values(&[gpu]),
        }
    }

    /// The state of a probe.
    pub fn set_probe(&self, probe: &str, attached: bool) {
        self.probe_attached
            .with_label_values(&[probe])
            .set(attached.into());
    }

    /// Events lost so far between kernel and daemon.
    pub fn set_probe_drops(&self, drops: u64) {
        let known = self.probe_drops.get();
        self.probe_drops.inc_by(drops.saturating_sub(known));
    }

    /// Copies the figures of the sessions that stand.
    pub fn publish(&self, views: &[SessionView]) {
        let mut published = self.published();
        for view in views {
            self.publish_one(&mut published, view);
        }
        let gpus: BTreeSet<&str> = published
            .values()
            .map(|session| session.gpu.as_str())
            .collect();
        for gpu in gpus {
            let count = published
                .values()
                .filter(|session| session.gpu == gpu)
                .count();
            self.sessions.with_label_values(&[gpu]).set(count as i64);
        }
    }

    /// Copies the last figures of a session that has ended and folds them.
    pub fn close(&self, view: &SessionView) {
        let mut published = self.published();
        self.publish_one(&mut published, view);
        let Some(last) = published.remove(&view.session) else {
            return;
        };
        let session = view.session.to_string();
        let labels = [last.gpu.as_str(), session.as_str()];
        let closed = [last.gpu.as_str(), CLOSED];
        for (family, value) in self.counters.iter().zip(&last.counters) {
            let _ = family.remove_label_values(&labels);
            family.with_label_values(&closed).inc_by(*value);
        }
        for family in &self.gauges {
            let _ = family.remove_label_values(&labels);
        }
        for (direction, values) in directions(&last.migrated) {
            for (cause, value) in CAUSES.iter().zip(values) {
                let [gpu, session] = labels;
                let _ = self
                    .migrated
                    .remove_label_values(&[gpu, session, direction, cause]);
                self.migrated
                    .with_label_values(&[gpu, CLOSED, direction, cause])
                    .inc_by(*value);
            }
        }
        let left = published
            .values()
            .filter(|other| other.gpu == last.gpu)
            .count();
        self.sessions
            .with_label_values(&[&last.gpu])
            .set(left as i64);
    }

    /// The text of `/metrics`.
    ///
    /// # Errors
    /// Encoding failed.
    pub fn text(&self) -> prometheus::Result<String> {
        let _whole = self.published();
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }

    fn published(&self) -> MutexGuard<'_, BTreeMap<u64, Published>> {
        // A panic aborts the process, so nobody ever leaves this half done.
        self.published
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn publish_one(&self, published: &mut BTreeMap<u64, Published>, view: &SessionView) {
        let last = published.entry(view.session).or_insert_with(|| Published {
            gpu: view.gpu.clone(),
            counters: vec![0; COUNTERS.len()],
            migrated: Default::default(),
            latency: vec![0; view.latency.buckets.len()],
        });
        let session = view.session.to_string();
        let labels = [last.gpu.as_str(), session.as_str()];
        for ((family, (_, _, value)), known) in
            self.counters.iter().zip(COUNTERS).zip(&mut last.counters)
        {
            family
                .with_label_values(&labels)
                .inc_by(advance(known, value(view)));
        }
        for (family, (_, _, value)) in self.gauges.iter().zip(GAUGES) {
            family
                .with_label_values(&labels)
                .set(i64::try_from(value(view)).unwrap_or(i64::MAX));
        }
        let now = [view.stats.migrated_in_bytes, view.stats.migrated_out_bytes];
        for (index, direction) in ["in", "out"].into_iter().enumerate() {
            for (cause, name) in CAUSES.iter().enumerate() {
                let delta = advance(&mut last.migrated[index][cause], now[index][cause]);
                let [gpu, session] = labels;
                self.migrated
                    .with_label_values(&[gpu, session, direction, name])
                    .inc_by(delta);
            }
        }
        self.publish_latency(last, view);
    }

    fn publish_latency(&self, last: &mut Published, view: &SessionView) {
        /// The buckets are the program's word: it shall not keep us busy.
        const MOST: u64 = 20_000;
        let histogram = self.latency.with_label_values(&[&last.gpu]);
        for (index, (known, now)) in last
            .latency
            .iter_mut()
            .zip(&view.latency.buckets)
            .enumerate()
        {
            let (lower, upper) = latency::bounds(index);
            for _ in 0..advance(known, *now).min(MOST) {
                // Inside the bucket, whose upper end is not part of it.
                histogram.observe(1e-6 * (lower + upper) as f64 / 2.0);
            }
        }
    }
}

/// Moves `known` up to `now` and says by how much; a figure that went back is ignored.
fn advance(known: &mut u64, now: u64) -> u64 {
    let delta = now.saturating_sub(*known);
    *known += delta;
    delta
}

fn directions(migrated: &[[u64; CAUSES.len()]; 2]) -> [(&'static str, &[u64; CAUSES.len()]); 2] {
    [("in", &migrated[0]), ("out", &migrated[1])]
}

fn register<T: Collector + Clone + 'static>(
    registry: &Registry,
    family: T,
) -> prometheus::Result<T> {
    registry.register(Box::new(family.clone()))?;
    Ok(family)
}
