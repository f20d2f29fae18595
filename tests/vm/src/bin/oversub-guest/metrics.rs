//! The work [`Work::Metrics`](oversub_vm::plan::Work::Metrics): launches of this process that
//! evict for faults, evict for a call, thrash and wait, one after the other, and what the
//! daemon's metrics say of each, beside the driver's own event queue and procfs.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use oversub_uvm::CPU;
use oversub_uvm::session::Session;
use oversub_uvm::softgpu::{Access, SoftGpu, Touch};
use oversub_uvm::tools::{Cause, Event, Queue};
use oversub_vm::plan::{Checked, DriverCounts};

use crate::daemon::Daemon;
use crate::modules;
use crate::page::{
    BATCHES, CAPACITY_FAULTS, DROPS, EVICTIONS, HOST_FAULTS, LATENCIES, MERGED_FAULTS, MOVED, Page,
    RAW_FAULTS, THRASHING, THROTTLES,
};
use crate::probes::{self, PAGE};
use crate::witness::{CONTAINER, contain};

/// Where managed memory is put: no program or library is mapped there.
const BASE: u64 = 0x7e00_0000_0000;
const BLOCK: u64 = 2 << 20;
/// The driver takes pages for fought over that move to and fro within this, microseconds. Its
/// default is too short for an emulated processor.
const LAPSE: &str = "uvm_perf_thrashing_lapse_usec=20000";
/// So late a fault on an evicted block is none for lack of capacity.
const CAPACITY_THRASH_NS: u64 = 1_000_000_000;
/// So long everything that was evicted is forgotten, and everything fought over too.
const FORGETTING: Duration = Duration::from_millis(1500);
/// Blocks that a call moves to the device.
const CALLED_BLOCKS: u64 = 4;
/// How often a page goes to and fro.
const FIGHTS: u64 = 40;
const LAUNCH_LIMIT: Duration = Duration::from_secs(60);
const QUEUE_ENTRIES: u32 = 1 << 15;
/// How long the last events may take to get into the metrics.
const LIMIT: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_millis(50);

/// Runs it.
pub fn run() -> Result<Checked> {
    modules::reload_driver(&[LAPSE])?;
    contain(std::process::id())?;
    let daemon = Daemon::start()?;
    let checked = Launches::begin().and_then(Launches::all);
    daemon.stop();
    checked
}

/// What the driver itself says of a time: its queue's events, and its procfs.
#[derive(Default)]
struct Truth {
    procfs: DriverCounts,
    fought_over: u64,
    evictions: u64,
    capacity_faults: u64,
    host_faults: u64,
    thrashing: u64,
    throttles: u64,
}

struct Launches {
    device: SoftGpu,
    session: Session,
    queue: Queue,
    blocks: u64,
    /// When blocks were evicted, by the queue: until they fault again.
    evicted: HashMap<u64, u64>,
    page: Page,
    procfs: DriverCounts,
    fought_over: u64,
    found: Checked,
}

impl Launches {
    fn begin() -> Result<Self> {
        let device = SoftGpu::open()?;
        let info = device.info()?;
        let session = Session::open(info.uuid, std::process::id())?;
        device.bind(session.channel())?;
        let queue = Queue::attach(session.file(), QUEUE_ENTRIES)?;
        let blocks = info.memory_bytes * 3 / 2 / BLOCK;
        // SAFETY: nothing else of this process is mapped there.
        unsafe { session.map_managed(BASE, blocks * BLOCK)? };
        Ok(Self {
            device,
            session,
            queue,
            blocks,
            evicted: HashMap::new(),
            page: Page::get()?,
            procfs: probes::procfs()?,
            fought_over: fought_over()?,
            found: Checked::default(),
        })
    }

