//! From a plan to loaded, attached programs, each with its state and its reason.
//!
//! A probe that fails is off and says why; it never takes another one with it. Reading
//! what the programs send is [`crate::intake`]'s business.

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Once;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, OpenObject, PrintLevel, ProgramMut, UprobeMultiOpts, UprobeOpts};
use serde::Serialize;

use crate::plan::{How, Probe, ProbePlan};
use crate::softgpu_skeleton::{SoftgpuSkel, SoftgpuSkelBuilder};
use crate::target::Target;
use crate::uvm_skeleton::{UvmSkel, UvmSkelBuilder};

/// Bytes of the soft GPU's ring: three seconds at 20,000 events a second.
const SOFTGPU_RING_BYTES: u32 = 4 << 20;
/// Bytes of nvidia-uvm's ring: its worst case is 300,000 records a second.
const UVM_RING_BYTES: u32 = 16 << 20;

/// Whether a probe works.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeState {
    /// It sends events.
    Active,
    /// It is ready, and waits for a file to be attached to.
    Waiting,
    /// It was not chosen.
    Off,
    /// It was chosen, and the kernel refused.
    Failed,
}

impl fmt::Display for ProbeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProbeState::Active => "active",
            ProbeState::Waiting => "waiting",
            ProbeState::Off => "off",
            ProbeState::Failed => "failed",
        })
    }
}

/// One line for `oversub doctor` and the metrics.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ProbeReport {
    /// [`Probe::name`].
    pub probe: &'static str,
    /// Whether it works.
    pub state: ProbeState,
    /// How it is attached; empty where it is not.
    pub how: String,
    /// Why it is in this state; empty where there is nothing to say.
    pub reason: String,
}

impl ProbeReport {
    pub(crate) fn new(probe: Probe, state: ProbeState, how: String, reason: String) -> Self {
        ProbeReport {
            probe: probe.name(),
            state,
            how,
            reason,
        }
    }
}

/// The loaded programs of the soft GPU.
pub(crate) struct SoftGpu {
    pub skeleton: SoftgpuSkel<'static>,
    pub how: How,
}

/// The loaded programs of nvidia-uvm, and their attachments.
pub(crate) struct Uvm {
    pub skeleton: UvmSkel<'static>,
    /// Dropping one detaches its probe.
    pub _links: Vec<Link>,
}

/// Storage that libbpf's skeletons want to borrow. Two words each, once per intake: leaked,
/// so that the skeletons can be kept in a structure. What they own is freed when dropped.
fn storage() -> &'static mut MaybeUninit<OpenObject> {
    Box::leak(Box::new(MaybeUninit::uninit()))
}

/// Sends what libbpf prints to the log.
pub(crate) fn route_messages() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Debug, |level, message| {
            let message = message.trim_end();
            match level {
                // What fails is told in the report; libbpf's own words are details.
                PrintLevel::Warn | PrintLevel::Info => tracing::debug!(target: "libbpf", message),
                PrintLevel::Debug => tracing::trace!(target: "libbpf", message),
            }
        })));
    });
}

/// An error of libbpf with all that led to it.
pub(crate) fn explain(what: &str, error: &libbpf_rs::Error) -> String {
    let hint = match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => {
            " (the kernel refused: a container, lockdown or another policy forbids BPF here)"
        }
        _ => "",
    };
    format!("{what}: {error:#}{hint}")
}

/// Loads the soft GPU's program; attaching follows when a file is known. Falls back from
/// one attachment per file to one per probe point where the kernel refuses the former.
pub(crate) fn softgpu(how: How) -> Result<SoftGpu, String> {
    match softgpu_as(how) {
        Err(reason) if how == How::UprobeMulti => {
            tracing::debug!(reason, "falling back to single uprobes");
            softgpu_as(How::Uprobe).map_err(|second| format!("{reason}; {second}"))
        }
        outcome => outcome,
    }
}

fn softgpu_as(how: How) -> Result<SoftGpu, String> {
    let failed = |what: &str| {
        let what = format!("{what} the soft GPU's {how} program");
        move |error: libbpf_rs::Error| explain(&what, &error)
    };
    let mut open = SoftgpuSkelBuilder::default()
        .open(storage())
        .map_err(failed("opening"))?;
    open.progs
        .softgpu_multi
        .set_autoload(how == How::UprobeMulti);
    open.progs
        .softgpu_single
        .set_autoload(how != How::UprobeMulti);
    open.maps
        .ovs_ring
        .set_max_entries(SOFTGPU_RING_BYTES)
        .map_err(failed("sizing"))?;
    let skeleton = open.load().map_err(failed("loading"))?;
    Ok(SoftGpu { skeleton, how })
}

