//! nvidia-uvm's programs: from a plan to attached probes, each with its state and reason,
//! and the change to scalar mode when the driver's structures prove to be others.
//!
//! A probe that fails is off and says why; it never takes another one with it.

use std::fmt;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, OpenProgramMut, ProgramMut};
use serde::Serialize;

use crate::load::{ProbeReport, ProbeState, explain, storage};
use crate::offsets;
use crate::plan::{How, Probe, ProbePlan};
use crate::uvm_skeleton::{OpenUvmProgs, UvmProgs, UvmSkel, UvmSkelBuilder};

/// Bytes of the ring: the worst case is 300,000 records a second.
const RING_BYTES: u32 = 16 << 20;

/// How far what is read from the driver's structures is believed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "mode", content = "reason")]
pub enum Trust {
    /// A fault provoked on ourselves arrived as it was made; every event is checked too.
    Verified,
    /// The layout is that of this version and every event is checked, but nothing could be
    /// provoked.
    Unverified(String),
    /// The structures are not read: blocks and directions are seen, no counts and no bytes.
    Scalar(String),
    /// There are no probes on the driver.
    Off(String),
}

impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trust::Verified => f.write_str("verified on ourselves"),
            Trust::Unverified(reason) => write!(f, "known for this version, not tried: {reason}"),
            Trust::Scalar(reason) => write!(f, "not read: {reason}"),
            Trust::Off(reason) => write!(f, "no probes: {reason}"),
        }
    }
}

/// The loaded programs, and their attachments.
pub(crate) struct Uvm {
    pub skeleton: UvmSkel<'static>,
    pub trust: Trust,
    plan: ProbePlan,
    /// Dropping one detaches its probe.
    links: Vec<(Probe, Link)>,
    reports: Vec<ProbeReport>,
}

impl Uvm {
    /// Loads what was planned and attaches it.
    ///
    /// # Errors
    /// Nothing of it works; the reports say why.
    pub fn start(plan: &ProbePlan) -> Result<Uvm, Vec<ProbeReport>> {
        let planned: Vec<(Probe, How)> = plan
            .probes
            .iter()
            .filter(|(probe, _)| *probe != Probe::SoftGpu)
            .filter_map(|(probe, choice)| Some((*probe, *choice.as_ref().ok()?)))
            .collect();
        let mut reports: Vec<ProbeReport> = plan
            .probes
            .iter()
            .filter(|(probe, _)| *probe != Probe::SoftGpu)
            .filter_map(|(probe, choice)| {
                let reason = choice.as_ref().err()?.clone();
                Some(ProbeReport::new(
                    *probe,
                    ProbeState::Off,
                    String::new(),
                    reason,
                ))
            })
            .collect();
        if planned.is_empty() {
            return Err(reports);
        }
        let skeleton = match load(plan, &planned) {
            Ok(skeleton) => skeleton,
            Err(reason) => {
                let failed = |(probe, _): &(Probe, How)| {
                    ProbeReport::new(*probe, ProbeState::Failed, String::new(), reason.clone())
                };
                reports.extend(planned.iter().map(failed));
                return Err(reports);
            }
        };
        let trust = match &plan.layout {
            Ok(_) => Trust::Unverified("the self-test has not run yet".to_owned()),
            Err(reason) => Trust::Scalar(reason.clone()),
        };
        let mut uvm = Uvm {
            skeleton,
            trust,
            plan: plan.clone(),
            links: Vec::new(),
            reports,
        };
        let scalar = matches!(uvm.trust, Trust::Scalar(_));
        for (probe, how) in planned {
            if probe.scalar() && !scalar {
                let standby = "stands by, in case the driver's structures prove to be others";
                uvm.report(probe, ProbeState::Waiting, how.to_string(), standby);
            } else {
                uvm.attach(probe, how);
            }
        }
        if uvm.links.is_empty() {
            return Err(failed(
                &uvm.reports,
                "nothing could be attached to the driver",
            ));
        }
        // What carries everything else is missing: the stand-ins carry less.
        if !scalar
            && !uvm
                .links
                .iter()
                .any(|(probe, _)| *probe == Probe::UvmEvents)
        {
            let events = Probe::UvmEvents.name();
            let report = uvm.reports.iter().find(|report| report.probe == events);
            let reason = report.map(|report| report.reason.clone());
            uvm.fall_back(&reason.unwrap_or_else(|| "not planned".to_owned()));
        }
        Ok(uvm)
    }

