//! The daemon as a service: configuration, start, stop, restart, metrics, questions.
#![allow(clippy::unwrap_used)] // a failure here is a failed test

mod common;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use common::{Client, Daemon, block, eventually, hello};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use oversub_protocol::BLOCK_BYTES;
use oversub_protocol::handshake::Hello;
use oversubd::control::{Answer, Question};

const GPU: &str = "GPU-07070707-0707-0707-0707-070707070707";

fn oversubd(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_oversubd"))
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn a_wrong_configuration_is_named_by_file_line_and_key_with_status_2() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bad.toml");
    std::fs::write(&file, "[session]\nevent_slot = 64\n").unwrap();
    let file = file.to_str().unwrap();
    let (status, _, message) = oversubd(&["--config", file, "--check-config"]);
    assert_eq!(status, 2);
    assert!(
        message.contains(&format!("{file}:2: session.event_slot: ")),
        "{message}"
    );
    assert!(message.contains("`event_slots`"), "{message}");
    let (status, _, message) = oversubd(&["--config", "/nowhere/x.toml", "--check-config"]);
    assert_eq!(status, 2);
    assert!(message.contains("/nowhere/x.toml"), "{message}");
}

#[test]
fn the_printed_configuration_is_the_one_in_force_and_reads_back() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("c.toml");
    let (status, text, _) = oversubd(&["--policy", "demand", "--print-config"]);
    assert_eq!(status, 0);
    assert!(text.contains("policy = \"demand\""), "{text}");
    std::fs::write(&file, &text).unwrap();
    let again = oversubd(&["--config", file.to_str().unwrap(), "--print-config"]);
    assert_eq!(again, (0, text, String::new()));
}

#[test]
fn sigterm_tells_programs_removes_sockets_and_ends_with_0() {
    let mut daemon = Daemon::start();
    let client = Client::connect(&daemon);
    assert!(daemon.socket().exists());
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.exit_code(), Some(0));
    assert_eq!(client.control_page().closing.load(Ordering::Acquire), 1);
    assert!(client.is_ended());
    assert!(!daemon.socket().exists());
    assert!(!daemon.socket().with_file_name("control.sock").exists());
}

#[test]
fn a_killed_daemon_is_replaced_on_the_same_socket() {
    let daemon = Daemon::start();
    let client = Client::connect(&daemon);
    let directory = daemon.kill();
    eventually("the program sees the end", || {
        client.is_ended().then_some(())
    });
    let daemon = Daemon::start_in(directory, &[], "");
    let _again = Client::connect(&daemon);
    assert_eq!(daemon.status().sessions.len(), 1);
}

#[test]
fn a_daemon_that_answers_keeps_its_socket() {
    let daemon = Daemon::start();
    let socket = daemon.socket();
    let (status, _, message) = oversubd(&["--socket", socket.to_str().unwrap(), "--http", "none"]);
    assert_eq!(status, 1);
    assert!(message.contains("another daemon answers"), "{message}");
    let _client = Client::connect(&daemon);
}

#[test]
fn a_file_in_the_sockets_place_is_not_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("precious");
    std::fs::write(&path, "data").unwrap();
    let (status, _, message) = oversubd(&["--socket", path.to_str().unwrap(), "--http", "none"]);
    assert_eq!(status, 1);
    assert!(message.contains("is not a socket"), "{message}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
}

