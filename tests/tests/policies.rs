//! Every workload gives the right result beyond device memory, under every policy.

use oversub_tests::daemon::Daemon;
use oversub_tests::program::outcome;
use oversub_tests::workload::{Workload, assert_right, stats, stats_file};

const POLICIES: [&str; 4] = ["foresight", "deepum", "demand", "driver"];

fn right_under_every_policy(workload: &Workload) {
    let daemon = Daemon::start();
    let socket = daemon.socket().to_string_lossy().into_owned();
    for policy in POLICIES {
        let (_folder, path) = stats_file();
        let options = ["--policy", policy, "--socket", &socket, "--quiet"];
        let told = outcome(&mut workload.under_oversub(&options, &path));
        assert_right(&told);
        let counted = stats(&path);
        let unsupported = counted["unsupported_calls"].as_object();
        assert!(
            unsupported.is_none_or(|calls| calls.is_empty()),
            "{policy}: {counted}"
        );
    }
}

#[test]
fn sweep() {
    right_under_every_policy(&Workload::new("sweep", 1.5, 4));
}

#[test]
fn train_with_stream_ordered_allocation() {
    let arguments = &["--allocator", "async"];
    right_under_every_policy(&Workload {
        arguments,
        ..Workload::new("train", 1.5, 3)
    });
}

#[test]
fn train_with_a_caching_allocator() {
    let arguments = &["--allocator", "caching"];
    right_under_every_policy(&Workload {
        arguments,
        ..Workload::new("train", 1.5, 3)
    });
}

#[test]
fn gemm() {
    right_under_every_policy(&Workload::new("gemm", 1.5, 1));
}

#[test]
fn gather() {
    right_under_every_policy(&Workload::new("gather", 1.5, 2));
}

#[test]
fn fits() {
    right_under_every_policy(&Workload::new("fits", 0.5, 3));
}

#[test]
fn the_working_set_really_is_beyond_the_device() {
    let (_folder, path) = stats_file();
    let workload = Workload::new("sweep", 1.5, 3);
    let told = outcome(&mut workload.under_oversub(&["--policy", "driver", "--quiet"], &path));
    assert_right(&told);
    let counted = stats(&path);
    let number = |name: &str| counted[name].as_u64().unwrap_or(0);
    assert!(
        number("faults") > 0 && number("bytes_out") > 0,
        "nothing was paged: {counted}"
    );
    assert!(
        number("managed_peak_resident_bytes") <= number("device_bytes"),
        "{counted}"
    );
}
