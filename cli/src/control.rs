//! One question to the daemon, one answer: a JSON line each way over its control socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use oversubd::control::why::{SessionWhy, WhyQuestion};
use oversubd::control::{
    Answer, AttachView, CONTROL_VERSION, Doctor, Question, Request, SessionView, Status,
};

/// Longest wait for an answer. The daemon answers from memory.
const PATIENCE: Duration = Duration::from_secs(5);

/// The control socket that stands beside a session socket.
pub fn beside(socket: &Path) -> PathBuf {
    socket.with_file_name("control.sock")
}

/// What runs in the daemon whose session socket is `socket`.
///
/// # Errors
/// As [`ask`].
pub fn status(socket: &Path) -> Result<Status> {
    match ask(socket, Question::Status)? {
        Answer::Status(status) => Ok(status),
        other => unexpected(socket, &other),
    }
}

/// The totals of the session that process `pid` had. The daemon may take a moment to see
/// that the process has ended.
///
/// # Errors
/// As [`status`], or where there was no such session.
pub fn closed_session(socket: &Path, pid: u32) -> Result<SessionView> {
    let begun = Instant::now();
    loop {
        let mut closed = status(socket)?.closed_sessions;
        if let Some(index) = closed.iter().position(|session| session.pid == pid) {
            return Ok(closed.swap_remove(index));
        }
        if begun.elapsed() > PATIENCE {
            bail!("no closed session of process {pid} is known to the daemon");
        }
        sleep(Duration::from_millis(20));
    }
}

/// Why blocks are where they are: what the sessions that may be seen say.
///
/// # Errors
/// As [`ask`].
pub fn why(socket: &Path, question: WhyQuestion) -> Result<Vec<SessionWhy>> {
    match ask(socket, Question::Why(question))? {
        Answer::Why(sessions) => Ok(sessions),
        other => unexpected(socket, &other),
    }
}

/// What the daemon says of its host.
///
/// # Errors
/// As [`ask`].
pub fn doctor(socket: &Path) -> Result<Doctor> {
    match ask(socket, Question::Doctor)? {
        Answer::Doctor(doctor) => Ok(doctor),
        other => unexpected(socket, &other),
    }
}

/// Has the daemon attach to a process.
///
/// # Errors
/// As [`ask`], or where it cannot.
pub fn attach(socket: &Path, pid: u32) -> Result<AttachView> {
    match ask(socket, Question::Attach(pid))? {
        Answer::Attached(view) => Ok(*view),
        Answer::Error(reason) => bail!(reason),
        other => unexpected(socket, &other),
    }
}

/// Has the daemon let a process go.
///
/// # Errors
/// As [`attach`].
pub fn detach(socket: &Path, pid: u32) -> Result<()> {
    match ask(socket, Question::Detach(pid))? {
        Answer::Detaching => Ok(()),
        Answer::Error(reason) => bail!(reason),
        other => unexpected(socket, &other),
    }
}

fn unexpected<T>(socket: &Path, answer: &Answer) -> Result<T> {
    let path = beside(socket);
    match answer {
        Answer::Error(reason) => bail!("the daemon at {} refuses: {reason}", path.display()),
        _ => bail!("the daemon at {} answers another question", path.display()),
    }
}

/// Asks one question.
///
/// # Errors
/// Where nothing answers there, or the answer is none that this version knows.
fn ask(socket: &Path, question: Question) -> Result<Answer> {
    let path = beside(socket);
    let mut stream = UnixStream::connect(&path)
        .with_context(|| format!("no daemon answers at {}", path.display()))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = Request {
        version: CONTROL_VERSION,
        request: question,
    };
    let mut line = serde_json::to_string(&request)?;
    line.push('\n');
    stream
        .write_all(line.as_bytes())
        .with_context(|| format!("the daemon at {} does not take requests", path.display()))?;
    let mut answer = String::new();
    BufReader::new(stream)
        .read_line(&mut answer)
        .with_context(|| format!("the daemon at {} gave no answer", path.display()))?;
    serde_json::from_str(&answer).with_context(|| {
        format!(
            "the daemon at {} answers in a form that this version does not know; are both of one version?",
            path.display()
        )
    })
}
