//! The rules that values must keep. Pure: from a configuration to what is wrong with it.

use std::net::SocketAddr;

use super::Config;

/// A value that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The key, with its table: `session.event_slots`.
    pub key: &'static str,
    /// The value found.
    pub found: String,
    /// What is allowed.
    pub allowed: &'static str,
}

/// Longest path that fits into `sockaddr_un`, without the terminating zero.
const MAX_SOCKET_PATH: usize = 107;

impl Config {
    /// The first rule that is broken, if any.
    pub fn violation(&self) -> Option<Violation> {
        self.socket_violation()
            .or_else(|| self.session_violation())
            .or_else(|| self.engine_violation())
            .or_else(|| self.profiles_violation())
            .or_else(|| self.attach_violation())
    }

    /// The address of the HTTP listener; none where it is off.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.listen.parse().ok()
    }

    fn socket_violation(&self) -> Option<Violation> {
        let socket = &self.socket;
        let path = |key, path: &std::path::Path| {
            let length = path.as_os_str().len();
            let good = path.is_absolute() && length <= MAX_SOCKET_PATH;
            rule(
                key,
                path.display(),
                good,
                "an absolute path of at most 107 bytes",
            )
        };
        path("socket.path", &socket.path)
            .or_else(|| path("control.path", self.control.path.as_deref()?))
            .or_else(|| {
                let same = self.control_path() == socket.path;
                rule("control.path", self.control_path().display(), !same, "a path other than `socket.path`")
            })
            .or_else(|| mode("socket.mode", socket.mode))
            .or_else(|| mode("control.mode", self.control.mode))
            .or_else(|| between("socket.max_sessions", socket.max_sessions.into(), 1, 1024, "1 to 1024"))
            .or_else(|| {
                between("socket.max_sessions_per_user", socket.max_sessions_per_user.into(), 1, 1024, "1 to 1024")
            })
            .or_else(|| {
                between("socket.handshake_timeout_ms", socket.handshake_timeout_ms, 10, 60_000, "10 to 60000")
            })
            .or_else(|| {
                let good = self.http.listen == "none" || self.http_address().is_some();
                rule(
                    "http.listen",
                    &self.http.listen,
                    good,
                    "an address with a port such as \"127.0.0.1:9464\" or \"[::1]:9464\", or \"none\"",
                )
            })
    }

    fn session_violation(&self) -> Option<Violation> {
        let session = &self.session;
        slots("session.event_slots", session.event_slots)
            .or_else(|| slots("session.command_slots", session.command_slots))
            .or_else(|| {
                between(
                    "session.records_per_turn",
                    session.records_per_turn.into(),
                    16,
                    1 << 16,
                    "16 to 65536",
                )
            })
            .or_else(|| {
                between(
                    "session.max_allocations",
                    session.max_allocations.into(),
                    16,
                    1 << 24,
                    "16 to 16777216",
                )
            })
            .or_else(|| {
                between(
                    "session.max_functions",
                    session.max_functions.into(),
                    16,
                    1 << 24,
                    "16 to 16777216",
                )
            })
            .or_else(|| {
                let interval = session.progress_interval_us;
                between(
                    "session.progress_interval_us",
                    interval,
                    50,
                    100_000,
                    "50 to 100000",
                )
            })
    }

    fn profiles_violation(&self) -> Option<Violation> {
        let profiles = &self.profiles;
        let most = oversub_engine::PROFILE_BYTES as u64;
        between(
            "profiles.max_bytes",
            profiles.max_bytes.0,
            64 << 10,
            most,
            "64KiB to 64MiB",
        )
        .or_else(|| {
            let files = profiles.max_files.into();
            between("profiles.max_files", files, 1, 1 << 16, "1 to 65536")
        })
        .or_else(|| {
            let directory = profiles.directory.as_deref()?;
            rule(
                "profiles.directory",
                directory.display(),
                directory.is_absolute(),
                "an absolute path",
            )
        })
    }

    fn attach_violation(&self) -> Option<Violation> {
        let attach = &self.attach;
        between(
            "attach.max_processes",
            attach.max_processes.into(),
            1,
            256,
            "1 to 256",
        )
        .or_else(|| {
            let ahead = attach.ahead.0;
            between("attach.ahead", ahead, 4 << 20, 8 << 30, "4MiB to 8GiB")
        })
    }

    fn engine_violation(&self) -> Option<Violation> {
        let engine = &self.engine;
        let deepum = &self.deepum;
        let table = |key, value: usize| between(key, value as u64, 1, 1 << 24, "1 to 16777216");
        between(
            "engine.inflight",
            engine.inflight.0,
            2 << 20,
            1 << 40,
            "2MiB to 1TiB",
        )
        .or_else(|| {
            between(
                "engine.device_reserve",
                engine.device_reserve.0,
                0,
                1 << 40,
                "0 to 1TiB",
            )
        })
        .or_else(|| {
            let rate = engine.link_bytes_per_us;
            let good = rate.is_finite() && (1.0..=1e7).contains(&rate);
            rule(
                "engine.link_bytes_per_us",
                rate,
                good,
                "1.0 to 10000000.0 (bytes per microsecond)",
            )
        })
        .or_else(|| table("engine.history_launches", engine.history_launches))
        .or_else(|| table("engine.execution_ids", engine.execution_ids))
        .or_else(|| table("engine.blocks", engine.blocks))
        .or_else(|| {
            between(
                "engine.decisions",
                engine.decisions as u64,
                0,
                1 << 24,
                "0 to 16777216",
            )
        })
        .or_else(|| table("deepum.rows", deepum.rows))
        .or_else(|| between("deepum.ways", deepum.ways as u64, 1, 64, "1 to 64"))
        .or_else(|| {
            between(
                "deepum.successors",
                deepum.successors as u64,
                1,
                64,
                "1 to 64",
            )
        })
        .or_else(|| {
            between(
                "deepum.lookahead",
                deepum.lookahead as u64,
                1,
                4096,
                "1 to 4096",
            )
        })
    }
}

fn rule(
    key: &'static str,
    found: impl ToString,
    good: bool,
    allowed: &'static str,
) -> Option<Violation> {
    (!good).then(|| Violation {
        key,
        found: found.to_string(),
        allowed,
    })
}

fn between(
    key: &'static str,
    found: u64,
    least: u64,
    most: u64,
    allowed: &'static str,
) -> Option<Violation> {
    rule(key, found, (least..=most).contains(&found), allowed)
}

fn mode(key: &'static str, found: u32) -> Option<Violation> {
    rule(
        key,
        format!("{found:#o}"),
        found <= 0o777 && found & 0o600 == 0o600,
        "permission bits such as 0o660, at least 0o600",
    )
}

fn slots(key: &'static str, found: u32) -> Option<Violation> {
    let good = found.is_power_of_two() && (128..=1 << 20).contains(&found);
    rule(key, found, good, "a power of two, 128 to 1048576")
}
