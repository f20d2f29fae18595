//! From facts to verdicts. Pure.

use oversubd::control::Doctor;
use oversubd::probes::source::Source;
use serde::Serialize;

use super::facts::Facts;
use crate::device::NoDevice;
use crate::size::Size;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// oversub works, with less than it could.
    Warn,
    /// Something that oversub needs is missing.
    Fail,
}

impl Level {
    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }
}

/// One verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: String,
    /// How it is.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What to do; none where nothing is to be done.
    pub remedy: Option<String>,
}

fn ok(name: &str, found: impl Into<String>) -> Check {
    Check {
        name: name.to_owned(),
        level: Level::Ok,
        found: found.into(),
        remedy: None,
    }
}

fn warn(name: &str, found: impl Into<String>, remedy: &str) -> Check {
    let remedy = Some(remedy.to_owned());
    Check {
        name: name.to_owned(),
        level: Level::Warn,
        found: found.into(),
        remedy,
    }
}

fn fail(name: &str, found: impl Into<String>, remedy: &str) -> Check {
    Check {
        level: Level::Fail,
        ..warn(name, found, remedy)
    }
}

/// Every check, in the order shown.
pub fn judge(facts: &Facts) -> Vec<Check> {
    let mut checks = files(facts);
    checks.extend(kernel(facts));
    checks.extend(security(facts));
    checks.extend(device(facts));
    checks.extend(driver(facts));
    checks.extend(daemon(facts));
    checks
}

fn files(facts: &Facts) -> Vec<Check> {
    let judged = facts.files.iter().map(|(name, found)| match found {
        Ok(path) => ok(name, path.display().to_string()),
        Err(reason) => fail(
            name,
            reason.clone(),
            "build the workspace with `cargo build --release --workspace`, or set OVERSUB_LIB_DIR",
        ),
    });
    judged.collect()
}

fn kernel(facts: &Facts) -> Vec<Check> {
    let btf = if facts.btf {
        "with BPF type information"
    } else {
        "without BPF type information"
    };
    let release = facts.kernel.as_deref().unwrap_or("unknown");
    let kernel = if facts.btf {
        ok("kernel", format!("{release}, {btf}"))
    } else {
        warn(
            "kernel",
            format!("{release}, {btf}"),
            "probes need CONFIG_DEBUG_INFO_BTF; without them oversub works from the program's own events",
        )
    };
    let pidfd = match &facts.pidfd {
        Ok(()) => ok("pidfd_open", "permitted"),
        Err(reason) => fail(
            "pidfd_open",
            reason.clone(),
            "`oversub run` needs it to end its private daemon: Linux 5.3 or later, and no seccomp filter against it",
        ),
    };
    let userfaultfd = match &facts.userfaultfd {
        Ok(()) => ok("userfaultfd", "permitted"),
        Err(reason) => warn(
            "userfaultfd",
            reason.clone(),
            "only the soft GPU needs it: run as root, or `sysctl vm.unprivileged_userfaultfd=1`, or give yourself /dev/userfaultfd",
        ),
    };
    let memlock = match facts.memlock {
        None => ok("locked memory", "no limit"),
        Some(bytes) if bytes >= 64 << 10 => ok("locked memory", format!("up to {}", Size(bytes))),
        Some(bytes) => warn(
            "locked memory",
            format!("up to {}", Size(bytes)),
            "raise `ulimit -l` to 64 KiB, or progress marks of the device cannot be registered",
        ),
    };
    vec![kernel, pidfd, userfaultfd, memlock]
}

fn security(facts: &Facts) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(mode) = &facts.lockdown {
        checks.push(if mode == "confidentiality" {
            warn(
                "lockdown",
                mode.clone(),
                "it forbids probes on the driver; the driver's event queue is used instead, or boot with lockdown=integrity",
            )
        } else {
            ok("lockdown", mode.clone())
        });
    }
    checks.push(match facts.ptrace_scope {
        None => ok(
            "Yama",
            "absent: a user's processes may look into each other",
        ),
        Some(0) => ok("Yama", "ptrace_scope 0"),
        Some(scope @ 1..3) => ok(
            "Yama",
            format!("ptrace_scope {scope}: event queues take a daemon with CAP_SYS_PTRACE"),
        ),
        Some(scope) => warn(
            "Yama",
            format!("ptrace_scope {scope}: no process may look into another"),
            "event queues cannot be used until a restart with kernel.yama.ptrace_scope below 3",
        ),
    });
    checks
}

