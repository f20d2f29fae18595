//! The time that no policy can beat.
//!
//! At one moment of each iteration a program has a certain amount of content that it reads
//! again before the same moment of the next iteration ("carried" content: weights, their
//! moments and all gradients, say, when a training step turns to its optimiser). What of it
//! exceeds the device memory is somewhere else at that moment, whoever decides, and has to
//! come in before it is read. These spans follow one another, so their bounds add up. The
//! two directions of the link run side by side, so one of them counts; and no run is faster
//! than one with everything resident. It holds for every policy that migrates memory and
//! drops only what the program has freed.

/// What the bound is computed from.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// Content carried across one moment of each iteration, bytes.
    pub carried_bytes: u64,
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
    let excess = work.carried_bytes.saturating_sub(work.memory_bytes);
    let transfer = work.iterations as f64 * excess as f64 / work.link_bytes_per_s as f64;
    transfer.max(work.resident_s.unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Work = Work {
        carried_bytes: 1_500,
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
    fn a_working_set_that_fits_is_bound_by_its_resident_time() {
        assert_eq!(
            seconds(&Work {
                carried_bytes: 900,
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
