//! The configuration file: what may be set, what it is when it is not set.
//!
//! Owns the shape and the defaults. Reading and naming errors is [`load`]'s, the rules
//! that values must keep are [`check`]'s. `deploy/oversubd.toml` documents every key.

mod check;
mod load;
mod size;

use std::path::PathBuf;

use oversub_engine as engine;
use serde::{Deserialize, Serialize};

pub use check::Violation;
pub use load::ConfigError;
pub use size::Size;

/// Everything that can be configured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Policy of sessions that ask for none.
    pub policy: Policy,
    /// Where programs connect.
    pub socket: SocketConfig,
    /// Where the command line asks.
    pub control: ControlConfig,
    /// Metrics.
    pub http: HttpConfig,
    /// What one session may use.
    pub session: SessionConfig,
    /// What each engine is made with.
    pub engine: EngineConfig,
    /// The `deepum` policy.
    pub deepum: DeepumConfig,
    /// What programs taught, for their next run.
    pub profiles: ProfilesConfig,
    /// BPF probes.
    pub probes: ProbesConfig,
    /// Programs steered from outside.
    pub attach: AttachConfig,
    /// Logs.
    pub log: LogConfig,
}

/// Which policy decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// oversub's own.
    #[default]
    Foresight,
    /// DeepUM (ASPLOS 2023), for comparison.
    Deepum,
    /// No prefetch; keeps a budget by least recently migrated out.
    Demand,
    /// The driver alone.
    Driver,
}

impl Policy {
    /// The name in configuration, handshake and status.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Foresight => "foresight",
            Policy::Deepum => "deepum",
            Policy::Demand => "demand",
            Policy::Driver => "driver",
        }
    }

    /// The policy of that name.
    pub fn from_name(name: &str) -> Option<Policy> {
        [
            Policy::Foresight,
            Policy::Deepum,
            Policy::Demand,
            Policy::Driver,
        ]
        .into_iter()
        .find(|policy| policy.name() == name)
    }
}

impl From<Policy> for engine::PolicyKind {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Foresight => engine::PolicyKind::Foresight,
            Policy::Deepum => engine::PolicyKind::Deepum,
            Policy::Demand => engine::PolicyKind::Demand,
            Policy::Driver => engine::PolicyKind::Driver,
        }
    }
}

/// The session socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)] // described in deploy/oversubd.toml, key by key
pub struct SocketConfig {
    pub path: PathBuf,
    /// Permission bits.
    pub mode: u32,
    pub max_sessions: u32,
    pub max_sessions_per_user: u32,
    pub handshake_timeout_ms: u64,
}

impl Default for SocketConfig {
    fn default() -> Self {
        Self {
            path: PathBuf::from("/run/oversub/oversubd.sock"),
            mode: 0o666,
            max_sessions: 64,
            max_sessions_per_user: 32,
            handshake_timeout_ms: 2_000,
        }
    }
}

/// The control socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)] // as above
pub struct ControlConfig {
    /// None: `control.sock` beside the session socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    pub mode: u32,
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self {
            path: None,
            mode: 0o666,
        }
    }
}

/// The HTTP listener.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)] // as above
pub struct HttpConfig {
    /// An address and port, or `none`.
    pub listen: String,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:9464".to_owned(),
        }
    }
}

/// Limits of one session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)] // as above
pub struct SessionConfig {
    pub event_slots: u32,
    pub command_slots: u32,
    pub records_per_turn: u32,
    pub max_allocations: u32,
    pub max_functions: u32,
    pub progress_interval_us: u64,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            event_slots: 1 << 15,
            command_slots: 1 << 11,
            records_per_turn: 1024,
            max_allocations: 1 << 18,
            max_functions: 1 << 16,
            progress_interval_us: 400,
        }
    }
}

/// What engines are made with, besides what a session tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)] // as above
pub struct EngineConfig {
    pub device_reserve: Size,
    pub link_bytes_per_us: f64,
    pub inflight: Size,
    pub use_on_host: bool,
    pub hold_launches: bool,
    pub history_launches: usize,
    pub execution_ids: usize,
    pub blocks: usize,
    pub decisions: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let engine = engine::Config::new(
            engine::PolicyKind::Foresight,
            engine::Bytes(u64::from(u32::MAX)),
        );
        Self {
            device_reserve: Size(16 << 20),
            link_bytes_per_us: engine.link_bytes_per_us,
            inflight: Size(engine.inflight_bytes.0),
            use_on_host: true,
            hold_launches: true,
            history_launches: engine.history_launches,
            execution_ids: engine.execution_ids,
            blocks: engine.blocks,
            decisions: engine.decisions,
        }
    }
}

