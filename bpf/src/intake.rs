//! The events of all sources, for one reading thread.
//!
//! The reader puts [`Intake::epoll_fd`] among what it waits for and calls
//! [`Intake::drain`] when it is readable. What cannot work is reported, never an error:
//! without any probe the intake stands there silent. The descriptor stays the same when
//! the driver's module is loaded, unloaded or loaded again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::path::Path;

use libbpf_rs::{Link, RingBuffer};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use thiserror::Error;

use crate::driver::{DriverError, ToolsQueue};
use crate::event::ProbeEvent;
use crate::host::{HostFacts, Loading};
use crate::load::{self, ProbeReport, ProbeState, SoftGpu, explain};
use crate::plan::{PlanOptions, Probe, ProbePlan};
use crate::source::{SharedInbox, UvmSource};
use crate::target::{Target, TargetError};
use crate::uvm::{self, Trust};

/// Most records that one [`Intake::drain`] hands over.
pub const DRAIN_LIMIT: usize = 4096;
/// Most files that the soft GPU's probes are attached to: a client names them.
pub const MAX_TARGETS: usize = 64;

/// Most processes whose event queue is open: each takes 2 MiB.
pub const MAX_QUEUES: usize = 32;

/// Why the event queue of a process could not be opened.
#[derive(Debug, Error)]
pub enum QueueError {
    /// The driver or the kernel refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// [`MAX_QUEUES`] are open already.
    #[error("event queues of {MAX_QUEUES} processes are open already")]
    TooMany,
    /// It cannot be waited for.
    #[error("cannot wait for the event queue: {0}")]
    Wait(io::Error),
}

/// Why a file's probe points could not be attached.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The soft GPU's probes are off here.
    #[error("the soft GPU's probes are off: {0}")]
    Off(String),
    /// The file is not fit for them.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// [`MAX_TARGETS`] are attached already.
    #[error("probes are attached to {MAX_TARGETS} soft GPU files already; restart the daemon")]
    TooMany,
    /// The kernel refused.
    #[error("{0}")]
    Kernel(String),
}

/// What attaching did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attached {
    /// The file's probe points send events from now on.
    New,
    /// They did before.
    Already,
}

/// One soft GPU file with its attachments.
struct AttachedFile {
    identity: (u64, u64),
    points: Vec<(u64, u8)>,
    _links: Vec<Link>,
}

/// All probes of this process. Used from one thread at a time.
pub struct Intake {
    epoll: Option<Epoll>,
    softgpu: Result<SoftGpu, (ProbeState, String)>,
    softgpu_ring: Option<RingBuffer<'static>>,
    softgpu_inbox: SharedInbox,
    files: Vec<AttachedFile>,
    uvm: Result<UvmSource, Vec<ProbeReport>>,
    loading: Option<Loading>,
    /// Event queues of single processes.
    queues: Vec<ToolsQueue>,
    /// What sources that are no more had lost.
    past_drops: u64,
    past_undecodable: u64,
    /// Handed-over events' memory, kept for the next time.
    spare: Vec<ProbeEvent>,
}

// SAFETY: libbpf's objects, links and rings belong to no thread; what keeps them from being
// Send is that they are raw pointers. All use goes through `&mut self` or reads of memory
// that the kernel writes, so two threads are never inside at once.
unsafe impl Send for Intake {}

impl Intake {
    /// Loads what the plan chose and attaches what can be attached without a file.
    /// Takes tens of milliseconds. [`Intake::report`] says what came of it.
    pub fn start(plan: &ProbePlan) -> Intake {
        load::route_messages();
        let loading = Loading::now();
        let softgpu = match plan.choice(Probe::SoftGpu) {
            Some(Ok(how)) => load::softgpu(*how).map_err(|reason| (ProbeState::Failed, reason)),
            Some(Err(reason)) => Err((ProbeState::Off, reason.clone())),
            None => Err((ProbeState::Off, "not planned".to_owned())),
        };
        let mut intake = Intake {
            epoll: None,
            softgpu,
            softgpu_ring: None,
            softgpu_inbox: SharedInbox::default(),
            files: Vec::new(),
            uvm: UvmSource::start(plan),
            loading,
            queues: Vec::new(),
            past_drops: 0,
            past_undecodable: 0,
            spare: Vec::new(),
        };
        if let Err(reason) = intake.open() {
            intake.fail(&reason);
        }
        intake
    }