    fn all(mut self) -> Result<Checked> {
        self.sweep(PAGE)?;
        let first = self.compare("a first sweep", Payer::Fault)?;
        self.found.must(first.capacity_faults == 0, || {
            "faults on blocks that were never there are capacity faults".to_owned()
        });
        self.sweep(BLOCK)?;
        let again = self.compare("a second sweep", Payer::Fault)?;
        let faults = again.procfs.merged_faults;
        self.found.must(again.capacity_faults == faults, || {
            format!("{} of {faults} are capacity faults", again.capacity_faults)
        });
        std::thread::sleep(FORGETTING);
        self.sweep(BLOCK)?;
        let late = self.compare("a sweep after a while", Payer::Fault)?;
        let faults = late.procfs.merged_faults;
        self.found.must(late.capacity_faults < faults, || {
            format!("all of {faults} late faults are capacity faults")
        });
        let (called, gpu) = (CALLED_BLOCKS * BLOCK, self.session.gpu());
        self.session.migrate(BASE, called, CPU)?;
        // What that leaves free is taken first.
        self.touch(BASE + called, self.blocks - CALLED_BLOCKS, BLOCK)?;
        self.compare("a sweep of the others", Payer::Fault)?;
        self.session.migrate(BASE, called, gpu)?;
        let call = self.compare("a call", Payer::Call)?;
        self.found.must(call.evictions > 0, || {
            "a call into a full device evicted nothing".to_owned()
        });
        std::thread::sleep(FORGETTING);
        self.fight()?;
        let fight = self.compare("a fight", Payer::Nobody)?;
        self.found
            .must(fight.thrashing > 0 && fight.throttles > 0, || {
                let (seen, waits) = (fight.thrashing, fight.throttles);
                format!("no fight over a page: seen {seen} times, {waits} waits")
            });
        for (name, count) in [
            ("evictions for a call", call.evictions),
            (
                "capacity faults",
                again.capacity_faults + late.capacity_faults,
            ),
            ("thrashing", fight.thrashing),
            ("throttles", fight.throttles),
        ] {
            self.found.count(name, count);
        }
        Ok(self.found)
    }

    fn touch(&self, address: u64, count: u64, stride: u64) -> Result<()> {
        let touch = Touch {
            access: Access::Write,
            address,
            count,
            stride,
            value: 1,
            in_flight: 256,
        };
        self.device.touch(touch, LAUNCH_LIMIT)?;
        Ok(())
    }

    /// The device writes to every block, one after the other.
    fn sweep(&self, stride: u64) -> Result<()> {
        for block in 0..self.blocks {
            self.touch(BASE + block * BLOCK, BLOCK / stride, stride)?;
        }
        Ok(())
    }

    /// The host and the device write to a page in turns.
    fn fight(&self) -> Result<()> {
        for turn in 0..FIGHTS {
            // SAFETY: within the mapping, aligned; no launch runs.
            unsafe { (BASE as *mut u64).write_volatile(turn) };
            self.touch(BASE, 1, PAGE)?;
        }
        Ok(())
    }

    /// What the driver says of the time since the last comparison.
    fn truth(&mut self) -> Result<Truth> {
        let mut events = Vec::new();
        self.queue.flush(self.session.file())?;
        self.queue.drain(|event| events.push(event));
        let (procfs, fights) = (probes::procfs()?, fought_over()?);
        let mut truth = Truth {
            procfs: procfs.procfs_since(self.procfs),
            fought_over: fights - self.fought_over,
            ..Truth::default()
        };
        (self.procfs, self.fought_over) = (procfs, fights);
        // Migrations are told when their copies have ended.
        events.sort_by_key(time_of);
        // Copies of a block that is evicted once have no fault or other block between them.
        let mut leaving = BTreeSet::new();
        for event in events {
            match event {
                Event::Migration {
                    address,
                    cause: Cause::Eviction,
                    time_ns,
                    ..
                } => {
                    let block = address / BLOCK;
                    truth.evictions += u64::from(leaving.insert(block));
                    self.evicted.insert(block, time_ns);
                }
                Event::GpuFault {
                    address, time_ns, ..
                } => {
                    let block = address / BLOCK;
                    leaving.remove(&block);
                    let late = |at: u64| time_ns - at > CAPACITY_THRASH_NS;
                    let evicted = self.evicted.remove(&block);
                    truth.capacity_faults += u64::from(evicted.is_some_and(|at| !late(at)));
                }
                Event::Migration { address, .. } => {
                    leaving.remove(&(address / BLOCK));
                }
                Event::CpuFault { .. } => truth.host_faults += 1,
                Event::Thrashing { .. } => truth.thrashing += 1,
                Event::Throttle { .. } => truth.throttles += 1,
                Event::Replay { .. } | Event::Other(_) => {}
            }
        }
        Ok(truth)
    }

