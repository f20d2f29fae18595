//! Command-line arguments that all programs share, and how a program ends: 0 when the
//! result is right, 1 when something failed, 2 when the arguments are wrong.

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Parser;

use crate::device::Device;
use crate::report::Report;
use crate::size::{self, in_mib};

/// Arguments of every workload.
#[derive(clap::Args, Clone, Debug)]
pub struct Common {
    /// Number of timed iterations
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub iterations: Option<u32>,

    /// Seed of the data
    #[arg(long, default_value_t = 1)]
    pub seed: u32,

    /// Print one line of JSON as the last line of standard output
    #[arg(long)]
    pub json: bool,

    /// Working set: what the program needs at its peak, such as 768MiB
    #[arg(long, value_parser = size::parse)]
    pub bytes: Option<u64>,

    /// Open the device, then wait until this file exists before anything is launched
    #[arg(long, value_name = "FILE")]
    pub start_file: Option<PathBuf>,
}

/// How often it is looked whether the file to start by exists.
const START_INTERVAL: Duration = Duration::from_millis(1);

impl Common {
    /// Opens the first device; returns once the program may start. Where that has to be
    /// waited for, some memory was allocated before: what watches the program for
    /// allocations has seen one.
    pub fn open_device(&self) -> anyhow::Result<Device> {
        let device = Device::open()?;
        if let Some(file) = &self.start_file {
            drop(device.allocate(1)?);
            while !file.exists() {
                thread::sleep(START_INTERVAL);
            }
        }
        Ok(device)
    }
}

/// Arguments that are well formed but cannot be served.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ArgumentError {
    /// The working set is too small for the workload's shape.
    #[error("--bytes {} is too small: this workload needs at least {}", in_mib(*.given), in_mib(*.least))]
    TooSmall {
        /// What was given, bytes.
        given: u64,
        /// The least possible, bytes.
        least: u64,
    },
    /// The working set does not fit the workload's 32-bit indices.
    #[error("--bytes {} is too large: this workload takes at most {}", in_mib(*.given), in_mib(*.most))]
    TooLarge {
        /// What was given, bytes.
        given: u64,
        /// The most possible, bytes.
        most: u64,
    },
}

/// Checks that `given` bytes lie within `least` and `most`.
pub fn check_bytes(given: u64, least: u64, most: u64) -> Result<u64, ArgumentError> {
    if given < least {
        Err(ArgumentError::TooSmall { given, least })
    } else if given > most {
        Err(ArgumentError::TooLarge { given, most })
    } else {
        Ok(given)
    }
}

/// Body of every `main`: reads the arguments, runs the workload, prints its report.
pub fn run<A: Parser>(
    common: impl Fn(&A) -> &Common,
    workload: impl FnOnce(&A) -> anyhow::Result<Report>,
) -> ExitCode {
    let arguments = A::parse();
    match workload(&arguments) {
        Ok(report) => {
            report.print(common(&arguments).json);
            if report.ok {
                ExitCode::SUCCESS
            } else {
                ExitCode::from(1)
            }
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(if error.is::<ArgumentError>() { 2 } else { 1 })
        }
    }
}
