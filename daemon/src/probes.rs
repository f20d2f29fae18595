//! The probes, as the daemon uses them: loaded once, drained by one engine thread, attached
//! to soft GPUs as they appear by a thread of its own, because that takes milliseconds.
//!
//! Turns what the driver did into what the engine is told; whose memory it was is
//! [`crate::session`]'s to check.

use std::collections::HashMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::epoll::{Epoll, EpollEvent};
use oversub_bpf::{
    Attached, Cause as DriverCause, Direction as DriverDirection, HostFacts, Intake, ProbeEvent,
    ProbePlan, ProbeState, What,
};
use oversub_engine::{Cause, Direction, Event, Range};

use crate::config::ProbesMode;
use crate::control::ProbeView;
use crate::limiter::Limiter;

/// Requests to attach that may wait; a client that makes more goes without.
const ATTACH_QUEUE: usize = 64;
/// The driver's address spaces remembered by process.
const MAX_SPACES: usize = 4096;
/// Longest `/proc/PID/maps` read, bytes.
const MAPS_BYTES: u64 = 8 << 20;

static LOGGED: Limiter = Limiter::new(5);

/// One thing that a probe saw in one process.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The process; none where it is not known.
    pub process: Option<u32>,
    /// What it was.
    pub event: Event<'static>,
}

impl Seen {
    /// The service time, where this is the end of a fault batch.
    pub fn service_seconds(&self) -> Option<f64> {
        match self.event {
            Event::FaultBatch { service_us, .. } => Some(f64::from(service_us) / 1e6),
            _ => None,
        }
    }
}

/// The probes of this daemon.
pub struct Probes {
    shared: Arc<Shared>,
    facts: HostFacts,
    attach: Option<SyncSender<Wanted>>,
    off: Option<String>,
    lost: AtomicU64,
}

struct Shared {
    intake: Mutex<Intake>,
    /// Processes by the driver's address space, as probes told.
    spaces: Mutex<HashMap<u64, u32>>,
}

/// A process with a soft GPU.
struct Wanted {
    pid: u32,
    driver_path: Vec<u8>,
}

impl std::fmt::Debug for Probes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Probes")
            .field("off", &self.off)
            .finish_non_exhaustive()
    }
}

impl Probes {
    /// Loads what the host allows; never fails, but says what is off and why.
    pub fn start(mode: ProbesMode) -> Self {
        let facts = HostFacts::gather();
        let plan = match mode {
            ProbesMode::Auto => ProbePlan::choose(&facts),
            ProbesMode::Off => ProbePlan::off("switched off by configuration"),
        };
        let intake = Intake::start(&plan);
        let reports = intake.report();
        let usable = |state| matches!(state, ProbeState::Active | ProbeState::Waiting);
        let off = (!reports.iter().any(|report| usable(report.state))).then(|| {
            reports.first().map_or_else(
                || "none is known".to_owned(),
                |report| report.reason.clone(),
            )
        });
        if let Some(reason) = &off {
            tracing::warn!(
                reason,
                "no probe works: deciding by what programs report alone"
            );
        }
        let shared = Arc::new(Shared {
            intake: Mutex::new(intake),
            spaces: Mutex::default(),
        });
        let attach = if off.is_none() {
            start_attacher(&shared)
        } else {
            None
        };
        Self {
            shared,
            facts,
            attach,
            off,
            lost: AtomicU64::new(0),
        }
    }

