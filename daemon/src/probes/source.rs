//! Which source of the driver's events is used on this host: a pure choice.

use oversub_bpf::Trust;
use oversub_bpf::driver::Reach;
use serde::{Deserialize, Serialize};

use crate::config::ProbesMode;

/// Where events of nvidia-uvm come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// BPF probes: every process of the host.
    Probes,
    /// The driver's own event queue, of each process with a session.
    Queue,
    /// Nowhere: programs are steered by what they report.
    None,
}

impl Source {
    /// As shown.
    pub fn name(self) -> &'static str {
        match self {
            Source::Probes => "probes",
            Source::Queue => "event queue",
            Source::None => "none",
        }
    }
}

/// The source, and why it is that one. `reach`: whose event queues can be opened.
pub fn choose(mode: ProbesMode, trust: &Trust, reach: &Reach) -> (Source, String) {
    let why = match (mode, trust) {
        (ProbesMode::Off, _) => {
            return (Source::None, "switched off by configuration".to_owned());
        }
        (ProbesMode::Bpf, Trust::Off(reason)) => return (Source::None, reason.clone()),
        (ProbesMode::Queue, _) => "asked for by configuration".to_owned(),
        (ProbesMode::Auto, Trust::Off(reason)) => format!("probes cannot be used: {reason}"),
        (ProbesMode::Auto | ProbesMode::Bpf, trust) => {
            return (Source::Probes, format!("the driver's structures: {trust}"));
        }
    };
    match reach {
        Reach::All => (Source::Queue, why),
        Reach::Own => (
            Source::Queue,
            format!("{why}; of processes of the daemon's own user alone"),
        ),
        Reach::Nobody(reason) => (Source::None, format!("{why}; {reason}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_come_first_then_the_queue_then_nothing_unless_configured_otherwise() {
        let off = Trust::Off("no kprobes".to_owned());
        let scalar = Trust::Scalar("unknown version".to_owned());
        let nobody = Reach::Nobody("no queue".to_owned());
        let (all, own) = (&Reach::All, &Reach::Own);
        for (mode, trust, reach, expected) in [
            (ProbesMode::Auto, &Trust::Verified, all, Source::Probes),
            (ProbesMode::Auto, &scalar, all, Source::Probes),
            (ProbesMode::Auto, &off, all, Source::Queue),
            (ProbesMode::Auto, &off, own, Source::Queue),
            (ProbesMode::Auto, &off, &nobody, Source::None),
            (ProbesMode::Bpf, &Trust::Verified, all, Source::Probes),
            (ProbesMode::Bpf, &off, all, Source::None),
            (ProbesMode::Queue, &Trust::Verified, all, Source::Queue),
            (ProbesMode::Queue, &Trust::Verified, &nobody, Source::None),
            (ProbesMode::Off, &Trust::Verified, all, Source::None),
        ] {
            let (source, reason) = choose(mode, trust, reach);
            assert_eq!(source, expected, "{mode:?} {trust:?} {reach:?}");
            assert!(!reason.is_empty());
        }
        let (_, reason) = choose(ProbesMode::Auto, &off, all);
        assert!(reason.contains("no kprobes"), "{reason}");
        let (_, reason) = choose(ProbesMode::Auto, &off, own);
        assert!(reason.contains("own user"), "{reason}");
        let (_, reason) = choose(ProbesMode::Auto, &off, &nobody);
        assert!(
            reason.contains("no kprobes") && reason.contains("no queue"),
            "{reason}"
        );
    }
}
