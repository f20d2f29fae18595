//! All runs that were asked for, in parallel: traces are read once each, shared by their
//! runs, and let go when those are done. Results come in the order of the arguments,
//! whatever the number of threads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use oversub_engine::{Bytes, Config, PolicyKind, Profile};
use oversub_sim::bound::{Bound, Bounds, Deaths, Effort, Reach};
use oversub_sim::machine::Machine;
use oversub_sim::policy::Entry;
use oversub_sim::run::{self, Outcome};
use oversub_sim::trace::{self, Program};
use oversub_sim::units::BLOCK_BYTES;
use rayon::iter::{IntoParallelIterator, ParallelBridge, ParallelIterator};

use super::result::{Engine, Prefetch, RunResult};
use super::variant::Variant;
use crate::progress::Progress;
use crate::size::Size;
use crate::usage::{Usage, usage};

/// How much device memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Memory {
    /// The trace's footprint over this.
    Ratio(f64),
    /// So many bytes.
    Bytes(u64),
}

impl Memory {
    /// Bytes for a trace.
    pub fn bytes(self, program: &Program) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Ratio(ratio) => (program.footprint_bytes() as f64 / ratio) as u64,
        }
    }
}

/// What to run.
pub struct Grid {
    /// Files.
    pub traces: Vec<PathBuf>,
    /// Policies, each once.
    pub policies: Vec<&'static Entry>,
    /// Sizes of device memory.
    pub memories: Vec<Memory>,
    /// The machine, but for its memory.
    pub machine: Machine,
    /// How programs differ from their traces.
    pub variant: Variant,
    /// How each is run.
    pub options: run::Options,
    /// What runs begin with and leave.
    pub profiles: Profiles,
    /// Where the only run's timeline goes.
    pub timeline: Option<PathBuf>,
}

/// What runs begin with and leave.
#[derive(Debug, Default)]
pub struct Profiles {
    /// Each run is the second one, with what the first one taught.
    pub warm: bool,
    /// The only run begins with this.
    pub read: Option<PathBuf>,
    /// The only run leaves this.
    pub write: Option<PathBuf>,
}

/// The results of one trace.
#[derive(Debug)]
pub struct OfTrace {
    /// The trace's footprint.
    pub footprint_bytes: u64,
    /// One for each size of memory.
    pub sizes: Vec<OfSize>,
}

/// The results of one trace with one size of device memory.
#[derive(Debug)]
pub struct OfSize {
    /// Device memory.
    pub memory_bytes: u64,
    /// The bounds of the classes that its runs are in, and of those that know the future too.
    pub bounds: BTreeMap<Class, Bound>,
    /// One for each policy.
    pub runs: Vec<Result<RunResult>>,
}

/// Threads for runs: as asked for, or all processors.
///
/// # Errors
/// Where they cannot be started.
pub fn pool(threads: Option<NonZeroUsize>) -> Result<rayon::ThreadPool> {
    let threads = threads
        .or_else(|| std::thread::available_parallelism().ok())
        .map_or(1, NonZeroUsize::get);
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .with_context(|| format!("cannot start {threads} threads (give a smaller --threads)"))
}

/// Reads a trace, and makes the program of it that is to be run.
///
/// # Errors
/// [`Usage`] with file, line and what is wrong, or why it cannot be repeated.
pub fn read(path: &Path, variant: &Variant) -> Result<Program> {
    let program = trace::read(path).map_err(|error| Usage(error.to_string()))?;
    let varied = variant.of(program);
    Ok(varied.map_err(|error| Usage(format!("{}: {error}", path.display())))?)
}

/// A machine with this much memory.
///
/// # Errors
/// [`Usage`] where that is not even one block.
pub fn machine_with(machine: &Machine, memory_bytes: u64, program: &Program) -> Result<Machine> {
    if memory_bytes < BLOCK_BYTES {
        return usage(format!(
            "{}: device memory of {} is less than one block of 2 MiB (the footprint is {})",
            program.name(),
            Size(memory_bytes),
            Size(program.footprint_bytes())
        ));
    }
    Ok(Machine {
        memory_bytes,
        ..machine.clone()
    })
}

/// What a bound is of: how schedules come to know of deaths, and what they may use on the host.
pub type Class = (Deaths, Reach);

