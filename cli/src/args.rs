//! Commands and their options, as `--help` shows them.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::plan::options::PlanOptions;
use crate::simulate::options::SimulateOptions;
use crate::size::{Rate, Size};
use crate::why::Address;

/// Where the daemon listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/oversub/oversubd.sock";

/// Lets any CUDA program use more GPU memory than the GPU has
///
/// `oversub run -- CMD` runs a program; `oversub demo` shows what that brings, on a
/// built-in software GPU where there is no real one.
#[derive(Debug, Parser)]
#[command(name = "oversub", version, max_term_width = 100)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run built-in workloads with and without oversub and compare
    ///
    /// Each workload program runs in several modes, in turn: `resident`, with enough
    /// device memory for all of it and without oversub; `driver`, with managed memory and
    /// the driver's own paging; `oversub`; and `deepum`, if asked for. Progress goes to
    /// standard error, the result to standard output: medians over --runs.
    ///
    /// "of bound" is the time over a lower bound that no policy can beat: the larger of
    /// the resident time and the time in which what cannot stay on the device comes in
    /// over the link. Per iteration that is the content that the program has at one moment
    /// and reads again before the same moment of the next iteration, less the device
    /// memory.
    ///
    /// On a real GPU the device is never oversubscribed: the working set stays well
    /// inside free memory, and --memory is a budget that oversub keeps. The comparison
    /// there is `demand`: the driver's order of eviction, within the same budget.
    Demo(DemoOptions),
    /// Run a program with more GPU memory than the GPU has
    ///
    /// The program is not changed. A library is preloaded into it that turns its GPU
    /// memory into managed memory, which the daemon moves ahead of need. oversub then
    /// becomes the program: output, signals and exit status are the program's own.
    ///
    /// Frameworks that keep dead memory in a cache of their own (PyTorch, JAX,
    /// TensorFlow) are asked to allocate in stream order instead, by environment
    /// variables that you have not set yourself; each one set is said on standard error.
    /// CuPy can be told only in code:
    /// cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc).
    ///
    /// Where no daemon answers at the socket, one is started that ends with the program.
    Run(RunOptions),
    /// Simulate recorded programs with less device memory, under any policy
    ///
    /// Plays each TRACE through a model of nvidia-uvm, with every size of device memory and
    /// under every policy asked for, and prints the time of an iteration, what moved, and
    /// how far that is from a lower bound that no policy can beat. Figures are means over
    /// steady iterations: from the third to the last but one, each taken to begin where most
    /// memory is handed out. The same command prints the same bytes, whatever the number of
    /// threads.
    ///
    ///   oversub simulate gpt2.trace.jsonl.zst --policy driver,foresight --ratio 1.1,1.5,2
    ///
    ///   oversub simulate traces/ --policy all --memory 24GiB --json > results/24g.json
    #[command(verbatim_doc_comment)]
    Simulate(Box<SimulateOptions>),
    /// Tell what each size of device memory would cost a recorded program
    ///
    /// Simulates the trace with less and less device memory, by parts of its footprint and
    /// by cards as they are sold, over several links, and tells the slowdown against
    /// everything resident, and the least memory that stays within 5 % and within 20 % of
    /// full speed.
    Plan(PlanOptions),
    /// Make one HTML page from results of simulate, plan and demo
    ///
    /// Reads every .json file of a folder: what `oversub simulate --json`, `oversub plan
    /// --json` and `oversub demo --json` printed, and timelines that `oversub simulate
    /// --timeline` wrote. The page is one file that needs no network.
    Report(ReportOptions),
    /// Steer a program that already runs, from outside
    ///
    /// For programs that use managed memory by themselves (cudaMallocManaged: llama.cpp with
    /// unified memory, RAPIDS, CuPy's managed pool). Nothing is put into the program: the
    /// daemon takes its descriptor of nvidia-uvm, learns from the driver's faults in which
    /// order it uses its memory, and has the driver fetch ahead and evict. Programs that do
    /// not use managed memory are for `oversub run`.
    ///
    /// Stays until the program ends or Ctrl-C lets it go; the program runs on either way,
    /// and its results are never touched. Without a daemon, one is started for as long.
    ///
    /// The process must be wholly yours: no set-user-ID program, and none that hides itself.
    /// Besides, the kernel asks of the daemon CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH (the
    /// system's has them), or kernel.yama.ptrace_scope 0 where it is your own. Another user's
    /// process takes root, and attach.processes = "all" in the daemon's configuration or
    /// --other-user here.
    Attach(AttachOptions),
    /// Measure what oversub itself costs on this machine
    ///
    /// Everything is measured on the built-in software GPU: what the preloaded library
    /// adds to a launch, how long a command takes from the program's event to the
    /// driver call, how long a fault takes through the BPF probes to the daemon, and
    /// what one event costs the engine.
    Bench(BenchOptions),
    /// Show the daemon and its sessions, or say why blocks are where they are
    ///
    ///   oversub status --why
    ///
    ///   oversub status --why 0x7f2a40000000
    #[command(verbatim_doc_comment)]
    Status(StatusOptions),
    /// Check this machine and say what to do about what is missing
    ///
    /// Exit status 1 if anything that oversub needs is missing.
    Doctor(DoctorOptions),
    /// One process of `bench`: times launches with and without the preloaded library
    #[command(hide = true)]
    LaunchOverhead(LaunchOverheadOptions),
    /// One process of `bench`: has the daemon send commands
    #[command(hide = true)]
    Provoke(ProvokeOptions),
}

