//! Programs and what they leave: output, exit status, time limits.

use std::ffi::OsStr;
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::binary;

/// Longest life of any program here. Nothing is measured by it: it ends hanging ones.
const PATIENCE: Duration = Duration::from_secs(240);

/// What a program left.
#[derive(Debug, PartialEq, Eq, Clone)]
pub struct Outcome {
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// `oversub` with arguments.
pub fn oversub<S: AsRef<OsStr>>(arguments: &[S]) -> Command {
    let mut command = Command::new(binary("oversub"));
    command.args(arguments);
    clean(&mut command);
    command
}

/// Takes away what the environment of the tests could change.
pub fn clean(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("OVERSUB_") {
            command.env_remove(name);
        }
    }
    command
        .env_remove("LD_PRELOAD")
        .env_remove("LD_LIBRARY_PATH")
        .stdin(Stdio::null());
}

/// Runs a program to its end.
///
/// # Panics
/// Where it cannot be started or does not end.
pub fn outcome(command: &mut Command) -> Outcome {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    finish(child)
}

/// Waits for a program that was started with both outputs piped.
///
/// # Panics
/// Where it does not end.
pub fn finish(mut child: Child) -> Outcome {
    fn drain(from: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut from) = from {
                from.read_to_end(&mut bytes)
                    .expect("reads the program's output");
            }
            String::from_utf8_lossy(&bytes).into_owned()
        })
    }
    let (out, err) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("waits for the program") {
            break status;
        }
        if begun.elapsed() > PATIENCE {
            child.kill().expect("kills the hanging program");
            panic!("process {} did not end within {PATIENCE:?}", child.id());
        }
        thread::sleep(Duration::from_millis(5));
    };
    let text = |handle: thread::JoinHandle<String>| handle.join().expect("the reader ends");
    Outcome {
        status,
        out: text(out),
        err: text(err),
    }
}

/// Waits until `done` gives something.
///
/// # Panics
/// Where it does not within a minute.
pub fn wait_for<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "waited in vain for {what}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}
