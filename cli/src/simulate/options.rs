//! Options of the commands that simulate, as `--help` shows them.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, ValueEnum};
use oversub_engine::Without;
use oversub_sim::machine::{self, Machine, Ssd};
use oversub_sim::policy::POLICIES;
use oversub_sim::units::{Nanos, Rate as SimRate};

use super::variant::Variant;
use crate::size::{Rate, Size};
use crate::usage::usage;
use crate::why::BlockAtLaunch;

/// Stands for every policy.
pub const ALL: &str = "all";

#[derive(Debug, Args)]
pub struct SimulateOptions {
    /// Trace files, or folders: all *.trace.jsonl.zst in them
    #[arg(value_name = "TRACE", required_unless_present = "list")]
    pub traces: Vec<PathBuf>,
    /// Policies to simulate, or `all`; --list tells what each is
    #[arg(
        long = "policy",
        short,
        value_name = "P,...",
        value_delimiter = ',',
        required_unless_present = "list",
        hide_possible_values = true,
        value_parser = policies(true)
    )]
    pub policies: Vec<String>,
    /// Footprint over device memory: 1.5 gives the program two thirds of what it uses
    #[arg(
        long,
        value_name = "R,...",
        value_delimiter = ',',
        conflicts_with = "memory",
        value_parser = ratio
    )]
    pub ratio: Vec<f64>,
    /// Device memory, e.g. 24GiB [default: the --machine's]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',')]
    pub memory: Vec<Size>,
    /// Runs at the same time [default: as many as there are processors]; the output is the
    /// same whatever the number
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// Measure what an event costs the engine (the figure differs from run to run)
    #[arg(long)]
    pub engine_cost: bool,
    /// Parts of foresight that are left out, to see what each is worth
    #[arg(
        long,
        value_name = "PART,...",
        value_delimiter = ',',
        hide_possible_values = true,
        value_parser = parts(),
        long_help = parts_help()
    )]
    pub without: Vec<String>,
    /// Instead of results, print a table of what each part of foresight is worth: its time
    /// without the part over its time with all of them
    #[arg(long, conflicts_with_all = ["without", "warm", "timeline"])]
    pub ablation: bool,
    /// Run each program twice, the second time with what the first run taught, and report
    /// the second
    #[arg(long, conflicts_with = "profile_in")]
    pub warm: bool,
    /// Begin with what an earlier run taught (one run only)
    #[arg(long, value_name = "FILE")]
    pub profile_in: Option<PathBuf>,
    /// Write what the run taught (one run only)
    #[arg(long, value_name = "FILE")]
    pub profile_out: Option<PathBuf>,
    /// Write a timeline in Chrome's trace format, for ui.perfetto.dev (one run only)
    #[arg(long, value_name = "FILE.json")]
    pub timeline: Option<PathBuf>,
    /// Instead of results, say why a block is where it is when a launch begins (one run only)
    ///
    /// BLOCK is an address in it, such as 0x7f2a40000000, or its number in the order in which
    /// the program obtains memory, from 0; LAUNCH is a number from 0, as a --timeline shows.
    /// Tells where the block is, when it is used next, what the engine has in mind for it, and
    /// what it decided before and afterwards, each with its reason:
    ///
    ///   oversub simulate gpt2.trace.jsonl.zst --policy foresight --ratio 1.5 --explain 17@1200
    #[arg(
        long,
        value_name = "BLOCK@LAUNCH",
        verbatim_doc_comment,
        conflicts_with_all = ["ablation", "warm", "timeline", "profile_in", "profile_out"]
    )]
    pub explain: Option<BlockAtLaunch>,
    /// Instead of the table, print the time of each iteration, milliseconds; with --json they
    /// always come
    #[arg(long, conflicts_with_all = ["ablation", "explain"])]
    pub iterations: bool,
    /// List the policies and the machines, and do nothing else
    #[arg(long)]
    pub list: bool,
    /// Print one JSON value on standard output: an array with one object for each trace,
    /// memory size and policy
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub machine: MachineOptions,
    #[command(flatten)]
    pub costs: CostOptions,
}

/// The machine and what is different from it.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Machine")]
pub struct MachineOptions {
    /// Machine to simulate; the options below change single parts of it [default: a100-40g]
    #[arg(long, value_name = "NAME", value_parser = machines())]
    pub machine: Option<String>,
    /// Rate of the link to the device [default: the machine's, 15.754GB/s]
    #[arg(long, value_name = "RATE")]
    pub link_in: Option<Rate>,
    /// Rate of the link to the host [default: the machine's, 15.754GB/s]
    #[arg(long, value_name = "RATE")]
    pub link_out: Option<Rate>,
    /// Most of both directions together, or `none` [default: the machine's, none]
    #[arg(long, value_name = "RATE")]
    pub link_total: Option<Limit<Rate>>,
    /// Host memory for what is not on the device, or `none` for no limit [default: the
    /// machine's, none]
    #[arg(long, value_name = "SIZE")]
    pub host_memory: Option<Limit<Size>>,
    /// Rate at which what the host cannot hold is read from an SSD [default: no SSD]
    #[arg(long, value_name = "RATE")]
    pub ssd_read: Option<Rate>,
    /// Rate at which it is written there [default: no SSD]
    #[arg(long, value_name = "RATE")]
    pub ssd_write: Option<Rate>,
}

