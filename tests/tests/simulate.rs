//! `oversub simulate` and `oversub plan`: results, determinism, exit status, messages.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use oversub_tests::program::{Outcome, outcome, oversub};
use oversub_tests::trace::{BLOCK, sweep, write};
use serde_json::Value;
use tempfile::TempDir;

/// A folder with one trace: 66 blocks, six iterations.
fn one_trace() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("makes a folder");
    let trace = write(folder.path(), "small", &sweep(64, 6, 500));
    (folder, trace)
}

fn simulate(traces: &[&Path], arguments: &[&str]) -> Outcome {
    outcome(oversub(&["simulate"]).args(traces).args(arguments))
}

fn json(told: &Outcome) -> Value {
    assert!(told.status.success(), "{told:?}");
    assert_eq!(told.out.lines().count(), 1, "not one line: {}", told.out);
    serde_json::from_str(&told.out).unwrap_or_else(|error| panic!("not JSON ({error})"))
}

fn keys(value: &Value) -> BTreeSet<&str> {
    let object = value
        .as_object()
        .unwrap_or_else(|| panic!("no object: {value}"));
    object.keys().map(String::as_str).collect()
}

fn number(value: &Value, key: &str) -> f64 {
    value[key]
        .as_f64()
        .unwrap_or_else(|| panic!("no number {key}: {value}"))
}

/// Exit status 2, nothing on standard output, and these words in the message.
fn refused(told: &Outcome, words: &[&str]) {
    assert_eq!(told.status.code(), Some(2), "{told:?}");
    assert!(told.out.is_empty(), "{told:?}");
    for word in words {
        assert!(told.err.contains(word), "{word} is missing: {}", told.err);
    }
}

#[test]
fn json_has_one_object_of_this_shape_for_each_trace_memory_and_policy() {
    let (folder, trace) = one_trace();
    let other = write(folder.path(), "other", &sweep(32, 4, 100));
    let arguments = [
        "--policy",
        "driver,foresight",
        "--ratio",
        "1.25,2",
        "--json",
    ];
    let told = simulate(&[&trace, &other], &arguments);
    let runs = json(&told);
    let runs = runs.as_array().unwrap();
    let of: Vec<_> = runs
        .iter()
        .map(|run| {
            (
                run["trace"].as_str().unwrap(),
                run["policy"].as_str().unwrap(),
            )
        })
        .collect();
    let twice = |name| {
        [
            (name, "driver"),
            (name, "foresight"),
            (name, "driver"),
            (name, "foresight"),
        ]
    };
    assert_eq!(of, [twice("small"), twice("other")].concat());
    for run in runs {
        assert_eq!(
            keys(run),
            BTreeSet::from([
                "trace",
                "policy",
                "memory_bytes",
                "iteration_us",
                "first_iteration_us",
                "iterations_us",
                "ideal_us",
                "bound_us",
                "bound",
                "bound_class",
                "future_bound_us",
                "bytes_in",
                "bytes_out",
                "host_read",
                "host_written",
                "faults",
                "prefetch",
                "engine",
            ])
        );
        let prefetch = BTreeSet::from(["issued", "useful", "late", "wasted"]);
        assert_eq!(keys(&run["prefetch"]), prefetch);
        for count in ["memory_bytes", "bytes_in", "bytes_out", "faults"] {
            assert!(run[count].is_u64(), "{count}: {run}");
        }
        if run["policy"] == "foresight" {
            assert_eq!(
                keys(&run["engine"]),
                BTreeSet::from(["ns_per_event", "table_bytes"])
            );
            assert!(run["engine"]["table_bytes"].is_u64(), "{run}");
            assert!(
                run["engine"]["ns_per_event"].is_null(),
                "differs from run to run: {run}"
            );
        } else {
            assert!(run["engine"].is_null(), "the driver is no engine: {run}");
        }
    }
    let first = &runs[0];
    assert_eq!(first["memory_bytes"], 66 * BLOCK * 4 / 5);
    assert_eq!(number(first, "ideal_us"), 65.0 * 500.0);
    assert!(
        told.err.contains("small: foresight"),
        "progress is shown: {}",
        told.err
    );
}

