//! Options of `plan`, as `--help` shows them.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;

use super::Link;
use crate::simulate::options::{CostOptions, machines, policies};

#[derive(Debug, Args)]
pub struct PlanOptions {
    /// Trace file (NAME.trace.jsonl.zst)
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// Links to compare [default: all]
    #[arg(
        long = "link",
        value_enum,
        value_delimiter = ',',
        value_name = "NAME,..."
    )]
    pub links: Vec<Link>,
    /// Policy to plan for; `oversub simulate --list` tells what each is
    #[arg(
        long,
        value_name = "P",
        default_value = "foresight",
        hide_possible_values = true,
        value_parser = policies(false)
    )]
    pub policy: String,
    /// Machine whose costs are taken; its memory and links are not [default: a100-40g]
    #[arg(long, value_name = "NAME", value_parser = machines())]
    pub machine: Option<String>,
    /// Runs at the same time [default: as many as there are processors]; the output is the
    /// same whatever the number
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// Print one JSON value on standard output
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub costs: CostOptions,
}