    /// Adds what becomes readable when a probe saw something to `epoll`.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn watch(&self, epoll: &Epoll, event: EpollEvent) -> io::Result<()> {
        let intake = lock(&self.shared.intake);
        match intake.epoll_fd() {
            Some(fd) => Ok(epoll.add(fd, event)?),
            None => Ok(()),
        }
    }

    /// Hands on what was seen; there may be more, and the descriptor stays readable then.
    pub fn drain(&self, mut sink: impl FnMut(Seen)) {
        let mut spaces = lock(&self.shared.spaces);
        let drained = lock(&self.shared.intake).drain(&mut |event| {
            if let Some(seen) = translate(&event, &mut spaces) {
                sink(seen);
            }
        });
        if let Err(error) = drained
            && let Some(suppressed) = LOGGED.admit()
        {
            tracing::error!(%error, suppressed, "cannot read the probes' events");
        }
    }

    /// Attaches, soon, to the soft GPU that this process has loaded from `driver_path`.
    pub fn attach_softgpu(&self, pid: u32, driver_path: Vec<u8>) {
        let Some(attach) = &self.attach else { return };
        if let Err(TrySendError::Full(wanted)) = attach.try_send(Wanted { pid, driver_path })
            && let Some(suppressed) = LOGGED.admit()
        {
            tracing::warn!(
                pid = wanted.pid,
                suppressed,
                "too many soft GPUs at once: one goes without probes"
            );
        }
    }

    /// Each probe's state.
    pub fn views(&self) -> Vec<ProbeView> {
        let reports = lock(&self.shared.intake).report();
        let view = |report: oversub_bpf::ProbeReport| {
            let parts = [report.state.to_string(), report.how, report.reason];
            let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            ProbeView {
                probe: report.probe.to_owned(),
                attached: report.state == ProbeState::Active,
                detail: parts.join("; "),
            }
        };
        reports.into_iter().map(view).collect()
    }

    /// Why probes as a whole are off.
    pub fn off(&self) -> Option<String> {
        self.off.clone()
    }

    /// Events lost between the kernel and the engines.
    pub fn drops(&self) -> u64 {
        let intake = lock(&self.shared.intake);
        let lost = self.lost.load(Ordering::Relaxed);
        intake
            .drops()
            .saturating_add(intake.undecodable())
            .saturating_add(lost)
    }

    /// So many events found no room on their way to another engine thread.
    pub fn lost(&self, events: u64) {
        self.lost.fetch_add(events, Ordering::Relaxed);
    }

    /// What is known of the host.
    pub fn host(&self) -> Vec<(String, String)> {
        let facts = &self.facts;
        let yes = |fact: bool| if fact { "yes" } else { "no" }.to_owned();
        let module = facts.uvm.as_ref().map_or_else(
            || "not loaded".to_owned(),
            |uvm| {
                uvm.version.as_ref().map_or_else(
                    || "unknown version".to_owned(),
                    |version| format!("{version:?}"),
                )
            },
        );
        let (major, minor) = facts.kernel;
        vec![
            ("kernel".to_owned(), format!("{major}.{minor}")),
            ("may load BPF".to_owned(), yes(facts.may_bpf)),
            ("kernel types (BTF)".to_owned(), yes(facts.btf)),
            ("uprobes".to_owned(), yes(facts.uprobes)),
            ("kprobes".to_owned(), yes(facts.kprobes)),
            ("confidential lockdown".to_owned(), yes(facts.confidential)),
            ("nvidia-uvm".to_owned(), module),
        ]
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start_attacher(shared: &Arc<Shared>) -> Option<SyncSender<Wanted>> {
    let (sender, receiver) = sync_channel(ATTACH_QUEUE);
    let shared = Arc::clone(shared);
    let started = std::thread::Builder::new()
        .name("attach".to_owned())
        .spawn(move || attach_all(&shared, &receiver));
    match started {
        Ok(_) => Some(sender),
        Err(error) => {
            tracing::error!(%error, "cannot start the thread that attaches probes");
            None
        }
    }
}

fn attach_all(shared: &Shared, receiver: &Receiver<Wanted>) {
    // Capabilities belong to threads, and this one began before the others gave theirs up.
    if let Err(error) = crate::privileges::drop_capabilities() {
        tracing::warn!(%error, "cannot give up capabilities in the attaching thread");
    }
    while let Ok(wanted) = receiver.recv() {
        let pid = wanted.pid;
        let result = locate(&wanted).and_then(|path| {
            let attached = lock(&shared.intake).attach_softgpu(&path);
            attached.map_err(|error| format!("{}: {error}", path.display()))
        });
        match result {
            Ok(Attached::New) => tracing::info!(pid, "probes attached to the soft GPU"),
            Ok(Attached::Already) => {}
            Err(reason) => {
                if let Some(suppressed) = LOGGED.admit() {
                    tracing::warn!(pid, reason, suppressed, "no probes on this soft GPU");
                }
            }
        }
    }
}

/// Where this process sees the driver library that a client claims a process has loaded.
/// The claim counts only if the process has that file mapped.
fn locate(wanted: &Wanted) -> Result<PathBuf, String> {
    use std::io::Read;
    let Wanted { pid, driver_path } = wanted;
    if !driver_path.starts_with(b"/") {
        return Err("the program did not say which driver library it has loaded".to_owned());
    }
    let maps = format!("/proc/{pid}/maps");
    let mut text = Vec::new();
    std::fs::File::open(&maps)
        .and_then(|file| file.take(MAPS_BYTES).read_to_end(&mut text))
        .map_err(|error| format!("cannot read {maps}: {error}"))?;
    if !text
        .split(|byte| *byte == b'\n')
        .any(|line| maps_line_is_of(line, driver_path))
    {
        let claimed = String::from_utf8_lossy(driver_path);
        return Err(format!(
            "the program has not loaded {claimed}, as it claims"
        ));
    }
    // Seen from here it may be another file: go in by the program's own root.
    let mut path = std::ffi::OsString::from(format!("/proc/{pid}/root"));
    path.push(std::ffi::OsStr::from_bytes(driver_path));
    Ok(path.into())
}

/// A line of `/proc/PID/maps` ends with the path, after five fields.
fn maps_line_is_of(line: &[u8], path: &[u8]) -> bool {
    let field = line.strip_suffix(path);
    field.is_some_and(|before| before.ends_with(b" ") && !before.contains(&b'/'))
}

/// What the engine is told of it; none where it is no business of the engine's.
fn translate(event: &ProbeEvent, spaces: &mut HashMap<u64, u32>) -> Option<Seen> {
    if let (Some(process), true) = (event.tgid, event.space != 0)
        && (spaces.len() < MAX_SPACES || spaces.contains_key(&event.space))
    {
        spaces.insert(event.space, process);
    }
    let process = event.tgid.or_else(|| spaces.get(&event.space).copied());
    let event = match event.what {
        What::Fault {
            address,
            faults,
            by_host,
            ..
        } => Event::Fault {
            address,
            faults,
            by_host,
        },
        What::Batch {
            faults, service_ns, ..
        } => {
            let service_us = u32::try_from(service_ns / 1_000).unwrap_or(u32::MAX);
            Event::FaultBatch { faults, service_us }
        }
        What::Migration {
            address,
            bytes,
            direction,
            cause,
        } => {
            let direction = match direction {
                DriverDirection::IN => Direction::In,
                DriverDirection::OUT => Direction::Out,
                _ => return None,
            };
            let cause = cause_of(cause, direction);
            Event::Migration {
                range: Range { address, bytes },
                direction,
                cause,
            }
        }
        What::Populate { address, bytes } => Event::Populated {
            range: Range { address, bytes },
        },
        What::Eviction { .. }
        | What::ServiceBegin
        | What::ServiceEnd { .. }
        | What::Range { .. } => {
            return None;
        }
    };
    Some(Seen { process, event })
}

fn cause_of(cause: DriverCause, direction: Direction) -> Cause {
    match (cause, direction) {
        (DriverCause::REPLAYABLE_FAULT | DriverCause::NON_REPLAYABLE_FAULT, Direction::In) => {
            Cause::Fault
        }
        (DriverCause::REPLAYABLE_FAULT | DriverCause::NON_REPLAYABLE_FAULT, Direction::Out) => {
            Cause::HostFault
        }
        (DriverCause::PREFETCH, _) => Cause::Density,
        (DriverCause::EVICTION, _) => Cause::Eviction,
        (DriverCause::API_MIGRATE, _) => Cause::Call,
        _ => Cause::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oversub_bpf::Source;

    fn event(tgid: Option<u32>, space: u64, what: What) -> ProbeEvent {
        ProbeEvent {
            time_ns: 1,
            tgid,
            source: Source::Uvm,
            space,
            processor: 0,
            what,
        }
    }

    #[test]
    fn a_claimed_library_must_be_the_whole_path_of_a_mapping() {
        let line = b"7f1000-7f2000 r-xp 00000000 08:01 99    /opt/x y/libcuda.so.1";
        assert!(maps_line_is_of(line, b"/opt/x y/libcuda.so.1"));
        assert!(!maps_line_is_of(line, b"/libcuda.so.1"));
        assert!(!maps_line_is_of(line, b"/opt/x y/libcuda.so"));
        assert!(!maps_line_is_of(
            b"7f1000-7f2000 r-xp 00000000 08:01 99",
            b"/opt"
        ));
    }

    #[test]
    fn a_space_is_known_once_a_process_has_made_a_range_in_it() {
        let mut spaces = HashMap::new();
        let fault = What::Fault {
            address: 7,
            faults: 1,
            raw_faults: 1,
            batch: 0,
            by_host: false,
        };
        let seen = translate(&event(None, 5, fault), &mut spaces).expect("a fault is told");
        assert_eq!(seen.process, None);
        assert!(
            translate(
                &event(
                    Some(42),
                    5,
                    What::Range {
                        address: 0,
                        bytes: 1
                    }
                ),
                &mut spaces
            )
            .is_none()
        );
        let seen = translate(&event(None, 5, fault), &mut spaces).expect("a fault is told");
        assert_eq!(seen.process, Some(42));
    }

    #[test]
    fn going_out_by_a_fault_is_the_hosts_doing() {
        assert_eq!(
            cause_of(DriverCause::REPLAYABLE_FAULT, Direction::Out),
            Cause::HostFault
        );
        assert_eq!(
            cause_of(DriverCause::REPLAYABLE_FAULT, Direction::In),
            Cause::Fault
        );
        assert_eq!(cause_of(DriverCause(99), Direction::In), Cause::Other);
    }
}
