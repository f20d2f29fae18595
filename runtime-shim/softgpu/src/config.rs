//! The configuration of the soft GPU, read from the environment once, in `cuInit`.
//!
//! It owns the names of the variables, their forms and their defaults. What the values
//! mean is the business of `memory` (capacity, link, faults) and `sm` (compute).

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// The unit of residency: capacity is a multiple of it.
const BLOCK: u64 = 2 * MIB;

/// Who keeps the device's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// This library, by userfaultfd.
    #[default]
    Own,
    /// The nvidia-uvm of a test guest, with its software GPU (`/dev/softgpu`).
    Uvm,
}

/// What the environment says about the device.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Device memory, bytes; a multiple of 2 MiB.
    pub memory_bytes: u64,
    /// Rate of copies to the device, bytes per second.
    pub link_in_bytes_per_s: u64,
    /// Rate of copies from the device, bytes per second.
    pub link_out_bytes_per_s: u64,
    /// What the service of one batch of faults costs, beside the migration.
    pub fault: Duration,
    /// A kernel takes at least this many times its own CPU time.
    pub compute_scale: f64,
    /// Where the counters go at process exit.
    pub stats: Option<PathBuf>,
    /// Who keeps its memory.
    pub backend: Backend,
    /// Host memory that is set aside when the device is opened, for its frames and those of
    /// the host: for measurements. Otherwise each frame is made when it is first needed,
    /// which takes milliseconds where a virtual machine's free memory is its host's.
    pub warm_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            memory_bytes: 512 * MIB,
            link_in_bytes_per_s: 1_000_000_000,
            link_out_bytes_per_s: 1_000_000_000,
            fault: Duration::from_micros(45),
            compute_scale: 1.0,
            stats: None,
            backend: Backend::Own,
            warm_bytes: 0,
        }
    }
}

/// A variable whose value cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}=\"{value}\" {problem}; set it to {expected}")]
pub struct ConfigError {
    variable: &'static str,
    value: String,
    problem: &'static str,
    expected: &'static str,
}

const MEMORY: &str = "OVERSUB_SOFTGPU_MEMORY";
const LINK_IN: &str = "OVERSUB_SOFTGPU_LINK_IN";
const LINK_OUT: &str = "OVERSUB_SOFTGPU_LINK_OUT";
const FAULT_US: &str = "OVERSUB_SOFTGPU_FAULT_US";
const COMPUTE_SCALE: &str = "OVERSUB_SOFTGPU_COMPUTE_SCALE";
const STATS: &str = "OVERSUB_SOFTGPU_STATS";
const BACKEND: &str = "OVERSUB_SOFTGPU_BACKEND";
const WARM: &str = "OVERSUB_SOFTGPU_WARM";

impl Config {
    /// Reads the process environment.
    ///
    /// # Errors
    /// The first variable with an unusable value.
    pub fn from_environment() -> Result<Config, ConfigError> {
        Config::from_lookup(std::env::var_os)
    }

    /// Reads from any source of variables.
    ///
    /// # Errors
    /// The first variable with an unusable value.
    pub fn from_lookup(
        lookup: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<Config, ConfigError> {
        let text = |name: &'static str| {
            lookup(name)
                .filter(|v| !v.is_empty())
                .map(|v| v.to_string_lossy().into_owned())
        };
        let mut config = Config::default();
        if let Some(value) = text(MEMORY) {
            config.memory_bytes = size(MEMORY, &value, 4 * BLOCK)?;
        }
        if let Some(value) = text(LINK_IN) {
            config.link_in_bytes_per_s = rate(LINK_IN, &value)?;
        }
        if let Some(value) = text(LINK_OUT) {
            config.link_out_bytes_per_s = rate(LINK_OUT, &value)?;
        }
        if let Some(value) = text(FAULT_US) {
            let us = number(&value)
                .filter(|us| *us <= 1e6)
                .ok_or_else(|| ConfigError {
                    variable: FAULT_US,
                    value: value.clone(),
                    problem: "is not a number of microseconds from 0 to 1000000",
                    expected: "for example 45",
                })?;
            config.fault = Duration::from_secs_f64(us / 1e6);
        }
        if let Some(value) = text(COMPUTE_SCALE) {
            config.compute_scale =
                number(&value)
                    .filter(|s| *s <= 1000.0)
                    .ok_or_else(|| ConfigError {
                        variable: COMPUTE_SCALE,
                        value: value.clone(),
                        problem: "is not a number from 0 to 1000",
                        expected: "for example 1.0",
                    })?;
        }
        if let Some(value) = text(WARM) {
            config.warm_bytes = size(WARM, &value, 0)?;
        }
        config.backend = match text(BACKEND).as_deref() {
            None | Some("own") => Backend::Own,
            Some("uvm") => Backend::Uvm,
            Some(value) => {
                return Err(ConfigError {
                    variable: BACKEND,
                    value: value.to_owned(),
                    problem: "names no keeper of memory",
                    expected: "own, or uvm in a test guest",
                });
            }
        };
        config.stats = lookup(STATS).filter(|v| !v.is_empty()).map(PathBuf::from);
        Ok(config)
    }
}

