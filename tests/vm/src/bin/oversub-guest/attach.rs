//! The work [`Work::Attach`](oversub_vm::plan::Work::Attach): `oversub attach`, run by several
//! users for several processes, with daemons of several settings and rights. What is right is
//! the host's to judge.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use oversub_uvm::process::Process;
use oversub_uvm::session::UVM_PATH;
use oversub_vm::asked::{
    AttachAnswer, AttachCounts, AttachDaemon, AttachLoad, AttachRequest, OWNER, Rights, STRANGER,
    Target, Then,
};
use oversub_vm::plan::PROGRAMS_PATH;
use serde_json::Value;

use crate::daemon::{self, Daemon, SOCKET};
use crate::hold::Holder;
use crate::modules;
use crate::program::Running;
use crate::rights;

/// Yama's answer to who may look into whom.
pub const PTRACE_SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
/// Who may observe the kernel by its performance events, kprobes among them.
const PERF_PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";
/// Where a user's own daemon keeps its sockets.
const USERS_FOLDER: &str = "/tmp/of-user";
/// How long something may take that takes a few iterations.
const LIMIT: Duration = Duration::from_secs(120);
const INTERVAL: Duration = Duration::from_millis(20);

/// Runs it.
pub fn run(load: &AttachLoad) -> Result<AttachCounts> {
    let scope = fs::read_to_string(PTRACE_SCOPE).context("the kernel has no Yama")?;
    let paranoid = fs::read_to_string(PERF_PARANOID)?;
    let mut counts = AttachCounts::default();
    let owner = Rights {
        user: OWNER,
        capabilities: None,
    };
    let mut scene = Scene {
        program: Running::start_as(&load.program, &owner)?,
        holders: Vec::new(),
    };
    scene.wait_for_memory()?;
    for kind in Target::HOLDERS {
        scene.holders.push((kind, Holder::start(kind)?));
    }
    let mut last = None;
    for setting in &load.daemons {
        if let Some(daemon) = last.take() {
            Daemon::stop(daemon);
        }
        fs::write(PERF_PARANOID, setting.perf_event_paranoid.to_string())?;
        let daemon = match &setting.rights {
            Some(rights) => Some(Daemon::start_as(&configuration(setting), rights)?),
            None => None,
        };
        if let Some(daemon) = &daemon {
            let doctor = daemon.ask("doctor")?;
            eprintln!("{:?}: {}", setting.rights, doctor["driver"]["reason"]);
        }
        for request in &setting.requests {
            fs::write(PTRACE_SCOPE, request.ptrace_scope.to_string())?;
            let answer = match &daemon {
                Some(daemon) => scene.ask(daemon, request)?,
                None => scene.ask_without_daemon(request)?,
            };
            eprintln!("{request:?}: {answer:?}");
            counts.answers.push(answer);
        }
        last = daemon;
    }
    fs::write(PTRACE_SCOPE, scope.trim())?;
    fs::write(PERF_PARANOID, paranoid.trim())?;
    let Scene { program, holders } = scene;
    drop(holders);
    program.signal(libc::SIGCONT);
    counts.ok = program.finish()?.ok;
    // Nobody uses the driver now but, if it forgot to let go, the daemon.
    let unloaded = modules::reload_driver(&[]);
    if let Err(error) = &unloaded {
        eprintln!("the driver cannot be unloaded: {error:#}");
    }
    counts.unloaded = unloaded.is_ok();
    last.into_iter().for_each(Daemon::stop);
    Ok(counts)
}

fn configuration(setting: &AttachDaemon) -> String {
    let processes = setting.processes.as_ref();
    processes.map_or_else(String::new, |whose| {
        format!("[attach]\nprocesses = \"{whose}\"\n")
    })
}

/// `oversub attach`, by a user.
fn command(asker: u32, pid: u32, arguments: &[&str]) -> Command {
    let mut command = Command::new(format!("{PROGRAMS_PATH}/oversub"));
    let rights = Rights {
        user: asker,
        capabilities: None,
    };
    rights::give(&rights, &mut command);
    command
        .arg("attach")
        .args(arguments)
        .arg(pid.to_string())
        .stdin(Stdio::null());
    command
}

