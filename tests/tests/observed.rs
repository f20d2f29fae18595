//! What the daemon shows is what happened: metrics, status and doctor against the soft
//! GPU's own counters.

use std::fs::File;
use std::process::Stdio;

use oversub_tests::daemon::Daemon;
use oversub_tests::metrics::{get, lint, sum};
use oversub_tests::program::{finish, outcome, oversub, wait_for};
use oversub_tests::skipped;
use oversub_tests::workload::{Workload, assert_right, stats, stats_file};
use serde_json::Value;

#[test]
fn metrics_are_lint_clean_and_grow_while_a_program_runs() {
    let daemon = Daemon::start();
    let (_folder, path) = stats_file();
    let socket = daemon.socket().to_string_lossy().into_owned();
    let child = Workload::new("sweep", 1.5, 30)
        .under_oversub(&["--quiet", "--socket", &socket], &path)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let during = wait_for("prefetches in the metrics", || {
        let text = get(daemon.http(), "/metrics");
        (sum(&text, "oversub_prefetch_issued_bytes_total", "session=\"") > 0.0).then_some(text)
    });
    assert_eq!(sum(&during, "oversub_sessions", ""), 1.0, "{during}");
    assert_right(&finish(child));
    let after = wait_for("the session to end", || {
        let text = get(daemon.http(), "/metrics");
        (sum(&text, "oversub_sessions", "") == 0.0).then_some(text)
    });
    assert!(
        sum(&after, "oversub_launches_total", "") >= sum(&during, "oversub_launches_total", "")
    );
    for text in [&during, &after] {
        match lint(text) {
            Some(complaints) => assert_eq!(complaints.trim(), "", "{text}"),
            None => skipped("promtool check metrics", "promtool is not installed"),
        }
    }
    assert!(!get(daemon.http(), "/healthz").is_empty());
}

/// Whether the daemon's probes on the soft GPU can work here; says why if not.
fn probes(daemon: &Daemon) -> bool {
    let mut command = oversub(&["doctor", "--json", "--socket"]);
    let told = outcome(command.arg(daemon.socket()));
    let checks: Value = serde_json::from_str(&told.out).expect("doctor prints JSON");
    let off = checks["checks"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|check| check["name"] == "probes");
    if let Some(off) = off {
        skipped(
            "faults by probes against faults counted",
            off["found"].as_str().unwrap_or(""),
        );
    }
    off.is_none()
}

/// A daemon whose probes are in the soft GPU, and its socket; none where they cannot work.
fn seeing_daemon() -> Option<(Daemon, String)> {
    let daemon = Daemon::start();
    if !probes(&daemon) {
        return None;
    }
    let socket = daemon.socket().to_string_lossy().into_owned();
    // The probes are put into a soft GPU when its first session begins, which takes a
    // moment; they stay for all that follow.
    let (_folder, path) = stats_file();
    let first = Workload::new("fits", 0.5, 1);
    assert_right(&outcome(
        &mut first.under_oversub(&["--quiet", "--socket", &socket], &path),
    ));
    Some((daemon, socket))
}

/// Bytes that came to the device while `gemm` ran on a soft GPU with a slow link.
fn brought(socket: &str, policy: &str) -> u64 {
    const DEVICE_BYTES: u64 = 256 << 20;
    let (_folder, path) = stats_file();
    let workload = Workload {
        bytes: DEVICE_BYTES * 3 / 2,
        ..Workload::new("gemm", 1.5, 6)
    };
    let options = ["--quiet", "--policy", policy, "--socket", socket];
    let command = &mut workload.under_oversub(&options, &path);
    command
        .env("OVERSUB_SOFTGPU_MEMORY", DEVICE_BYTES.to_string())
        .env("OVERSUB_SOFTGPU_LINK_IN", "1GB/s")
        .env("OVERSUB_SOFTGPU_LINK_OUT", "1GB/s");
    assert_right(&outcome(command));
    let counted = stats(&path);
    counted["bytes_in"].as_u64().expect("it is counted")
}

#[test]
fn tiles_are_fetched_without_others_though_launches_follow_each_other_at_once() {
    let Some((_daemon, socket)) = seeing_daemon() else {
        return;
    };
    // The driver keeps a part of them by chance. Whoever takes a tile to go on into others brings
    // more than it does; who knows where it ends, a fifth less.
    let [with, without] = ["foresight", "driver"].map(|policy| brought(&socket, policy));
    assert!(
        with * 10 < without * 9,
        "{with} bytes, {without} under the driver alone"
    );
}

