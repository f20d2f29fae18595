//! The time that no policy can beat.
//!
//! In one iteration a program touches its whole working set. At the start of it at most
//! the device memory's worth of that can be present, and what the iteration itself
//! creates (and drops again) needs no transfer. The rest has to cross the link into the
//! device, whoever decides the order, and as much has to leave it, because content that
//! outlives an iteration and does not fit must be somewhere. The two directions run side
//! by side, so one of them counts. Iterations follow one another, so their bounds add up;
//! none can be faster than with everything resident either.

/// What the bound is computed from.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// Bytes that one iteration touches.
    pub touched_bytes: u64,
    /// Of them, bytes allocated and freed within the iteration.
    pub born_bytes: u64,
    /// Iterations.
    pub iterations: u64,
    /// Device memory, bytes.
    pub memory_bytes: u64,
    /// Link, bytes per second, each way.
    pub link_bytes_per_s: u64,
    /// Seconds with everything resident; none where that was not measured.
    pub resident_s: Option<f64>,
}

/// Seconds that every policy needs at least.
pub fn seconds(work: &Work) -> f64 {
    let excess = work
        .touched_bytes
        .saturating_sub(work.born_bytes)
        .saturating_sub(work.memory_bytes);
    let transfer = work.iterations as f64 * excess as f64 / work.link_bytes_per_s as f64;
    transfer.max(work.resident_s.unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Work = Work {
        touched_bytes: 1_500,
        born_bytes: 0,
        iterations: 10,
        memory_bytes: 1_000,
        link_bytes_per_s: 1_000,
        resident_s: Some(2.0),
    };

    #[test]
    fn what_does_not_fit_crosses_the_link_once_per_iteration() {
        assert_eq!(seconds(&WORK), 5.0);
    }

    #[test]
    fn what_an_iteration_creates_and_drops_crosses_nothing() {
        assert_eq!(
            seconds(&Work {
                born_bytes: 400,
                ..WORK
            }),
            2.0
        );
        assert_eq!(
            seconds(&Work {
                born_bytes: 200,
                ..WORK
            }),
            3.0
        );
    }

    #[test]
    fn a_working_set_that_fits_is_bound_by_its_resident_time() {
        assert_eq!(
            seconds(&Work {
                touched_bytes: 900,
                ..WORK
            }),
            2.0
        );
    }

    #[test]
    fn without_a_resident_time_the_link_alone_counts() {
        assert_eq!(
            seconds(&Work {
                resident_s: None,
                ..WORK
            }),
            5.0
        );
    }
}
