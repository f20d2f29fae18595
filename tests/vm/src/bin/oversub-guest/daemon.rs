//! A daemon in the guest, as a user runs it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use oversub_vm::asked::Rights;
use oversub_vm::plan::{DAEMON_CONFIG_PATH, PROGRAMS_PATH};
use serde_json::{Value, json};

use crate::rights;

/// Where programs find it.
pub const SOCKET: &str = "/run/oversub/oversubd.sock";
/// Where it serves its metrics.
pub const HTTP: &str = "127.0.0.1:9464";
/// What is added to the configuration when the driver's event queue is to be read.
const ON_QUEUE: &str = "[probes]\nmode = \"queue\"\n";
const CONFIG: &str = "/tmp/oversubd.toml";
const LOG: &str = "/tmp/oversubd.log";
/// How long it may take to open its socket.
const LIMIT: Duration = Duration::from_secs(60);

/// A running daemon.
pub struct Daemon {
    child: Child,
}

/// Where it answers questions.
pub fn control() -> PathBuf {
    Path::new(SOCKET).with_file_name("control.sock")
}

impl Daemon {
    /// Starts one and waits until it takes programs in. It listens before that: who came
    /// then would try again a second later, when much of the program is over.
    pub fn start() -> Result<Self> {
        Self::start_as("", &Rights::ROOT)
    }

    /// The same, with the driver's event queue in the place of probes.
    pub fn start_on_queue() -> Result<Self> {
        Self::start_as(ON_QUEUE, &Rights::ROOT)
    }

    /// The same, with more in its configuration, and with these rights.
    pub fn start_as(more: &str, rights: &Rights) -> Result<Self> {
        let mut config = fs::read_to_string(DAEMON_CONFIG_PATH)?;
        config.push_str(more);
        fs::write(CONFIG, config)?;
        let log = File::create(LOG)?;
        // A daemon that was killed has left its own.
        let _ = fs::remove_file(control());
        // As a service manager makes it (RuntimeDirectory=).
        if let Some(folder) = Path::new(SOCKET).parent() {
            fs::create_dir_all(folder)?;
            chown(folder, Some(rights.user), Some(rights.user))?;
        }
        let mut command = Command::new(format!("{PROGRAMS_PATH}/oversubd"));
        rights::give(rights, &mut command);
        let child = command
            .args(["--config", CONFIG])
            .args(["--socket", SOCKET])
            .args(["--http", HTTP])
            .stdout(log.try_clone()?)
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()
            .context("oversubd cannot be started")?;
        let mut daemon = Self { child };
        let end = Instant::now() + LIMIT;
        while daemon.ask("status").is_err() {
            let ended = daemon.child.try_wait()?;
            if ended.is_some() || Instant::now() > end {
                daemon.stop();
                bail!("oversubd did not open its socket");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(daemon)
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its answer to a question on the control socket.
    pub fn ask(&self, question: &str) -> Result<Value> {
        request(&control(), &json!(question), question)
    }

    /// Has it steer a process from outside, as `oversub attach` does.
    pub fn attach(&self, pid: u32) -> Result<()> {
        request(&control(), &json!({ "attach": pid }), "attached").map(drop)
    }

    /// Ends it as a crash does.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        show();
        Ok(())
    }

    /// Ends it as a service manager does, and shows what it said.
    pub fn stop(mut self) {
        // SAFETY: the process is our child and not waited for yet.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        let _ = self.child.wait();
        show();
    }
}

/// What the daemon of a control socket says of what runs.
pub fn status_of(control: &Path) -> Result<Value> {
    request(control, &json!("status"), "status")
}

/// What a daemon answers to a request, by the name that the answer has.
fn request(control: &Path, request: &Value, name: &str) -> Result<Value> {
    let mut stream = UnixStream::connect(control).context("oversubd does not listen")?;
    writeln!(stream, "{}", json!({ "version": 1, "request": request }))?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let answer: Value = serde_json::from_str(&line).context("oversubd's answer")?;
    match answer.get(name) {
        Some(answer) => Ok(answer.clone()),
        None => bail!("oversubd answers {answer}"),
    }
}

fn show() {
    eprintln!("{}", fs::read_to_string(LOG).unwrap_or_default());
}
