//! What the preloaded library adds to one kernel launch.
//!
//! One process per mode loads the soft GPU and the library side by side and times batches
//! of launches through each in turn, so both meet the same load of the machine. During a
//! batch the device is held busy by a kernel that sleeps: what is timed is the call, not
//! the device. Processes of the modes take turns too.
//!
//! A batch is timed in groups of a few launches, as few as leave the clock out of the
//! result. The median over groups is what a launch costs; the mean has in it what happens
//! now and then: waking the daemon, a mark, code and tables that have left the caches.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::device::{Api, Device, library};
use super::quantile::median;
use crate::args::LaunchOverheadOptions;
use crate::environment::Environment;
use crate::install::Installation;
use crate::private_daemon::PrivateDaemon;
use crate::softgpu;

/// Nanoseconds a launch; all but `bare` net of it.
#[derive(Debug, Serialize)]
pub struct Overhead {
    /// Median with a daemon that takes the events.
    pub daemon: f64,
    /// With one that has something to steer: there is more memory than the device has.
    pub steered: f64,
    /// With none.
    pub no_daemon: f64,
    /// With `OVERSUB_DISABLE=1`.
    pub disabled: f64,
    /// The soft GPU's own call.
    pub bare: f64,
    /// Means, per mode in the order above.
    pub mean: [f64; MODES],
    /// Smallest and largest median of a process, per mode in the order above.
    pub spread: [[f64; 2]; MODES],
}

const MODES: usize = 4;
/// Rounds in which every mode gets a process.
const ROUNDS: usize = 5;
/// Pairs of batches in a process.
const BATCHES: u32 = 60;
/// Groups in a batch.
const GROUPS: u32 = 20;
/// Launches in a group.
const LAUNCHES: u32 = 10;
/// Words in the array: enough that filling it takes a while, and managed memory.
const WORDS: u64 = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Daemon,
    Steered,
    NoDaemon,
    Disabled,
}

/// What a child prints, nanoseconds per launch, over the groups of its batches.
#[derive(Debug, Serialize, Deserialize)]
struct Times {
    median: f64,
    mean: f64,
}

/// Of the soft GPU's own call, and through the library.
#[derive(Debug, Serialize, Deserialize)]
struct Sample {
    bare: Times,
    hooked: Times,
}

/// Runs the children and takes medians over them.
pub fn measure(installation: &Installation, folder: &Path) -> Result<Overhead> {
    let shim = installation.shim()?;
    let home = folder.join("launch");
    std::fs::create_dir(&home)?;
    let daemon = PrivateDaemon::start(&installation.daemon()?, &home)?;
    let mut medians: [Vec<f64>; MODES] = Default::default();
    let mut means: [Vec<f64>; MODES] = Default::default();
    let mut bare = Vec::new();
    for _ in 0..ROUNDS {
        let modes = [Mode::Daemon, Mode::Steered, Mode::NoDaemon, Mode::Disabled];
        for (index, mode) in modes.into_iter().enumerate() {
            let sample = run_child(mode, &shim, folder, daemon.socket())?;
            medians[index].push(sample.hooked.median - sample.bare.median);
            means[index].push(sample.hooked.mean - sample.bare.mean);
            bare.push(sample.bare.median);
        }
    }
    let spread = medians.each_ref().map(|values| {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        [
            least,
            values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        ]
    });
    let [daemon, steered, no_daemon, disabled] = medians.map(|mut values| median(&mut values));
    Ok(Overhead {
        daemon,
        steered,
        no_daemon,
        disabled,
        bare: median(&mut bare),
        mean: means.map(|mut values| median(&mut values)),
        spread,
    })
}

fn run_child(mode: Mode, shim: &Path, folder: &Path, socket: &Path) -> Result<Sample> {
    let mut environment = Environment::default();
    softgpu::use_driver_in(&mut environment, folder);
    // A kernel sleeps this many times its own run time: see `hold_busy`.
    environment.set("OVERSUB_SOFTGPU_COMPUTE_SCALE", "50");
    match mode {
        Mode::Daemon | Mode::Steered => environment.set("OVERSUB_SOCKET", socket),
        Mode::NoDaemon => environment.set("OVERSUB_SOCKET", "/dev/null/no-daemon"),
        Mode::Disabled => environment.set("OVERSUB_DISABLE", "1"),
    };
    let output = Command::new(std::env::current_exe()?)
        .arg("launch-overhead")
        .arg("--shim")
        .arg(shim)
        .args(["--batches", &BATCHES.to_string()])
        .args((mode == Mode::Steered).then_some("--beyond"))
        .envs(environment.variables())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start a process of the launch measurement")?;
    if !output.status.success() {
        bail!(
            "a process of the launch measurement failed ({})",
            output.status
        );
    }
    serde_json::from_slice(&output.stdout)
        .context("a process of the launch measurement printed no result")
}

/// The child: measures in its own process and prints a [`Sample`].
///
/// # Errors
/// Where a library or a call fails.
pub fn child(options: &LaunchOverheadOptions) -> Result<ExitCode> {
    let driver = library("libcuda.so.1")?;
    let shim = library(&options.shim.to_string_lossy())?;
    let shim = Api::find(&[&shim, &driver])?;
    let driver = Api::find(&[&driver])?;
    let device = Device::start(&shim, WORDS * 4)?;
    if options.beyond {
        shim.exceed()?;
    }
    // Still asleep when the batch behind it has been queued.
    let hold_busy = || device.launch(&driver, 0, WORDS);
    let mut times: [Vec<f64>; 2] = Default::default();
    for _ in 0..options.batches {
        for (api, times) in [&driver, &shim].into_iter().zip(&mut times) {
            hold_busy()?;
            let mut begun = Instant::now();
            for _ in 0..GROUPS {
                for _ in 0..LAUNCHES {
                    device.launch(api, 0, 0)?;
                }
                let ended = Instant::now();
                times.push((ended - begun).as_nanos() as f64 / f64::from(LAUNCHES));
                begun = ended;
            }
            device.wait(&driver)?;
        }
    }
    let [bare, hooked] = times.each_mut().map(|values| Times {
        mean: values.iter().sum::<f64>() / values.len() as f64,
        median: median(values),
    });
    println!("{}", serde_json::to_string(&Sample { bare, hooked })?);
    Ok(ExitCode::SUCCESS)
}
