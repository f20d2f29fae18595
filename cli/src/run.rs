//! `oversub run`: prepares the environment, then becomes the program.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::ValueEnum as _;
use oversub_engine as engine;
use oversubd::config::ProfilesConfig;
use oversubd::profiles;

use crate::args::{self, Policy, RunOptions};
use crate::control;
use crate::device;
use crate::environment::{Environment, ShimSettings};
use crate::install::Installation;
use crate::keeper;
use crate::softgpu;
use crate::steer::steer;
use crate::usage::usage;

/// What shells answer for a program that does not exist, and for one that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// Runs a program under oversub. Returns only if the program could not be started.
///
/// # Errors
/// Where oversub's own files are missing or its keeper cannot be started.
pub fn run(options: &RunOptions) -> Result<ExitCode> {
    let say = |message: String| {
        if !options.quiet {
            eprintln!("oversub: {message}");
        }
    };
    if options.policy == Some(Policy::Driver) && options.memory_budget.is_some() {
        return usage("--policy driver keeps no budget; use --policy demand with --memory-budget");
    }
    let installation = Installation::find()?;
    let shim = installation.shim()?;
    let socket = args::socket(options.socket.as_ref());
    let mut policy = options.policy;
    let daemon = match Need::of(options, &socket) {
        Need::None => None,
        // The library places memory by policy where there is a budget to keep, so it must
        // know which one will steer: the daemon's own, where nothing else was asked for.
        Need::Steered(name) => {
            if options.memory_budget.is_some() && policy.is_none() {
                policy = Policy::from_str(&name, false).ok();
            }
            if policy == Some(Policy::Driver) && options.memory_budget.is_some() {
                return usage(format!(
                    "the daemon at {} leaves everything to the driver, which keeps no budget; \
                     ask for another policy with --policy",
                    socket.display()
                ));
            }
            None
        }
        Need::Private(reason) => {
            say(format!("{reason}; starting one for this program alone"));
            Some(installation.daemon()?)
        }
    };

    let mut environment = Environment::default();
    let mut session_socket = (!options.no_daemon).then(|| socket.clone());
    if options.soft || daemon.is_some() {
        let folder = private_folder()?;
        if options.soft {
            softgpu::link_as_driver(&folder, &installation.softgpu()?)?;
            softgpu::use_driver_in(&mut environment, &folder);
        }
        if daemon.is_some() {
            session_socket = Some(folder.join("oversubd.sock"));
        }
        if let Some(path) = &options.profile {
            // The daemon reads it again for itself; its own log is not the user's to see.
            let engine = engine::Config::new(engine::PolicyKind::Foresight, engine::Bytes(1 << 40));
            if let Err(refused) = profiles::read(path, &ProfilesConfig::default(), &engine) {
                say(format!("{refused}; the program starts without a profile"));
            }
        }
        let profile = options.profile.as_deref().map(std::path::absolute);
        keeper::keep(&folder, daemon.as_deref(), profile.transpose()?.as_deref())?;
    }
    if options.no_daemon {
        // A place where no daemon can be: the library then goes on by itself.
        session_socket = Some(PathBuf::from("/dev/null/no-daemon"));
    }
    environment.shim(&ShimSettings {
        library: &shim,
        socket: session_socket.as_deref(),
        policy,
        budget: options.memory_budget,
        ratio_limit: options.ratio_limit,
    });
    for steering in steer(|variable| std::env::var_os(variable).is_some()) {
        environment.set(steering.variable, steering.value);
        say(format!(
            "set {}={} ({})",
            steering.variable, steering.value, steering.framework
        ));
    }
    if !options.soft
        && let Err(reason) = device::driver_present()
    {
        say(format!(
            "{reason}; a CUDA program will not find a GPU here (`--soft` runs it on the built-in software GPU)"
        ));
    }
    Ok(become_program(options, &environment))
}

/// Whether this run needs a daemon of its own.
enum Need {
    None,
    /// A daemon is there; its policy.
    Steered(String),
    Private(String),
}

impl Need {
    fn of(options: &RunOptions, socket: &Path) -> Self {
        if options.no_daemon || options.policy == Some(Policy::Driver) {
            return Self::None;
        }
        if options.profile.is_some() {
            return Self::Private("a profile is this program's own".to_owned());
        }
        match control::status(socket) {
            Ok(status) => Self::Steered(status.policy),
            Err(_) => Self::Private(format!("no daemon at {}", socket.display())),
        }
    }
}

/// A folder that only this user can look into. The keeper removes it.
fn private_folder() -> Result<PathBuf> {
    let folder = tempfile::Builder::new()
        .prefix("oversub-")
        .tempdir()
        .context("cannot make a private folder (is TMPDIR writable?)")?;
    Ok(folder.keep())
}

fn become_program(options: &RunOptions, environment: &Environment) -> ExitCode {
    let Some((program, arguments)) = options.command.split_first() else {
        return ExitCode::from(2);
    };
    let error = Command::new(program)
        .args(arguments)
        .envs(environment.variables())
        .exec();
    eprintln!("oversub: {}: {error}", program.display());
    match error.kind() {
        ErrorKind::NotFound => ExitCode::from(NOT_FOUND),
        _ => ExitCode::from(NOT_EXECUTABLE),
    }
}
