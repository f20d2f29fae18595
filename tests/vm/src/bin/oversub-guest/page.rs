//! The daemon's metrics, as whoever scrapes them gets them.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, bail};

use crate::daemon::HTTP;

/// Faults of the device, before merging.
pub const RAW_FAULTS: &str = "oversub_driver_gpu_raw_faults_total";
/// And after it.
pub const MERGED_FAULTS: &str = "oversub_driver_gpu_faults_total";
/// Faults of the host.
pub const HOST_FAULTS: &str = "oversub_driver_host_faults_total";
/// Batches of faults.
pub const BATCHES: &str = "oversub_driver_fault_batches_total";
/// The histogram of their latency.
pub const LATENCIES: &str = "oversub_driver_batch_seconds_bucket";
/// Bytes moved.
pub const MOVED: &str = "oversub_driver_migrated_bytes_total";
/// Blocks that lost device memory.
pub const EVICTIONS: &str = "oversub_driver_evictions_total";
/// Faults on blocks that were evicted shortly before.
pub const CAPACITY_FAULTS: &str = "oversub_driver_capacity_faults_total";
/// Pages over which processors fought.
pub const THRASHING: &str = "oversub_driver_thrashing_total";
/// Waits for that.
pub const THROTTLES: &str = "oversub_driver_throttles_total";
/// Events that were lost.
pub const DROPS: &str = "oversub_probe_dropped_events_total";

/// The daemon's page of metrics, in Prometheus' text format.
pub struct Page(pub String);

impl Page {
    /// Asks the daemon for it.
    pub fn get() -> Result<Self> {
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
    pub fn sum(&self, name: &str, labels: &[&str]) -> u64 {
        let values = self.0.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (found, told) = series.split_once('{').unwrap_or((series, ""));
            let fits = found == name && labels.iter().all(|label| told.contains(label));
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
        assert_eq!(page.sum("a", &[]), 7);
        assert_eq!(page.sum("a", &["gpu=\"GPU-2\"", "process=\"7\""]), 4);
        assert_eq!(page.sum("a", &["process=\"8\""]), 0);
        assert_eq!(page.sum("b", &[]), 1);
    }
}
