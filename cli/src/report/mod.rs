//! `oversub report`: one page from a folder of results.
//!
//! Owns the page and its charts. Computes nothing but means: every figure shown is in the
//! files. The page is one file that needs no network, no font and no library.

mod curve;
mod draw;
mod heat;
mod input;
mod lanes;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use self::draw::{escape, gibibytes, gigabytes, number, time};
use self::input::{Demo, Inputs};
use crate::args::ReportOptions;
use crate::simulate::result::RunResult;

/// Writes the report of a folder.
///
/// # Errors
/// Where the folder holds nothing to report, or the page cannot be written.
pub fn report(options: &ReportOptions) -> Result<ExitCode> {
    let inputs = Inputs::read(&options.folder)?;
    let page = page(&inputs, &options.folder);
    std::fs::write(&options.output, page)
        .with_context(|| format!("cannot write {}", options.output.display()))?;
    eprintln!("wrote {}", options.output.display());
    Ok(ExitCode::SUCCESS)
}

/// A part of the page.
struct Section {
    id: &'static str,
    title: &'static str,
    words: &'static str,
    body: String,
}

fn page(inputs: &Inputs, folder: &Path) -> String {
    let sections = sections(inputs);
    let mut out = String::from(
        r#"<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>oversub report</title>
<script>addEventListener("error", function (e) { document.documentElement.setAttribute("data-error", e.message); });</script>
<style>"#,
    );
    out.push_str(include_str!("page.css"));
    out.push_str("</style></head><body><main><h1>What oversubscribed GPU memory costs</h1>");
    let _ = write!(
        out,
        "<p>{} From <code>{}</code>.</p><nav>",
        summary(inputs),
        escape(&folder.display().to_string())
    );
    for section in &sections {
        let _ = write!(out, r##"<a href="#{}">{}</a>"##, section.id, section.title);
    }
    out.push_str("</nav>");
    for section in &sections {
        let _ = write!(
            out,
            r#"<section id="{}"><h2>{}</h2><p>{}</p>{}</section>"#,
            section.id, section.title, section.words, section.body
        );
    }
    let _ = writeln!(
        out,
        r#"<footer>oversub {}</footer></main><div id="tip"></div><script>{}</script></body></html>"#,
        env!("CARGO_PKG_VERSION"),
        include_str!("page.js")
    );
    out
}

fn sections(inputs: &Inputs) -> Vec<Section> {
    let mut sections = Vec::new();
    let mut add = |id, title, words, body: String| {
        if !body.is_empty() {
            sections.push(Section {
                id,
                title,
                words,
                body,
            });
        }
    };
    if !inputs.runs.is_empty() {
        add(
            "policies",
            "Policies",
            "Mean time of a steady iteration over the lower bound that no policy can beat; 1 is the bound. Geometric mean over the traces and memory sizes that all policies were run with.",
            heat::overview(&inputs.runs),
        );
        add(
            "bound",
            "Time over bound, by trace",
            "Each cell is one run: the time of a steady iteration over the lower bound of the same trace and memory size. The further from the bound, the more a cell stands out from the page. Policies from best to worst.",
            heat::heat_map(&inputs.runs),
        );
    }
    add(
        "memory",
        "What less memory costs",
        "Time of a steady iteration over its time with everything resident, for each size of device memory. Dotted lines are the sizes by which cards are sold: where a curve crosses the line of 24 GB is what a 24 GB card would cost.",
        curve::of_runs(&inputs.runs),
    );
    add(
        "plan",
        "Which card, which link",
        "Slowdown by size of device memory and link, and the least memory that stays within 5 % and 20 % of full speed. A card's line is its memory less what the driver's context takes.",
        inputs.plans.iter().map(curve::of_plan).collect(),
    );
    add(
        "timeline",
        "One run over time",
        "How much of each moment the link was in use in each direction, how much of it the device stood still, and how much memory was resident.",
        inputs.timelines.iter().map(lanes::Lanes::draw).collect(),
    );
    add(
        "demo",
        "Measured",
        "Seconds of the workload programs of <code>oversub demo</code>, by mode. The line is the lower bound.",
        inputs.demos.iter().map(demo).collect(),
    );
    if !inputs.runs.is_empty() {
        add(
            "runs",
            "All runs",
            "Per steady iteration.",
            run_table(&inputs.runs),
        );
    }
    sections
}

fn summary(inputs: &Inputs) -> String {
    let distinct = |pick: fn(&RunResult) -> &str| -> usize {
        inputs.runs.iter().map(pick).collect::<BTreeSet<_>>().len()
    };
    let mut parts = Vec::new();
    if !inputs.runs.is_empty() {
        parts.push(format!(
            "{} simulated runs: {} traces, {} policies.",
            inputs.runs.len(),
            distinct(|run| &run.trace),
            distinct(|run| &run.policy)
        ));
    }
    match inputs.plans.len() {
        0 => {}
        1 => parts.push("One plan.".to_owned()),
        plans => parts.push(format!("{plans} plans.")),
    }
    if !inputs.demos.is_empty() {
        parts.push("Measured workloads.".to_owned());
    }
    parts.join(" ")
}

/// Bars of one demo, grouped by workload.
fn demo(demo: &Demo) -> String {
    let rows = demo
        .workloads
        .iter()
        .map(|workload| workload.runs.len() + 1);
    let height = 22 * rows.sum::<usize>() + 10;
    let longest = demo
        .workloads
        .iter()
        .flat_map(|workload| &workload.runs)
        .map(|run| run.seconds)
        .fold(1e-9, f64::max);
    let length = |seconds: f64| (seconds / longest * 850.0).max(1.0);
    let mut out = format!(
        r#"<h3>{}, {} GiB, working set {}×</h3><svg viewBox="0 0 1140 {height}" role="img" aria-label="Seconds of workloads by mode">"#,
        escape(&demo.device),
        gibibytes(demo.memory_bytes),
        demo.ratio
    );
    let mut y = 0.0;
    for workload in &demo.workloads {
        let top = y + 22.0;
        let _ = write!(
            out,
            r#"<text class="ink" x="0" y="{:.0}" font-weight="600">{}</text>"#,
            y + 16.0,
            escape(&workload.name)
        );
        y += 22.0;
        for run in &workload.runs {
            let class = match run.mode.as_str() {
                "oversub" => 1,
                "deepum" => 2,
                "driver" => 3,
                _ => 0,
            };
            let _ = write!(
                out,
                r#"<text x="140" y="{:.0}" text-anchor="end">{mode}</text><rect class="bar f{class}" x="150" y="{:.0}" width="{:.1}" height="15" rx="3" data-tip="{name}, {mode}: {seconds} s"/><text x="{:.1}" y="{:.0}">{seconds} s</text>"#,
                y + 13.0,
                y + 2.0,
                length(run.seconds),
                157.0 + length(run.seconds),
                y + 13.0,
                mode = escape(&run.mode),
                name = escape(&workload.name),
                seconds = number(run.seconds),
            );
            y += 22.0;
        }
        if let Some(bound) = workload.bound_s {
            let x = 150.0 + length(bound);
            let _ = write!(
                out,
                r#"<line class="curve bound" x1="{x:.1}" x2="{x:.1}" y1="{top:.0}" y2="{y:.0}"/>"#
            );
        }
    }
    out.push_str("</svg>");
    out
}

fn run_table(runs: &[RunResult]) -> String {
    let mut runs: Vec<&RunResult> = runs.iter().collect();
    runs.sort_by(|a, b| {
        (&a.trace, b.memory_bytes, &a.policy).cmp(&(&b.trace, a.memory_bytes, &b.policy))
    });
    let mut out = format!(
        r#"<details><summary>{} runs</summary><div class="scroll"><table><thead><tr><th>trace</th><th>policy</th><th>memory GiB</th><th>iteration</th><th>over bound</th><th>over ideal</th><th>first</th><th>in GB</th><th>out GB</th><th>faults</th><th>bound</th></tr></thead><tbody>"#,
        runs.len()
    );
    for run in runs {
        let _ = write!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&run.trace),
            escape(&run.policy),
            gibibytes(run.memory_bytes),
            time(run.iteration_us),
            number(run.over_bound()),
            number(run.slowdown()),
            time(run.first_iteration_us),
            gigabytes(run.bytes_in),
            gigabytes(run.bytes_out),
            run.faults,
            escape(&run.bound),
        );
    }
    out.push_str("</tbody></table></div></details>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::result::Prefetch;

    /// A run whose bound is one second and whose ideal is half of that.
    pub fn run(trace: &str, policy: &str, memory_bytes: u64, over_bound: f64) -> RunResult {
        RunResult {
            trace: trace.to_owned(),
            policy: policy.to_owned(),
            memory_bytes,
            iteration_us: over_bound * 1e6,
            first_iteration_us: over_bound * 2e6,
            iterations_us: vec![over_bound * 2e6, over_bound * 1e6],
            ideal_us: 5e5,
            bound_us: 1e6,
            bound: "lb1-streaming".to_owned(),
            bound_class: String::new(),
            future_bound_us: 0.0,
            bytes_in: 3_000_000_000,
            bytes_out: 2_000_000_000,
            host_read: 0,
            host_written: 0,
            faults: 7,
            prefetch: Prefetch::default(),
            engine: None,
        }
    }

    #[test]
    fn the_page_has_only_the_sections_for_which_there_is_something() {
        let inputs = Inputs {
            runs: vec![run("a", "driver", 1 << 30, 2.0)],
            ..Inputs::default()
        };
        let page = page(&inputs, Path::new("results"));
        assert!(page.contains(r#"<section id="bound">"#));
        assert!(page.contains(r#"<section id="runs">"#));
        for absent in ["memory", "plan", "timeline", "demo"] {
            assert!(!page.contains(&format!(r#"<section id="{absent}">"#)));
        }
    }

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        let inputs = Inputs {
            runs: vec![run("a", "driver", 1 << 30, 2.0)],
            ..Inputs::default()
        };
        let page = page(&inputs, Path::new("results"));
        for reach in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(reach), "{reach}");
        }
    }

    #[test]
    fn a_hostile_trace_name_stays_text() {
        let inputs = Inputs {
            runs: vec![run("<script>x</script>", "driver", 1 << 30, 2.0)],
            ..Inputs::default()
        };
        assert!(!page(&inputs, Path::new("r")).contains("<script>x"));
    }
}
