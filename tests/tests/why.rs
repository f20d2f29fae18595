//! Asked why a block is where it is, oversub names the reason: of a simulated program at any
//! launch, and of a program that runs.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use oversub_tests::daemon::{Daemon, control};
use oversub_tests::program::{Outcome, outcome, oversub, wait_for};
use oversub_tests::trace::{BLOCK, sweep, write};
use oversub_tests::workload::{Workload, stats_file};
use serde_json::Value;
use tempfile::TempDir;

const BASE: u64 = 1 << 40;
/// Launches of one iteration of the trace: one for each block, and one more.
const CYCLE: u64 = 129;

/// A folder with one trace: 130 blocks, six iterations.
fn one_trace() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("makes a folder");
    let trace = write(folder.path(), "small", &sweep(128, 6, 500));
    (folder, trace)
}

fn explain(trace: &Path, policy: &str, what: &str, more: &[&str]) -> Outcome {
    let arguments = ["--policy", policy, "--ratio", "1.5", "--explain", what];
    outcome(oversub(&["simulate"]).arg(trace).args(arguments).args(more))
}

fn json(told: &Outcome) -> Value {
    assert!(told.status.success(), "{told:?}");
    assert_eq!(told.out.lines().count(), 1, "not one line: {}", told.out);
    serde_json::from_str(&told.out).unwrap_or_else(|error| panic!("not JSON ({error})"))
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn of_every_block_of_a_simulated_program_it_is_said_why_it_is_there() {
    let (_folder, trace) = one_trace();
    let launch = 3 * CYCLE + 10;
    let (mut kept, mut away) = (0, 0);
    for block in (0..128).step_by(8) {
        let what = format!("{block}@{launch}");
        let answer = json(&explain(&trace, "foresight", &what, &["--json"]));
        let told = &answer["block"];
        assert_eq!(number(&told["address"]), BASE + block * BLOCK, "{answer}");
        assert_eq!(number(&answer["launch"]), launch);
        // One block a launch, in order. A pointer may be taken to mean more than that.
        let into = (block + CYCLE - 10) % CYCLE;
        let next = number(&told["next_use"]);
        assert!((launch..=launch + into).contains(&next), "{answer}");
        let standing = &told["standing"];
        let mut ordered = told["decisions"].as_array().unwrap().iter();
        let last = ordered.rfind(|decision| decision["reason"] != Value::Null);
        match (told["place"].as_str(), standing["word"].as_str()) {
            (Some("device"), Some("kept")) => {
                kept += 1;
                let victim = standing["victim_use"].as_u64().unwrap_or(u64::MAX);
                assert!(victim >= next, "{answer}");
            }
            (Some("host"), Some("waits")) => {
                let last = last.unwrap_or(&Value::Null);
                let reason = last["reason"]["word"].as_str();
                // Otherwise the driver took it.
                if last["what"] == "evict" {
                    away += 1;
                    let known = ["exchange", "reserve", "births"];
                    assert!(known.map(Some).contains(&reason), "{answer}");
                }
            }
            (Some("incoming" | "outgoing"), Some("under-way")) => {}
            (_, Some("left-alone")) => {}
            other => panic!("{other:?}: {answer}"),
        }
    }
    assert!(kept > 0 && away > 0, "{kept} kept, {away} away");
}

#[test]
fn the_same_is_told_in_words() {
    let (_folder, trace) = one_trace();
    let told = explain(&trace, "foresight", "0x10000000000@400", &[]);
    assert!(told.status.success(), "{told:?}");
    for words in [
        "block 0 (0x10000000000)",
        "when launch 400 (update) begins",
        "used next by launch",
        "before:",
        "fetched: a launch needs it",
        "from then on:",
    ] {
        assert!(told.out.contains(words), "{words} is missing: {}", told.out);
    }
}

#[test]
fn the_published_policy_says_why_as_well_and_a_policy_that_is_no_engine_cannot() {
    let (_folder, trace) = one_trace();
    let answer = json(&explain(&trace, "deepum", "5@500", &["--json"]));
    let decisions = answer["block"]["decisions"].as_array().unwrap();
    let reasons: Vec<_> = decisions
        .iter()
        .filter_map(|d| d["reason"]["word"].as_str())
        .collect();
    assert!(reasons.contains(&"correlated"), "{answer}");
    let told = explain(&trace, "driver", "5@500", &[]);
    assert_eq!(told.status.code(), Some(2), "{told:?}");
    assert!(
        told.err.contains("driver") && told.err.contains("cannot say why"),
        "{told:?}"
    );
}

#[test]
fn what_does_not_exist_is_refused_by_name() {
    let (_folder, trace) = one_trace();
    for (what, words) in [
        ("5@774", ["launches 0 to 773", "774"]),
        ("130@5", ["blocks 0 to 129", "130"]),
        ("0x5000@5", ["never has memory", "0x5000"]),
        ("5", ["BLOCK@LAUNCH", "for example"]),
        ("x@5", ["BLOCK@LAUNCH", "x@5"]),
    ] {
        let told = explain(&trace, "foresight", what, &[]);
        assert_eq!(told.status.code(), Some(2), "{told:?}");
        assert!(told.out.is_empty(), "{told:?}");
        for word in words {
            assert!(told.err.contains(word), "{word} is missing: {}", told.err);
        }
    }
    let told = explain(&trace, "foresight,driver", "5@5", &[]);
    assert_eq!(told.status.code(), Some(2), "{told:?}");
    assert!(told.err.contains("one run"), "{told:?}");
}

#[test]
fn the_plan_is_in_the_timeline_with_its_deadlines() {
    let (folder, trace) = one_trace();
    let file = folder.path().join("t.json");
    let told = outcome(
        oversub(&["simulate"])
            .arg(&trace)
            .args(["--policy", "foresight", "--ratio", "1.5", "--timeline"])
            .arg(&file),
    );
    assert!(told.status.success(), "{told:?}");
    let text = std::fs::read_to_string(&file).expect("the timeline is written");
    let timeline: Value = serde_json::from_str(&text).expect("it is JSON");
    let events = timeline["traceEvents"].as_array().unwrap();
    let planned = |track: &str, phase: &str| -> Vec<&Value> {
        let of = |event: &&Value| event["cat"] == track && event["ph"] == phase;
        events.iter().filter(of).collect()
    };
    let fetches = planned("planned fetches", "b");
    assert_eq!(fetches.len(), planned("planned fetches", "e").len());
    let began = |launch: u64| {
        let kernel = |event: &&Value| event["ph"] == "X" && event["args"]["launch"] == launch;
        events
            .iter()
            .find(kernel)
            .and_then(|event| event["ts"].as_f64())
    };
    let mut deadlines = 0;
    for fetch in fetches.iter().filter(|fetch| fetch["name"] == "fetch") {
        let args = &fetch["args"];
        if let Some(deadline) = args["deadline_us"].as_f64() {
            deadlines += 1;
            assert_eq!(
                began(number(&args["needed_by_launch"])),
                Some(deadline),
                "{fetch}"
            );
            assert!(deadline >= fetch["ts"].as_f64().unwrap(), "{fetch}");
        }
    }
    assert!(deadlines > 50, "{deadlines}");
    assert!(!planned("planned evictions", "b").is_empty());
    let counters = events.iter().filter(|event| event["ph"] == "C");
    let names: Vec<_> = counters
        .filter_map(|event| event["name"].as_str())
        .collect();
    for name in [
        "kept: needed within launches",
        "fetched: needed within launches",
    ] {
        assert!(names.contains(&name), "{name}");
    }
}

/// A program that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What `oversub status --why` says of a daemon's sessions.
fn why(daemon: &Daemon, arguments: &[&str]) -> Outcome {
    outcome(
        oversub(&["status", "--why"])
            .args(arguments)
            .arg("--socket")
            .arg(daemon.socket()),
    )
}

#[test]
fn of_a_running_program_it_is_said_why_its_blocks_moved() {
    let daemon = Daemon::start();
    let (_folder, path) = stats_file();
    let socket = daemon.socket().to_string_lossy().into_owned();
    // Long enough to be asked, however slow the machine is; it ends with the test.
    let program = Workload::new("sweep", 1.5, 100_000)
        .under_oversub(&["--quiet", "--socket", &socket], &path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _program = Running(program);
    // An eviction for the sake of a fetch comes once the cycle is known.
    let evicted = wait_for("an eviction with its reason", || {
        let told = why(&daemon, &["--json", "--newest", "500"]);
        let sessions: Value = serde_json::from_str(&told.out).ok()?;
        let decisions = sessions[0]["decisions"].as_array()?.clone();
        let evicted = |d: &Value| d["what"] == "evict" && d["reason"]["word"] == "exchange";
        decisions.into_iter().rfind(evicted)
    });
    let rival = number(&evicted["rival_use"]);
    let own = evicted["next_use"].as_u64().unwrap_or(u64::MAX);
    assert!(
        own > rival,
        "it is needed later than what comes instead: {evicted}"
    );
    assert!(number(&evicted["cost_us"]) > 0, "{evicted}");
    let address = format!("{:#x}", number(&evicted["address"]));
    let told = why(&daemon, &[&address, "--json"]);
    let sessions = json(&told);
    let block = &sessions[0]["block"];
    assert_eq!(block["address"], evicted["address"], "{sessions}");
    let decisions = block["decisions"].as_array().unwrap();
    assert!(!decisions.is_empty(), "{sessions}");
    let words = why(&daemon, &[&address]);
    assert!(
        words.out.contains(&address) && words.out.contains("decisions:"),
        "{words:?}"
    );
    let unknown = why(&daemon, &["0x1000"]);
    assert_eq!(unknown.status.code(), Some(1), "{unknown:?}");
    assert!(
        unknown.err.contains("0x1000 is in no managed memory"),
        "{unknown:?}"
    );
    let other = why(&daemon, &["--session", "999"]);
    assert_eq!(other.status.code(), Some(1), "{other:?}");
    assert!(other.err.contains("session 999"), "{other:?}");
}

#[test]
fn without_a_program_there_is_nothing_to_say_and_a_wrong_question_is_refused() {
    let daemon = Daemon::start();
    let told = why(&daemon, &[]);
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    assert!(told.err.contains("no program is connected"), "{told:?}");
    let told = why(&daemon, &["here"]);
    assert_eq!(told.status.code(), Some(2), "{told:?}");
    assert!(told.err.contains("no address"), "{told:?}");
    let line = "{\"version\":1,\"request\":{\"why\":{\"newest\":5,\"of\":3}}}\n";
    let answer = control(&daemon.socket(), line);
    assert!(
        answer.contains("error") && answer.contains("of"),
        "{answer}"
    );
}