#[test]
fn metrics_pass_the_linter_with_sessions_of_every_state() {
    let daemon = Daemon::start();
    let mut open = Client::connect(&daemon);
    open.alloc(block(0), BLOCK_BYTES);
    open.launch(0, block(0));
    open.control_page().latency_buckets[5].store(3, Ordering::Relaxed);
    drop(Client::connect_as(
        &daemon,
        &Hello {
            flags: Hello::SOFT_DEVICE,
            ..hello()
        },
    ));
    eventually("one session is left", || {
        (daemon.status().sessions.len() == 1).then_some(())
    });
    let (code, text) = daemon.get("/metrics");
    assert_eq!(code, 200);
    let mut linter = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is needed: install the package `prometheus`");
    linter
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = linter.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.is_empty(), "{said}");
    for family in [
        "oversub_gpu_faults_total",
        "oversub_gpu_fault_batches_total",
        "oversub_migrated_bytes_total",
        "oversub_prefetch_issued_bytes_total",
        "oversub_prefetch_useful_bytes_total",
        "oversub_prefetch_late_bytes_total",
        "oversub_prefetch_wasted_bytes_total",
        "oversub_evicted_bytes_total",
        "oversub_discarded_bytes_total",
        "oversub_resident_bytes",
        "oversub_managed_bytes",
        "oversub_decision_seconds_bucket",
        "oversub_breaker_state",
        "oversub_sessions",
        "oversub_table_bytes",
        "oversub_ring_dropped_records_total",
        "oversub_probe_dropped_events_total",
        "oversub_fault_service_seconds_bucket",
    ] {
        assert!(
            text.lines().any(|line| line.starts_with(family)),
            "{family} is missing"
        );
    }
    assert!(
        text.contains(&format!(
            "oversub_command_latency_seconds_count{{gpu=\"{GPU}\"}} 3"
        )),
        "{text}"
    );
}

#[test]
fn what_ended_sessions_counted_stays_in_the_sums_and_their_series_go() {
    let daemon = Daemon::start();
    let mut clients: Vec<_> = (0..3).map(|_| Client::connect(&daemon)).collect();
    for client in &mut clients {
        client.launch(0, block(0));
        client.launch(0, block(0));
    }
    let launches = |session: &str| {
        daemon.metric(&format!(
            "oversub_launches_total{{gpu=\"{GPU}\",session=\"{session}\"}}"
        ))
    };
    eventually("all is counted", || {
        (1..=3)
            .all(|n| launches(&n.to_string()) == Some(2.0))
            .then_some(())
    });
    clients.truncate(1);
    eventually("two are folded", || {
        (launches("closed") == Some(4.0)).then_some(())
    });
    assert_eq!(
        (launches("1"), launches("2"), launches("3")),
        (Some(2.0), None, None)
    );
    assert_eq!(
        daemon.metric(&format!("oversub_sessions{{gpu=\"{GPU}\"}}")),
        Some(1.0)
    );
}