fn output(mut command: Command) -> Result<Output> {
    command.output().context("oversub cannot be started")
}

/// Asks the guest's daemon for a process that only holds memory, and leaves it at that.
pub fn ask_for(asker: u32, pid: u32) -> Result<(bool, String)> {
    let asked = output(command(asker, pid, &["--leave", "--socket", SOCKET]))?;
    let said = String::from_utf8_lossy(&asked.stderr).trim().to_owned();
    Ok((asked.status.success(), said))
}

/// Descriptors of the driver that a process has open.
fn descriptors(pid: u32) -> Result<u64> {
    let folder = format!("/proc/{pid}/fd");
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {folder}"))?;
    let open = entries.flatten().map(|entry| fs::read_link(entry.path()));
    // Its event queue too.
    let of_driver = |path: &PathBuf| path.to_string_lossy().starts_with(UVM_PATH);
    Ok(open
        .filter(|path| path.as_ref().is_ok_and(of_driver))
        .count() as u64)
}

/// The last attachment to a process, as a daemon shows it.
fn attachment(control: &Path, pid: u32) -> Result<Value> {
    let status = daemon::status_of(control)?;
    let all = status["attached"].as_array().map_or(&[][..], Vec::as_slice);
    let of_process = all.iter().rev().find(|view| view["pid"] == pid);
    Ok(of_process.cloned().unwrap_or(Value::Null))
}

/// Waits; `false`: in vain.
fn wait_for(mut happened: impl FnMut() -> Result<bool>) -> Result<bool> {
    let end = Instant::now() + LIMIT;
    while !happened()? {
        if Instant::now() > end {
            return Ok(false);
        }
        std::thread::sleep(INTERVAL);
    }
    Ok(true)
}

/// What can be attached to.
struct Scene {
    program: Running,
    holders: Vec<(Target, Holder)>,
}

impl Scene {
    /// Lets the program run until it has managed memory, and stops it.
    fn wait_for_memory(&mut self) -> Result<()> {
        let process = Process::open(self.program.id())?;
        let device = Path::new(UVM_PATH);
        let has_memory = || {
            ensure!(!process.has_ended(), "the program ended at once");
            Ok(!process.managed(device)?.is_empty())
        };
        ensure!(wait_for(has_memory)?, "the program has no managed memory");
        self.program.signal(libc::SIGSTOP);
        Ok(())
    }

    fn pid_of(&self, target: Target) -> Result<u32> {
        let mut holders = self.holders.iter();
        match (target, holders.find(|(kind, _)| *kind == target)) {
            (Target::Program, _) => Ok(self.program.id()),
            (_, Some((_, holder))) => Ok(holder.id()),
            (_, None) => bail!("{target:?} does not run"),
        }
    }

    /// Asks a daemon that runs, and does what follows.
    fn ask(&mut self, daemon: &Daemon, request: &AttachRequest) -> Result<AttachAnswer> {
        let pid = self.pid_of(request.target)?;
        let arguments = ["--leave", "--json", "--socket", SOCKET];
        let asked = output(command(request.asker, pid, &arguments))?;
        let mut answer = AttachAnswer {
            granted: asked.status.success(),
            said: String::from_utf8_lossy(&asked.stderr).trim().to_owned(),
            ..AttachAnswer::default()
        };
        if answer.granted {
            let view: Value = serde_json::from_slice(&asked.stdout)
                .with_context(|| format!("no figures of an attachment: {}", answer.said))?;
            answer.source = view["source"].as_str().unwrap_or_default().to_owned();
            answer.held = descriptors(daemon.id())?;
            self.follow(request, pid, &mut answer)?;
        }
        // The queue is closed a moment after the attachment has ended.
        wait_for(|| Ok(descriptors(daemon.id())? == 0))?;
        answer.left = descriptors(daemon.id())?;
        Ok(answer)
    }

