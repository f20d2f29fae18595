//! The scale on which latencies are counted: four buckets to each power of two of a
//! microsecond, so that a quantile is known to a fifth.
//!
//! Owns the scale alone. The shim counts, the daemon and the command line read.

/// Buckets; the last one has the rest, from half a minute on.
pub const BUCKETS: usize = 96;

/// Where `us` microseconds are counted.
#[inline]
pub fn bucket(us: u64) -> usize {
    if us < 4 {
        return us as usize;
    }
    let power = us.ilog2();
    let quarter = us >> (power - 2) & 3;
    let index = 4 * (power as usize - 1) + quarter as usize;
    if index < BUCKETS { index } else { BUCKETS - 1 }
}

/// What bucket `index` counts, microseconds: from the first, below the second.
pub fn bounds(index: usize) -> (u64, u64) {
    let index = index.min(BUCKETS - 1) as u64;
    if index < 4 {
        return (index, index + 1);
    }
    let power = index / 4 + 1;
    let quarter = 1 << (power - 2);
    let lower = (1 << power) + index % 4 * quarter;
    (lower, lower + quarter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_inside_its_bucket_and_buckets_follow_one_another() {
        for us in (0..5000).chain([65_535, 65_536, 1 << 20, (1 << 24) + 5]) {
            let (lower, upper) = bounds(bucket(us));
            assert!((lower..upper).contains(&us), "{us}: {lower} to {upper}");
            assert!(upper - lower <= 1 || (upper - lower) * 4 <= lower, "{us}");
        }
        for index in 1..BUCKETS {
            assert_eq!(bounds(index - 1).1, bounds(index).0);
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }
}