/// Which policy steers a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// oversub's own: a learned plan, next-use eviction, prefetch in deadline order
    Foresight,
    /// DeepUM (ASPLOS 2023), for comparison
    Deepum,
    /// No prefetch; keeps a budget by moving out what came in first, as the driver does
    Demand,
    /// Managed memory and the driver's own paging alone
    Driver,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Foresight => "foresight",
            Self::Deepum => "deepum",
            Self::Demand => "demand",
            Self::Driver => "driver",
        })
    }
}

#[derive(Debug, Args)]
pub struct RunOptions {
    /// Tell the program that the device has R times its memory [default: tell the truth]
    #[arg(long, value_name = "R", value_parser = at_least_one)]
    pub ratio_limit: Option<f64>,
    /// Policy that steers this program [default: the daemon's]
    #[arg(long, value_enum)]
    pub policy: Option<Policy>,
    /// Keep the program's managed memory on the device within this, e.g. 4GiB
    #[arg(long, value_name = "SIZE")]
    pub memory_budget: Option<Size>,
    /// Run on the built-in software GPU (which knows only the workload programs' kernels)
    #[arg(long)]
    pub soft: bool,
    /// Socket of the daemon [default: $OVERSUB_SOCKET or /run/oversub/oversubd.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Begin with what this file holds of an earlier run, and leave there what this run
    /// teaches (with a daemon for this program alone)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["socket", "no_daemon"])]
    pub profile: Option<PathBuf>,
    /// Do without a daemon: managed memory, prefetched at allocation while it fits
    #[arg(long, conflicts_with = "socket")]
    pub no_daemon: bool,
    /// Say nothing on standard error
    #[arg(long, short)]
    pub quiet: bool,
    /// The program and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "CMD"
    )]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct AttachOptions {
    /// Process to attach to
    #[arg(value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: u32,
    /// Return at once and leave it attached (to the system's daemon) until it ends
    #[arg(long, conflicts_with_all = ["stop", "other_user"])]
    pub leave: bool,
    /// Let a process go that was left attached
    #[arg(long, conflicts_with_all = ["other_user", "json"])]
    pub stop: bool,
    /// As root: attach to another user's process, with a daemon of this command's own
    #[arg(long)]
    pub other_user: bool,
    /// Socket of the daemon [default: $OVERSUB_SOCKET or /run/oversub/oversubd.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Print the figures as one JSON object at the end
    #[arg(long)]
    pub json: bool,
    /// Say nothing on standard error
    #[arg(long, short)]
    pub quiet: bool,
}

/// Which device the demo runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeviceChoice {
    /// The built-in software GPU
    Soft,
    /// The NVIDIA driver's first GPU
    Cuda,
}

/// A workload of the demo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WorkloadName {
    /// Cyclic read-modify-write over a large state
    Sweep,
    /// A network trained with Adam, activations in stream-ordered allocations
    Train,
    /// The same through a caching allocator of the program's own
    TrainCaching,
    /// Tiled matrix product, larger than the device
    Gemm,
    /// Random accesses that no one can predict
    Gather,
    /// A working set that fits
    Fits,
}

/// A policy of the demo, beside the driver's own paging.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DemoPolicy {
    /// The default policy, foresight
    Oversub,
    /// DeepUM
    Deepum,
}

