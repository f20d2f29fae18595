//! Which probes to use on a host, and why not the others: a pure function of the facts.

use std::fmt;

use crate::host::{HostFacts, UvmFacts};
use crate::offsets::{BeginArguments, UvmLayout};
pub use crate::probe::{How, Probe, uvm_symbols};

/// What was chosen for one probe: how, or why not.
pub type Choice = Result<How, String>;

/// What the operator decides.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PlanOptions {
    /// Attach by the module's own type information where it has some: cheaper, but while
    /// the probes are attached the module cannot be unloaded, so no driver upgraded.
    pub pin_driver: bool,
    /// Attach nothing to the driver: its event queue is to be used.
    pub leave_driver: bool,
}

/// The choice for every probe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProbePlan {
    /// In the order of [`Probe::ALL`].
    pub probes: Vec<(Probe, Choice)>,
    /// The loaded driver's layout, or why its structures are not to be read (scalar mode).
    pub layout: Result<UvmLayout, String>,
    /// Which arguments of the function that begins a migration are what, where known.
    pub begin: Option<BeginArguments>,
}

/// `uprobe.multi` came with Linux 6.6.
const MULTI_SINCE: (u32, u32) = (6, 6);
/// The oldest kernel with ring buffers, which everything here uses; and with attachment
/// cookies, which the soft GPU's probes need.
const OLDEST: (u32, u32) = (5, 15);

impl ProbePlan {
    /// The best use of what the host can do.
    pub fn choose(facts: &HostFacts, options: PlanOptions) -> ProbePlan {
        let layout = match &facts.uvm {
            Some(uvm) => uvm_layout(uvm),
            None => Err(NOT_LOADED.to_owned()),
        };
        let choose = |probe| match probe {
            Probe::SoftGpu => softgpu(facts),
            _ => uvm(facts, probe, options),
        };
        let probes = Probe::ALL
            .iter()
            .map(|probe| (*probe, choose(*probe)))
            .collect();
        let begin = facts.uvm.as_ref().and_then(begin_arguments);
        ProbePlan {
            probes,
            layout,
            begin,
        }
    }

