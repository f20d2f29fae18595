//! The work [`Work::Hostile`](oversub_vm::plan::Work::Hostile): processes that open, map,
//! unmap, migrate, fork, exec and die at random while probes and event queues observe them.
//! Afterwards the same probes must count a quiet program's faults exactly.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use oversub_bpf::{HostFacts, Intake, PlanOptions, ProbePlan, Trust};
use oversub_uvm::session::Session;
use oversub_uvm::softgpu::{Access, SoftGpu, Touch};
use oversub_uvm::{CPU, Uuid};
use oversub_vm::plan::{Checked, HostileLoad, ProbeLoad};

use crate::probes;

/// First argument of a process that misuses the driver.
pub const HOSTILE: &str = "--hostile";
/// Such processes at a time.
const PROCESSES: usize = 3;
/// Where they map; no program or library is there.
const WINDOW: u64 = 0x7d00_0000_0000;
const BLOCK: u64 = 2 << 20;
/// Blocks of the window, of which a mapping takes some.
const BLOCKS: u64 = 12;
const LAUNCH_LIMIT: Duration = Duration::from_secs(2);
const ORPHANS_LIMIT: Duration = Duration::from_secs(60);

/// Runs it.
pub fn run(load: &HostileLoad) -> Result<Checked> {
    let mut found = Checked::default();
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
    let facts = HostFacts::gather();
    let mut intake = Intake::start(&ProbePlan::choose(&facts, PlanOptions::default()));
    let mut queue = Intake::start(&ProbePlan::off("the event queue is to be tried"));
    let (mut started, mut killed, mut queued, mut events) = (0u64, 0, 0, 0u64);
    let mut random = Random(load.seed);
    let mut running: Vec<Child> = Vec::new();
    let end = Instant::now() + Duration::from_secs(load.seconds.into());
    while Instant::now() < end {
        while running.len() < PROCESSES {
            started += 1;
            let child = Command::new("/proc/self/exe")
                .args([HOSTILE, &random.next().to_string(), "0"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .context("a hostile process cannot be started")?;
            running.push(child);
        }
        // Whoever it is by then: a process that has no space yet, or none any more, too.
        let some = random.below(running.len() as u64) as usize;
        queued += u64::from(queue.observe_process(running[some].id()).is_ok());
        if random.below(8) == 0 {
            running[some].kill()?;
            killed += 1;
        }
        for intake in [&mut intake, &mut queue] {
            events += intake.drain(&mut |_| {})? as u64;
        }
        std::thread::sleep(Duration::from_millis(random.below(40)));
        let mut kept = Vec::new();
        for mut child in running {
            if child.try_wait()?.is_none() {
                kept.push(child);
            }
        }
        running = kept;
    }
    for mut child in running {
        child.kill()?;
        child.wait()?;
    }
    reap_orphans()?;
    for (name, count) in [
        ("processes", started),
        ("killed", killed),
        ("queues opened", queued),
        ("events", events),
        ("dropped", intake.drops() + queue.drops()),
    ] {
        found.count(name, count);
    }
    found.must(queued > 0 && events > 0, || {
        "hostile processes were not observed".to_owned()
    });
    drop(queue);

    let dropped = intake.drops();
    let quiet = probes::sweep(&quiet_load(), &mut intake)?;
    found.must(intake.trust() == Trust::Verified, || {
        format!(
            "the driver's structures are not believed any more: {}",
            intake.trust()
        )
    });
    found.must(quiet.wrong_words == 0, || {
        format!("{} words of a quiet program are wrong", quiet.wrong_words)
    });
    found.must(intake.drops() == dropped, || {
        "events of a quiet program were dropped".to_owned()
    });
    found.must(
        quiet.probes.faults == quiet.procfs.faults && quiet.probes.faults > 0,
        || {
            format!(
                "probes count {} faults of a quiet program, procfs {}",
                quiet.probes.faults, quiet.procfs.faults
            )
        },
    );
    Ok(found)
}

fn quiet_load() -> ProbeLoad {
    ProbeLoad {
        ratio: 1.5,
        sweeps: 1,
        stride: 16384,
        layout_of: None,
        pin_driver: false,
        reload: false,
    }
}

/// Waits for what killed processes have forked: as their subreaper, this one is their parent.
fn reap_orphans() -> Result<()> {
    let end = Instant::now() + ORPHANS_LIMIT;
    loop {
        // SAFETY: no status is asked for. No `Child` is left that it could be taken from.
        match unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } {
            0 => std::thread::sleep(Duration::from_millis(10)),
            -1 => return Ok(()),
            _ => {}
        }
        ensure!(
            Instant::now() < end,
            "forks of hostile processes do not end"
        );
    }
}

/// xorshift64*: the same seed, the same misuse.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 33) % limit.max(1)
    }
}

