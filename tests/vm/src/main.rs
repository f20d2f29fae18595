//! `oversub-vm`: builds guests, boots them and judges what they answer. `tests/vm/run`
//! installs what it needs and calls it.

mod judge;
mod permissions;
mod probed;
mod product;
mod report;
mod rounds;
mod scraped;
mod sources;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Parser;
use oversub_vm::boot::Guest;
use oversub_vm::cache::Cache;
use oversub_vm::combination::Combination;
use oversub_vm::image::Image;
use oversub_vm::kernel::KernelTree;
use oversub_vm::modules::{self, Modules};
use oversub_vm::packages::{Apt, Suite, Unavailable};
use oversub_vm::plan::{Answer, DAEMON_CONFIG_PATH, MODULES_PATH, PLAN_PATH, PROGRAMS_PATH, Plan};

use crate::report::Verdict;

/// Exit status where a guest could not be tried.
const SKIPPED: u8 = 77;
/// Memory of a guest, MiB.
const GUEST_MIB: u32 = 1536;
/// How long hostile processes run, seconds of the guest: in one guest of all, and else.
const HOSTILE_LONG: u32 = 60;
const HOSTILE_SHORT: u32 = 2;
/// Processor time after which a guest of the one kind and of the other hangs, seconds: several
/// times what it takes.
const LIMIT_LONG: u64 = 1500;
const LIMIT_SHORT: u64 = 600;

/// The defaults are for GPUs larger than the guests'.
const DAEMON_CONFIG: &str = "[engine]\ndevice_reserve = \"2MiB\"\ninflight = \"4MiB\"\n";

