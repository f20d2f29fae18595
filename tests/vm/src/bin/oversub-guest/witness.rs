//! What the daemon's metrics say of a program, beside what the driver's procfs says of the
//! same time.
//!
//! The driver forgets its counters with the last process that uses the GPU, so the GPU is
//! registered here too. A program that ended and is not waited for still has its number and
//! its control group: its metrics stand under its own name until then.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use oversub_uvm::session::Space;
use oversub_uvm::softgpu::SoftGpu;
use oversub_vm::plan::{DriverCounts, MetricCounts};

use crate::page::{
    BATCHES, DROPS, EVICTIONS, HOST_FAULTS, LATENCIES, MERGED_FAULTS, MOVED, Page, RAW_FAULTS,
};
use crate::probes::{self, PAGE};
use crate::program::Running;

/// The control group of programs, as its name is in metrics, and its folder.
pub const CONTAINER: &str = "/oversub-guest";
const CONTAINER_FOLDER: &str = "/sys/fs/cgroup/oversub-guest";
/// How long the last events may take to get into the metrics.
const LIMIT: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_millis(100);

/// Puts a process into the control group of programs.
pub fn contain(pid: u32) -> Result<()> {
    fs::create_dir_all(CONTAINER_FOLDER)?;
    let members = format!("{CONTAINER_FOLDER}/cgroup.procs");
    fs::write(&members, pid.to_string()).with_context(|| format!("cannot write {members}"))
}

/// Looks at the metrics and at procfs.
pub struct Witness {
    _space: Space,
    procfs: DriverCounts,
    metrics: Page,
}

impl Witness {
    /// Begins to count.
    pub fn open() -> Result<Self> {
        let space = Space::open()?;
        space.register(SoftGpu::open()?.info()?.uuid)?;
        Ok(Self {
            _space: space,
            procfs: probes::procfs()?,
            metrics: Page::get()?,
        })
    }

    /// Waits for the program's end: what it did.
    pub fn of_ended(&self, program: &Running) -> Result<MetricCounts> {
        program.let_end()?;
        let own = [
            format!("process=\"{}\"", program.id()),
            format!("container=\"{CONTAINER}\""),
            "gpu=\"GPU-".to_owned(),
        ];
        let end = Instant::now() + LIMIT;
        let mut last = None;
        loop {
            let procfs = probes::procfs()?.procfs_since(self.procfs);
            let page = Page::get()?;
            let counts = self.counts(&page, procfs, &own);
            let told = counts.metrics;
            // Replays in procfs are more than batches: some only flush.
            let all_told = told.faults >= procfs.faults
                && told.pages_in >= procfs.pages_in
                && told.pages_out >= procfs.pages_out;
            let settled = all_told && last == Some(counts);
            if settled || Instant::now() > end {
                return Ok(counts);
            }
            last = Some(counts);
            std::thread::sleep(INTERVAL);
        }
    }

    /// Faults of processes that were waited for.
    pub fn of_waited_for(&self) -> Result<u64> {
        let ended = ["process=\"ended\""];
        let now = Page::get()?.sum(RAW_FAULTS, &ended);
        Ok(now - self.metrics.sum(RAW_FAULTS, &ended))
    }

    fn counts(&self, page: &Page, procfs: DriverCounts, own: &[String; 3]) -> MetricCounts {
        let sum =
            |name: &str, labels: &[&str]| page.sum(name, labels) - self.metrics.sum(name, labels);
        let pages = |labels: &[&str]| sum(MOVED, labels) / PAGE;
        let of_fault = |direction: &str| {
            pages(&[direction, "cause=\"fault\""]) + pages(&[direction, "cause=\"density\""])
        };
        let (to_device, from_device) = ("direction=\"in\"", "direction=\"out\"");
        let used = "kind=\"used\"";
        MetricCounts {
            metrics: DriverCounts {
                faults: sum(RAW_FAULTS, &[]),
                merged_faults: sum(MERGED_FAULTS, &[]),
                host_faults: sum(HOST_FAULTS, &[]),
                batches: sum(BATCHES, &[]),
                fault_pages_in: of_fault(to_device),
                fault_pages_out: of_fault(from_device),
                pages_in: pages(&[to_device]),
                pages_out: pages(&[from_device]),
                evicted_pages: pages(&["cause=\"eviction\""]),
                evictions: sum(EVICTIONS, &[used]),
                of_nobody: sum(RAW_FAULTS, &["process=\"unknown\""]),
                ..DriverCounts::default()
            },
            procfs,
            timed_batches: sum(LATENCIES, &["le=\"+Inf\""]),
            paid_evictions: sum(EVICTIONS, &[used, "payer=\"fault\""])
                + sum(EVICTIONS, &[used, "payer=\"call\""]),
            labelled_faults: page.sum(RAW_FAULTS, &own.each_ref().map(String::as_str)),
            ended_faults: 0,
            drops: sum(DROPS, &[]),
        }
    }
}
