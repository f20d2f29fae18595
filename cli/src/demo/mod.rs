//! `oversub demo`: the workload programs with and without oversub, side by side.

mod bound;
mod measure;
mod report;
mod workload;

use std::process::ExitCode;

use anyhow::{Context, Result};

use self::measure::Sample;
pub use self::measure::{Bench, Device, Mode};
use self::report::{ModeReport, Report, WorkloadReport};
pub use self::workload::Workload;
use crate::args::{DemoOptions, DemoPolicy, DeviceChoice};
use crate::device;
use crate::install::Installation;
use crate::private_daemon::PrivateDaemon;
use crate::progress::Progress;
use crate::size::{Rate, Size};
use crate::softgpu;
use crate::usage::usage;

/// Rate of the soft GPU's link unless told otherwise (its own default).
pub const SOFT_LINK: Rate = Rate(1_000_000_000);

/// Runs the demo and prints its result.
///
/// # Errors
/// Where a workload cannot be run.
pub fn demo(options: &DemoOptions) -> Result<ExitCode> {
    let plan = Plan::of(options)?;
    let installation = Installation::find()?;
    let folder = tempfile::Builder::new()
        .prefix("oversub-demo-")
        .tempdir()
        .context("cannot make a private folder (is TMPDIR writable?)")?;
    if let Device::Soft { .. } = plan.device {
        softgpu::link_as_driver(folder.path(), &installation.softgpu()?)?;
    }
    let daemon = PrivateDaemon::start(&installation.daemon()?, folder.path())?;
    let bench = Bench {
        installation: &installation,
        device: plan.device,
        folder: folder.path(),
        daemon: &daemon,
        iterations: options.iterations,
    };
    let report = plan.run(&bench, options)?;
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}", report.table());
    }
    let right = report.workloads.iter().all(|workload| workload.checksum_ok);
    Ok(if right {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What will be run, on what.
struct Plan {
    device: Device,
    device_name: String,
    memory: Size,
    link: Option<Rate>,
    modes: Vec<Mode>,
    workloads: Vec<Workload>,
}

impl Plan {
    fn of(options: &DemoOptions) -> Result<Self> {
        let real = match options.device {
            Some(DeviceChoice::Soft) => None,
            Some(DeviceChoice::Cuda) => match device::first_device() {
                Ok(device) => Some(device),
                Err(reason) => return usage(format!("--device cuda: {reason}; use --device soft")),
            },
            None => device::first_device().ok(),
        };
        let steered = options.policies.iter().map(|policy| match policy {
            DemoPolicy::Oversub => Mode::Oversub,
            DemoPolicy::Deepum => Mode::Deepum,
        });
        let memory = options.memory;
        let names = if options.workloads.is_empty() {
            &workload::ALL[..]
        } else {
            &options.workloads
        };
        let workloads = names.iter().map(|name| Workload::of(*name)).collect();
        Ok(match real {
            None => {
                let link = options.link.unwrap_or(SOFT_LINK);
                Self {
                    device: Device::Soft { memory, link },
                    device_name: "soft".to_owned(),
                    memory,
                    link: Some(link),
                    modes: [Mode::Resident, Mode::Driver]
                        .into_iter()
                        .chain(steered)
                        .collect(),
                    workloads,
                }
            }
            Some(real) => {
                // Managed memory beyond what the card has free can take the whole GPU
                // down with the program, so a real device is never oversubscribed: a
                // budget stands for its memory.
                let most = Size((memory.0 as f64 * options.ratio) as u64);
                if most.0 > real.free_bytes / 4 {
                    return usage(format!(
                        "--memory {memory} at ratio {} makes a working set of {most}, but at most a quarter of the {} free on {} is used; give a smaller --memory",
                        options.ratio,
                        Size(real.free_bytes),
                        real.name
                    ));
                }
                Self {
                    device: Device::Cuda { memory },
                    device_name: real.name,
                    memory,
                    link: options.link,
                    modes: [Mode::Resident, Mode::Driver, Mode::Demand]
                        .into_iter()
                        .chain(steered)
                        .collect(),
                    workloads,
                }
            }
        })
    }

    fn run(&self, bench: &Bench<'_>, options: &DemoOptions) -> Result<Report> {
        let steps = self.workloads.len() * self.modes.len() * options.runs as usize;
        let mut progress = Progress::new(steps);
        let mut workloads = Vec::new();
        for workload in &self.workloads {
            let bytes = workload.working_set(self.memory, options.ratio);
            let mut samples: Vec<(Mode, Vec<Sample>)> =
                self.modes.iter().map(|mode| (*mode, Vec::new())).collect();
            for run in 1..=options.runs {
                for (mode, of_mode) in &mut samples {
                    let (name, runs) = (mode.name(), options.runs);
                    progress.step(format!("{}: {name}, run {run} of {runs}", workload.name));
                    of_mode.push(bench.run(workload, bytes, *mode)?);
                }
            }
            workloads.push(self.workload_report(workload, &samples)?);
        }
        progress.done();
        Ok(Report {
            device: self.device_name.clone(),
            ratio: options.ratio,
            memory_bytes: self.memory.0,
            link_bytes_per_s: self.link.map(|link| link.0),
            runs_per_mode: options.runs,
            workloads,
        })
    }

    fn workload_report(
        &self,
        workload: &Workload,
        samples: &[(Mode, Vec<Sample>)],
    ) -> Result<WorkloadReport> {
        let output = samples
            .iter()
            .flat_map(|(_, samples)| samples)
            .map(|sample| &sample.output)
            .next_back()
            .context("nothing was run")?;
        let runs: Vec<_> = samples
            .iter()
            .filter_map(|(mode, samples)| ModeReport::of(*mode, samples))
            .collect();
        let seconds = |mode: Mode| {
            runs.iter()
                .find(|run| run.mode == mode)
                .map(|run| run.seconds)
        };
        let baseline = match self.device {
            Device::Soft { .. } => Mode::Driver,
            Device::Cuda { .. } => Mode::Demand,
        };
        let resident_s = seconds(Mode::Resident);
        let bound_s = self.link.map(|link| {
            bound::seconds(&bound::Work {
                carried_bytes: output.carried_bytes,
                iterations: output.iterations,
                memory_bytes: self.memory.0,
                link_bytes_per_s: link.0,
                resident_s,
            })
        });
        let ours = seconds(Mode::Oversub);
        Ok(WorkloadReport {
            name: workload.name,
            bytes: output.bytes,
            iterations: output.iterations,
            bound_s,
            speedup: seconds(baseline)
                .zip(ours)
                .map(|(theirs, ours)| theirs / ours),
            baseline,
            over_bound: ours.zip(bound_s).map(|(ours, bound)| ours / bound),
            checksum_ok: runs.iter().all(|run| run.checksum_ok),
            runs,
        })
    }
}
