//! What the end-to-end suites share: the built programs, a daemon, runs of workloads.
//!
//! Nothing here is a double: every suite starts the same files that a user starts. They
//! come from the release build (`cargo build --release --workspace`), or from the folder
//! that `OVERSUB_TEST_BINARIES` names.

pub mod daemon;
pub mod metrics;
pub mod program;
pub mod trace;
pub mod workload;

use std::io::Write;
use std::path::PathBuf;

/// Folder of the built programs and libraries.
///
/// # Panics
/// Where they have not been built.
pub fn binaries() -> PathBuf {
    let folder = std::env::var_os("OVERSUB_TEST_BINARIES").map_or_else(
        || {
            let tree = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
            let target = std::env::var_os("CARGO_TARGET_DIR")
                .map_or_else(|| tree.join("target"), |path| tree.join(path));
            target.join("release")
        },
        PathBuf::from,
    );
    assert!(
        folder.join("oversub").is_file(),
        "{} has no oversub; run `cargo build --release --workspace` first",
        folder.display()
    );
    folder
}

/// The path of one of them.
pub fn binary(name: &str) -> PathBuf {
    binaries().join(name)
}

/// Says that a part did not run, and why, in the output and in the summary of `tests/run`.
pub fn skipped(what: &str, reason: &str) {
    eprintln!("skipped: {what}: {reason}");
    if let Some(path) = std::env::var_os("OVERSUB_TEST_SKIPS")
        && let Ok(mut list) = std::fs::File::options().append(true).open(path)
    {
        // The list is for people; a line that cannot be written fails nothing.
        let _ = writeln!(list, "{what}: {reason}");
    }
}