fn device(facts: &Facts) -> Vec<Check> {
    let device = match &facts.device {
        Ok(device) => {
            let version = device.cuda_version;
            let found = format!(
                "{}, CUDA {}.{}, {} free",
                device.name,
                version / 1000,
                version % 1000 / 10,
                Size(device.free_bytes)
            );
            ok("GPU", found)
        }
        Err(reason @ NoDevice::NoDriver(_)) => warn(
            "GPU",
            reason.to_string(),
            "install the NVIDIA driver, or use the soft GPU: `oversub demo`, `oversub run --soft`",
        ),
        Err(reason) => warn(
            "GPU",
            reason.to_string(),
            "see `nvidia-smi` and the kernel log",
        ),
    };
    let mut checks = vec![device];
    if let Ok(device) = &facts.device {
        checks.push(if device.concurrent_managed {
            ok("concurrent managed access", "yes: the device faults")
        } else {
            fail(
                "concurrent managed access",
                "no: the device cannot fault on managed memory, so none can be oversubscribed",
                "it takes Linux on bare metal or with a whole device passed through, and a GPU of the Pascal generation or later",
            )
        });
        checks.push(match (device.host_page_tables, device.pageable) {
            (true, _) => warn(
                "coherent platform",
                "yes: the device reads the host's memory through the host's page tables",
                "the hardware does here what oversub is for; `oversub run` only costs: run programs without it",
            ),
            (false, true) => ok(
                "coherent platform",
                "no; the device reaches all of a program's memory by faults (HMM)",
            ),
            (false, false) => ok("coherent platform", "no"),
        });
    } else if facts.userfaultfd.is_err() {
        checks.push(fail(
            "a device to run on",
            "neither a GPU nor the soft GPU can be used",
            "see the checks `GPU` and `userfaultfd`: one of the two is needed",
        ));
    }
    checks
}

fn driver(facts: &Facts) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(version) = &facts.module {
        let flavour = match facts.open_flavour {
            Some(true) => ", open modules",
            Some(false) => ", closed modules",
            None => "",
        };
        checks.push(if facts.uvm_module {
            ok(
                "NVIDIA module",
                format!("{version}{flavour}, with nvidia-uvm"),
            )
        } else {
            warn(
                "NVIDIA module",
                format!("{version}{flavour}, without nvidia-uvm"),
                "`nvidia-modprobe -u -c=0` loads it",
            )
        });
        checks.push(if facts.uvm_btf {
            ok("nvidia-uvm types", "present")
        } else {
            ok(
                "nvidia-uvm types",
                "absent, as in most builds: the layouts that oversub brings are used",
            )
        });
    }
    for (name, value) in &facts.uvm_parameters {
        let oversubscription = *name == "uvm_global_oversubscription";
        checks.push(if oversubscription && value == "0" {
            fail(
                name,
                value.clone(),
                "the driver may not evict: take uvm_global_oversubscription=0 out of the module's options and load it again",
            )
        } else {
            ok(name, value.clone())
        });
    }
    match facts.discard {
        Some(true) => checks.push(ok("discard of dead memory", "supported by the driver")),
        Some(false) => checks.push(warn(
            "discard of dead memory",
            "not in this driver",
            "driver 580 or later with CUDA 13 drops dead memory without a transfer",
        )),
        None => {}
    }
    checks
}

