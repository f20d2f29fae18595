//! Processes that are steered from outside: no code in them, their own managed memory.
//!
//! The daemon takes a process's descriptor of the driver, sees by probes or by the driver's
//! event queue what it faults on, and asks the driver to move its memory. Who may ask for
//! that is [`rules`]'; what is moved is [`oversub_engine::FaultEngine`]'s to decide; how,
//! [`mover`]'s; [`steer`] holds it together, in a thread of each process.
//!
//! The driver keeps a process's address space while its descriptor is held, so nothing is
//! held once the process has ended, maps no managed memory any more, or is let go.

pub mod mover;
pub mod rules;
pub mod steer;
mod target;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oversub_engine::{Bytes, Event, FaultConfig, FaultEngine, FaultStats};

use self::rules::Owner;
use self::steer::{End, Steering};
use self::target::Taken;
use crate::clock;
use crate::config::Config;
use crate::control::{AttachView, CLOSED_SESSIONS};
use crate::probes::{Probes, Seen};

/// Messages that may wait for one process's thread; events beyond are lost and counted.
const WAITING: usize = 1 << 16;

/// What the thread of a process is told.
#[derive(Debug)]
pub enum Message {
    /// The driver did something.
    Seen(Seen),
    /// A mover did what it was asked, or could not.
    Moved {
        /// For the engine.
        event: Event<'static>,
        /// Bytes asked for and moved.
        moved_bytes: u64,
        /// How often the driver was busy.
        retries: u64,
    },
    /// Let go: look at [`Steering::leave`].
    Detach,
}

/// What is counted of one process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub engine: FaultStats,
    pub managed_bytes: u64,
    pub moved_bytes: u64,
    pub retries: u64,
    pub other_devices: u64,
    pub device: Option<String>,
}

/// One attached process.
#[derive(Debug)]
struct Attachment {
    view: AttachView,
    figures: Arc<Mutex<Figures>>,
    detach: SyncSender<Message>,
    leave: Arc<AtomicBool>,
    started: u64,
    ended: Option<End>,
}

impl Attachment {
    fn view(&self) -> AttachView {
        let figures = lock(&self.figures).clone();
        let mut view = self.view.clone();
        if self.ended.is_none() {
            view.age_s = clock::now().0.saturating_sub(self.started) as f64 / 1e6;
        }
        view.ended = self.ended.map(|end| end.text().to_owned());
        view.gpu = figures.device;
        view.managed_bytes = figures.managed_bytes;
        view.moved_bytes = figures.moved_bytes;
        view.retries = figures.retries;
        view.other_device_events = figures.other_devices;
        view.stats = (&figures.engine).into();
        view.capacity_bytes = figures.engine.capacity_bytes;
        view.steering = figures.engine.steering;
        view
    }
}

/// All attached processes, and the last that were.
#[derive(Debug, Default)]
struct List {
    last: u64,
    attachments: BTreeMap<u64, Attachment>,
}

/// Attaches to processes and lets them go.
#[derive(Debug)]
pub struct Attachments {
    config: Arc<Config>,
    probes: Arc<Probes>,
    list: Arc<Mutex<List>>,
    /// One at a time, so that no process is attached twice.
    attaching: Mutex<()>,
}

impl Attachments {
    /// None yet.
    pub fn new(config: Arc<Config>, probes: Arc<Probes>) -> Self {
        Self {
            config,
            probes,
            list: Arc::default(),
            attaching: Mutex::default(),
        }
    }

    /// Attaches to a process for a user. Takes milliseconds.
    ///
    /// # Errors
    /// It is not allowed, or cannot be done; the text says why and what to do.
    pub fn attach(&self, pid: u32, asker: u32) -> Result<AttachView, String> {
        let told = |what: &dyn std::fmt::Display| format!("cannot attach to process {pid}: {what}");
        let refuse = |what: String| told(&what);
        let _one_at_a_time = lock(&self.attaching);
        if pid == std::process::id() {
            return Err(refuse("it is the daemon itself".to_owned()));
        }
        // From here on the number is this process's as long as it lives.
        let process = oversub_uvm::process::Process::open(pid).map_err(|error| told(&error))?;
        let folder = std::path::PathBuf::from(format!("/proc/{pid}"));
        let permitted = || -> Result<Owner, String> {
            let owner = Owner::of(&folder).ok_or_else(|| refuse("it has ended".to_owned()))?;
            rules::judge(self.config.attach.processes, asker, &owner).map_err(refuse)?;
            Ok(owner)
        };
        let owner = permitted()?;
        {
            let list = lock(&self.list);
            let standing = list.attachments.values().filter(|a| a.ended.is_none());
            let mut count = 0;
            for attachment in standing {
                if attachment.view.pid == pid {
                    return Ok(attachment.view());
                }
                count += 1;
            }
            if count >= self.config.attach.max_processes {
                return Err(refuse(format!(
                    "{count} processes are attached already (attach.max_processes)"
                )));
            }
        }
        if oversub_preloaded(&folder) {
            return Err(refuse(
                "it runs under oversub already, which sees more from inside".to_owned(),
            ));
        }
        let taken = Taken::of(process).map_err(|error| told(&error))?;
        // It may have become another user's program since it was looked at.
        permitted()?;
        let source = self.probes.observe_attached(pid).map_err(refuse)?;
        let begun = self.begin(taken, &owner, source.name());
        if begun.is_err() {
            self.probes.leave_attached(pid);
        }
        begun.map_err(refuse)
    }

