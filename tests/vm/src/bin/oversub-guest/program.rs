//! The work [`Work::Program`](oversub_vm::plan::Work::Program): a workload program with the
//! soft CUDA driver, nvidia-uvm behind it, and oversub around it.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use oversub_vm::asked::Rights;
use oversub_vm::plan::{
    DriverCounts, PROGRAMS_PATH, ProgramCounts, ProgramLoad, Settled, Steering,
};
use serde_json::Value;

use crate::daemon::{Daemon, SOCKET};
use crate::probes;
use crate::rights;
use crate::witness::{self, Witness};

/// Where programs find the soft CUDA driver.
pub const DRIVER_FOLDER: &str = "/tmp/cuda";
const STATS: &str = "/tmp/stats.json";
/// How often it is tried to attach to a program that has no managed memory yet.
const ATTACH_INTERVAL: Duration = Duration::from_millis(5);

/// Runs it.
pub fn run(load: &ProgramLoad) -> Result<ProgramCounts> {
    let daemon = match load.steering {
        Steering::Driver | Steering::Alone => None,
        Steering::Oversub | Steering::Attached => Some(Daemon::start()?),
        Steering::Queued => Some(Daemon::start_on_queue()?),
    };
    let witness = daemon.as_ref().map(|_| Witness::open()).transpose()?;
    let mut program = Running::start(load)?;
    if let (Steering::Attached, Some(daemon)) = (load.steering, &daemon) {
        attach(daemon, &mut program)?;
    }
    let of_program = match &witness {
        Some(witness) => Some(witness.of_ended(&program)?),
        None => None,
    };
    let mut counts = program.finish();
    if let (Some(witness), Some(mut metrics), Ok(counts)) = (&witness, of_program, &mut counts) {
        metrics.ended_faults = witness.of_waited_for()?;
        counts.metrics = Some(metrics);
    }
    if let Some(daemon) = daemon {
        let status = daemon.ask("status");
        daemon.stop();
        if let Ok(status) = status {
            let (sessions, attached) = (&status["closed_sessions"], &status["attached"]);
            eprintln!("{}: {sessions} {attached}", load.program);
        }
    }
    counts
}

/// Makes the soft CUDA driver the one that programs find in [`DRIVER_FOLDER`].
pub fn link_driver() -> Result<()> {
    fs::create_dir_all(DRIVER_FOLDER)?;
    for name in ["libcuda.so.1", "libcuda.so"] {
        let link = Path::new(DRIVER_FOLDER).join(name);
        let _ = fs::remove_file(&link);
        symlink(format!("{PROGRAMS_PATH}/liboversub_softgpu.so"), link)?;
    }
    Ok(())
}

/// Has the daemon steer the program as soon as it has managed memory.
fn attach(daemon: &Daemon, program: &mut Running) -> Result<()> {
    while let Err(refused) = daemon.attach(program.child.id()) {
        if program.has_ended()? {
            return Err(refused.context("the program ended before it could be attached to"));
        }
        std::thread::sleep(ATTACH_INTERVAL);
    }
    Ok(())
}

/// A workload that runs. One at a time.
pub struct Running {
    load: ProgramLoad,
    child: Child,
    watch: JoinHandle<Result<Settled>>,
}

impl Running {
    /// Starts one, as root.
    pub fn start(load: &ProgramLoad) -> Result<Self> {
        Self::start_as(load, &Rights::ROOT)
    }

    /// Starts one with these rights.
    pub fn start_as(load: &ProgramLoad, rights: &Rights) -> Result<Self> {
        link_driver()?;
        let _ = fs::remove_file(STATS);
        let mut command = Command::new(format!("{PROGRAMS_PATH}/{}", load.program));
        let policy = match load.steering {
            Steering::Driver => Some("driver"),
            Steering::Oversub | Steering::Queued => Some("foresight"),
            Steering::Alone | Steering::Attached => None,
        };
        match policy {
            Some(policy) => command
                .env("LD_PRELOAD", format!("{PROGRAMS_PATH}/liboversub.so"))
                .env("OVERSUB_SOCKET", SOCKET)
                .env("OVERSUB_POLICY", policy),
            None => command.arg("--managed"),
        };
        rights::give(rights, &mut command);
        let mut child = command
            .arg("--json")
            .args(["--bytes", &load.bytes.to_string()])
            .args(["--iterations", &load.iterations.to_string()])
            .args(&load.arguments)
            .env("LD_LIBRARY_PATH", DRIVER_FOLDER)
            .env("OVERSUB_SOFTGPU_BACKEND", "uvm")
            .env("OVERSUB_SOFTGPU_STATS", STATS)
            .env(
                "OVERSUB_SOFTGPU_COMPUTE_SCALE",
                load.compute_scale.to_string(),
            )
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} cannot be started", load.program))?;
        witness::contain(child.id())?;
        let said = child.stderr.take().context("its output is not there")?;
        let (load, watched) = (load.clone(), load.clone());
        let watch = std::thread::spawn(move || watch(&watched, said));
        Ok(Self { load, child, watch })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal, as to stop it or to let it go on.
    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: the process is our child and not waited for yet.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }

    /// Returns when it has ended; it is still to be waited for, so its number stays its own.
    pub fn let_end(&self) -> Result<()> {
        // SAFETY: zeros are a value of this type, which the call fills.
        let mut told: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = libc::WEXITED | libc::WNOWAIT;
        // SAFETY: the number is that of a child not waited for; `told` lives for the call.
        while unsafe { libc::waitid(libc::P_PID, self.child.id(), &raw mut told, flags) } != 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error).context("the program cannot be waited for");
            }
        }
        Ok(())
    }

    /// It has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits for its end; what it did.
    pub fn finish(self) -> Result<ProgramCounts> {
        let program = self.load.program;
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
        let settled = self.watch.join();
        let settled = settled.map_err(|_| anyhow!("the thread that watches panicked"))??;
        Ok(ProgramCounts {
            metrics: None,
            settled,
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

/// Hands on what the program says, and asks the driver for its counters when the iteration
/// is over by which everything is learned, and when the last one is.
fn watch(load: &ProgramLoad, said: ChildStderr) -> Result<Settled> {
    let end_of = |iteration| format!("{}: iteration {iteration}/", load.program);
    let ends = [load.settled_after, load.iterations].map(end_of);
    let mut at_ends = [DriverCounts::default(); 2];
    for line in BufReader::new(said).lines() {
        let line = line?;
        for (end, at_end) in ends.iter().zip(&mut at_ends) {
            if line.starts_with(end.as_str()) {
                *at_end = probes::procfs()?;
            }
        }
        eprintln!("{line}");
    }
    let [before, after] = at_ends;
    let pages = |counts: DriverCounts| counts.pages_in + counts.pages_out;
    Ok(Settled {
        iterations: load.iterations.saturating_sub(load.settled_after),
        faults: after.faults.saturating_sub(before.faults),
        bytes: pages(after).saturating_sub(pages(before)) * probes::PAGE,
    })
}
