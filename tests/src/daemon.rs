//! A daemon for a suite, and questions to it.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::binary;
use crate::program::{clean, outcome, oversub, wait_for};

/// A running daemon, killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    folder: TempDir,
    child: Child,
    http: String,
    policy: &'static str,
}

impl Daemon {
    /// Starts one with its socket in a folder of its own and waits until it answers.
    pub fn start() -> Self {
        Self::of_policy("foresight")
    }

    /// As [`Daemon::start`], with this policy for programs that ask for none.
    pub fn of_policy(policy: &'static str) -> Self {
        let folder = tempfile::tempdir().expect("makes a folder");
        // A free port: nothing else here takes ports in between.
        let http = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .expect("finds a free port")
            .to_string();
        let child = spawn(folder.path(), &http, policy);
        let daemon = Self {
            folder,
            child,
            http,
            policy,
        };
        daemon.wait_until_ready();
        daemon
    }

    /// Where programs connect.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("oversubd.sock")
    }

    /// Address of its HTTP listener.
    pub fn http(&self) -> &str {
        &self.http
    }

    /// Ends it with `SIGKILL`, as the kernel's out-of-memory killer would.
    pub fn kill(&mut self) {
        self.child.kill().expect("kills the daemon");
        self.child.wait().expect("waits for the daemon");
    }

    /// Starts it anew at the same socket.
    pub fn restart(&mut self) {
        self.child = spawn(self.folder.path(), &self.http, self.policy);
        self.wait_until_ready();
    }

    /// What `oversub status --json` says.
    pub fn status(&self) -> Value {
        status(&self.socket()).expect("the daemon answers")
    }

    fn wait_until_ready(&self) {
        wait_for("the daemon to answer", || status(&self.socket()));
    }

    /// The end of its log, for messages.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(folder: &Path, http: &str, policy: &str) -> Child {
    let log = File::options()
        .create(true)
        .append(true)
        .open(folder.join("log"))
        .expect("opens the daemon's log");
    let mut command = Command::new(binary("oversubd"));
    clean(&mut command);
    command
        .arg("--socket")
        .arg(folder.join("oversubd.sock"))
        .args(["--http", http, "--policy", policy])
        .stdout(log.try_clone().expect("shares the log"))
        .stderr(log)
        .stdin(Stdio::null())
        .spawn()
        .expect("starts oversubd")
}

fn status(socket: &Path) -> Option<Value> {
    let mut command = oversub(&["status", "--json", "--socket"]);
    let told = outcome(command.arg(socket));
    told.status
        .success()
        .then(|| serde_json::from_str(&told.out).expect("status prints JSON"))
}

/// One line to the control socket and its answer, as it is.
pub fn control(socket: &Path, line: &str) -> String {
    let path = socket.with_file_name("control.sock");
    let mut stream = UnixStream::connect(path).expect("connects to the control socket");
    stream.write_all(line.as_bytes()).expect("asks");
    let mut answer = String::new();
    BufReader::new(stream)
        .read_line(&mut answer)
        .expect("is answered");
    answer
}
