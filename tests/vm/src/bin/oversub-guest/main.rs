//! Init of a test guest: mounts what programs expect, does the plan that lies in its root
//! file system, writes the answer to the second serial port and switches the guest off.
//!
//! Nothing here may end the process before that: a kernel without init panics, and the
//! host would see a guest that died.

mod advice;
mod attach;
mod daemon;
mod doctor;
mod faults;
mod hold;
mod hostile;
mod metrics;
mod modules;
mod page;
mod probes;
mod program;
mod restarts;
mod rights;
mod source;
mod system;
mod witness;

use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use oversub_vm::plan::{Answer, Outcome, PLAN_PATH, Plan, ROUND, Round, Rounded, Work};

/// First argument of a process that does one piece of work.
const WORK: &str = "--work";
const ANSWERS: &str = "/dev/ttyS1";

fn main() {
    // The kernel gives init arguments too: those of its own that it does not know.
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, flag, work] = arguments.as_slice()
        && flag == WORK
    {
        work_alone(work);
        return;
    }
    if let [_, flag, kind] = arguments.as_slice()
        && flag == hold::HOLD
    {
        hold::hold(kind);
        return;
    }
    if let [_, flag, seed, depth] = arguments.as_slice()
        && flag == hostile::HOSTILE
    {
        hostile::misuse(seed, depth);
        return;
    }
    if std::process::id() != 1 {
        eprintln!("oversub-guest is the init of a test guest; tests/vm/run starts one");
        std::process::exit(2);
    }
    let answer = run();
    match answer.and_then(|answer| {
        let text = serde_json::to_string(&answer)?;
        fs::write(ANSWERS, format!("{text}\n")).with_context(|| format!("cannot write {ANSWERS}"))
    }) {
        Ok(()) => {}
        Err(error) => println!("oversub-guest: {error:#}"),
    }
    system::power_off();
}

fn run() -> Result<Answer> {
    system::mount_all()?;
    system::loopback_up()?;
    let plan = fs::read_to_string(PLAN_PATH).with_context(|| format!("cannot read {PLAN_PATH}"))?;
    let plan: Plan = serde_json::from_str(&plan).context("the plan cannot be read")?;
    let boot_seconds = system::uptime_seconds();
    let mut answer = Answer {
        kernel: system::kernel_release(),
        driver: String::new(),
        btf: false,
        boot_seconds,
        rounds: Vec::new(),
        kernel_trouble: Vec::new(),
    };
    for round in &plan.rounds {
        let began = Instant::now();
        let outcome = one_round(round, &mut answer).map_err(|error| format!("{error:#}"));
        println!("{ROUND}{}: {:?}", round.name, outcome);
        answer.rounds.push(Rounded {
            name: round.name.clone(),
            seconds: began.elapsed().as_secs_f64(),
            processor_seconds: 0.0,
            outcome,
        });
    }
    answer.kernel_trouble = system::kernel_trouble()?;
    Ok(answer)
}

fn one_round(round: &Round, answer: &mut Answer) -> Result<Outcome> {
    let loaded = modules::Loaded::load(round)?;
    answer.driver = modules::version()?;
    answer.btf = fs::exists("/sys/kernel/btf/nvidia_uvm").unwrap_or(false);
    let outcome = in_child(&round.work);
    let unloaded = loaded.unload();
    match (outcome, unloaded) {
        (Ok(outcome), Ok(())) => Ok(outcome),
        (Ok(_), Err(error)) => bail!("the modules cannot be unloaded: {error:#}"),
        (Err(error), _) => Err(error),
    }
}

/// Does a piece of work in a process of its own: its end closes and unmaps everything.
fn in_child(work: &Work) -> Result<Outcome> {
    let output = Command::new("/proc/self/exe")
        .args([WORK, &serde_json::to_string(work)?])
        .stderr(Stdio::inherit())
        .output()
        .context("the work's process cannot be started")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let outcome: std::result::Result<Outcome, String> = serde_json::from_str(text.trim())
        .with_context(|| {
            format!(
                "the work's process ended ({}) without an outcome",
                output.status
            )
        })?;
    outcome.map_err(anyhow::Error::msg)
}

/// The other side of [`in_child`].
fn work_alone(work: &str) {
    let outcome = serde_json::from_str(work)
        .context("the work cannot be read")
        .and_then(|work| {
            Ok(match work {
                Work::Faults(load) => Outcome::Faults(faults::run(&load)?),
                Work::Program(load) => Outcome::Program(Box::new(program::run(&load)?)),
                Work::Probes(load) => Outcome::Probes(Box::new(probes::run(&load)?)),
                Work::Restarts(load) => Outcome::Checked(restarts::run(&load)?),
                Work::Metrics => Outcome::Checked(metrics::run()?),
                Work::Doctor(load) => Outcome::Checked(doctor::run(&load)?),
                Work::Advice => Outcome::Checked(advice::run()?),
                Work::Attach(load) => Outcome::Attach(attach::run(&load)?),
                Work::Source(load) => Outcome::Source(Box::new(source::run(&load)?)),
                Work::Hostile(load) => Outcome::Checked(hostile::run(&load)?),
            })
        });
    let outcome = outcome.map_err(|error| format!("{error:#}"));
    match serde_json::to_string(&outcome) {
        Ok(text) => println!("{text}"),
        Err(error) => eprintln!("oversub-guest: {error}"),
    }
}
