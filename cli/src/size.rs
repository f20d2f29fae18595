//! Sizes and rates as people write them: `512MiB`, `4GiB`, `1.5GB/s`.

use std::fmt;
use std::str::FromStr;

/// A size in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size(pub u64);

/// A rate in bytes per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate(pub u64);

/// A lower rate was meant to have another unit: 16 is no link, and would take years to simulate.
const LEAST_RATE: u64 = 1_000_000;

const UNITS: &[(&str, u64)] = &[
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

fn parse(text: &str, example: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let scale = match unit {
        "" => 1,
        unit => UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .map(|(_, scale)| *scale)
            .ok_or_else(|| format!("unknown unit `{unit}`; write for example {example}"))?,
    };
    let number = f64::from_str(digits.trim())
        .map_err(|_| format!("`{digits}` is not a number; write for example {example}"))?;
    let bytes = number * scale as f64;
    if !(1.0..9e18).contains(&bytes) {
        return Err(format!(
            "must be at least one byte and below 8 EiB; write for example {example}"
        ));
    }
    Ok(bytes.round() as u64)
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text, "4GiB").map(Size)
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rate = parse(text.strip_suffix("/s").unwrap_or(text), "1GB/s")?;
        if rate < LEAST_RATE {
            return Err(format!(
                "{} is less than any link moves; write the unit, for example 1GB/s",
                Rate(rate)
            ));
        }
        Ok(Rate(rate))
    }
}

impl fmt::Display for Size {
    /// At most four significant digits, binary units.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, scale) in [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
            if self.0 >= scale {
                let number = self.0 as f64 / scale as f64;
                let digits = if number.fract() < 0.005 { 0 } else { 2 };
                return write!(f, "{number:.digits$} {name}");
            }
        }
        write!(f, "{} B", self.0)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, scale) in [("GB", 1_000_000_000_u64), ("MB", 1_000_000), ("kB", 1_000)] {
            if self.0 >= scale {
                return write!(f, "{}{name}/s", self.0 as f64 / scale as f64);
            }
        }
        write!(f, "{}B/s", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_binary_and_decimal_units_or_none() {
        assert_eq!("512MiB".parse(), Ok(Size(512 << 20)));
        assert_eq!("1.5GiB".parse(), Ok(Size(3 << 29)));
        assert_eq!("2GB".parse(), Ok(Size(2_000_000_000)));
        assert_eq!("4096".parse(), Ok(Size(4096)));
    }

    #[test]
    fn a_wrong_size_is_refused_and_the_message_shows_a_right_one() {
        for wrong in [
            "",
            "GiB",
            "4 potatoes",
            "-1GiB",
            "0",
            "NaN",
            "inf",
            "1e300GiB",
            "4gib",
        ] {
            let error = wrong.parse::<Size>().unwrap_err();
            assert!(error.contains("4GiB"), "{wrong}: {error}");
        }
    }

    #[test]
    fn rates_may_leave_out_the_per_second() {
        assert_eq!("1GB/s".parse(), Ok(Rate(1_000_000_000)));
        assert_eq!("250MB".parse(), Ok(Rate(250_000_000)));
    }

    #[test]
    fn a_rate_without_its_unit_is_refused() {
        let error = "16".parse::<Rate>().unwrap_err();
        assert!(
            error.contains("16B/s") && error.contains("1GB/s"),
            "{error}"
        );
        assert!("999kB/s".parse::<Rate>().is_err());
        assert_eq!("1MB/s".parse(), Ok(Rate(1_000_000)));
    }

    #[test]
    fn what_is_printed_names_the_unit_that_reads_best() {
        assert_eq!(Size(512 << 20).to_string(), "512 MiB");
        assert_eq!(Size(3 << 29).to_string(), "1.50 GiB");
        assert_eq!(Rate(1_000_000_000).to_string(), "1GB/s");
        assert_eq!(Rate(1_500_000).to_string(), "1.5MB/s");
    }
}