#[test]
fn noise_changes_times_by_seed_and_within_its_percent() {
    let (_folder, trace) = one_trace();
    let ideal = |noise: &[&str]| {
        let always = ["--policy", "driver", "--ratio", "0.5", "--json"];
        let told = simulate(&[&trace], &[&always[..], noise].concat());
        number(&json(&told)[0], "ideal_us")
    };
    let plain = ideal(&[]);
    let noisy = ideal(&["--noise", "20"]);
    assert!(noisy != plain, "{noisy}");
    assert!((0.8..1.2).contains(&(noisy / plain)), "{noisy} of {plain}");
    assert_eq!(ideal(&["--noise", "20"]), noisy);
    assert_ne!(ideal(&["--noise", "20", "--seed", "1"]), noisy);
    assert_eq!(ideal(&["--noise", "0"]), plain);
    refused(
        &simulate(&[&trace], &["--policy", "driver", "--noise", "101"]),
        &["--noise", "from 0 to 100"],
    );
}

#[test]
fn what_was_recorded_is_repeated_and_each_iteration_is_told() {
    let (_folder, trace) = one_trace();
    let always = ["--policy", "foresight", "--ratio", "1.5"];
    let times = |more: &[&str]| {
        let told = simulate(&[&trace], &[&always[..], more, &["--json"]].concat());
        let all = json(&told)[0]["iterations_us"].clone();
        let times = all.as_array().expect("an array of times").iter();
        times.filter_map(Value::as_f64).collect::<Vec<f64>>()
    };
    let (recorded, long) = (times(&[]), times(&["--repeat", "20"]));
    assert_eq!((recorded.len(), long.len()), (6, 20));
    assert_eq!(recorded[..5], long[..5]);
    assert!(long.iter().all(|us| *us > 0.0), "{long:?}");
    let table = ["--repeat", "20", "--iterations"];
    let told = simulate(&[&trace], &[&always[..], &table].concat());
    assert!(told.out.starts_with("small foresight "), "{told:?}");
    // Trace, policy, memory and its unit.
    assert_eq!(told.out.split_whitespace().count(), 4 + 20, "{told:?}");
}

#[test]
fn the_same_command_prints_the_same_bytes_with_any_number_of_threads() {
    let (folder, trace) = one_trace();
    let other = write(folder.path(), "other", &sweep(32, 4, 100));
    let run = |threads: &str, json: bool| {
        let mut arguments = vec![
            "--policy",
            "all",
            "--ratio",
            "1.1,1.5",
            "--threads",
            threads,
        ];
        arguments.extend(json.then_some("--json"));
        simulate(&[&trace, &other], &arguments).out
    };
    for json in [true, false] {
        let first = run("1", json);
        assert!(!first.is_empty());
        assert_eq!(run("1", json), first, "a second run");
        assert_eq!(run("2", json), first, "two threads");
    }
}

#[test]
fn no_policy_beats_the_bound_and_none_stalls_where_all_fits() {
    let (_folder, trace) = one_trace();
    let arguments = ["--policy", "all", "--ratio", "1,1.5,3", "--json"];
    let runs = json(&simulate(&[&trace], &arguments));
    for run in runs.as_array().unwrap() {
        let (time, bound) = (number(run, "iteration_us"), number(run, "bound_us"));
        assert!(time >= bound && bound >= number(run, "ideal_us"), "{run}");
        assert!(time >= number(run, "future_bound_us"), "{run}");
        if run["memory_bytes"] == 66 * BLOCK {
            assert_eq!(time, number(run, "ideal_us"), "{run}");
        }
    }
}

#[test]
fn the_engines_cost_is_measured_only_where_asked_for() {
    let (_folder, trace) = one_trace();
    let arguments = [
        "--policy",
        "foresight",
        "--ratio",
        "1.5",
        "--engine-cost",
        "--json",
    ];
    let runs = json(&simulate(&[&trace], &arguments));
    assert!(
        runs[0]["engine"]["ns_per_event"].as_f64().unwrap() > 0.0,
        "{runs}"
    );
}

