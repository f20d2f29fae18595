//! Which probes to use on a host, and why not the others: a pure function of the facts.

use std::fmt;

use crate::host::{HostFacts, UvmFacts};
use crate::offsets::UvmLayout;

/// One probe. Each is attached by itself and has a state of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Probe {
    /// All five probe points of the soft GPU.
    SoftGpu,
    /// nvidia-uvm: faults and migrations.
    UvmEvents,
    /// nvidia-uvm: the fault service loop begins.
    UvmServiceBegin,
    /// nvidia-uvm: and ends.
    UvmServiceEnd,
    /// nvidia-uvm: a batch of faults was served.
    UvmReplay,
    /// nvidia-uvm: an eviction begins.
    UvmEvictionBegin,
    /// nvidia-uvm: and ends.
    UvmEvictionEnd,
    /// nvidia-uvm: a process makes a managed range.
    UvmRange,
}

impl Probe {
    /// Every probe, in the order of reports.
    pub const ALL: [Probe; 8] = [
        Probe::SoftGpu,
        Probe::UvmEvents,
        Probe::UvmServiceBegin,
        Probe::UvmServiceEnd,
        Probe::UvmReplay,
        Probe::UvmEvictionBegin,
        Probe::UvmEvictionEnd,
        Probe::UvmRange,
    ];

    /// Its name in reports and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Probe::SoftGpu => "softgpu",
            Probe::UvmEvents => "uvm_events",
            Probe::UvmServiceBegin => "uvm_service_begin",
            Probe::UvmServiceEnd => "uvm_service_end",
            Probe::UvmReplay => "uvm_replay",
            Probe::UvmEvictionBegin => "uvm_eviction_begin",
            Probe::UvmEvictionEnd => "uvm_eviction_end",
            Probe::UvmRange => "uvm_range",
        }
    }

    /// The functions that it may be attached to, the preferred one first.
    const fn symbols(self) -> &'static [&'static str] {
        match self {
            Probe::SoftGpu => &[],
            Probe::UvmEvents => &["uvm_perf_event_notify"],
            Probe::UvmServiceBegin | Probe::UvmServiceEnd => &SERVICE,
            Probe::UvmReplay => &["uvm_tools_broadcast_replay"],
            Probe::UvmEvictionBegin | Probe::UvmEvictionEnd => &["uvm_va_block_evict_chunks"],
            Probe::UvmRange => &["uvm_va_range_create_mmap"],
        }
    }
}

/// From 560.28 on, and before.
const SERVICE: [&str; 2] = [
    "uvm_parent_gpu_service_replayable_faults",
    "uvm_gpu_service_replayable_faults",
];

/// Every function of nvidia-uvm that some probe may want.
pub const UVM_SYMBOLS: [&str; 6] = [
    "uvm_perf_event_notify",
    SERVICE[0],
    SERVICE[1],
    "uvm_tools_broadcast_replay",
    "uvm_va_block_evict_chunks",
    "uvm_va_range_create_mmap",
];

/// How a probe is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// All probe points of a file by one attachment.
    UprobeMulti,
    /// One attachment for each probe point.
    Uprobe,
    /// At the entry of a kernel function.
    Kprobe(&'static str),
    /// At its return.
    Kretprobe(&'static str),
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            How::UprobeMulti => f.write_str("uprobe.multi"),
            How::Uprobe => f.write_str("uprobe"),
            How::Kprobe(function) => write!(f, "kprobe {function}"),
            How::Kretprobe(function) => write!(f, "kretprobe {function}"),
        }
    }
}

/// What was chosen for one probe: how, or why not.
pub type Choice = Result<How, String>;

/// The choice for every probe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProbePlan {
    /// In the order of [`Probe::ALL`].
    pub probes: Vec<(Probe, Choice)>,
    /// The loaded driver's layout, where one is known.
    pub layout: Option<UvmLayout>,
}

/// `uprobe.multi` came with Linux 6.6.
const MULTI_SINCE: (u32, u32) = (6, 6);
/// The oldest kernel with ring buffers, which everything here uses; and with attachment
/// cookies, which the soft GPU's probes need.
const OLDEST: (u32, u32) = (5, 15);

impl ProbePlan {
    /// The best use of what the host can do.
    pub fn choose(facts: &HostFacts) -> ProbePlan {
        let layout = facts.uvm.as_ref().and_then(|uvm| uvm_layout(uvm).ok());
        let choose = |probe| match probe {
            Probe::SoftGpu => softgpu(facts),
            _ => uvm(facts, probe),
        };
        let probes = Probe::ALL
            .iter()
            .map(|probe| (*probe, choose(*probe)))
            .collect();
        ProbePlan { probes, layout }
    }