#[test]
fn http_answers_what_it_has_and_nothing_else() {
    let daemon = Daemon::start();
    assert_eq!(daemon.get("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(daemon.get("/").0, 404);
}

#[test]
fn control_requests_that_are_wrong_are_told_what_is_right() {
    let daemon = Daemon::start();
    for (line, said) in [
        (
            r#"{"version":2,"request":"status"}"#,
            "install the same oversub",
        ),
        (r#"{"version":1,"request":"stop"}"#, "`doctor`"),
        ("status", "a request is one line"),
        ("", "a request is one line"),
    ] {
        match daemon.ask_line(line) {
            Answer::Error(message) => assert!(message.contains(said), "{line}: {message}"),
            other => panic!("{line}: {other:?}"),
        }
    }
    let long = "x".repeat(100_000);
    let mut stream =
        std::os::unix::net::UnixStream::connect(daemon.socket().with_file_name("control.sock"))
            .unwrap();
    // The daemon may hang up before all of it is written.
    let _ = writeln!(stream, "{long}");
    assert!(daemon.status().sessions.is_empty());
}

#[test]
fn status_tells_who_is_in_and_doctor_what_is_in_force() {
    let daemon = Daemon::start_with(&["--no-probes"], "[socket]\nmax_sessions = 5\n");
    let budgeted = Hello {
        budget_bytes: 32 << 20,
        ..hello()
    };
    let _client = Client::connect_as(&daemon, &budgeted);
    let status = eventually("the session is served", || {
        let status = daemon.status();
        (!status.sessions.is_empty()).then_some(status)
    });
    let session = &status.sessions[0];
    assert_eq!(
        (session.pid, session.uid),
        (std::process::id(), nix::unistd::getuid().as_raw())
    );
    assert_eq!(
        (session.device.as_str(), session.policy.as_str()),
        ("Test GPU", "foresight")
    );
    assert_eq!(session.budget_bytes, Some(32 << 20));
    assert_eq!(session.snapshot.capacity_bytes, 32 << 20);
    let Answer::Doctor(doctor) = daemon.ask(Question::Doctor) else {
        panic!("no doctor")
    };
    assert_eq!(
        doctor.probes_off.as_deref(),
        Some("switched off by configuration")
    );
    assert!(doctor.probes.iter().all(|probe| !probe.attached));
    let driver = doctor
        .driver
        .as_ref()
        .expect("it says where events come from");
    assert_eq!(driver.reason, "switched off by configuration");
    assert!(driver.observed.is_empty());
    assert!(
        doctor
            .limits
            .contains(&("socket.max_sessions".to_owned(), 5))
    );
    assert!(doctor.config.is_some());
}

#[test]
fn sessions_on_one_device_share_it_and_one_alone_has_it_all() {
    let daemon = Daemon::start();
    let capacities = || -> Vec<u64> {
        daemon
            .status()
            .sessions
            .iter()
            .map(|view| view.snapshot.capacity_bytes)
            .collect()
    };
    let whole = 62 << 20;
    let first = Client::connect(&daemon);
    eventually("one has all", || (capacities() == [whole]).then_some(()));
    let _second = Client::connect(&daemon);
    eventually("two share", || {
        (capacities() == [whole / 2, whole / 2]).then_some(())
    });
    drop(first);
    eventually("one has all again", || {
        (capacities() == [whole]).then_some(())
    });
}

#[test]
fn without_privileges_the_daemon_serves_and_says_what_it_lacks() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let binary = directory.path().join("oversubd");
    std::fs::copy(env!("CARGO_BIN_EXE_oversubd"), &binary).unwrap();
    let daemon = Daemon::try_start(directory, &[], "", |command| {
        if nix::unistd::getuid().is_root() {
            let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
            let mut other = Command::new(&binary);
            other
                .args(arguments)
                .env("OVERSUBD_LOG", "info")
                .stderr(Stdio::piped());
            other.uid(65534).gid(65534);
            *command = other;
        }
    })
    .expect("gets ready");
    let _client = Client::connect(&daemon);
    let Answer::Doctor(doctor) = daemon.ask(Question::Doctor) else {
        panic!("no doctor")
    };
    assert_ne!(doctor.uid, 0);
    assert_eq!(doctor.capabilities, Vec::<String>::new());
    assert!(doctor.probes_off.is_some(), "{doctor:?}");
}

#[test]
fn the_service_manager_is_told_of_start_and_stop() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(common::PATIENCE)).unwrap();
    let read = || {
        let mut buffer = [0u8; 256];
        let length = manager.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).trim().to_owned()
    };
    let prepare = |command: &mut Command| {
        command
            .env("NOTIFY_SOCKET", &path)
            .env("WATCHDOG_USEC", "600000000");
    };
    let daemon =
        Daemon::try_start(tempfile::tempdir().unwrap(), &[], "", prepare).expect("gets ready");
    assert_eq!(read(), "READY=1");
    assert_eq!(read(), "WATCHDOG=1");
    daemon.signal(Signal::SIGTERM);
    assert_eq!(read(), "STOPPING=1");
}

#[test]
fn a_private_daemon_ends_with_the_process_that_started_it() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s.sock");
    let script = format!(
        "'{}' --private --http none --no-probes --socket '{}' & wait",
        env!("CARGO_BIN_EXE_oversubd"),
        socket.display()
    );
    let mut shell = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    eventually("it listens", || socket.exists().then_some(()));
    kill(Pid::from_raw(shell.id() as i32), Signal::SIGKILL).unwrap();
    shell.wait().unwrap();
    eventually("it ends", || (!socket.exists()).then_some(()));
}

#[test]
fn an_idle_daemon_ends_after_its_last_session_if_asked_to() {
    let mut daemon = Daemon::start_with(&["--idle-exit", "1"], "");
    std::thread::sleep(std::time::Duration::from_millis(1500));
    drop(Client::connect(&daemon));
    assert_eq!(daemon.exit_code(), Some(0));
}
