//! The work [`Work::Doctor`](oversub_vm::plan::Work::Doctor): `oversub doctor` beside a
//! daemon on the real driver, which knows everything; with the driver's event queue in the
//! place of probes, which knows less; and where nothing can work, which it must say.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use oversub_vm::plan::{Checked, DoctorLoad, PROGRAMS_PATH};
use serde_json::Value;

use crate::daemon::{Daemon, SOCKET};
use crate::modules;
use crate::program::{DRIVER_FOLDER, link_driver};

/// Every signal, in the order that the doctor gives them.
const SIGNALS: [&str; 6] = [
    "launches",
    "lifetimes",
    "progress",
    "faults",
    "migrations",
    "evictions",
];
/// A parameter under which the driver may not evict.
const NO_EVICTION: &str = "uvm_global_oversubscription";
/// A user without rights.
const NOBODY: u32 = 65534;

/// Runs it.
pub fn run(load: &DoctorLoad) -> Result<Checked> {
    let mut found = Checked::default();
    link_driver()?;
    works(load, &mut found)?;
    works_less(&mut found)?;
    modules::reload_driver(&[&format!("{NO_EVICTION}=0")])?;
    let told = Told::of(command())?;
    found.must(
        told.status == Some(1) && told.is(NO_EVICTION, "fail"),
        || format!("a driver that may not evict is no failure: {told:?}"),
    );
    modules::reload_driver(&[])?;
    // Without a CUDA driver, and with no right to the descriptors that the soft GPU takes.
    let mut nothing = command();
    nothing
        .env_remove("LD_LIBRARY_PATH")
        .uid(NOBODY)
        .gid(NOBODY);
    let told = Told::of(nothing)?;
    let fails = told.status == Some(1) && told.is("a device to run on", "fail");
    found.must(fails, || {
        format!("a host without a device is no failure: {told:?}")
    });
    Ok(found)
}

/// Beside a daemon with its probes on the driver.
fn works(load: &DoctorLoad, found: &mut Checked) -> Result<()> {
    let daemon = Daemon::start()?;
    let told = Told::of(command());
    daemon.stop();
    let told = told?;
    found.must(told.status == Some(0), || {
        format!("status of the doctor: {told:?}")
    });
    let modules = format!("{}, {} modules, with nvidia-uvm", load.driver, load.flavour);
    let types = if load.btf { "present" } else { "absent" };
    for (name, begins) in [
        ("NVIDIA module", modules.as_str()),
        ("kernel", &format!("{}.", load.kernel)),
        ("nvidia-uvm types", types),
        ("driver events", "probes: "),
        (NO_EVICTION, "1"),
        ("concurrent managed access", "yes"),
    ] {
        found.must(told.found(name).starts_with(begins), || {
            format!("{name}: {:?}, {begins:?} is true", told.found(name))
        });
    }
    found.must(
        told.found("kernel").ends_with("with BPF type information"),
        || format!("kernel: {:?}", told.found("kernel")),
    );
    found.must(told.all_reasons(), || {
        format!("a reason is missing: {told:?}")
    });
    for signal in ["faults", "migrations", "evictions"] {
        found.must(told.signal(signal) == ("probes", "full"), || {
            format!("{signal}: {:?}", told.signal(signal))
        });
    }
    for signal in ["launches", "lifetimes"] {
        found.must(told.signal(signal) == ("liboversub.so", "full"), || {
            format!("{signal}: {:?}", told.signal(signal))
        });
    }
    found.count("checks of the doctor", told.all("checks").len() as u64);
    Ok(())
}

/// Beside a daemon that reads the driver's event queues.
fn works_less(found: &mut Checked) -> Result<()> {
    let daemon = Daemon::start_on_queue()?;
    let told = Told::of(command());
    daemon.stop();
    let told = told?;
    found.must(told.status == Some(0) && told.all_reasons(), || {
        format!("the doctor by the event queue: {told:?}")
    });
    for (signal, tier) in [
        ("faults", "full"),
        ("migrations", "full"),
        ("evictions", "part"),
    ] {
        found.must(told.signal(signal) == ("event queue", tier), || {
            format!("{signal} by the event queue: {:?}", told.signal(signal))
        });
    }
    Ok(())
}

/// The doctor, as it will be run.
fn command() -> Command {
    let mut command = Command::new(format!("{PROGRAMS_PATH}/oversub"));
    command
        .args(["doctor", "--json", "--socket", SOCKET])
        .env("LD_LIBRARY_PATH", DRIVER_FOLDER)
        .env("OVERSUB_SOFTGPU_BACKEND", "uvm");
    command
}

/// What it said.
#[derive(Debug)]
struct Told {
    status: Option<i32>,
    value: Value,
}

impl Told {
    fn of(mut command: Command) -> Result<Self> {
        let output = command.output().context("oversub cannot be started")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let value = serde_json::from_str(text.trim())
            .with_context(|| format!("the doctor's answer is no JSON: {text:?}"))?;
        Ok(Self {
            status: output.status.code(),
            value,
        })
    }

    fn all(&self, list: &str) -> &[Value] {
        self.value[list].as_array().map_or(&[], Vec::as_slice)
    }

    fn check(&self, name: &str) -> &Value {
        let mut checks = self.all("checks").iter();
        checks
            .find(|check| check["name"] == name)
            .unwrap_or(&Value::Null)
    }

    fn found(&self, name: &str) -> &str {
        self.check(name)["found"].as_str().unwrap_or_default()
    }

    fn is(&self, name: &str, level: &str) -> bool {
        let check = self.check(name);
        let remedy = check["remedy"].as_str().unwrap_or_default();
        check["level"] == level && (level == "ok" || !remedy.is_empty())
    }

    /// Source and tier.
    fn signal(&self, name: &str) -> (&str, &str) {
        let mut signals = self.all("signals").iter();
        let signal = signals.find(|signal| signal["signal"] == name);
        let word = |key: &str| signal.and_then(|signal| signal[key].as_str());
        (
            word("source").unwrap_or_default(),
            word("tier").unwrap_or_default(),
        )
    }

    /// Every signal is there, and says why it is from where it is.
    fn all_reasons(&self) -> bool {
        let signals = self.all("signals");
        let has_reason = |signal: &Value| signal["reason"].as_str().is_some_and(|r| !r.is_empty());
        let names = signals
            .iter()
            .filter_map(|signal| signal["signal"].as_str());
        names.eq(SIGNALS) && signals.iter().all(has_reason)
    }
}