    /// A plan without any probe, for `reason`: what the configuration may ask for.
    pub fn off(reason: &str) -> ProbePlan {
        let probes = Probe::ALL
            .iter()
            .map(|probe| (*probe, Err(reason.to_owned())))
            .collect();
        ProbePlan {
            probes,
            layout: None,
        }
    }

    /// The choice for `probe`.
    pub fn choice(&self, probe: Probe) -> Option<&Choice> {
        self.probes
            .iter()
            .find(|(planned, _)| *planned == probe)
            .map(|(_, choice)| choice)
    }
}

/// What every probe needs.
fn common(facts: &HostFacts) -> Result<(), String> {
    let (major, minor) = facts.kernel;
    if !facts.may_bpf {
        return Err("no privilege: run as root, or with CAP_BPF and CAP_PERFMON".into());
    }
    if facts.kernel < OLDEST {
        return Err(format!(
            "Linux {major}.{minor} is too old: {}.{} is needed",
            OLDEST.0, OLDEST.1
        ));
    }
    Ok(())
}

fn softgpu(facts: &HostFacts) -> Choice {
    common(facts)?;
    if !facts.uprobes {
        return Err("the kernel has no uprobes (CONFIG_UPROBE_EVENTS)".into());
    }
    Ok(if facts.kernel >= MULTI_SINCE {
        How::UprobeMulti
    } else {
        How::Uprobe
    })
}

fn uvm(facts: &HostFacts, probe: Probe) -> Choice {
    let Some(uvm) = &facts.uvm else {
        return Err("the nvidia-uvm module is not loaded".into());
    };
    common(facts)?;
    if !facts.kprobes {
        return Err("the kernel has no kprobes (CONFIG_KPROBES)".into());
    }
    if facts.confidential {
        return Err("lockdown forbids reading kernel memory (mode confidentiality)".into());
    }
    // Faults and migrations are nothing but structures; of an eviction the range is.
    let mut needs_sizes = false;
    match probe {
        Probe::UvmEvents => {
            uvm_layout(uvm)?;
        }
        Probe::UvmEvictionBegin | Probe::UvmEvictionEnd => {
            uvm_layout(uvm)?;
            needs_sizes = true;
        }
        // The range comes from a kernel structure, found by the kernel's BTF.
        Probe::UvmRange if !facts.btf => {
            return Err("the kernel does not describe its types (CONFIG_DEBUG_INFO_BTF)".into());
        }
        _ => {}
    }
    if needs_sizes && uvm.sizes.is_none() {
        return Err("sizes of kernel structures are unknown: no readable vmlinux BTF".into());
    }
    let names = probe.symbols();
    let Some(function) = names.iter().find(|name| uvm.symbols.contains(*name)) else {
        return Err(format!("the module has no function {}", names.join(" or ")));
    };
    Ok(match probe {
        Probe::UvmServiceEnd | Probe::UvmEvictionEnd => How::Kretprobe(function),
        _ => How::Kprobe(function),
    })
}

fn uvm_layout(uvm: &UvmFacts) -> Result<UvmLayout, String> {
    match uvm.version {
        Some(version) => UvmLayout::of(version, uvm.sizes),
        None => Err("the module does not say its version".into()),
    }
}

