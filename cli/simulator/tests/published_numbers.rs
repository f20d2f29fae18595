//! The `g10` machine against what the G10 artifact publishes. Its traces are not part of the
//! repository: set OVERSUB_TRACES to the folder of the recorded traces to run that part.

mod published;

use std::path::Path;

use oversub_sim::trace::families::{Family, Shape};
use oversub_sim::units::Nanos;

use published::{PUBLISHED, reported, rows};

/// Rows that lie outside their tolerance, and how far at most: the README says why.
const KNOWN: [(&str, &str, f64); 1] = [("g10-vit-b1280", "g10", 0.09)];

#[test]
fn published_traffic_and_fractions_of_ideal_are_reproduced() {
    let Some(folder) = std::env::var_os("OVERSUB_TRACES") else {
        eprintln!("skipped: OVERSUB_TRACES does not name the folder of the recorded traces");
        return;
    };
    let folder = Path::new(&folder).join("g10-own");
    for published in &PUBLISHED {
        for row in rows(&folder, published).unwrap() {
            let known = KNOWN
                .iter()
                .find(|known| (known.0, known.1) == (row.trace, row.policy));
            let off = (row.ours[2] - row.published[2]).abs();
            assert!(
                row.within || known.is_some_and(|known| off <= known.2),
                "{} under {}: {:?}, published {:?}",
                row.trace,
                row.policy,
                row.ours,
                row.published
            );
        }
    }
}

#[test]
fn the_published_order_of_policies_holds_on_a_training_of_its_kind() {
    // Layers of 10 ms whose content takes as long over the link as they compute.
    let shape = Shape {
        blocks: 600,
        launches: 60,
        iterations: 4,
        block_time: Nanos::from_micros(400),
        ..Shape::default()
    };
    let program = Family::Training.program(&shape).unwrap();
    let fraction = |policy, lifetimes| {
        let found = reported(&program, policy, lifetimes).unwrap();
        found.ideal.0 as f64 / found.time.0 as f64
    };
    let (ondemand, window, planned) = (
        fraction("ondemand", false),
        fraction("deepum-plus", true),
        fraction("g10", true),
    );
    assert!(
        ondemand < window && window < planned && planned > 0.9,
        "{ondemand} {window} {planned}"
    );
}
