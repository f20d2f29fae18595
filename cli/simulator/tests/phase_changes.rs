//! How soon `foresight` is back at its steady speed after a program has changed its phase.
//!
//! Simulated time alone: the same on every machine. `OVERSUB_TEST_SEED` draws other programs, and
//! the example `phase_changes` prints each change.

use oversub_sim::recovery::{Change, Summary, measure};
use oversub_sim::{machine, policy};

/// Programs.
const SEEDS: u64 = 40;

#[test]
fn foresight_is_back_at_its_steady_speed_in_one_cycle_after_most_changes_of_phase() {
    let given = std::env::var("OVERSUB_TEST_SEED").ok();
    let base: u64 = given.and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let machine = machine::named(machine::DEFAULT).expect("the default");
    let entry = policy::named("foresight").expect("it is in the table");
    let first = base.wrapping_mul(SEEDS);
    let mut changes: Vec<Change> = Vec::new();
    for seed in first..first + SEEDS {
        changes.extend(measure(seed, 1.5, &machine, entry).expect("it runs"));
    }
    let [new, returning] = [false, true].map(|returns| Summary::of(&changes, returns));
    println!("new: {new:?}\nreturning: {returning:?}");
    assert!(new.changes >= 40 && returning.changes >= 60);
    assert!(new.within_one_cycle >= 0.86, "{new:?}");
    assert!(returning.within_one_cycle >= 0.94, "{returning:?}");
    assert!(
        new.never <= 0.06 && returning.never <= 0.05,
        "{new:?} {returning:?}"
    );
}
