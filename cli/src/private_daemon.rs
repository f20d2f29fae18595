//! A daemon for one program or one measurement: started here, gone when this is dropped.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

use crate::control;

/// Longest wait for it to answer: loading the probes takes most of it.
const START: Duration = Duration::from_secs(20);
/// Longest wait for it to end by itself.
const STOP: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(10);

/// A running daemon of our own.
#[derive(Debug)]
pub struct PrivateDaemon {
    child: Child,
    socket: PathBuf,
}

impl PrivateDaemon {
    /// Starts `program` with its socket and its log in `folder`, and waits until it answers.
    ///
    /// # Errors
    /// Where it cannot be started or ends at once; the message has the end of its log.
    pub fn start(program: &Path, folder: &Path) -> Result<Self> {
        Self::start_with(program, folder, None)
    }

    /// As [`PrivateDaemon::start`], with a file for what programs teach.
    ///
    /// # Errors
    /// As [`PrivateDaemon::start`].
    pub fn start_with(program: &Path, folder: &Path, profile: Option<&Path>) -> Result<Self> {
        Self::start_for(program, folder, profile, &[])
    }

    /// As [`PrivateDaemon::start_with`], with more arguments.
    ///
    /// # Errors
    /// As [`PrivateDaemon::start`].
    pub fn start_for(
        program: &Path,
        folder: &Path,
        profile: Option<&Path>,
        arguments: &[&str],
    ) -> Result<Self> {
        let socket = folder.join("oversubd.sock");
        let log = folder.join("oversubd.log");
        let sink = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::new(program);
        command
            .arg("--private")
            .arg("--socket")
            .arg(&socket)
            // It ends with its starter, not because no program has connected for a while.
            .args(["--http", "none", "--idle-exit", "4294967295"])
            .args(profile.map(|_| "--profile"))
            .args(profile)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(sink.try_clone()?)
            .stderr(sink)
            .env_remove("LD_PRELOAD")
            .env_remove("NOTIFY_SOCKET");
        // SAFETY: between fork and exec only this system call is made.
        unsafe {
            // It must hear SIGTERM, whatever its starter has blocked.
            command.pre_exec(|| Ok(SigSet::empty().thread_set_mask()?));
        }
        let child = command
            .spawn()
            .with_context(|| format!("cannot start the daemon {}", program.display()))?;
        let mut daemon = Self { child, socket };
        daemon.wait_until_ready(&log)?;
        Ok(daemon)
    }

    /// Where programs connect to it.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    fn wait_until_ready(&mut self, log: &Path) -> Result<()> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("the private daemon ended at once ({status}): {}", tail(log));
            }
            if control::status(&self.socket).is_ok() {
                return Ok(());
            }
            if begun.elapsed() > START {
                bail!(
                    "the private daemon does not answer after {START:?}: {}",
                    tail(log)
                );
            }
            sleep(STEP);
        }
    }
}

impl Drop for PrivateDaemon {
    fn drop(&mut self) {
        let id = i32::try_from(self.child.id()).unwrap_or(i32::MAX);
        // Errors mean that it is gone already, which is what is wanted.
        let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
        let begun = Instant::now();
        while begun.elapsed() < STOP {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            sleep(STEP);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last lines of a log, for a message.
fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    match lines.len() {
        0 => "it wrote nothing".to_owned(),
        count => lines[count.saturating_sub(5)..].join("; "),
    }
}
