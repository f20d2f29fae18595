//! The probes, as the daemon uses them: loaded once, drained by the engine threads, of which
//! what they see wakes one, and attached to programs and to the driver as they appear by a
//! thread of its own ([`attach`]), because that takes milliseconds. Without probes, the driver's
//! event queue ([`source`]).
//!
//! What the driver did is counted ([`totals`]) and turned into what the engine is told
//! ([`translate`]); whose memory it was is [`crate::session`]'s to check.

mod attach;
pub mod source;
pub mod totals;
mod translate;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::epoll::{Epoll, EpollEvent};
use oversub_bpf::{HostFacts, Intake, PlanOptions, ProbePlan, ProbeState, Trust};

use self::attach::Wanted;
use self::source::Source;
use self::totals::DriverTotals;
pub use self::translate::Seen;
use self::translate::translate;
use crate::attached::{Message, offer};
use crate::config::{ProbesConfig, ProbesMode};
use crate::control::{DriverView, ProbeView};
use crate::driver_metrics::{self, Names};
use crate::limiter::Limiter;

static LOGGED: Limiter = Limiter::new(5);

/// The probes of this daemon.
pub struct Probes {
    shared: Arc<Shared>,
    facts: HostFacts,
    attach: Option<SyncSender<Wanted>>,
    lost: AtomicU64,
    names: Mutex<Names>,
}

/// What the draining and the attaching thread share.
struct Shared {
    config: ProbesConfig,
    intake: Mutex<Intake>,
    /// Processes by the driver's address space, as probes told.
    spaces: Mutex<HashMap<u64, u32>>,
    totals: Mutex<DriverTotals>,
    /// Who is told of the processes that are steered from outside.
    attached: Mutex<HashMap<u32, SyncSender<Message>>>,
    /// A thread takes events in for them.
    draining: AtomicBool,
    /// Events that found no room there.
    unheard: AtomicU64,
    /// Some engine thread drains.
    drained: AtomicBool,
}

impl Shared {
    /// No engine thread drains yet.
    fn idle(&self) -> bool {
        !self.drained.load(Ordering::Relaxed)
    }

    fn trust(&self) -> Trust {
        lock(&self.intake).trust()
    }

    fn source(&self) -> (Source, String) {
        let reach = oversub_bpf::driver::Reach::now();
        source::choose(self.config.mode, &self.trust(), &reach)
    }

    fn drain(&self, mut sink: impl FnMut(Seen)) {
        let mut spaces = lock(&self.spaces);
        let mut totals = lock(&self.totals);
        let attached = lock(&self.attached);
        let drained = lock(&self.intake).drain(&mut |event| {
            // Sessions count what soft GPUs do.
            if event.source == oversub_bpf::Source::Uvm {
                totals.take(&event);
            }
            if let Some(seen) = translate(&event, &mut spaces) {
                let listener = seen.process.and_then(|pid| attached.get(&pid));
                if listener.is_some_and(|messages| !offer(messages, seen)) {
                    self.unheard.fetch_add(1, Ordering::Relaxed);
                }
                sink(seen);
            }
        });
        if let Err(error) = drained
            && let Some(suppressed) = LOGGED.admit()
        {
            tracing::error!(%error, suppressed, "cannot read the probes' events");
        }
    }
}

impl std::fmt::Debug for Probes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Probes")
            .field("config", &self.shared.config)
            .finish_non_exhaustive()
    }
}

impl Probes {
    /// Loads what the host allows; never fails, but says what is off and why.
    pub fn start(config: ProbesConfig) -> Self {
        let facts = HostFacts::gather();
        let plan = match config.mode {
            ProbesMode::Off => ProbePlan::off("switched off by configuration"),
            _ => ProbePlan::choose(&facts, plan_options(&config)),
        };
        let shared = Arc::new(Shared {
            config,
            intake: Mutex::new(Intake::start(&plan)),
            spaces: Mutex::default(),
            totals: Mutex::default(),
            attached: Mutex::default(),
            draining: AtomicBool::new(false),
            unheard: AtomicU64::new(0),
            drained: AtomicBool::new(false),
        });
        let attach = match shared.config.mode {
            ProbesMode::Off => None,
            _ => attach::start(&shared),
        };
        let probes = Self {
            shared,
            facts,
            attach,
            lost: AtomicU64::new(0),
            names: Mutex::default(),
        };
        if let Some(reason) = probes.off() {
            tracing::warn!(
                reason,
                "no probe works: deciding by what programs report alone"
            );
        }
        probes
    }

