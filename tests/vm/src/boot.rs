//! Runs a guest in QEMU and tells what became of it. Always by emulation (TCG), so that a
//! run does not depend on the host's virtualisation; and in virtual time, which goes by the
//! instructions that the guest executes: what happens in it, and in which order, does not
//! depend on what else the host does.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::plan::{Answer, ROUND};

/// How much longer than its processor time a guest may take on a busy host.
const PATIENCE: u32 = 10;
/// Lines of the console that an error shows.
const TAIL: usize = 30;

/// A guest to run.
#[derive(Clone, Debug)]
pub struct Guest {
    /// Kernel image.
    pub kernel: PathBuf,
    /// Root file system.
    pub image: PathBuf,
    /// Folder for what it prints.
    pub logs: PathBuf,
    /// Its memory, MiB.
    pub memory_mib: u32,
    /// It is killed after so much of the host's processor time, and after
    /// [`PATIENCE`] times as long in any case.
    pub limit: Duration,
}

/// Why a guest gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// QEMU could not be started.
    #[error("{program} cannot be run: {source}; install qemu-system-x86")]
    Start {
        /// The program.
        program: &'static str,
        /// Of the operating system.
        source: io::Error,
    },
    /// It took too long and was killed.
    #[error("the guest was killed after {} s of processor time without an answer; its console ({console}) ends:\n{tail}", limit.as_secs())]
    Hung {
        /// The limit.
        limit: Duration,
        /// File with all that it printed.
        console: String,
        /// The end of that.
        tail: String,
    },
    /// It ended without an answer.
    #[error("the guest ended ({status}) without an answer; its console ({console}) ends:\n{tail}")]
    Died {
        /// QEMU's exit status.
        status: ExitStatus,
        /// File with all that it printed.
        console: String,
        /// The end of that.
        tail: String,
    },
    /// A file of the run could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Of the operating system.
        source: io::Error,
    },
}

/// Everything that QEMU emulates, but without the promise that string instructions are
/// fast: kernels would copy by them, and they are emulated byte by byte.
const CPU: &str = "max,-erms,-fsrm";
/// The kernel's command line. A busy host lets the guest's processors wait for long: what
/// the kernel makes of that (no timer, lock-ups, stalls) says nothing about the driver, and a
/// guest that hangs is killed anyway.
const COMMAND_LINE: &str = "console=ttyS0 rdinit=/init panic=-1 oops=panic quiet loglevel=5 \
    mitigations=off nokaslr no_timer_check nosoftlockup rcupdate.rcu_cpu_stall_suppress=1";
const QEMU: &str = "qemu-system-x86_64";

impl Guest {
    /// Boots it and waits for its answer. The console stays in `logs`.
    ///
    /// # Errors
    /// [`BootError`].
    pub fn run(&self) -> Result<Answer, BootError> {
        let file = |path: &Path| {
            let path = path.display().to_string();
            move |source| BootError::File { path, source }
        };
        fs::create_dir_all(&self.logs).map_err(file(&self.logs))?;
        let console = self.logs.join("console.log");
        let answer = self.logs.join("answer.json");
        for path in [&console, &answer] {
            fs::write(path, "").map_err(file(path))?;
        }
        let mut child = self.start(&console, &answer)?;
        let mut rounds = RoundTimes::default();
        let status = wait(&mut child, self.limit, |spent| {
            rounds.look(&console, spent);
        });
        let status = status.map_err(file(Path::new(QEMU)))?;
        let text = fs::read_to_string(&answer).map_err(file(&answer))?;
        let found: Option<Answer> = text
            .lines()
            .rev()
            .find_map(|line| serde_json::from_str(line.trim()).ok());
        let printed = fs::read(&console).map_err(file(&console))?;
        let tail = tail(&String::from_utf8_lossy(&printed));
        let console = console.display().to_string();
        match (found, status) {
            (Some(answer), _) => Ok(rounds.told(answer)),
            (None, Some(status)) => Err(BootError::Died {
                status,
                console,
                tail,
            }),
            (None, None) => Err(BootError::Hung {
                limit: self.limit,
                console,
                tail,
            }),
        }
    }

