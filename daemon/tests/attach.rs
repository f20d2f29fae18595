//! Attaching to programs: who may, and what is said where it cannot be done.
#![allow(clippy::unwrap_used)] // a failure here is a failed test

mod common;

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use common::Daemon;
use oversubd::control::{Answer, Question};

/// A program that does nothing, of some user.
struct Idle(Child);

impl Idle {
    fn start() -> Self {
        Self(Command::new("sleep").arg("1000").spawn().unwrap())
    }

    /// None where this test may not become another user.
    fn of_another_user() -> Option<Self> {
        let child = Command::new("sleep")
            .arg("1000")
            .uid(12345)
            .gid(12345)
            .spawn();
        child.ok().map(Self)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn refusal(daemon: &Daemon, pid: u32) -> String {
    match daemon.ask(Question::Attach(pid)) {
        Answer::Error(reason) => reason,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_program_without_managed_memory_is_refused_with_the_reason() {
    let daemon = Daemon::start();
    let idle = Idle::start();
    let reason = refusal(&daemon, idle.pid());
    assert!(reason.contains(&idle.pid().to_string()), "{reason}");
    assert!(reason.contains("/dev/nvidia-uvm"), "{reason}");
    assert!(daemon.status().attached.is_empty());
}

#[test]
fn what_does_not_exist_and_the_daemon_itself_are_refused() {
    let daemon = Daemon::start();
    let gone = {
        let idle = Idle::start();
        idle.pid()
    };
    let reason = refusal(&daemon, gone);
    assert!(reason.contains("does not exist"), "{reason}");
    let reason = refusal(&daemon, daemon.child.id());
    assert!(reason.contains("daemon itself"), "{reason}");
    assert!(matches!(daemon.ask(Question::Attach(0)), Answer::Error(_)));
    assert!(matches!(
        daemon.ask(Question::Attach(u32::MAX)),
        Answer::Error(_)
    ));
    match daemon.ask(Question::Detach(gone)) {
        Answer::Error(reason) => assert!(reason.contains("not attached"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn another_users_program_is_refused_before_it_is_looked_into() {
    let Some(idle) = Idle::of_another_user() else {
        return;
    };
    let daemon = Daemon::start();
    let reason = refusal(&daemon, idle.pid());
    assert!(reason.contains("off by default"), "{reason}");
    // This test is root here, or it could not have become another user.
    let daemon = Daemon::start_with(&[], "[attach]\nprocesses = \"all\"\n");
    let reason = refusal(&daemon, idle.pid());
    assert!(reason.contains("/dev/nvidia-uvm"), "{reason}");
}

#[test]
fn attaching_can_be_switched_off() {
    let daemon = Daemon::start_with(&["--attach", "off"], "");
    let idle = Idle::start();
    let reason = refusal(&daemon, idle.pid());
    assert!(reason.contains("switched off"), "{reason}");
}
