//! The work [`Work::Doctor`](oversub_vm::plan::Work::Doctor): `oversub doctor` beside a
//! daemon on the real driver, which knows everything; with the driver's event queue in the
//! place of probes, which knows less; and where nothing can work, which it must say.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use oversub_vm::plan::{Checked, DoctorLoad, PROGRAMS_PATH};
use serde_json::Value;

use crate::attach::PTRACE_SCOPE;
use crate::daemon::{Daemon, SOCKET};
use crate::modules;
use crate::program::{DRIVER_FOLDER, link_driver};
use crate::source::{self, LOCKDOWN};

/// Every signal, in the order that the doctor gives them.
const SIGNALS: [&str; 6] = [
    "launches",
    "lifetimes",
    "progress",
    "faults",
    "migrations",
    "evictions",
];
/// Parameters of nvidia-uvm that the doctor tells, where the driver has them.
const PARAMETERS: [&str; 4] = [HMM, "uvm_ats_mode", NO_EVICTION, "uvm_perf_prefetch_enable"];
/// A parameter by which the driver leaves memory that is not managed alone.
const HMM: &str = "uvm_disable_hmm";
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
    let mut parameters = vec![format!("{NO_EVICTION}=0")];
    // The closed flavour has no such parameter.
    let hmm = parameter(HMM);
    parameters.extend(hmm.as_ref().map(|_| format!("{HMM}=1")));
    let parameters: Vec<_> = parameters.iter().map(String::as_str).collect();
    modules::reload_driver(&parameters)?;
    found.must(
        hmm.is_none() || parameter(HMM) != Some("N".to_owned()),
        || format!("{HMM} cannot be set: {:?}", parameter(HMM)),
    );
    let told = Told::of(command())?;
    as_the_kernel_says(&told, &mut found);
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
    as_the_kernel_says(&told, found);
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
    let scope = fs::read_to_string(PTRACE_SCOPE).context("the kernel has no Yama")?;
    let stricter = if scope.trim() == "1" { "2" } else { "1" };
    fs::write(PTRACE_SCOPE, stricter)?;
    let told = Told::of(command());
    daemon.stop();
    let told = told?;
    as_the_kernel_says(&told, found);
    fs::write(PTRACE_SCOPE, scope.trim())?;
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

/// A parameter of nvidia-uvm, by the kernel; none: it has none of that name.
fn parameter(name: &str) -> Option<String> {
    let path = format!("/sys/module/nvidia_uvm/parameters/{name}");
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// What the doctor says of Yama, lockdown and the driver's parameters is what the kernel's
/// own files say.
fn as_the_kernel_says(told: &Told, found: &mut Checked) {
    let scope = fs::read_to_string(PTRACE_SCOPE).unwrap_or_default();
    let scope = format!("ptrace_scope {}", scope.trim());
    found.must(told.found("Yama").starts_with(&scope), || {
        format!("Yama: {:?}, {scope:?} is true", told.found("Yama"))
    });
    let lockdown = source::mode_of(&fs::read_to_string(LOCKDOWN).unwrap_or_default());
    found.must(
        !lockdown.is_empty() && told.found("lockdown") == lockdown,
        || {
            format!(
                "lockdown: {:?}, {lockdown:?} is true",
                told.found("lockdown")
            )
        },
    );
    for name in PARAMETERS {
        let is = parameter(name).unwrap_or_default();
        found.must(told.found(name) == is, || {
            format!("{name}: {:?}, {is:?} is true", told.found(name))
        });
    }
}

/// The doctor, as it will be run.
pub fn command() -> Command {
    let mut command = Command::new(format!("{PROGRAMS_PATH}/oversub"));
    command
        .args(["doctor", "--json", "--socket", SOCKET])
        .env("LD_LIBRARY_PATH", DRIVER_FOLDER)
        .env("OVERSUB_SOFTGPU_BACKEND", "uvm");
    command
}

/// What it said.
#[derive(Debug)]
pub struct Told {
    /// Its exit status.
    pub status: Option<i32>,
    value: Value,
}

impl Told {
    /// Runs it.
    pub fn of(mut command: Command) -> Result<Self> {
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

    /// A check by its name; null where there is none.
    pub fn check(&self, name: &str) -> &Value {
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

    /// Source and tier of a signal.
    pub fn signal(&self, name: &str) -> (&str, &str) {
        let mut signals = self.all("signals").iter();
        let signal = signals.find(|signal| signal["signal"] == name);
        let word = |key: &str| signal.and_then(|signal| signal[key].as_str());
        (
            word("source").unwrap_or_default(),
            word("tier").unwrap_or_default(),
        )
    }

    /// Why a signal is from where it is.
    pub fn reason(&self, name: &str) -> String {
        let mut signals = self.all("signals").iter();
        let signal = signals.find(|signal| signal["signal"] == name);
        let reason = signal.and_then(|signal| signal["reason"].as_str());
        reason.unwrap_or_default().to_owned()
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
