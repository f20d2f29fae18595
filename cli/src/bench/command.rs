//! How long a command takes: from the program's event in the ring to the driver call in
//! the program.
//!
//! A process of our own launches a kernel on one block after another of half as much memory
//! again as the device has, and waits for each: every launch and every wait is an event that
//! finds the daemon asleep, and most make it ask for something. The preloaded library itself
//! measures, from the moment at which it wakes the daemon.
//!
//! A kernel takes about as long as a block takes over the link, as where it matters what is
//! moved when. (The soft GPU moves pages on the host's own processors: were it never to rest,
//! a machine of two would have none free for who is measured, as it has beside a real GPU.)

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use oversubd::control::LatencyView;
use serde::Serialize;

use super::device::{Api, Device, library};
use super::quantile::{median, of_buckets, spread};
use crate::args::ProvokeOptions;
use crate::control;
use crate::environment::Environment;
use crate::install::Installation;
use crate::private_daemon::PrivateDaemon;
use crate::softgpu;

/// Microseconds. The library counts in four buckets to each power of two; the place inside
/// a bucket is interpolated.
#[derive(Debug, Serialize)]
pub struct Latency {
    /// Half of the commands are faster; the median over runs, none if unknown.
    pub p50: Option<f64>,
    /// 99 of 100 are.
    pub p99: Option<f64>,
    /// Least and greatest of the runs.
    pub p50_spread: Option<[f64; 2]>,
    /// As `p50_spread`.
    pub p99_spread: Option<[f64; 2]>,
    /// Commands measured, in all runs.
    pub count: u64,
}

/// Runs, each with a daemon and a program of its own.
const RUNS: usize = 5;

/// Bytes of a block, the unit in which memory moves.
const BLOCK: u64 = 2 << 20;
/// Blocks that the device has, and that the program works on.
const DEVICE_BLOCKS: u64 = 32;
const BLOCKS: u64 = 48;
const ROUNDS: u32 = 30;
/// Kernels as many times slower than the soft GPU's own.
const COMPUTE_SCALE: &str = "100";

/// Runs the child several times and takes medians.
pub fn measure(installation: &Installation, folder: &Path) -> Result<Latency> {
    let (mut p50, mut p99, mut count) = (Vec::new(), Vec::new(), 0);
    for run in 0..RUNS {
        let seen = once(installation, folder, &folder.join(format!("command-{run}")))?;
        p50.extend(of_buckets(&seen.buckets, 0.5));
        p99.extend(of_buckets(&seen.buckets, 0.99));
        count += seen.count;
    }
    // A run whose quantile lies beyond the scale has none, and then the median has none.
    let whole = |values: &mut Vec<f64>| (values.len() == RUNS).then(|| median(values));
    Ok(Latency {
        p50_spread: spread(&p50),
        p99_spread: spread(&p99),
        p50: whole(&mut p50),
        p99: whole(&mut p99),
        count,
    })
}

/// Runs the child with a daemon of its own, and reads what its library counted.
fn once(installation: &Installation, folder: &Path, home: &Path) -> Result<LatencyView> {
    std::fs::create_dir(home)?;
    let daemon = PrivateDaemon::start(&installation.daemon()?, home)?;
    let mut environment = Environment::default();
    softgpu::use_driver_in(&mut environment, folder);
    environment
        .set(
            "OVERSUB_SOFTGPU_MEMORY",
            (DEVICE_BLOCKS * BLOCK).to_string(),
        )
        .set(
            softgpu::WARM,
            ((DEVICE_BLOCKS + BLOCKS) * BLOCK).to_string(),
        )
        .set("OVERSUB_SOFTGPU_COMPUTE_SCALE", COMPUTE_SCALE)
        .set("OVERSUB_SOCKET", daemon.socket());
    let mut child = Command::new(std::env::current_exe()?)
        .arg("provoke")
        .arg("--shim")
        .arg(installation.shim()?)
        .args(["--rounds", &ROUNDS.to_string()])
        .envs(environment.variables())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start the process of the command measurement")?;
    let status = child.wait()?;
    if !status.success() {
        bail!("the process of the command measurement failed ({status})");
    }
    let session = control::closed_session(daemon.socket(), child.id())
        .context("the command measurement left no session with the daemon")?;
    Ok(session.latency)
}

/// The child.
///
/// # Errors
/// Where a library or a call fails.
pub fn child(options: &ProvokeOptions) -> Result<ExitCode> {
    let driver = library("libcuda.so.1")?;
    let shim = library(&options.shim.to_string_lossy())?;
    let api = Api::find(&[&shim, &driver])?;
    let device = Device::start(&api, BLOCKS * BLOCK)?;
    for _ in 0..options.rounds {
        for block in 0..BLOCKS {
            device.launch(&api, block * BLOCK, BLOCK / 4)?;
            device.wait(&api)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