#[derive(Debug, Args)]
pub struct DemoOptions {
    /// Working set over device memory
    #[arg(long, default_value = "1.5", value_name = "R", value_parser = at_least_one)]
    pub ratio: f64,
    /// Device to run on [default: cuda where there is an NVIDIA GPU, else soft]
    #[arg(long, value_enum)]
    pub device: Option<DeviceChoice>,
    /// Workloads to run [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME,...")]
    pub workloads: Vec<WorkloadName>,
    /// Policies to compare with the driver's own paging
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "oversub",
        value_name = "NAME,..."
    )]
    pub policies: Vec<DemoPolicy>,
    /// Runs of each mode, interleaved; the medians are shown
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub runs: u32,
    /// Memory of the soft GPU; on a real GPU the budget to keep
    #[arg(long, default_value = "512MiB", value_name = "SIZE")]
    pub memory: Size,
    /// Rate of the soft GPU's link, each way [default: 1GB/s]; on a real GPU the rate to
    /// take for the bound [default: none]
    #[arg(long, value_name = "RATE")]
    pub link: Option<Rate>,
    /// Iterations of each workload [default: the workload's own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub iterations: Option<u32>,
    /// Print one JSON value on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ReportOptions {
    /// Folder of the results
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// The page to write
    #[arg(long, short, value_name = "FILE.html")]
    pub output: PathBuf,
}

#[derive(Debug, Args)]
pub struct BenchOptions {
    /// Print one JSON value on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct StatusOptions {
    /// Say why blocks are where they are
    ///
    /// With an address in a block: where it is, when it is used next, what the engine has in
    /// mind for it, and what it decided about it. Without: the newest decisions on all blocks,
    /// each with its reason, and why nothing more is fetched or evicted now.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1)]
    pub why: Option<Option<Address>>,
    /// The session that --why is about [default: all]
    #[arg(long, value_name = "N", requires = "why")]
    pub session: Option<u64>,
    /// How many of the newest decisions --why shows
    #[arg(long, value_name = "N", requires = "why", default_value_t = 20)]
    pub newest: u64,
    /// Socket of the daemon [default: $OVERSUB_SOCKET or /run/oversub/oversubd.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Print one JSON value on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DoctorOptions {
    /// Socket of the daemon [default: $OVERSUB_SOCKET or /run/oversub/oversubd.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Print one JSON value on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct LaunchOverheadOptions {
    /// The preloaded library to measure
    #[arg(long)]
    pub shim: PathBuf,
    /// Pairs of batches to time
    #[arg(long)]
    pub batches: u32,
    /// Hold more memory than the device has
    #[arg(long)]
    pub beyond: bool,
}

/// Options of the process that `bench` starts to provoke commands.
#[derive(Debug, Args)]
pub struct ProvokeOptions {
    /// The preloaded library to measure
    #[arg(long)]
    pub shim: PathBuf,
    /// Rounds through the memory
    #[arg(long)]
    pub rounds: u32,
}

/// The socket that was asked for, by option, by environment, or by default.
pub fn socket(option: Option<&PathBuf>) -> PathBuf {
    option
        .cloned()
        .or_else(|| {
            std::env::var_os("OVERSUB_SOCKET")
                .filter(|path| !path.is_empty())
                .map(PathBuf::from)
        })
        .unwrap_or_else(|| PathBuf::from(DEFAULT_SOCKET))
}

fn at_least_one(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ratio) if (1.0..=1024.0).contains(&ratio) => Ok(ratio),
        _ => Err("must be a number from 1 to 1024, for example 1.5".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn everything_after_the_program_belongs_to_the_program() {
        let parsed =
            Arguments::parse_from(["oversub", "run", "--soft", "prog", "--soft", "-q", "--"]);
        let Command::Run(run) = parsed.command else {
            panic!("not run")
        };
        assert!(run.soft && !run.quiet);
        assert_eq!(run.command, ["prog", "--soft", "-q", "--"]);
    }

    #[test]
    fn a_double_dash_before_the_program_is_not_an_argument_of_it() {
        let parsed = Arguments::parse_from(["oversub", "run", "--", "prog", "x"]);
        let Command::Run(run) = parsed.command else {
            panic!("not run")
        };
        assert_eq!(run.command, ["prog", "x"]);
    }

    #[test]
    fn a_ratio_below_one_is_refused() {
        for wrong in ["0.5", "nan", "-1", "x"] {
            assert!(Arguments::try_parse_from(["oversub", "demo", "--ratio", wrong]).is_err());
        }
    }

    #[test]
    fn only_what_exists_is_listed() {
        let shown: Vec<_> = Arguments::command()
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(|command| command.get_name().to_owned())
            .collect();
        assert_eq!(
            shown,
            [
                "demo", "run", "simulate", "plan", "report", "attach", "bench", "status", "doctor"
            ]
        );
    }
}