    /// Compares the metrics of this process with what the driver says.
    fn compare(&mut self, what: &str, payer: Payer) -> Result<Truth> {
        let truth = self.truth()?;
        let end = Instant::now() + LIMIT;
        let (page, wrong) = loop {
            let page = Page::get()?;
            let wrong = differences(&self.page, &page, &truth, payer);
            if wrong.is_empty() || Instant::now() > end {
                break (page, wrong);
            }
            std::thread::sleep(INTERVAL);
        };
        self.page = page;
        let told = wrong.into_iter().map(|wrong| format!("{what}: {wrong}"));
        self.found.wrong.extend(told);
        Ok(truth)
    }
}

/// For whose sake blocks are evicted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Payer {
    Fault,
    Call,
    Nobody,
}

/// What the metrics say that the driver does not.
fn differences(before: &Page, now: &Page, truth: &Truth, payer: Payer) -> Vec<String> {
    let process = format!("process=\"{}\"", std::process::id());
    let container = format!("container=\"{CONTAINER}\"");
    let whose = [process.as_str(), container.as_str()];
    let sum = |name: &str, labels: &[&str]| {
        let labels = [&whose[..], labels].concat();
        now.sum(name, &labels) - before.sum(name, &labels)
    };
    // Of the host's faults, and of fights, no device is told.
    let of_device =
        |name: &str, labels: &[&str]| sum(name, &[&["gpu=\"GPU-"][..], labels].concat());
    let moved = |direction: &str| of_device(MOVED, &[direction]) / PAGE;
    let evicted = |payer: &str| of_device(EVICTIONS, &["kind=\"used\"", payer]);
    let paid = |by: Payer| if payer == by { truth.evictions } else { 0 };
    let procfs = &truth.procfs;
    let mut wrong: Vec<_> = [
        ("raw faults", of_device(RAW_FAULTS, &[]), procfs.faults),
        (
            "faults",
            of_device(MERGED_FAULTS, &[]),
            procfs.merged_faults,
        ),
        ("batches", of_device(BATCHES, &[]), procfs.batches),
        (
            "batches in the histogram",
            of_device(LATENCIES, &["le=\"+Inf\""]),
            procfs.batches,
        ),
        ("pages in", moved("direction=\"in\""), procfs.pages_in),
        ("pages out", moved("direction=\"out\""), procfs.pages_out),
        ("host faults", sum(HOST_FAULTS, &[]), truth.host_faults),
        (
            "capacity faults",
            of_device(CAPACITY_FAULTS, &[]),
            truth.capacity_faults,
        ),
        (
            "evictions for faults",
            evicted("payer=\"fault\""),
            paid(Payer::Fault),
        ),
        (
            "evictions for calls",
            evicted("payer=\"call\""),
            paid(Payer::Call),
        ),
        (
            "evictions for nobody known",
            evicted("payer=\"unknown\""),
            0,
        ),
        ("thrashing", sum(THRASHING, &[]), truth.fought_over),
        ("throttles", sum(THROTTLES, &[]), truth.throttles),
        (
            "lost events",
            now.sum(DROPS, &[]) - before.sum(DROPS, &[]),
            0,
        ),
    ]
    .into_iter()
    .filter(|(_, told, happened)| told != happened)
    .map(|(name, told, happened)| format!("{name}: {told} in the metrics, {happened} happened"))
    .collect();
    if truth.thrashing != truth.fought_over {
        let (queue, procfs) = (truth.thrashing, truth.fought_over);
        wrong.push(format!(
            "thrashing: {queue} in the queue, {procfs} in procfs"
        ));
    }
    wrong
}

