//! One run of one workload in one mode.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use oversubd::control::SessionView;
use serde::Serialize;

use super::workload::{Output, Workload};
use crate::args::Policy;
use crate::control;
use crate::environment::{Environment, ShimSettings};
use crate::install::Installation;
use crate::private_daemon::PrivateDaemon;
use crate::size::{Rate, Size};
use crate::softgpu;

/// How a workload is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Without oversub, on a device that holds everything.
    Resident,
    /// Managed memory, the driver's own paging.
    Driver,
    /// The driver's order of eviction, within a budget on a device that holds everything.
    Demand,
    /// The default policy.
    Oversub,
    /// DeepUM.
    Deepum,
}

impl Mode {
    /// Name in tables and progress.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::Driver => "driver",
            Self::Demand => "demand",
            Self::Oversub => "oversub",
            Self::Deepum => "deepum",
        }
    }

    fn policy(self) -> Option<Policy> {
        match self {
            Self::Resident => None,
            Self::Driver => Some(Policy::Driver),
            Self::Demand => Some(Policy::Demand),
            Self::Oversub => Some(Policy::Foresight),
            Self::Deepum => Some(Policy::Deepum),
        }
    }

    /// The daemon takes part.
    fn has_session(self) -> bool {
        matches!(self, Self::Demand | Self::Oversub | Self::Deepum)
    }
}

/// The device to run on.
#[derive(Debug, Clone, Copy)]
pub enum Device {
    /// The soft GPU with that much memory and that link.
    Soft {
        /// Device memory.
        memory: Size,
        /// Link, each way.
        link: Rate,
    },
    /// The real driver's; `memory` is a budget.
    Cuda {
        /// Budget.
        memory: Size,
    },
}

/// How prefetched bytes fared, as the daemon counted them in one session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Prefetch {
    /// Asked for.
    pub issued_bytes: u64,
    /// Used before they left.
    pub useful_bytes: u64,
    /// Still on the way when needed.
    pub late_bytes: u64,
    /// Left unused.
    pub wasted_bytes: u64,
}

/// What one run showed. What nobody could count is none.
#[derive(Debug, Clone)]
pub struct Sample {
    /// What the program said.
    pub output: Output,
    /// Faults of kernels.
    pub faults: Option<u64>,
    /// Bytes into the device.
    pub bytes_in: Option<u64>,
    /// And out of it.
    pub bytes_out: Option<u64>,
    /// Bytes that kernels used on the host, over the link.
    pub bytes_on_host: Option<u64>,
    /// Seconds in which kernels only waited for faults.
    pub stall_s: Option<f64>,
    /// What the daemon counted in the program's session.
    pub session: Option<SessionView>,
}

impl Sample {
    /// Fate of prefetched bytes.
    pub fn prefetch(&self) -> Option<Prefetch> {
        let stats = &self.session.as_ref()?.stats;
        Some(Prefetch {
            issued_bytes: stats.prefetch_issued_bytes,
            useful_bytes: stats.prefetch_useful_bytes,
            late_bytes: stats.prefetch_late_bytes,
            wasted_bytes: stats.prefetch_wasted_bytes,
        })
    }
}

/// Everything that stays the same between runs.
pub struct Bench<'a> {
    /// Where the programs are.
    pub installation: &'a Installation,
    /// The device.
    pub device: Device,
    /// Folder with the driver's names, for the soft GPU.
    pub folder: &'a Path,
    /// Whose sessions they are.
    pub daemon: &'a PrivateDaemon,
    /// Iterations; none: the program's own default.
    pub iterations: Option<u32>,
}

/// Longest run of one program.
const PATIENCE: Duration = Duration::from_secs(900);

impl Bench<'_> {
    /// Runs `workload` on a working set of `bytes`.
    ///
    /// # Errors
    /// Where the program cannot be run or fails; a wrong checksum is no error here.
    pub fn run(&self, workload: &Workload, bytes: Size, mode: Mode) -> Result<Sample> {
        let program = self.installation.file(workload.program)?;
        let run = tempfile::tempdir_in(self.folder).context("cannot make a folder for the run")?;
        let stats = run.path().join("stats.json");
        let environment = self.environment(bytes, mode, &stats)?;
        let (out, err) = (run.path().join("out"), run.path().join("err"));
        let mut command = Command::new(&program);
        command
            .args(["--json", "--bytes", &bytes.0.to_string()])
            .args(workload.arguments)
            .envs(environment.variables())
            .stdin(Stdio::null())
            .stdout(File::create(&out)?)
            .stderr(File::create(&err)?);
        if let Some(iterations) = self.iterations {
            command.args(["--iterations", &iterations.to_string()]);
        }
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let pid = child.id();
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if begun.elapsed() > PATIENCE {
                child.kill()?;
                child.wait()?;
                bail!(
                    "{} in mode {} did not end within {PATIENCE:?}",
                    workload.name,
                    mode.name()
                );
            }
            sleep(Duration::from_millis(5));
        };
        let text = std::fs::read_to_string(&out)?;
        let output: Option<Output> = text
            .lines()
            .last()
            .and_then(|line| serde_json::from_str(line).ok());
        let Some(output) = output else {
            let said = std::fs::read_to_string(&err).unwrap_or_default();
            let said = said.trim();
            let said = if said.is_empty() {
                "it wrote no reason"
            } else {
                said
            };
            bail!(
                "{} in mode {} failed ({status}): {said}",
                workload.name,
                mode.name()
            );
        };
        let mut sample = Sample {
            output,
            faults: None,
            bytes_in: None,
            bytes_out: None,
            bytes_on_host: None,
            stall_s: None,
            session: None,
        };
        if matches!(self.device, Device::Soft { .. }) {
            let counted = softgpu::Stats::read(&stats)?;
            sample.faults = Some(counted.faults);
            sample.bytes_in = Some(counted.bytes_in);
            sample.bytes_out = Some(counted.bytes_out);
            sample.bytes_on_host = Some(counted.remote_bytes);
            sample.stall_s = Some(counted.stall_s);
        }
        if mode.has_session() {
            sample.session = Some(
                control::closed_session(self.daemon.socket(), pid).with_context(|| {
                    format!(
                        "{} in mode {} left no session with the daemon (a program that is over \
                         before the daemon answers has none: give it more --iterations)",
                        workload.name,
                        mode.name()
                    )
                })?,
            );
        }
        Ok(sample)
    }

    fn environment(&self, bytes: Size, mode: Mode, stats: &Path) -> Result<Environment> {
        let mut environment = Environment::default();
        let mut budget = None;
        match self.device {
            Device::Soft { memory, link } => {
                let memory = if mode == Mode::Resident {
                    roomy(bytes)
                } else {
                    memory
                };
                softgpu::use_driver_in(&mut environment, self.folder);
                let settings = softgpu::Settings {
                    memory,
                    link,
                    working_set: bytes,
                };
                softgpu::configure(&mut environment, &settings, stats);
            }
            Device::Cuda { memory } => {
                budget = mode.has_session().then_some(memory);
            }
        }
        if let Some(policy) = mode.policy() {
            let library: PathBuf = self.installation.shim()?;
            environment.shim(&ShimSettings {
                library: &library,
                socket: Some(self.daemon.socket()),
                policy: Some(policy),
                budget,
                ratio_limit: None,
            });
        }
        Ok(environment)
    }
}

/// A device on which `bytes` and what a program needs beside them are never paged.
fn roomy(bytes: Size) -> Size {
    Size(bytes.0 + bytes.0 / 4 + (128 << 20))
}
