//! The daemon as a whole: starts its parts in order, runs until told to stop, ends in order.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use nix::sys::socket::SockType;
use nix::unistd::getuid;
use oversub_engine::Micros;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};

use crate::attached::Attachments;
use crate::clock;
use crate::config::Config;
use crate::control::why::{SessionWhy, WhyQuestion};
use crate::control::{Doctor, EventsView, Status};
use crate::gpu::Gpus;
use crate::metrics::Metrics;
use crate::probes::Probes;
use crate::serve::sessions::{Door, Roster};
use crate::serve::{control, http};
use crate::socket::Listener;

/// What the answering parts share.
#[derive(Debug)]
pub struct State {
    /// Configuration in force.
    pub config: Arc<Config>,
    /// The file it came from.
    pub config_file: Option<PathBuf>,
    /// Engine threads.
    pub gpus: Arc<Gpus>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Who is in.
    pub roster: Arc<Roster>,
    /// Probes.
    pub probes: Arc<Probes>,
    /// Processes steered from outside.
    pub attached: Arc<Attachments>,
    /// When the daemon started.
    pub started: Micros,
}

/// What the command line adds to the configuration.
#[derive(Clone, Debug, Default)]
pub struct Manner {
    /// The file the configuration came from.
    pub config_file: Option<PathBuf>,
    /// End after so long without a session, once there has been one.
    pub idle_exit: Option<Duration>,
    /// End with the process that started this one.
    pub private: bool,
}

/// Runs until SIGTERM or SIGINT, or, where asked for, until idle.
///
/// # Errors
/// Something needed to begin with cannot be had.
pub async fn run(config: Config, manner: Manner) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot watch SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch SIGINT")?;
    if manner.private && !crate::privileges::end_with_parent(nix::unistd::getppid())? {
        return Ok(());
    }
    let config = Arc::new(config);
    let metrics = Arc::new(Metrics::new().context("cannot set up the metrics")?);
    let sessions = Listener::bind(&config.socket.path, SockType::SeqPacket, config.socket.mode)?;
    let control_path = config.control_path();
    let control_socket = Listener::bind(&control_path, SockType::Stream, config.control.mode)?;
    let web = match config.http_address() {
        None => None,
        Some(address) => Some(TcpListener::bind(address).await.with_context(|| {
            format!("cannot serve metrics on {address}: name another address with --http, or none")
        })?),
    };
    let probes = Arc::new(Probes::start(config.probes.clone()));
    if let Err(error) = crate::privileges::drop_capabilities() {
        tracing::warn!(%error, "cannot give up capabilities; going on with all of them");
    }
    let roster = Arc::new(Roster::default());
    let ends: Arc<dyn crate::gpu::SessionEnds> = Arc::<Roster>::clone(&roster);
    let gpus = Arc::new(Gpus::new(Arc::clone(&metrics), ends, Arc::clone(&probes)));
    let state = Arc::new(State {
        config: Arc::clone(&config),
        config_file: manner.config_file,
        gpus: Arc::clone(&gpus),
        metrics: Arc::clone(&metrics),
        roster: Arc::clone(&roster),
        probes: Arc::clone(&probes),
        attached: Arc::new(Attachments::new(Arc::clone(&config), Arc::clone(&probes))),
        started: clock::now(),
    });
    let control_copy = control_socket.as_fd().try_clone_to_owned()?;
    let control_listener = UnixListener::from_std(control_copy.into())?;
    tokio::spawn(control::run(control_listener, Arc::clone(&state)));
    let address = web.as_ref().and_then(|web| web.local_addr().ok());
    if let Some(web) = web {
        tokio::spawn(http::run(web, Arc::clone(&state)));
    }
    let door = Arc::new(Door {
        config: Arc::clone(&config),
        roster: Arc::clone(&roster),
        gpus: Arc::clone(&gpus),
        metrics,
        probes,
    });
    let sessions = Arc::new(sessions);
    let accepting = tokio::spawn(door.run(Arc::clone(&sessions)));
    tracing::info!(
        socket = %config.socket.path.display(), control = %control_path.display(),
        http = address.map(|address| address.to_string()), policy = config.policy.name(),
        version = env!("CARGO_PKG_VERSION"), "ready"
    );
    notify(&[sd_notify::NotifyState::Ready]);
    let result = tokio::select! {
        _ = terminate.recv() => Ok("SIGTERM"),
        _ = interrupt.recv() => Ok("SIGINT"),
        () = idle(&roster, manner.idle_exit) => Ok("idle"),
        ended = accepting => Err(anyhow::anyhow!("accepting sessions has ended: {ended:?}")),
        () = watchdog(&gpus) => Err(anyhow::anyhow!("the watchdog has ended")),
    };
    notify(&[sd_notify::NotifyState::Stopping]);
    if let Ok(reason) = &result {
        tracing::info!(reason, sessions = roster.count().0, "stopping");
    }
    // New programs shall find nobody before those that are in are told to go on alone.
    drop(control_socket);
    gpus.stop();
    drop(sessions);
    result.map(|_| ())
}

fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

/// Returns after `limit` without a session, once there has been one.
async fn idle(roster: &Roster, limit: Option<Duration>) {
    let Some(limit) = limit else {
        return std::future::pending().await;
    };
    loop {
        let changed = roster.changed.notified();
        let (standing, ever) = roster.count();
        if standing == 0 && ever > 0 {
            tokio::time::sleep(limit).await;
            if roster.count() == (0, ever) {
                return;
            }
            continue;
        }
        // Sessions that begin are not told of: look again now and then.
        let _ = tokio::time::timeout(Duration::from_secs(1), changed).await;
    }
}

/// Tells the service manager that all threads answer, as often as it asks for.
async fn watchdog(gpus: &Gpus) {
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return std::future::pending().await;
    };
    loop {
        if gpus.views().await.is_some() {
            notify(&[sd_notify::NotifyState::Watchdog]);
        }
        tokio::time::sleep(limit / 3).await;
    }
}

/// A user sees what is their own; root and the daemon's user see all.
fn may_see(uid: u32, owner: u32) -> bool {
    uid == 0 || uid == getuid().as_raw() || uid == owner
}

impl State {
    /// What `uid` may see of what runs.
    pub async fn status(&self, uid: u32) -> Option<Status> {
        let all = self.gpus.views().await?;
        let may = |owner: u32| may_see(uid, owner);
        let (sessions, hidden): (Vec<_>, Vec<_>) = all.into_iter().partition(|view| may(view.uid));
        let (source, reason) = self.probes.source();
        Some(Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: clock::now().0.saturating_sub(self.started.0) as f64 / 1e6,
            policy: self.config.policy.name().to_owned(),
            sessions_opened: self.metrics.sessions_opened.get(),
            sessions,
            closed_sessions: self
                .roster
                .closed()
                .into_iter()
                .filter(|view| may(view.uid))
                .collect(),
            sessions_hidden: hidden.len() as u64,
            attached: self.attached.views(may),
            events: Some(EventsView { source, reason }),
        })
    }

    /// Why the blocks that `uid` may see are where they are.
    pub async fn why(&self, uid: u32, question: WhyQuestion) -> Option<Vec<SessionWhy>> {
        let mut all = self.gpus.why(question).await?;
        all.retain(|of| {
            may_see(uid, of.uid) && question.session.is_none_or(|session| session == of.session)
        });
        Some(all)
    }

    /// What this host allows.
    pub fn doctor(&self) -> Doctor {
        let config = &self.config;
        let limits = [
            ("socket.max_sessions", u64::from(config.socket.max_sessions)),
            (
                "socket.max_sessions_per_user",
                u64::from(config.socket.max_sessions_per_user),
            ),
            ("session.event_slots", u64::from(config.session.event_slots)),
            (
                "session.command_slots",
                u64::from(config.session.command_slots),
            ),
            (
                "session.max_allocations",
                u64::from(config.session.max_allocations),
            ),
            (
                "session.max_functions",
                u64::from(config.session.max_functions),
            ),
            ("engine.inflight", config.engine.inflight.0),
            (
                "engine.history_launches",
                config.engine.history_launches as u64,
            ),
            ("engine.execution_ids", config.engine.execution_ids as u64),
            ("engine.blocks", config.engine.blocks as u64),
            ("engine.decisions", config.engine.decisions as u64),
        ];
        Doctor {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            config: self.config_file.clone(),
            socket: config.socket.path.clone(),
            http: config.http_address().map(|address| address.to_string()),
            uid: getuid().as_raw(),
            capabilities: crate::privileges::effective(),
            probes: self.probes.views(),
            probes_off: self.probes.off(),
            probe_drops: self.probes.drops(),
            driver: Some(self.probes.driver()),
            host: self.probes.host(),
            limits: limits.map(|(key, value)| (key.to_owned(), value)).to_vec(),
        }
    }

    /// The text of `/metrics`, with what is true now.
    ///
    /// # Errors
    /// An engine thread does not answer, or encoding failed.
    pub async fn metrics_text(&self) -> anyhow::Result<String> {
        let views = self
            .gpus
            .views()
            .await
            .context("an engine thread does not answer")?;
        self.metrics.publish(&views);
        for probe in self.probes.views() {
            self.metrics.set_probe(&probe.probe, probe.attached);
        }
        self.metrics.set_probe_drops(self.probes.drops());
        let mut text = self.metrics.text().context("cannot encode the metrics")?;
        let driver = self.probes.metrics_text();
        text.push_str(&driver.context("cannot encode the driver's metrics")?);
        Ok(text)
    }
}
