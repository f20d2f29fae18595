//! Decides whether what the daemon's metrics say of a program is what the driver did.
//!
//! In three things they may differ. Procfs counts replays, also those with which the driver
//! flushes the fault buffer when an address space ends; the metrics count batches that have
//! faults. And the event queue of a program is opened once the program has connected, while
//! it runs: what the driver did before that stays untold. Of two entries of a batch for one page
//! that it does not merge (a read and a write, say), the driver counts the second as a duplicate
//! once it serves them (`check_fault_entry_duplicate`, uvm_gpu_replayable_faults.c, 535.261.03):
//! the batch, which is what the metrics count, still has both. How many do depends on which threads
//! come first: no more than one beside each, for its other access.

use oversub_vm::plan::MetricCounts;

use crate::probed;

/// Most replays of flushes around a program.
const FLUSHES: u64 = 4;
/// Most faults, and batches of them, before the queue is open, in parts of all.
const UNTOLD: f64 = 0.05;

/// What is wrong with the metrics of a program. `by_queue`: the event queue was their source,
/// which does not tell for whose sake blocks are evicted.
pub fn wrong_with(counts: &MetricCounts, by_queue: bool) -> Vec<String> {
    let MetricCounts {
        metrics, procfs, ..
    } = counts;
    let mut wrong: Vec<_> = probed::differences(metrics, procfs)
        .into_iter()
        .filter(|(name, _)| !matches!(*name, "batches" | "faults" | "merged faults"))
        .map(|(name, theirs)| format!("the metrics' {name} differ: {theirs}"))
        .collect();
    let mut must = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    let untold = if by_queue { UNTOLD } else { 0.0 };
    let nearly = |told: u64, all: u64, beside: u64| {
        let least = (1.0 - untold) * all.saturating_sub(beside) as f64;
        told <= all && told as f64 >= least
    };
    must(
        metrics.batches > 0 && nearly(metrics.batches, procfs.batches, FLUSHES),
        format!(
            "the metrics count {} batches, procfs {} replays",
            metrics.batches, procfs.batches
        ),
    );
    must(
        nearly(metrics.faults, procfs.faults, 0),
        format!(
            "the metrics count {} faults, procfs {}",
            metrics.faults, procfs.faults
        ),
    );
    must(
        counts.drops == 0,
        format!("{} events of the metrics' source dropped", counts.drops),
    );
    must(
        metrics.merged_faults > 0
            && metrics.merged_faults <= procfs.faults.min(2 * procfs.merged_faults)
            && nearly(
                metrics.merged_faults.min(procfs.merged_faults),
                procfs.merged_faults,
                0,
            ),
        format!(
            "the metrics count {} faults after merging, procfs {}",
            metrics.merged_faults, procfs.merged_faults
        ),
    );
    must(
        counts.timed_batches == metrics.batches,
        format!(
            "the histogram has {} batches of {}",
            counts.timed_batches, metrics.batches
        ),
    );
    must(
        counts.labelled_faults == metrics.faults,
        format!(
            "{} of {} faults under the program's number, control group and GPU",
            counts.labelled_faults, metrics.faults
        ),
    );
    must(
        counts.ended_faults == metrics.faults,
        format!(
            "{} of {} faults once the program had ended",
            counts.ended_faults, metrics.faults
        ),
    );
    let evicted = metrics.evicted_pages > 0;
    must(
        by_queue || !evicted || counts.paid_evictions == metrics.evictions,
        format!(
            "it is known of {} of {} evictions for whose sake",
            counts.paid_evictions, metrics.evictions
        ),
    );
    must(
        by_queue || evicted == (metrics.evictions > 0),
        format!(
            "{} pages were evicted in {} evictions",
            metrics.evicted_pages, metrics.evictions
        ),
    );
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use oversub_vm::plan::DriverCounts;

    fn good() -> MetricCounts {
        let told = DriverCounts {
            faults: 120,
            merged_faults: 110,
            batches: 5,
            pages_in: 11,
            pages_out: 10,
            evicted_pages: 4,
            evictions: 2,
            ..DriverCounts::default()
        };
        MetricCounts {
            metrics: told,
            procfs: told,
            timed_batches: 5,
            paid_evictions: 2,
            labelled_faults: 120,
            ended_faults: 120,
            ..MetricCounts::default()
        }
    }

    #[test]
    fn metrics_that_are_the_drivers_pass() {
        assert_eq!(wrong_with(&good(), false), [""; 0]);
        let by_queue = MetricCounts {
            paid_evictions: 0,
            ..good()
        };
        assert_eq!(wrong_with(&by_queue, true), [""; 0]);
    }

    #[test]
    fn every_difference_is_wrong() {
        type Change = fn(&mut MetricCounts);
        let changes: [Change; 13] = [
            |c| c.metrics.pages_in += 1,
            |c| c.procfs.batches += FLUSHES + 1,
            |c| c.procfs.batches -= 1,
            |c| c.procfs.faults += 1,
            |c| c.drops = 1,
            |c| c.metrics.merged_faults = 0,
            |c| c.metrics.merged_faults = 121,
            |c| c.procfs.merged_faults = 54,
            |c| c.metrics.merged_faults = 109,
            |c| c.timed_batches = 4,
            |c| c.labelled_faults = 0,
            |c| c.ended_faults = 119,
            |c| c.paid_evictions = 1,
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut counts = good();
            change(&mut counts);
            assert_eq!(wrong_with(&counts, false).len(), 1, "{index}");
        }
    }

    #[test]
    fn a_page_may_have_two_entries_in_a_batch() {
        let mut counts = good();
        counts.procfs.merged_faults = 55;
        assert_eq!(wrong_with(&counts, false), [""; 0]);
    }

    #[test]
    fn a_queue_may_miss_what_came_before_it_and_no_more() {
        let mut counts = good();
        counts.procfs.faults += 4;
        counts.procfs.batches += FLUSHES;
        assert_eq!(wrong_with(&counts, true), [""; 0]);
        counts.procfs.faults += 40;
        assert_eq!(wrong_with(&counts, true).len(), 1);
    }
}
