//! The program runs on and gives the right result with no daemon, with one that speaks
//! another version, with the library switched off, and across forks.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind, connect, listen,
    recv, send, socket,
};
use oversub_protocol::PROTOCOL_VERSION;
use oversub_protocol::handshake::{Hello, MAGIC, Status, Welcome};
use oversub_tests::binary;
use oversub_tests::daemon::Daemon;
use oversub_tests::program::{clean, outcome, oversub};
use oversub_tests::workload::{Workload, assert_right, driver_folder, soft_gpu, stats_file};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The workload with the library preloaded by hand, told of `socket`.
fn preloaded(workload: &Workload, socket: &Path, driver: &Path, stats: &Path) -> Command {
    let line = workload.command_line();
    let mut command = Command::new(&line[0]);
    clean(&mut command);
    soft_gpu(&mut command, stats);
    command
        .args(&line[1..])
        .env("LD_LIBRARY_PATH", driver)
        .env("LD_PRELOAD", binary("liboversub.so"))
        .env("OVERSUB_SOCKET", socket);
    command
}

#[test]
fn no_daemon() {
    let (_folder, stats) = stats_file();
    for workload in [
        Workload::new("sweep", 1.5, 3),
        Workload::new("train", 1.5, 2),
    ] {
        let told = outcome(&mut workload.under_oversub(&["--no-daemon", "--quiet"], &stats));
        assert_right(&told);
    }
}

#[test]
fn a_daemon_of_another_version_is_told_apart_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old.sock");
    let listener = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    listen(&listener, Backlog::new(8).unwrap()).unwrap();
    let refused = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&refused);
    // Ends with the test's process.
    std::thread::spawn(move || {
        while let Ok(client) = accept(listener.as_raw_fd()) {
            let mut buffer = [0; size_of::<Hello>()];
            let received = recv(client, &mut buffer, MsgFlags::empty()).unwrap_or(0);
            if received == size_of::<Hello>() {
                let hello = Hello::read_from_bytes(&buffer).expect("is a Hello");
                assert_eq!((hello.magic, hello.version), (MAGIC, PROTOCOL_VERSION));
                let mut welcome = Welcome::new_zeroed();
                welcome.magic = MAGIC;
                welcome.version = PROTOCOL_VERSION + 1;
                welcome.status = Status::VERSION_MISMATCH;
                let _ = send(client, welcome.as_bytes(), MsgFlags::MSG_NOSIGNAL);
                counter.fetch_add(1, Ordering::Relaxed);
            }
            let _ = nix::unistd::close(client);
        }
    });
    let (driver, (_stats_folder, stats)) = (driver_folder(), stats_file());
    let workload = Workload::new("sweep", 1.5, 3);
    let told = outcome(&mut preloaded(&workload, &path, driver.path(), &stats));
    assert_right(&told);
    assert!(
        refused.load(Ordering::Relaxed) > 0,
        "the library never tried to connect"
    );
}

#[test]
fn a_program_of_another_version_is_refused_with_the_daemons_version() {
    let daemon = Daemon::start();
    let client = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .unwrap();
    connect(
        client.as_raw_fd(),
        &UnixAddr::new(&daemon.socket()).unwrap(),
    )
    .unwrap();
    let mut hello = Hello::new_zeroed();
    hello.magic = MAGIC;
    hello.version = PROTOCOL_VERSION + 1;
    send(client.as_raw_fd(), hello.as_bytes(), MsgFlags::empty()).unwrap();
    let mut buffer = [0; size_of::<Welcome>()];
    assert_eq!(
        recv(client.as_raw_fd(), &mut buffer, MsgFlags::empty()).unwrap(),
        buffer.len()
    );
    let welcome = Welcome::read_from_bytes(&buffer).unwrap();
    assert_eq!(
        (welcome.status, welcome.version),
        (Status::VERSION_MISMATCH, PROTOCOL_VERSION)
    );
    assert_eq!(
        daemon.status()["sessions"].as_array().map(Vec::len),
        Some(0)
    );
}

#[test]
fn a_library_that_is_switched_off_leaves_the_program_as_it_was() {
    let (driver, (_stats_folder, stats)) = (driver_folder(), stats_file());
    let daemon = Daemon::start();
    let fits = Workload::new("fits", 0.5, 2);
    let mut command = preloaded(&fits, &daemon.socket(), driver.path(), &stats);
    assert_right(&outcome(command.env("OVERSUB_DISABLE", "1")));
    assert_eq!(
        daemon.status()["sessions_opened"],
        0,
        "it connected although switched off"
    );

    // Beyond the device, plain device memory does not suffice, as without the library.
    let beyond = Workload::new("sweep", 1.5, 2);
    let mut with = preloaded(&beyond, &daemon.socket(), driver.path(), &stats);
    let with = outcome(with.env("OVERSUB_DISABLE", "1"));
    let mut without = preloaded(&beyond, &daemon.socket(), driver.path(), &stats);
    let without = outcome(without.env_remove("LD_PRELOAD"));
    assert!(!without.status.success(), "{without:?}");
    assert_eq!(with, without);
}

#[test]
fn a_program_that_forks_keeps_its_memory_and_its_session() {
    let daemon = Daemon::start();
    let (_folder, stats) = stats_file();
    for way in ["exit", "exec", "cuda"] {
        let mut command = oversub(&["run", "--soft", "--quiet", "--socket"]);
        soft_gpu(&mut command, &stats);
        let forks = env!("CARGO_BIN_EXE_forks");
        let told = outcome(command.arg(daemon.socket()).args(["--", forks, way]));
        assert!(told.status.success(), "{way}: {told:?}");
        assert_eq!(told.out, "equal\n", "{way}: {told:?}");
    }
}