    fn start(&self, console: &Path, answer: &Path) -> Result<Child, BootError> {
        let mut qemu = Command::new(QEMU);
        // One processor: there is one thread to emulate it anyway, and QEMU 7.2 (Debian 12)
        // brings no second one up in virtual time.
        qemu.args(["-accel", "tcg,thread=single", "-cpu", CPU, "-smp", "1"]);
        // One instruction is a nanosecond; a guest that waits for time gets it at once.
        qemu.args(["-icount", "shift=0,sleep=off"]);
        qemu.args(["-m", &self.memory_mib.to_string()]);
        qemu.args([
            "-nodefaults",
            "-display",
            "none",
            "-no-reboot",
            "-device",
            "edu",
        ]);
        qemu.arg("-serial")
            .arg(format!("file:{}", console.display()));
        qemu.arg("-serial")
            .arg(format!("file:{}", answer.display()));
        qemu.arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&self.image);
        qemu.args(["-append", COMMAND_LINE]);
        qemu.stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: prctl is async-signal-safe; the guest ends with who runs it.
        unsafe {
            qemu.pre_exec(
                || match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                },
            );
        }
        qemu.spawn().map_err(|source| BootError::Start {
            program: QEMU,
            source,
        })
    }
}

/// What each round took of the host's processors, by the lines that the guest prints at a
/// round's end.
#[derive(Debug, Default)]
struct RoundTimes {
    seen: u64,
    ends: Vec<Duration>,
}

impl RoundTimes {
    fn look(&mut self, console: &Path, spent: Duration) {
        let length = fs::metadata(console).map_or(0, |file| file.len());
        if length == self.seen {
            return;
        }
        self.seen = length;
        let text = fs::read(console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let ended = text.lines().filter(|line| line.starts_with(ROUND)).count();
        while self.ends.len() < ended {
            self.ends.push(spent);
        }
    }

    /// The first round's time has the boot's in it.
    fn told(&self, mut answer: Answer) -> Answer {
        let mut before = Duration::ZERO;
        for (round, end) in answer.rounds.iter_mut().zip(&self.ends) {
            round.processor_seconds = end.saturating_sub(before).as_secs_f64();
            before = *end;
        }
        answer
    }
}

/// Waits for the child's end; `None`: it was killed at the limit. Tells again and again what
/// it has used of the processors.
fn wait(
    child: &mut Child,
    limit: Duration,
    mut spends: impl FnMut(Duration),
) -> io::Result<Option<ExitStatus>> {
    let end = Instant::now() + PATIENCE * limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let spent = processor_time(child.id());
        spends(spent);
        if Instant::now() >= end || spent >= limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What a process has used of the processors (proc(5): fields 14 and 15 of stat).
fn processor_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in brackets, may hold spaces.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.filter_map(|field| field.parse::<u64>().ok()).sum();
    // SAFETY: no pointers.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
    Duration::from_millis(ticks * 1000 / per_second)
}

fn tail(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_does_not_end_is_killed_and_said_to_hang() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let status = wait(&mut child, Duration::from_millis(100), |_| ()).unwrap();
        assert_eq!(status, None);
        assert!(child.try_wait().unwrap().is_some(), "it is gone");
    }

    #[test]
    fn a_child_that_computes_without_end_is_killed_by_its_processor_time() {
        let mut child = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let limit = Duration::from_millis(200);
        assert_eq!(wait(&mut child, limit, |_| ()).unwrap(), None);
    }

    #[test]
    fn a_child_that_ends_gives_its_status() {
        let mut child = Command::new("false").spawn().unwrap();
        let status = wait(&mut child, Duration::from_secs(60), |_| ()).unwrap();
        assert_eq!(status.and_then(|status| status.code()), Some(1));
    }

    #[test]
    fn a_round_takes_what_was_spent_between_the_lines_that_end_rounds() {
        let console = std::env::temp_dir().join(format!("oversub-rounds-{}", std::process::id()));
        let seconds = Duration::from_secs;
        let mut times = RoundTimes::default();
        fs::write(&console, format!("booting\n{ROUND}one: done\n")).unwrap();
        times.look(&console, seconds(5));
        times.look(&console, seconds(6));
        fs::write(
            &console,
            format!("booting\n{ROUND}one: done\n\n{ROUND}two: x\n"),
        )
        .unwrap();
        times.look(&console, seconds(9));
        fs::remove_file(&console).unwrap();
        assert_eq!(times.ends, [seconds(5), seconds(9)]);
    }

    #[test]
    fn the_tail_is_the_last_lines() {
        let text: String = (0..100).map(|n| format!("{n}\n")).collect();
        assert!(tail(&text).starts_with("70\n") && tail(&text).ends_with("\n99"));
    }
}
