//! `oversub plan`: what each size of device memory would cost a trace.
//!
//! Owns: which sizes and links are looked at, the search for the least memory that is
//! fast enough. Every figure comes from a simulated run.

pub mod options;
pub mod result;
mod sizes;

use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Context, Result};
use oversub_sim::machine::{self, Machine};
use oversub_sim::policy::{self, Entry};
use oversub_sim::run;
use oversub_sim::trace::Program;
use oversub_sim::units::{BLOCK_BYTES, Rate};
use rayon::iter::{IntoParallelIterator, IntoParallelRefIterator, ParallelIterator};

use self::options::PlanOptions;
use self::result::{Curve, PlanResult, Point};
pub use self::sizes::Link;
use self::sizes::{SizePoint, sizes};
use crate::progress::Progress;
use crate::simulate::grid::{machine_with, pool, read};
use crate::simulate::show::time;
use crate::size::Size;
use crate::table::aligned_rows;
use crate::usage::usage;

/// Halvings in the search for the least memory between two sizes.
const HALVINGS: usize = 4;

/// Simulates the sizes and prints what they cost.
///
/// # Errors
/// Where the trace is wrong or a run fails.
pub fn plan(options: &PlanOptions) -> Result<ExitCode> {
    let Some(entry) = policy::named(&options.policy) else {
        return usage(format!(
            "there is no policy {}; see `oversub simulate --list`",
            options.policy
        ));
    };
    let name = options.machine.as_deref().unwrap_or(machine::DEFAULT);
    let Some(mut machine) = machine::named(name) else {
        return usage(format!(
            "there is no machine {name}; see `oversub simulate --list`"
        ));
    };
    options.costs.apply(&mut machine);
    let program = read(&options.trace, &options.costs.variant())?;
    let links = if options.links.is_empty() {
        &Link::ALL[..]
    } else {
        &options.links
    };
    let planner = Planner {
        program: &program,
        machine,
        entry,
        options: run::Options {
            lifetimes: options.costs.lifetimes(),
            timeline: false,
            explain: None,
            seed: 0,
            engine_cost: false,
            without: Default::default(),
        },
        sizes: sizes(program.footprint_bytes()),
    };
    let plan = planner.plan(links, &pool(options.threads)?)?;
    if options.json {
        println!("{}", serde_json::to_string(&plan)?);
    } else {
        print!("{}", text(&plan, &planner.sizes));
    }
    Ok(ExitCode::SUCCESS)
}

struct Planner<'a> {
    program: &'a Program,
    machine: Machine,
    entry: &'static Entry,
    options: run::Options,
    sizes: Vec<SizePoint>,
}

