//! Medians and quantiles.

/// The middle value; 0 of none. Sorts `values`.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

/// A quantile of what was counted in buckets of powers of two (bucket `i`: below `2^i`,
/// the last one: anything above). Inside its bucket a value is taken to be as likely at
/// one place as at another. None where nothing was counted or it lies in the last bucket.
pub fn of_buckets(buckets: &[u64], share: f64) -> Option<f64> {
    let total: u64 = buckets.iter().sum();
    let rank = total as f64 * share;
    let mut below = 0.0;
    for (index, &count) in buckets.iter().enumerate() {
        let count = count as f64;
        if count > 0.0 && below + count >= rank {
            if index + 1 == buckets.len() {
                return None;
            }
            let upper = (1_u64 << index) as f64;
            let lower = if index == 0 { 0.0 } else { upper / 2.0 };
            return Some(lower + (upper - lower) * (rank - below) / count);
        }
        below += count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_lies_between_the_middle_two() {
        assert_eq!(median(&mut [4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&mut [9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut []), 0.0);
    }

    #[test]
    fn a_quantile_lies_inside_the_bucket_that_holds_it() {
        // 100 values from 32 to 64.
        let buckets = [0, 0, 0, 0, 0, 0, 100, 0];
        assert_eq!(of_buckets(&buckets, 0.5), Some(48.0));
        // Half below 1, half from 8 to 16.
        assert_eq!(of_buckets(&[50, 0, 0, 0, 50, 0], 0.5), Some(1.0));
        assert_eq!(of_buckets(&[50, 0, 0, 0, 50, 0], 0.75), Some(12.0));
    }

    #[test]
    fn nothing_counted_and_values_without_an_upper_end_are_unknown() {
        assert_eq!(of_buckets(&[0, 0, 0], 0.5), None);
        assert_eq!(of_buckets(&[1, 0, 9], 0.5), None);
    }
}