#[test]
fn probes_see_the_faults_and_the_bytes_that_the_soft_gpu_counts() {
    let Some((daemon, socket)) = seeing_daemon() else {
        return;
    };
    // Without prefetches the driver pages: many faults, and both directions at work.
    for (policy, workload) in [
        ("demand", Workload::new("sweep", 1.5, 8)),
        ("foresight", Workload::new("train", 1.5, 12)),
    ] {
        let (folder, path) = stats_file();
        let start = folder.path().join("start");
        let options = ["--quiet", "--policy", policy, "--socket", &socket];
        let command = &mut workload.under_oversub(&options, &path);
        let child = command
            .arg("--start-file")
            .arg(&start)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        // What happens before its session begins is nobody's.
        wait_for("the session to begin", || {
            let sessions = daemon.status()["sessions"].as_array().cloned()?;
            sessions
                .iter()
                .any(|session| session["pid"] == pid)
                .then_some(())
        });
        File::create(start).unwrap();
        assert_right(&finish(child));
        let session = wait_for("the session to be closed", || {
            let closed = daemon.status()["closed_sessions"].as_array().cloned()?;
            closed.into_iter().find(|session| session["pid"] == pid)
        });
        let counted = stats(&path);
        let seen = &session["stats"];
        let total = |name: &str| -> u64 {
            seen[name]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_u64)
                .sum()
        };
        // Nothing may be seen that was not there, and hardly anything may be missing.
        let pairs = [
            (seen["faults"].as_u64().unwrap(), &counted["faults"]),
            (total("migrated_in_bytes"), &counted["bytes_in"]),
            (total("migrated_out_bytes"), &counted["bytes_out"]),
        ];
        for (seen, counted) in pairs {
            let counted = counted.as_u64().unwrap();
            let missing = counted.checked_sub(seen);
            assert!(
                missing.is_some_and(|missing| missing * 50 <= counted),
                "{policy}: {seen} seen of {counted}: {session}"
            );
        }
    }
}

#[test]
fn rows_that_nobody_can_foretell_are_read_where_they_lie() {
    let daemon = Daemon::start();
    if !probes(&daemon) {
        return;
    }
    let socket = daemon.socket().to_string_lossy().into_owned();
    let counted = |policy: &str| {
        let (_folder, path) = stats_file();
        let options = ["--quiet", "--policy", policy, "--socket", &socket];
        let gather = Workload::new("gather", 1.5, 12);
        assert_right(&outcome(&mut gather.under_oversub(&options, &path)));
        stats(&path)
    };
    // The probes are in the soft GPU from the first session's begin on.
    let number = |counted: &Value, name: &str| counted[name].as_u64().unwrap();
    let alone = counted("driver");
    let foresight = counted("foresight");
    assert_eq!(number(&alone, "remote_bytes"), 0);
    assert!(number(&foresight, "remote_bytes") > 0, "{foresight}");
    let [alone, foresight] = [alone, foresight].map(|run| number(&run, "batches"));
    assert!(
        foresight * 2 < alone,
        "{foresight} batches of faults, {alone} by the driver alone"
    );
}

#[test]
fn a_finished_session_stays_in_the_status_with_its_totals() {
    let daemon = Daemon::start();
    let (_folder, path) = stats_file();
    let socket = daemon.socket().to_string_lossy().into_owned();
    let workload = Workload::new("sweep", 1.5, 3);
    let options = ["--quiet", "--socket", &socket];
    let command = &mut workload.under_oversub(&options, &path);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    assert_right(&finish(child));
    let session = wait_for("the session to be closed", || {
        let closed = daemon.status()["closed_sessions"].as_array().cloned()?;
        closed.into_iter().find(|session| session["pid"] == pid)
    });
    let launches = session["stats"]["launches"].as_u64().unwrap_or(0);
    let kernels = stats(&path)["kernels"].as_u64().unwrap_or(u64::MAX);
    // Launches made before the session began are nobody's.
    assert!(
        (1..=kernels).contains(&launches),
        "{launches} of {kernels}: {session}"
    );
}
