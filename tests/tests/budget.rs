//! A residency budget is kept at all times by the policies that prefetch, and harmless to
//! results under every policy. Under `demand` faults migrate, as under the driver alone,
//! and how closely it is kept depends on the machine; the README says how closely.

use oversub_tests::daemon::Daemon;
use oversub_tests::program::{outcome, oversub};
use oversub_tests::workload::{Workload, assert_right, stats, stats_file};

/// Device of these tests, and half of it.
const DEVICE: u64 = 512 << 20;
const BUDGET: u64 = DEVICE / 2;

/// Peak of resident managed bytes of a run under a budget, which must give a right result.
fn peak(policy: &str, workload: &Workload) -> u64 {
    peak_with(&Daemon::start(), &["--policy", policy], workload)
}

/// The same with a certain daemon.
fn peak_with(daemon: &Daemon, options: &[&str], workload: &Workload) -> u64 {
    let socket = daemon.socket().to_string_lossy().into_owned();
    let budget = BUDGET.to_string();
    let (_folder, path) = stats_file();
    let options = [
        options,
        &["--memory-budget", &budget, "--socket", &socket, "--quiet"],
    ]
    .concat();
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

/// A budget may be exceeded by so much, percent.
const SLACK: u64 = 3;

/// Runs a program of one and a half times the budget, which it is to fill, not to exceed.
fn keeps_its_budget(policy: &str, name: &'static str, arguments: &'static [&'static str]) {
    let workload = Workload {
        bytes: BUDGET * 3 / 2,
        arguments,
        ..Workload::new(name, 1.0, 3)
    };
    let peak = peak(policy, &workload);
    assert!(
        peak <= BUDGET + BUDGET * SLACK / 100,
        "{name} under {policy}: {peak} bytes of a budget of {BUDGET}"
    );
    assert!(
        peak >= BUDGET * 3 / 4,
        "{name} under {policy} leaves room: {peak} bytes of {BUDGET}"
    );
}

#[test]
fn foresight_keeps_a_budget_under_a_sweep() {
    keeps_its_budget("foresight", "sweep", &[]);
}

#[test]
fn foresight_keeps_a_budget_under_training_with_stream_ordered_allocation() {
    keeps_its_budget("foresight", "train", &["--allocator", "async"]);
}

#[test]
fn foresight_keeps_a_budget_under_training_with_a_caching_allocator() {
    keeps_its_budget("foresight", "train", &["--allocator", "caching"]);
}

#[test]
fn foresight_keeps_a_budget_under_tiles() {
    keeps_its_budget("foresight", "gemm", &[]);
}

#[test]
fn foresight_keeps_a_budget_under_accesses_that_nothing_foretells() {
    keeps_its_budget("foresight", "gather", &[]);
}

#[test]
fn deepum_keeps_a_budget_under_a_sweep() {
    keeps_its_budget("deepum", "sweep", &[]);
}

#[test]
fn a_budget_changes_no_result_of_demand_paging() {
    let train = Workload {
        bytes: BUDGET * 5 / 4,
        arguments: &["--allocator", "async"],
        ..Workload::new("train", 1.0, 2)
    };
    assert!(peak("demand", &train) <= DEVICE);
}

#[test]
fn under_a_daemon_that_prefetches_nothing_a_budget_is_filled_by_faults() {
    let sweep = Workload {
        bytes: BUDGET * 3 / 2,
        ..Workload::new("sweep", 1.0, 2)
    };
    let peak = peak_with(&Daemon::of_policy("demand"), &[], &sweep);
    assert!(
        peak >= BUDGET * 3 / 4,
        "kernels work on the host's memory: {peak} bytes of {BUDGET} on the device"
    );
}

#[test]
fn a_daemon_that_leaves_all_to_the_driver_is_asked_for_no_budget() {
    let daemon = Daemon::of_policy("driver");
    let socket = daemon.socket().to_string_lossy().into_owned();
    let told = outcome(&mut oversub(&[
        "run",
        "--memory-budget",
        "1GiB",
        "--socket",
        &socket,
        "--",
        "true",
    ]));
    assert_eq!(told.status.code(), Some(2), "{}", told.err);
    assert!(told.err.contains("--policy"), "{}", told.err);
}