fn daemon(facts: &Facts) -> Vec<Check> {
    let doctor = match &facts.daemon {
        Ok(doctor) => doctor,
        Err(reason) => {
            return vec![warn(
                "daemon",
                reason.clone(),
                "`oversub run` starts one of its own; for all users: `systemctl enable --now oversubd`",
            )];
        }
    };
    let ours = env!("CARGO_PKG_VERSION");
    let mut checks = vec![if doctor.version == ours {
        ok(
            "daemon",
            format!("{} at {}", doctor.version, doctor.socket.display()),
        )
    } else {
        warn(
            "daemon",
            format!(
                "{} at {}, this is {ours}",
                doctor.version,
                doctor.socket.display()
            ),
            "install one version of both and restart the daemon",
        )
    }];
    checks.push(capabilities(doctor));
    checks.push(attaching(facts, doctor));
    if let Some(reason) = &doctor.probes_off {
        checks.push(warn(
            "probes",
            format!("off: {reason}"),
            "give the daemon CAP_BPF and CAP_PERFMON (its systemd unit does), or go on without: programs are steered by their own events",
        ));
    }
    for probe in &doctor.probes {
        let name = format!("probe {}", probe.probe);
        let found = probe.detail.clone();
        checks.push(if probe.attached {
            ok(&name, found)
        } else {
            Check {
                name,
                level: Level::Ok,
                found: format!("off: {found}"),
                remedy: None,
            }
        });
    }
    if let Some(view) = &doctor.driver {
        checks.push(match view.source {
            Source::None => Check {
                // No fault of the host's where there is no driver to observe.
                level: if facts.uvm_module {
                    Level::Warn
                } else {
                    Level::Ok
                },
                remedy: facts.uvm_module.then(|| {
                    "give the daemon CAP_BPF and CAP_PERFMON, or CAP_SYS_PTRACE and /dev/nvidia-uvm-tools".to_owned()
                }),
                ..ok("driver events", format!("none: {}", view.reason))
            },
            source if view.scalar => warn(
                "driver events",
                format!("{}: {}", source.name(), view.reason),
                "blocks and directions are seen, no counts and no bytes; `mode = \"queue\"` in the daemon's configuration has both",
            ),
            source => ok(
                "driver events",
                format!("{}: {}", source.name(), view.reason),
            ),
        });
        if view.implausible > 0 {
            checks.push(warn(
                "driver structures",
                format!(
                    "{} of {} had impossible contents",
                    view.implausible, view.checked
                ),
                "report the driver's version; `mode = \"queue\"` in the daemon's configuration does not read them",
            ));
        }
    }
    if doctor.probe_drops > 0 {
        checks.push(warn(
            "probe losses",
            format!("{} events", doctor.probe_drops),
            "enlarge the probes' ring in the daemon's configuration",
        ));
    }
    checks
}

/// What the daemon may do beyond an ordinary process.
fn capabilities(doctor: &Doctor) -> Check {
    let has = |name: &str| doctor.capabilities.iter().any(|held| held == name);
    let found = match doctor.capabilities.is_empty() {
        true => "none".to_owned(),
        false => doctor.capabilities.join(" "),
    };
    let probes = has("CAP_SYS_ADMIN") || (has("CAP_BPF") && has("CAP_PERFMON"));
    match (probes, has("CAP_SYS_PTRACE")) {
        (true, true) if !has("CAP_DAC_READ_SEARCH") => warn(
            "capabilities",
            found,
            "add CAP_DAC_READ_SEARCH for the event queues of other users' programs, and to attach to them; the systemd unit does",
        ),
        (true, true) => ok("capabilities", found),
        (true, false) => warn(
            "capabilities",
            found,
            "add CAP_SYS_PTRACE for the driver's event queues and for `oversub attach`; the systemd unit does",
        ),
        (false, _) => warn(
            "capabilities",
            found,
            "add CAP_BPF and CAP_PERFMON for probes, CAP_SYS_PTRACE for event queues; the systemd unit does",
        ),
    }
}