    /// Adds what becomes readable when a probe saw something to `epoll`.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn watch(&self, epoll: &Epoll, event: EpollEvent) -> io::Result<()> {
        self.shared.drained.store(true, Ordering::Relaxed);
        let intake = lock(&self.shared.intake);
        match intake.epoll_fd() {
            Some(fd) => Ok(epoll.add(fd, event)?),
            None => Ok(()),
        }
    }

    /// Hands on what was seen; there may be more, and the descriptor stays readable then.
    pub fn drain(&self, sink: impl FnMut(Seen)) {
        self.shared.drain(sink);
    }

    /// Attaches, soon, to the soft GPU that this process has loaded from `driver_path`.
    pub fn attach_softgpu(&self, pid: u32, driver_path: Vec<u8>) {
        self.ask(pid, Wanted::SoftGpu { pid, driver_path });
    }

    /// Opens, soon, the driver's event queue of this process, where that is the source.
    pub fn observe_process(&self, pid: u32) {
        self.ask(pid, Wanted::Process(pid));
    }

    /// Makes sure that there is a source of events of a process that has no session.
    ///
    /// # Errors
    /// There is none; the text says why and what to do.
    pub fn observe_attached(&self, pid: u32) -> Result<Source, String> {
        let (source, reason) = self.shared.source();
        match source {
            Source::Probes => match self.shared.trust() {
                Trust::Scalar(reason) => Err(format!(
                    "the probes do not know this driver's structures ({reason}), so they cannot \
                     tell when the device is full: set probes.mode to \"queue\""
                )),
                _ => Ok(source),
            },
            Source::Queue => {
                let opened = lock(&self.shared.intake).observe_process(pid);
                opened.map(|_| source).map_err(|error| error.to_string())
            }
            Source::None => Err(format!("nothing tells what the driver does: {reason}")),
        }
    }

    /// Sends what is seen of a process to `messages` too, until [`Probes::leave_attached`].
    pub fn tell(&self, pid: u32, messages: SyncSender<Message>) {
        let mut attached = lock(&self.shared.attached);
        attached.insert(pid, messages);
        // Under the lock, under which that thread decides to end.
        if !self.shared.draining.swap(true, Ordering::Relaxed) {
            attach::drain_for_attached(&self.shared);
        }
    }

    /// Nobody wants to hear of this process any more; what was opened for it is closed.
    pub fn leave_attached(&self, pid: u32) {
        lock(&self.shared.attached).remove(&pid);
        lock(&self.shared.intake).leave_process(pid);
    }

    fn ask(&self, pid: u32, wanted: Wanted) {
        let Some(attach) = &self.attach else { return };
        if let Err(TrySendError::Full(_)) = attach.try_send(wanted)
            && let Some(suppressed) = LOGGED.admit()
        {
            tracing::warn!(
                pid,
                suppressed,
                "too many programs at once: one goes without probes"
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

    /// Why probes as a whole are off; none where one is attached or ready.
    pub fn off(&self) -> Option<String> {
        let reports = lock(&self.shared.intake).report();
        let usable = |state| matches!(state, ProbeState::Active | ProbeState::Waiting);
        (!reports.iter().any(|report| usable(report.state))).then(|| {
            reports.first().map_or_else(
                || "none is known".to_owned(),
                |report| report.reason.clone(),
            )
        })
    }

    /// Where the driver's events come from, and why from there.
    pub fn source(&self) -> (Source, String) {
        self.shared.source()
    }

    /// The same, and how far they are believed.
    pub fn driver(&self) -> DriverView {
        let (source, reason) = self.shared.source();
        let intake = lock(&self.shared.intake);
        let (checked, implausible) = intake.checked();
        DriverView {
            source,
            reason,
            scalar: matches!(intake.trust(), Trust::Scalar(_)),
            layout: intake.trust().to_string(),
            checked,
            implausible,
            observed: intake.observed().collect(),
        }
    }

    /// What was counted of each process and device, as Prometheus wants it.
    ///
    /// # Errors
    /// Encoding failed.
    pub fn metrics_text(&self) -> prometheus::Result<String> {
        let mut names = lock(&self.names);
        let mut totals = lock(&self.shared.totals);
        names.refresh(&mut totals);
        driver_metrics::text(&totals, &names)
    }

    /// Events lost between the kernel and the engines.
    pub fn drops(&self) -> u64 {
        let intake = lock(&self.shared.intake);
        let lost = self.lost.load(Ordering::Relaxed);
        intake
            .drops()
            .saturating_add(intake.undecodable())
            .saturating_add(lost)
            .saturating_add(self.shared.unheard.load(Ordering::Relaxed))
    }

    /// So many events found no room on their way to another engine thread.
    pub fn lost(&self, events: u64) {
        self.lost.fetch_add(events, Ordering::Relaxed);
    }

    /// What is known of the host.
    pub fn host(&self) -> Vec<(String, String)> {
        let facts = &self.facts;
        let yes = |fact: bool| if fact { "yes" } else { "no" }.to_owned();
        let module = match (HostFacts::driver_version(), oversub_bpf::Loading::now()) {
            (_, None) => "not loaded".to_owned(),
            (None, Some(_)) => "unknown version".to_owned(),
            (Some(version), Some(_)) => version.to_string(),
        };
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

fn plan_options(config: &ProbesConfig) -> PlanOptions {
    PlanOptions {
        pin_driver: config.pin_driver,
        leave_driver: config.mode == ProbesMode::Queue,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
