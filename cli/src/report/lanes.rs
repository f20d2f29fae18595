//! One run over time: link use, stalls and residency, from the Chrome trace that
//! `oversub simulate --timeline` writes.

use std::fmt::Write;

use serde::Deserialize;
use serde_json::Value;

use super::draw::{Scale, escape, number, plain, ticks, time};

/// Slices of time that are drawn.
const SLICES: usize = 440;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 1128.0;

/// A run, cut into slices of equal time.
#[derive(Debug)]
pub struct Lanes {
    title: String,
    end_us: f64,
    /// Parts of each slice, 0 to 1: link in, link out, stalled.
    busy: [Vec<f64>; 3],
    /// MiB at the end of each slice.
    resident: Vec<f64>,
    /// Start of each iteration.
    iterations: Vec<(u64, f64)>,
}

#[derive(Deserialize)]
struct Event<'a> {
    ph: &'a str,
    #[serde(default)]
    name: &'a str,
    #[serde(default)]
    tid: u64,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: Args<'a>,
}

#[derive(Deserialize, Default)]
struct Args<'a> {
    #[serde(borrow)]
    name: Option<&'a str>,
    iteration: Option<u64>,
    #[serde(rename = "MiB")]
    mib: Option<f64>,
}

const LANES: [(&str, &str, usize); 3] = [
    ("link in", "link in", 1),
    ("link out", "link out", 2),
    ("stalls", "stalled", 3),
];

impl Lanes {
    /// From a Chrome trace.
    ///
    /// # Errors
    /// Where its events are not what `oversub` writes.
    pub fn read(trace: &Value, name: &str) -> serde_json::Result<Self> {
        let events = trace.get("traceEvents").unwrap_or(&Value::Null);
        let events: Vec<Event<'_>> = Vec::deserialize(events)?;
        let end_us = events
            .iter()
            .filter(|event| event.ph == "X")
            .map(|event| event.ts + event.dur)
            .fold(0.0, f64::max);
        let mut lanes = Self {
            title: name.to_owned(),
            end_us,
            busy: [const { Vec::new() }; 3],
            resident: Vec::new(),
            iterations: Vec::new(),
        };
        let mut threads: [Option<u64>; 3] = [None; 3];
        for event in events.iter().filter(|event| event.ph == "M") {
            let Some(name) = event.args.name else {
                continue;
            };
            if event.name == "process_name" {
                name.clone_into(&mut lanes.title);
            }
            if let Some(lane) = LANES.iter().position(|lane| lane.0 == name) {
                threads[lane] = Some(event.tid);
            }
        }
        for (lane, thread) in threads.into_iter().enumerate() {
            lanes.busy[lane] = lanes.shares(
                events
                    .iter()
                    .filter(|event| event.ph == "X" && Some(event.tid) == thread),
            );
        }
        lanes.resident = lanes.levels(&events);
        lanes.iterations = events
            .iter()
            .filter(|event| event.ph == "i" && event.name == "iteration")
            .filter_map(|event| Some((event.args.iteration?, event.ts)))
            .collect();
        Ok(lanes)
    }

    fn slice(&self, at_us: f64) -> usize {
        let slice = at_us / self.end_us.max(1e-9) * SLICES as f64;
        (slice as usize).min(SLICES - 1)
    }

    /// Which part of each slice the spans cover.
    fn shares<'a>(&self, spans: impl Iterator<Item = &'a Event<'a>>) -> Vec<f64> {
        let mut shares = vec![0.0; SLICES];
        let width = self.end_us.max(1e-9) / SLICES as f64;
        for span in spans {
            let end = span.ts + span.dur;
            let (first, last) = (self.slice(span.ts), self.slice(end));
            for (index, share) in shares.iter_mut().enumerate().take(last + 1).skip(first) {
                let start = index as f64 * width;
                let covered = end.min(start + width) - span.ts.max(start);
                *share = (*share + covered.max(0.0) / width).min(1.0);
            }
        }
        shares
    }

    /// The last value of `resident` at the end of each slice.
    fn levels(&self, events: &[Event<'_>]) -> Vec<f64> {
        let mut last: Vec<Option<f64>> = vec![None; SLICES];
        for event in events
            .iter()
            .filter(|event| event.ph == "C" && event.name == "resident")
        {
            last[self.slice(event.ts)] = event.args.mib;
        }
        let mut level = 0.0;
        last.into_iter()
            .map(|value| {
                level = value.unwrap_or(level);
                level
            })
            .collect()
    }

    /// The drawing: four lanes over one axis of time.
    pub fn draw(&self) -> String {
        let title = escape(&self.title);
        let x = Scale::linear((0.0, self.end_us), (LEFT, RIGHT));
        let mut out = format!(
            r#"<figure style="margin:0 0 18px"><h3>{title}</h3><svg viewBox="0 0 1140 330" role="img" aria-label="{title}: link use, stalls and residency over time">"#
        );
        for (number, at) in &self.iterations {
            let at = x.at(*at);
            let _ = write!(
                out,
                r#"<line class="card" x1="{at:.1}" x2="{at:.1}" y1="14" y2="296"/><text class="faint" x="{:.1}" y="11">iteration {number}</text>"#,
                at + 3.0
            );
        }
        for (index, (lane, shares)) in LANES.iter().zip(&self.busy).enumerate() {
            let foot = 72.0 + 70.0 * index as f64;
            let mean = 100.0 * shares.iter().sum::<f64>() / SLICES as f64;
            let label = (lane.1, format!("{mean:.0} % of the time"));
            area(&mut out, shares, 1.0, foot, lane.2, &label);
        }
        let most = self.resident.iter().copied().fold(0.0, f64::max);
        let label = ("resident", format!("at most {} GiB", number(most / 1024.0)));
        area(&mut out, &self.resident, most.max(1.0), 282.0, 4, &label);
        self.time_axis(&mut out, &x);
        self.sweeps(&mut out);
        out.push_str("</svg></figure>");
        out
    }

    fn time_axis(&self, out: &mut String, x: &Scale) {
        let (unit, scale) = if self.end_us >= 2e6 {
            ("s", 1e6)
        } else {
            ("ms", 1e3)
        };
        for tick in ticks(0.0, self.end_us / scale, 10) {
            let _ = write!(
                out,
                r#"<text class="faint" x="{:.1}" y="300" text-anchor="middle">{}</text>"#,
                x.at(tick * scale),
                plain(tick)
            );
        }
        let _ = write!(
            out,
            r#"<text class="faint" x="{:.0}" y="318" text-anchor="middle">time, {unit}</text>"#,
            f64::midpoint(LEFT, RIGHT)
        );
    }

    fn sweeps(&self, out: &mut String) {
        let width = (RIGHT - LEFT) / SLICES as f64;
        let percent = |lane: usize, slice: usize| 100.0 * self.busy[lane][slice];
        for slice in 0..SLICES {
            let _ = write!(
                out,
                r#"<rect class="sweep" x="{:.2}" y="14" width="{width:.2}" height="268" data-tip="at {}&#10;link in {:.0} %, link out {:.0} %&#10;stalled {:.0} %, resident {} GiB"/>"#,
                LEFT + width * slice as f64,
                time(self.end_us * (slice as f64 + 0.5) / SLICES as f64),
                percent(0, slice),
                percent(1, slice),
                percent(2, slice),
                number(self.resident[slice] / 1024.0),
            );
        }
    }
}