    fn report(&mut self, probe: Probe, state: ProbeState, how: String, reason: &str) {
        self.reports.retain(|report| report.probe != probe.name());
        self.reports
            .push(ProbeReport::new(probe, state, how, reason.to_owned()));
    }

    fn attach(&mut self, probe: Probe, how: How) {
        match attach(&mut self.skeleton.progs, probe, how) {
            Ok(link) => {
                self.links.push((probe, link));
                self.report(probe, ProbeState::Active, how.to_string(), "");
            }
            Err(error) => {
                let reason = explain(&format!("attaching {how}"), &error);
                self.report(probe, ProbeState::Failed, String::new(), &reason);
            }
        }
    }

    /// Reads the driver's structures no more, for `reason`.
    pub fn fall_back(&mut self, reason: &str) {
        if matches!(self.trust, Trust::Scalar(_)) {
            return;
        }
        tracing::warn!(
            reason,
            "nvidia-uvm's structures are not as expected: going on without counts and bytes"
        );
        self.trust = Trust::Scalar(reason.to_owned());
        self.links.retain(|(probe, _)| *probe != Probe::UvmEvents);
        self.report(Probe::UvmEvents, ProbeState::Off, String::new(), reason);
        let standby: Vec<(Probe, How)> = self
            .plan
            .probes
            .iter()
            .filter(|(probe, _)| probe.scalar())
            .filter_map(|(probe, choice)| Some((*probe, *choice.as_ref().ok()?)))
            .collect();
        for (probe, how) in standby {
            self.attach(probe, how);
        }
    }

    /// The layout in use was checked for another version than the driver's.
    pub fn guessed(&self) -> bool {
        self.plan.layout.as_ref().is_ok_and(|layout| layout.guessed)
    }

    /// The states of all probes on the driver.
    pub fn reports(&self) -> &[ProbeReport] {
        &self.reports
    }

    /// Tells the programs which process an address space belongs to; `false`: they knew.
    pub fn learn_space(&self, space: u64, process: u32) -> bool {
        let (space, process) = (space.to_ne_bytes(), process.to_ne_bytes());
        let spaces = &self.skeleton.maps.ovs_spaces;
        spaces.update(&space, &process, MapFlags::NO_EXIST).is_ok()
    }

    /// Records for which the ring had no room.
    pub fn drops(&self) -> u64 {
        self.counter(|bss| &raw const bss.ovs_drops)
    }

    /// Structures that were checked.
    pub fn checked(&self) -> u64 {
        self.counter(|bss| &raw const bss.ovs_checked)
    }

    /// Structures that failed the check.
    pub fn implausible(&self) -> u64 {
        self.counter(|bss| &raw const bss.ovs_implausible)
    }

    fn counter(&self, which: impl FnOnce(&crate::uvm_skeleton::types::bss) -> *const u64) -> u64 {
        let Some(bss) = self.skeleton.maps.bss_data.as_deref() else {
            return 0;
        };
        // SAFETY: a live, aligned word of a mapped page, which the kernel changes.
        unsafe { std::ptr::read_volatile(which(bss)) }
    }
}

/// The reports, with everything that worked or stood by failed for `reason`.
pub(crate) fn failed(reports: &[ProbeReport], reason: &str) -> Vec<ProbeReport> {
    let mut reports = reports.to_vec();
    for report in &mut reports {
        if matches!(report.state, ProbeState::Active | ProbeState::Waiting) {
            report.state = ProbeState::Failed;
            report.how.clear();
            report.reason = reason.to_owned();
        }
    }
    reports
}