/// Whether `oversub attach` can work, and for whom. What hinders it has a check of its own.
fn attaching(facts: &Facts, doctor: &Doctor) -> Check {
    let has = |name: &str| doctor.capabilities.iter().any(|held| held == name);
    let traces = has("CAP_SYS_PTRACE");
    let view = doctor.driver.as_ref();
    let source = view.map_or(Source::None, |view| view.source);
    let scope = facts.ptrace_scope.unwrap_or(0);
    let found = if !facts.uvm_module {
        "nothing to attach to: nvidia-uvm is not loaded"
    } else if source == Source::None {
        "off: nothing tells what the driver does (see `driver events`)"
    } else if source == Source::Probes && view.is_some_and(|view| view.scalar) {
        "off: the probes do not know this driver's structures (see `driver events`)"
    } else if scope > 2 {
        "off: no process may look into another (see `Yama`)"
    } else if traces && has("CAP_DAC_READ_SEARCH") {
        "to processes of the user who asks, by the rules of [attach] in the daemon's configuration"
    } else if traces || scope == 0 {
        "to processes of the daemon's own user"
    } else {
        "off: Yama asks for CAP_SYS_PTRACE, which the daemon has not (see `capabilities`)"
    };
    ok("attach", found)
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use oversubd::control::{Doctor, DriverView, ProbeView};

    use super::*;
    use crate::device::Device;

    /// A machine on which everything is as it should be.
    pub fn capable() -> Facts {
        Facts {
            files: vec![("liboversub.so", Ok(PathBuf::from("/lib/liboversub.so")))],
            daemon: Ok(Doctor {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                config: None,
                socket: PathBuf::from("/run/oversub/oversubd.sock"),
                http: None,
                uid: 0,
                capabilities: [
                    "CAP_DAC_READ_SEARCH",
                    "CAP_SYS_PTRACE",
                    "CAP_PERFMON",
                    "CAP_BPF",
                ]
                .map(str::to_owned)
                .to_vec(),
                probes: vec![ProbeView {
                    probe: "softgpu".to_owned(),
                    attached: true,
                    detail: "uprobe".to_owned(),
                }],
                probes_off: None,
                probe_drops: 0,
                driver: Some(DriverView {
                    source: Source::Probes,
                    reason: "the driver's structures: verified".to_owned(),
                    layout: "verified".to_owned(),
                    scalar: false,
                    checked: 5,
                    implausible: 0,
                    observed: Vec::new(),
                }),
                host: Vec::new(),
                limits: Vec::new(),
            }),
            kernel: Some("6.18.0".to_owned()),
            btf: true,
            userfaultfd: Ok(()),
            memlock: None,
            device: Ok(Device {
                name: "GPU".to_owned(),
                cuda_version: 13_000,
                free_bytes: 1 << 30,
                concurrent_managed: true,
                pageable: false,
                host_page_tables: false,
            }),
            discard: Some(true),
            module: Some("580.142".to_owned()),
            uvm_module: true,
            uvm_btf: true,
            pidfd: Ok(()),
            open_flavour: Some(true),
            uvm_parameters: vec![("uvm_global_oversubscription", "1".to_owned())],
            lockdown: Some("none".to_owned()),
            ptrace_scope: Some(1),
        }
    }

    fn worst(facts: &Facts) -> Vec<(String, Level)> {
        judge(facts)
            .into_iter()
            .filter(|check| check.level != Level::Ok)
            .map(|check| (check.name, check.level))
            .collect()
    }

    #[test]
    fn a_capable_machine_has_nothing_to_complain_of() {
        assert_eq!(worst(&capable()), []);
    }

    #[test]
    fn a_missing_file_of_our_own_fails() {
        let mut facts = capable();
        facts.files.push(("oversubd", Err("not found".to_owned())));
        assert_eq!(worst(&facts), [("oversubd".to_owned(), Level::Fail)]);
    }

    #[test]
    fn no_daemon_and_no_gpu_are_only_warnings_because_oversub_brings_both() {
        let mut facts = capable();
        facts.daemon = Err("no daemon".to_owned());
        facts.device = Err(NoDevice::NoDriver("no file".to_owned()));
        assert!(judge(&facts).iter().all(|check| check.level != Level::Fail));
        assert_eq!(worst(&facts).len(), 2);
    }

    #[test]
    fn every_complaint_says_what_to_do() {
        let mut facts = capable();
        facts.files.push(("oversubd", Err("not found".to_owned())));
        facts.daemon = Err("no daemon".to_owned());
        facts.device = Err(NoDevice::None);
        (facts.btf, facts.uvm_module, facts.uvm_btf) = (false, false, false);
        (facts.memlock, facts.discard) = (Some(0), Some(false));
        facts.userfaultfd = Err("EPERM".to_owned());
        facts.pidfd = Err("ENOSYS".to_owned());
        for check in judge(&facts) {
            assert_eq!(
                check.remedy.is_some(),
                check.level != Level::Ok,
                "{check:?}"
            );
        }
        assert_eq!(worst(&facts).len(), 10);
        assert!(worst(&facts).contains(&("a device to run on".to_owned(), Level::Fail)));
    }

    /// One fact changed, and the one complaint that comes of it.
    #[test]
    fn each_hindrance_is_told_by_itself() {
        type Change = fn(&mut Facts);
        fn device(facts: &mut Facts) -> &mut Device {
            facts.device.as_mut().unwrap()
        }
        let table: [(&str, Level, Change); 12] = [
            ("capabilities", Level::Warn, |facts| {
                lose(facts, "CAP_SYS_PTRACE");
            }),
            ("capabilities", Level::Warn, |facts| {
                lose(facts, "CAP_DAC_READ_SEARCH");
            }),
            ("capabilities", Level::Warn, |facts| lose(facts, "CAP_BPF")),
            ("lockdown", Level::Warn, |facts| {
                facts.lockdown = Some("confidentiality".to_owned());
            }),
            ("Yama", Level::Warn, |facts| facts.ptrace_scope = Some(3)),
            ("concurrent managed access", Level::Fail, |facts| {
                device(facts).concurrent_managed = false;
            }),
            ("coherent platform", Level::Warn, |facts| {
                device(facts).host_page_tables = true;
            }),
            ("uvm_global_oversubscription", Level::Fail, |facts| {
                facts.uvm_parameters = vec![("uvm_global_oversubscription", "0".to_owned())];
            }),
            ("driver events", Level::Warn, |facts| {
                view(facts).source = Source::None;
            }),
            ("driver events", Level::Warn, |facts| {
                view(facts).scalar = true;
            }),
            ("driver structures", Level::Warn, |facts| {
                view(facts).implausible = 1;
            }),
            ("NVIDIA module", Level::Warn, |facts| {
                facts.uvm_module = false;
            }),
        ];
        for (name, level, change) in table {
            let mut facts = capable();
            change(&mut facts);
            assert_eq!(worst(&facts), [(name.to_owned(), level)], "{name}");
        }
    }

    fn view(facts: &mut Facts) -> &mut DriverView {
        facts.daemon.as_mut().unwrap().driver.as_mut().unwrap()
    }

    fn lose(facts: &mut Facts, capability: &str) {
        let doctor = facts.daemon.as_mut().expect("capable");
        doctor.capabilities.retain(|held| held != capability);
    }

    #[test]
    fn attaching_is_off_where_something_hinders_it_and_says_what() {
        let found = |change: fn(&mut Facts)| {
            let mut facts = capable();
            change(&mut facts);
            let checks = judge(&facts);
            let attach = checks.iter().find(|check| check.name == "attach");
            attach.expect("is judged").found.clone()
        };
        assert!(found(|_| {}).starts_with("to processes of the user who asks"));
        type Change = fn(&mut Facts);
        let hindered: [(&str, Change); 5] = [
            ("not loaded", |facts| facts.uvm_module = false),
            ("`Yama`", |facts| facts.ptrace_scope = Some(3)),
            ("`capabilities`", |facts| lose(facts, "CAP_SYS_PTRACE")),
            ("nothing tells", |facts| view(facts).source = Source::None),
            ("structures", |facts| view(facts).scalar = true),
        ];
        for (why, change) in hindered {
            assert!(found(change).contains(why), "{why}: {}", found(change));
        }
        let own = found(|facts| {
            lose(facts, "CAP_SYS_PTRACE");
            facts.ptrace_scope = Some(0);
        });
        assert!(own.contains("own user"), "{own}");
        let own = found(|facts| lose(facts, "CAP_DAC_READ_SEARCH"));
        assert!(own.contains("own user"), "{own}");
    }

    #[test]
    fn what_is_usual_is_no_complaint() {
        let table: [fn(&mut Facts); 4] = [
            |facts| facts.uvm_btf = false,
            |facts| facts.ptrace_scope = None,
            |facts| facts.open_flavour = None,
            |facts| facts.lockdown = Some("integrity".to_owned()),
        ];
        for change in table {
            let mut facts = capable();
            change(&mut facts);
            assert_eq!(worst(&facts), []);
        }
    }

    #[test]
    fn a_daemon_without_probes_gives_its_reason() {
        let mut facts = capable();
        if let Ok(doctor) = &mut facts.daemon {
            doctor.probes_off = Some("no CAP_BPF".to_owned());
        }
        let checks = judge(&facts);
        let probes = checks.iter().find(|check| check.name == "probes").unwrap();
        assert!(probes.found.contains("no CAP_BPF"));
    }
}
