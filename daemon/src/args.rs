//! The command line of the daemon. What is given here overrides the configuration file.

use std::path::PathBuf;

use clap::Parser;

use crate::config::{AttachProcesses, Config, ConfigError, LogFormat, Policy};

/// Where the configuration lies if none is named and this exists.
pub const DEFAULT_CONFIG: &str = "/etc/oversub/oversubd.toml";

/// The oversub daemon: predicts what GPU programs will touch and steers their memory.
#[derive(Clone, Debug, Parser)]
#[command(name = "oversubd", version)]
pub struct Args {
    /// Configuration file [default: /etc/oversub/oversubd.toml, where it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where programs connect
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Where the command line asks [default: control.sock beside the socket]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Where metrics are served, or `none`
    #[arg(long, value_name = "ADDRESS|none")]
    pub http: Option<String>,
    /// Policy of programs that ask for none
    #[arg(long, value_enum)]
    pub policy: Option<Policy>,
    /// Serve the process that starts this one, and end with it
    #[arg(long)]
    pub private: bool,
    /// End after so many seconds without a session, once there has been one
    /// [default with --private: 10]
    #[arg(long, value_name = "SECONDS")]
    pub idle_exit: Option<u64>,
    /// Shape of log lines
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
    /// Begin every session with what this file holds, and leave what it taught there
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Whose processes may be attached to
    #[arg(long, value_enum, value_name = "WHOSE")]
    pub attach: Option<AttachProcesses>,
    /// Load no BPF probes
    #[arg(long)]
    pub no_probes: bool,
    /// Check the configuration and end
    #[arg(long)]
    pub check_config: bool,
    /// Print the configuration in force and end
    #[arg(long)]
    pub print_config: bool,
}

impl Args {
    /// The configuration in force, and the file it came from.
    ///
    /// # Errors
    /// A file or a flag is wrong.
    pub fn configuration(&self) -> Result<(Config, Option<PathBuf>), ConfigError> {
        let default = PathBuf::from(DEFAULT_CONFIG);
        let file = self
            .config
            .clone()
            .or_else(|| default.exists().then_some(default));
        let mut config = match &file {
            Some(file) => Config::from_file(file)?,
            None => Config::default(),
        };
        if let Some(path) = &self.socket {
            config.socket.path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        }
        if let Some(path) = &self.control {
            config.control.path = Some(std::path::absolute(path).unwrap_or_else(|_| path.clone()));
        }
        if let Some(address) = &self.http {
            config.http.listen.clone_from(address);
        }
        if let Some(policy) = self.policy {
            config.policy = policy;
        }
        if let Some(format) = self.log_format {
            config.log.format = format;
        }
        if let Some(path) = &self.profile {
            config.profiles.file = Some(std::path::absolute(path).unwrap_or_else(|_| path.clone()));
        }
        if let Some(processes) = self.attach {
            config.attach.processes = processes;
        }
        if self.no_probes {
            config.probes.mode = crate::config::ProbesMode::Off;
        }
        match config.violation() {
            None => Ok((config, file)),
            Some(violation) => Err(ConfigError::Value {
                place: "command line".to_owned(),
                violation,
            }),
        }
    }

    /// Seconds without a session after which to end.
    pub fn idle_exit(&self) -> Option<u64> {
        self.idle_exit.or(self.private.then_some(10))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn flags_override_and_are_checked() {
        let args = Args::parse_from([
            "oversubd",
            "--socket",
            "/tmp/a/b.sock",
            "--policy",
            "demand",
            "--http",
            "none",
        ]);
        let (config, _) = args.configuration().expect("good");
        assert_eq!(config.socket.path, PathBuf::from("/tmp/a/b.sock"));
        assert_eq!(config.control_path(), PathBuf::from("/tmp/a/control.sock"));
        assert_eq!(
            (config.policy, config.http_address()),
            (Policy::Demand, None)
        );
        let args = Args::parse_from(["oversubd", "--http", "everywhere"]);
        let message = args.configuration().expect_err("no address").to_string();
        assert!(
            message.starts_with("command line: http.listen: everywhere"),
            "{message}"
        );
    }
}
