//! `oversub attach`: has the daemon steer a program that already runs, and watches.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{SigSet, Signal};
use oversubd::control::AttachView;

use crate::args::{self, AttachOptions};
use crate::control;
use crate::install::Installation;
use crate::private_daemon::PrivateDaemon;
use crate::size::Size;
use crate::usage::usage;

/// How often the daemon is asked how it goes.
const INTERVAL: Duration = Duration::from_millis(250);
/// How often it may fail to answer before it is given up.
const PATIENCE: u32 = 20;

/// Attaches, and stays until the program ends or the user has enough.
///
/// # Errors
/// Where the process cannot be attached to, or the daemon goes away.
pub fn attach(options: &AttachOptions) -> Result<ExitCode> {
    let say = |message: &str| {
        if !options.quiet {
            eprintln!("oversub: {message}");
        }
    };
    let socket = args::socket(options.socket.as_ref());
    if options.stop {
        control::detach(&socket, options.pid)?;
        say(&format!("process {} is let go", options.pid));
        return Ok(ExitCode::SUCCESS);
    }
    // Before any thread or child, so that none takes the signals instead.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGHUP);
    signals.thread_block().context("cannot block signals")?;
    let folder;
    let private;
    let socket = if control::status(&socket).is_ok() {
        if options.other_user {
            return usage(
                "--other-user is for a daemon of this command's own; a shared daemon has \
                 attach.processes in its configuration",
            );
        }
        socket
    } else {
        if options.leave {
            bail!(
                "no daemon answers at {}: --leave needs one that stays",
                socket.display()
            );
        }
        say(&format!(
            "no daemon at {}; starting one for this program alone",
            socket.display()
        ));
        folder = tempfile::Builder::new()
            .prefix("oversub-")
            .tempdir()
            .context("cannot make a private folder (is TMPDIR writable?)")?;
        let whose: &[&str] = if options.other_user {
            &["--attach", "all"]
        } else {
            &[]
        };
        let program = Installation::find()?.daemon()?;
        private = PrivateDaemon::start_for(&program, folder.path(), None, whose)?;
        private.socket().to_owned()
    };
    let view = control::attach(&socket, options.pid)?;
    say(&format!(
        "attached to {} (process {}), events by {}",
        view.command, view.pid, view.source
    ));
    let last = if options.leave {
        view
    } else {
        watch(&socket, &view, &signals, &say)?
    };
    if options.json {
        println!("{}", serde_json::to_string(&last)?);
    } else if !options.leave {
        print!("{}", text(&last));
    }
    Ok(ExitCode::SUCCESS)
}

/// Watches until the attachment ends; the last that is known of it.
fn watch(
    socket: &Path,
    begun: &AttachView,
    signals: &SigSet,
    say: &impl Fn(&str),
) -> Result<AttachView> {
    let mut last = begun.clone();
    let mut detaching = false;
    let mut failures = 0;
    loop {
        if wait(signals) {
            if detaching {
                return Ok(last);
            }
            detaching = true;
            // It may have ended by itself just now.
            let _ = control::detach(socket, begun.pid);
        }
        let status = match control::status(socket) {
            Ok(status) => status,
            Err(error) => {
                failures += 1;
                if failures > PATIENCE {
                    return Err(error.context("the daemon has gone; the program runs on by itself"));
                }
                continue;
            }
        };
        failures = 0;
        let same = |view: &AttachView| view.attachment == begun.attachment;
        let Some(view) = status.attached.into_iter().find(same) else {
            bail!("the daemon knows nothing of the attachment any more");
        };
        if view.gpu != last.gpu
            && let Some(gpu) = &view.gpu
        {
            say(&format!("its faults are on {gpu}"));
        }
        if view.steering != last.steering {
            say(if view.steering {
                "its order is learned: fetching ahead"
            } else {
                "its order is lost: left to the driver, learning"
            });
        }
        last = view;
        if let Some(reason) = &last.ended {
            say(reason);
            return Ok(last);
        }
    }
}

/// Waits a while; `true`: the user has enough.
fn wait(signals: &SigSet) -> bool {
    let limit = libc::timespec {
        tv_sec: 0,
        tv_nsec: INTERVAL.as_nanos() as libc::c_long,
    };
    let set: &libc::sigset_t = signals.as_ref();
    // SAFETY: a valid set and a valid limit; nothing is to be told of the signal.
    let signal = unsafe { libc::sigtimedwait(set, std::ptr::null_mut(), &limit) };
    signal > 0
}

/// A few lines on an attachment.
pub fn text(view: &AttachView) -> String {
    let stats = &view.stats;
    let state = match (&view.ended, view.steering) {
        (Some(reason), _) => reason.as_str(),
        (None, true) => "fetching ahead",
        (None, false) => "learning",
    };
    let capacity = view.capacity_bytes.map_or_else(
        || "the device was not full".to_owned(),
        |bytes| format!("the device holds {}", Size(bytes)),
    );
    let device = view.gpu.as_deref().unwrap_or("no device yet");
    format!(
        "attached: {} (process {}) on {device}, events by {}, {:.0} s, {state}\n  \
         memory     managed {}, on the device {}, {capacity}\n  \
         faults     {} on {} uses of blocks, {} as predicted, {} late\n  \
         prefetch   asked {}, useful {}, wasted {}; evicted {}; {} refused, {} retries\n",
        view.command,
        view.pid,
        view.source,
        view.age_s,
        Size(view.managed_bytes),
        Size(stats.resident_bytes),
        stats.faults,
        stats.uses,
        stats.predicted,
        stats.late,
        Size(stats.prefetched_bytes),
        Size(stats.useful_bytes),
        Size(stats.wasted_bytes),
        Size(stats.evicted_bytes),
        stats.refused,
        view.retries,
    )
}
