//! The work [`Work::Faults`](oversub_vm::plan::Work::Faults): launches whose accesses fault,
//! more memory than the GPU has, and every count of it side by side.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use oversub_uvm::CPU;
use oversub_uvm::session::Session;
use oversub_uvm::softgpu::{Access, SoftGpu, Touch};
use oversub_uvm::tools::{Cause, Event, Queue};
use oversub_vm::plan::{FaultCounts, FaultLoad};

/// Where managed memory is put: no program or library is mapped there.
const BASE: u64 = 0x7e00_0000_0000;
const BLOCK: u64 = 2 << 20;
/// Faults of a launch before it waits: a batch of the driver's.
const IN_FLIGHT: u32 = 256;
const LAUNCH_LIMIT: Duration = Duration::from_secs(300);
const QUEUE_ENTRIES: u32 = 1 << 17;
/// The GPU's index in the queue's events; 0 is the CPU.
const CPU_INDEX: u8 = 0;

/// Runs it.
pub fn run(load: &FaultLoad) -> Result<FaultCounts> {
    let device = SoftGpu::open()?;
    let info = device.info()?;
    let bytes = (info.memory_bytes as f64 * load.ratio) as u64 / BLOCK * BLOCK;
    let words = bytes / load.stride;
    let session = Session::open(info.uuid, std::process::id())?;
    device.bind(session.channel())?;
    let mut queue = Queue::attach(session.file(), QUEUE_ENTRIES)?;
    // SAFETY: nothing else of this process is mapped there.
    unsafe { session.map_managed(BASE, bytes)? };

    // The CPU writes first, so that the first sweep has content to bring in.
    for index in 0..words {
        // SAFETY: within the mapping, aligned; no launch runs.
        unsafe { ((BASE + index * load.stride) as *mut u64).write(seed(index)) };
    }
    let touch = |access, value| Touch {
        access,
        address: BASE,
        count: words,
        stride: load.stride,
        value,
        in_flight: IN_FLIGHT,
    };
    let read = device.touch(touch(Access::Read, 0), LAUNCH_LIMIT)?;
    let expected = (0..words).map(seed).fold(0u64, u64::wrapping_add);
    let mut counts = FaultCounts {
        words: 1,
        wrong_words: u64::from(read.sum != expected),
        ..FaultCounts::default()
    };
    for sweep in 1..=load.sweeps {
        device.touch(touch(Access::Write, value(sweep)), LAUNCH_LIMIT)?;
    }
    // The driver writes its counts and events when the copies end: this makes them.
    session.migrate(BASE, bytes, CPU)?;
    let last = value(load.sweeps);
    for index in 0..words {
        // SAFETY: within the mapping, aligned; no launch runs.
        let word = unsafe { ((BASE + index * load.stride) as *const u64).read() };
        counts.words += 1;
        counts.wrong_words += u64::from(word != last + index);
    }
    queue.flush(session.file())?;
    count_events(&mut queue, &mut counts)?;
    count_procfs(&mut counts)?;
    let after = device.info()?;
    counts.device = after.fault_packets - info.fault_packets;
    counts.dropped_copies = after.dropped_copies;
    Ok(counts)
}

/// What the CPU writes, and what sweep `n` of the GPU writes, word by word.
fn seed(index: u64) -> u64 {
    index.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn value(sweep: u32) -> u64 {
    u64::from(sweep) << 32
}

fn count_events(queue: &mut Queue, counts: &mut FaultCounts) -> Result<()> {
    queue.drain(|event| match event {
        Event::GpuFault { .. } => counts.tools += 1,
        Event::Migration {
            bytes,
            cause,
            target,
            ..
        } => {
            if target == CPU_INDEX {
                counts.tools_bytes_out += bytes;
            } else {
                counts.tools_bytes_in += bytes;
            }
            if cause == Cause::Eviction {
                counts.evicted_bytes += bytes;
            }
        }
        _ => {}
    });
    counts.tools_dropped = queue.dropped();
    Ok(())
}

/// The driver's own counts, of the one GPU that is there. Names that occur twice (for
/// replayable and other faults) count the first time: replayable ones come first.
fn count_procfs(counts: &mut FaultCounts) -> Result<()> {
    let gpus = "/proc/driver/nvidia-uvm/gpus";
    let mut found = None;
    for entry in fs::read_dir(gpus).with_context(|| format!("cannot read {gpus}"))? {
        let path = entry?.path().join("fault_stats");
        if path.exists() {
            found = Some(fs::read_to_string(&path)?);
        }
    }
    let text = found.with_context(|| format!("no fault_stats below {gpus}"))?;
    let mut numbers = HashMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if let (Some(name), Some(Ok(number))) = (words.next(), words.next().map(str::parse::<u64>))
        {
            numbers.entry(name).or_insert(number);
        }
    }
    let number = |name: &str| numbers.get(name).copied();
    let [Some(faults), Some(pages_in), Some(pages_out)] =
        ["replayable_faults", "num_pages_in", "num_pages_out"].map(number)
    else {
        bail!("fault_stats has another form:\n{text}");
    };
    counts.procfs = faults;
    counts.procfs_pages_in = pages_in;
    counts.procfs_pages_out = pages_out;
    Ok(())
}
