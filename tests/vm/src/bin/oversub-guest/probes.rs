//! The work [`Work::Probes`](oversub_vm::plan::Work::Probes): launches that fault, with the
//! product's probes on the driver and its reader of the event queue beside them, compared
//! with the driver's own counters.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use oversub_bpf::offsets::UvmLayout;
use oversub_bpf::{
    Cause, Direction, Eviction, HostFacts, Intake, PlanOptions, ProbeEvent, ProbePlan, ProbeReport,
    ProbeState, Trust, What,
};
use oversub_uvm::session::Session;
use oversub_uvm::softgpu::{Access, SoftGpu, Touch};
use oversub_vm::plan::{DriverCounts, ProbeCounts, ProbeLoad};

use crate::modules;

/// Where managed memory is put: no program or library is mapped there.
const BASE: u64 = 0x7e00_0000_0000;
const BLOCK: u64 = 2 << 20;
/// Bytes of a page, in which procfs counts.
pub const PAGE: u64 = 4096;
/// Faults of a launch before it waits: a batch of the driver's.
const IN_FLIGHT: u32 = 256;
const LAUNCH_LIMIT: Duration = Duration::from_secs(60);
/// What the queue tells late: it is asked again, so often.
const LATE_DRAINS: u32 = 20;
const LATE_DRAIN_INTERVAL: Duration = Duration::from_millis(20);

/// Runs it.
pub fn run(load: &ProbeLoad) -> Result<ProbeCounts> {
    let options = PlanOptions {
        pin_driver: load.pin_driver,
        ..PlanOptions::default()
    };
    let facts = HostFacts::gather();
    let mut plan = ProbePlan::choose(&facts, options);
    if let (Some(version), Some(uvm)) = (&load.layout_of, &facts.uvm) {
        let version = version.parse().map_err(anyhow::Error::msg)?;
        plan.layout = UvmLayout::of(version, uvm.sizes);
    }
    let mut intake = Intake::start(&plan);
    for report in intake.report() {
        let (probe, state) = (report.probe, report.state);
        eprintln!("{probe}: {state} {} {}", report.how, report.reason);
    }
    eprintln!("layout: {}", intake.trust());
    if load.reload {
        // Probes must not keep the module, and must find it again.
        modules::reload_driver(&[]).context("the driver cannot be loaded anew under probes")?;
        ensure!(
            intake.follow_driver(options),
            "the new driver was not noticed"
        );
        eprintln!("layout after loading anew: {}", intake.trust());
    }
    let mut counts = sweep(load, &mut intake)?;
    counts.attached = attached(&intake);
    counts.verified = intake.trust() == Trust::Verified;
    counts.scalar = matches!(intake.trust(), Trust::Scalar(_));
    (counts.checked, counts.implausible) = intake.checked();
    counts.probe_drops = intake.drops();
    Ok(counts)
}

/// How the probes on the driver are attached.
fn attached(intake: &Intake) -> BTreeMap<String, String> {
    let active = |report: &ProbeReport| report.state == ProbeState::Active;
    let reports = intake.report().into_iter().filter(active);
    reports
        .map(|report| (report.probe.to_owned(), report.how))
        .collect()
}

/// Launches of this process, and what everybody counts of them.
pub fn sweep(load: &ProbeLoad, intake: &mut Intake) -> Result<ProbeCounts> {
    // The self-test's events are none of the launches'.
    let mut probes = DriverCounts::default();
    drain(intake, &mut probes)?;
    let mut probes = DriverCounts::default();
    let device = SoftGpu::open()?;
    let info = device.info()?;
    let bytes = (info.memory_bytes as f64 * load.ratio) as u64 / BLOCK * BLOCK;
    let words = bytes / load.stride;
    let session = Session::open(info.uuid, std::process::id())?;
    device.bind(session.channel())?;
    let mut queue = Intake::start(&ProbePlan::off("the event queue is to be compared"));
    queue.observe_process(std::process::id())?;
    let mut queued = DriverCounts::default();
    let before = procfs()?;
    // SAFETY: nothing else of this process is mapped there.
    unsafe { session.map_managed(BASE, bytes)? };
    for index in 0..words {
        // SAFETY: within the mapping, aligned; no launch runs.
        unsafe { ((BASE + index * load.stride) as *mut u64).write(index) };
    }
    let mut take = |intake: &mut Intake| -> Result<()> {
        drain(intake, &mut probes)?;
        drain(&mut queue, &mut queued)
    };
    take(intake)?;
    let mut device_faults = 0;
    for sweep in 1..=load.sweeps {
        let touch = Touch {
            access: Access::Write,
            address: BASE,
            count: words,
            stride: load.stride,
            value: u64::from(sweep) << 32,
            in_flight: IN_FLIGHT,
        };
        device_faults += device.touch(touch, LAUNCH_LIMIT)?.faults;
        take(intake)?;
    }
    session.migrate(BASE, 4 * BLOCK, session.gpu())?;
    let last = u64::from(load.sweeps) << 32;
    let mut wrong_words = 0;
    for index in 0..words {
        // SAFETY: within the mapping, aligned; no launch runs.
        let word = unsafe { ((BASE + index * load.stride) as *const u64).read() };
        wrong_words += u64::from(word != last + index);
    }
    for _ in 0..LATE_DRAINS {
        take(intake)?;
        std::thread::sleep(LATE_DRAIN_INTERVAL);
    }
    let after = procfs()?;
    let queue_drops = queue.drops();
    Ok(ProbeCounts {
        probes,
        queue: queued,
        procfs: after.procfs_since(before),
        device_faults,
        queue_drops,
        wrong_words,
        ..ProbeCounts::default()
    })
}

