//! Prints how long a probe's event takes to user space on this machine, as one JSON object.
//!
//! `probe_latency [RATE [HITS]]`, by default 20,000 hits a second, 100,000 hits.

use std::io::Write;

use oversub_bpf::{HostFacts, Intake, PlanOptions, ProbePlan, probe_latency};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut numbers = std::env::args().skip(1);
    let rate = numbers.next().map_or(Ok(20_000), |text| text.parse())?;
    let hits = numbers.next().map_or(Ok(100_000), |text| text.parse())?;
    let mut intake = Intake::start(&ProbePlan::choose(
        &HostFacts::gather(),
        PlanOptions::default(),
    ));
    let measured = probe_latency(&mut intake, rate, hits)?;
    let drops = intake.drops();
    writeln!(
        std::io::stdout(),
        "{{\"hits\":{},\"lost\":{},\"drops\":{drops},\"rate\":{:.0},\"p50_us\":{:.1},\
         \"p90_us\":{:.1},\"p99_us\":{:.1},\"max_us\":{:.1}}}",
        measured.hits,
        measured.lost,
        measured.rate,
        measured.p50_us,
        measured.p90_us,
        measured.p99_us,
        measured.max_us,
    )?;
    Ok(())
}
