//! The thread of one GPU: waits for its sessions, probes and time; gives each its turn.
//!
//! Sleeps while nothing is outstanding. No client can hold it: every read is bounded and
//! nothing that a client shares is waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{MsgFlags, recv};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, TimerSetTimeFlags};
use nix::sys::timerfd::{ClockId, TimerFd, TimerFlags};
use oversub_engine::{Bytes, Command, Micros};

use super::{Directory, Message, SessionEnds};
use crate::clock;
use crate::limiter::Limiter;
use crate::metrics::{GpuHistograms, Metrics};
use crate::probes::{Probes, Seen};
use crate::profiles;
use crate::schedule;
use crate::session::Session;

/// Tokens of what is waited for; sessions follow, two each.
const MAILBOX: u64 = 0;
const TIMER: u64 = 1;
const PROBES: u64 = 2;
const FIRST_SESSION: u64 = 4;

static EXPELLED: Limiter = Limiter::new(5);

/// Why a session ends.
#[derive(Debug)]
enum End {
    /// The program has gone.
    Gone,
    /// The daemon stops.
    Stopped,
    /// The program broke a rule.
    Expelled(String),
}

/// What a thread shares with the rest of the daemon.
pub(super) struct Shared {
    pub histograms: GpuHistograms,
    pub metrics: Arc<Metrics>,
    pub ends: Arc<dyn SessionEnds>,
    pub probes: Arc<Probes>,
    pub directory: Arc<Directory>,
    /// Probe events in the mailbox.
    pub probe_events: Arc<AtomicUsize>,
}

pub(super) struct EngineThread {
    gpu: String,
    receiver: Receiver<Message>,
    wake: Arc<EventFd>,
    shared: Shared,
    epoll: Epoll,
    timer: TimerFd,
    armed: Option<Micros>,
    sessions: BTreeMap<u64, Session>,
    /// Sessions that need a turn.
    due: BTreeSet<u64>,
    commands: Vec<Command>,
    /// What probes saw of this thread's sessions, while it is taken in.
    seen: Vec<Seen>,
    /// Threads that write profiles.
    writers: Vec<JoinHandle<()>>,
}

