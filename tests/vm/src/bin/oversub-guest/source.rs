//! The work [`Work::Source`](oversub_vm::plan::Work::Source): daemons that may not use BPF, by
//! their capabilities and by the kernel's lockdown, and the source of the driver's events that
//! they choose. What is right is the host's to judge.
//!
//! Neither lockdown nor Yama's strictest mode can be undone: this is the last of a boot.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use oversub_vm::asked::{OWNER, Rights, Target, capability};
use oversub_vm::chosen::{Hindrance, Source, SourceCounts, SourceLoad};
use oversub_vm::plan::PROGRAMS_PATH;

use crate::attach::{self, PTRACE_SCOPE};
use crate::daemon::{Daemon, SOCKET};
use crate::doctor::{self, Told};
use crate::hold::Holder;
use crate::program::{Running, link_driver};

/// The kernel's lockdown mode.
pub const LOCKDOWN: &str = "/sys/kernel/security/lockdown";
const CONFIDENTIAL: &str = "confidentiality";
/// Nothing may look into another process, until the next boot.
const SEALED: &str = "3";
/// `probes.mode` that takes BPF or nothing.
const FORCED: &str = "bpf";
const INTERVAL: Duration = Duration::from_millis(20);

/// Runs it.
pub fn run(load: &SourceLoad) -> Result<SourceCounts> {
    link_driver()?;
    let alone = Running::start(&load.alone)?.finish()?;
    let mut sources = Vec::new();
    // What event queues take, and nothing that BPF takes.
    let without_bpf = Rights {
        user: 0,
        capabilities: Some(vec![
            capability::DAC_READ_SEARCH,
            capability::SYS_PTRACE,
            capability::SYS_NICE,
        ]),
    };
    for mode in [None, Some(FORCED)] {
        let daemon = Daemon::start_as(&configuration(mode), &without_bpf)?;
        let found = look(Hindrance::Capabilities, mode);
        daemon.stop();
        sources.push(found?);
    }
    fs::write(LOCKDOWN, CONFIDENTIAL).context("the kernel cannot be locked down")?;
    let daemon = Daemon::start()?;
    let found = look(Hindrance::Lockdown, None);
    let steered = run_observed(&daemon, load);
    daemon.stop();
    sources.push(found?);
    let (steered, observed) = steered?;
    let daemon = Daemon::start_as(&configuration(Some(FORCED)), &Rights::ROOT)?;
    let found = look(Hindrance::Lockdown, Some(FORCED));
    daemon.stop();
    sources.push(found?);

    fs::write(PTRACE_SCOPE, SEALED).context("Yama cannot be set")?;
    let holder = Holder::start(Target::Plain)?;
    let daemon = Daemon::start()?;
    let found = look(Hindrance::Sealed, None);
    let asked = attach::ask_for(OWNER, holder.id());
    daemon.stop();
    sources.push(found?);
    let (granted, said) = asked?;
    Ok(SourceCounts {
        sources,
        alone,
        steered,
        observed,
        lockdown: mode_of(&fs::read_to_string(LOCKDOWN)?),
        sealed: match granted {
            true => String::new(),
            false => said,
        },
    })
}

fn configuration(mode: Option<&str>) -> String {
    mode.map_or_else(String::new, |mode| format!("[probes]\nmode = \"{mode}\"\n"))
}

/// The mode in brackets of `none [integrity] confidentiality`.
pub fn mode_of(text: &str) -> String {
    let mode = text.split(['[', ']']).nth(1);
    mode.unwrap_or_default().to_owned()
}

/// Runs the program with the daemon: what it did, and of how many processes the daemon had
/// the event queue open.
fn run_observed(
    daemon: &Daemon,
    load: &SourceLoad,
) -> Result<(oversub_vm::plan::ProgramCounts, u64)> {
    let mut program = Running::start(&load.steered)?;
    let mut observed = 0;
    while observed == 0 && !program.has_ended()? {
        let doctor = daemon.ask("doctor")?;
        observed = doctor["driver"]["observed"].as_array().map_or(0, Vec::len) as u64;
        std::thread::sleep(INTERVAL);
    }
    Ok((program.finish()?, observed))
}

/// What the doctor and the status say beside a daemon.
fn look(hindrance: Hindrance, mode: Option<&str>) -> Result<Source> {
    let told = Told::of(doctor::command())?;
    let status = Command::new(format!("{PROGRAMS_PATH}/oversub"))
        .args(["status", "--socket", SOCKET])
        .output()
        .context("oversub cannot be started")?;
    let word = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let check = |name: &str| {
        let check = told.check(name);
        (word(&check["level"]), word(&check["found"]))
    };
    let signals: BTreeMap<_, _> = ["faults", "migrations", "evictions"]
        .into_iter()
        .map(|name| {
            let (source, tier) = told.signal(name);
            let all = (source.to_owned(), tier.to_owned(), told.reason(name));
            (name.to_owned(), all)
        })
        .collect();
    Ok(Source {
        hindrance,
        mode: mode.map(str::to_owned),
        status: told.status,
        events: check("driver events").1,
        signals,
        lockdown: check("lockdown"),
        yama: check("Yama"),
        told_status: String::from_utf8_lossy(&status.stdout).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::mode_of;

    #[test]
    fn the_mode_in_force_is_the_one_in_brackets() {
        assert_eq!(
            mode_of("none integrity [confidentiality]\n"),
            "confidentiality"
        );
        assert_eq!(mode_of("[none] integrity confidentiality\n"), "none");
        assert_eq!(mode_of("none"), "");
    }
}
