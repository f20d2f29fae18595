//! How long a command takes: from the program's event in the ring to the driver call in
//! the program, measured by the preloaded library itself during a `sweep`.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::quantile::of_buckets;
use crate::args::WorkloadName;
use crate::demo::{Bench, Device, Mode, SOFT_LINK, Workload};
use crate::install::Installation;
use crate::private_daemon::PrivateDaemon;
use crate::size::Size;

/// Microseconds. The library counts in buckets of powers of two; the place inside a
/// bucket is interpolated.
#[derive(Debug, Serialize)]
pub struct Latency {
    /// Half of the commands are faster; none if unknown.
    pub p50: Option<f64>,
    /// 99 of 100 are.
    pub p99: Option<f64>,
    /// Commands measured.
    pub count: u64,
}

const MEMORY: Size = Size(256 << 20);
const WORKING_SET: Size = Size(384 << 20);
const ITERATIONS: u32 = 6;

/// Runs a `sweep` that is half as large again as the device.
pub fn measure(installation: &Installation, folder: &Path) -> Result<Latency> {
    let home = folder.join("command");
    std::fs::create_dir(&home)?;
    crate::softgpu::link_as_driver(&home, &installation.softgpu()?)?;
    let daemon = PrivateDaemon::start(&installation.daemon()?, &home)?;
    let bench = Bench {
        installation,
        device: Device::Soft {
            memory: MEMORY,
            link: SOFT_LINK,
        },
        folder: &home,
        daemon: &daemon,
        iterations: Some(ITERATIONS),
    };
    let sweep = Workload::of(WorkloadName::Sweep);
    let sample = bench.run(&sweep, WORKING_SET, Mode::Oversub)?;
    let session = sample
        .session
        .context("the sweep left no session with the daemon")?;
    let buckets = &session.latency.buckets;
    Ok(Latency {
        p50: of_buckets(buckets, 0.5),
        p99: of_buckets(buckets, 0.99),
        count: session.latency.count,
    })
}