/// What faults and calls cost, and what policies are told.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Machine")]
pub struct CostOptions {
    /// Cost of serving one batch of faults, without its transfers, microseconds [default: 45]
    #[arg(long, value_name = "US", value_parser = micros)]
    pub fault_us: Option<Nanos>,
    /// Most faults in a batch; a fault is 64 KiB [default: 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub fault_batch: Option<u32>,
    /// Further cost for each block in a batch of faults, microseconds [default: 0]
    #[arg(long, value_name = "US", value_parser = micros)]
    pub fault_block_us: Option<Nanos>,
    /// Missing blocks that a launch's accesses in flight can fault on at once [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub fault_blocks: Option<u32>,
    /// Parts of 64 KiB that they can fault on at once [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub fault_leaves: Option<u32>,
    /// Threshold of the driver's density prefetch, percent of a region of a block
    /// [default: 51]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub density: Option<u32>,
    /// Cost of one prefetch, evict or discard call, microseconds [default: 5]
    #[arg(long, value_name = "US", value_parser = micros)]
    pub call_us: Option<Nanos>,
    /// Time from one launch of the host to its next, microseconds [default: 0]
    #[arg(long, value_name = "US", value_parser = micros)]
    pub launch_us: Option<Nanos>,
    /// Most launches that the host runs ahead of the device [default: 1022]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub launch_queue: Option<u32>,
    /// A launch takes this many times as long as in the trace, for a slower or faster device
    /// [default: 1]
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    pub compute_scale: Option<f64>,
    /// Each launch takes up to this many percent more or less time, at random by the seed.
    /// Policies that learn do not know by how much; those told the whole future and the bound
    /// do [default: 0]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub noise: Option<f64>,
    /// Repeat what was recorded until there are N iterations: what a policy does in the long
    /// run, or after many iterations, takes longer than most traces are
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub repeat: usize,
    /// Whether policies and bounds know what the framework's allocator hands out and takes
    /// back
    #[arg(long, value_enum, default_value_t = Lifetimes::On)]
    pub lifetimes: Lifetimes,
    /// Seed of --noise and of policies that choose at random
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// Whether the allocator's hook is seen.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Lifetimes {
    /// Content that the allocator took back may be dropped
    #[default]
    On,
    /// All content must be kept until its memory is given back to the driver
    Off,
}

/// A limit, or that there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit<T> {
    /// No limit.
    None,
    /// This much.
    At(T),
}

impl<T: FromStr<Err = String>> FromStr for Limit<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            text => text.parse().map(Self::At),
        }
    }
}

/// The names of the policies; what each is comes with them.
pub fn policies(all: bool) -> PossibleValuesParser {
    let every = all.then(|| PossibleValue::new(ALL).help("every policy"));
    POLICIES
        .iter()
        .map(|entry| PossibleValue::new(entry.name).help(entry.about))
        .chain(every)
        .into()
}

/// The names of the parts that can be left out.
fn parts() -> PossibleValuesParser {
    Without::PARTS
        .iter()
        .map(|(name, about)| PossibleValue::new(*name).help(*about))
        .collect::<Vec<_>>()
        .into()
}

fn parts_help() -> String {
    let parts = Without::PARTS.map(|(name, about)| format!("\n  {name:<10} {about}"));
    format!(
        "Parts of foresight that are left out, to see what each is worth:{}",
        parts.concat()
    )
}

/// The names of the machines; what each is comes with them.
pub fn machines() -> PossibleValuesParser {
    machine::MACHINES
        .iter()
        .map(|named| PossibleValue::new(named.name).help(named.about))
        .collect::<Vec<_>>()
        .into()
}

impl MachineOptions {
    /// The machine with everything that was asked for.
    ///
    /// # Errors
    /// [`crate::usage::Usage`] where options contradict each other.
    pub fn machine(&self, costs: &CostOptions) -> anyhow::Result<Machine> {
        let name = self.machine.as_deref().unwrap_or(machine::DEFAULT);
        let Some(mut machine) = machine::named(name) else {
            return usage(format!("--machine: there is no {name}; see --list"));
        };
        let rate = |rate: Rate| SimRate(rate.0);
        set(&mut machine.link_in, self.link_in.map(rate));
        set(&mut machine.link_out, self.link_out.map(rate));
        match self.link_total {
            Some(Limit::None) => machine.link_total = None,
            Some(Limit::At(total)) => machine.link_total = Some(rate(total)),
            None => {}
        }
        match self.host_memory {
            Some(Limit::None) => machine.host_bytes = None,
            Some(Limit::At(size)) => machine.host_bytes = Some(size.0),
            None => {}
        }
        let read = self.ssd_read.map(rate).or(machine.ssd.map(|ssd| ssd.read));
        let write = self
            .ssd_write
            .map(rate)
            .or(machine.ssd.map(|ssd| ssd.write));
        machine.ssd = match (read, write) {
            (Some(read), Some(write)) => Some(Ssd { read, write }),
            (None, None) => None,
            (Some(_), None) => return usage("--ssd-read also needs --ssd-write"),
            (None, Some(_)) => return usage("--ssd-write also needs --ssd-read"),
        };
        costs.apply(&mut machine);
        Ok(machine)
    }
}

