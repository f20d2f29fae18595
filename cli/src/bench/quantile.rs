//! Medians and quantiles.

use oversub_protocol::latency;

/// The middle value; 0 of none. Sorts `values`.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

/// The least and the greatest; none of none.
pub fn spread(values: &[f64]) -> Option<[f64; 2]> {
    let least = values.iter().copied().reduce(f64::min)?;
    let greatest = values.iter().copied().reduce(f64::max)?;
    Some([least, greatest])
}

/// A quantile of what was counted on the scale of [`oversub_protocol::latency`],
/// microseconds. Inside its bucket a value is taken to be as likely at one place as at
/// another. None where nothing was counted or it lies in the last bucket.
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
            let (lower, upper) = latency::bounds(index);
            let (lower, upper) = (lower as f64, upper as f64);
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
        let of = |values: [u64; 2], share| {
            let mut buckets = [0; latency::BUCKETS];
            for us in values {
                buckets[latency::bucket(us)] += 50;
            }
            of_buckets(&buckets, share)
        };
        // All from 40 to 48.
        assert_eq!(of([40, 47], 0.5), Some(44.0));
        // Half below 1, half from 12 to 14.
        assert_eq!(of([0, 12], 0.5), Some(1.0));
        assert_eq!(of([0, 12], 0.75), Some(13.0));
    }

    #[test]
    fn nothing_counted_and_values_without_an_upper_end_are_unknown() {
        assert_eq!(of_buckets(&[0, 0, 0], 0.5), None);
        assert_eq!(of_buckets(&[1, 0, 9], 0.5), None);
    }
}
