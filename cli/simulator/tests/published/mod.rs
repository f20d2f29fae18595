//! What the G10 artifact publishes, and ours beside it: shared by the test and the example.
//!
//! `example_results` of platformxlab/G10, commit de2c8c6 (figure 11, fraction of ideal;
//! figure 14, traffic). As there, the first two iterations from cold are run and the faster
//! is reported.

use std::path::Path;

use oversub_sim::run::{Iteration, Options, run};
use oversub_sim::trace::{Program, read};
use oversub_sim::{machine, policy};

/// GiB in, GiB out, fraction of ideal.
#[derive(Clone, Copy)]
pub struct Published {
    pub name: &'static str,
    /// `lru`: traffic is compared.
    pub ondemand: [f64; 3],
    /// `deepUM`: the fraction of ideal is compared.
    pub deepum_plus: [f64; 3],
    /// `prefetch_lru`: likewise.
    pub g10: [f64; 3],
}

pub const PUBLISHED: [Published; 5] = [
    Published {
        name: "g10-bert-b256",
        ondemand: [173.13, 173.13, 0.3708],
        deepum_plus: [49.95, 49.95, 0.7953],
        g10: [8.91, 8.91, 0.9965],
    },
    Published {
        name: "g10-vit-b1280",
        ondemand: [222.36, 222.36, 0.1511],
        deepum_plus: [63.72, 63.06, 0.4917],
        g10: [26.85, 26.85, 0.6708],
    },
    Published {
        name: "g10-inceptionv3-b1536",
        ondemand: [127.55, 875.24, 0.2124],
        deepum_plus: [284.58, 284.58, 0.6732],
        g10: [103.93, 103.93, 0.9772],
    },
    Published {
        name: "g10-resnet152-b1280",
        ondemand: [277.21, 1323.16, 0.2401],
        deepum_plus: [282.00, 282.00, 0.8528],
        g10: [245.52, 245.52, 0.9840],
    },
    Published {
        name: "g10-senet154-b1024",
        ondemand: [353.89, 2023.72, 0.1818],
        deepum_plus: [392.35, 392.35, 0.6879],
        g10: [323.52, 323.52, 0.9338],
    },
];

/// Relative, of `ondemand`'s traffic.
pub const TRAFFIC: f64 = 0.03;
/// Absolute, of fractions of ideal.
pub const FRACTION: f64 = 0.05;

/// One policy on one trace.
pub struct Row {
    /// Which trace.
    pub trace: &'static str,
    /// Our policy.
    pub policy: &'static str,
    /// GiB in, GiB out, fraction of ideal.
    pub ours: [f64; 3],
    /// The same, published.
    pub published: [f64; 3],
    /// What is compared is within its tolerance.
    pub within: bool,
}

/// The rows of one trace.
pub fn rows(folder: &Path, published: &Published) -> Result<Vec<Row>, String> {
    let path = folder.join(format!("{}.trace.jsonl.zst", published.name));
    let program = read(&path).map_err(|error| error.to_string())?;
    [
        ("ondemand", published.ondemand, false),
        ("deepum-plus", published.deepum_plus, true),
        ("g10", published.g10, true),
    ]
    .into_iter()
    .map(|(policy, expected, lifetimes)| {
        let found = reported(&program, policy, lifetimes)?;
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        let ours = [
            gib(found.totals.bytes_in),
            gib(found.totals.bytes_out),
            found.ideal.0 as f64 / found.time.0 as f64,
        ];
        let near = |at: usize| (ours[at] / expected[at] - 1.0).abs() <= TRAFFIC;
        let within = match policy {
            "ondemand" => near(0) && near(1),
            _ => (ours[2] - expected[2]).abs() <= FRACTION,
        };
        Ok(Row {
            trace: published.name,
            policy,
            ours,
            published: expected,
            within,
        })
    })
    .collect()
}

/// The faster of the first two iterations.
pub fn reported(program: &Program, policy: &str, lifetimes: bool) -> Result<Iteration, String> {
    let mut machine = machine::named("g10").ok_or("no machine g10")?;
    if !program.name().starts_with("g10-") {
        // A small one: as short of memory as BERT 256 is on the artifact's.
        machine.memory_bytes = program.footprint_bytes() / 6 * 5;
    }
    let entry = policy::named(policy).ok_or_else(|| format!("no policy {policy}"))?;
    let options = Options {
        lifetimes,
        timeline: false,
        explain: None,
        seed: 0,
        engine_cost: false,
        without: Default::default(),
    };
    let outcome = run(program, &machine, entry, options)
        .map_err(|error| format!("{} under {policy}: {error}", program.name()))?;
    let first = outcome.iterations.iter().take(2);
    first
        .min_by_key(|iteration| iteration.time)
        .copied()
        .ok_or_else(|| format!("{}: no iteration", program.name()))
}