    /// What follows where a daemon that runs has attached.
    fn follow(
        &mut self,
        request: &AttachRequest,
        pid: u32,
        answer: &mut AttachAnswer,
    ) -> Result<()> {
        let control = daemon::control();
        let view = || attachment(&control, pid);
        if request.then != Then::LetGo {
            self.program.signal(libc::SIGCONT);
        }
        match request.then {
            Then::LetGo => {}
            Then::Steer => {
                wait_for(|| Ok(view()?["moved_bytes"].as_u64() > Some(0)))?;
                self.program.signal(libc::SIGSTOP);
            }
            Then::SteerToEnd => self.program.let_end()?,
        }
        if request.then != Then::SteerToEnd {
            let stop = |who| output(command(who, pid, &["--stop", "--socket", SOCKET]));
            let strangers = stop(STRANGER)?;
            answer.stranger_told = String::from_utf8_lossy(&strangers.stderr).trim().to_owned();
            ensure!(
                view()?["ended"].is_null() && !strangers.status.success(),
                "another user had process {pid} let go: {}",
                answer.stranger_told
            );
            let asker = stop(request.asker)?;
            let said = String::from_utf8_lossy(&asker.stderr);
            ensure!(asker.status.success(), "it is not let go: {said}");
        }
        wait_for(|| Ok(view()?["ended"].is_string()))?;
        let last = view()?;
        answer.moved_bytes = last["moved_bytes"].as_u64().unwrap_or_default();
        answer.ended = last["ended"].as_str().unwrap_or_default().to_owned();
        Ok(())
    }

    /// Runs the command where no daemon is, which starts one of its own and stays.
    fn ask_without_daemon(&mut self, request: &AttachRequest) -> Result<AttachAnswer> {
        let pid = self.pid_of(request.target)?;
        let _ = fs::remove_dir_all(USERS_FOLDER);
        fs::create_dir_all(USERS_FOLDER)?;
        chown(USERS_FOLDER, Some(request.asker), Some(request.asker))?;
        let mut child = command(request.asker, pid, &["--json"])
            .env("TMPDIR", USERS_FOLDER)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("oversub cannot be started")?;
        let said = lines_of(&mut child)?;
        let mut answer = AttachAnswer::default();
        let listen = |limit: Duration, answer: &mut AttachAnswer| match said.recv_timeout(limit) {
            Ok(line) => {
                answer.granted |= line.contains("attached to");
                answer.said.push_str(&line);
                answer.said.push('\n');
                true
            }
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => false,
        };
        while !answer.granted && listen(LIMIT, &mut answer) {}
        if answer.granted && request.then != Then::LetGo {
            let control = own_control()?;
            self.program.signal(libc::SIGCONT);
            wait_for(|| Ok(attachment(&control, pid)?["moved_bytes"].as_u64() > Some(0)))?;
            self.program.signal(libc::SIGSTOP);
        }
        // As Ctrl-C.
        // SAFETY: the process is our child and not waited for yet.
        unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
        while listen(LIMIT, &mut answer) {}
        let ended = child.wait_with_output()?;
        if answer.granted {
            let last: Value = serde_json::from_slice(&ended.stdout)
                .with_context(|| format!("no figures of an attachment: {}", answer.said))?;
            answer.source = last["source"].as_str().unwrap_or_default().to_owned();
            answer.moved_bytes = last["moved_bytes"].as_u64().unwrap_or_default();
            answer.ended = last["ended"].as_str().unwrap_or_default().to_owned();
        }
        Ok(answer)
    }
}

/// The control socket of the daemon that a user's command has started.
fn own_control() -> Result<PathBuf> {
    for entry in fs::read_dir(USERS_FOLDER)?.flatten() {
        let socket = entry.path().join("control.sock");
        if socket.exists() {
            return Ok(socket);
        }
    }
    bail!("the command has started no daemon in {USERS_FOLDER}")
}

/// What a child says on standard error, line by line.
fn lines_of(child: &mut Child) -> Result<Receiver<String>> {
    let said = child.stderr.take().context("its output is not there")?;
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(said).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    Ok(lines)
}