    fn begin(&self, taken: Taken, owner: &Owner, source: &str) -> Result<AttachView, String> {
        let pid = taken.pid();
        let (messages, inbox) = sync_channel(WAITING);
        let figures = Arc::new(Mutex::new(Figures::default()));
        let config = FaultConfig {
            page_bytes: nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
                .ok()
                .flatten()
                .map_or(4096, |bytes| bytes.unsigned_abs()),
            ahead: Bytes(self.config.attach.ahead.0),
            history: self.config.engine.history_launches,
            blocks: self.config.engine.blocks,
        };
        let driver = taken.driver();
        let steering = Steering::new(
            Box::new(taken),
            driver,
            FaultEngine::new(config),
            Arc::clone(&figures),
            messages.clone(),
        );
        let mut list = lock(&self.list);
        list.last += 1;
        let number = list.last;
        let attachment = Attachment {
            view: AttachView {
                attachment: number,
                pid,
                uid: owner.user(),
                command: crate::serve::sessions::command_of(pid),
                source: source.to_owned(),
                ..AttachView::default()
            },
            figures,
            detach: messages.clone(),
            leave: Arc::clone(&steering.leave),
            started: clock::now().0,
            ended: None,
        };
        let view = attachment.view();
        self.probes.tell(pid, messages);
        let (probes, shared) = (Arc::clone(&self.probes), Arc::clone(&self.list));
        let thread = std::thread::Builder::new().name(format!("attached-{pid}"));
        let thread = thread.spawn(move || {
            let end = steering.run(inbox);
            probes.leave_attached(pid);
            finish(&shared, number, end);
        });
        if let Err(error) = thread {
            return Err(format!("no thread: {error}"));
        }
        list.attachments.insert(number, attachment);
        tracing::info!(pid, uid = owner.user(), source, "attached");
        Ok(view)
    }

    /// Lets a process go.
    ///
    /// # Errors
    /// It is not attached, or another user's.
    pub fn detach(&self, pid: u32, asker: u32) -> Result<(), String> {
        let list = lock(&self.list);
        let mut standing = list.attachments.values().filter(|a| a.ended.is_none());
        let found = standing.find(|attachment| attachment.view.pid == pid);
        match found {
            Some(attachment) if asker == 0 || asker == attachment.view.uid => {
                // Full or gone: it is busy, and looks at this first; or it is ending by itself.
                attachment.leave.store(true, Ordering::Relaxed);
                let _ = attachment.detach.try_send(Message::Detach);
                Ok(())
            }
            Some(_) => Err(format!("process {pid} is another user's")),
            None => Err(format!("process {pid} is not attached")),
        }
    }

    /// How those stand that `asker` may see, and the last ones that ended.
    pub fn views(&self, may_see: impl Fn(u32) -> bool) -> Vec<AttachView> {
        let list = lock(&self.list);
        let all = list.attachments.values();
        let seen = all.filter(|attachment| may_see(attachment.view.uid));
        seen.map(Attachment::view).collect()
    }
}

fn finish(list: &Mutex<List>, number: u64, end: End) {
    let mut list = lock(list);
    if let Some(attachment) = list.attachments.get_mut(&number) {
        attachment.view.age_s = clock::now().0.saturating_sub(attachment.started) as f64 / 1e6;
        attachment.ended = Some(end);
        tracing::info!(pid = attachment.view.pid, reason = end.text(), "let go");
    }
    let ended = |list: &List| {
        let ended = list.attachments.iter().filter(|(_, a)| a.ended.is_some());
        ended.map(|(number, _)| *number).collect::<Vec<_>>()
    };
    let ended = ended(&list);
    for number in ended
        .iter()
        .take(ended.len().saturating_sub(CLOSED_SESSIONS))
    {
        list.attachments.remove(number);
    }
}

/// The program has oversub's library in it.
fn oversub_preloaded(folder: &std::path::Path) -> bool {
    std::fs::read(folder.join("maps")).is_ok_and(|maps| {
        let name = b"/liboversub.so";
        maps.windows(name.len()).any(|part| part == name)
    })
}

/// `false`: there was no room, and the event is lost.
pub(crate) fn offer(messages: &SyncSender<Message>, seen: Seen) -> bool {
    let sent = messages.try_send(Message::Seen(seen));
    !matches!(sent, Err(TrySendError::Full(_)))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
