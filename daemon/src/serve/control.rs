//! The control socket: one JSON line asked, one JSON line answered.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use crate::control::{Answer, CONTROL_VERSION, Question, Request};
use crate::daemon::State;

/// Connections served at one time; further ones wait.
const CONNECTIONS: usize = 16;
const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest request line, bytes.
const LINE_BYTES: u64 = 4096;

/// Serves for ever.
pub async fn run(listener: UnixListener, state: Arc<State>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a control connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            if let Ok(Err(error)) = tokio::time::timeout(TIMEOUT, serve(stream, &state)).await {
                tracing::debug!(%error, "a control connection failed");
            }
            drop(place);
        });
    }
}

async fn serve(stream: UnixStream, state: &State) -> std::io::Result<()> {
    let uid = stream.peer_cred()?.uid();
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    BufReader::new(read.take(LINE_BYTES))
        .read_line(&mut line)
        .await?;
    let answer = match serde_json::from_str::<Request>(&line) {
        Ok(request) if request.version != CONTROL_VERSION => Answer::Error(format!(
            "the daemon speaks version {CONTROL_VERSION} of the control protocol, the request is of version {}: install the same oversub on both sides",
            request.version
        )),
        Ok(request) => answer(request.request, uid, state).await,
        Err(error) => Answer::Error(format!(
            "not a request: {error}; a request is one line such as {{\"version\":{CONTROL_VERSION},\"request\":\"status\"}}"
        )),
    };
    let mut text = serde_json::to_string(&answer)?;
    text.push('\n');
    write.write_all(text.as_bytes()).await?;
    write.shutdown().await
}

async fn answer(question: Question, uid: u32, state: &State) -> Answer {
    match question {
        Question::Status => match state.status(uid).await {
            Some(status) => Answer::Status(status),
            None => Answer::Error("an engine thread does not answer".to_owned()),
        },
        Question::Why(question) => match state.why(uid, question).await {
            Some(sessions) => Answer::Why(sessions),
            None => Answer::Error("an engine thread does not answer".to_owned()),
        },
        Question::Attach(pid) => {
            let attached = Arc::clone(&state.attached);
            // It looks into /proc and asks the driver: milliseconds.
            match tokio::task::spawn_blocking(move || attached.attach(pid, uid)).await {
                Ok(Ok(view)) => Answer::Attached(Box::new(view)),
                Ok(Err(reason)) => Answer::Error(reason),
                Err(error) => Answer::Error(format!("attaching failed: {error}")),
            }
        }
        Question::Detach(pid) => match state.attached.detach(pid, uid) {
            Ok(()) => Answer::Detaching,
            Err(reason) => Answer::Error(reason),
        },
        Question::Doctor => Answer::Doctor(state.doctor()),
        Question::Metrics => match state.metrics_text().await {
            Ok(text) => Answer::Metrics(text),
            Err(error) => Answer::Error(format!("{error:#}")),
        },
    }
}
