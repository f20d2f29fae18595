//! `oversub simulate --list`: what can be simulated.

use std::fmt::Write;

use oversub_sim::machine::{self, Machine};
use oversub_sim::policy::{Make, POLICIES};
use serde::Serialize;

use crate::table::aligned;

/// What a policy is told.
pub fn class(make: &Make) -> &'static str {
    match make {
        Make::Fault(_) => "faults",
        Make::Launch(_) => "launches",
        Make::Lifetime(_) => "lifetimes",
        Make::Future(_) | Make::Search(_) | Make::Best(_) => "future",
    }
}

#[derive(Serialize)]
struct List {
    policies: Vec<Policy>,
    machines: Vec<Constants>,
}

#[derive(Serialize)]
struct Policy {
    name: &'static str,
    class: &'static str,
    about: &'static str,
}

#[derive(Serialize)]
struct Constants {
    name: &'static str,
    about: &'static str,
    memory_bytes: u64,
    link_in: u64,
    link_out: u64,
    link_total: Option<u64>,
    fault_us: f64,
    fault_batch: u32,
    call_us: f64,
    host_bytes: Option<u64>,
    ssd_read: Option<u64>,
    ssd_write: Option<u64>,
}

fn list() -> List {
    List {
        policies: POLICIES
            .iter()
            .map(|entry| Policy {
                name: entry.name,
                class: class(&entry.make),
                about: entry.about,
            })
            .collect(),
        machines: machine::MACHINES
            .iter()
            .map(|named| Constants::of(named.name, named.about, &named.machine()))
            .collect(),
    }
}

impl Constants {
    fn of(name: &'static str, about: &'static str, machine: &Machine) -> Self {
        Self {
            name,
            about,
            memory_bytes: machine.memory_bytes,
            link_in: machine.link_in.0,
            link_out: machine.link_out.0,
            link_total: machine.link_total.map(|rate| rate.0),
            fault_us: machine.fault.as_micros_f64(),
            fault_batch: machine.fault_batch,
            call_us: machine.call.as_micros_f64(),
            host_bytes: machine.host_bytes,
            ssd_read: machine.ssd.map(|ssd| ssd.read.0),
            ssd_write: machine.ssd.map(|ssd| ssd.write.0),
        }
    }
}

/// As one JSON value.
pub fn json() -> serde_json::Result<String> {
    serde_json::to_string(&list())
}

/// For people.
pub fn text() -> String {
    let list = list();
    let mut out = String::from("Policies, and what each is told:\n\n");
    let width = |words: &mut dyn Iterator<Item = &'static str>| words.map(str::len).max();
    let name = width(&mut list.policies.iter().map(|policy| policy.name)).unwrap_or(0);
    for policy in &list.policies {
        let _ = writeln!(
            out,
            "  {:<name$}  {:<9}  {}",
            policy.name, policy.class, policy.about
        );
    }
    out.push_str(
        "\n  faults     the driver's faults, arrivals and evictions\n  \
           launches   and launches with their pointer arguments\n  \
           lifetimes  and what the framework's allocator hands out and takes back\n  \
           future     everything that will happen: no program can have it\n\nMachines:\n\n",
    );
    for machine in &list.machines {
        let _ = writeln!(out, "  {}: {}", machine.name, machine.about);
    }
    out.push('\n');
    let gb = |rate: u64| format!("{:.3}", rate as f64 / 1e9);
    let some = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let rows: Vec<[String; 9]> = list
        .machines
        .iter()
        .map(|machine| {
            [
                machine.name.to_owned(),
                format!("{:.1}", machine.memory_bytes as f64 / f64::from(1 << 30)),
                gb(machine.link_in),
                gb(machine.link_out),
                some(machine.link_total.map(gb)),
                format!("{}", machine.fault_us),
                machine.fault_batch.to_string(),
                format!("{}", machine.call_us),
                some(machine.ssd_read.map(gb)),
            ]
        })
        .collect();
    out.push_str(&aligned(
        &[
            "machine",
            "memory GiB",
            "in GB/s",
            "out GB/s",
            "both GB/s",
            "fault us",
            "batch",
            "call us",
            "SSD GB/s",
        ],
        &rows,
    ));
    out
}
