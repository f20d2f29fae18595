//! The work [`Work::Program`](oversub_vm::plan::Work::Program): a workload program with the
//! soft CUDA driver, nvidia-uvm behind it, and oversub around it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use oversub_vm::plan::{PROGRAMS_PATH, ProgramCounts, ProgramLoad, Steering};
use serde_json::Value;

use crate::daemon::{Daemon, SOCKET};

const DRIVER_FOLDER: &str = "/tmp/cuda";
const STATS: &str = "/tmp/stats.json";

/// Runs it.
pub fn run(load: &ProgramLoad) -> Result<ProgramCounts> {
    let daemon = match load.steering {
        Steering::Driver => None,
        Steering::Oversub => Some(Daemon::start()?),
    };
    let counts = Running::start(load)?.finish();
    if let Some(daemon) = daemon {
        let status = daemon.ask("status");
        daemon.stop();
        if let Ok(status) = status {
            eprintln!("{}: {}", load.program, status["closed_sessions"]);
        }
    }
    counts
}

/// A workload that runs. One at a time.
pub struct Running {
    program: String,
    child: Child,
}

impl Running {
    /// Starts one.
    pub fn start(load: &ProgramLoad) -> Result<Self> {
        fs::create_dir_all(DRIVER_FOLDER)?;
        for name in ["libcuda.so.1", "libcuda.so"] {
            let link = Path::new(DRIVER_FOLDER).join(name);
            let _ = fs::remove_file(&link);
            symlink(format!("{PROGRAMS_PATH}/liboversub_softgpu.so"), link)?;
        }
        let _ = fs::remove_file(STATS);
        let policy = match load.steering {
            Steering::Driver => "driver",
            Steering::Oversub => "foresight",
        };
        let child = Command::new(format!("{PROGRAMS_PATH}/{}", load.program))
            .arg("--json")
            .args(["--bytes", &load.bytes.to_string()])
            .args(["--iterations", &load.iterations.to_string()])
            .args(&load.arguments)
            .env("LD_LIBRARY_PATH", DRIVER_FOLDER)
            .env("LD_PRELOAD", format!("{PROGRAMS_PATH}/liboversub.so"))
            .env("OVERSUB_SOCKET", SOCKET)
            .env("OVERSUB_POLICY", policy)
            .env("OVERSUB_SOFTGPU_BACKEND", "uvm")
            .env("OVERSUB_SOFTGPU_STATS", STATS)
            .env(
                "OVERSUB_SOFTGPU_COMPUTE_SCALE",
                load.compute_scale.to_string(),
            )
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .with_context(|| format!("{} cannot be started", load.program))?;
        let program = load.program.clone();
        Ok(Self { program, child })
    }

    /// It has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits for its end; what it did.
    pub fn finish(self) -> Result<ProgramCounts> {
        let program = self.program;
        let output = self.child.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let result: Value = text
            .lines()
            .last()
            .and_then(|line| serde_json::from_str(line).ok())
            .with_context(|| format!("{program} ended ({}) without a result", output.status))?;
        let stats = fs::read_to_string(STATS).context("the soft GPU left no counters")?;
        let stats: Value = serde_json::from_str(&stats)?;
        let number = |name: &str| {
            let value = stats[name].as_u64();
            value.with_context(|| format!("the soft GPU's counters have no {name}"))
        };
        Ok(ProgramCounts {
            ok: result["ok"] == Value::Bool(true) && output.status.success(),
            seconds: result["seconds"].as_f64().unwrap_or_default(),
            faults: number("faults")?,
            bytes_in: number("bytes_in")?,
            bytes_out: number("bytes_out")?,
            called_in: stats["bytes_in_by_cause"]["call"]
                .as_u64()
                .unwrap_or_default(),
        })
    }
}
