//! A size in bytes as people write it: `4096`, `"64KiB"`, `"16MiB"`, `"1GiB"`.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

const UNITS: [(&str, u64); 4] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
];
const EXPECTED: &str =
    "bytes as a number, or text with a unit such as \"64KiB\", \"16MiB\", \"1GiB\"";

impl Size {
    /// Reads `text`; none where it is no size or overflows.
    pub fn parse(text: &str) -> Option<Size> {
        let (digits, unit) = UNITS
            .iter()
            .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)))
            .unwrap_or((text, 1));
        digits
            .trim()
            .parse::<u64>()
            .ok()?
            .checked_mul(unit)
            .map(Size)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS
            .iter()
            .find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(*unit));
        match whole {
            Some((suffix, unit)) => write!(f, "{}{suffix}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;
        impl Visitor<'_> for SizeVisitor {
            type Value = Size;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }
            fn visit_i64<E: Error>(self, value: i64) -> Result<Size, E> {
                u64::try_from(value)
                    .map(Size)
                    .map_err(|_| E::custom(format!("expected {EXPECTED}")))
            }
            fn visit_u64<E: Error>(self, value: u64) -> Result<Size, E> {
                Ok(Size(value))
            }
            fn visit_str<E: Error>(self, value: &str) -> Result<Size, E> {
                Size::parse(value).ok_or_else(|| {
                    E::custom(format!("`{value}` is not a size, expected {EXPECTED}"))
                })
            }
        }
        deserializer.deserialize_any(SizeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::Size;

    #[test]
    fn a_size_reads_back_as_it_prints() {
        for bytes in [0, 1, 1023, 1024, 16 << 20, 3 << 30, (1 << 40) + 1, u64::MAX] {
            assert_eq!(Size::parse(&Size(bytes).to_string()), Some(Size(bytes)));
        }
    }

    #[test]
    fn a_size_that_overflows_or_has_an_unknown_unit_is_none() {
        assert_eq!(Size::parse("99999999TiB"), None);
        assert_eq!(Size::parse("16MB"), None);
        assert_eq!(Size::parse(""), None);
        assert_eq!(Size::parse("-1"), None);
    }
}
