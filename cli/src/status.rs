//! `oversub status`: the daemon and its sessions.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use oversubd::control::why::{SessionWhy, WhyQuestion};
use oversubd::control::{SessionView, Status};

use crate::args::{self, StatusOptions};
use crate::attach;
use crate::control;
use crate::size::Size;
use crate::why;

/// Prints what runs.
///
/// # Errors
/// Where no daemon answers.
pub fn status(options: &StatusOptions) -> Result<ExitCode> {
    let socket = args::socket(options.socket.as_ref());
    const HINT: &str = "start it with `systemctl start oversubd`, or name its socket with --socket";
    if let Some(address) = options.why {
        let question = WhyQuestion {
            session: options.session,
            address: address.map(|address| address.0),
            newest: options.newest,
        };
        let sessions = control::why(&socket, question).context(HINT)?;
        return why(&sessions, question, options.json);
    }
    let status = control::status(&socket).context(HINT)?;
    if options.json {
        println!("{}", serde_json::to_string(&status)?);
    } else {
        print!("{}", text(&status));
    }
    Ok(ExitCode::SUCCESS)
}

/// Tells what the sessions say.
fn why(sessions: &[SessionWhy], question: WhyQuestion, json: bool) -> Result<ExitCode> {
    let meant = match question.session {
        Some(session) => format!("session {session}"),
        None => "any session that you may see".to_owned(),
    };
    if sessions.is_empty() {
        bail!("no program is connected as {meant}; `oversub status` lists the sessions");
    }
    if let Some(address) = question.address
        && sessions.iter().all(|session| session.block.is_none())
    {
        bail!("{address:#x} is in no managed memory of {meant}");
    }
    if json {
        println!("{}", serde_json::to_string(sessions)?);
        return Ok(ExitCode::SUCCESS);
    }
    for session in sessions {
        if question.address.is_none() || session.block.is_some() {
            print!("{}", why_text(session));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn why_text(session: &SessionWhy) -> String {
    let cycle = match session.cycle_launches {
        Some(launches) => format!("a cycle of {launches} launches is known"),
        None => "no cycle is known".to_owned(),
    };
    let mut text = format!(
        "session {}: {} (process {}), policy {}, breaker {:?}, {cycle}\n",
        session.session, session.command, session.pid, session.policy, session.breaker
    );
    if let Some(block) = &session.block {
        let _ = writeln!(
            text,
            "block {:#x} as launch {} runs:",
            block.address, block.launch
        );
        text.push_str(&why::state(block));
        text.push_str("  decisions:\n");
        if block.decisions.is_empty() {
            text.push_str("    nothing was decided about it\n");
        }
        text.push_str(&why::decisions(&block.decisions, false));
    } else {
        let _ = writeln!(
            text,
            "  the next victim stays: {}\n  the next fetch waits: {}\n  newest decisions:",
            session.room.text, session.fetch.text
        );
        text.push_str(&why::decisions(&session.decisions, true));
    }
    text
}

fn text(status: &Status) -> String {
    let mut text = String::new();
    // Writing into a String cannot fail.
    let _ = writeln!(
        text,
        "oversubd {}, process {}, up {}, default policy {}, {} session(s) since its start",
        status.version,
        status.pid,
        duration(status.uptime_s),
        status.policy,
        status.sessions_opened
    );
    if let Some(events) = &status.events {
        let source = events.source.name();
        let _ = writeln!(text, "driver events from {source}: {}", events.reason);
    }
    if status.sessions.is_empty() && status.attached.iter().all(|view| view.ended.is_some()) {
        text.push_str("no program is connected\n");
    }
    for session in &status.sessions {
        session_text(&mut text, session);
    }
    for view in status.attached.iter().filter(|view| view.ended.is_none()) {
        text.push_str(&attach::text(view));
    }
    if status.sessions_hidden > 0 {
        let _ = writeln!(text, "and {} of other users", status.sessions_hidden);
    }
    text
}

fn session_text(text: &mut String, session: &SessionView) {
    let (snapshot, stats) = (&session.snapshot, &session.stats);
    let budget = match session.budget_bytes {
        Some(bytes) => format!("budget {}", Size(bytes)),
        None => format!("capacity {}", Size(snapshot.capacity_bytes)),
    };
    let lines = [
        format!(
            "session {}: {} (process {}) on {}, policy {}, {}",
            session.session,
            session.command,
            session.pid,
            session.device,
            session.policy,
            duration(session.age_s)
        ),
        format!(
            "  memory     managed {}, on the device {}, {budget}",
            Size(snapshot.managed_bytes),
            Size(snapshot.resident_bytes)
        ),
        format!(
            "  prefetch   issued {}, useful {}, late {}, wasted {}, breaker {:?}",
            Size(stats.prefetch_issued_bytes),
            Size(stats.prefetch_useful_bytes),
            Size(stats.prefetch_late_bytes),
            Size(stats.prefetch_wasted_bytes),
            snapshot.breaker
        ),
        format!(
            "  removed    evicted {}, discarded {}",
            Size(stats.evicted_bytes),
            Size(stats.discarded_bytes)
        ),
        format!(
            "  events     {} launches, {} faults in {} batches, {} dropped by a full ring",
            stats.launches, stats.faults, stats.fault_batches, session.events_dropped
        ),
        format!(
            "  commands   {}, latency below {} (half) and {} (99 of 100)",
            stats.commands,
            micros(session.latency.p50_us),
            micros(session.latency.p99_us)
        ),
    ];
    for line in lines {
        text.push_str(&line);
        text.push('\n');
    }
}

fn micros(value: Option<u64>) -> String {
    value.map_or("unknown".to_owned(), |us| format!("{us} us"))
}

fn duration(seconds: f64) -> String {
    let whole = seconds as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use oversubd::control::EventsView;
    use oversubd::probes::source::Source;

    use super::*;

    #[test]
    fn durations_are_told_in_the_units_that_people_use() {
        assert_eq!(duration(1.25), "1.2 s");
        assert_eq!(duration(61.0), "1 min 1 s");
        assert_eq!(duration(7_260.0), "2 h 1 min");
    }

    #[test]
    fn a_daemon_without_programs_says_so() {
        let status = Status {
            version: "0.1.0".to_owned(),
            pid: 7,
            uptime_s: 3.0,
            policy: "foresight".to_owned(),
            sessions_opened: 0,
            sessions: Vec::new(),
            closed_sessions: Vec::new(),
            sessions_hidden: 2,
            attached: Vec::new(),
            events: Some(EventsView {
                source: Source::Queue,
                reason: "probes cannot be used: no".to_owned(),
            }),
        };
        let text = text(&status);
        let events = "driver events from event queue: probes cannot be used: no\n";
        assert!(text.contains(events), "{text}");
        assert!(text.contains("no program is connected"), "{text}");
        assert!(text.contains("2 of other users"), "{text}");
    }
}
