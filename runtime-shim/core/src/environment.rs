//! What the environment asks for. Parsing only; reading it is the caller's business.
//!
//! A value that makes no sense is taken as not set: the program must run.

use crate::capacity::Limit;

/// Where the daemon listens unless told otherwise.
pub const DEFAULT_SOCKET: &[u8] = b"/run/oversub/oversubd.sock";
/// Longest path that is kept, bytes; a Unix socket's may have 107.
pub const PATH_BYTES: usize = 256;

/// A text of bounded length.
#[derive(Clone, Copy, Debug)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    /// Nothing.
    pub const EMPTY: Self = Self {
        bytes: [0; N],
        len: 0,
    };

    /// A copy of `text`; `None`: too long for this and a zero behind it.
    pub fn new(text: &[u8]) -> Option<Self> {
        let mut copy = Self::EMPTY;
        if text.len() >= N {
            return None;
        }
        for (target, byte) in copy.bytes.iter_mut().zip(text) {
            *target = *byte;
        }
        copy.len = text.len();
        Some(copy)
    }

    /// The text.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// The text with at least one zero behind it.
    pub fn with_zero(&self) -> &[u8; N] {
        &self.bytes
    }
}

/// Everything that the environment can set.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// `OVERSUB_DISABLE`: do nothing at all.
    pub disabled: bool,
    /// `OVERSUB_POLICY` is `driver`: managed memory, and no more.
    pub driver_only: bool,
    /// `OVERSUB_POLICY` for the daemon; empty: its default.
    pub policy: Text<32>,
    /// `OVERSUB_SOCKET`.
    pub socket: Text<PATH_BYTES>,
    /// `OVERSUB_MEMORY_BUDGET`, bytes; 0: none.
    pub budget: u64,
    /// `OVERSUB_RATIO_LIMIT`.
    pub limit: Limit,
    /// `OVERSUB_LOG`; empty: no log.
    pub log: Text<PATH_BYTES>,
}

impl Settings {
    /// What holds where nothing is set.
    pub const DEFAULT: Settings = Settings {
        disabled: false,
        driver_only: false,
        policy: Text::EMPTY,
        socket: Text::EMPTY,
        budget: 0,
        limit: Limit::HostMemory,
        log: Text::EMPTY,
    };

    /// Reads all variables through `get`.
    pub fn from<'a>(get: impl Fn(&core::ffi::CStr) -> Option<&'a [u8]>) -> Settings {
        let policy = get(c"OVERSUB_POLICY")
            .and_then(Text::new)
            .unwrap_or(Text::EMPTY);
        let disabled = get(c"OVERSUB_DISABLE").is_some_and(|text| !matches!(text, b"" | b"0"));
        let socket = get(c"OVERSUB_SOCKET").filter(|text| !text.is_empty());
        let ratio = get(c"OVERSUB_RATIO_LIMIT").and_then(parse_ratio);
        Settings {
            disabled,
            driver_only: policy.as_bytes() == b"driver",
            policy,
            socket: Text::new(socket.unwrap_or(DEFAULT_SOCKET)).unwrap_or(Text::EMPTY),
            budget: get(c"OVERSUB_MEMORY_BUDGET")
                .and_then(parse_bytes)
                .unwrap_or(0),
            limit: ratio.map_or(Limit::HostMemory, Limit::Ratio),
            log: get(c"OVERSUB_LOG")
                .and_then(Text::new)
                .unwrap_or(Text::EMPTY),
        }
    }
}

impl Settings {
    /// The budget is kept by leaving memory on the host unless it is prefetched, for a
    /// policy that prefetches. `demand` is for the driver's own behaviour within a budget.
    pub fn keeps_on_host(&self) -> bool {
        let policy = self.policy.as_bytes();
        self.budget > 0 && matches!(policy, b"" | b"foresight" | b"deepum")
    }
}

/// A byte count: digits, and perhaps `KiB`, `MiB`, `GiB` or `TiB`.
fn parse_bytes(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let shift = match unit {
        b"" => 0,
        b"KiB" => 10,
        b"MiB" => 20,
        b"GiB" => 30,
        b"TiB" => 40,
        _ => return None,
    };
    decimal(number)?.checked_mul(1 << shift)
}

/// A ratio of 1 or more, such as `1.5`, with at most nine decimals looked at.
fn parse_ratio(text: &[u8]) -> Option<f64> {
    let mut parts = text.splitn(2, |byte| *byte == b'.');
    let whole = decimal(parts.next()?)?;
    let fraction = parts.next().unwrap_or(b"0");
    let fraction = fraction.get(..9).unwrap_or(fraction);
    let mut scale = 1.0;
    for _ in fraction {
        scale *= 10.0;
    }
    let ratio = whole as f64 + decimal(fraction)? as f64 / scale;
    (1.0..=1e6).contains(&ratio).then_some(ratio)
}

fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &'static str)]) -> Settings {
        Settings::from(|name| {
            let found = pairs
                .iter()
                .find(|(key, _)| key.as_bytes() == name.to_bytes());
            found.map(|(_, value)| value.as_bytes())
        })
    }

    #[test]
    fn nothing_set_means_the_defaults() {
        let settings = settings(&[]);
        assert!(!settings.disabled && !settings.driver_only);
        assert_eq!(settings.socket.as_bytes(), DEFAULT_SOCKET);
        assert_eq!(settings.budget, 0);
        assert_eq!(settings.limit, Limit::HostMemory);
    }

    #[test]
    fn every_variable_is_read() {
        let settings = settings(&[
            ("OVERSUB_SOCKET", "/tmp/s"),
            ("OVERSUB_DISABLE", "1"),
            ("OVERSUB_POLICY", "driver"),
            ("OVERSUB_MEMORY_BUDGET", "268435456"),
            ("OVERSUB_RATIO_LIMIT", "1.25"),
            ("OVERSUB_LOG", "/tmp/l"),
        ]);
        assert!(settings.disabled && settings.driver_only);
        assert_eq!(settings.socket.as_bytes(), b"/tmp/s");
        assert_eq!(settings.budget, 256 << 20);
        assert_eq!(settings.limit, Limit::Ratio(1.25));
        assert_eq!(settings.log.with_zero()[..7], *b"/tmp/l\0");
    }

    #[test]
    fn a_size_may_have_a_unit() {
        assert_eq!(parse_bytes(b"3MiB"), Some(3 << 20));
        assert_eq!(parse_bytes(b"2GiB"), Some(2 << 30));
        assert_eq!(parse_bytes(b"12"), Some(12));
        for wrong in [
            "",
            "MiB",
            "3 MiB",
            "3mb",
            "-1",
            "99999999999999999999",
            "9999999999TiB",
        ] {
            assert_eq!(parse_bytes(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn a_ratio_is_at_least_one() {
        assert_eq!(parse_ratio(b"2"), Some(2.0));
        assert_eq!(parse_ratio(b"1.5"), Some(1.5));
        for wrong in ["", ".5", "0.9", "-2", "1.x", "nan", "1e3", "99999999"] {
            assert_eq!(parse_ratio(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn a_path_too_long_is_no_path() {
        let long = "x".repeat(PATH_BYTES);
        assert!(Text::<PATH_BYTES>::new(long.as_bytes()).is_none());
        assert!(Text::<PATH_BYTES>::new(&long.as_bytes()[1..]).is_some());
    }
}
