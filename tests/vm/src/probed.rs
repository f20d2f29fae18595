//! Decides whether what the probes said is what happened.

use oversub_bpf::Probe;
use oversub_vm::plan::{DriverCounts, ProbeCounts, ProbeLoad};

/// What is wrong with a round of probes.
pub fn wrong_with(load: &ProbeLoad, counts: &ProbeCounts) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut must = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    let ProbeCounts {
        probes,
        queue,
        procfs,
        ..
    } = counts;
    must(
        counts.wrong_words == 0,
        format!("{} words wrong", counts.wrong_words),
    );
    must(
        counts.probe_drops + counts.queue_drops == 0,
        format!(
            "{} events of probes and {} of the queue dropped",
            counts.probe_drops, counts.queue_drops
        ),
    );
    // What the driver throws away before a replay, the device reports again.
    must(
        procfs.faults <= counts.device_faults,
        format!(
            "the driver counts {} faults of the device's {}",
            procfs.faults, counts.device_faults
        ),
    );
    must(queue.evicted_pages > 0, "nothing was evicted".to_owned());
    for (name, theirs) in differences(queue, procfs) {
        must(false, format!("the queue's {name} differ: {theirs}"));
    }
    if load.layout_of.is_some() {
        must(counts.scalar, "a wrong layout was not noticed".to_owned());
        must(
            probes.pages_in + probes.pages_out == 0 && probes.faults <= procfs.faults,
            format!("a wrong layout told figures: {probes:?}"),
        );
        must(
            probes.blocks_faulted > 0 && probes.blocks_moved > 0 && probes.evictions > 0,
            format!("without a layout too little is seen: {probes:?}"),
        );
        return wrong;
    }
    must(
        counts.verified && counts.implausible == 0 && counts.checked > 0,
        format!(
            "the layout is not verified; {} of {} structures implausible",
            counts.implausible, counts.checked
        ),
    );
    for (name, theirs) in differences(probes, procfs) {
        must(false, format!("the probes' {name} differ: {theirs}"));
    }
    must(
        probes.host_faults == queue.host_faults && probes.evicted_pages == queue.evicted_pages,
        format!("probes and queue differ: {probes:?}, {queue:?}"),
    );
    must(
        probes.of_nobody == 0,
        format!("{} events of no known process", probes.of_nobody),
    );
    must(probes.evictions > 0, "no probe saw an eviction".to_owned());
    for (name, expected) in attachments(load.pin_driver) {
        let how = counts.attached.get(name).map_or("off", String::as_str);
        must(
            how.split(' ').next() == Some(expected),
            format!("{name} is {how}, not {expected}"),
        );
    }
    wrong
}

/// How each probe on the driver must be attached: by the module's types only where they are
/// there and it may be pinned, and even then as kprobes what has no other program.
fn attachments(pinned: bool) -> impl Iterator<Item = (&'static str, &'static str)> {
    let probes = Probe::ALL.into_iter();
    probes
        .filter(|probe| *probe != Probe::SoftGpu && !probe.scalar())
        .map(move |probe| {
            let how = match (probe.has_fentry() && pinned, probe.at_return()) {
                (false, false) => "kprobe",
                (false, true) => "kretprobe",
                (true, false) => "fentry",
                (true, true) => "fexit",
            };
            (probe.name(), how)
        })
}

/// What procfs counts too, where it differs.
pub fn differences(counts: &DriverCounts, procfs: &DriverCounts) -> Vec<(&'static str, String)> {
    [
        ("faults", counts.faults, procfs.faults),
        ("merged faults", counts.merged_faults, procfs.merged_faults),
        ("batches", counts.batches, procfs.batches),
        ("pages in", counts.pages_in, procfs.pages_in),
        ("pages out", counts.pages_out, procfs.pages_out),
        (
            "pages in for faults",
            counts.fault_pages_in,
            procfs.fault_pages_in,
        ),
        (
            "pages out for faults",
            counts.fault_pages_out,
            procfs.fault_pages_out,
        ),
    ]
    .into_iter()
    .filter(|(_, ours, theirs)| ours != theirs)
    .map(|(name, ours, theirs)| (name, format!("{ours}, procfs says {theirs}")))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(layout_of: Option<&str>) -> ProbeLoad {
        ProbeLoad {
            ratio: 1.5,
            sweeps: 1,
            stride: 4096,
            layout_of: layout_of.map(str::to_owned),
            pin_driver: false,
            reload: false,
        }
    }

    fn good() -> ProbeCounts {
        let told = DriverCounts {
            faults: 12_000,
            host_faults: 7,
            batches: 50,
            fault_pages_in: 9,
            fault_pages_out: 8,
            pages_in: 11,
            pages_out: 10,
            evicted_pages: 4,
            evictions: 2,
            ..DriverCounts::default()
        };
        ProbeCounts {
            probes: told,
            queue: told,
            procfs: told,
            device_faults: 12_100,
            verified: true,
            checked: 13_000,
            attached: attachments(false)
                .map(|(name, how)| (name.to_owned(), format!("{how} f")))
                .collect(),
            ..ProbeCounts::default()
        }
    }

    #[test]
    fn equal_counts_pass() {
        assert_eq!(wrong_with(&load(None), &good()), Vec::<String>::new());
    }

    #[test]
    fn every_difference_fails() {
        type Change = fn(&mut ProbeCounts);
        let changes: [Change; 16] = [
            |c| c.probes.faults += 1,
            |c| c.queue.faults += 1,
            |c| c.probes.batches -= 1,
            |c| c.probes.pages_in += 1,
            |c| c.queue.pages_out += 1,
            |c| c.probes.host_faults += 1,
            |c| c.probes.of_nobody = 1,
            |c| c.probes.evictions = 0,
            |c| c.verified = false,
            |c| c.implausible = 1,
            |c| c.probe_drops = 1,
            |c| c.queue_drops = 1,
            |c| c.wrong_words = 1,
            |c| c.device_faults = 1,
            |c| c.probes.merged_faults = 1,
            |c| c.attached.clear(),
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut counts = good();
            change(&mut counts);
            assert!(!wrong_with(&load(None), &counts).is_empty(), "{index}");
        }
    }

    #[test]
    fn probes_of_a_pinned_driver_must_be_attached_by_its_types() {
        let pinned = ProbeLoad {
            pin_driver: true,
            ..load(None)
        };
        let mut counts = good();
        assert_eq!(wrong_with(&pinned, &counts).len(), 6);
        let attached = attachments(true).map(|(name, how)| (name.to_owned(), format!("{how} f")));
        counts.attached = attached.collect();
        assert_eq!(wrong_with(&pinned, &counts), Vec::<String>::new());
    }

    #[test]
    fn a_wrong_layout_must_fall_to_scalars_and_tell_no_figures() {
        let wrong = load(Some("580.142"));
        assert!(!wrong_with(&wrong, &good()).is_empty());
        let mut counts = good();
        counts.probes = DriverCounts {
            blocks_faulted: 5,
            blocks_moved: 6,
            evictions: 2,
            ..DriverCounts::default()
        };
        (counts.scalar, counts.verified) = (true, false);
        assert_eq!(wrong_with(&wrong, &counts), Vec::<String>::new());
        counts.probes.pages_in = 1;
        assert!(!wrong_with(&wrong, &counts).is_empty());
    }
}
