//! Compares the `g10` machine with the numbers that the G10 artifact publishes.
//!
//! `cargo run --release -p oversub-sim --example validate -- FOLDER`: the folder holds the
//! five traces of the artifact's figure 11 with its own addresses. Prints ours beside the
//! published, and ends with status 1 where one lies outside its tolerance.
//!
//! Published: `example_results` of platformxlab/G10, commit de2c8c6 (figure 11, fraction of
//! ideal; figure 14, traffic). As there, the first two iterations from cold are run and the
//! faster is reported.
//!
//! Known to lie outside, and not explained: `g10` on ViT 1280 (ours is faster and moves less)
//! and `deepum-plus` on Inceptionv3 1536 (ours is faster). For the latter, fetching again
//! what a launch loses while it runs does not close the gap; and the artifact's lower fault
//! bandwidth for some launches would show in `ondemand`, whose time agrees.

use std::path::Path;
use std::process::ExitCode;

use oversub_sim::machine;
use oversub_sim::policy;
use oversub_sim::run::{Iteration, Options, run};
use oversub_sim::trace::{Program, read};

/// GiB in, GiB out, fraction of ideal.
#[derive(Clone, Copy)]
struct Published {
    name: &'static str,
    /// `lru`: traffic is compared.
    ondemand: [f64; 3],
    /// `deepUM`: the fraction of ideal is compared.
    deepum_plus: [f64; 3],
    /// `prefetch_lru`: likewise.
    g10: [f64; 3],
}

const PUBLISHED: [Published; 5] = [
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
const TRAFFIC: f64 = 0.03;
/// Absolute, of fractions of ideal.
const FRACTION: f64 = 0.05;

fn main() -> ExitCode {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("validate: the folder of the five traces is missing: validate FOLDER [NAME]");
        return ExitCode::from(2);
    };
    let only = std::env::args().nth(2).unwrap_or_default();
    println!(
        "{:<22} {:<12} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8}  verdict",
        "trace", "policy", "in GiB", "publ.", "out GiB", "publ.", "of ideal", "publ."
    );
    let mut good = true;
    for published in PUBLISHED.iter().filter(|p| p.name.contains(&only)) {
        match row(Path::new(&folder), published) {
            Ok(within) => good &= within,
            Err(message) => {
                eprintln!("validate: {message}");
                return ExitCode::from(2);
            }
        }
    }
    ExitCode::from(u8::from(!good))
}

fn row(folder: &Path, published: &Published) -> Result<bool, String> {
    let path = folder.join(format!("{}.trace.jsonl.zst", published.name));
    let program = read(&path).map_err(|error| error.to_string())?;
    let mut good = true;
    for (policy, expected, lifetimes) in [
        ("ondemand", published.ondemand, false),
        ("deepum-plus", published.deepum_plus, true),
        ("g10", published.g10, true),
    ] {
        let ours = reported(&program, policy, lifetimes)?;
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        let (inward, out) = (gib(ours.totals.bytes_in), gib(ours.totals.bytes_out));
        let fraction = ours.ideal.0 as f64 / ours.time.0 as f64;
        let within = if policy == "ondemand" {
            let near = |ours: f64, published: f64| (ours / published - 1.0).abs() <= TRAFFIC;
            near(inward, expected[0]) && near(out, expected[1])
        } else {
            (fraction - expected[2]).abs() <= FRACTION
        };
        good &= within;
        let verdict = if within { "within" } else { "OUTSIDE" };
        println!(
            "{:<22} {policy:<12} {inward:>9.2} {:>9.2} {out:>9.2} {:>9.2} {fraction:>8.4} {:>8.4}  {verdict}",
            published.name, expected[0], expected[1], expected[2]
        );
    }
    Ok(good)
}

/// The faster of the first two iterations.
fn reported(program: &Program, policy: &str, lifetimes: bool) -> Result<Iteration, String> {
    let machine = machine::named("g10").ok_or("no machine g10")?;
    let entry = policy::named(policy).ok_or_else(|| format!("no policy {policy}"))?;
    let options = Options {
        lifetimes,
        timeline: false,
        seed: 0,
        engine_cost: false,
    };
    let outcome = run(program, &machine, entry, options)
        .map_err(|error| format!("{} under {policy}: {error}", program.name()))?;
    let first = outcome.iterations.iter().take(2);
    first
        .min_by_key(|iteration| iteration.time)
        .copied()
        .ok_or_else(|| format!("{}: no iteration", program.name()))
}
