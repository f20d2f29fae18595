//! The other commands: one JSON value on standard output, a table for people, exit status.

use oversub_tests::daemon::Daemon;
use oversub_tests::program::{outcome, oversub};
use serde_json::Value;

/// On a busy machine a program of fewer is over before the daemon has answered.
const ITERATIONS: &str = "40";

fn json(text: &str) -> Value {
    assert_eq!(text.lines().count(), 1, "not one line: {text}");
    serde_json::from_str(text).unwrap_or_else(|error| panic!("not JSON ({error}): {text}"))
}

#[test]
fn demo_prints_one_json_value_with_every_mode_and_a_true_bound() {
    let told = outcome(&mut oversub(&[
        "demo",
        "--device",
        "soft",
        "--json",
        "--memory",
        "64MiB",
        "--link",
        "4GB/s",
        "--iterations",
        ITERATIONS,
        "--workloads",
        "sweep,fits",
        "--policies",
        "oversub,deepum",
    ]));
    assert!(told.status.success(), "{told:?}");
    assert!(
        told.err.contains("sweep: driver"),
        "progress is shown: {told:?}"
    );
    let result = json(&told.out);
    assert_eq!(
        (&result["device"], result["ratio"].as_f64()),
        (&"soft".into(), Some(1.5))
    );
    assert_eq!(result["memory_bytes"], 64 << 20);
    let workloads = result["workloads"].as_array().unwrap();
    assert_eq!(workloads.len(), 2);
    for workload in workloads {
        assert_eq!(workload["checksum_ok"], true, "{workload}");
        let runs = workload["runs"].as_array().unwrap();
        let modes: Vec<_> = runs.iter().filter_map(|run| run["mode"].as_str()).collect();
        assert_eq!(modes, ["resident", "driver", "oversub", "deepum"]);
        assert_eq!(
            runs[0]["faults"], 0,
            "the resident mode pages nothing: {workload}"
        );
    }
    let sweep = &workloads[0];
    assert!(sweep["runs"][1]["faults"].as_u64().unwrap() > 0, "{sweep}");
    assert!(
        sweep["runs"][2]["prefetch"]["issued_bytes"]
            .as_u64()
            .unwrap()
            > 0,
        "{sweep}"
    );
    let resident = sweep["runs"][0]["seconds"].as_f64().unwrap();
    // 96 MiB over 64 MiB: a third has to move, each iteration, whatever is done.
    let link_bound = ITERATIONS.parse::<f64>().unwrap() * f64::from(32 << 20) / 4e9;
    let bound = sweep["bound_s"].as_f64().unwrap();
    assert!((bound - resident.max(link_bound)).abs() < 1e-3, "{sweep}");
}

#[test]
fn demo_prints_a_table_for_people() {
    let told = outcome(&mut oversub(&[
        "demo",
        "--device",
        "soft",
        "--memory",
        "64MiB",
        "--link",
        "4GB/s",
        "--iterations",
        ITERATIONS,
        "--workloads",
        "fits",
    ]));
    assert!(told.status.success(), "{told:?}");
    for word in [
        "fits", "resident", "driver", "oversub", "speed-up", "of bound", "equal",
    ] {
        assert!(told.out.contains(word), "{word} is missing: {}", told.out);
    }
}

#[test]
fn status_without_a_daemon_fails_and_says_what_to_do() {
    let told = outcome(&mut oversub(&[
        "status",
        "--socket",
        "/does/not/exist/oversubd.sock",
    ]));
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    assert!(
        told.out.is_empty() && told.err.contains("/does/not/exist"),
        "{told:?}"
    );
}

#[test]
fn status_and_doctor_print_one_json_value() {
    let daemon = Daemon::start();
    assert_eq!(daemon.status()["sessions"], Value::Array(Vec::new()));
    let told = outcome(oversub(&["doctor", "--json", "--socket"]).arg(daemon.socket()));
    let result = json(&told.out);
    let checks = result["checks"].as_array().unwrap();
    let level = |name: &str| {
        let check = checks.iter().find(|check| check["name"] == name);
        check.unwrap_or_else(|| panic!("no check of {name}: {result}"))["level"].clone()
    };
    for name in [
        "liboversub.so",
        "liboversub_softgpu.so",
        "oversubd",
        "daemon",
    ] {
        assert_eq!(level(name), "ok", "{result}");
    }
    assert_eq!(told.status.success(), result["ok"] == true);
    let signals = result["signals"].as_array().unwrap();
    for signal in signals {
        let told = |field: &str| signal[field].as_str().is_some_and(|text| !text.is_empty());
        let fields = ["signal", "source", "tier", "reason"];
        assert!(fields.into_iter().all(told), "{signal}");
    }
    let names = signals.iter().map(|signal| signal["signal"].as_str());
    for name in ["launches", "progress", "faults", "migrations", "evictions"] {
        assert!(names.clone().any(|found| found == Some(name)), "{result}");
    }
}

#[test]
fn doctor_fails_where_something_needed_is_missing() {
    let empty = tempfile::tempdir().unwrap();
    let told = outcome(oversub(&["doctor"]).env("OVERSUB_LIB_DIR", empty.path()));
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    assert!(
        told.out.contains("FAIL  liboversub.so") && told.out.contains("->"),
        "{told:?}"
    );
}

#[test]
fn help_of_every_command_is_there() {
    for command in ["demo", "run", "bench", "status", "doctor"] {
        let told = outcome(&mut oversub(&[command, "--help"]));
        assert!(
            told.status.success() && told.out.contains("Usage:"),
            "{command}: {told:?}"
        );
    }
}

#[test]
fn attach_says_why_it_cannot_and_leaves_nothing_behind() {
    let mut idle = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .expect("sleep starts");
    let pid = idle.id().to_string();
    let nowhere = "/nonexistent/oversubd.sock";
    let told = outcome(&mut oversub(&["attach", "--socket", nowhere, &pid]));
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    assert!(
        told.err.contains("starting one for this program"),
        "{told:?}"
    );
    assert!(told.err.contains(&format!("process {pid}")), "{told:?}");
    assert_eq!(told.out, "");
    let told = outcome(&mut oversub(&[
        "attach", "--socket", nowhere, "--leave", &pid,
    ]));
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    assert!(told.err.contains("needs one that stays"), "{told:?}");
    idle.kill().expect("killed");
    idle.wait().expect("waited for");
    for wrong in [&["attach"][..], &["attach", "0"], &["attach", "x"]] {
        assert_eq!(outcome(&mut oversub(wrong)).status.code(), Some(2));
    }
}

#[test]
fn attach_serves_through_a_daemon_that_is_there() {
    let daemon = Daemon::start();
    let socket = daemon.socket().display().to_string();
    let own = std::process::id().to_string();
    let told = outcome(&mut oversub(&["attach", "--socket", &socket, &own]));
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    assert!(!told.err.contains("starting one"), "{told:?}");
    assert!(
        told.err
            .contains(&format!("cannot attach to process {own}")),
        "{told:?}"
    );
    let told = outcome(&mut oversub(&[
        "attach",
        "--socket",
        &socket,
        "--other-user",
        &own,
    ]));
    assert_eq!(told.status.code(), Some(2), "{told:?}");
    let told = outcome(&mut oversub(&[
        "attach", "--socket", &socket, "--stop", &own,
    ]));
    assert!(told.err.contains("not attached"), "{told:?}");
}