fn time_of(event: &Event) -> u64 {
    match *event {
        Event::CpuFault { time_ns, .. }
        | Event::Migration { time_ns, .. }
        | Event::GpuFault { time_ns, .. }
        | Event::Replay { time_ns, .. }
        | Event::Thrashing { time_ns, .. }
        | Event::Throttle { time_ns, .. } => time_ns,
        Event::Other(_) => 0,
    }
}

/// Pages that processors fought over, by the driver's procfs of the host and of the device.
fn fought_over() -> Result<u64> {
    let mut folders = vec![PathBuf::from("/proc/driver/nvidia-uvm/cpu")];
    let gpus = "/proc/driver/nvidia-uvm/gpus";
    for entry in fs::read_dir(gpus).with_context(|| format!("cannot read {gpus}"))? {
        folders.push(entry?.path());
    }
    // A GPU has its own by its number, and not in the folder of its UUID.
    folders.retain(|folder| folder.join("thrashing_stats").exists());
    let mut sum = 0;
    for folder in folders {
        let file = folder.join("thrashing_stats");
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let number = text
            .lines()
            .find_map(|line| line.strip_prefix("thrashing "));
        let number = number.and_then(|word| word.trim().parse::<u64>().ok());
        sum += number.with_context(|| format!("no thrashing in {}", file.display()))?;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of everything another number; the first series is of the faults before merging.
    fn page(more_in: Option<usize>, process: u32) -> Page {
        let whose = format!("process=\"{process}\",container=\"{CONTAINER}\"");
        let gpu = "gpu=\"GPU-1\"";
        let series = [
            (RAW_FAULTS, gpu, 12),
            (MERGED_FAULTS, gpu, 11),
            (BATCHES, gpu, 3),
            (LATENCIES, &format!("{gpu},le=\"+Inf\""), 3),
            (MOVED, &format!("{gpu},direction=\"in\""), 5 * PAGE),
            (MOVED, &format!("{gpu},direction=\"out\""), 6 * PAGE),
            (HOST_FAULTS, "gpu=\"none\"", 7),
            (CAPACITY_FAULTS, gpu, 2),
            (
                EVICTIONS,
                &format!("{gpu},kind=\"used\",payer=\"fault\""),
                4,
            ),
            (EVICTIONS, &format!("{gpu},kind=\"used\",payer=\"call\""), 0),
            (
                EVICTIONS,
                &format!("{gpu},kind=\"used\",payer=\"unknown\""),
                0,
            ),
            (THRASHING, "gpu=\"none\"", 8),
            (THROTTLES, gpu, 9),
        ];
        let lines = series
            .iter()
            .enumerate()
            .map(|(index, (name, labels, value))| {
                let value = value + if more_in == Some(index) { PAGE } else { 0 };
                format!("{name}{{{labels},{whose}}} {value}\n")
            });
        Page(lines.collect())
    }

    fn truth() -> Truth {
        Truth {
            procfs: DriverCounts {
                faults: 12,
                merged_faults: 11,
                batches: 3,
                pages_in: 5,
                pages_out: 6,
                ..DriverCounts::default()
            },
            fought_over: 8,
            thrashing: 8,
            evictions: 4,
            capacity_faults: 2,
            host_faults: 7,
            throttles: 9,
        }
    }

    fn told(page: &Page) -> Vec<String> {
        differences(&Page(String::new()), page, &truth(), Payer::Fault)
    }

    #[test]
    fn metrics_that_say_what_the_driver_says_pass() {
        assert_eq!(told(&page(None, std::process::id())), [""; 0]);
    }

    #[test]
    fn every_metric_that_says_something_else_is_told() {
        for index in 0..13 {
            let told = told(&page(Some(index), std::process::id()));
            assert_eq!(told.len(), 1, "{index}: {told:?}");
        }
    }

    #[test]
    fn what_stands_under_another_process_does_not_count() {
        assert!(told(&page(None, std::process::id() + 1)).len() >= 9);
    }
}