fn drain(intake: &mut Intake, counts: &mut DriverCounts) -> Result<()> {
    while intake.drain(&mut |event| count(counts, &event))? > 0 {}
    Ok(())
}

/// Adds one event.
fn count(counts: &mut DriverCounts, event: &ProbeEvent) {
    // The service loop is the device's, not a process's.
    if matches!(event.what, What::ServiceBegin | What::ServiceEnd { .. }) {
        return;
    }
    counts.of_nobody += u64::from(event.tgid.is_none());
    match event.what {
        What::Fault { by_host: true, .. } => counts.host_faults += 1,
        What::Fault { faults: 0, .. } => counts.blocks_faulted += 1,
        What::Fault {
            faults, raw_faults, ..
        } => {
            counts.faults += u64::from(raw_faults);
            counts.merged_faults += u64::from(faults);
        }
        What::Batch { .. } => counts.batches += 1,
        What::Migration { bytes: 0, .. } => counts.blocks_moved += 1,
        What::Migration {
            bytes,
            direction,
            cause,
            ..
        } => {
            let pages = bytes / PAGE;
            let of_fault = matches!(cause, Cause::REPLAYABLE_FAULT | Cause::PREFETCH);
            let fault_pages = if of_fault { pages } else { 0 };
            if direction == Direction::IN {
                counts.pages_in += pages;
                counts.fault_pages_in += fault_pages;
            } else {
                counts.pages_out += pages;
                counts.fault_pages_out += fault_pages;
            }
            if cause == Cause::EVICTION {
                counts.evicted_pages += pages;
            }
        }
        What::Eviction { kind, .. } if kind == Eviction::USED => counts.evictions += 1,
        _ => {}
    }
}

/// The driver's own counters, of the one GPU that is there.
pub fn procfs() -> Result<DriverCounts> {
    let gpus = "/proc/driver/nvidia-uvm/gpus";
    let (mut stats, mut info) = (String::new(), String::new());
    for entry in fs::read_dir(gpus).with_context(|| format!("cannot read {gpus}"))? {
        let path = entry?.path();
        // One folder by UUID, one link by number.
        if let Ok(text) = fs::read_to_string(path.join("fault_stats")) {
            stats = text;
        }
        if let Ok(text) = fs::read_to_string(path.join("info")) {
            info = text;
        }
    }
    // Names that occur twice count the first time: replayable faults come first.
    let number = |text: &str, name: &str| -> Result<u64> {
        for line in text.lines() {
            let mut words = line.split_whitespace();
            if words.next() == Some(name) {
                let number = words.next().and_then(|word| word.parse().ok());
                return number.with_context(|| format!("{name} is no number"));
            }
        }
        bail!("no {name} in the driver's procfs:\n{text}")
    };
    let faults = number(&stats, "replayable_faults")?;
    Ok(DriverCounts {
        faults,
        merged_faults: faults - number(&stats, "duplicates")?,
        batches: number(&stats, "start")?,
        fault_pages_in: number(&stats, "num_pages_in")?,
        fault_pages_out: number(&stats, "num_pages_out")?,
        pages_in: number(&info, "migrated_pages_in")?,
        pages_out: number(&info, "migrated_pages_out")?,
        ..DriverCounts::default()
    })
}