    /// Opens what the reader waits for.
    fn open(&mut self) -> Result<(), String> {
        if let Ok(softgpu) = &self.softgpu {
            let ring = self
                .softgpu_inbox
                .ring(&softgpu.skeleton.maps.ovs_ring)
                .map_err(|error| explain("opening the ring of the soft GPU's program", &error))?;
            self.softgpu_ring = Some(ring);
        }
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|error| format!("opening the probes' epoll: {error}"))?;
        let rings = [
            self.softgpu_ring.as_ref(),
            self.uvm.as_ref().ok().map(|uvm| &uvm.ring),
        ];
        for ring in rings.into_iter().flatten() {
            watch(&epoll, ring)?;
        }
        self.epoll = Some(epoll);
        Ok(())
    }

    /// Gives up all probes for `reason`.
    fn fail(&mut self, reason: &str) {
        if self.softgpu.is_ok() {
            self.softgpu = Err((ProbeState::Failed, reason.to_owned()));
        }
        if let Ok(uvm) = &self.uvm {
            self.uvm = Err(uvm::failed(uvm.uvm.reports(), reason));
        }
    }

    /// Follows the driver's module: when it was loaded, unloaded or loaded again since the
    /// last time, its probes are chosen and attached anew. Says whether anything changed.
    /// Where nothing did, this costs one system call.
    pub fn follow_driver(&mut self, options: PlanOptions) -> bool {
        let loading = Loading::now();
        if loading == self.loading {
            return false;
        }
        self.loading = loading;
        if let Ok(old) = &self.uvm {
            self.past_drops += old.uvm.drops();
            self.past_undecodable += old.inbox.lock().undecodable;
        }
        let plan = ProbePlan::choose(&HostFacts::gather(), options);
        self.uvm = UvmSource::start(&plan);
        if let (Some(epoll), Ok(uvm)) = (&self.epoll, &self.uvm)
            && let Err(reason) = watch(epoll, &uvm.ring)
        {
            self.fail(&reason);
        }
        true
    }

    /// Opens the driver's event queue of a process: the source for hosts without probes on
    /// the driver. Where probes work too, everything is told twice. The queue ends with the
    /// process.
    ///
    /// # Errors
    /// The process has no managed memory yet, or may not be looked into, or
    /// [`MAX_QUEUES`] are open.
    pub fn observe_process(&mut self, pid: u32) -> Result<Attached, QueueError> {
        if self.queues.iter().any(|queue| queue.pid() == pid) {
            return Ok(Attached::Already);
        }
        if self.queues.len() >= MAX_QUEUES {
            return Err(QueueError::TooMany);
        }
        let queue = ToolsQueue::open(pid, HostFacts::driver_version())?;
        if let Some(epoll) = &self.epoll {
            for descriptor in [queue.as_fd(), queue.process_fd()] {
                epoll
                    .add(descriptor, EpollEvent::new(EpollFlags::EPOLLIN, 0))
                    .map_err(|error| QueueError::Wait(error.into()))?;
            }
        }
        self.queues.push(queue);
        Ok(Attached::New)
    }

    /// Closes the event queue of a process, so that the driver can free what it had.
    pub fn leave_process(&mut self, pid: u32) {
        self.close_queues(|queue| queue.pid() == pid);
    }

    /// The processes whose event queues are open.
    pub fn observed(&self) -> impl Iterator<Item = u32> {
        self.queues.iter().map(ToolsQueue::pid)
    }

    fn close_queues(&mut self, which: impl Fn(&ToolsQueue) -> bool) {
        let lost = |queue: &ToolsQueue| if which(queue) { queue.dropped() } else { 0 };
        self.past_drops += self.queues.iter().map(lost).sum::<u64>();
        self.queues.retain(|queue| !which(queue));
    }

    /// How far the driver's structures are believed.
    pub fn trust(&self) -> Trust {
        match &self.uvm {
            Ok(uvm) => uvm.uvm.trust.clone(),
            Err(reports) => {
                let reason = reports.first().map(|report| report.reason.clone());
                Trust::Off(reason.unwrap_or_else(|| "none is planned".to_owned()))
            }
        }
    }

    /// Structures of the driver that were checked, and those with impossible contents.
    pub fn checked(&self) -> (u64, u64) {
        match &self.uvm {
            Ok(uvm) => (uvm.uvm.checked(), uvm.uvm.implausible()),
            Err(_) => (0, 0),
        }
    }

    /// Attaches the soft GPU's probes to `path`, for all processes that use that file, now
    /// and later, until the intake is dropped. Up to 10 ms the first time for a file.
    ///
    /// `path` is opened as this process sees it; a client in another mount namespace is
    /// reached by `/proc/PID/root/...`.
    ///
    /// # Errors
    /// The probes are off, the file is not oversub's soft GPU, or the kernel refused.
    pub fn attach_softgpu(&mut self, path: &Path) -> Result<Attached, AttachError> {
        if let Err((_, reason)) = &self.softgpu {
            return Err(AttachError::Off(reason.clone()));
        }
        let target = Target::inspect(path)?;
        self.attach(&target)
    }

    /// Attaches the soft GPU's probes to a checked target.
    pub(crate) fn attach(&mut self, target: &Target) -> Result<Attached, AttachError> {
        let softgpu = match &mut self.softgpu {
            Ok(softgpu) => softgpu,
            Err((_, reason)) => return Err(AttachError::Off(reason.clone())),
        };
        // By points too: a file rebuilt in place has them elsewhere.
        let same =
            |file: &AttachedFile| file.identity == target.identity && file.points == target.points;
        if self.files.iter().any(same) {
            return Ok(Attached::Already);
        }
        if self.files.len() >= MAX_TARGETS {
            return Err(AttachError::TooMany);
        }
        let what = format!("attaching {} to the soft GPU", softgpu.how);
        let links = softgpu
            .attach(target)
            .map_err(|error| AttachError::Kernel(explain(&what, &error)))?;
        let (identity, points) = (target.identity, target.points.clone());
        self.files.push(AttachedFile {
            identity,
            points,
            _links: links,
        });
        Ok(Attached::New)
    }

    /// Readable when there are events; `None`: the kernel refused even to wait for them.
    pub fn epoll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_ref()?.0.as_fd())
    }

    /// Hands over what has come, at most [`DRAIN_LIMIT`] records of each driver, oldest
    /// first; returns how many. There may be more, and the descriptor stays readable then.
    ///
    /// # Errors
    /// The kernel's ring cannot be read; the probes are of no more use.
    pub fn drain(&mut self, sink: &mut dyn FnMut(ProbeEvent)) -> io::Result<usize> {
        let mut handed_over = 0;
        let mut worst = 0;
        let mut take = |ring: &RingBuffer<'static>, inbox: &SharedInbox| {
            worst = ring.consume_raw_n(DRAIN_LIMIT).min(worst);
            std::mem::swap(&mut inbox.lock().events, &mut self.spare);
            handed_over += self.spare.len();
            let unknown = |event: &ProbeEvent| event.tgid.is_none() && event.space != 0;
            let unknown = self.spare.iter().any(unknown);
            self.spare.drain(..).for_each(&mut *sink);
            unknown
        };
        if let Some(ring) = &self.softgpu_ring {
            take(ring, &self.softgpu_inbox);
        }
        if let Ok(uvm) = &mut self.uvm {
            if take(&uvm.ring, &uvm.inbox) {
                uvm.search_spaces();
            }
            uvm.watch_plausibility();
        }
        let mut ended = false;
        for queue in &mut self.queues {
            // First, so that nothing that it did before its end is missed.
            ended |= queue.process_has_ended();
            handed_over += queue.drain(sink);
        }
        if ended {
            self.close_queues(ToolsQueue::process_has_ended);
        }
        if worst < 0 {
            return Err(io::Error::from_raw_os_error(-worst));
        }
        Ok(handed_over)
    }

    /// Records that the kernel could not write because a ring was full, since the start.
    pub fn drops(&self) -> u64 {
        let mut drops = self.past_drops;
        if let Ok(softgpu) = &self.softgpu
            && let Some(bss) = softgpu.skeleton.maps.bss_data.as_deref()
        {
            // SAFETY: a live, aligned word of a mapped page, which the kernel changes.
            drops += unsafe { std::ptr::read_volatile(&raw const bss.ovs_drops) };
        }
        if let Ok(uvm) = &self.uvm {
            drops += uvm.uvm.drops();
        }
        drops + self.queues.iter().map(ToolsQueue::dropped).sum::<u64>()
    }

    /// Records that were none of ours: 0, unless programs and reader differ in version.
    pub fn undecodable(&self) -> u64 {
        let uvm = self.uvm.as_ref().map(|uvm| uvm.inbox.lock().undecodable);
        self.past_undecodable + self.softgpu_inbox.lock().undecodable + uvm.unwrap_or(0)
    }

    /// The state of every probe, in the order of [`Probe::ALL`].
    pub fn report(&self) -> Vec<ProbeReport> {
        let softgpu = match &self.softgpu {
            Ok(softgpu) => {
                let how = softgpu.how.to_string();
                let (state, reason) = match self.files.len() {
                    0 => (
                        ProbeState::Waiting,
                        "no soft GPU has connected yet".to_owned(),
                    ),
                    files => (ProbeState::Active, format!("on {files} soft GPU file(s)")),
                };
                ProbeReport::new(Probe::SoftGpu, state, how, reason)
            }
            Err((state, reason)) => {
                ProbeReport::new(Probe::SoftGpu, *state, String::new(), reason.clone())
            }
        };
        let mut reports = vec![softgpu];
        let uvm = match &self.uvm {
            Ok(uvm) => uvm.uvm.reports(),
            Err(reports) => reports,
        };
        for probe in Probe::ALL {
            reports.extend(uvm.iter().find(|r| r.probe == probe.name()).cloned());
        }
        reports
    }
}

/// Adds a ring to what the reader waits for.
fn watch(epoll: &Epoll, ring: &RingBuffer<'static>) -> Result<(), String> {
    let descriptor: RawFd = ring.epoll_fd();
    // SAFETY: the ring owns the descriptor and outlives this call; when it closes it, the
    // kernel takes it out of the epoll.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    epoll
        .add(descriptor, EpollEvent::new(EpollFlags::EPOLLIN, 0))
        .map_err(|error| format!("waiting for the probes' rings: {error}"))
}