/// A hostile process: some dozen acts, whose failures are part of the game.
pub fn misuse(seed: &str, depth: &str) {
    let mut random = Random(seed.parse().unwrap_or(0) | 1);
    let depth: u64 = depth.parse().unwrap_or(0);
    let mut open: Vec<(Session, SoftGpu)> = Vec::new();
    for _ in 0..random.below(60) {
        act(&mut random, &mut open, depth);
    }
}

fn act(random: &mut Random, open: &mut Vec<(Session, SoftGpu)>, depth: u64) {
    let at = WINDOW + random.below(BLOCKS) * BLOCK;
    let bytes = (1 + random.below(4)) * BLOCK;
    let some = random.below(open.len().max(1) as u64) as usize;
    let act = random.below(12);
    match (act, open.get(some)) {
        (0 | 1, _) if open.len() < 3 => open.extend(space(random)),
        (2 | 3, Some((session, _))) => {
            // SAFETY: nothing but such mappings is in the window.
            let _ = unsafe { session.map_managed(at, bytes) };
        }
        (4 | 5, Some((_, device))) => launch(random, device, at, bytes),
        (6, Some((session, device))) => {
            let gpu = device.info().map_or(CPU, |info| info.uuid);
            let to = if random.below(2) == 0 { CPU } else { gpu };
            let _ = session.migrate(at, bytes, to);
        }
        (7, Some((session, _))) => advise(random, session, at, bytes),
        (8, _) => unmap(
            at + random.below(512) * 4096,
            (1 + random.below(512)) * 4096,
        ),
        (9, Some(_)) => drop(open.swap_remove(some)),
        (10, _) if depth < 3 => fork(random, depth),
        (11, _) if random.below(4) == 0 => again(random, depth),
        _ => poke(random, at),
    }
}

/// What a CUDA context does when it is made.
fn space(random: &mut Random) -> Option<(Session, SoftGpu)> {
    let device = SoftGpu::open().ok()?;
    let info = device.info().ok()?;
    let channel = random.next() as u32;
    let session = Session::open(info.uuid, channel).ok()?;
    device.bind(channel).ok()?;
    Some((session, device))
}

fn launch(random: &mut Random, device: &SoftGpu, at: u64, bytes: u64) {
    let access = match random.below(3) {
        0 => Access::Read,
        1 => Access::Write,
        _ => Access::Atomic,
    };
    // Beyond the end of a mapping the driver cancels.
    let touch = Touch {
        access,
        address: at,
        count: bytes / 4096 + random.below(64),
        stride: 4096,
        value: random.next(),
        in_flight: 1 + random.below(256) as u32,
    };
    let _ = device.touch(touch, LAUNCH_LIMIT);
}

fn advise(random: &mut Random, session: &Session, at: u64, bytes: u64) {
    let gpu: Uuid = session.gpu();
    let _ = match random.below(5) {
        0 => session.prefer(at, bytes, Some(CPU)),
        1 => session.prefer(at, bytes, Some(gpu)),
        2 => session.prefer(at, bytes, None),
        3 => session.access_by_gpu(at, bytes, random.below(2) == 0),
        _ => session.duplicate_reads(at, bytes, random.below(2) == 0),
    };
}

fn unmap(at: u64, bytes: u64) {
    // SAFETY: nothing but managed mappings is in the window, and no reference into it.
    unsafe { libc::munmap(at as *mut libc::c_void, bytes as usize) };
}

/// The child has copies of all descriptors and none of the mappings.
fn fork(random: &mut Random, depth: u64) {
    let fate = random.below(3);
    let seed = random.next();
    // SAFETY: this process has one thread.
    if unsafe { libc::fork() } == 0 {
        match fate {
            0 => unmap(WINDOW, BLOCKS * BLOCK),
            1 => again(&mut Random(seed | 1), depth + 1),
            _ => {}
        }
        // SAFETY: ends the child without the parent's destructors.
        unsafe { libc::_exit(0) };
    }
}

/// Begins anew in the same process.
fn again(random: &mut Random, depth: u64) {
    let seed = random.next().to_string();
    let _ = Command::new("/proc/self/exe")
        .args([HOSTILE, &seed, &(depth + 1).to_string()])
        .exec();
}

/// The CPU writes a word, if one is mapped there: a pipe tells without a signal.
fn poke(random: &mut Random, at: u64) {
    let mut pipe = [0; 2];
    // SAFETY: an array of two; the kernel checks the address that is read from.
    unsafe {
        if libc::pipe(pipe.as_mut_ptr()) != 0 {
            return;
        }
        let word = (at + random.below(512) * 4096) as *mut libc::c_void;
        // Writing into the pipe reads the memory, reading from it writes the memory.
        if libc::write(pipe[1], word, 8) == 8 {
            libc::read(pipe[0], word, 8);
        }
        libc::close(pipe[0]);
        libc::close(pipe[1]);
    }
}