    /// A plan without any probe, for `reason`: what the configuration may ask for.
    pub fn off(reason: &str) -> ProbePlan {
        let probes = Probe::ALL
            .iter()
            .map(|probe| (*probe, Err(reason.to_owned())))
            .collect();
        ProbePlan {
            probes,
            layout: Err(reason.to_owned()),
            begin: None,
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

const NOT_LOADED: &str = "the nvidia-uvm module is not loaded";

fn uvm(facts: &HostFacts, probe: Probe, options: PlanOptions) -> Choice {
    let Some(uvm) = &facts.uvm else {
        return Err(NOT_LOADED.into());
    };
    if options.leave_driver {
        return Err("the configuration asks for the driver's event queue".into());
    }
    common(facts)?;
    if !facts.kprobes {
        return Err("the kernel has no kprobes (CONFIG_KPROBES)".into());
    }
    if facts.confidential {
        return Err("lockdown forbids reading kernel memory (mode confidentiality)".into());
    }
    let names = probe.symbols();
    let Some(function) = names.iter().find(|name| uvm.symbols.contains(*name)) else {
        return Err(format!("the module has no function {}", names.join(" or ")));
    };
    match probe {
        // Faults and migrations are nothing but structures.
        Probe::UvmEvents => {
            uvm_layout(uvm)?;
        }
        // The range comes from a kernel structure, found by the kernel's BTF.
        Probe::UvmRange if !facts.btf => {
            return Err("the kernel does not describe its types (CONFIG_DEBUG_INFO_BTF)".into());
        }
        Probe::UvmBlockMigration if BeginArguments::of(function, uvm.version).is_none() => {
            return Err(format!(
                "the arguments of {function} are not known for a driver of unknown version"
            ));
        }
        _ => {}
    }
    let fentry = options.pin_driver && probe.has_fentry() && uvm.described.contains(function);
    Ok(match (probe.at_return(), fentry) {
        (false, false) => How::Kprobe(function),
        (true, false) => How::Kretprobe(function),
        (false, true) => How::Fentry(function),
        (true, true) => How::Fexit(function),
    })
}

fn uvm_layout(uvm: &UvmFacts) -> Result<UvmLayout, String> {
    match uvm.version {
        Some(version) => UvmLayout::of(version, uvm.sizes),
        None => Err("the module does not say its version".into()),
    }
}

fn begin_arguments(uvm: &UvmFacts) -> Option<BeginArguments> {
    let mut names = Probe::UvmBlockMigration.symbols().iter();
    let function = names.find(|name| uvm.symbols.contains(*name))?;
    BeginArguments::of(function, uvm.version)
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
    use std::collections::BTreeSet;

    /// Functions that a driver of 580 has no more.
    const OLDER: [&str; 2] = [
        "uvm_gpu_service_replayable_faults",
        "uvm_tools_record_block_migration_begin",
    ];

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
                symbols: uvm_symbols().filter(|name| !OLDER.contains(name)).collect(),
                described: BTreeSet::new(),
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
        ProbePlan::choose(&facts, PlanOptions::default()).to_string()
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
             uvm_thrashing: kprobe uvm_tools_record_thrashing\n\
             uvm_throttle: kprobe uvm_tools_record_throttling_start\n\
             uvm_range: kprobe uvm_va_range_create_mmap\n\
             uvm_space_end: kprobe uvm_va_space_destroy\n\
             uvm_block_fault: kprobe uvm_va_block_find_create_in_range\n\
             uvm_block_migration: kprobe uvm_tools_record_migration_begin\n"
        );
    }

    #[test]
    fn by_default_nothing_works_and_every_probe_says_why() {
        let plan = ProbePlan::choose(&HostFacts::default(), PlanOptions::default());
        assert!(plan.probes.iter().all(|(_, choice)| choice.is_err()));
        assert!(plan.to_string().starts_with("softgpu: off, no privilege"));
    }

    #[test]
    fn without_privilege_everything_is_off() {
        let text = plan(|facts| facts.may_bpf = false);
        assert_eq!(
            text.matches("off, no privilege: run as root").count(),
            13,
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
            12
        );
    }

    #[test]
    fn an_older_kernel_attaches_probe_points_one_by_one_and_a_very_old_one_not_at_all() {
        assert!(plan(|facts| facts.kernel = (6, 5)).starts_with("softgpu: uprobe\n"));
        let text = plan(|facts| facts.kernel = (5, 10));
        assert_eq!(
            text.matches("off, Linux 5.10 is too old: 5.15 is needed")
                .count(),
            13
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
            12,
            "{text}"
        );
        let text = plan(|facts| facts.confidential = true);
        assert_eq!(text.matches("off, lockdown forbids").count(), 12, "{text}");
    }

    #[test]
    fn an_unchecked_driver_keeps_the_probes_that_read_no_structure_of_it() {
        for version in [None, Some(DriverVersion(525, 1, 0))] {
            let mut facts = capable();
            facts.uvm.as_mut().unwrap().version = version;
            let plan = ProbePlan::choose(&facts, PlanOptions::default());
            let text = plan.to_string();
            assert_eq!(text.matches(": off, ").count(), 1, "{text}");
            assert!(text.contains("uvm_events: off, "));
            assert!(text.contains("uvm_block_fault: kprobe "));
            assert!(plan.layout.is_err() && plan.begin.is_some());
        }
    }

    #[test]
    fn a_newer_driver_is_tried_with_the_newest_layout() {
        let mut facts = capable();
        facts.uvm.as_mut().unwrap().version = Some(DriverVersion(600, 1, 0));
        let plan = ProbePlan::choose(&facts, PlanOptions::default());
        assert!(plan.layout.is_ok_and(|layout| layout.guessed));
    }

    #[test]
    fn where_the_event_queue_is_asked_for_the_driver_is_left_alone() {
        let options = PlanOptions {
            leave_driver: true,
            ..Default::default()
        };
        let text = ProbePlan::choose(&capable(), options).to_string();
        assert!(text.starts_with("softgpu: uprobe.multi\n"), "{text}");
        assert_eq!(text.matches("off, the configuration asks").count(), 12);
    }

    #[test]
    fn where_the_arguments_are_unknown_migrations_are_not_guessed() {
        let text = change_uvm(|uvm| {
            uvm.version = None;
            uvm.symbols.remove("uvm_tools_record_migration_begin");
            uvm.symbols.insert(OLDER[1]);
        });
        assert!(text.contains("uvm_block_migration: off, the arguments of"));
    }

    #[test]
    fn the_module_is_pinned_only_where_the_operator_allows_it() {
        let mut facts = capable();
        let uvm = facts.uvm.as_mut().unwrap();
        uvm.described = uvm.symbols.clone();
        uvm.described.remove("uvm_tools_broadcast_replay");
        let text = ProbePlan::choose(&facts, PlanOptions::default()).to_string();
        assert!(
            !text.contains("fentry") && !text.contains("fexit"),
            "{text}"
        );
        let pinned = PlanOptions {
            pin_driver: true,
            ..Default::default()
        };
        let text = ProbePlan::choose(&facts, pinned).to_string();
        assert!(text.contains("uvm_events: fentry uvm_perf_event_notify\n"));
        assert!(text.contains("uvm_eviction_end: fexit uvm_va_block_evict_chunks\n"));
        // Not described: kallsyms alone is not enough.
        assert!(text.contains("uvm_replay: kprobe uvm_tools_broadcast_replay\n"));
        assert!(text.contains("uvm_range: kprobe"));
    }

    #[test]
    fn an_older_driver_is_probed_under_its_older_name() {
        let text = change_uvm(|uvm| {
            uvm.version = Some(DriverVersion(535, 183, 1));
            uvm.symbols
                .remove("uvm_parent_gpu_service_replayable_faults");
            uvm.symbols.insert(OLDER[0]);
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
        assert!(text.contains("uvm_events: kprobe"));
        assert!(text.contains("uvm_eviction_end: kretprobe"));
    }
}
