//! Log lines on standard error: text for people, JSON for collectors.

use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat, LogLevel};

/// Starts logging. `OVERSUBD_LOG` (a `tracing` filter) overrides the configured level.
///
/// # Errors
/// Logging runs already.
pub fn start(config: &LogConfig) -> anyhow::Result<()> {
    let level = match config.level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    let filter = EnvFilter::try_from_env("OVERSUBD_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false);
    let started = match config.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))
}
