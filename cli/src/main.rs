//! `oversub`: the command line.
//!
//! Owns: arguments, the environment of the programs it starts, measurements and their
//! tables. Knows nothing of policy or of CUDA's inner workings: the daemon and the
//! preloaded library do the work, this starts them and shows what they say.
//!
//! Exit status: 0 done, 1 the work failed, 2 the arguments or input are wrong. `run`
//! becomes the program it was given, so its status is the program's own.

mod args;
mod attach;
mod bench;
mod control;
mod demo;
mod device;
mod doctor;
mod environment;
mod install;
mod keeper;
mod plan;
mod private_daemon;
mod progress;
mod report;
mod run;
mod simulate;
mod size;
mod softgpu;
mod status;
mod steer;
mod table;
mod usage;
mod why;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Arguments, Command};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.command {
        Command::Demo(options) => demo::demo(&options),
        Command::Attach(options) => attach::attach(&options),
        Command::Run(options) => run::run(&options),
        Command::Simulate(options) => simulate::simulate(&options),
        Command::Plan(options) => plan::plan(&options),
        Command::Report(options) => report::report(&options),
        Command::Bench(options) => bench::bench(&options),
        Command::Status(options) => status::status(&options),
        Command::Doctor(options) => doctor::doctor(&options),
        Command::LaunchOverhead(options) => bench::launch::child(&options),
        Command::Provoke(options) => bench::command::child(&options),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("oversub: {error:#}");
            if error.is::<usage::Usage>() {
                ExitCode::from(2)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}
