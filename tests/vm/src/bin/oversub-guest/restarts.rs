//! The work [`Work::Restarts`](oversub_vm::plan::Work::Restarts): the daemon is killed while
//! it steers a program, another takes the program over, and the driver is loaded anew under
//! the last one.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use oversub_vm::plan::{Checked, RestartLoad};
use serde_json::Value;

use crate::daemon::Daemon;
use crate::modules;
use crate::program::Running;

/// How long something may take that takes milliseconds on an idle machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs it.
pub fn run(load: &RestartLoad) -> Result<Checked> {
    let mut found = Checked::default();
    let mut daemon = Daemon::start()?;
    let mut program = Running::start(&load.program)?;
    let mut commands = 0;
    for _ in 0..load.kills {
        match steered(&daemon, &mut program)? {
            Some(so_far) => commands += so_far,
            None => {
                found
                    .wrong
                    .push("the program ended before its daemon was killed".to_owned());
                break;
            }
        }
        daemon.kill()?;
        daemon = Daemon::start()?;
    }
    found.must(steered(&daemon, &mut program)?.is_some(), || {
        "the last daemon did not steer the program".to_owned()
    });
    let counts = program.finish()?;
    found.must(counts.ok, || {
        "a program whose daemons were killed computed something else".to_owned()
    });
    found.count("commands of daemons that were killed", commands);
    found.count("faults", counts.faults);

    // Nobody uses the driver now, and the daemon must not keep it.
    modules::reload_driver(&[])?;
    wait_for(|| probes_attached(&daemon))?;
    let counts = Running::start(&load.program)?.finish()?;
    found.must(counts.ok, || {
        "a program on the new driver computed something else".to_owned()
    });
    let status = daemon.ask("status")?;
    let last = status["closed_sessions"]
        .as_array()
        .and_then(|all| all.last());
    let number = |name: &str| last.and_then(|session| session[name].as_u64()).unwrap_or(0);
    found.must(number("probe_events") > 0, || {
        "nothing of the new driver was observed".to_owned()
    });
    found.count("events of the new driver", number("probe_events"));
    daemon.stop();
    Ok(found)
}

/// Waits until the daemon has sent the program commands: how many; none where the program
/// ended before.
fn steered(daemon: &Daemon, program: &mut Running) -> Result<Option<u64>> {
    let mut commands = 0;
    wait_for(|| {
        let status = daemon.ask("status")?;
        let sessions = status["sessions"].as_array().map_or(&[][..], Vec::as_slice);
        let sum = |session: &Value| session["stats"]["commands"].as_u64().unwrap_or(0);
        commands = sessions.iter().map(sum).sum();
        Ok(commands > 0 || program.has_ended()?)
    })?;
    Ok((commands > 0).then_some(commands))
}

/// The driver's probes are on it.
fn probes_attached(daemon: &Daemon) -> Result<bool> {
    let doctor = daemon.ask("doctor")?;
    let Some(probes) = doctor["probes"].as_array() else {
        bail!("the daemon names no probes: {doctor}");
    };
    ensure!(!probes.is_empty(), "the daemon has no probes");
    let of_driver = |probe: &&Value| probe["probe"].as_str() != Some("softgpu");
    Ok(probes
        .iter()
        .filter(of_driver)
        .any(|probe| probe["attached"] == Value::Bool(true)))
}

fn wait_for(mut happened: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + LIMIT;
    while !happened()? {
        ensure!(Instant::now() < end, "waited {} s in vain", LIMIT.as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