#[test]
fn lifetimes_tell_policies_and_bounds_what_is_dead() {
    let (_folder, trace) = one_trace();
    let out = |lifetimes: &str| {
        let arguments = [
            "--policy",
            "opt",
            "--ratio",
            "2",
            "--lifetimes",
            lifetimes,
            "--json",
        ];
        let runs = json(&simulate(&[&trace], &arguments));
        number(&runs[0], "bytes_out")
    };
    assert!(
        out("on") < out("off"),
        "the scratch part is dropped, not moved"
    );
}

#[test]
fn a_folder_stands_for_its_traces() {
    let (folder, _) = one_trace();
    write(folder.path(), "also", &sweep(32, 4, 100));
    let arguments = ["--policy", "driver", "--memory", "40MiB", "--json"];
    let runs = json(&simulate(&[folder.path()], &arguments));
    let names: Vec<_> = runs
        .as_array()
        .unwrap()
        .iter()
        .map(|run| &run["trace"])
        .collect();
    assert_eq!(names, ["also", "small"]);
    assert_eq!(runs[0]["memory_bytes"], 40 << 20);
}

#[test]
fn the_table_names_what_was_run_and_how_far_from_the_bound_it_is() {
    let (_folder, trace) = one_trace();
    let told = simulate(&[&trace], &["--policy", "driver", "--ratio", "1.5"]);
    assert!(told.status.success(), "{told:?}");
    for word in [
        "small",
        "132 MiB",
        "ratio 1.50",
        "driver",
        "over bound",
        "over ideal",
        "faults",
    ] {
        assert!(told.out.contains(word), "{word} is missing: {}", told.out);
    }
}

#[test]
fn the_list_names_every_policy_and_machine() {
    let told = outcome(&mut oversub(&["simulate", "--list", "--json"]));
    let list = json(&told);
    let named = |kind: &str, name: &str| {
        let all = list[kind].as_array().unwrap();
        all.iter()
            .any(|one| one["name"] == name && one["about"].as_str().unwrap().len() > 10)
    };
    for policy in ["driver", "deepum", "vdnn", "foresight"] {
        assert!(named("policies", policy), "{policy} is missing");
    }
    for machine in ["v100-32g", "a100-40g", "h100-80g", "h200", "rtx5090", "g10"] {
        assert!(named("machines", machine), "{machine} is missing");
    }
    let text = outcome(&mut oversub(&["simulate", "--list"])).out;
    assert!(
        text.contains("foresight") && text.contains("15.754"),
        "{text}"
    );
}

#[test]
fn a_policy_that_is_unknown_is_answered_with_the_known_ones_and_the_nearest() {
    let (_folder, trace) = one_trace();
    let told = simulate(&[&trace], &["--policy", "foresigth", "--ratio", "1.5"]);
    refused(&told, &["foresigth", "'foresight'", "deepum", "ondemand"]);
}

#[test]
fn arguments_that_contradict_each_other_are_refused() {
    let (_folder, trace) = one_trace();
    let of = |arguments: &[&str]| simulate(&[&trace], arguments);
    refused(&of(&["--policy", "driver"]), &["--ratio", "--memory"]);
    let both = ["--policy", "driver", "--ratio", "2", "--memory", "1GiB"];
    refused(&of(&both), &["--ratio", "--memory"]);
    refused(
        &of(&["--policy", "driver", "--memory", "1MiB"]),
        &["small", "2 MiB"],
    );
    let ssd = ["--policy", "driver", "--ratio", "2", "--ssd-read", "3GB/s"];
    refused(&of(&ssd), &["--ssd-write"]);
    let several = [
        "--policy",
        "driver",
        "--ratio",
        "2,3",
        "--timeline",
        "/dev/null",
    ];
    refused(&of(&several), &["--timeline", "one run"]);
}

