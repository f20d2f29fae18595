//! `oversub-vm`: builds guests, boots them and judges what they answer. `tests/vm/run`
//! installs what it needs and calls it.

mod judge;
mod probed;
mod product;
mod report;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use oversub_vm::boot::Guest;
use oversub_vm::cache::Cache;
use oversub_vm::combination::{Combination, Model};
use oversub_vm::image::Image;
use oversub_vm::kernel::KernelTree;
use oversub_vm::modules::{self, Modules};
use oversub_vm::packages::{Apt, Suite, Unavailable};
use oversub_vm::plan::{
    DAEMON_CONFIG_PATH, FaultLoad, MODULES_PATH, PLAN_PATH, PROGRAMS_PATH, Plan, ProbeLoad,
    ProgramLoad, Round, Steering, Work,
};

use crate::report::Verdict;

/// Exit status where a guest could not be tried.
const SKIPPED: u8 = 77;
/// Memory of a guest, MiB.
const GUEST_MIB: u32 = 1536;

/// What the product's rounds need in the guest.
const SHIPPED: &[&str] = &[
    "liboversub.so",
    "liboversub_softgpu.so",
    "oversubd",
    "sweep",
    "train",
];
/// The defaults are for GPUs larger than the guests'.
const DAEMON_CONFIG: &str = "[engine]\ndevice_reserve = \"2MiB\"\ninflight = \"4MiB\"\n";
/// The GPU's memory in the rounds that count faults, MiB.
const FAULTS_MIB: u64 = 16;
/// The GPU's memory in the product's rounds, MiB, and the programs' in parts of it.
const PRODUCT_MIB: u64 = 16;
const PRODUCT_RATIO: f64 = 1.5;

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
    /// Kill a guest that runs longer, seconds
    #[arg(long, default_value_t = 600)]
    limit: u64,
    /// Source of the stand-in for nvidia.ko
    #[arg(long, value_name = "FOLDER")]
    device: PathBuf,
    /// What long steps made, kept between runs
    #[arg(long, value_name = "FOLDER")]
    cache: PathBuf,
    /// Where init of the guests is built, and the programs that run in them
    #[arg(long, value_name = "FOLDER")]
    programs: PathBuf,
    /// Run workloads with and without oversub too, in the first guest
    #[arg(long)]
    product: bool,
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
    let folder = options.cache.join("runs").join(combination.to_string());
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("image.cpio");
    let mut image = Image::create(&path)?;
    let mut plan = fault_plan();
    plan.rounds
        .extend(probe_rounds(combination, &modules.version));
    image.add_linked("/init", &options.programs.join("oversub-guest"))?;
    if options.product {
        plan.rounds.extend(product_rounds());
        for program in SHIPPED {
            let from = options.programs.join(program);
            image.add_linked(&format!("{PROGRAMS_PATH}/{program}"), &from)?;
        }
        image.add(DAEMON_CONFIG_PATH, DAEMON_CONFIG.as_bytes())?;
    }
    image.add(PLAN_PATH, serde_json::to_string(&plan)?.as_bytes())?;
    for module in ["nvidia.ko", "nvidia-uvm.ko"] {
        let content = modules.content(module, combination.btf)?;
        image.add(&format!("{MODULES_PATH}/{module}"), &content)?;
    }
    image.finish()?;
    let guest = Guest {
        kernel: kernel.image,
        image: path,
        logs: folder,
        memory_mib: GUEST_MIB,
        limit: Duration::from_secs(options.limit),
    };
    let answer = guest.run()?;
    Ok(judge::judge(combination, &modules.version, &plan, answer))
}

/// What every guest does: count faults on both models, and see that lost data is noticed.
fn fault_plan() -> Plan {
    let round = |name: &str, model, drop_copies, stride| Round {
        name: name.to_owned(),
        model,
        memory_mib: FAULTS_MIB,
        drop_copies,
        work: Work::Faults(FaultLoad {
            ratio: 1.5,
            sweeps: 1,
            stride,
        }),
    };
    Plan {
        rounds: vec![
            round(judge::COUNTS, Model::Pascal, false, 4096),
            round("counts, turing", Model::Turing, false, 16384),
            round(judge::CONTROL, Model::Pascal, true, 16384),
        ],
    }
}

/// The product's probes: as they are, on a driver that is loaded anew under them, with the
/// layouts of other drivers, and where the module has BTF attached by it.
fn probe_rounds(combination: Combination, driver: &str) -> Vec<Round> {
    let round = |name: &str, load| Round {
        name: name.to_owned(),
        model: Model::Pascal,
        memory_mib: FAULTS_MIB,
        drop_copies: false,
        work: Work::Probes(load),
    };
    let fine = ProbeLoad {
        ratio: 1.5,
        sweeps: 2,
        stride: 4096,
        layout_of: None,
        pin_driver: false,
        reload: false,
    };
    let coarse = ProbeLoad {
        stride: 16384,
        ..fine.clone()
    };
    let layout_of = |version: &str| ProbeLoad {
        layout_of: Some(version.to_owned()),
        ..coarse.clone()
    };
    // Other faults' layout, which the self-test sees; and the right one with other
    // migrations', which only migrations show.
    let other_migrations = if driver.starts_with("535.") {
        "550.163.01"
    } else {
        "535.183.01"
    };
    let reload = ProbeLoad {
        reload: true,
        ..coarse.clone()
    };
    let mut rounds = vec![
        round(judge::PROBES, fine),
        round("probes, driver loaded anew", reload),
        round("probes, layout of 580", layout_of("580.142")),
        round("probes, other migrations", layout_of(other_migrations)),
    ];
    if combination.btf {
        let pinned = ProbeLoad {
            pin_driver: true,
            ..coarse
        };
        rounds.push(round("probes by module BTF", pinned));
    }
    rounds
}

/// Each program alone and with oversub, at two lengths.
fn product_rounds() -> Vec<Round> {
    let mut rounds = Vec::new();
    for program in judge::PROGRAMS {
        for steering in [Steering::Driver, Steering::Oversub] {
            for iterations in product::ITERATIONS {
                rounds.push(Round {
                    name: format!("{program} x {iterations}, {steering:?}").to_lowercase(),
                    model: Model::Pascal,
                    memory_mib: PRODUCT_MIB,
                    drop_copies: false,
                    work: Work::Program(ProgramLoad {
                        program: program.to_owned(),
                        bytes: ((PRODUCT_MIB << 20) as f64 * PRODUCT_RATIO) as u64,
                        iterations,
                        steering,
                    }),
                });
            }
        }
    }
    rounds
}
