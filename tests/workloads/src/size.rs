//! Byte counts: 2 MiB blocks, sizes on the command line.

/// One mebibyte, bytes.
pub const MIB: u64 = 1 << 20;

/// The unit in which drivers back device memory, bytes.
pub const BLOCK: u64 = 2 * MIB;

/// `bytes` rounded up to whole 2 MiB blocks.
pub fn whole_blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK) * BLOCK
}

/// A size that could not be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("'{0}' is no size: write bytes, or a number with KiB, MiB or GiB, such as 768MiB")]
pub struct SizeError(String);

/// Reads `1048576`, `512KiB`, `768MiB` or `1.5GiB`.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let error = || SizeError(text.to_owned());
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => MIB,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return Err(error()),
    };
    if let Ok(whole) = digits.parse::<u64>() {
        return whole.checked_mul(unit).ok_or_else(error);
    }
    let value: f64 = digits.parse().map_err(|_| error())?;
    let bytes = value * unit as f64;
    if bytes.is_finite() && (0.0..1e18).contains(&bytes) {
        Ok(bytes as u64)
    } else {
        Err(error())
    }
}

/// `bytes` for people, in MiB.
pub fn in_mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / MIB as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_a_unit() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("512KiB"), Ok(512 << 10));
        assert_eq!(parse("768MiB"), Ok(768 << 20));
        assert_eq!(parse("1.5GiB"), Ok(3 << 29));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "MiB",
            "12MB",
            "-3",
            "-1.5GiB",
            "inf",
            "NaN",
            "20000000TiB",
            "1 MiB",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn blocks_round_up() {
        assert_eq!(whole_blocks(0), 0);
        assert_eq!(whole_blocks(1), BLOCK);
        assert_eq!(whole_blocks(BLOCK), BLOCK);
    }
}