/// One lane, 54 high, standing on `foot`.
fn area(
    out: &mut String,
    values: &[f64],
    most: f64,
    foot: f64,
    class: usize,
    label: &(&str, String),
) {
    let width = (RIGHT - LEFT) / values.len().max(1) as f64;
    let mut path = format!("M{LEFT},{foot}");
    for (index, value) in values.iter().enumerate() {
        let y = foot - 54.0 * (value / most).clamp(0.0, 1.0);
        let from = LEFT + width * index as f64;
        let _ = write!(path, "L{from:.1},{y:.1}L{:.1},{y:.1}", from + width);
    }
    let _ = write!(path, "L{RIGHT},{foot}Z");
    let (name, detail) = label;
    let _ = write!(
        out,
        r#"<path class="f{class}" fill-opacity="0.85" data-series="{name}" d="{path}"/><line class="axis" x1="{LEFT}" x2="{RIGHT}" y1="{foot}" y2="{foot}"/><text class="ink" x="0" y="{:.0}">{name}</text><text class="faint" x="0" y="{:.0}">{detail}</text>"#,
        foot - 26.0,
        foot - 10.0
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> Value {
        serde_json::json!({"traceEvents": [
            {"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": "gpt2, driver"}},
            {"ph": "M", "pid": 1, "tid": 3, "name": "thread_name", "args": {"name": "link in"}},
            {"ph": "X", "pid": 1, "tid": 1, "name": "gemm", "ts": 0.0, "dur": 1000.0},
            {"ph": "X", "pid": 1, "tid": 3, "name": "fault", "ts": 0.0, "dur": 250.0},
            {"ph": "X", "pid": 1, "tid": 3, "name": "fault", "ts": 500.0, "dur": 250.0},
            {"ph": "C", "pid": 1, "tid": 0, "name": "resident", "ts": 500.0, "args": {"MiB": 2048.0}},
            {"ph": "i", "pid": 1, "tid": 1, "name": "iteration", "ts": 400.0, "s": "p", "args": {"iteration": 1}}
        ]})
    }

    #[test]
    fn link_use_is_the_part_of_each_slice_that_its_spans_cover() {
        let lanes = Lanes::read(&trace(), "file").unwrap();
        let mean = lanes.busy[0].iter().sum::<f64>() / SLICES as f64;
        assert!((mean - 0.5).abs() < 1e-9, "{mean}");
        assert_eq!(lanes.busy[0][SLICES / 3], 0.0, "idle from 250 to 500 us");
        assert!(lanes.busy[1].iter().all(|share| *share == 0.0));
    }

    #[test]
    fn residency_holds_until_it_changes() {
        let lanes = Lanes::read(&trace(), "file").unwrap();
        assert_eq!(
            (lanes.resident[0], lanes.resident[SLICES - 1]),
            (0.0, 2048.0)
        );
    }

    #[test]
    fn the_drawing_names_run_lanes_and_iterations() {
        let drawing = Lanes::read(&trace(), "file").unwrap().draw();
        for part in [
            "gpt2, driver",
            r#"data-series="link in""#,
            r#"data-series="stalled""#,
            r#"data-series="resident""#,
            "iteration 1",
            "at most 2.00 GiB",
            "50 % of the time",
        ] {
            assert!(drawing.contains(part), "{part} is missing");
        }
    }

    #[test]
    fn events_of_another_kind_are_refused() {
        let wrong = serde_json::json!({"traceEvents": [{"ph": 3}]});
        assert!(Lanes::read(&wrong, "file").is_err());
    }
}