impl Planner<'_> {
    fn plan(&self, links: &[Link], pool: &rayon::ThreadPool) -> Result<PlanResult> {
        let progress = Mutex::new(Progress::new(links.len() * self.sizes.len()));
        let curves = pool.install(|| {
            links
                .par_iter()
                .map(|link| self.curve(*link, &progress))
                .collect::<Result<Vec<_>>>()
        })?;
        if let Ok(progress) = progress.into_inner() {
            progress.done();
        }
        Ok(PlanResult {
            trace: self.program.name().to_owned(),
            policy: self.entry.name.to_owned(),
            footprint_bytes: self.program.footprint_bytes(),
            ideal_us: self.program.ideal_steady().as_micros_f64(),
            links: curves,
        })
    }

    fn curve(&self, link: Link, progress: &Mutex<Progress>) -> Result<Curve> {
        let points = self
            .sizes
            .par_iter()
            .map(|size| {
                if let Ok(mut progress) = progress.lock() {
                    let memory = Size(size.memory_bytes);
                    progress.step(format!(
                        "{}: {}, {memory}",
                        self.program.name(),
                        link.name()
                    ));
                }
                self.point(link, size)
            })
            .collect::<Result<Vec<_>>>()?;
        let mut within = [1.05, 1.20]
            .into_par_iter()
            .map(|most| self.least(link, &points, most))
            .collect::<Result<Vec<_>>>()?
            .into_iter();
        Ok(Curve {
            link: link.name().to_owned(),
            link_in: link.rate(),
            link_out: link.rate(),
            within_5_percent: within.next().flatten(),
            within_20_percent: within.next().flatten(),
            points,
        })
    }

    /// The least memory with which the slowdown is at most `most`: of the sizes looked at,
    /// the least for which it holds, then halving the step to the next smaller one.
    fn least(&self, link: Link, points: &[Point], most: f64) -> Result<Option<Point>> {
        let Some(index) = points.iter().rposition(|point| point.slowdown <= most) else {
            return Ok(None);
        };
        let mut enough = points[index].clone();
        let Some(smaller) = points.get(index + 1) else {
            return Ok(Some(enough));
        };
        let mut too_small = smaller.memory_bytes;
        for _ in 0..HALVINGS {
            let middle = u64::midpoint(enough.memory_bytes, too_small) / BLOCK_BYTES * BLOCK_BYTES;
            if middle <= too_small {
                break;
            }
            let size = SizePoint {
                memory_bytes: middle,
                card: None,
            };
            let point = self.point(link, &size)?;
            if point.slowdown <= most {
                enough = point;
            } else {
                too_small = middle;
            }
        }
        Ok(Some(enough))
    }

    fn point(&self, link: Link, size: &SizePoint) -> Result<Point> {
        let mut machine = machine_with(&self.machine, size.memory_bytes, self.program)?;
        machine.link_in = Rate(link.rate());
        machine.link_out = Rate(link.rate());
        machine.link_total = None;
        let outcome =
            run::run(self.program, &machine, self.entry, self.options).with_context(|| {
                format!(
                    "{} under {} with {} over {}",
                    self.program.name(),
                    self.entry.name,
                    Size(size.memory_bytes),
                    link.name()
                )
            })?;
        let steady = outcome.steady();
        Ok(Point {
            memory_bytes: size.memory_bytes,
            card: size.card.map(str::to_owned),
            ratio: self.program.footprint_bytes() as f64 / size.memory_bytes as f64,
            iteration_us: steady.time.as_micros_f64(),
            slowdown: steady.time.0 as f64 / steady.ideal.0.max(1) as f64,
            bytes_in: steady.totals.bytes_in,
            bytes_out: steady.totals.bytes_out,
        })
    }
}

/// For people: sizes down, links across.
fn text(plan: &PlanResult, sizes: &[SizePoint]) -> String {
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    let mut out = format!(
        "{}: footprint {}, {} per iteration with everything resident\nslowdown under {}, by device memory and link\n\n",
        plan.trace,
        gib(plan.footprint_bytes),
        time(plan.ideal_us),
        plan.policy
    );
    let links: Vec<String> = plan
        .links
        .iter()
        .map(|link| format!("{} {:.0} GB/s", link.link, link.link_in as f64 / 1e9))
        .collect();
    let mut head = vec!["device memory", "card", "of footprint"];
    head.extend(links.iter().map(String::as_str));
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (index, size) in sizes.iter().enumerate() {
        let part = 100.0 * size.memory_bytes as f64 / plan.footprint_bytes.max(1) as f64;
        let mut row = vec![
            gib(size.memory_bytes),
            size.card.unwrap_or("").to_owned(),
            format!("{part:.0} %"),
        ];
        let points = plan.links.iter().filter_map(|link| link.points.get(index));
        row.extend(points.map(|point| format!("{:.2}", point.slowdown)));
        rows.push(row);
    }
    type Pick = fn(&Curve) -> Option<&Point>;
    let picks: [(&str, Pick); 2] = [
        ("least within 5 %", |curve| curve.within_5_percent.as_ref()),
        ("least within 20 %", |curve| {
            curve.within_20_percent.as_ref()
        }),
    ];
    for (words, pick) in picks {
        let mut row = vec![words.to_owned(), String::new(), String::new()];
        let least = |curve| pick(curve).map_or("none".to_owned(), |point| gib(point.memory_bytes));
        row.extend(plan.links.iter().map(least));
        rows.push(row);
    }
    out.push_str(&aligned_rows(&head, &rows));
    out.push_str(&format!(
        "\nA card's line has its memory less {} for the driver's context, a round figure.\n",
        Size(sizes::CONTEXT_BYTES)
    ));
    out
}
