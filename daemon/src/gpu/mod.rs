//! The GPUs: one engine thread each, and how others reach it.

mod thread;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use nix::sys::eventfd::{EfdFlags, EventFd};
use oversub_protocol::handshake::Hello;
use tokio::sync::oneshot;

use crate::control::SessionView;
use crate::metrics::Metrics;
use crate::probes::{Probes, Seen};
use crate::session::Session;
use thread::EngineThread;

/// Label of soft GPUs: each belongs to its process, all share one thread.
pub const SOFT: &str = "soft";
/// GPUs with a thread and a label of their own; what is claimed beyond shares one, so that
/// a client cannot make labels and threads without end.
const MAX_GPUS: usize = 32;
const OTHER: &str = "other";

/// What other threads ask of an engine thread.
#[derive(Debug)]
pub(crate) enum Message {
    /// Serve this session.
    Session(Box<Session>),
    /// Say how sessions stand.
    View(oneshot::Sender<Vec<SessionView>>),
    /// A probe, drained by another thread, saw this.
    Probe(Seen),
    /// End all sessions and return.
    Stop,
}

/// The way to one engine thread.
#[derive(Clone, Debug)]
pub(crate) struct Mailbox {
    sender: Sender<Message>,
    wake: Arc<EventFd>,
}

impl Mailbox {
    /// `false`: the thread has returned.
    pub(crate) fn send(&self, message: Message) -> bool {
        let sent = self.sender.send(message).is_ok();
        // The counter cannot fill: the thread reads it whenever it wakes.
        let _ = self.wake.write(1);
        sent
    }
}

/// What the end of sessions is reported to.
pub trait SessionEnds: Send + Sync + std::fmt::Debug {
    /// This session has ended; its figures are final.
    fn ended(&self, view: &SessionView);
}

/// All engine threads.
#[derive(Debug)]
pub struct Gpus {
    threads: Mutex<BTreeMap<String, Thread>>,
    /// Everyone to whom probe events may go.
    mailboxes: Arc<Mutex<Vec<Mailbox>>>,
    metrics: Arc<Metrics>,
    ends: Arc<dyn SessionEnds>,
    probes: Arc<Probes>,
}

#[derive(Debug)]
struct Thread {
    mailbox: Mailbox,
    join: JoinHandle<()>,
}

impl Gpus {
    /// No thread yet: each starts with the first session on its GPU.
    pub fn new(metrics: Arc<Metrics>, ends: Arc<dyn SessionEnds>, probes: Arc<Probes>) -> Self {
        Self {
            threads: Mutex::default(),
            mailboxes: Arc::default(),
            metrics,
            ends,
            probes,
        }
    }

    /// The label of the GPU that `hello` speaks of.
    pub fn label(&self, hello: &Hello) -> String {
        let label = label(hello);
        let threads = self.threads();
        if threads.contains_key(&label) || threads.len() < MAX_GPUS {
            label
        } else {
            OTHER.to_owned()
        }
    }

    /// Hands a session to the thread of its GPU, which is started where there is none.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn serve(&self, session: Session) -> std::io::Result<()> {
        let gpu = session.peer.gpu.clone();
        let mut threads = self.threads();
        if !threads.contains_key(&gpu) {
            threads.insert(gpu.clone(), self.start(&gpu)?);
        }
        let sent = threads
            .get(&gpu)
            .is_some_and(|thread| thread.mailbox.send(Message::Session(Box::new(session))));
        if sent {
            Ok(())
        } else {
            Err(std::io::Error::other("the engine thread has ended"))
        }
    }

    fn start(&self, gpu: &str) -> std::io::Result<Thread> {
        let (sender, receiver) = mpsc::channel();
        let wake = Arc::new(EventFd::from_flags(
            EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK,
        )?);
        let mailbox = Mailbox {
            sender,
            wake: Arc::clone(&wake),
        };
        // The first thread drains the probes for all.
        let mut mailboxes = self
            .mailboxes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let drains = mailboxes.is_empty();
        mailboxes.push(mailbox.clone());
        drop(mailboxes);
        let thread = EngineThread::new(
            gpu,
            receiver,
            wake,
            self.metrics.histograms(gpu),
            Arc::clone(&self.metrics),
            Arc::clone(&self.ends),
            Arc::clone(&self.probes),
            drains.then(|| Arc::clone(&self.mailboxes)),
        )?;
        let join = std::thread::Builder::new()
            .name(format!("gpu-{}", &gpu[..gpu.len().min(10)]))
            .spawn(move || thread.run())?;
        Ok(Thread { mailbox, join })
    }

    /// How all sessions stand, by number; `None` where a thread does not answer in time.
    pub async fn views(&self) -> Option<Vec<SessionView>> {
        /// An engine thread answers between two turns.
        const PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);
        let mailboxes: Vec<Mailbox> = self
            .threads()
            .values()
            .map(|thread| thread.mailbox.clone())
            .collect();
        let mut answers = Vec::new();
        for mailbox in mailboxes {
            let (sender, receiver) = oneshot::channel();
            mailbox.send(Message::View(sender));
            answers.push(receiver);
        }
        let mut views = Vec::new();
        for answer in answers {
            views.extend(tokio::time::timeout(PATIENCE, answer).await.ok()?.ok()?);
        }
        views.sort_by_key(|view: &SessionView| view.session);
        Some(views)
    }

    /// Ends all sessions and waits for the threads.
    pub fn stop(&self) {
        let threads = std::mem::take(&mut *self.threads());
        for thread in threads.values() {
            thread.mailbox.send(Message::Stop);
        }
        for (gpu, thread) in threads {
            if thread.join.join().is_err() {
                tracing::error!(gpu, "the engine thread panicked");
            }
        }
    }

    fn threads(&self) -> MutexGuard<'_, BTreeMap<String, Thread>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The label by which a GPU goes: as `nvidia-smi -L` writes its UUID.
fn label(hello: &Hello) -> String {
    if hello.flags & Hello::SOFT_DEVICE != 0 {
        return SOFT.to_owned();
    }
    if hello.uuid == [0; 16] {
        return format!("GPU-{}", hello.device);
    }
    let hex: String = hello
        .uuid
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!(
        "GPU-{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// Bytes that managed memory could fill if the session were alone on its device.
pub fn available_bytes(hello: &Hello, reserve: u64) -> u64 {
    // A device far smaller than the reserve shall not lose most of itself to it.
    let reserve = reserve.min(hello.device_bytes / 32);
    let free = hello.free_bytes.min(hello.device_bytes);
    let available = free.min(hello.device_bytes.saturating_sub(reserve));
    available / oversub_engine::BLOCK_BYTES * oversub_engine::BLOCK_BYTES
}

/// Asked by tests and the thread: the descriptor that wakes it.
fn wake_fd(wake: &EventFd) -> std::os::fd::BorrowedFd<'_> {
    wake.as_fd()
}
