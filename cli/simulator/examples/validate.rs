//! Compares the `g10` machine with the numbers that the G10 artifact publishes.
//!
//! `cargo run --release -p oversub-sim --example validate -- FOLDER [NAME]`: the folder holds
//! the five traces of the artifact's figure 11 with its own addresses. Prints ours beside the
//! published, and ends with status 1 where one lies outside its tolerance.

#[path = "../tests/published/mod.rs"]
mod published;

use std::path::Path;
use std::process::ExitCode;

use published::{PUBLISHED, rows};

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
        let rows = match rows(Path::new(&folder), published) {
            Ok(rows) => rows,
            Err(message) => {
                eprintln!("validate: {message}");
                return ExitCode::from(2);
            }
        };
        for row in rows {
            good &= row.within;
            let ([inward, out, fraction], p) = (row.ours, row.published);
            println!(
                "{:<22} {:<12} {inward:>9.2} {:>9.2} {out:>9.2} {:>9.2} {fraction:>8.4} {:>8.4}  {}",
                row.trace,
                row.policy,
                p[0],
                p[1],
                p[2],
                if row.within { "within" } else { "OUTSIDE" }
            );
        }
    }
    ExitCode::from(u8::from(!good))
}
