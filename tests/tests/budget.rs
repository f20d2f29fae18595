//! A residency budget is harmless to results under every policy. How closely it is kept
//! depends on the machine and the program; the README says by how much it is exceeded.

use oversub_tests::daemon::Daemon;
use oversub_tests::program::outcome;
use oversub_tests::workload::{Workload, assert_right, stats, stats_file};

/// Device of these tests, and half of it.
const DEVICE: u64 = 512 << 20;
const BUDGET: u64 = DEVICE / 2;

/// Peak of resident managed bytes of a run under a budget, which must give a right result.
fn peak(policy: &str, workload: &Workload) -> u64 {
    let daemon = Daemon::start();
    let socket = daemon.socket().to_string_lossy().into_owned();
    let budget = BUDGET.to_string();
    let (_folder, path) = stats_file();
    let options = [
        "--policy",
        policy,
        "--memory-budget",
        &budget,
        "--socket",
        &socket,
        "--quiet",
    ];
    let mut command = workload.under_oversub(&options, &path);
    let told = outcome(
        command
            .env("OVERSUB_SOFTGPU_MEMORY", DEVICE.to_string())
            .env("OVERSUB_SOFTGPU_LINK_IN", "1GB/s")
            .env("OVERSUB_SOFTGPU_LINK_OUT", "1GB/s"),
    );
    assert_right(&told);
    stats(&path)["managed_peak_resident_bytes"]
        .as_u64()
        .unwrap_or(u64::MAX)
}

#[test]
fn a_budget_changes_no_result_under_any_policy() {
    let bytes = BUDGET * 5 / 4;
    for policy in ["foresight", "deepum", "demand"] {
        let train = Workload {
            bytes,
            arguments: &["--allocator", "async"],
            ..Workload::new("train", 1.0, 2)
        };
        assert!(peak(policy, &train) <= DEVICE);
    }
}