/// Where profiles are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)] // as above
pub struct ProfilesConfig {
    /// None: nothing is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    pub max_bytes: Size,
    pub max_files: u32,
    /// The one file of a daemon for one program, from the command line.
    #[serde(skip)]
    pub file: Option<PathBuf>,
}

impl Default for ProfilesConfig {
    fn default() -> Self {
        Self {
            directory: None,
            max_bytes: Size(16 << 20),
            max_files: 256,
            file: None,
        }
    }
}

/// Table geometry and look-ahead of `deepum`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)] // as above
pub struct DeepumConfig {
    pub rows: usize,
    pub ways: usize,
    pub successors: usize,
    pub lookahead: usize,
    pub literal: bool,
}

impl Default for DeepumConfig {
    fn default() -> Self {
        let engine::DeepumConfig {
            rows,
            ways,
            successors,
            lookahead,
            literal,
        } = engine::DeepumConfig::default();
        Self {
            rows,
            ways,
            successors,
            lookahead,
            literal,
        }
    }
}

impl From<&DeepumConfig> for engine::DeepumConfig {
    fn from(config: &DeepumConfig) -> Self {
        Self {
            rows: config.rows,
            ways: config.ways,
            successors: config.successors,
            lookahead: config.lookahead,
            literal: config.literal,
        }
    }
}

/// Whether BPF is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)] // as above
pub struct ProbesConfig {
    pub mode: ProbesMode,
    pub pin_driver: bool,
}

impl Default for ProbesConfig {
    fn default() -> Self {
        Self {
            mode: ProbesMode::Auto,
            pin_driver: false,
        }
    }
}

/// Whether BPF is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbesMode {
    /// What the host allows: probes, or else the driver's event queue.
    Auto,
    /// Probes or nothing.
    Bpf,
    /// Probes on soft GPUs, the driver's event queue for everything else.
    Queue,
    /// None.
    Off,
}

/// Which programs may be steered from outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)] // as above
pub struct AttachConfig {
    pub processes: AttachProcesses,
    pub max_processes: u32,
    pub ahead: Size,
}

impl Default for AttachConfig {
    fn default() -> Self {
        Self {
            processes: AttachProcesses::Own,
            max_processes: 16,
            ahead: Size(64 << 20),
        }
    }
}

/// Whose processes may be steered from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum AttachProcesses {
    /// Those of the user who asks.
    Own,
    /// Any, where root asks.
    All,
    /// None.
    Off,
}

/// Logs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)] // as above
pub struct LogConfig {
    pub format: LogFormat,
    pub level: LogLevel,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            format: LogFormat::Text,
            level: LogLevel::Info,
        }
    }
}

/// Shape of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// For collectors: one JSON object a line.
    Json,
}

/// Least severity that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // the field's words
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Config {
    /// The control socket's path.
    pub fn control_path(&self) -> PathBuf {
        self.control
            .path
            .clone()
            .unwrap_or_else(|| self.socket.path.with_file_name("control.sock"))
    }

    /// The engine's configuration for a session with `capacity` bytes for managed memory.
    pub fn engine_config(
        &self,
        policy: Policy,
        capacity: u64,
        enforce: bool,
        discard: bool,
    ) -> engine::Config {
        let mut config = engine::Config::new(policy.into(), engine::Bytes(capacity));
        config.enforce = enforce;
        // The shim advises so, for the policies that fetch.
        config.remote = enforce && matches!(policy, Policy::Foresight | Policy::Deepum);
        config.use_on_host = self.engine.use_on_host && !enforce;
        config.discard = discard;
        config.hold_launches = self.engine.hold_launches;
        config.link_bytes_per_us = self.engine.link_bytes_per_us;
        config.inflight_bytes = engine::Bytes(self.engine.inflight.0);
        config.history_launches = self.engine.history_launches;
        config.execution_ids = self.engine.execution_ids;
        config.blocks = self.engine.blocks;
        config.decisions = self.engine.decisions;
        config.deepum = (&self.deepum).into();
        config
    }
}
