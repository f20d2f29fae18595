//! The daemon's metrics, as Prometheus gets them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

/// The text of a page of the daemon's HTTP listener.
///
/// # Panics
/// Where it does not answer with 200.
pub fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connects to the HTTP listener");
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").expect("asks");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("is answered");
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .expect("has a head and a body");
    assert!(
        head.lines()
            .next()
            .is_some_and(|line| line.contains(" 200 ")),
        "{head}"
    );
    body.to_owned()
}

/// Sum of all samples of the metric `name` whose labels contain `label`.
pub fn sum(text: &str, name: &str, label: &str) -> f64 {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let metric = series.split('{').next()?;
            (metric == name && series.contains(label)).then(|| value.parse::<f64>().ok())?
        })
        .sum()
}

/// What `promtool check metrics` complains of; none where promtool is not installed.
pub fn lint(text: &str) -> Option<String> {
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    child.stdin.take()?.write_all(text.as_bytes()).ok()?;
    let told = child.wait_with_output().ok()?;
    Some(format!(
        "{}{}",
        String::from_utf8_lossy(&told.stdout),
        String::from_utf8_lossy(&told.stderr)
    ))
}
