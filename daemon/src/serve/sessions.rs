//! Accepting programs: who they are, whether there is room, the handshake.
//!
//! Each connection is a task with a deadline, so a silent client holds nobody. Once
//! accepted, a session belongs to the thread of its GPU.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::socket::{MsgFlags, recv};
use oversub_engine::{Config as EngineConfig, Engine, Profile};
use oversub_protocol::handshake::{Hello, Status, Welcome};
use tokio::sync::{Notify, Semaphore};
use zerocopy::IntoBytes;

use crate::barrier;
use crate::channel::Channel;
use crate::config::{Config, Policy};
use crate::control::{CLOSED_SESSIONS, SessionView};
use crate::gpu::{Gpus, SessionEnds, available_bytes};
use crate::limiter::Limiter;
use crate::metrics::Metrics;
use crate::profiles;
use crate::session::{Peer, Session};
use crate::socket::{Listener, credentials, send_with_fds, watch};

/// Connections that may be in the handshake at one time.
const HANDSHAKES: usize = 64;
/// Longer than any handshake message of any version.
const MESSAGE_BYTES: usize = 4096;

static REFUSED: Limiter = Limiter::new(5);

/// Which sessions stand: who may still come.
#[derive(Debug, Default)]
pub struct Roster {
    state: Mutex<RosterState>,
    /// Told when a session ends.
    pub changed: Notify,
}

#[derive(Debug, Default)]
struct RosterState {
    last: u64,
    users: BTreeMap<u32, u32>,
    closed: VecDeque<SessionView>,
}

impl Roster {
    /// A number for a new session of this user; none where there is no room.
    fn enter(&self, uid: u32, config: &Config) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let all: u32 = state.users.values().sum();
        let own = state.users.get(&uid).copied().unwrap_or(0);
        if all >= config.socket.max_sessions || own >= config.socket.max_sessions_per_user {
            return None;
        }
        *state.users.entry(uid).or_default() += 1;
        state.last += 1;
        Some(state.last)
    }

    fn leave(&self, uid: u32) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = state.users.get_mut(&uid) {
            *count -= 1;
            if *count == 0 {
                state.users.remove(&uid);
            }
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Sessions that have ended, latest last.
    pub fn closed(&self) -> Vec<SessionView> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed.iter().cloned().collect()
    }

    /// Sessions that stand, and how many there have been.
    pub fn count(&self) -> (u32, u64) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.users.values().sum(), state.last)
    }
}

impl SessionEnds for Roster {
    fn ended(&self, view: &SessionView) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed.len() == CLOSED_SESSIONS {
            state.closed.pop_front();
        }
        state.closed.push_back(view.clone());
        drop(state);
        self.leave(view.uid);
    }
}

/// What a connection needs.
#[derive(Debug)]
pub struct Door {
    /// Configuration in force.
    pub config: Arc<Config>,
    /// Who is in.
    pub roster: Arc<Roster>,
    /// Where sessions go.
    pub gpus: Arc<Gpus>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The probes, to be attached to a session's soft GPU.
    pub probes: Arc<crate::probes::Probes>,
}

