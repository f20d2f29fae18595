//! `oversub doctor`: checks this machine and says what to do about what is missing.
//!
//! Three steps, as everywhere where the machine decides: facts are gathered
//! ([`facts`]), judged by a pure function ([`judge`]), then shown.

mod facts;
mod judge;

use std::process::ExitCode;

use anyhow::Result;

use self::facts::Facts;
use self::judge::{Level, judge};
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
        println!("{}", serde_json::json!({ "ok": !failed, "checks": checks }));
    } else {
        for check in &checks {
            println!("{:4}  {}: {}", check.level.name(), check.name, check.found);
            if let Some(remedy) = &check.remedy {
                println!("      -> {remedy}");
            }
        }
    }
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
