//! `oversub report`: the page, as a browser shows it.

use std::collections::BTreeSet;
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;

use oversub_tests::program::{Outcome, clean, outcome, oversub};
use oversub_tests::skipped;
use oversub_tests::trace::{sweep, write};
use tempfile::TempDir;

/// Demo results, as `oversub demo --json` prints them.
const DEMO: &str = r#"{"device":"soft","ratio":1.5,"memory_bytes":536870912,"workloads":[
    {"name":"sweep","bound_s":2.5,"speedup":4.0,"checksum_ok":true,"runs":[
        {"mode":"driver","seconds":16.0},{"mode":"oversub","seconds":4.0}]}]}"#;

/// A folder of results of every kind, and the page made from it.
fn results() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("makes a folder");
    let traces = folder.path().join("traces");
    let results = folder.path().join("results");
    fs::create_dir(&traces).expect("makes a folder");
    fs::create_dir(&results).expect("makes a folder");
    let trace = write(&traces, "small", &sweep(64, 6, 500));
    write(&traces, "other", &sweep(32, 4, 100));
    let keep = |name: &str, told: Outcome| {
        assert!(told.status.success(), "{told:?}");
        fs::write(results.join(name), told.out).expect("writes a result");
    };
    let sizes = ["--ratio", "1.1,1.5,2", "--json"];
    let policies = ["--policy", "driver,ondemand,foresight,deepum"];
    let runs = outcome(
        oversub(&["simulate"])
            .arg(&traces)
            .args(policies)
            .args(sizes),
    );
    keep("runs.json", runs);
    keep(
        "plan.json",
        outcome(oversub(&["plan", "--json"]).arg(&trace)),
    );
    fs::write(results.join("demo.json"), DEMO).expect("writes a result");
    let one = ["--policy", "driver", "--ratio", "1.5", "--timeline"];
    let timeline = results.join("timeline.json");
    let told = outcome(oversub(&["simulate"]).arg(&trace).args(one).arg(&timeline));
    assert!(told.status.success(), "{told:?}");
    let page = folder.path().join("page.html");
    let told = outcome(oversub(&["report"]).arg(&results).arg("-o").arg(&page));
    assert!(told.status.success() && told.out.is_empty(), "{told:?}");
    (folder, page)
}

fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    ["chromium", "chromium-browser", "google-chrome"]
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .find(|path| path.is_file())
}

/// The browser on the page; `profile` keeps its traces out of the user's folder.
fn open(browser: &Path, profile: &Path, page: &Path, arguments: &[&str]) -> Outcome {
    let mut command = Command::new(browser);
    clean(&mut command);
    let profile = format!("--user-data-dir={}", profile.display());
    command
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
        ])
        .args([
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--window-size=1280,3200",
        ])
        .args(["--virtual-time-budget=5000", "--enable-logging=stderr"])
        .arg(profile)
        .args(arguments)
        .arg(format!("file://{}", page.display()));
    outcome(&mut command)
}

/// How many different colours a picture has, and its size.
fn colours(path: &Path) -> (usize, u32, u32) {
    let file = fs::File::open(path).expect("the browser wrote a picture");
    let mut reader = png::Decoder::new(BufReader::new(file))
        .read_info()
        .expect("is a PNG");
    let size = reader.output_buffer_size().expect("has a size");
    let mut pixels = vec![0; size];
    let frame = reader.next_frame(&mut pixels).expect("has a picture");
    let bytes = frame.color_type.samples();
    let colours: BTreeSet<&[u8]> = pixels[..frame.buffer_size()].chunks(bytes).collect();
    (colours.len(), frame.width, frame.height)
}

#[test]
fn a_browser_shows_every_chart_without_an_error() {
    let Some(browser) = browser() else {
        skipped("the report in a browser", "chromium is not installed");
        return;
    };
    let (folder, page) = results();
    let profile = folder.path().join("profile");
    let told = open(&browser, &profile, &page, &["--dump-dom"]);
    assert!(told.status.success(), "{told:?}");
    let dom = &told.out;
    assert!(
        dom.contains(r#"data-ready="yes""#),
        "the page's script ran to its end"
    );
    assert!(!dom.contains("data-error="), "a script failed");
    assert!(
        !told.err.contains("CONSOLE"),
        "the browser complains: {}",
        told.err
    );
    for section in [
        "policies", "bound", "memory", "plan", "timeline", "demo", "runs",
    ] {
        assert!(
            dom.contains(&format!(r#"<section id="{section}">"#)),
            "no {section}"
        );
    }
    for series in [
        "driver",
        "ondemand",
        "foresight",
        "deepum",
        "bound",
        "pcie3",
        "pcie5",
        "nvlink-c2c",
        "link in",
        "link out",
        "stalled",
        "resident",
    ] {
        let series = format!(r#"data-series="{series}""#);
        assert!(dom.contains(&series), "{series} is not drawn");
    }
    assert_eq!(
        dom.matches(r#"<td class="q"#).count(),
        2 * 3 * 4,
        "a cell for each run"
    );

    // Kept, so that a person can look at it.
    let picture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report.png");
    let _ = fs::remove_file(&picture);
    let screenshot = format!("--screenshot={}", picture.display());
    let told = open(&browser, &profile, &page, &[&screenshot]);
    assert!(told.status.success(), "{told:?}");
    let (colours, width, height) = colours(&picture);
    assert_eq!((width, height), (1280, 3200));
    assert!(colours > 50, "only {colours} colours: the page is blank");
}

#[test]
fn a_folder_without_results_is_refused() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let page = folder.path().join("page.html");
    let told = outcome(oversub(&["report"]).arg(folder.path()).arg("-o").arg(&page));
    assert_eq!(told.status.code(), Some(2), "{told:?}");
    assert!(told.err.contains("no .json"), "{told:?}");
    assert!(!page.exists());
    fs::write(folder.path().join("x.json"), "{\"a\":1}").expect("writes");
    let told = outcome(oversub(&["report"]).arg(folder.path()).arg("-o").arg(&page));
    assert_eq!(told.status.code(), Some(2), "{told:?}");
    assert!(told.err.contains("x.json"), "{told:?}");
}
