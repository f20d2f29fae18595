//! `oversubd`: arguments, configuration, logs, then [`oversubd::daemon::run`].

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use oversubd::args::Args;
use oversubd::daemon::{Manner, run};

fn main() -> ExitCode {
    let args = Args::parse();
    let (config, config_file) = match args.configuration() {
        Ok(found) => found,
        Err(error) => {
            eprintln!("oversubd: {error}");
            return ExitCode::from(2);
        }
    };
    if args.print_config {
        return match toml::to_string(&config) {
            Ok(text) => {
                print!("{text}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("oversubd: cannot print the configuration: {error}");
                ExitCode::FAILURE
            }
        };
    }
    if args.check_config {
        match &config_file {
            Some(file) => println!("{}: good", file.display()),
            None => println!("no configuration file; the defaults are good"),
        }
        return ExitCode::SUCCESS;
    }
    let manner = Manner {
        config_file,
        idle_exit: args.idle_exit().map(Duration::from_secs),
        private: args.private,
    };
    let result = oversubd::logging::start(&config.log).and_then(|()| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        runtime.block_on(run(config, manner))
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("oversubd: {error:#}");
            ExitCode::FAILURE
        }
    }
}
