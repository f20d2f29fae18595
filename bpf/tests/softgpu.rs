//! The whole way on this kernel: probe points in this very executable, hit by its own
//! threads, through BPF and the ring, to typed events.
//!
//! Needs root and a kernel with BPF. Where the machine has both, a refusal is a failure;
//! elsewhere each test says that it was skipped.
#![cfg(target_arch = "x86_64")]
#![expect(
    clippy::unwrap_used,
    reason = "clippy's exception knows #[test] functions only"
)]

use std::arch::naked_asm;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use oversub_bpf::event::What;
use oversub_bpf::host::UvmFacts;
use oversub_bpf::offsets::KernelSizes;
use oversub_bpf::plan::{How, Probe, uvm_symbols};
use oversub_bpf::target::TargetError;
use oversub_bpf::{
    AttachError, Attached, Cause, Direction, Eviction, HostFacts, Intake, Payer, PlanOptions,
    ProbeEvent, ProbePlan, ProbeState, Source,
};

macro_rules! probe_point {
    ($name:ident($($argument:ident),*)) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: u64),*) {
            naked_asm!(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00", "ret")
        }
    };
}

probe_point!(oversub_softgpu_fault(_address, _faults, _by_host, _batch));
probe_point!(oversub_softgpu_batch(_batch, _faults, _service_ns));
probe_point!(oversub_softgpu_migration(
    _address, _bytes, _direction, _cause
));
probe_point!(oversub_softgpu_populate(_address, _bytes));
probe_point!(oversub_softgpu_eviction(_address, _bytes, _kind));

/// The probes hit every user of this executable: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn executable() -> std::path::PathBuf {
    std::env::current_exe().unwrap()
}

/// The intake attached to this executable; `None`: this machine cannot, and that is right.
fn intake() -> Option<Intake> {
    intake_by(|_| {})
}

/// The same, after a change to the plan.
fn intake_by(change: impl FnOnce(&mut ProbePlan)) -> Option<Intake> {
    let facts = HostFacts::gather();
    let should_work = facts.may_bpf && facts.btf;
    let mut plan = ProbePlan::choose(&facts, PlanOptions::default());
    change(&mut plan);
    let mut intake = Intake::start(&plan);
    match intake.attach_softgpu(&executable()) {
        Ok(attached) => {
            assert_eq!(attached, Attached::New);
            Some(intake)
        }
        Err(error) if should_work => panic!("this machine should allow BPF: {error}"),
        Err(error) => {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: no BPF on this machine: {error}"
            );
            None
        }
    }
}

/// Waits for `count` events of this process.
fn collect(intake: &mut Intake, count: usize) -> Vec<ProbeEvent> {
    let mut events = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(20);
    while events.len() < count && Instant::now() < deadline {
        wait(intake, 100);
        drain(intake, &mut events);
    }
    drain(intake, &mut events);
    events
}

fn drain(intake: &mut Intake, events: &mut Vec<ProbeEvent>) {
    let mine = |event: &ProbeEvent| event.tgid == Some(std::process::id());
    let mut keep = |event: ProbeEvent| events.extend(Some(event).filter(mine));
    intake.drain(&mut keep).unwrap();
}

/// Waits until the descriptor is readable; whether it is.
fn wait(intake: &Intake, milliseconds: i32) -> bool {
    let fd = intake.epoll_fd().unwrap().as_raw_fd();
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&raw mut poll, 1, milliseconds) == 1 }
}

#[test]
fn every_probe_point_arrives_with_its_arguments() {
    let _alone = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(mut intake) = intake() else { return };
    oversub_softgpu_fault(0x7f00_0020_3000, 12, 0, 7);
    oversub_softgpu_fault(0x7f00_0040_0000, 1, 1, 8);
    oversub_softgpu_migration(0x7f00_0020_0000, 0x1_0000, 0, 3);
    oversub_softgpu_migration(0x7f00_0060_0000, 0x20_0000, 1, 4);
    oversub_softgpu_populate(0x7f00_0080_0000, 0x20_0000);
    oversub_softgpu_eviction(0x7f00_0060_0000, 0x20_0000, 2);
    oversub_softgpu_batch(7, 12, 45_000);
    let events = collect(&mut intake, 7);
    let what: Vec<What> = events.iter().map(|event| event.what).collect();
    let fault = |address, faults, by_host, batch| What::Fault {
        address,
        faults,
        raw_faults: faults,
        batch,
        by_host,
    };
    let migration = |address, bytes, direction, cause| What::Migration {
        address,
        bytes,
        direction,
        cause,
    };
    assert_eq!(
        what,
        [
            fault(0x7f00_0020_3000, 12, false, 7),
            fault(0x7f00_0040_0000, 1, true, 8),
            migration(0x7f00_0020_0000, 0x1_0000, Direction::IN, Cause::PREFETCH),
            migration(0x7f00_0060_0000, 0x20_0000, Direction::OUT, Cause::EVICTION),
            What::Populate {
                address: 0x7f00_0080_0000,
                bytes: 0x20_0000
            },
            What::Eviction {
                address: 0x7f00_0060_0000,
                bytes: 0x20_0000,
                kind: Eviction::USED,
                duration_ns: 0,
                payer: Payer::Unknown
            },
            What::Batch {
                batch: 7,
                faults: 12,
                service_ns: 45_000
            },
        ]
    );
    assert!(events.iter().all(|event| event.source == Source::SoftGpu));
    assert!(
        events
            .windows(2)
            .all(|pair| pair[0].time_ns <= pair[1].time_ns)
    );
    assert_eq!((intake.drops(), intake.undecodable()), (0, 0));
}