impl Door {
    /// Accepts connections for ever.
    ///
    /// # Errors
    /// The listener is broken.
    pub async fn run(self: Arc<Self>, listener: Arc<Listener>) -> io::Result<()> {
        let readable = watch(listener)?;
        let places = Arc::new(Semaphore::new(HANDSHAKES));
        loop {
            let mut guard = readable.readable().await?;
            let connection = match guard.try_io(|listener| listener.get_ref().accept()) {
                Ok(Ok(connection)) => connection,
                Ok(Err(error)) => {
                    // Out of descriptors, mostly: let some end.
                    if let Some(suppressed) = REFUSED.admit() {
                        tracing::warn!(%error, suppressed, "cannot accept a connection");
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
                Err(_would_block) => continue,
            };
            // Without a place the connection is closed at once: the program runs on alone.
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                self.metrics
                    .sessions_refused
                    .with_label_values(&["busy"])
                    .inc();
                continue;
            };
            let door = Arc::clone(&self);
            tokio::spawn(async move {
                door.handshake(connection).await;
                drop(place);
            });
        }
    }

    async fn handshake(&self, connection: OwnedFd) {
        let deadline = Duration::from_millis(self.config.socket.handshake_timeout_ms);
        let message = tokio::time::timeout(deadline, read_message(&connection)).await;
        let refused = match message {
            Err(_elapsed) => Some(("timeout", None)),
            Ok(Err(_) | Ok(None)) => Some(("gone", None)),
            Ok(Ok(Some(message))) => match self.admit(&connection, &message) {
                Ok(admitted) => return self.begin(connection, admitted),
                Err((reason, status)) => Some((reason, Some(status))),
            },
        };
        if let Some((reason, status)) = refused {
            self.refuse(&connection, reason, status);
        }
    }

    fn refuse(&self, connection: &OwnedFd, reason: &'static str, status: Option<Status>) {
        self.metrics
            .sessions_refused
            .with_label_values(&[reason])
            .inc();
        if let Some(status) = status {
            let welcome = Welcome::new(status, 0, 0, 0);
            // The other end may have gone.
            let _ = send_with_fds(connection.as_fd(), welcome.as_bytes(), &[]);
        }
        if let Some(suppressed) = REFUSED.admit() {
            let pid = credentials(connection).map(|peer| peer.pid()).unwrap_or(0);
            tracing::warn!(pid, reason, suppressed, "connection turned away");
        }
    }

    /// Judges a first message.
    fn admit(
        &self,
        connection: &OwnedFd,
        message: &[u8],
    ) -> Result<Admitted, (&'static str, Status)> {
        let hello = Hello::from_message(message).map_err(|error| match error.status() {
            Status::VERSION_MISMATCH => ("version", Status::VERSION_MISMATCH),
            status => ("malformed", status),
        })?;
        let policy = match hello.policy() {
            "" => self.config.policy,
            name => Policy::from_name(name).ok_or(("policy", Status::UNKNOWN_POLICY))?,
        };
        let available = available_bytes(&hello, self.config.engine.device_reserve.0);
        let capacity = match hello.budget_bytes {
            0 => available,
            budget => budget.min(available),
        };
        let discard = hello.flags & Hello::HAS_DISCARD != 0;
        let config = self
            .config
            .engine_config(policy, capacity, hello.budget_bytes != 0, discard);
        let peer = credentials(connection).map_err(|_| ("gone", Status::MALFORMED))?;
        let (pid, uid) = (peer.pid().unsigned_abs(), peer.uid());
        let keeps = policy == Policy::Foresight;
        let profile = keeps.then(|| profiles::path_of(&self.config.profiles, uid, pid));
        let profile = profile.flatten();
        let learned = profile
            .as_deref()
            .and_then(|path| self.learned(path, &config));
        let engine = match &learned {
            Some(learned) => Engine::with_profile(config, learned),
            None => Engine::new(config),
        };
        let engine = engine.map_err(|_| ("capacity", Status::MALFORMED))?;
        let number = self
            .roster
            .enter(uid, &self.config)
            .ok_or(("full", Status::FULL))?;
        let peer = Peer {
            session: number,
            pid,
            uid,
            command: command_of(pid),
            gpu: self.gpus.label(&hello),
            device: clean(hello.device_name()),
            soft: hello.flags & Hello::SOFT_DEVICE != 0,
            budget_bytes: hello.budget_bytes,
            available_bytes: available,
            has_progress: hello.flags & Hello::HAS_PROGRESS != 0,
            policy,
        };
        Ok(Admitted {
            peer,
            engine,
            profile,
            driver_path: hello.driver_path().to_vec(),
            barrier: hello.flags & Hello::HAS_BARRIER != 0 && barrier::is_available(),
        })
    }

    /// What an earlier run taught. Where that cannot be used the session begins cold.
    fn learned(&self, path: &Path, engine: &EngineConfig) -> Option<Profile> {
        match profiles::read(path, &self.config.profiles, engine) {
            Ok(profile) => profile,
            Err(refused) => {
                if let Some(suppressed) = REFUSED.admit() {
                    tracing::warn!(%refused, suppressed, "profile not used: the session begins cold");
                }
                None
            }
        }
    }

    fn begin(&self, connection: OwnedFd, admitted: Admitted) {
        let Admitted {
            peer,
            engine,
            profile,
            driver_path,
            barrier,
        } = admitted;
        let (number, pid, uid, soft) = (peer.session, peer.pid, peer.uid, peer.soft);
        let (events, commands) = (
            self.config.session.event_slots,
            self.config.session.command_slots,
        );
        let begun = Channel::create(events, commands, barrier).and_then(|(channel, fds)| {
            let welcome = Welcome::new(Status::ACCEPTED, number, events, commands);
            send_with_fds(connection.as_fd(), welcome.as_bytes(), &fds)?;
            tracing::info!(
                session = number,
                pid,
                uid,
                command = peer.command,
                gpu = peer.gpu,
                device = peer.device,
                policy = peer.policy.name(),
                capacity = peer.available_bytes,
                budget = peer.budget_bytes,
                "session begins"
            );
            let mut session = Session::new(peer, connection, channel, engine, &self.config);
            session.profile = profile.map(|path| (path, self.config.profiles.clone()));
            self.gpus.serve(session)
        });
        match begun {
            Ok(()) => {
                self.metrics.sessions_opened.inc();
                if soft {
                    self.probes.attach_softgpu(pid, driver_path);
                } else {
                    self.probes.observe_process(pid);
                }
            }
            Err(error) => {
                self.roster.leave(uid);
                if let Some(suppressed) = REFUSED.admit() {
                    tracing::warn!(session = number, pid, %error, suppressed, "session could not begin");
                }
            }
        }
    }
}

/// A client that may come in.
struct Admitted {
    peer: Peer,
    engine: Engine,
    profile: Option<PathBuf>,
    driver_path: Vec<u8>,
    /// It leaves its fence to the daemon's barrier.
    barrier: bool,
}

/// The first message; none where the client has gone. One byte more than the longest is
/// read, so that a longer message shows.
async fn read_message(connection: &OwnedFd) -> io::Result<Option<Vec<u8>>> {
    let readable = watch(connection.as_fd())?;
    let mut buffer = vec![0u8; MESSAGE_BYTES];
    loop {
        let mut guard = readable.readable().await?;
        let read = guard.try_io(|connection| {
            Ok(recv(
                connection.get_ref().as_raw_fd(),
                &mut buffer,
                MsgFlags::MSG_DONTWAIT,
            )?)
        });
        if let Ok(read) = read {
            let length = read?;
            buffer.truncate(length);
            return Ok((length > 0).then_some(buffer));
        }
    }
}

/// The name of a process; it may choose any, so only what can be shown.
pub(crate) fn command_of(pid: u32) -> String {
    clean(&std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default())
}

fn clean(text: &str) -> String {
    text.trim()
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .take(64)
        .collect()
}
