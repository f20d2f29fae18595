//! How long a fault takes from the probe point in the program to user space, through the
//! BPF uprobe and its ring: the way that a soft GPU's faults take to the engine.

use oversub_bpf::{HostFacts, Intake, PlanOptions, ProbePlan, probe_latency};
use serde::Serialize;

use super::quantile::{median, spread};

/// Microseconds; none with the reason where the probes cannot work here.
#[derive(Debug, Default, Serialize)]
pub struct Latency {
    /// Half of the events are faster; the median over runs.
    pub p50: Option<f64>,
    /// 99 of 100 are.
    pub p99: Option<f64>,
    /// Least and greatest of the runs.
    pub p50_spread: Option<[f64; 2]>,
    /// As `p50_spread`.
    pub p99_spread: Option<[f64; 2]>,
    /// Events that never came, in all runs.
    pub lost: Option<u64>,
    /// Events a second that were reached; the median over runs.
    pub rate: Option<f64>,
    /// Why nothing was measured.
    pub reason: Option<String>,
}

/// Hits a second, how many in a run, and runs.
const RATE: u32 = 20_000;
const HITS: u32 = 20_000;
const RUNS: usize = 5;

/// Measures in this process, by a thread that is scheduled as the daemon's are.
pub fn measure() -> Latency {
    oversubd::schedule::prefer_short_turns();
    let plan = ProbePlan::choose(&HostFacts::gather(), PlanOptions::default());
    let runs: Result<Vec<_>, _> = (0..RUNS)
        .map(|_| probe_latency(&mut Intake::start(&plan), RATE, HITS))
        .collect();
    let runs = match runs {
        Ok(runs) => runs,
        Err(error) => {
            return Latency {
                reason: Some(error.to_string()),
                ..Latency::default()
            };
        }
    };
    let mut p50: Vec<f64> = runs.iter().map(|run| run.p50_us).collect();
    let mut p99: Vec<f64> = runs.iter().map(|run| run.p99_us).collect();
    let mut rate: Vec<f64> = runs.iter().map(|run| run.rate).collect();
    Latency {
        p50: Some(median(&mut p50)),
        p99: Some(median(&mut p99)),
        p50_spread: spread(&p50),
        p99_spread: spread(&p99),
        lost: Some(runs.iter().map(|run| run.lost).sum()),
        rate: Some(median(&mut rate)),
        reason: None,
    }
}