#[test]
fn an_older_kernels_way_of_attaching_brings_the_same_events() {
    let _alone = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let single = |plan: &mut ProbePlan| {
        if let Ok(how) = &mut plan.probes[0].1 {
            *how = How::Uprobe;
        }
    };
    let Some(mut intake) = intake_by(single) else {
        return;
    };
    assert_eq!(intake.report()[0].how, "uprobe");
    oversub_softgpu_populate(3, 4);
    oversub_softgpu_eviction(5, 6, 1);
    let what: Vec<What> = collect(&mut intake, 2)
        .iter()
        .map(|event| event.what)
        .collect();
    let (address, bytes, duration_ns) = (5, 6, 0);
    let evicted = What::Eviction {
        address,
        bytes,
        kind: Eviction::DISCARDED,
        duration_ns,
        payer: Payer::Unknown,
    };
    assert_eq!(
        what,
        [
            What::Populate {
                address: 3,
                bytes: 4
            },
            evicted
        ]
    );
}

#[test]
fn the_drivers_programs_pass_the_verifier_and_each_probe_stands_alone() {
    let _alone = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut facts = HostFacts::gather();
    if !facts.may_bpf || !facts.btf || facts.uvm.is_some() {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: no BPF, or a real driver, on this machine"
        );
        return;
    }
    // As if the driver were here: the programs load, and no function is there to attach to.
    facts.kprobes = true;
    for version in [
        "535.183.01",
        "550.163.01",
        "570.211.01",
        "580.142",
        "595.45.04",
    ] {
        facts.uvm = Some(UvmFacts {
            version: version.parse().ok(),
            symbols: uvm_symbols().collect(),
            described: Default::default(),
            sizes: Some(KernelSizes {
                rw_semaphore: 40,
                mutex: 32,
            }),
        });
        let plan = ProbePlan::choose(&facts, PlanOptions::default());
        let report = Intake::start(&plan).report();
        assert_eq!(report.len(), Probe::ALL.len());
        assert_eq!(
            report[0].state,
            ProbeState::Waiting,
            "the soft GPU's probe is unharmed"
        );
        for probe in &report[1..] {
            assert_eq!(probe.state, ProbeState::Failed);
            let reason = &probe.reason;
            let told = reason.starts_with("attaching ") || reason.starts_with("nothing could");
            assert!(told, "{}: {reason}", probe.probe);
        }
    }
}

#[test]
fn latency_is_measured_on_every_hit() {
    let _alone = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(mut intake) = intake() else { return };
    let measured = oversub_bpf::probe_latency(&mut intake, 2_000, 500).unwrap();
    assert_eq!((measured.hits, measured.lost), (500, 0));
    assert!(0.0 < measured.p50_us && measured.p50_us <= measured.p99_us);
    assert!(measured.p99_us <= measured.max_us);
}

#[test]
fn a_file_is_attached_once_by_whatever_name_and_reported() {
    let _alone = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(mut intake) = intake() else { return };
    let other_name = format!("/proc/{}/exe", std::process::id());
    assert_eq!(
        intake.attach_softgpu(Path::new(&other_name)).unwrap(),
        Attached::Already
    );
    let report = intake.report();
    assert_eq!(report[0].probe, "softgpu");
    assert_eq!(report[0].state, ProbeState::Active);
    assert!(report[0].how.starts_with("uprobe"), "{}", report[0].how);
    oversub_softgpu_populate(1, 2);
    assert_eq!(
        collect(&mut intake, 1).len(),
        1,
        "once, not once per attachment"
    );
}

