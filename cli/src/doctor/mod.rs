//! `oversub doctor`: checks this machine and says what to do about what is missing.
//!
//! Three steps, as everywhere where the machine decides: facts are gathered
//! ([`facts`]), judged by pure functions ([`judge`], [`signals`]), then shown.

mod facts;
mod judge;
mod signals;

use std::process::ExitCode;

use anyhow::Result;

use self::facts::Facts;
use self::judge::{Level, judge};
use self::signals::signals;
use crate::args::{self, DoctorOptions};

/// Prints every check.
///
/// # Errors
/// Where the result cannot be printed.
pub fn doctor(options: &DoctorOptions) -> Result<ExitCode> {
    let socket = args::socket(options.socket.as_ref());
    let facts = Facts::gather(&socket);
    let checks = judge(&facts);
    let failed = checks.iter().any(|check| check.level == Level::Fail);
    if options.json {
        let signals = signals(&facts);
        println!(
            "{}",
            serde_json::json!({ "ok": !failed, "checks": checks, "signals": signals })
        );
    } else {
        for check in &checks {
            println!("{:4}  {}: {}", check.level.name(), check.name, check.found);
            if let Some(remedy) = &check.remedy {
                println!("      -> {remedy}");
            }
        }
        println!();
        for signal in signals(&facts) {
            println!(
                "{:4}  {} from {}: {}",
                signal.tier.name(),
                signal.signal,
                signal.source,
                signal.reason
            );
        }
    }
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