#[derive(Debug, Parser)]
#[command(about = "Runs the real nvidia-uvm in QEMU guests, with a software GPU behind it")]
struct Options {
    /// Every driver, flavour, kernel and BTF that Debian's packages allow, not only the default
    #[arg(long)]
    all: bool,
    /// Only combinations whose name contains this, of all (535-open-6.1-nobtf, ...)
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Print the results as JSON too
    #[arg(long)]
    json: bool,
    /// Kill a guest that takes more of the processors, seconds [default: 600, with --all 1500]
    #[arg(long, value_name = "SECONDS")]
    limit: Option<u64>,
    /// Source of the stand-in for nvidia.ko
    #[arg(long, value_name = "FOLDER")]
    device: PathBuf,
    /// What long steps made, kept between runs
    #[arg(long, value_name = "FOLDER")]
    cache: PathBuf,
    /// Where init of the guests is built, and the programs that run in them
    #[arg(long, value_name = "FOLDER")]
    programs: PathBuf,
    /// Run workloads with and without oversub in every guest, not only in the default one, and
    /// steer by the event queue too
    #[arg(long)]
    product: bool,
    /// Only rounds whose name contains this, to look into one: what needs others fails
    #[arg(long, value_name = "TEXT")]
    rounds: Option<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(End::Passed) => ExitCode::SUCCESS,
        Ok(End::Failed) => ExitCode::FAILURE,
        Ok(End::Skipped) => ExitCode::from(SKIPPED),
        Err(error) => {
            eprintln!("tests/vm: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// How all guests together went.
enum End {
    Passed,
    Failed,
    /// Some could not be tried here, and none failed.
    Skipped,
}

/// Tells whoever runs the suites what did not run: a line in the file that they name.
fn note_skip(combination: Combination, reason: &str) -> Result<()> {
    eprintln!("skipped {combination}: {reason}");
    if let Some(path) = std::env::var_os("OVERSUB_TEST_SKIPS") {
        let mut file = std::fs::File::options()
            .append(true)
            .create(true)
            .open(path)?;
        let first = reason.lines().next().unwrap_or_default();
        writeln!(file, "real driver in a guest, {combination}: {first}")?;
    }
    Ok(())
}

fn run(options: &Options) -> Result<End> {
    std::fs::create_dir_all(&options.cache)
        .with_context(|| format!("cannot make {}", options.cache.display()))?;
    // One run at a time: the cache's folders are changed in place.
    let lock = std::fs::File::create(options.cache.join("lock"))?;
    lock.lock().context("the cache cannot be locked")?;
    let chosen: Vec<_> = match &options.only {
        Some(text) => Combination::all()
            .into_iter()
            .filter(|combination| combination.to_string().contains(text.as_str()))
            .collect(),
        None if options.all => Combination::all(),
        None => vec![Combination::DEFAULT],
    };
    ensure!(!chosen.is_empty(), "no combination has such a name");
    let mut results = Vec::new();
    let mut skipped = false;
    for combination in chosen {
        let began = Instant::now();
        let result = match one(options, combination) {
            Ok(result) => result,
            Err(error) if error.is::<Unavailable>() => {
                note_skip(combination, &error.to_string())?;
                skipped = true;
                continue;
            }
            Err(error) => Verdict::failed(combination, &error),
        };
        result.print(began.elapsed());
        results.push(result);
    }
    if let Some(line) = report::not_seen(&results) {
        eprintln!("{line}");
    }
    if options.json {
        println!("{}", report::json(&results));
    }
    Ok(match results.iter().all(|result| result.passed) {
        false => End::Failed,
        true if skipped => End::Skipped,
        true => End::Passed,
    })
}

fn prepare(options: &Options, combination: Combination) -> Result<(KernelTree, Modules)> {
    let cache = Cache::new(options.cache.canonicalize()?);
    let bookworm = Apt::open(&cache, Suite::Bookworm)?;
    let kernel = KernelTree::get(&cache, &bookworm, combination.build.kernel)?;
    let modules = modules::get(
        &cache,
        &bookworm,
        &kernel,
        combination.build,
        &options.device,
    )?;
    Ok((kernel, modules))
}

fn one(options: &Options, combination: Combination) -> Result<Verdict> {
    let (kernel, modules) = prepare(options, combination)?;
    let is_default = combination == Combination::DEFAULT;
    let (hostile_seconds, limit) = match options.all && is_default {
        true => (HOSTILE_LONG, LIMIT_LONG),
        false => (HOSTILE_SHORT, LIMIT_SHORT),
    };
    let mut driver = rounds::of_driver(combination, &modules.version, hostile_seconds);
    let mut product = Vec::new();
    if options.product || is_default {
        let whole = options.product || options.all;
        let (with_driver, rest) = rounds::of_product(whole);
        driver.extend(with_driver);
        product = rest;
    }
    // What it does to the kernel cannot be undone.
    driver.push(rounds::source());
    let mut guests = vec![("driver", driver), ("product", product)];
    if let Some(text) = &options.rounds {
        for (_, rounds) in &mut guests {
            rounds.retain(|round| round.name.contains(text.as_str()));
        }
    }
    guests.retain(|(_, rounds)| !rounds.is_empty());
    ensure!(!guests.is_empty(), "no round has such a name");
    let folder = options.cache.join("runs").join(combination.to_string());
    let mut plan = Plan { rounds: Vec::new() };
    let mut prepared = Vec::new();
    for (name, rounds) in guests {
        let logs = folder.join(name);
        std::fs::create_dir_all(&logs)?;
        let image = logs.join("image.cpio");
        let part = Plan { rounds };
        write_image(&image, &part, &modules, options, combination)?;
        plan.rounds.extend(part.rounds);
        prepared.push(Guest {
            kernel: kernel.image.clone(),
            image,
            logs,
            memory_mib: GUEST_MIB,
            limit: Duration::from_secs(options.limit.unwrap_or(limit)),
        });
    }
    let before = children_seconds();
    let answer = together(&prepared)?;
    let mut verdict = judge::judge(combination, &modules.version, &plan, answer);
    verdict.processor_seconds = children_seconds() - before;
    verdict.self_checks = kernel.self_checks()?;
    Ok(verdict)
}

fn write_image(
    path: &Path,
    plan: &Plan,
    modules: &Modules,
    options: &Options,
    combination: Combination,
) -> Result<()> {
    let mut image = Image::create(path)?;
    image.add_linked("/init", &options.programs.join("oversub-guest"))?;
    let programs: BTreeSet<_> = plan.rounds.iter().flat_map(rounds::programs).collect();
    for program in programs {
        let from = options.programs.join(program);
        image.add_linked(&format!("{PROGRAMS_PATH}/{program}"), &from)?;
    }
    image.add(DAEMON_CONFIG_PATH, DAEMON_CONFIG.as_bytes())?;
    image.add(PLAN_PATH, serde_json::to_string(plan)?.as_bytes())?;
    for module in ["nvidia.ko", "nvidia-uvm.ko"] {
        let content = modules.content(module, combination.btf)?;
        image.add(&format!("{MODULES_PATH}/{module}"), &content)?;
    }
    image.finish()
}

/// Runs guests at the same time: each keeps one of the host's processors busy. Their answers
/// as one, in their order.
fn together(guests: &[Guest]) -> Result<Answer> {
    let answers: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = guests
            .iter()
            .map(|guest| scope.spawn(|| guest.run()))
            .collect();
        running.into_iter().map(|thread| thread.join()).collect()
    });
    let mut whole: Option<Answer> = None;
    for answer in answers {
        let answer = answer.map_err(|_| anyhow!("a guest's thread panicked"))??;
        match &mut whole {
            None => whole = Some(answer),
            Some(whole) => {
                whole.boot_seconds = whole.boot_seconds.max(answer.boot_seconds);
                whole.rounds.extend(answer.rounds);
                whole.kernel_trouble.extend(answer.kernel_trouble);
            }
        }
    }
    whole.context("no guest was planned")
}

/// Processor time of all children that have ended.
fn children_seconds() -> f64 {
    // SAFETY: zeros are a value of this type, which the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
