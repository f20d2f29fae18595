//! `oversub bench`: what oversub itself costs on this machine. All on the soft GPU.

pub mod command;
mod device;
mod engine;
pub mod launch;
mod probe;
mod quantile;

use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::args::BenchOptions;
use crate::install::Installation;
use crate::progress::Progress;
use crate::softgpu;

/// The whole result; `--json` prints it as it is.
#[derive(Debug, Serialize)]
struct Report {
    launch_overhead_ns: launch::Overhead,
    command_latency_us: command::Latency,
    probe_latency_us: probe::Latency,
    engine: engine::Cost,
}

/// Measures everything and prints it.
///
/// # Errors
/// Where a measurement cannot be made at all.
pub fn bench(options: &BenchOptions) -> Result<ExitCode> {
    let installation = Installation::find()?;
    let folder = tempfile::Builder::new()
        .prefix("oversub-bench-")
        .tempdir()
        .context("cannot make a private folder (is TMPDIR writable?)")?;
    softgpu::link_as_driver(folder.path(), &installation.softgpu()?)?;
    let mut progress = Progress::new(4);
    progress.step("engine: nanoseconds per event".to_owned());
    let engine = engine::measure()?;
    progress.step("preloaded library: nanoseconds per launch".to_owned());
    let launch_overhead_ns = launch::measure(&installation, folder.path())?;
    progress.step("commands: from the program's event to the driver call".to_owned());
    let command_latency_us = command::measure(&installation, folder.path())?;
    progress.step("probes: from the fault to user space".to_owned());
    let probe_latency_us = probe::measure();
    progress.done();
    let report = Report {
        launch_overhead_ns,
        command_latency_us,
        probe_latency_us,
        engine,
    };
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}", text(&report));
    }
    Ok(ExitCode::SUCCESS)
}

fn text(report: &Report) -> String {
    let launch = &report.launch_overhead_ns;
    let command = &report.command_latency_us;
    let engine = &report.engine;
    let shown = |value: Option<f64>| value.map_or("unknown".to_owned(), |us| format!("{us:.0} us"));
    let probe = &report.probe_latency_us;
    let probes = match &probe.reason {
        Some(reason) => format!("not measured: {reason}"),
        None => format!(
            "{} at half, {} at 99 of 100, {} lost at {:.0} events per second",
            shown(probe.p50),
            shown(probe.p99),
            probe.lost.unwrap_or(0),
            probe.rate.unwrap_or(0.0)
        ),
    };
    format!(
        "launch overhead   {:.0} ns with a daemon, {:.0} ns with one that steers, {:.0} ns without, {:.0} ns disabled (a bare launch takes {:.0} ns)\n\
         command latency   {} at half, {} at 99 of 100 ({} commands)\n\
         probe latency     {}\n\
         engine            {:.0} ns per event, {:.0} events per second\n",
        launch.daemon,
        launch.steered,
        launch.no_daemon,
        launch.disabled,
        launch.bare,
        shown(command.p50),
        shown(command.p99),
        command.count,
        probes,
        engine.ns_per_event_p50,
        engine.events_per_s,
    )
}
