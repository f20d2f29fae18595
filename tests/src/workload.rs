//! The workload programs on a small soft GPU with a fast link.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::binary;
use crate::program::{Outcome, oversub};

/// Device memory of the suites' soft GPU, bytes.
pub const DEVICE_BYTES: u64 = 64 << 20;

/// One workload program with its arguments.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Program.
    pub program: &'static str,
    /// Working set, bytes.
    pub bytes: u64,
    /// Iterations.
    pub iterations: u32,
    /// Further arguments.
    pub arguments: &'static [&'static str],
}

impl Workload {
    /// `program` on a working set of `ratio` times the device.
    pub fn new(program: &'static str, ratio: f64, iterations: u32) -> Self {
        let bytes = (DEVICE_BYTES as f64 * ratio) as u64;
        Self {
            program,
            bytes,
            iterations,
            arguments: &[],
        }
    }

    /// Program and arguments, as a user would type them.
    pub fn command_line(&self) -> Vec<String> {
        let program = binary(self.program).to_string_lossy().into_owned();
        let mut line = vec![program, "--json".to_owned()];
        line.extend(["--bytes".to_owned(), self.bytes.to_string()]);
        line.extend(["--iterations".to_owned(), self.iterations.to_string()]);
        line.extend(self.arguments.iter().map(|argument| (*argument).to_owned()));
        line
    }

    /// `oversub run --soft OPTIONS -- WORKLOAD`, with the suites' soft GPU.
    pub fn under_oversub(&self, options: &[&str], stats: &Path) -> Command {
        let mut line = vec!["run".to_owned(), "--soft".to_owned()];
        line.extend(options.iter().map(|option| (*option).to_owned()));
        line.push("--".to_owned());
        line.extend(self.command_line());
        let mut command = oversub(&line);
        soft_gpu(&mut command, stats);
        command
    }
}

/// Sets up the suites' soft GPU in a program's environment.
pub fn soft_gpu(command: &mut Command, stats: &Path) {
    command
        .env("OVERSUB_SOFTGPU_MEMORY", DEVICE_BYTES.to_string())
        .env("OVERSUB_SOFTGPU_LINK_IN", "4GB/s")
        .env("OVERSUB_SOFTGPU_LINK_OUT", "4GB/s")
        .env("OVERSUB_SOFTGPU_STATS", stats);
}

/// A folder in which programs find the soft GPU as the driver, without `oversub run`.
pub fn driver_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("makes a folder");
    for name in ["libcuda.so.1", "libcuda.so"] {
        std::os::unix::fs::symlink(binary("liboversub_softgpu.so"), folder.path().join(name))
            .expect("links the soft GPU");
    }
    folder
}

/// The JSON line that a workload printed last.
///
/// # Panics
/// Where it printed none.
pub fn result(outcome: &Outcome) -> Value {
    let line = outcome.out.lines().last().unwrap_or_default();
    serde_json::from_str(line)
        .unwrap_or_else(|_| panic!("the workload printed no result: {outcome:?}"))
}

/// The right result came out, and the exit status says so.
///
/// # Panics
/// Otherwise.
pub fn assert_right(outcome: &Outcome) {
    let result = result(outcome);
    assert!(outcome.status.success(), "{outcome:?}");
    assert_eq!(result["ok"], Value::Bool(true), "{outcome:?}");
    assert_eq!(result["checksum"], result["reference"], "{outcome:?}");
}

/// What the soft GPU counted.
///
/// # Panics
/// Where it left nothing.
pub fn stats(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).expect("the soft GPU left its counters");
    serde_json::from_str(&text).expect("they are JSON")
}

/// A file name for counters in a folder of its own.
pub fn stats_file() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("makes a folder");
    let path = folder.path().join("stats.json");
    (folder, path)
}
