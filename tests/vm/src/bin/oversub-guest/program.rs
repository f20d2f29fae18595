//! The work [`Work::Program`](oversub_vm::plan::Work::Program): a workload program with the
//! soft CUDA driver, nvidia-uvm behind it, and oversub around it.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use oversub_vm::plan::{DAEMON_CONFIG_PATH, PROGRAMS_PATH, ProgramCounts, ProgramLoad, Steering};
use serde_json::Value;

const DRIVER_FOLDER: &str = "/tmp/cuda";
const STATS: &str = "/tmp/stats.json";
const SOCKET: &str = "/run/oversub/oversubd.sock";
const DAEMON_LOG: &str = "/tmp/oversubd.log";
/// How long the daemon may take to open its socket.
const DAEMON_LIMIT: Duration = Duration::from_secs(30);

/// Runs it.
pub fn run(load: &ProgramLoad) -> Result<ProgramCounts> {
    fs::create_dir_all(DRIVER_FOLDER)?;
    for name in ["libcuda.so.1", "libcuda.so"] {
        let link = Path::new(DRIVER_FOLDER).join(name);
        let _ = fs::remove_file(&link);
        symlink(format!("{PROGRAMS_PATH}/liboversub_softgpu.so"), link)?;
    }
    let _ = fs::remove_file(STATS);
    let daemon = match load.steering {
        Steering::Driver => None,
        Steering::Oversub => Some(Daemon::start()?),
    };
    let policy = match load.steering {
        Steering::Driver => "driver",
        Steering::Oversub => "foresight",
    };
    let output = Command::new(format!("{PROGRAMS_PATH}/{}", load.program))
        .arg("--json")
        .args(["--bytes", &load.bytes.to_string()])
        .args(["--iterations", &load.iterations.to_string()])
        .env("LD_LIBRARY_PATH", DRIVER_FOLDER)
        .env("LD_PRELOAD", format!("{PROGRAMS_PATH}/liboversub.so"))
        .env("OVERSUB_SOCKET", SOCKET)
        .env("OVERSUB_POLICY", policy)
        .env("OVERSUB_SOFTGPU_BACKEND", "uvm")
        .env("OVERSUB_SOFTGPU_STATS", STATS)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{} cannot be started", load.program))?;
    if let Some(daemon) = daemon {
        daemon.stop();
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let result: Value = text
        .lines()
        .last()
        .and_then(|line| serde_json::from_str(line).ok())
        .with_context(|| {
            format!(
                "{} ended ({}) without a result",
                load.program, output.status
            )
        })?;
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

/// A running daemon.
struct Daemon {
    child: Child,
}

impl Daemon {
    fn start() -> Result<Self> {
        let log = File::create(DAEMON_LOG)?;
        let child = Command::new(format!("{PROGRAMS_PATH}/oversubd"))
            .args([
                "--config",
                DAEMON_CONFIG_PATH,
                "--socket",
                SOCKET,
                "--http",
                "none",
            ])
            .stdout(log.try_clone()?)
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()
            .context("oversubd cannot be started")?;
        let mut daemon = Self { child };
        let end = Instant::now() + DAEMON_LIMIT;
        while UnixStream::connect(Path::new(SOCKET).with_file_name("control.sock")).is_err() {
            let ended = daemon.child.try_wait()?;
            if ended.is_some() || Instant::now() > end {
                let log = fs::read_to_string(DAEMON_LOG).unwrap_or_default();
                daemon.stop();
                bail!("oversubd did not open its socket; it said:\n{log}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(daemon)
    }

    /// Ends it and shows what it said.
    fn stop(mut self) {
        // SAFETY: the process is our child and not waited for yet.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        let _ = self.child.wait();
        eprintln!("{}", fs::read_to_string(DAEMON_LOG).unwrap_or_default());
    }
}