impl Grid {
    /// Runs all.
    ///
    /// # Errors
    /// Where a trace cannot be read, or a result cannot be written. A single run that
    /// fails is an error in its own place.
    pub fn run(&self, pool: &rayon::ThreadPool) -> Result<Vec<OfTrace>> {
        let each = self.memories.len() * self.policies.len();
        let progress = Mutex::new(Progress::new(self.traces.len() * each));
        let failed = AtomicBool::new(false);
        let mut results: Vec<(usize, Result<OfTrace>)> = pool.install(|| {
            self.traces
                .iter()
                .enumerate()
                .par_bridge()
                .filter(|_| !failed.load(Ordering::Relaxed))
                .map(|(index, path)| {
                    let result = self.trace(path, &progress);
                    failed.fetch_or(result.is_err(), Ordering::Relaxed);
                    (index, result)
                })
                .collect()
        });
        if let Ok(progress) = progress.into_inner() {
            progress.done();
        }
        results.sort_by_key(|(index, _)| *index);
        results.into_iter().map(|(_, result)| result).collect()
    }

    fn trace(&self, path: &Path, progress: &Mutex<Progress>) -> Result<OfTrace> {
        let program = read(path, &self.variant)?;
        let machines = self
            .memories
            .iter()
            .map(|memory| machine_with(&self.machine, memory.bytes(&program), &program))
            .collect::<Result<Vec<_>>>()?;
        let each = self.policies.len();
        let runs: Vec<Result<(RunResult, Reach)>> = (0..machines.len() * each)
            .into_par_iter()
            .map(|index| {
                let (machine, entry) = (&machines[index / each], self.policies[index % each]);
                step(progress, &program, machine, entry.name);
                self.one(&program, machine, entry)
            })
            .collect();
        // What a run has used on the host says which bounds are wanted.
        let class = |index: usize, reach: Reach| (self.policies[index % each].deaths(), reach);
        let of_runs = runs.iter().enumerate();
        let wanted: BTreeSet<(usize, Class)> = of_runs
            .filter_map(|(index, run)| Some((index, run.as_ref().ok()?.1)))
            .flat_map(|(index, reach)| {
                let any = (Deaths::Foreseen, reach.max(Reach::Indexed));
                [class(index, reach), any].map(|class| (index / each, class))
            })
            .collect();
        let found = self.bounds(&program, &machines, wanted);
        let mut runs = runs.into_iter().enumerate();
        let sizes = machines.iter().enumerate().map(|(size, machine)| OfSize {
            memory_bytes: machine.memory_bytes,
            bounds: found
                .iter()
                .filter(|((at, _), _)| *at == size)
                .map(|((_, class), bound)| (*class, *bound))
                .collect(),
            runs: runs
                .by_ref()
                .take(each)
                .map(|(index, run)| {
                    let (run, reach) = run?;
                    let any = (Deaths::Foreseen, reach.max(Reach::Indexed));
                    let of = |class| found.get(&(size, class));
                    let own = of(class(index, reach));
                    // What holds for all holds for it, and may have been found to be stronger.
                    let own = own
                        .into_iter()
                        .chain(of(any))
                        .max_by_key(|bound| bound.time);
                    Ok(match (own, of(any)) {
                        (Some(bound), Some(any)) => RunResult {
                            bound_us: bound.time.as_micros_f64(),
                            future_bound_us: any.time.as_micros_f64(),
                            bound: bound.name.to_owned(),
                            bound_class: bound.class.to_owned(),
                            ..run
                        },
                        _ => run,
                    })
                })
                .collect(),
        });
        let sizes = sizes.collect();
        Ok(OfTrace {
            footprint_bytes: program.footprint_bytes(),
            sizes,
        })
    }

    /// The bounds that are wanted of each size. Where nothing is used by an index, the reach
    /// of those that may use that on the host is none.
    fn bounds(
        &self,
        program: &Program,
        machines: &[Machine],
        wanted: BTreeSet<(usize, Class)>,
    ) -> BTreeMap<(usize, Class), Bound> {
        let least = |(size, (deaths, reach)): (usize, Class)| match reach {
            Reach::Indexed if !program.has_indexed() => (size, (deaths, Reach::Nothing)),
            _ => (size, (deaths, reach)),
        };
        let classes: BTreeSet<Class> = wanted.iter().map(|&one| least(one).1).collect();
        let prepared: BTreeMap<Class, Bounds> = classes
            .into_par_iter()
            .map(|(deaths, reach)| {
                let class = (self.options.lifetimes, deaths);
                let bounds = Bounds::reaching(program, &self.machine, class, reach);
                ((deaths, reach), bounds)
            })
            .collect();
        let distinct: BTreeSet<(usize, Class)> = wanted.iter().copied().map(least).collect();
        let found: BTreeMap<(usize, Class), Bound> = distinct
            .into_par_iter()
            .filter_map(|(size, class)| {
                let bounds = prepared.get(&class)?;
                let bound = bounds.strongest(machines[size].memory_bytes, Effort::Full);
                Some(((size, class), bound))
            })
            .collect();
        let all = wanted.into_iter();
        all.filter_map(|one| Some((one, *found.get(&least(one))?)))
            .collect()
    }

