//! The soft GPU's programs, loaded and attached, and what all programs have in common: the
//! state that each probe is in, libbpf's messages and errors.
//!
//! nvidia-uvm's programs are [`crate::uvm`]'s, reading what programs send is
//! [`crate::intake`]'s business.

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Once;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, OpenObject, PrintLevel, UprobeMultiOpts, UprobeOpts};
use serde::Serialize;

use crate::plan::{How, Probe};
use crate::softgpu_skeleton::{SoftgpuSkel, SoftgpuSkelBuilder};
use crate::target::Target;

/// Bytes of the soft GPU's ring: three seconds at 20,000 events a second.
const SOFTGPU_RING_BYTES: u32 = 4 << 20;

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

/// Storage that libbpf's skeletons want to borrow. Two words each, once per intake: leaked,
/// so that the skeletons can be kept in a structure. What they own is freed when dropped.
pub(crate) fn storage() -> &'static mut MaybeUninit<OpenObject> {
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
            let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
            refusal(paranoid.ok().and_then(|text| text.trim().parse().ok()))
        }
        _ => String::new(),
    };
    format!("{what}: {error:#}{hint}")
}

/// What a refusal of the kernel may come from, under this `kernel.perf_event_paranoid`. Above
/// 2, which kernels without Debian's or Ubuntu's patch do not tell from 2, CAP_PERFMON is not
/// enough.
fn refusal(paranoid: Option<i32>) -> String {
    match paranoid {
        Some(level @ 3..) => format!(
            " (the kernel refused: kernel.perf_event_paranoid {level} asks for CAP_SYS_ADMIN, 2 \
             for CAP_PERFMON)"
        ),
        _ => " (the kernel refused: a container, lockdown or another policy forbids BPF here)"
            .to_owned(),
    }
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

#[cfg(test)]
mod tests {
    use super::refusal;

    #[test]
    fn a_refusal_names_the_setting_that_it_may_come_from() {
        assert!(refusal(Some(3)).contains("perf_event_paranoid 3"));
        assert!(refusal(Some(2)).contains("another policy"));
        assert!(refusal(None).contains("another policy"));
    }
}