impl SoftGpu {
    /// Attaches all probe points of a file, in every process that has it mapped or will.
    pub fn attach(&mut self, target: &Target) -> Result<Vec<Link>, libbpf_rs::Error> {
        let path = target.pinned_path();
        // Below 2^63, as file offsets are.
        let offset = |point: &(u64, u8)| point.0 as usize;
        if self.how == How::UprobeMulti {
            let options = UprobeMultiOpts {
                offsets: target.points.iter().map(offset).collect(),
                cookies: target
                    .points
                    .iter()
                    .map(|point| u64::from(point.1))
                    .collect(),
                ..UprobeMultiOpts::default()
            };
            let program = &self.skeleton.progs.softgpu_multi;
            return Ok(vec![
                program.attach_uprobe_multi_with_opts(-1, path, "", options)?,
            ]);
        }
        let program = &self.skeleton.progs.softgpu_single;
        let attach = |point: &(u64, u8)| {
            let options = UprobeOpts {
                cookie: u64::from(point.1),
                ..UprobeOpts::default()
            };
            program.attach_uprobe_with_opts(-1, &path, offset(point), options)
        };
        target.points.iter().map(attach).collect()
    }
}

/// Loads and attaches the planned probes of nvidia-uvm, one by one, and reports each.
/// `None`: none was planned, or the kernel refused them all.
pub(crate) fn uvm(plan: &ProbePlan, reports: &mut Vec<ProbeReport>) -> Option<Uvm> {
    let mut planned = Vec::new();
    for (probe, choice) in &plan.probes {
        match choice {
            _ if *probe == Probe::SoftGpu => {}
            Ok(how) => planned.push((*probe, *how)),
            Err(reason) => {
                let (how, reason) = (String::new(), reason.clone());
                reports.push(ProbeReport::new(*probe, ProbeState::Off, how, reason));
            }
        }
    }
    if planned.is_empty() {
        return None;
    }
    let mut skeleton = match load_uvm(plan, &planned) {
        Ok(skeleton) => skeleton,
        Err(reason) => {
            for (probe, _) in planned {
                let how = String::new();
                reports.push(ProbeReport::new(
                    probe,
                    ProbeState::Failed,
                    how,
                    reason.clone(),
                ));
            }
            return None;
        }
    };
    let mut links = Vec::new();
    for (probe, how) in planned {
        match attach_uvm(&mut skeleton, probe, how) {
            Ok(link) => {
                links.push(link);
                let how = how.to_string();
                reports.push(ProbeReport::new(
                    probe,
                    ProbeState::Active,
                    how,
                    String::new(),
                ));
            }
            Err(error) => {
                let reason = explain(&format!("attaching {how}"), &error);
                reports.push(ProbeReport::new(
                    probe,
                    ProbeState::Failed,
                    String::new(),
                    reason,
                ));
            }
        }
    }
    (!links.is_empty()).then_some(Uvm {
        skeleton,
        _links: links,
    })
}

fn load_uvm(plan: &ProbePlan, planned: &[(Probe, How)]) -> Result<UvmSkel<'static>, String> {
    let failed = |what: &'static str| move |error: libbpf_rs::Error| explain(what, &error);
    let mut open = UvmSkelBuilder::default()
        .open(storage())
        .map_err(failed("opening the uvm programs"))?;
    let progs = &mut open.progs;
    let wants = |probe| planned.iter().any(|(planned, _)| *planned == probe);
    progs.uvm_notify.set_autoload(wants(Probe::UvmEvents));
    progs
        .uvm_service_begin
        .set_autoload(wants(Probe::UvmServiceBegin));
    progs
        .uvm_service_end
        .set_autoload(wants(Probe::UvmServiceEnd));
    progs.uvm_replay.set_autoload(wants(Probe::UvmReplay));
    progs
        .uvm_evict_begin
        .set_autoload(wants(Probe::UvmEvictionBegin));
    progs
        .uvm_evict_end
        .set_autoload(wants(Probe::UvmEvictionEnd));
    progs.uvm_range_create.set_autoload(wants(Probe::UvmRange));
    open.maps
        .ovs_ring
        .set_max_entries(UVM_RING_BYTES)
        .map_err(failed("sizing the ring of the uvm programs"))?;
    if let Some(layout) = plan.layout {
        let Some(constants) = open.maps.rodata_data.as_deref_mut() else {
            return Err("the uvm programs have no place for the driver's layout".into());
        };
        constants.ovs_layout = layout.to_raw();
    }
    open.load().map_err(failed("loading the uvm programs"))
}

fn attach_uvm(
    skeleton: &mut UvmSkel<'static>,
    probe: Probe,
    how: How,
) -> Result<Link, libbpf_rs::Error> {
    let progs = &mut skeleton.progs;
    let program: &mut ProgramMut<'_> = match probe {
        Probe::UvmServiceBegin => &mut progs.uvm_service_begin,
        Probe::UvmServiceEnd => &mut progs.uvm_service_end,
        Probe::UvmReplay => &mut progs.uvm_replay,
        Probe::UvmEvictionBegin => &mut progs.uvm_evict_begin,
        Probe::UvmEvictionEnd => &mut progs.uvm_evict_end,
        Probe::UvmRange => &mut progs.uvm_range_create,
        Probe::UvmEvents | Probe::SoftGpu => &mut progs.uvm_notify,
    };
    match how {
        How::Kretprobe(function) => program.attach_kprobe(true, function),
        How::Kprobe(function) => program.attach_kprobe(false, function),
        How::Uprobe | How::UprobeMulti => Err(libbpf_rs::Error::from_raw_os_error(libc::EINVAL)),
    }
}