/// A finite number that is not negative.
fn number(text: &str) -> Option<f64> {
    text.trim()
        .parse()
        .ok()
        .filter(|n: &f64| n.is_finite() && *n >= 0.0)
}

/// A number with one of the suffixes, in units of the suffix's factor.
fn scaled(text: &str, suffixes: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (digits, suffix) = text.split_at(split);
    let factor = suffixes
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(suffix.trim()))
        .map(|s| s.1)?;
    let value = number(digits)? * factor as f64;
    // 2^53 bytes are beyond any machine, and below it the product is exact enough.
    (value < (1u64 << 53) as f64).then_some(value as u64)
}

/// A size in whole blocks, of at least `least` bytes.
fn size(variable: &'static str, value: &str, least: u64) -> Result<u64, ConfigError> {
    let suffixes = [("", 1), ("B", 1), ("KiB", KIB), ("MiB", MIB), ("GiB", GIB)];
    let bytes = scaled(value, &suffixes).map(|bytes| bytes - bytes % BLOCK);
    bytes
        .filter(|bytes| *bytes >= least)
        .ok_or_else(|| ConfigError {
            variable,
            value: value.to_owned(),
            problem: if least > 0 {
                "is not a size of at least 8 MiB"
            } else {
                "is not a size"
            },
            expected: "bytes, or a number with KiB, MiB or GiB, for example 512MiB",
        })
}

fn rate(variable: &'static str, value: &str) -> Result<u64, ConfigError> {
    let suffixes = [
        ("", 1),
        ("B/s", 1),
        ("kB/s", 1_000),
        ("MB/s", 1_000_000),
        ("GB/s", 1_000_000_000),
        ("KiB/s", KIB),
        ("MiB/s", MIB),
        ("GiB/s", GIB),
    ];
    scaled(value, &suffixes)
        .filter(|rate| *rate >= 1_000_000)
        .ok_or_else(|| ConfigError {
            variable,
            value: value.to_owned(),
            problem: "is not a rate of at least 1 MB/s",
            expected: "bytes per second, or a number with MB/s or GB/s, for example 1GB/s",
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &str) -> Result<Config, ConfigError> {
        let value = value.to_owned();
        Config::from_lookup(move |n| (n == name).then(|| value.clone().into()))
    }

    #[test]
    fn an_empty_environment_gives_the_documented_defaults() {
        let config = Config::from_lookup(|_| None).expect("defaults");
        assert_eq!(config.memory_bytes, 512 << 20);
        assert_eq!(config.link_in_bytes_per_s, 1_000_000_000);
        assert_eq!(config.fault, Duration::from_micros(45));
    }

    #[test]
    fn sizes_take_binary_suffixes_and_are_whole_blocks() {
        assert_eq!(with(MEMORY, "1GiB").expect("size").memory_bytes, 1 << 30);
        assert_eq!(with(MEMORY, "1.5 GiB").expect("size").memory_bytes, 3 << 29);
        assert_eq!(
            with(MEMORY, "16777217").expect("size").memory_bytes,
            16 << 20
        );
    }

    #[test]
    fn nothing_or_much_may_be_set_aside() {
        assert_eq!(with(WARM, "0").expect("size").warm_bytes, 0);
        assert_eq!(with(WARM, "3MiB").expect("size").warm_bytes, 2 << 20);
    }

    #[test]
    fn rates_take_decimal_and_binary_suffixes() {
        assert_eq!(
            with(LINK_IN, "12.5GB/s").expect("rate").link_in_bytes_per_s,
            12_500_000_000
        );
        assert_eq!(
            with(LINK_OUT, "800MB/s")
                .expect("rate")
                .link_out_bytes_per_s,
            800_000_000
        );
        assert_eq!(
            with(LINK_OUT, "1GiB/s").expect("rate").link_out_bytes_per_s,
            1 << 30
        );
    }

    #[test]
    fn a_bad_value_names_the_variable_the_value_and_what_to_set() {
        for (name, value) in [
            (MEMORY, "512 megs"),
            (MEMORY, "1MiB"),
            (MEMORY, "-4GiB"),
            (WARM, "some"),
            (LINK_IN, "fast"),
            (LINK_OUT, "0"),
            (FAULT_US, "NaN"),
            (FAULT_US, "-1"),
            (COMPUTE_SCALE, "inf"),
        ] {
            let message = with(name, value).expect_err("refused").to_string();
            assert!(
                message.contains(name) && message.contains(value),
                "{message}"
            );
            assert!(message.contains("for example"), "{message}");
        }
    }
}
