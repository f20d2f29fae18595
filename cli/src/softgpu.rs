//! The built-in software GPU: how a program is made to use it, and what it counted.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::environment::Environment;
use crate::size::{Rate, Size};

/// Where the soft GPU leaves its counters.
pub const STATS: &str = "OVERSUB_SOFTGPU_STATS";
/// How much host memory it sets aside before the program runs.
pub const WARM: &str = "OVERSUB_SOFTGPU_WARM";

/// How large and how fast the soft GPU is made.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Device memory.
    pub memory: Size,
    /// Rate of the link, each way.
    pub link: Rate,
    /// What the program will use: as much host memory is set aside before it starts, so
    /// that no run pays for where the machine's free memory comes from.
    pub working_set: Size,
}

/// More is not set aside: that would take longer than it saves.
const MOST_WARM_BYTES: u64 = 4 << 30;

/// Fills `folder` with the names under which programs look for the driver.
///
/// # Errors
/// Where the links cannot be made.
pub fn link_as_driver(folder: &Path, library: &Path) -> Result<()> {
    for name in ["libcuda.so.1", "libcuda.so"] {
        symlink(library, folder.join(name))
            .with_context(|| format!("cannot link {name} in {}", folder.display()))?;
    }
    Ok(())
}

/// Makes a program find the driver in `folder` first.
pub fn use_driver_in(environment: &mut Environment, folder: &Path) {
    let inherited = std::env::var_os("LD_LIBRARY_PATH");
    environment.prepend("LD_LIBRARY_PATH", folder, inherited.as_deref());
}

/// Sets up one run.
pub fn configure(environment: &mut Environment, settings: &Settings, stats: &Path) {
    let warm = settings.memory.0.saturating_add(settings.working_set.0);
    environment
        .set(
            "OVERSUB_SOFTGPU_WARM",
            warm.min(MOST_WARM_BYTES).to_string(),
        )
        .set("OVERSUB_SOFTGPU_MEMORY", settings.memory.0.to_string())
        .set("OVERSUB_SOFTGPU_LINK_IN", settings.link.to_string())
        .set("OVERSUB_SOFTGPU_LINK_OUT", settings.link.to_string())
        .set(STATS, stats);
}

/// What the soft GPU counted in one process, from start to exit.
#[derive(Debug, Clone, Deserialize)]
pub struct Stats {
    /// Faults of kernels, after merging of duplicates.
    pub faults: u64,
    /// Bytes over the link to the device.
    pub bytes_in: u64,
    /// And back.
    pub bytes_out: u64,
    /// Bytes that kernels used on the host, over the link.
    pub remote_bytes: u64,
    /// Seconds in which a kernel had work but all of it waited for faults.
    pub stall_s: f64,
}

impl Stats {
    /// Reads what a process left at `path`.
    ///
    /// # Errors
    /// Where the file is missing or not what the soft GPU writes.
    pub fn read(path: &PathBuf) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("the soft GPU left no counters at {}", path.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("cannot read the soft GPU's counters in {}", path.display()))
    }
}
