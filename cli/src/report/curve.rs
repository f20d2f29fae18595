//! Slowdown over device memory: of simulated runs by policy, of plans by link.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::draw::{Scale, escape, factor_ticks, gibibytes, number, plain, slot, ticks, time};
use super::heat::tip;
use crate::plan::result::{PlanResult, Point};
use crate::simulate::result::RunResult;

const GIB: f64 = (1_u64 << 30) as f64;
/// Sizes by which cards are sold, GiB.
const CARDS: [f64; 11] = [
    6.0, 8.0, 12.0, 16.0, 20.0, 24.0, 32.0, 40.0, 48.0, 80.0, 141.0,
];

/// One line of a chart.
struct Line {
    name: String,
    /// Colour slot; 0 is grey.
    slot: usize,
    dashed: bool,
    /// Memory in GiB, slowdown, what is said of it; smallest memory first.
    points: Vec<(f64, f64, String)>,
}

/// Traces simulated with more than one size of memory, one chart each.
pub fn of_runs(runs: &[RunResult]) -> String {
    let mut traces: BTreeMap<&str, Vec<&RunResult>> = BTreeMap::new();
    for run in runs {
        traces.entry(&run.trace).or_default().push(run);
    }
    let mut charts = String::new();
    let mut others = false;
    for (trace, runs) in traces {
        let sizes: BTreeSet<u64> = runs.iter().map(|run| run.memory_bytes).collect();
        if sizes.len() < 2 {
            continue;
        }
        others |= runs.iter().any(|run| slot(&run.policy).is_none());
        charts.push_str(&chart(trace, &policy_lines(&runs)));
    }
    if charts.is_empty() {
        return charts;
    }
    let present = |name: &str| runs.iter().any(|run| run.policy == name);
    let mut legend = String::from(r#"<div class="legend">"#);
    for name in ["foresight", "deepum", "driver", "opt"] {
        if present(name) {
            let class = slot(name).unwrap_or(0);
            let _ = write!(legend, r#"<span><i class="b{class}"></i>{name}</span>"#);
        }
    }
    if others {
        legend.push_str(r#"<span><i class="b0"></i>other policies</span>"#);
    }
    legend.push_str(r#"<span><i class="dash"></i>bound</span></div>"#);
    format!(r#"{legend}<div class="grid">{charts}</div>"#)
}

fn policy_lines(runs: &[&RunResult]) -> Vec<Line> {
    let mut policies: BTreeMap<&str, Vec<&RunResult>> = BTreeMap::new();
    let mut bound: BTreeMap<u64, &RunResult> = BTreeMap::new();
    for run in runs {
        policies.entry(&run.policy).or_default().push(run);
        bound.insert(run.memory_bytes, run);
    }
    let mut lines: Vec<Line> = policies
        .into_iter()
        .map(|(policy, mut runs)| {
            runs.sort_by_key(|run| run.memory_bytes);
            let point =
                |run: &&RunResult| (run.memory_bytes as f64 / GIB, run.slowdown(), tip(run));
            Line {
                name: policy.to_owned(),
                slot: slot(policy).unwrap_or(0),
                dashed: false,
                points: runs.iter().map(point).collect(),
            }
        })
        .collect();
    // Grey below, then those in colour, the first of them on top.
    lines.sort_by_key(|line| (line.slot != 0, std::cmp::Reverse(line.slot)));
    let of_bound = |run: &RunResult| {
        // Files of before there were classes have one bound.
        let any = match run.future_bound_us {
            0.0 => run.bound_us,
            any => any,
        };
        let slowdown = any / run.ideal_us;
        let words = format!(
            "no policy beats, with {} GiB: {} × ideal",
            gibibytes(run.memory_bytes),
            number(slowdown)
        );
        (run.memory_bytes as f64 / GIB, slowdown, words)
    };
    lines.push(Line {
        name: "bound".to_owned(),
        slot: 0,
        dashed: true,
        points: bound.into_values().map(of_bound).collect(),
    });
    lines
}

/// A plan: one line for each link, and a table of what cards would cost.
pub fn of_plan(plan: &PlanResult) -> String {
    let mut legend = String::from(r#"<div class="legend">"#);
    let mut lines = Vec::new();
    for (index, link) in plan.links.iter().enumerate() {
        let class = index % 4 + 1;
        let _ = write!(
            legend,
            r#"<span><i class="b{class}"></i>{} ({} GB/s)</span>"#,
            escape(&link.link),
            plain(link.link_in as f64 / 1e9)
        );
        let mut points: Vec<_> = link
            .points
            .iter()
            .map(|point| {
                let words = format!(
                    "{}, {} GiB{}: {} × ideal, {} per iteration",
                    link.link,
                    gibibytes(point.memory_bytes),
                    point
                        .card
                        .as_ref()
                        .map_or(String::new(), |card| format!(" ({card} card)")),
                    number(point.slowdown),
                    time(point.iteration_us)
                );
                (point.memory_bytes as f64 / GIB, point.slowdown, words)
            })
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        lines.push(Line {
            name: link.link.clone(),
            slot: class,
            dashed: false,
            points,
        });
    }
    legend.push_str("</div>");
    let title = format!(
        "{} under {}, footprint {} GiB",
        plan.trace,
        plan.policy,
        gibibytes(plan.footprint_bytes)
    );
    format!(
        r#"{legend}<div class="grid">{}<div class="scroll">{}</div></div>"#,
        chart(&title, &lines),
        plan_table(plan)
    )
}

fn plan_table(plan: &PlanResult) -> String {
    let mut cards: Vec<(u64, &str)> = plan
        .links
        .iter()
        .flat_map(|link| &link.points)
        .filter_map(|point| Some((point.memory_bytes, point.card.as_deref()?)))
        .collect();
    cards.sort_unstable();
    cards.dedup();
    let mut out = String::from("<table><thead><tr><th>slowdown with</th>");
    for link in &plan.links {
        let _ = write!(out, "<th>{}</th>", escape(&link.link));
    }
    out.push_str("</tr></thead><tbody>");
    for (memory, card) in cards {
        let _ = write!(out, "<tr><td>a {} card</td>", escape(card));
        for link in &plan.links {
            let point = link
                .points
                .iter()
                .find(|point| point.memory_bytes == memory);
            let words = point.map_or("–".to_owned(), |point| number(point.slowdown));
            let _ = write!(out, "<td>{words}</td>");
        }
        out.push_str("</tr>");
    }
    type Pick = fn(&crate::plan::result::Curve) -> Option<&Point>;
    let picks: [(&str, Pick); 2] = [
        ("least for 5 %, GiB", |curve| {
            curve.within_5_percent.as_ref()
        }),
        ("least for 20 %, GiB", |curve| {
            curve.within_20_percent.as_ref()
        }),
    ];
    for (words, pick) in picks {
        let _ = write!(out, "<tr><td>{words}</td>");
        for link in &plan.links {
            let words = pick(link).map_or("–".to_owned(), |point| gibibytes(point.memory_bytes));
            let _ = write!(out, "<td>{words}</td>");
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table>");
    out
}

/// One chart, 560 by 300.
fn chart(title: &str, lines: &[Line]) -> String {
    let all = || lines.iter().flat_map(|line| &line.points);
    let low = all().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let high = all().map(|point| point.0).fold(0.0, f64::max);
    let top = all()
        .map(|point| point.1)
        .filter(|slowdown| slowdown.is_finite())
        .fold(1.05, f64::max);
    let (left, right, head, foot) = (46.0, 540.0, 18.0, 252.0);
    let x = Scale::linear((low, high), (left + 8.0, right - 8.0));
    let y = Scale::logarithmic((1.0, top), (foot, head));
    let title = escape(title);
    let mut out = format!(
        r#"<figure style="margin:0"><h3>{title}</h3><svg viewBox="0 0 560 300" role="img" aria-label="{title}: slowdown over device memory">"#
    );
    for tick in factor_ticks(top) {
        let at = y.at(tick);
        let _ = write!(
            out,
            r#"<line class="rule" x1="{left}" x2="{right}" y1="{at:.1}" y2="{at:.1}"/><text class="faint" x="{:.0}" y="{:.1}" text-anchor="end">{}×</text>"#,
            left - 6.0,
            at + 4.0,
            plain(tick)
        );
    }
    for card in CARDS
        .into_iter()
        .filter(|card| low <= *card && *card <= high)
    {
        let at = x.at(card);
        let _ = write!(
            out,
            r#"<line class="card" x1="{at:.1}" x2="{at:.1}" y1="{head}" y2="{foot}"/><text class="faint" x="{at:.1}" y="{:.0}" text-anchor="middle">{card} GB</text>"#,
            head - 6.0
        );
    }
    for tick in ticks(low, high, 6) {
        let _ = write!(
            out,
            r#"<text class="faint" x="{:.1}" y="{:.0}" text-anchor="middle">{}</text>"#,
            x.at(tick),
            foot + 17.0,
            plain(tick)
        );
    }
    let _ = write!(
        out,
        r#"<line class="axis" x1="{left}" x2="{right}" y1="{foot}" y2="{foot}"/><text class="faint" x="{:.0}" y="{:.0}" text-anchor="middle">device memory, GiB</text>"#,
        f64::midpoint(left, right),
        foot + 36.0
    );
    for line in lines {
        draw(&mut out, line, &x, &y);
    }
    out.push_str("</svg></figure>");
    out
}

fn draw(out: &mut String, line: &Line, x: &Scale, y: &Scale) {
    let path: Vec<_> = line
        .points
        .iter()
        .map(|point| format!("{:.1},{:.1}", x.at(point.0), y.at(point.1)))
        .collect();
    let class = if line.dashed {
        "bound".to_owned()
    } else {
        format!("c{}", line.slot)
    };
    let _ = write!(
        out,
        r#"<polyline class="curve {class}" data-series="{}" points="{}"/>"#,
        escape(&line.name),
        path.join(" ")
    );
    if line.dashed {
        return;
    }
    let radius = if line.slot == 0 { 2.5 } else { 4.0 };
    for point in &line.points {
        let _ = write!(
            out,
            r#"<circle class="f{}" cx="{:.1}" cy="{:.1}" r="{radius}" data-tip="{}"/>"#,
            line.slot,
            x.at(point.0),
            y.at(point.1),
            escape(&point.2)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::run;

    #[test]
    fn a_trace_with_one_size_has_no_curve() {
        assert_eq!(of_runs(&[run("a", "driver", 1 << 30, 2.0)]), "");
    }

    #[test]
    fn each_policy_and_the_bound_has_its_line_and_cards_are_marked() {
        let runs = [
            run("a", "driver", 20 << 30, 3.0),
            run("a", "driver", 30 << 30, 1.5),
            run("a", "stride", 20 << 30, 3.0),
            run("a", "stride", 30 << 30, 1.5),
        ];
        let chart = of_runs(&runs);
        for part in [
            r#"class="curve c3" data-series="driver""#,
            r#"class="curve c0" data-series="stride""#,
            r#"class="curve bound" data-series="bound""#,
            "24 GB",
            "other policies",
        ] {
            assert!(chart.contains(part), "{part} is missing: {chart}");
        }
        assert!(!chart.contains("48 GB"), "outside of what was simulated");
    }
}
