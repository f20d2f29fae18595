//! Decides whether a daemon that may not use BPF has chosen the right source of the driver's
//! events, says so, and steers a program with it.

use oversub_vm::chosen::{Hindrance, Source, SourceCounts};
use oversub_vm::plan::ProgramCounts;

/// Part of the driver's faults that must not happen once all is learned. Of a GPU as small as
/// this one a good part is the driver's own.
const LEAST_REDUCTION: f64 = 0.9;
/// What the daemon says of a source where BPF is asked for and cannot be used.
const NONE: &str = "none";
const QUEUE: &str = "event queue";

/// What each daemon must say: why it has no BPF, what is configured, the source, and words of
/// the reason.
const EXPECTED: [(Hindrance, Option<&str>, &str, &[&str]); 5] = [
    (Hindrance::Capabilities, None, QUEUE, &["CAP_BPF"]),
    (Hindrance::Capabilities, Some("bpf"), NONE, &["CAP_BPF"]),
    (
        Hindrance::Lockdown,
        None,
        QUEUE,
        &["lockdown", "confidentiality"],
    ),
    (
        Hindrance::Lockdown,
        Some("bpf"),
        NONE,
        &["lockdown", "confidentiality"],
    ),
    (
        Hindrance::Sealed,
        None,
        NONE,
        &["lockdown", "ptrace_scope 3"],
    ),
];

/// Faults of an iteration once all is learned.
fn faults(counts: &ProgramCounts) -> f64 {
    let settled = &counts.settled;
    settled.faults as f64 / f64::from(settled.iterations.max(1))
}

/// Part of the driver's faults that do not happen.
pub fn reduction(counts: &SourceCounts) -> f64 {
    1.0 - faults(&counts.steered) / faults(&counts.alone).max(1.0)
}

/// What is not as it must be.
pub fn wrong_with(counts: &SourceCounts) -> Vec<String> {
    let mut wrong = Vec::new();
    if counts.sources.len() != EXPECTED.len() {
        wrong.push(format!("{} daemons were asked", counts.sources.len()));
    }
    for (source, (hindrance, mode, name, says)) in counts.sources.iter().zip(EXPECTED) {
        let (found, configured) = (source.hindrance, source.mode.as_deref());
        let mut all = wrong_with_one(source, name, says);
        if (found, configured) != (hindrance, mode) {
            all.push(format!("{hindrance:?}, {mode:?} was planned"));
        }
        let what = format!(
            "{found:?}, probes.mode {}",
            configured.unwrap_or("the default")
        );
        wrong.extend(all.into_iter().map(|found| format!("{what}: {found}")));
    }
    let mut must = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    must(
        counts.alone.ok && counts.steered.ok,
        "a result is wrong".to_owned(),
    );
    must(
        counts.observed == 1,
        format!("event queues of {} processes were open", counts.observed),
    );
    must(
        faults(&counts.alone) > 0.0 && counts.steered.called_in > 0,
        "there was nothing to steer, or nothing was".to_owned(),
    );
    must(
        reduction(counts) >= LEAST_REDUCTION,
        format!(
            "{:.1} % fewer faults, {:.0} % are wanted",
            100.0 * reduction(counts),
            100.0 * LEAST_REDUCTION
        ),
    );
    must(
        counts.lockdown == "confidentiality",
        format!("the kernel's lockdown mode is {:?}", counts.lockdown),
    );
    for text in ["pidfd_getfd", "not permitted", "kernel.yama.ptrace_scope"] {
        must(
            counts.sealed.contains(text),
            format!(
                "where nothing may look into another, attach says {:?}",
                counts.sealed
            ),
        );
    }
    wrong
}

