//! The GPUs: one engine thread each, and how others reach it.

mod thread;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use nix::sys::eventfd::{EfdFlags, EventFd};
use oversub_protocol::handshake::Hello;
use tokio::sync::oneshot;

use crate::control::SessionView;
use crate::control::why::{SessionWhy, WhyQuestion};
use crate::metrics::Metrics;
use crate::probes::{Probes, Seen};
use crate::session::Session;
use thread::{EngineThread, Shared};

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
    /// Say why blocks are where they are.
    Why(WhyQuestion, oneshot::Sender<Vec<SessionWhy>>),
    /// A probe, drained by another thread, saw this.
    Probe(Seen),
    /// End all sessions and return.
    Stop,
}

/// Probe events that may wait for one engine thread; further ones are lost and counted.
const MAX_PROBE_EVENTS: usize = 1 << 16;

/// The way to one engine thread.
#[derive(Clone, Debug)]
pub(crate) struct Mailbox {
    sender: Sender<Message>,
    wake: Arc<EventFd>,
    probe_events: Arc<AtomicUsize>,
}

impl Mailbox {
    /// `false`: the thread has returned.
    pub(crate) fn send(&self, message: Message) -> bool {
        let sent = self.sender.send(message).is_ok();
        // The counter cannot fill: the thread reads it whenever it wakes.
        let _ = self.wake.write(1);
        sent
    }

    /// `false`: it has no room for probe events now.
    fn send_probe(&self, seen: Seen) -> bool {
        if self.probe_events.fetch_add(1, Ordering::Relaxed) >= MAX_PROBE_EVENTS {
            self.probe_events.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.send(Message::Probe(seen))
    }
}

/// Which processes have sessions on which threads: where a probe event belongs.
#[derive(Debug, Default)]
pub(crate) struct Directory(Mutex<BTreeMap<u32, Vec<(u64, Mailbox)>>>);

impl Directory {
    fn enter(&self, pid: u32, session: u64, mailbox: &Mailbox) {
        self.lock()
            .entry(pid)
            .or_default()
            .push((session, mailbox.clone()));
    }

    fn leave(&self, pid: u32, session: u64) {
        let mut processes = self.lock();
        if let Some(sessions) = processes.get_mut(&pid) {
            sessions.retain(|(number, _)| *number != session);
            if sessions.is_empty() {
                processes.remove(&pid);
            }
        }
    }

    /// Sends what was seen to the other threads with sessions of that process; how often
    /// there was no room.
    fn forward(&self, seen: &Seen, from: &Arc<EventFd>) -> u64 {
        let processes = self.lock();
        let sessions = seen.process.and_then(|pid| processes.get(&pid));
        let others = sessions
            .into_iter()
            .flatten()
            .filter(|(_, to)| !Arc::ptr_eq(&to.wake, from));
        others
            .filter(|(_, mailbox)| !mailbox.send_probe(*seen))
            .count() as u64
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Vec<(u64, Mailbox)>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    directory: Arc<Directory>,
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
            directory: Arc::default(),
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
            // What probes see wakes the first thread, which tells the others.
            let drains = threads.is_empty();
            threads.insert(gpu.clone(), self.start(&gpu, drains)?);
        }
        let Some(thread) = threads.get(&gpu) else {
            return Err(std::io::Error::other("no engine thread"));
        };
        let (pid, number) = (session.peer.pid, session.peer.session);
        self.directory.enter(pid, number, &thread.mailbox);
        if thread.mailbox.send(Message::Session(Box::new(session))) {
            return Ok(());
        }
        self.directory.leave(pid, number);
        Err(std::io::Error::other("the engine thread has ended"))
    }

    fn start(&self, gpu: &str, drains: bool) -> std::io::Result<Thread> {
        let (sender, receiver) = mpsc::channel();
        let wake = Arc::new(EventFd::from_flags(
            EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK,
        )?);
        let probe_events = Arc::new(AtomicUsize::new(0));
        let mailbox = Mailbox {
            sender,
            wake: Arc::clone(&wake),
            probe_events: Arc::clone(&probe_events),
        };
        let shared = Shared {
            histograms: self.metrics.histograms(gpu),
            metrics: Arc::clone(&self.metrics),
            ends: Arc::clone(&self.ends),
            probes: Arc::clone(&self.probes),
            directory: Arc::clone(&self.directory),
            probe_events,
        };
        let thread = EngineThread::new(gpu, receiver, wake, shared, drains)?;
        let join = std::thread::Builder::new()
            .name(format!("gpu-{}", &gpu[..gpu.len().min(10)]))
            .spawn(move || thread.run())?;
        Ok(Thread { mailbox, join })
    }

    /// How all sessions stand, by number; `None` where a thread does not answer in time.
    pub async fn views(&self) -> Option<Vec<SessionView>> {
        let mut views = self.ask(Message::View).await?;
        views.sort_by_key(|view| view.session);
        Some(views)
    }

    /// Why blocks are where they are, by session; `None` where a thread does not answer.
    pub async fn why(&self, question: WhyQuestion) -> Option<Vec<SessionWhy>> {
        let mut all = self.ask(|sender| Message::Why(question, sender)).await?;
        all.sort_by_key(|of| of.session);
        Some(all)
    }

    /// Asks every thread; all that they answer.
    async fn ask<T>(&self, message: impl Fn(oneshot::Sender<Vec<T>>) -> Message) -> Option<Vec<T>> {
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
            mailbox.send(message(sender));
            answers.push(receiver);
        }
        let mut all = Vec::new();
        for answer in answers {
            all.extend(tokio::time::timeout(PATIENCE, answer).await.ok()?.ok()?);
        }
        Some(all)
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
