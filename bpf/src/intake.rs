//! The events of all probes, for one reading thread.
//!
//! The reader puts [`Intake::epoll_fd`] among what it waits for and calls
//! [`Intake::drain`] when it is readable. What cannot work is reported, never an error:
//! without any probe the intake stands there silent.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::{Link, RingBuffer, RingBufferBuilder};
use thiserror::Error;

use crate::event::ProbeEvent;
use crate::load::{self, ProbeReport, ProbeState, SoftGpu, Uvm, explain};
use crate::plan::{Probe, ProbePlan};
use crate::target::{Target, TargetError};

/// Most records that one [`Intake::drain`] hands over.
pub const DRAIN_LIMIT: usize = 4096;
/// Most files that the soft GPU's probes are attached to: a client names them.
pub const MAX_TARGETS: usize = 64;

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

/// What the ring buffers' callbacks leave for [`Intake::drain`].
#[derive(Default)]
struct Inbox {
    events: Vec<ProbeEvent>,
    undecodable: u64,
}

/// All probes of this process. Used from one thread at a time.
pub struct Intake {
    ring: Option<RingBuffer<'static>>,
    inbox: Arc<Mutex<Inbox>>,
    /// Handed-over events' memory, kept for the next time.
    spare: Vec<ProbeEvent>,
    files: Vec<AttachedFile>,
    softgpu: Result<SoftGpu, (ProbeState, String)>,
    uvm: Option<Uvm>,
    uvm_reports: Vec<ProbeReport>,
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
        let softgpu = match plan.choice(Probe::SoftGpu) {
            Some(Ok(how)) => load::softgpu(*how).map_err(|reason| (ProbeState::Failed, reason)),
            Some(Err(reason)) => Err((ProbeState::Off, reason.clone())),
            None => Err((ProbeState::Off, "not planned".to_owned())),
        };
        let mut uvm_reports = Vec::new();
        let uvm = load::uvm(plan, &mut uvm_reports);
        let mut intake = Intake {
            ring: None,
            inbox: Arc::default(),
            spare: Vec::new(),
            files: Vec::new(),
            softgpu,
            uvm,
            uvm_reports,
        };
        if let Err(error) = intake.open_ring() {
            let reason = explain("opening the probes' ring buffers", &error);
            intake.fail(&reason);
        }
        intake
    }

    /// Opens one reader over the rings of all loaded objects.
    fn open_ring(&mut self) -> Result<(), libbpf_rs::Error> {
        let mut builder = RingBufferBuilder::new();
        let callback = || {
            let inbox = Arc::clone(&self.inbox);
            move |record: &[u8]| {
                let mut inbox = inbox.lock().unwrap_or_else(PoisonError::into_inner);
                match ProbeEvent::decode(record) {
                    Ok(event) => inbox.events.push(event),
                    Err(_) => inbox.undecodable += 1,
                }
                // Anything else would end the reading.
                0
            }
        };
        let mut rings = 0;
        if let Ok(softgpu) = &self.softgpu {
            builder.add(&softgpu.skeleton.maps.ovs_ring, callback())?;
            rings += 1;
        }
        if let Some(uvm) = &self.uvm {
            builder.add(&uvm.skeleton.maps.ovs_ring, callback())?;
            rings += 1;
        }
        self.ring = (rings > 0).then(|| builder.build()).transpose()?;
        Ok(())
    }

    /// Gives up all probes for `reason`.
    fn fail(&mut self, reason: &str) {
        if self.softgpu.is_ok() {
            self.softgpu = Err((ProbeState::Failed, reason.to_owned()));
        }
        self.uvm = None;
        for report in &mut self.uvm_reports {
            if report.state == ProbeState::Active {
                report.state = ProbeState::Failed;
                report.how.clear();
                report.reason = reason.to_owned();
            }
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

    /// Readable when there are events; `None`: there will never be any.
    pub fn epoll_fd(&self) -> Option<BorrowedFd<'_>> {
        let descriptor: RawFd = self.ring.as_ref()?.epoll_fd();
        // SAFETY: the ring owns the descriptor and lives as long as `self`, which is borrowed.
        Some(unsafe { BorrowedFd::borrow_raw(descriptor) })
    }

    /// Hands over what has come, at most [`DRAIN_LIMIT`] records, oldest first per driver;
    /// returns how many. When it returns the limit there may be more, and the descriptor
    /// stays readable.
    ///
    /// # Errors
    /// The kernel's ring cannot be read; the probes are of no more use.
    pub fn drain(&mut self, sink: &mut dyn FnMut(ProbeEvent)) -> io::Result<usize> {
        let Some(ring) = &self.ring else {
            return Ok(0);
        };
        let status = ring.consume_raw_n(DRAIN_LIMIT);
        {
            let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut inbox.events, &mut self.spare);
        }
        let handed_over = self.spare.len();
        self.spare.drain(..).for_each(sink);
        if status < 0 {
            return Err(io::Error::from_raw_os_error(-status));
        }
        Ok(handed_over)
    }

    /// Records that the kernel could not write because a ring was full, since the start.
    pub fn drops(&self) -> u64 {
        let mut drops = 0;
        if let Ok(softgpu) = &self.softgpu
            && let Some(bss) = softgpu.skeleton.maps.bss_data.as_deref()
        {
            // SAFETY: a live, aligned word of a mapped page, which the kernel changes.
            drops += unsafe { std::ptr::read_volatile(&raw const bss.ovs_drops) };
        }
        if let Some(uvm) = &self.uvm
            && let Some(bss) = uvm.skeleton.maps.bss_data.as_deref()
        {
            // SAFETY: as above.
            drops += unsafe { std::ptr::read_volatile(&raw const bss.ovs_drops) };
        }
        drops
    }

    /// Records that were none of ours: 0, unless programs and reader differ in version.
    pub fn undecodable(&self) -> u64 {
        self.inbox
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .undecodable
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
        for probe in Probe::ALL {
            reports.extend(
                self.uvm_reports
                    .iter()
                    .find(|r| r.probe == probe.name())
                    .cloned(),
            );
        }
        reports
    }
}
