//! The thread that attaches: to soft GPUs and processes as they appear, and to the driver
//! when its module comes, goes or comes again.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use oversub_bpf::{AttachError, Attached, Trust};

use super::{LOGGED, Shared, lock, plan_options, source};
use crate::schedule;

/// Requests to attach that may wait; a client that makes more goes without.
const ATTACH_QUEUE: usize = 64;
/// Longest `/proc/PID/maps` read, bytes.
const MAPS_BYTES: u64 = 8 << 20;
/// How often the driver's module is looked for: one system call.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);
/// How often events are taken in while no session is there to do it.
const IDLE_DRAIN_INTERVAL: Duration = Duration::from_millis(100);

/// What is to be attached.
#[derive(Debug)]
pub(super) enum Wanted {
    /// The soft GPU that this process has loaded.
    SoftGpu {
        /// Process.
        pid: u32,
        /// Where, as it says.
        driver_path: Vec<u8>,
    },
    /// The driver's event queue of this process, if queues are the source here.
    Process(u32),
}

/// Starts the thread; `None` where it cannot be.
pub(super) fn start(shared: &Arc<Shared>) -> Option<SyncSender<Wanted>> {
    let (sender, receiver) = sync_channel(ATTACH_QUEUE);
    let shared = Arc::clone(shared);
    let started = std::thread::Builder::new()
        .name("attach".to_owned())
        .spawn(move || run(&shared, &receiver));
    match started {
        Ok(_) => Some(sender),
        Err(error) => {
            tracing::error!(%error, "cannot start the thread that attaches probes");
            None
        }
    }
}

fn run(shared: &Shared, receiver: &Receiver<Wanted>) {
    // Capabilities belong to threads, and this one began before the others gave theirs up.
    if let Err(error) = crate::privileges::drop_capabilities() {
        tracing::warn!(%error, "cannot give up capabilities in the attaching thread");
    }
    loop {
        // Only where the driver is there can there be events without a session.
        let interval = match shared.idle() && !matches!(shared.trust(), Trust::Off(_)) {
            true => IDLE_DRAIN_INTERVAL,
            false => FOLLOW_INTERVAL,
        };
        match receiver.recv_timeout(interval) {
            Ok(Wanted::SoftGpu { pid, driver_path }) => attach_softgpu(shared, pid, &driver_path),
            Ok(Wanted::Process(pid)) => observe(shared, pid),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if lock(&shared.intake).follow_driver(plan_options(&shared.config)) {
            let trust = shared.trust();
            tracing::info!(%trust, "the driver's module has changed: probes chosen anew");
        }
        if shared.idle() {
            shared.drain(|_| {});
        }
    }
}

/// Starts a thread that takes events in as they come, for processes that are steered from
/// outside, while there are any and no engine thread does it.
pub(super) fn drain_for_attached(shared: &Arc<Shared>) {
    let mine = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("drain".to_owned());
    let started = thread.spawn(move || {
        schedule::prefer_short_turns();
        while wanted(&mine) {
            let descriptor = lock(&mine.intake)
                .epoll_fd()
                .and_then(|descriptor| descriptor.try_clone_to_owned().ok());
            match descriptor {
                Some(descriptor) if mine.idle() => wait_for_events(&descriptor),
                _ => std::thread::sleep(IDLE_DRAIN_INTERVAL),
            }
            if mine.idle() {
                mine.drain(|_| {});
            }
        }
    });
    if let Err(error) = started {
        tracing::error!(%error, "cannot start the thread that takes events in");
        shared.draining.store(false, Ordering::Relaxed);
    }
}

/// Somebody is still attached; otherwise the thread counts as ended.
fn wanted(shared: &Shared) -> bool {
    let attached = lock(&shared.attached);
    let wanted = !attached.is_empty();
    shared.draining.store(wanted, Ordering::Relaxed);
    wanted
}

/// Waits until there are events, or for a moment.
fn wait_for_events(descriptor: &std::os::fd::OwnedFd) {
    let mut wanted = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
    // Interrupted or not, the loop looks.
    let _ = poll(
        &mut wanted,
        PollTimeout::from(IDLE_DRAIN_INTERVAL.as_millis() as u16),
    );
}

fn attach_softgpu(shared: &Shared, pid: u32, driver_path: &[u8]) {
    let result = locate(pid, driver_path).and_then(|path| {
        match lock(&shared.intake).attach_softgpu(&path) {
            // The daemon's start has told why.
            Err(AttachError::Off(_)) => Ok(Attached::Already),
            attached => attached.map_err(|error| format!("{}: {error}", path.display())),
        }
    });
    match result {
        Ok(Attached::New) => tracing::info!(pid, "probes attached to the soft GPU"),
        Ok(Attached::Already) => {}
        Err(reason) => {
            if let Some(suppressed) = LOGGED.admit() {
                tracing::warn!(pid, reason, suppressed, "no probes on this soft GPU");
            }
        }
    }
}

/// Opens the driver's event queue of a process where that is the source of this host.
fn observe(shared: &Shared, pid: u32) {
    if shared.source().0 != source::Source::Queue {
        return;
    }
    match lock(&shared.intake).observe_process(pid) {
        Ok(Attached::New) => tracing::info!(pid, "observed by the driver's event queue"),
        Ok(Attached::Already) => {}
        Err(error) => {
            if let Some(suppressed) = LOGGED.admit() {
                tracing::warn!(pid, %error, suppressed, "no event queue of this process");
            }
        }
    }
}

/// Where this process sees the driver library that a client claims a process has loaded.
/// The claim counts only if the process has that file mapped.
fn locate(pid: u32, driver_path: &[u8]) -> Result<PathBuf, String> {
    use std::io::Read;
    if !driver_path.starts_with(b"/") {
        return Err("the program did not say which driver library it has loaded".to_owned());
    }
    let maps = format!("/proc/{pid}/maps");
    let mut text = Vec::new();
    std::fs::File::open(&maps)
        .and_then(|file| file.take(MAPS_BYTES).read_to_end(&mut text))
        .map_err(|error| format!("cannot read {maps}: {error}"))?;
    if !text
        .split(|byte| *byte == b'\n')
        .any(|line| maps_line_is_of(line, driver_path))
    {
        let claimed = String::from_utf8_lossy(driver_path);
        return Err(format!(
            "the program has not loaded {claimed}, as it claims"
        ));
    }
    // Seen from here it may be another file: go in by the program's own root.
    let mut path = std::ffi::OsString::from(format!("/proc/{pid}/root"));
    path.push(std::ffi::OsStr::from_bytes(driver_path));
    Ok(path.into())
}

/// A line of `/proc/PID/maps` ends with the path, after five fields.
fn maps_line_is_of(line: &[u8], path: &[u8]) -> bool {
    let field = line.strip_suffix(path);
    field.is_some_and(|before| before.ends_with(b" ") && !before.contains(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_library_must_be_the_whole_path_of_a_mapping() {
        let line = b"7f1000-7f2000 r-xp 00000000 08:01 99    /opt/x y/libcuda.so.1";
        assert!(maps_line_is_of(line, b"/opt/x y/libcuda.so.1"));
        assert!(!maps_line_is_of(line, b"/libcuda.so.1"));
        assert!(!maps_line_is_of(line, b"/opt/x y/libcuda.so"));
        assert!(!maps_line_is_of(
            b"7f1000-7f2000 r-xp 00000000 08:01 99",
            b"/opt"
        ));
    }
}