impl CostOptions {
    /// Sets what was asked for.
    pub fn apply(&self, machine: &mut Machine) {
        set(&mut machine.fault, self.fault_us);
        set(&mut machine.fault_batch, self.fault_batch);
        set(&mut machine.fault_block, self.fault_block_us);
        set(&mut machine.fault_blocks, self.fault_blocks);
        set(&mut machine.fault_leaves, self.fault_leaves);
        set(&mut machine.density, self.density);
        set(&mut machine.call, self.call_us);
        set(&mut machine.launch, self.launch_us);
        set(&mut machine.launch_queue, self.launch_queue);
    }

    /// How programs differ from their traces.
    pub fn variant(&self) -> Variant {
        Variant {
            iterations: self.repeat,
            scale: self.compute_scale.unwrap_or(1.0),
            noise_percent: self.noise.unwrap_or(0.0),
            seed: self.seed,
        }
    }

    /// Lifetimes are seen.
    pub fn lifetimes(&self) -> bool {
        self.lifetimes == Lifetimes::On
    }
}

fn set<T>(part: &mut T, asked: Option<T>) {
    if let Some(asked) = asked {
        *part = asked;
    }
}

fn ratio(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ratio) if (0.01..=1024.0).contains(&ratio) => Ok(ratio),
        _ => Err("must be a number from 0.01 to 1024, for example 1.5".to_owned()),
    }
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if (0.001..=1000.0).contains(&factor) => Ok(factor),
        _ => Err("must be a number from 0.001 to 1000, for example 1.5".to_owned()),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("must be a number from 0 to 100, for example 20".to_owned()),
    }
}

fn micros(text: &str) -> Result<Nanos, String> {
    match text.parse::<f64>() {
        Ok(us) if (0.0..=1e9).contains(&us) => Ok(Nanos((us * 1e3).round() as u64)),
        _ => Err("must be a number of microseconds, for example 45".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::Usage;

    #[test]
    fn without_options_the_machine_is_the_default_one() {
        let machine = MachineOptions::default()
            .machine(&CostOptions::default())
            .unwrap();
        assert_eq!(Some(machine), machine::named(machine::DEFAULT));
    }

    #[test]
    fn the_default_machine_is_what_the_help_says() {
        let machine = machine::named(machine::DEFAULT).unwrap();
        assert_eq!(machine.link_in, SimRate(15_754_000_000));
        assert_eq!(machine.link_out, SimRate(15_754_000_000));
        assert_eq!((machine.link_total, machine.ssd), (None, None));
        assert_eq!(machine.fault, Nanos::from_micros(45));
        assert_eq!(machine.fault_batch, 256);
        assert_eq!(machine.call, Nanos::from_micros(5));
        assert_eq!(machine.host_bytes, None);
        assert_eq!(machine.fault_block, Nanos(0));
        assert_eq!((machine.fault_blocks, machine.fault_leaves), (4, 32));
        assert_eq!(machine.density, 51);
        assert_eq!((machine.launch, machine.launch_queue), (Nanos(0), 1022));
    }

    #[test]
    fn single_options_go_over_the_named_machine() {
        let options = MachineOptions {
            machine: Some("v100-32g".to_owned()),
            link_in: Some(Rate(1_000)),
            link_total: Some(Limit::None),
            ..MachineOptions::default()
        };
        let costs = CostOptions {
            fault_us: Some(Nanos(1)),
            ..CostOptions::default()
        };
        let machine = options.machine(&costs).unwrap();
        assert_eq!(machine.link_in, SimRate(1_000));
        assert_eq!(machine.link_out, SimRate(12_000_000_000));
        assert_eq!(machine.link_total, None);
        assert_eq!(machine.fault, Nanos(1));
    }

    #[test]
    fn half_an_ssd_is_wrong_but_half_a_change_of_one_is_not() {
        let half = MachineOptions {
            ssd_read: Some(Rate(5)),
            ..MachineOptions::default()
        };
        let error = half.machine(&CostOptions::default()).unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().contains("--ssd-write"));
        let change = MachineOptions {
            machine: Some("g10".to_owned()),
            ..half
        };
        let machine = change.machine(&CostOptions::default()).unwrap();
        assert_eq!(machine.ssd.unwrap().read, SimRate(5));
    }
}