fn wrong_with_one(source: &Source, name: &str, says: &[&str]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut must = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    // Less than all is a warning, not a failure: a device is there, and programs run.
    must(
        source.status == Some(0),
        format!("the doctor ends with {:?}", source.status),
    );
    let events = &source.events;
    must(
        events.starts_with(name) && says.iter().all(|word| events.contains(word)),
        format!("driver events {events:?}, not {name:?} for {says:?}"),
    );
    let status = &source.told_status;
    must(
        status.contains(&format!("driver events from {name}: "))
            && says.iter().all(|word| status.contains(word)),
        format!("the status says {status:?}"),
    );
    for (signal, queued) in [
        ("faults", "full"),
        ("migrations", "full"),
        ("evictions", "part"),
    ] {
        let tier = if name == QUEUE { queued } else { "none" };
        let found = source.signals.get(signal);
        must(
            found.is_some_and(|(from, is, why)| {
                from == name && is == tier && says.iter().all(|word| why.contains(word))
            }),
            format!("{signal}: {found:?}"),
        );
    }
    let lockdown = match source.hindrance {
        Hindrance::Capabilities => ("ok", "none"),
        Hindrance::Lockdown | Hindrance::Sealed => ("warn", "confidentiality"),
    };
    let (level, found) = &source.lockdown;
    must(
        (level.as_str(), found.as_str()) == lockdown,
        format!("lockdown: {level} {found:?}"),
    );
    let (level, found) = &source.yama;
    must(
        source.hindrance != Hindrance::Sealed
            || (level == "warn" && found.starts_with("ptrace_scope 3")),
        format!("Yama: {level} {found:?}"),
    );
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use oversub_vm::plan::Settled;

    fn program(faults: u64) -> ProgramCounts {
        ProgramCounts {
            ok: true,
            called_in: 1,
            settled: Settled {
                iterations: 2,
                faults,
                bytes: 1,
            },
            ..ProgramCounts::default()
        }
    }

    /// What a product that chooses and says the right things answers.
    fn right() -> SourceCounts {
        let sources = EXPECTED.iter().map(|(hindrance, mode, name, says)| {
            let says = says.join(" ");
            let tiers = match *name {
                QUEUE => ["full", "full", "part"],
                _ => ["none"; 3],
            };
            let signals = ["faults", "migrations", "evictions"].into_iter().zip(tiers);
            let lockdown = match hindrance {
                Hindrance::Capabilities => ("ok", "none"),
                _ => ("warn", "confidentiality"),
            };
            let words = |(level, found): (&str, &str)| (level.to_owned(), found.to_owned());
            Source {
                hindrance: *hindrance,
                mode: mode.map(str::to_owned),
                status: Some(0),
                events: format!("{name}: {says}"),
                signals: signals
                    .map(|(signal, tier)| {
                        let all = ((*name).to_owned(), tier.to_owned(), says.clone());
                        (signal.to_owned(), all)
                    })
                    .collect(),
                lockdown: words(lockdown),
                yama: words(("warn", "ptrace_scope 3: no process")),
                told_status: format!("driver events from {name}: {says}\n"),
            }
        });
        SourceCounts {
            sources: sources.collect(),
            alone: program(1000),
            steered: program(10),
            observed: 1,
            lockdown: "confidentiality".to_owned(),
            sealed: "pidfd_getfd: not permitted: kernel.yama.ptrace_scope".to_owned(),
        }
    }

    #[test]
    fn the_right_choices_pass() {
        assert_eq!(wrong_with(&right()), [""; 0]);
        assert!((reduction(&right()) - 0.99).abs() < 1e-9);
    }

    #[test]
    fn each_thing_that_is_otherwise_is_noticed() {
        type Change = fn(&mut SourceCounts);
        let changes: [Change; 15] = [
            |counts| counts.alone.ok = false,
            |counts| counts.steered.ok = false,
            |counts| counts.steered.settled.faults = 500,
            |counts| counts.steered.called_in = 0,
            |counts| counts.observed = 0,
            |counts| counts.lockdown = "integrity".to_owned(),
            |counts| counts.sealed = "pidfd_getfd: not permitted".to_owned(),
            |counts| counts.sources[0].events = "probes: CAP_BPF".to_owned(),
            |counts| counts.sources[1].told_status = "driver events from none: no".to_owned(),
            |counts| counts.sources[2].status = Some(1),
            |counts| counts.sources[2].lockdown.0 = "ok".to_owned(),
            |counts| counts.sources[4].yama.1 = "ptrace_scope 0".to_owned(),
            |counts| counts.sources[3].mode = None,
            |counts| {
                counts.sources[0].signals.remove("faults");
            },
            |counts| {
                counts.sources.pop();
            },
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut counts = right();
            change(&mut counts);
            assert_eq!(
                wrong_with(&counts).len(),
                1,
                "{index}: {:?}",
                wrong_with(&counts)
            );
        }
    }
}
