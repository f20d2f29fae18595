//! How long a fault takes from the probe point in the program to user space, through the
//! BPF uprobe and its ring: the way that a soft GPU's faults take to the engine.

use oversub_bpf::{HostFacts, Intake, PlanOptions, ProbePlan, probe_latency};
use serde::Serialize;

/// Microseconds; none with the reason where the probes cannot work here.
#[derive(Debug, Serialize)]
pub struct Latency {
    /// Half of the events are faster.
    pub p50: Option<f64>,
    /// 99 of 100 are.
    pub p99: Option<f64>,
    /// Events that never came.
    pub lost: Option<u64>,
    /// Events a second that were reached.
    pub rate: Option<f64>,
    /// Why nothing was measured.
    pub reason: Option<String>,
}

/// Hits a second, and how many.
const RATE: u32 = 20_000;
const HITS: u32 = 100_000;

/// Measures in this process, by a thread that is scheduled as the daemon's are.
pub fn measure() -> Latency {
    oversubd::schedule::prefer_short_turns();
    let plan = ProbePlan::choose(&HostFacts::gather(), PlanOptions::default());
    let mut intake = Intake::start(&plan);
    match probe_latency(&mut intake, RATE, HITS) {
        Ok(latency) => Latency {
            p50: Some(latency.p50_us),
            p99: Some(latency.p99_us),
            lost: Some(latency.lost),
            rate: Some(latency.rate),
            reason: None,
        },
        Err(error) => Latency {
            p50: None,
            p99: None,
            lost: None,
            rate: None,
            reason: Some(error.to_string()),
        },
    }
}