    fn one(
        &self,
        program: &Program,
        machine: &Machine,
        entry: &Entry,
    ) -> Result<(RunResult, Reach)> {
        let run = |profile: Option<&Profile>| {
            let outcome = run::run_from(program, machine, entry, self.options, profile);
            outcome.with_context(|| {
                format!(
                    "{} under {} with {}",
                    program.name(),
                    entry.name,
                    Size(machine.memory_bytes)
                )
            })
        };
        let learned = match &self.profiles {
            Profiles { warm: true, .. } => run(None)?.profile,
            Profiles { read, .. } => read.as_deref().and_then(read_profile),
        };
        let outcome = run(learned.as_ref())?;
        if let Some(path) = &self.profiles.write {
            let Some(profile) = &outcome.profile else {
                bail!(
                    "{} learns nothing: there is no profile to write",
                    entry.name
                );
            };
            std::fs::write(path, profile.encode())
                .with_context(|| format!("cannot write the profile {}", path.display()))?;
        }
        if let Some(path) = &self.timeline {
            write_timeline(path, &outcome, program, machine, entry)?;
        }
        let result = result(program, machine, entry, &outcome);
        Ok((result, outcome.reach))
    }
}

/// A profile, if it can be used. Otherwise the run goes on cold, and it is said why.
fn read_profile(path: &Path) -> Option<Profile> {
    let any = Config::new(PolicyKind::Foresight, Bytes(u64::MAX));
    let profile = std::fs::read(path)
        .map_err(anyhow::Error::from)
        .and_then(|bytes| Ok(Profile::decode(&bytes, &any)?));
    match profile {
        Ok(profile) => Some(profile),
        Err(error) => {
            let path = path.display();
            eprintln!("oversub: the profile {path} is not used, the run begins cold: {error:#}");
            None
        }
    }
}

fn step(progress: &Mutex<Progress>, program: &Program, machine: &Machine, what: &str) {
    if let Ok(mut progress) = progress.lock() {
        let memory = Size(machine.memory_bytes);
        progress.step(format!("{}: {what}, {memory}", program.name()));
    }
}

/// A run's figures, still without its bound.
fn result(program: &Program, machine: &Machine, entry: &Entry, outcome: &Outcome) -> RunResult {
    let steady = outcome.steady();
    let totals = steady.totals;
    RunResult {
        trace: program.name().to_owned(),
        policy: entry.name.to_owned(),
        memory_bytes: machine.memory_bytes,
        iteration_us: steady.time.as_micros_f64(),
        first_iteration_us: outcome.first().time.as_micros_f64(),
        iterations_us: outcome
            .iterations
            .iter()
            .map(|iteration| iteration.time.as_micros_f64())
            .collect(),
        ideal_us: steady.ideal.as_micros_f64(),
        bound_us: 0.0,
        future_bound_us: 0.0,
        bound: String::new(),
        bound_class: String::new(),
        bytes_in: totals.bytes_in,
        bytes_out: totals.bytes_out,
        host_read: totals.host_read,
        host_written: totals.host_written,
        faults: totals.faults,
        prefetch: Prefetch {
            issued: totals.prefetch_issued,
            useful: totals.prefetch_useful,
            late: totals.prefetch_late,
            wasted: totals.prefetch_wasted,
        },
        engine: outcome.engine.map(|engine| Engine {
            ns_per_event: engine.nanos_per_event,
            table_bytes: engine.table_bytes,
        }),
    }
}

fn write_timeline(
    path: &Path,
    outcome: &Outcome,
    program: &Program,
    machine: &Machine,
    entry: &Entry,
) -> Result<()> {
    let Some(timeline) = &outcome.timeline else {
        return Ok(());
    };
    let title = format!(
        "{}, {}, {} of device memory",
        program.name(),
        entry.name,
        Size(machine.memory_bytes)
    );
    let write = || {
        let mut out = BufWriter::new(File::create(path)?);
        timeline.write_chrome(&mut out, &title, program)?;
        out.flush()
    };
    write().with_context(|| format!("cannot write the timeline {}", path.display()))?;
    if timeline.dropped() > 0 {
        eprintln!(
            "{}: {} events are left out: there were too many",
            path.display(),
            timeline.dropped()
        );
    }
    Ok(())
}
