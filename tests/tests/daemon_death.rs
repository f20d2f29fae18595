//! The daemon may be killed at any moment: the program ends with the right result, and
//! takes up with a restarted daemon again.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use oversub_tests::daemon::Daemon;
use oversub_tests::program::{finish, outcome, wait_for};
use oversub_tests::workload::{Workload, assert_right, stats_file};
use oversub_workloads::sequence;

fn train(iterations: u32) -> Workload {
    Workload {
        arguments: &["--allocator", "async"],
        ..Workload::new("train", 1.5, iterations)
    }
}

fn start(workload: &Workload, daemon: &Daemon, stats: &std::path::Path) -> Child {
    let socket = daemon.socket().to_string_lossy().into_owned();
    workload
        .under_oversub(&["--quiet", "--socket", &socket], stats)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts the workload")
}

#[test]
fn killed_at_ten_random_moments_it_changes_no_result() {
    let seed = std::process::id();
    let mut daemon = Daemon::start();
    let (_folder, stats) = stats_file();
    let workload = train(4);
    let socket = daemon.socket().to_string_lossy().into_owned();
    let begun = Instant::now();
    assert_right(&outcome(
        &mut workload.under_oversub(&["--quiet", "--socket", &socket], &stats),
    ));
    let whole = begun.elapsed();
    for round in 0..10 {
        let share = f64::from(sequence::word(round, seed)) / f64::from(u32::MAX);
        let moment = whole.mul_f64(share);
        eprintln!("seed {seed}, round {round}: killed after {moment:?} of about {whole:?}");
        let child = start(&workload, &daemon, &stats);
        std::thread::sleep(moment);
        daemon.kill();
        // In every other round it comes back while the program still runs.
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_millis(50));
            daemon.restart();
            assert_right(&finish(child));
        } else {
            assert_right(&finish(child));
            daemon.restart();
        }
    }
}

#[test]
fn a_restarted_daemon_is_used_again() {
    let mut daemon = Daemon::start();
    let (_folder, stats) = stats_file();
    let child = start(&train(40), &daemon, &stats);
    let pid = child.id();
    let launches = |daemon: &Daemon| {
        let sessions = daemon.status()["sessions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let session = sessions.into_iter().find(|session| session["pid"] == pid)?;
        session["stats"]["launches"]
            .as_u64()
            .filter(|launches| *launches > 0)
    };
    wait_for("the session to begin", || launches(&daemon));
    daemon.kill();
    daemon.restart();
    wait_for("the session to come back", || launches(&daemon));
    assert_right(&finish(child));
}