impl EngineThread {
    /// `drains`: what probes see wakes it.
    pub(super) fn new(
        gpu: &str,
        receiver: Receiver<Message>,
        wake: Arc<EventFd>,
        shared: Shared,
        drains: bool,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let timer = TimerFd::new(
            ClockId::CLOCK_MONOTONIC,
            TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC,
        )?;
        epoll.add(wake.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, MAILBOX))?;
        epoll.add(timer.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, TIMER))?;
        if drains {
            shared
                .probes
                .watch(&epoll, EpollEvent::new(EpollFlags::EPOLLIN, PROBES))?;
        }
        Ok(Self {
            gpu: gpu.to_owned(),
            receiver,
            wake,
            shared,
            epoll,
            timer,
            armed: None,
            sessions: BTreeMap::new(),
            due: BTreeSet::new(),
            commands: Vec::new(),
            seen: Vec::new(),
            writers: Vec::new(),
        })
    }

    pub(super) fn run(mut self) {
        schedule::prefer_short_turns();
        let mut ready = [EpollEvent::empty(); 64];
        loop {
            if !self.take_turns() {
                self.end_all();
                return;
            }
            let timeout = self.before_waiting();
            let count = match self.epoll.wait(&mut ready, timeout) {
                Ok(count) => count,
                Err(Errno::EINTR) => 0,
                Err(error) => {
                    tracing::error!(gpu = self.gpu, %error, "cannot wait for sessions; they end");
                    self.end_all();
                    return;
                }
            };
            for event in &ready[..count] {
                match event.data() {
                    MAILBOX => {
                        let _ = self.wake.read();
                        if !self.read_mailbox() {
                            self.end_all();
                            return;
                        }
                    }
                    TIMER => {
                        let _ = self.timer.wait();
                        self.armed = None;
                    }
                    PROBES => self.drain_probes(),
                    token => self.session_ready(token),
                }
            }
            self.wake_for_time();
        }
    }

    /// Gives every session that is due one turn, once all is taken in that probes have seen until
    /// now, here or as told by another thread. `false`: stop.
    fn take_turns(&mut self) -> bool {
        if self.due.is_empty() {
            return true;
        }
        self.drain_probes();
        if !self.read_mailbox() {
            return false;
        }
        let due = std::mem::take(&mut self.due);
        for number in due {
            let Some(session) = self.sessions.get_mut(&number) else {
                continue;
            };
            session.channel().cancel_sleep();
            let began = clock::monotonic_ns();
            match session.turn(&mut self.commands) {
                Ok(turn) => {
                    if turn.more {
                        self.due.insert(number);
                    }
                    let took = clock::monotonic_ns().saturating_sub(began);
                    self.shared.histograms.decision.observe(took as f64 / 1e9);
                }
                Err(corrupt) => self.end(number, &End::Expelled(corrupt.to_string())),
            }
        }
        true
    }

    /// Announces sleep to all rings and arms the timer; how long to wait.
    fn before_waiting(&mut self) -> EpollTimeout {
        let mut next: Option<Micros> = None;
        for (number, session) in &self.sessions {
            if !self.due.contains(number) && !session.prepare_sleep() {
                self.due.insert(*number);
            }
            next = [next, session.next_wakeup()].into_iter().flatten().min();
        }
        if !self.due.is_empty() {
            return EpollTimeout::ZERO;
        }
        self.arm(next);
        EpollTimeout::NONE
    }

    fn arm(&mut self, next: Option<Micros>) {
        if next == self.armed {
            return;
        }
        let set = match next {
            Some(at) => {
                // A time that has passed fires at once; zero would disarm.
                let at = TimeSpec::from_duration(Duration::from_micros(at.0.max(1)));
                self.timer.set(
                    Expiration::OneShot(at),
                    TimerSetTimeFlags::TFD_TIMER_ABSTIME,
                )
            }
            None => self.timer.unset(),
        };
        if let Err(error) = set {
            tracing::error!(gpu = self.gpu, %error, "cannot set the timer");
        }
        self.armed = next;
    }

    fn wake_for_time(&mut self) {
        let now = clock::now();
        let late = |session: &Session| session.next_wakeup().is_some_and(|at| at <= now);
        let late = self
            .sessions
            .iter()
            .filter(|(_, session)| late(session))
            .map(|(number, _)| *number);
        self.due.extend(late.collect::<Vec<_>>());
    }

    fn session_ready(&mut self, token: u64) {
        let number = (token - FIRST_SESSION) / 2;
        let Some(session) = self.sessions.get(&number) else {
            return;
        };
        if token.is_multiple_of(2) {
            self.due.insert(number);
            return;
        }
        // Nothing is said on the socket after the handshake, so there is one thing to hear.
        let mut byte = [0u8];
        match recv(
            session.socket.as_raw_fd(),
            &mut byte,
            MsgFlags::MSG_DONTWAIT,
        ) {
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Ok(1..) => self.end(
                number,
                &End::Expelled("spoke on the session socket".to_owned()),
            ),
            Ok(0) | Err(_) => {
                // What it still wrote belongs to its figures.
                if let Some(session) = self.sessions.get_mut(&number) {
                    session.take_rest(&mut self.commands);
                }
                self.end(number, &End::Gone);
            }
        }
    }

    /// `false`: stop.
    fn read_mailbox(&mut self) -> bool {
        while let Ok(message) = self.receiver.try_recv() {
            match message {
                Message::Session(session) => self.begin(*session),
                Message::View(answer) => {
                    let views = self.sessions.values().map(Session::view).collect();
                    // The asker may have lost patience.
                    let _ = answer.send(views);
                }
                Message::Why(question, answer) => {
                    let sessions = self.sessions.values();
                    let _ = answer.send(sessions.map(|session| session.why(question)).collect());
                }
                Message::Probe(seen) => {
                    self.shared.probe_events.fetch_sub(1, Ordering::Relaxed);
                    self.deliver(&seen);
                }
                Message::Stop => return false,
            }
        }
        true
    }

    fn begin(&mut self, session: Session) {
        let number = session.peer.session;
        let token = FIRST_SESSION + 2 * number;
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        let added = self
            .epoll
            .add(session.channel().events_fd(), EpollEvent::new(flags, token))
            .and_then(|()| {
                let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
                self.epoll
                    .add(session.socket.as_fd(), EpollEvent::new(flags, token + 1))
            });
        self.sessions.insert(number, session);
        if let Err(error) = added {
            tracing::error!(session = number, %error, "cannot watch the session; it ends");
            self.end(number, &End::Stopped);
            return;
        }
        self.due.insert(number);
        self.share_out();
    }

    /// Divides the device among its sessions. A soft GPU belongs to its process alone.
    fn share_out(&mut self) {
        let sharing = self.sessions.values().filter(|session| !session.peer.soft);
        let Some(whole) = sharing
            .clone()
            .map(|session| session.peer.available_bytes)
            .max()
        else {
            return;
        };
        let share = whole / sharing.count().max(1) as u64;
        for session in self
            .sessions
            .values_mut()
            .filter(|session| !session.peer.soft)
        {
            let budget = session.peer.budget_bytes;
            let capacity = if budget == 0 {
                share
            } else {
                budget.min(share)
            };
            session.set_capacity(Bytes(capacity));
        }
    }

    /// Takes in what probes have seen, between two looks at the devices: it happened before the
    /// second one, and nothing that did before the first is missing.
    fn drain_probes(&mut self) {
        for session in self.sessions.values_mut() {
            session.look();
        }
        let probes = Arc::clone(&self.shared.probes);
        let mut seen = std::mem::take(&mut self.seen);
        let mut lost = 0;
        probes.drain(|event| {
            let mut sessions = self.sessions.values();
            if sessions.any(|session| Some(session.peer.pid) == event.process) {
                seen.push(event);
            } else {
                // Before another thread can find that there is nothing more to drain.
                lost += self.shared.directory.forward(&event, &self.wake);
            }
        });
        for session in self.sessions.values_mut() {
            session.look_ahead();
        }
        for event in seen.drain(..) {
            if !self.deliver(&event) {
                lost += self.shared.directory.forward(&event, &self.wake);
            }
        }
        self.seen = seen;
        probes.lost(lost);
    }

    /// `false`: none of this thread's sessions is meant.
    fn deliver(&mut self, seen: &Seen) -> bool {
        let now = clock::now();
        for (number, session) in &mut self.sessions {
            if Some(session.peer.pid) == seen.process && session.probe(now, seen.event) {
                self.due.insert(*number);
                if let Some(seconds) = seen.service_seconds() {
                    self.shared.histograms.fault_service.observe(seconds);
                }
                return true;
            }
        }
        false
    }

    /// Leaves what the session taught for the program's next run, beside this thread.
    fn keep(&mut self, session: &mut Session) {
        let Some((path, config, profile)) = session.learned() else {
            return;
        };
        self.writers.retain(|writer| !writer.is_finished());
        let write = move || match profiles::write(&path, &config, &profile) {
            Ok(()) => tracing::debug!(path = %path.display(), "profile kept"),
            Err(refused) => tracing::warn!(%refused, "profile not kept"),
        };
        let writer = std::thread::Builder::new().name("profile".to_owned());
        match writer.spawn(write) {
            Ok(writer) => self.writers.push(writer),
            Err(error) => tracing::warn!(%error, "profile not kept: no thread to write it"),
        }
    }

    fn end(&mut self, number: u64, why: &End) {
        let Some(mut session) = self.sessions.remove(&number) else {
            return;
        };
        self.due.remove(&number);
        let _ = self.epoll.delete(session.channel().events_fd());
        let _ = self.epoll.delete(session.socket.as_fd());
        session.channel().close();
        if matches!(why, End::Gone | End::Stopped) {
            self.keep(&mut session);
        }
        let view = session.view();
        self.shared.directory.leave(session.peer.pid, number);
        self.shared.metrics.close(&view);
        self.shared.ends.ended(&view);
        let pid = session.peer.pid;
        match why {
            End::Gone => tracing::info!(
                session = number,
                pid,
                records = view.records,
                "session ended"
            ),
            End::Stopped => {
                tracing::info!(session = number, pid, "session ended: the daemon stops")
            }
            End::Expelled(reason) => {
                self.shared.metrics.sessions_expelled.inc();
                if let Some(suppressed) = EXPELLED.admit() {
                    tracing::warn!(
                        session = number,
                        pid,
                        reason,
                        suppressed,
                        "session ended: the program broke a rule"
                    );
                }
            }
        }
        drop(session);
        self.share_out();
    }

    fn end_all(&mut self) {
        let numbers: Vec<u64> = self.sessions.keys().copied().collect();
        for number in numbers {
            self.end(number, &End::Stopped);
        }
        for writer in self.writers.drain(..) {
            // It has said itself what failed.
            let _ = writer.join();
        }
    }
}
