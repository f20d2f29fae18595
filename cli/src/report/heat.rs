//! Time over the bound: one coloured cell for each trace, memory size and policy, and the
//! mean of each policy.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::draw::{escape, geometric_mean, gibibytes, gigabytes, number, slot, time};
use crate::simulate::result::RunResult;

/// Upper ends of the colour steps; the last step has none.
const STEPS: [f64; 8] = [1.02, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0];

fn step(over_bound: f64) -> usize {
    STEPS
        .iter()
        .position(|end| over_bound <= *end)
        .unwrap_or(STEPS.len())
}

/// Policies from best to worst by the mean over the rows that all of them have, or over
/// their own rows where they share none.
fn ranking(runs: &[RunResult]) -> Vec<(String, f64, usize)> {
    let mut rows: BTreeMap<(&str, u64), Vec<&RunResult>> = BTreeMap::new();
    let mut policies: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for run in runs {
        rows.entry((&run.trace, run.memory_bytes))
            .or_default()
            .push(run);
        policies.entry(&run.policy).or_default();
    }
    let complete = |row: &Vec<&RunResult>| {
        policies
            .keys()
            .all(|policy| row.iter().any(|run| run.policy == **policy))
    };
    let mut shared: Vec<&Vec<&RunResult>> = rows.values().filter(|row| complete(row)).collect();
    if shared.is_empty() {
        shared = rows.values().collect();
    }
    for run in shared.into_iter().flatten() {
        if let Some(values) = policies.get_mut(run.policy.as_str()) {
            values.push(run.over_bound());
        }
    }
    let mut ranked: Vec<_> = policies
        .into_iter()
        .filter(|(_, values)| !values.is_empty())
        .map(|(policy, values)| (policy.to_owned(), geometric_mean(&values), values.len()))
        .collect();
    ranked.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
    ranked
}

/// One bar for each policy: the mean of time over bound.
pub fn overview(runs: &[RunResult]) -> String {
    let ranked = ranking(runs);
    let longest = ranked.iter().map(|(_, mean, _)| *mean).fold(1.0, f64::max);
    let (left, width, pitch) = (150.0, 900.0, 24.0);
    let height = pitch * ranked.len() as f64 + 8.0;
    let mut out = String::new();
    let _ = write!(
        out,
        r#"<svg viewBox="0 0 1140 {height:.0}" role="img" aria-label="Mean time over bound of each policy">"#
    );
    for (index, (policy, mean, rows)) in ranked.iter().enumerate() {
        let y = pitch * index as f64 + 4.0;
        let length = (mean / longest * (width - 70.0)).max(2.0);
        let class = slot(policy).unwrap_or(0);
        let name = escape(policy);
        let _ = write!(
            out,
            r#"<text class="ink" x="{:.0}" y="{:.1}" text-anchor="end">{name}</text><rect class="bar f{class}" x="{left}" y="{y:.1}" width="{length:.1}" height="16" rx="3" data-tip="{name}: {} times the bound, mean of {rows} rows"/><text x="{:.1}" y="{:.1}">{}</text>"#,
            left - 10.0,
            y + 12.5,
            number(*mean),
            left + length + 7.0,
            y + 12.5,
            number(*mean),
        );
    }
    let one = left + (width - 70.0) / longest;
    let _ = write!(
        out,
        r#"<line class="axis" x1="{one:.1}" x2="{one:.1}" y1="0" y2="{height:.0}"/></svg>"#
    );
    out
}

/// The table of all rows and policies.
pub fn heat_map(runs: &[RunResult]) -> String {
    let policies: Vec<String> = ranking(runs).into_iter().map(|(name, ..)| name).collect();
    let mut cells: BTreeMap<(&str, u64, &str), &RunResult> = BTreeMap::new();
    let mut rows: BTreeMap<(&str, std::cmp::Reverse<u64>), ()> = BTreeMap::new();
    for run in runs {
        cells.insert((&run.trace, run.memory_bytes, &run.policy), run);
        rows.insert((&run.trace, std::cmp::Reverse(run.memory_bytes)), ());
    }
    let mut out = legend();
    out.push_str(r#"<div class="scroll"><table class="heat"><thead><tr><th></th>"#);
    for policy in &policies {
        let _ = write!(out, "<th><span>{}</span></th>", escape(policy));
    }
    out.push_str("</tr></thead><tbody>");
    for (trace, memory) in rows.keys() {
        let _ = write!(
            out,
            r#"<tr><th>{} <small>{} GiB</small></th>"#,
            escape(trace),
            gibibytes(memory.0)
        );
        for policy in &policies {
            match cells.get(&(*trace, memory.0, policy.as_str())) {
                Some(run) => cell(&mut out, run),
                None => out.push_str("<td></td>"),
            }
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
    out
}

fn cell(out: &mut String, run: &RunResult) {
    let over = run.over_bound();
    let shown = if over >= 9.95 {
        format!("{over:.0}")
    } else if over >= 3.0 {
        format!("{over:.1}")
    } else {
        format!("{over:.2}")
    };
    let _ = write!(
        out,
        r#"<td class="q{}" data-tip="{}">{shown}</td>"#,
        step(over),
        escape(&tip(run)),
    );
}

/// What a cell or a point says of its run.
pub fn tip(run: &RunResult) -> String {
    format!(
        "{}, {}, {} GiB\n{} per iteration: {} × bound ({}), {} × ideal\n{} GB in, {} GB out, {} faults",
        run.trace,
        run.policy,
        gibibytes(run.memory_bytes),
        time(run.iteration_us),
        number(run.over_bound()),
        run.bound,
        number(run.slowdown()),
        gigabytes(run.bytes_in),
        gigabytes(run.bytes_out),
        run.faults
    )
}

fn legend() -> String {
    let mut out = String::from(r#"<div class="legend"><span>time over bound:</span>"#);
    for index in 0..=STEPS.len() {
        let words = match (index.checked_sub(1), STEPS.get(index)) {
            (_, Some(end)) => format!("≤ {end}"),
            (Some(before), None) => format!("> {}", STEPS[before]),
            (None, None) => continue,
        };
        let _ = write!(out, r#"<span><i class="box q{index}"></i>{words}</span>"#);
    }
    out.push_str("</div>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::run;

    #[test]
    fn policies_are_ranked_by_the_rows_that_all_of_them_have() {
        let runs = [
            run("a", "driver", 1, 4.0),
            run("a", "foresight", 1, 1.0),
            // Alone in its row: counts for neither.
            run("b", "foresight", 1, 100.0),
        ];
        let ranked = ranking(&runs);
        assert_eq!(ranked[0].0, "foresight");
        assert_eq!((ranked[0].1, ranked[0].2), (1.0, 1));
    }

    #[test]
    fn every_run_has_its_cell_and_a_missing_one_stays_empty() {
        let runs = [
            run("a", "driver", 1 << 30, 4.0),
            run("a", "foresight", 1 << 30, 1.01),
            run("b", "driver", 1 << 30, 12.0),
        ];
        let map = heat_map(&runs);
        for part in [
            r#"class="q6" data-tip="a, driver"#,
            ">4.0<",
            r#"class="q0""#,
            ">12<",
            "<td></td>",
        ] {
            assert!(map.contains(part), "{part} is missing: {map}");
        }
    }
}
