//! What oversub learns from where on this machine, and how well: a pure function.

use oversubd::control::{Doctor, DriverView};
use oversubd::probes::source::Source;
use serde::Serialize;

use super::facts::Facts;

/// How good a signal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Exact.
    Full,
    /// Something of it is missing.
    Part,
    /// Nothing is known.
    None,
}

impl Tier {
    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Full => "full",
            Tier::Part => "part",
            Tier::None => "none",
        }
    }
}

/// One thing that oversub wants to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Signal {
    /// What.
    pub signal: &'static str,
    /// From where.
    pub source: String,
    /// How well.
    pub tier: Tier,
    /// Why from there, and what is missing.
    pub reason: String,
}

fn signal(signal: &'static str, source: &str, tier: Tier, reason: impl Into<String>) -> Signal {
    Signal {
        signal,
        source: source.to_owned(),
        tier,
        reason: reason.into(),
    }
}

/// Every signal, in the order shown.
pub fn signals(facts: &Facts) -> Vec<Signal> {
    let shim = facts
        .files
        .iter()
        .find(|(name, _)| *name == "liboversub.so");
    let mut signals = match shim {
        Some((_, Err(reason))) => vec![
            signal("launches", "none", Tier::None, reason.clone()),
            signal("lifetimes", "none", Tier::None, reason.clone()),
        ],
        _ => vec![
            signal(
                "launches",
                "liboversub.so",
                Tier::Full,
                "every launch, copy and memset of a program that `oversub run` starts",
            ),
            signal(
                "lifetimes",
                "liboversub.so",
                Tier::Full,
                "stream-ordered allocations; those of a caching allocator are hidden",
            ),
        ],
    };
    signals.push(match facts.memlock {
        Some(bytes) if bytes < 64 << 10 => signal(
            "progress",
            "none",
            Tier::None,
            "too little memory may be locked for the page that the device writes to",
        ),
        _ => signal(
            "progress",
            "the device",
            Tier::Full,
            "a number that the device writes after launches",
        ),
    });
    let view = match &facts.daemon {
        Ok(Doctor {
            driver: Some(view), ..
        }) => view,
        Ok(_) => {
            let reason = "the daemon is of an older version and does not say";
            signals.extend(
                ["faults", "migrations", "evictions"]
                    .map(|name| signal(name, "unknown", Tier::None, reason)),
            );
            return signals;
        }
        Err(reason) => {
            signals.extend(
                ["faults", "migrations", "evictions"]
                    .map(|name| signal(name, "none", Tier::None, format!("no daemon: {reason}"))),
            );
            return signals;
        }
    };
    signals.extend(driver(view));
    signals
}

fn driver(view: &DriverView) -> [Signal; 3] {
    let source = view.source.name();
    let reason = &view.reason;
    let (faults, migrations, evictions) = match (view.source, view.scalar) {
        (Source::Probes, false) => ((Tier::Full, ""), (Tier::Full, ""), (Tier::Full, "")),
        (Source::Probes, true) => (
            (Tier::Part, "; blocks, without counts"),
            (Tier::Part, "; blocks, without bytes"),
            (Tier::Full, ""),
        ),
        (Source::Queue, _) => (
            (Tier::Full, ""),
            (Tier::Full, ""),
            (Tier::Part, "; those that copied nothing are not told"),
        ),
        (Source::None, _) => ((Tier::None, ""), (Tier::None, ""), (Tier::None, "")),
    };
    let one = |name, (tier, missing): (Tier, &str)| {
        signal(name, source, tier, format!("{reason}{missing}"))
    };
    [
        one("faults", faults),
        one("migrations", migrations),
        one("evictions", evictions),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::judge::tests::capable;

    fn tiers(source: Source, scalar: bool) -> Vec<(&'static str, Tier)> {
        let mut facts = capable();
        let doctor = facts.daemon.as_mut().expect("capable");
        let view = doctor.driver.as_mut().expect("capable");
        (view.source, view.scalar) = (source, scalar);
        let told = signals(&facts).into_iter();
        told.map(|signal| (signal.signal, signal.tier)).collect()
    }

    #[test]
    fn a_capable_machine_knows_everything() {
        assert!(signals(&capable()).iter().all(|s| s.tier == Tier::Full));
        assert_eq!(signals(&capable()).len(), 6);
    }

    #[test]
    fn each_source_says_what_it_lacks() {
        let of = |source, scalar| tiers(source, scalar)[3..].to_vec();
        let (full, part, none) = (Tier::Full, Tier::Part, Tier::None);
        for (source, scalar, expected) in [
            (Source::Probes, false, [full, full, full]),
            (Source::Probes, true, [part, part, full]),
            (Source::Queue, false, [full, full, part]),
            (Source::None, false, [none, none, none]),
        ] {
            let names = ["faults", "migrations", "evictions"];
            let expected: Vec<_> = names.into_iter().zip(expected).collect();
            assert_eq!(of(source, scalar), expected, "{source:?} {scalar}");
        }
    }

    #[test]
    fn what_cannot_be_known_is_told_as_such() {
        let mut facts = capable();
        facts.daemon = Err("nobody listens".to_owned());
        facts.memlock = Some(0);
        facts.files = vec![("liboversub.so", Err("not found".to_owned()))];
        let told = signals(&facts);
        assert!(told.iter().all(|signal| signal.tier == Tier::None));
        assert!(told.iter().all(|signal| !signal.reason.is_empty()));
    }
}
