//! Which source of the driver's events is used on this host: a pure choice.

use oversub_bpf::Trust;
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

/// The source, and why it is that one. `queue`: the device of event queues is there.
pub fn choose(mode: ProbesMode, trust: &Trust, queue: bool) -> (Source, String) {
    let no_queue = "the driver's event queue is not there (/dev/nvidia-uvm-tools)";
    match (mode, trust) {
        (ProbesMode::Off, _) => (Source::None, "switched off by configuration".to_owned()),
        (ProbesMode::Queue, _) if queue => (Source::Queue, "asked for by configuration".to_owned()),
        (ProbesMode::Queue, _) => (Source::None, no_queue.to_owned()),
        (ProbesMode::Auto, Trust::Off(reason)) if queue => {
            (Source::Queue, format!("probes cannot be used: {reason}"))
        }
        (ProbesMode::Auto, Trust::Off(reason)) => (Source::None, format!("{reason}; {no_queue}")),
        (ProbesMode::Bpf, Trust::Off(reason)) => (Source::None, reason.clone()),
        (ProbesMode::Auto | ProbesMode::Bpf, trust) => {
            (Source::Probes, format!("the driver's structures: {trust}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_come_first_then_the_queue_then_nothing_unless_configured_otherwise() {
        let off = Trust::Off("no kprobes".to_owned());
        let scalar = Trust::Scalar("unknown version".to_owned());
        for (mode, trust, queue, expected) in [
            (ProbesMode::Auto, &Trust::Verified, true, Source::Probes),
            (ProbesMode::Auto, &scalar, true, Source::Probes),
            (ProbesMode::Auto, &off, true, Source::Queue),
            (ProbesMode::Auto, &off, false, Source::None),
            (ProbesMode::Bpf, &Trust::Verified, true, Source::Probes),
            (ProbesMode::Bpf, &off, true, Source::None),
            (ProbesMode::Queue, &Trust::Verified, true, Source::Queue),
            (ProbesMode::Queue, &Trust::Verified, false, Source::None),
            (ProbesMode::Off, &Trust::Verified, true, Source::None),
        ] {
            let (source, reason) = choose(mode, trust, queue);
            assert_eq!(source, expected, "{mode:?} {trust:?} {queue}");
            assert!(!reason.is_empty());
        }
        let (_, reason) = choose(ProbesMode::Auto, &off, true);
        assert!(reason.contains("no kprobes"), "{reason}");
    }
}
