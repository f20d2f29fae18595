//! What all charts share: escaping, scales, numbers as people read them.

/// Text safe in HTML content and in quoted attributes.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            _ => safe.push(letter),
        }
    }
    safe
}

/// Maps values to positions, evenly or evenly in factors.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    values: (f64, f64),
    positions: (f64, f64),
    logarithmic: bool,
}

impl Scale {
    /// Even in differences.
    pub fn linear(values: (f64, f64), positions: (f64, f64)) -> Self {
        Self {
            values,
            positions,
            logarithmic: false,
        }
    }

    /// Even in factors; values are positive.
    pub fn logarithmic(values: (f64, f64), positions: (f64, f64)) -> Self {
        Self {
            values,
            positions,
            logarithmic: true,
        }
    }

    /// Where a value lies; outside values lie at the ends.
    pub fn at(&self, value: f64) -> f64 {
        let (low, high) = self.values;
        let part = if high <= low {
            0.5
        } else if self.logarithmic {
            (value.max(f64::MIN_POSITIVE) / low).ln() / (high / low).ln()
        } else {
            (value - low) / (high - low)
        };
        let (start, end) = self.positions;
        start + part.clamp(0.0, 1.0) * (end - start)
    }
}

/// Round values within a range, about `wanted` of them.
pub fn ticks(low: f64, high: f64, wanted: usize) -> Vec<f64> {
    let span = high - low;
    if span.is_nan() || span <= 0.0 {
        return vec![low];
    }
    let raw = span / wanted.max(1) as f64;
    let power = 10_f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= raw * 0.999)
        .unwrap_or(10.0 * power);
    let first = (low / step).ceil() as i64;
    let last = ((high / step) + 1e-9).floor() as i64;
    (first..=last).map(|number| number as f64 * step).collect()
}

/// Factors from 1 up to `high` that make good grid lines.
pub fn factor_ticks(high: f64) -> Vec<f64> {
    let fine = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0];
    let medium = [1.0, 1.25, 1.5, 2.0, 3.0, 4.0];
    let coarse = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];
    let all: &[f64] = if high <= 2.0 {
        &fine
    } else if high <= 4.5 {
        &medium
    } else {
        &coarse
    };
    all.iter()
        .copied()
        .filter(|tick| *tick <= high * 1.001)
        .collect()
}

/// At most two digits after the point, none where it is large.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        "–".to_owned()
    } else if value >= 99.95 {
        format!("{value:.0}")
    } else if value >= 9.995 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// As [`number`], without trailing zeros: for axes.
pub fn plain(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A duration in the unit that reads best.
pub fn time(us: f64) -> String {
    if us >= 1e6 {
        format!("{} s", number(us / 1e6))
    } else if us >= 1e3 {
        format!("{} ms", number(us / 1e3))
    } else {
        format!("{} µs", number(us))
    }
}

/// Traffic, in decimal gigabytes as links are sold.
pub fn gigabytes(bytes: u64) -> String {
    number(bytes as f64 / 1e9)
}

/// Memory, in binary gigabytes as memory is sold.
pub fn gibibytes(bytes: u64) -> String {
    number(bytes as f64 / f64::from(1 << 30))
}

/// The mean in factors of positive numbers; one for none.
pub fn geometric_mean(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().map(|value| value.ln()).sum();
    (sum / values.len().max(1) as f64).exp()
}

/// The colour slot of a policy: 1 to 4 for those that are always told apart, none for the
/// others, which are drawn grey.
pub fn slot(policy: &str) -> Option<usize> {
    const FEATURED: [&str; 4] = ["foresight", "deepum", "driver", "opt"];
    FEATURED
        .iter()
        .position(|name| *name == policy)
        .map(|index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_files_cannot_become_markup() {
        assert_eq!(escape("<a b=\"'&"), "&lt;a b=&quot;&#39;&amp;");
    }

    #[test]
    fn a_scale_keeps_ends_and_middles() {
        let even = Scale::linear((0.0, 10.0), (100.0, 200.0));
        assert_eq!(
            [even.at(0.0), even.at(5.0), even.at(99.0)],
            [100.0, 150.0, 200.0]
        );
        let factors = Scale::logarithmic((1.0, 4.0), (300.0, 0.0));
        assert!((factors.at(2.0) - 150.0).abs() < 1e-9);
    }

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks(0.0, 50.0, 5), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]);
        assert_eq!(ticks(13.0, 21.0, 4), [14.0, 16.0, 18.0, 20.0]);
        assert_eq!(ticks(3.0, 3.0, 4), [3.0]);
    }

    #[test]
    fn numbers_keep_three_digits() {
        assert_eq!(
            [
                number(1.234),
                number(12.34),
                number(123.4),
                number(f64::NAN)
            ],
            ["1.23", "12.3", "123", "–"]
        );
        assert_eq!(
            [time(12.0), time(1_500.0), time(2e6)],
            ["12.0 µs", "1.50 ms", "2.00 s"]
        );
    }

    #[test]
    fn the_mean_of_a_factor_and_its_inverse_is_one() {
        assert!((geometric_mean(&[4.0, 0.25]) - 1.0).abs() < 1e-12);
    }
}