fn load(plan: &ProbePlan, planned: &[(Probe, How)]) -> Result<UvmSkel<'static>, String> {
    let failed = |what: &'static str| move |error: libbpf_rs::Error| explain(what, &error);
    let mut open = UvmSkelBuilder::default()
        .open(storage())
        .map_err(failed("opening the uvm programs"))?;
    for (probe, how) in planned {
        let program = open_program(&mut open.progs, *probe, *how);
        program.set_autoload(true);
        if let How::Fentry(function) | How::Fexit(function) = how {
            program
                .set_attach_target(0, Some((*function).to_owned()))
                .map_err(failed("finding a function in the module's types"))?;
        }
    }
    open.maps
        .ovs_ring
        .set_max_entries(RING_BYTES)
        .map_err(failed("sizing the ring of the uvm programs"))?;
    let Some(constants) = open.maps.rodata_data.as_deref_mut() else {
        return Err("the uvm programs have no place for the driver's layout".into());
    };
    constants.ovs_layout = match &plan.layout {
        Ok(layout) => layout.to_raw(),
        Err(_) => offsets::constants(),
    };
    if let Some(begin) = plan.begin {
        let layout = &mut constants.ovs_layout;
        (layout.begin_dst, layout.begin_src) = (begin.dst, begin.src);
        (layout.begin_address, layout.begin_cause) = (begin.address, begin.cause);
    }
    open.load().map_err(failed("loading the uvm programs"))
}

/// Picks the program of a probe out of the skeleton, open or loaded.
macro_rules! program_of {
    ($progs:expr, $probe:expr, $how:expr) => {{
        let described = matches!($how, How::Fentry(_) | How::Fexit(_));
        match ($probe, described) {
            (Probe::UvmEvents | Probe::SoftGpu, false) => &mut $progs.uvm_notify,
            (Probe::UvmEvents | Probe::SoftGpu, true) => &mut $progs.uvm_notify_fentry,
            (Probe::UvmServiceBegin, false) => &mut $progs.uvm_service_begin,
            (Probe::UvmServiceBegin, true) => &mut $progs.uvm_service_begin_fentry,
            (Probe::UvmServiceEnd, false) => &mut $progs.uvm_service_end,
            (Probe::UvmServiceEnd, true) => &mut $progs.uvm_service_end_fexit,
            (Probe::UvmReplay, false) => &mut $progs.uvm_replay,
            (Probe::UvmReplay, true) => &mut $progs.uvm_replay_fentry,
            (Probe::UvmEvictionBegin, false) => &mut $progs.uvm_evict_begin,
            (Probe::UvmEvictionBegin, true) => &mut $progs.uvm_evict_begin_fentry,
            (Probe::UvmEvictionEnd, false) => &mut $progs.uvm_evict_end,
            (Probe::UvmEvictionEnd, true) => &mut $progs.uvm_evict_end_fexit,
            (Probe::UvmThrashing, _) => &mut $progs.uvm_thrashing,
            (Probe::UvmThrottle, _) => &mut $progs.uvm_throttle,
            (Probe::UvmRange, _) => &mut $progs.uvm_range_create,
            (Probe::UvmSpaceEnd, _) => &mut $progs.uvm_space_destroy,
            (Probe::UvmBlockFault, _) => &mut $progs.uvm_block_fault,
            (Probe::UvmBlockMigration, _) => &mut $progs.uvm_block_migration,
        }
    }};
}

fn open_program<'a, 'obj>(
    progs: &'a mut OpenUvmProgs<'obj>,
    probe: Probe,
    how: How,
) -> &'a mut OpenProgramMut<'obj> {
    program_of!(progs, probe, how)
}

fn attach(progs: &mut UvmProgs<'_>, probe: Probe, how: How) -> Result<Link, libbpf_rs::Error> {
    let program: &mut ProgramMut<'_> = program_of!(progs, probe, how);
    match how {
        How::Kretprobe(function) => program.attach_kprobe(true, function),
        How::Kprobe(function) => program.attach_kprobe(false, function),
        How::Fentry(_) | How::Fexit(_) => program.attach_trace(),
        How::Uprobe | How::UprobeMulti => Err(libbpf_rs::Error::from_raw_os_error(libc::EINVAL)),
    }
}
