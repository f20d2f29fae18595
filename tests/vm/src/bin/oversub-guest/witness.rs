//! What the daemon's metrics say of a program, beside what the driver's procfs says of the
//! same time.
//!
//! The driver forgets its counters with the last process that uses the GPU, so the GPU is
//! registered here too. A program that ended and is not waited for still has its number and
//! its control group: its metrics stand under its own name until then.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use oversub_uvm::session::Space;
use oversub_uvm::softgpu::SoftGpu;
use oversub_vm::plan::{DriverCounts, MetricCounts};

use crate::daemon::HTTP;
use crate::probes::{self, PAGE};
use crate::program::Running;

/// The control group of programs, as its name is in metrics, and its folder.
const CONTAINER: &str = "/oversub-guest";
const CONTAINER_FOLDER: &str = "/sys/fs/cgroup/oversub-guest";
/// How long the last events may take to get into the metrics.
const LIMIT: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_millis(50);

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
        loop {
            let procfs = since(probes::procfs()?, self.procfs);
            let page = Page::get()?;
            let counts = self.counts(&page, procfs, &own);
            let told = counts.metrics;
            let all_told = told.batches >= procfs.batches
                && told.pages_in >= procfs.pages_in
                && told.pages_out >= procfs.pages_out;
            if all_told || Instant::now() > end {
                return Ok(counts);
            }
            std::thread::sleep(INTERVAL);
        }
    }

    /// Faults of processes that were waited for.
    pub fn of_waited_for(&self) -> Result<u64> {
        let ended = ["process=\"ended\"".to_owned()];
        let now = Page::get()?.sum(RAW_FAULTS, &ended);
        Ok(now - self.metrics.sum(RAW_FAULTS, &ended))
    }

    fn counts(&self, page: &Page, procfs: DriverCounts, own: &[String]) -> MetricCounts {
        let sum = |name: &str, labels: &[&str]| {
            let labels: Vec<_> = labels.iter().map(|&label| label.to_owned()).collect();
            page.sum(name, &labels) - self.metrics.sum(name, &labels)
        };
        let pages = |labels: &[&str]| sum(MOVED, labels) / PAGE;
        let of_fault = |direction: &str| {
            pages(&[direction, "cause=\"fault\""]) + pages(&[direction, "cause=\"density\""])
        };
        let (to_device, from_device) = ("direction=\"in\"", "direction=\"out\"");
        let used = "kind=\"used\"";
        MetricCounts {
            metrics: DriverCounts {
                faults: sum(RAW_FAULTS, &[]),
                host_faults: sum("oversub_driver_host_faults_total", &[]),
                batches: sum("oversub_driver_fault_batches_total", &[]),
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
            merged_faults: sum("oversub_driver_gpu_faults_total", &[]),
            timed_batches: sum("oversub_driver_batch_seconds_bucket", &["le=\"+Inf\""]),
            paid_evictions: sum(EVICTIONS, &[used, "payer=\"fault\""])
                + sum(EVICTIONS, &[used, "payer=\"call\""]),
            capacity_faults: sum("oversub_driver_capacity_faults_total", &[]),
            labelled_faults: page.sum(RAW_FAULTS, own),
            ended_faults: 0,
            drops: sum("oversub_probe_dropped_events_total", &[]),
        }
    }
}

const RAW_FAULTS: &str = "oversub_driver_gpu_raw_faults_total";
const MOVED: &str = "oversub_driver_migrated_bytes_total";
const EVICTIONS: &str = "oversub_driver_evictions_total";

fn since(now: DriverCounts, before: DriverCounts) -> DriverCounts {
    DriverCounts {
        faults: now.faults - before.faults,
        batches: now.batches - before.batches,
        fault_pages_in: now.fault_pages_in - before.fault_pages_in,
        fault_pages_out: now.fault_pages_out - before.fault_pages_out,
        pages_in: now.pages_in - before.pages_in,
        pages_out: now.pages_out - before.pages_out,
        ..DriverCounts::default()
    }
}

/// The daemon's page of metrics, in Prometheus' text format.
struct Page(String);

impl Page {
    fn get() -> Result<Self> {
        let mut stream = TcpStream::connect(HTTP).context("the daemon serves no metrics")?;
        write!(stream, "GET /metrics HTTP/1.0\r\nHost: {HTTP}\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.contains(" 200 ") => Ok(Self(body.to_owned())),
            _ => bail!("the daemon answers {answer:?} when asked for metrics"),
        }
    }

    /// Sum of all series of a name that have all of these labels.
    fn sum(&self, name: &str, labels: &[String]) -> u64 {
        let values = self.0.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (found, told) = series.split_once('{').unwrap_or((series, ""));
            let fits = found == name && labels.iter().all(|label| told.contains(label.as_str()));
            fits.then(|| value.parse::<f64>().ok())?
        });
        values.sum::<f64>() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::Page;

    #[test]
    fn series_are_summed_by_name_and_labels() {
        let page = Page(
            "# HELP a x\na{gpu=\"GPU-1\",process=\"7\"} 3\na{gpu=\"GPU-2\",process=\"7\"} 4\nab 9\nb 1.5\n"
                .to_owned(),
        );
        let label = |text: &str| text.to_owned();
        assert_eq!(page.sum("a", &[]), 7);
        assert_eq!(
            page.sum("a", &[label("gpu=\"GPU-2\""), label("process=\"7\"")]),
            4
        );
        assert_eq!(page.sum("a", &[label("process=\"8\"")]), 0);
        assert_eq!(page.sum("b", &[]), 1);
    }
}