#[test]
fn a_trace_that_is_wrong_is_refused_with_file_line_and_key() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let lines = sweep(8, 2, 100).replacen(r#""us":100,"#, "", 1);
    let trace = write(folder.path(), "keyless", &lines);
    let run = |trace: &Path| simulate(&[trace], &["--policy", "driver", "--ratio", "1.5"]);
    refused(&run(&trace), &["keyless.trace.jsonl.zst:6", "`us`"]);
    let whole = fs::read(write(folder.path(), "whole", &sweep(8, 2, 100))).expect("reads");
    let cut = folder.path().join("cut.trace.jsonl.zst");
    fs::write(&cut, &whole[..whole.len() - 9]).expect("writes");
    refused(&run(&cut), &["cut.trace.jsonl.zst"]);
    refused(&run(&folder.path().join("absent")), &["absent"]);
}

#[test]
fn the_timeline_is_a_chrome_trace_of_the_run() {
    let (folder, trace) = one_trace();
    let path = folder.path().join("timeline.json");
    let timeline = path.to_str().unwrap();
    let arguments = [
        "--policy",
        "driver",
        "--ratio",
        "1.5",
        "--timeline",
        timeline,
    ];
    assert!(simulate(&[&trace], &arguments).status.success());
    let text = fs::read_to_string(&path).expect("reads the timeline");
    let trace: Value = serde_json::from_str(&text).expect("is JSON");
    let events = trace["traceEvents"].as_array().unwrap();
    let threads: Vec<_> = events
        .iter()
        .filter(|event| event["name"] == "thread_name")
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(threads, ["kernels", "stalls", "link in", "link out"]);
    let spans = |tid: u64| {
        let mut spans: Vec<(f64, f64)> = events
            .iter()
            .filter(|event| event["ph"] == "X" && event["tid"] == tid)
            .map(|event| (number(event, "ts"), number(event, "dur")))
            .collect();
        spans.sort_by(|a, b| a.0.total_cmp(&b.0));
        spans
    };
    assert_eq!(spans(1).len(), 6 * 65, "every launch once");
    for tid in 1..=4 {
        let spans = spans(tid);
        assert!(!spans.is_empty(), "track {tid} has spans");
        let apart = spans
            .windows(2)
            .all(|two| two[0].0 + two[0].1 <= two[1].0 + 1e-3);
        assert!(apart, "spans of track {tid} do not overlap");
    }
    let counters: BTreeSet<_> = events
        .iter()
        .filter(|event| event["ph"] == "C")
        .map(|event| event["name"].as_str().unwrap())
        .collect();
    assert!(counters.contains("resident"), "{counters:?}");
}

#[test]
fn a_plan_tells_what_each_size_costs_and_the_least_that_is_fast() {
    let (_folder, trace) = one_trace();
    let plan = |threads: &str, json: &[&str]| {
        outcome(
            oversub(&["plan"])
                .arg(&trace)
                .args(["--threads", threads])
                .args(json),
        )
    };
    let result = json(&plan("2", &["--json"]));
    assert_eq!(
        (&result["trace"], &result["policy"]),
        (&"small".into(), &"foresight".into())
    );
    assert_eq!(result["footprint_bytes"], 66 * BLOCK);
    let links = result["links"].as_array().unwrap();
    assert_eq!(links.len(), 4);
    for link in links {
        let points = link["points"].as_array().unwrap();
        let fits = points.iter().filter(|point| number(point, "ratio") <= 1.0);
        for point in fits {
            assert_eq!(number(point, "slowdown"), 1.0, "{point}");
        }
        let (five, twenty) = (&link["within_5_percent"], &link["within_20_percent"]);
        assert!(number(five, "slowdown") <= 1.05 && number(twenty, "slowdown") <= 1.2);
        assert!(number(five, "memory_bytes") >= number(twenty, "memory_bytes"));
    }
    let quarter = |link: &Value| {
        number(
            link["points"].as_array().unwrap().last().unwrap(),
            "slowdown",
        )
    };
    assert!(
        quarter(&links[0]) > quarter(&links[3]),
        "a faster link costs less"
    );
    let table = plan("1", &[]);
    for word in ["small", "pcie3", "nvlink-c2c", "least within 5 %", "8 GB"] {
        assert!(table.out.contains(word), "{word} is missing: {}", table.out);
    }
    assert_eq!(plan("1", &["--json"]).out, plan("2", &["--json"]).out);
}