impl fmt::Display for ProbePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (probe, choice) in &self.probes {
            match choice {
                Ok(how) => writeln!(f, "{}: {how}", probe.name())?,
                Err(reason) => writeln!(f, "{}: off, {reason}", probe.name())?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offsets::{DriverVersion, KernelSizes};

    fn capable() -> HostFacts {
        HostFacts {
            kernel: (6, 8),
            may_bpf: true,
            btf: true,
            uprobes: true,
            kprobes: true,
            confidential: false,
            uvm: Some(UvmFacts {
                version: Some(DriverVersion(580, 142, 0)),
                symbols: UVM_SYMBOLS
                    .into_iter()
                    .filter(|name| *name != SERVICE[1])
                    .collect(),
                sizes: Some(KernelSizes {
                    rw_semaphore: 40,
                    mutex: 32,
                }),
            }),
        }
    }

    fn plan(change: impl FnOnce(&mut HostFacts)) -> String {
        let mut facts = capable();
        change(&mut facts);
        ProbePlan::choose(&facts).to_string()
    }

    fn change_uvm(change: impl FnOnce(&mut UvmFacts)) -> String {
        plan(|facts| change(facts.uvm.as_mut().unwrap()))
    }

    #[test]
    fn a_capable_host_uses_every_probe() {
        assert_eq!(
            plan(|_| {}),
            "softgpu: uprobe.multi\n\
             uvm_events: kprobe uvm_perf_event_notify\n\
             uvm_service_begin: kprobe uvm_parent_gpu_service_replayable_faults\n\
             uvm_service_end: kretprobe uvm_parent_gpu_service_replayable_faults\n\
             uvm_replay: kprobe uvm_tools_broadcast_replay\n\
             uvm_eviction_begin: kprobe uvm_va_block_evict_chunks\n\
             uvm_eviction_end: kretprobe uvm_va_block_evict_chunks\n\
             uvm_range: kprobe uvm_va_range_create_mmap\n"
        );
    }

    #[test]
    fn by_default_nothing_works_and_every_probe_says_why() {
        let plan = ProbePlan::choose(&HostFacts::default());
        assert!(plan.probes.iter().all(|(_, choice)| choice.is_err()));
        assert!(plan.to_string().starts_with("softgpu: off, no privilege"));
    }

    #[test]
    fn without_privilege_everything_is_off() {
        let text = plan(|facts| facts.may_bpf = false);
        assert_eq!(
            text.matches("off, no privilege: run as root").count(),
            8,
            "{text}"
        );
    }

    #[test]
    fn without_the_driver_only_the_soft_gpu_is_probed() {
        let text = plan(|facts| facts.uvm = None);
        assert!(text.starts_with("softgpu: uprobe.multi\n"), "{text}");
        assert_eq!(
            text.matches("off, the nvidia-uvm module is not loaded")
                .count(),
            7
        );
    }

    #[test]
    fn an_older_kernel_attaches_probe_points_one_by_one_and_a_very_old_one_not_at_all() {
        assert!(plan(|facts| facts.kernel = (6, 5)).starts_with("softgpu: uprobe\n"));
        let text = plan(|facts| facts.kernel = (5, 10));
        assert_eq!(
            text.matches("off, Linux 5.10 is too old: 5.15 is needed")
                .count(),
            8
        );
    }

    #[test]
    fn kernels_without_probes_say_which() {
        let text = plan(|facts| facts.uprobes = false);
        assert!(
            text.starts_with("softgpu: off, the kernel has no uprobes"),
            "{text}"
        );
        let text = plan(|facts| facts.kprobes = false);
        assert_eq!(
            text.matches("off, the kernel has no kprobes").count(),
            7,
            "{text}"
        );
        let text = plan(|facts| facts.confidential = true);
        assert_eq!(text.matches("off, lockdown forbids").count(), 7, "{text}");
    }

    #[test]
    fn an_unchecked_driver_keeps_the_probes_that_read_no_structure_of_it() {
        for version in [
            None,
            Some(DriverVersion(600, 1, 0)),
            Some(DriverVersion(525, 1, 0)),
        ] {
            let text = change_uvm(|uvm| uvm.version = version);
            assert_eq!(text.matches(": off, ").count(), 3, "{text}");
            assert!(text.contains("uvm_events: off, "));
            assert!(text.contains("uvm_eviction_begin: off, "));
            assert!(text.contains("uvm_replay: kprobe "));
        }
    }

    #[test]
    fn an_older_driver_is_probed_under_its_older_name() {
        let text = change_uvm(|uvm| {
            uvm.version = Some(DriverVersion(535, 183, 1));
            uvm.symbols.remove(SERVICE[0]);
            uvm.symbols.insert(SERVICE[1]);
        });
        assert!(text.contains("uvm_service_end: kretprobe uvm_gpu_service_replayable_faults\n"));
    }

    #[test]
    fn a_missing_function_turns_off_its_own_probes_only() {
        let text = change_uvm(|uvm| {
            uvm.symbols.remove("uvm_tools_broadcast_replay");
        });
        let reason = "the module has no function uvm_tools_broadcast_replay\n";
        assert!(
            text.contains(&format!("uvm_replay: off, {reason}")),
            "{text}"
        );
        assert_eq!(text.matches(": off, ").count(), 1);
    }

    #[test]
    fn without_the_kernels_types_what_needs_them_is_off() {
        let text = plan(|facts| {
            facts.btf = false;
            facts.uvm.iter_mut().for_each(|uvm| uvm.sizes = None);
        });
        assert!(text.contains("uvm_range: off, the kernel does not describe its types"));
        assert!(text.contains("uvm_eviction_end: off, sizes of kernel structures are unknown"));
        assert!(text.contains("uvm_events: kprobe"));
    }
}