#[test]
fn twenty_thousand_events_a_second_for_two_seconds_all_arrive_in_order() {
    let _alone = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    const EVENTS: u64 = 40_000;
    let Some(mut intake) = intake() else { return };
    let mut events = Vec::new();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let start = Instant::now();
            for number in 0..EVENTS {
                let due = start + Duration::from_micros(number * 50);
                if let Some(early) = due.checked_duration_since(Instant::now()) {
                    std::thread::sleep(early);
                }
                oversub_softgpu_fault(number << 21, 1, 0, 1);
            }
        });
        while !writer.is_finished() {
            wait(&intake, 10);
            drain(&mut intake, &mut events);
        }
    });
    while wait(&intake, 0) {
        drain(&mut intake, &mut events);
    }
    assert_eq!(intake.drops(), 0);
    assert_eq!(events.len() as u64, EVENTS);
    for (number, event) in (0..).zip(&events) {
        assert!(matches!(event.what, What::Fault { address, .. } if address == number << 21));
    }
}

#[test]
fn events_that_nobody_reads_are_dropped_and_counted_exactly() {
    let _alone = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    // More than the ring holds.
    const EVENTS: u64 = 100_000;
    let Some(mut intake) = intake() else { return };
    for number in 0..EVENTS {
        oversub_softgpu_populate(number, 1);
    }
    let mut events = Vec::new();
    while wait(&intake, 0) {
        drain(&mut intake, &mut events);
    }
    assert!(intake.drops() > 0);
    assert_eq!(events.len() as u64 + intake.drops(), EVENTS);
}

#[test]
fn a_drain_ends_at_its_limit_and_the_descriptor_stays_readable() {
    let _alone = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(mut intake) = intake() else { return };
    for number in 0..oversub_bpf::intake::DRAIN_LIMIT as u64 + 10 {
        oversub_softgpu_populate(number, 1);
    }
    assert!(wait(&intake, 1000));
    assert_eq!(
        intake.drain(&mut |_| {}).unwrap(),
        oversub_bpf::intake::DRAIN_LIMIT
    );
    assert!(wait(&intake, 1000));
    assert_eq!(intake.drain(&mut |_| {}).unwrap(), 10);
    assert!(!wait(&intake, 0));
}

#[test]
fn files_that_are_no_soft_gpu_are_refused_with_their_reason() {
    let _alone = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(mut intake) = intake() else { return };
    let refused = |path: &str, intake: &mut Intake| match intake.attach_softgpu(Path::new(path)) {
        Err(AttachError::Target(error)) => error,
        other => panic!("{path}: {other:?}"),
    };
    assert!(matches!(
        refused("/no/such/file", &mut intake),
        TargetError::Read { .. }
    ));
    assert!(matches!(
        refused("/proc", &mut intake),
        TargetError::NotRegular { .. }
    ));
    assert!(matches!(
        refused("/dev/null", &mut intake),
        TargetError::NotRegular { .. }
    ));
    assert!(matches!(
        refused("/etc/passwd", &mut intake),
        TargetError::NotElf { .. }
    ));
    assert!(matches!(
        refused("/bin/sh", &mut intake),
        TargetError::NoPoint { .. }
    ));
}

#[test]
fn a_probe_point_that_begins_with_another_instruction_is_refused() {
    let _alone = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(mut intake) = intake() else { return };
    // This executable, with its no-ops followed by a return exchanged for something else.
    let mut copy = std::fs::read(executable()).unwrap();
    let point = [0x0f, 0x1f, 0x44, 0x00, 0x00, 0xc3];
    let found: Vec<usize> = copy
        .windows(6)
        .enumerate()
        .filter(|(_, six)| *six == point)
        .map(|(at, _)| at)
        .collect();
    assert!(found.len() >= 5, "the probe points of this file");
    for at in found {
        copy[at..at + 5].copy_from_slice(&[0xf3, 0x0f, 0x1e, 0xfa, 0x90]);
    }
    let path = std::env::temp_dir().join(format!("ovs-endbr-{}", std::process::id()));
    std::fs::write(&path, copy).unwrap();
    let outcome = intake.attach_softgpu(&path);
    std::fs::remove_file(&path).unwrap();
    let Err(AttachError::Target(TargetError::NotCheap { found, .. })) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(found[..4], [0xf3, 0x0f, 0x1e, 0xfa]);
}

#[test]
fn without_privilege_everything_is_off_with_its_reason_and_nothing_fails() {
    let plan = ProbePlan::choose(&HostFacts::default(), PlanOptions::default());
    let mut intake = Intake::start(&plan);
    assert!(!wait(&intake, 0));
    assert_eq!(intake.drain(&mut |_| {}).unwrap(), 0);
    let report = intake.report();
    assert_eq!(report.len(), Probe::ALL.len());
    for probe in report {
        assert_eq!(probe.state, ProbeState::Off);
        assert!(!probe.reason.is_empty() && probe.how.is_empty());
    }
    let refused = intake.attach_softgpu(&executable());
    assert!(matches!(refused, Err(AttachError::Off(_))), "{refused:?}");
}
