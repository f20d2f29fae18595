//! Sessions end to end: handshakes good and bad, commands for a cyclic sweep, hostile
//! clients that end only themselves.

#![allow(clippy::unwrap_used)] // a failure here is a failed test

mod common;

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{Client, Daemon, block, dial, eventually, greet, hello, say};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{MsgFlags, send};
use nix::unistd::ftruncate;
use oversub_protocol::BLOCK_BYTES;
use oversub_protocol::command::Operation;
use oversub_protocol::event::{Kind, MemoryRecord};
use oversub_protocol::handshake::{Hello, Status, padded};
use oversub_protocol::layout::events_memfd;
use oversubd::control::why::WhyQuestion;
use oversubd::control::{Answer, Question};
use zerocopy::IntoBytes;

/// Sweeps `blocks` blocks, one launch each, and executes every command at once; the
/// prefetches in the order they came.
fn sweep(client: &mut Client, blocks: u64, rounds: u64) -> Vec<u64> {
    client.function(0, "sweep");
    client.alloc(block(0), blocks * BLOCK_BYTES);
    let mut prefetched = Vec::new();
    for round in 0..rounds {
        for index in 0..blocks {
            let seq = client.launch(0, block(index));
            client.passed(seq);
            let patience = if round == 0 { 1 } else { 3 };
            while let Some(command) = client.wait_command(Duration::from_millis(patience)) {
                if command.operation == Operation::PREFETCH {
                    assert!(command.address >= block(0) && command.address < block(blocks));
                    prefetched.push(command.address);
                }
                client.done(&command);
            }
        }
    }
    prefetched
}

#[test]
fn a_cyclic_sweep_beyond_the_device_is_answered_by_prefetches() {
    let daemon = Daemon::start();
    let mut client = Client::connect(&daemon);
    // 64 MiB of device, 96 MiB of state.
    let prefetched = sweep(&mut client, 48, 6);
    assert!(!prefetched.is_empty(), "no prefetch came");
    let status = daemon.status();
    let session = &status.sessions[0];
    assert_eq!(session.stats.launches, 48 * 6);
    assert_eq!(session.records_rejected, 0);
    assert_eq!(session.snapshot.managed_bytes, 48 * BLOCK_BYTES);
    assert!(session.stats.prefetch_issued_bytes > 0);
}

#[test]
fn a_program_whose_memory_fits_need_not_wake_the_daemon_for_launches() {
    let daemon = Daemon::start();
    let mut client = Client::connect(&daemon);
    client.function(0, "fits");
    let prefetched = MemoryRecord::MANAGED | MemoryRecord::PREFETCHED;
    client.memory(Kind::ALLOC, prefetched, block(0), 4 * BLOCK_BYTES);
    let calm = |client: &Client| client.control_page().calm.load(Ordering::Relaxed) == 1;
    eventually("the session is calm", || calm(&client).then_some(()));
    // It dozes once it has taken in what there was.
    eventually("a launch that wakes nobody", || {
        (!client.launch_as_it_may_wait(0, block(1))).then_some(())
    });
    // All the same they are taken in, in time.
    let launched = client.seq;
    let taken_in = || (daemon.status().sessions[0].stats.launches >= launched).then_some(());
    eventually("the launches are known", taken_in);
    // What does not fit ends the calm at once.
    client.memory(
        Kind::ALLOC,
        MemoryRecord::MANAGED,
        block(8),
        48 * BLOCK_BYTES,
    );
    eventually("the session is calm no more", || {
        (!calm(&client)).then_some(())
    });
}

#[test]
fn records_that_wait_when_a_program_ends_belong_to_its_figures() {
    let daemon = Daemon::start_with(&[], "[session]\nrecords_per_turn = 16\n");
    let mut client = Client::connect(&daemon);
    client.function(0, "fits");
    let prefetched = MemoryRecord::MANAGED | MemoryRecord::PREFETCHED;
    client.memory(Kind::ALLOC, prefetched, block(0), 4 * BLOCK_BYTES);
    eventually("a daemon that dozes", || {
        (!client.launch_as_it_may_wait(0, block(1))).then_some(())
    });
    for _ in 0..200 {
        client.launch_as_it_may_wait(0, block(1));
    }
    let launched = client.seq;
    drop(client);
    let session = eventually("the session has ended", || {
        daemon.status().closed_sessions.into_iter().next()
    });
    assert_eq!(session.stats.launches, launched);
}

#[test]
fn first_messages_that_are_wrong_are_told_why() {
    let daemon = Daemon::start();
    let good = hello();
    assert_eq!(greet(&daemon, good.as_bytes()), Some(Status::ACCEPTED));
    assert_eq!(
        greet(&daemon, &good.as_bytes()[..100]),
        Some(Status::MALFORMED)
    );
    assert_eq!(
        greet(&daemon, b"GET / HTTP/1.1\r\n\r\n"),
        Some(Status::MALFORMED)
    );
    assert_eq!(greet(&daemon, &[0; 1]), Some(Status::MALFORMED));
    let oversized = [good.as_bytes(), &[0; 5000]].concat();
    assert_eq!(greet(&daemon, &oversized), Some(Status::MALFORMED));
    let older = Hello { version: 0, ..good };
    assert_eq!(
        greet(&daemon, older.as_bytes()),
        Some(Status::VERSION_MISMATCH)
    );
    let other = Hello {
        policy: padded(b"luck"),
        ..good
    };
    assert_eq!(
        greet(&daemon, other.as_bytes()),
        Some(Status::UNKNOWN_POLICY)
    );
    let none = Hello {
        device_bytes: 0,
        free_bytes: 0,
        ..good
    };
    assert_ne!(greet(&daemon, none.as_bytes()), Some(Status::ACCEPTED));
    for wanted in ["foresight", "deepum", "demand", "driver"] {
        let named = Hello {
            policy: padded(wanted.as_bytes()),
            ..good
        };
        assert_eq!(
            greet(&daemon, named.as_bytes()),
            Some(Status::ACCEPTED),
            "{wanted}"
        );
    }
}

#[test]
fn a_silent_client_holds_nobody_and_is_turned_away_in_time() {
    let daemon = Daemon::start_with(&[], "[socket]\nhandshake_timeout_ms = 300\n");
    let silent: Vec<_> = (0..10).map(|_| dial(&daemon)).collect();
    let mut client = Client::connect(&daemon);
    client.launch(0, block(0));
    eventually("the silent ones are counted", || {
        let turned_away = daemon.metric("oversub_sessions_refused_total{reason=\"timeout\"}")?;
        (turned_away == 10.0).then_some(())
    });
    assert!(!client.is_ended());
    drop(silent);
}

#[test]
fn limits_on_sessions_hold_and_places_come_back() {
    let daemon = Daemon::start_with(&[], "[socket]\nmax_sessions_per_user = 2\n");
    let first = Client::connect(&daemon);
    let _second = Client::connect(&daemon);
    assert_eq!(greet(&daemon, hello().as_bytes()), Some(Status::FULL));
    drop(first);
    eventually("a place comes back", || {
        (greet(&daemon, hello().as_bytes()) == Some(Status::ACCEPTED)).then_some(())
    });
}

#[test]
fn shared_memory_is_sealed_and_cannot_shrink_or_grow() {
    let daemon = Daemon::start();
    let client = Client::connect(&daemon);
    for fd in &client.fds[..2] {
        assert!(ftruncate(fd, 4096).is_err());
        assert!(ftruncate(fd, 1 << 30).is_err());
        assert!(
            fcntl(
                fd,
                FcntlArg::F_ADD_SEALS(nix::fcntl::SealFlag::F_SEAL_WRITE)
            )
            .is_err()
        );
    }
}

#[test]
fn a_corrupt_ring_ends_that_session_only() {
    let daemon = Daemon::start();
    let mut good = Client::connect(&daemon);
    let first_slot = events_memfd::SLOTS;
    for words in [
        // Impossible sequence numbers of the first slot.
        vec![(first_slot, 77)],
        vec![(first_slot, u64::MAX)],
        // A record that was never reserved: the head is out of reach.
        vec![(events_memfd::RING_HEAD, u64::MAX / 2), (first_slot, 1)],
        // A record that claims to fill no slots at all.
        vec![(events_memfd::RING_HEAD, 1), (first_slot, 1)],
    ] {
        let bad = Client::connect(&daemon);
        for (offset, value) in words {
            // SAFETY: inside the mapping, aligned, never unmapped.
            let word = unsafe { bad.events.add(offset).cast::<AtomicU64>().as_ref() };
            word.store(value, Ordering::SeqCst);
        }
        bad.wake();
        eventually("the session ends", || bad.is_ended().then_some(()));
    }
    assert!(!good.is_ended());
    good.launch(0, block(0));
    eventually("the other session goes on", || {
        (daemon.status().sessions[0].stats.launches == 1).then_some(())
    });
    assert_eq!(daemon.metric("oversub_sessions_expelled_total"), Some(4.0));
}

#[test]
fn records_about_memory_that_is_not_the_sessions_are_counted_and_dropped() {
    let daemon = Daemon::start();
    let mut client = Client::connect(&daemon);
    client.alloc(block(0), BLOCK_BYTES);
    client.alloc(block(0), BLOCK_BYTES); // again
    client.alloc(block(9) + 4096, BLOCK_BYTES); // not aligned
    client.alloc(block(9), u64::MAX / 2); // impossible
    client.memory(Kind::FREE, 0, block(5), 0); // never obtained
    client.memory(Kind::USE, 0, block(0), 4096); // no pool
    client.memory(Kind::UNUSE, 0, block(7), 0);
    client.memory(Kind::COMMAND_FAILED, 9, 0, 0); // no such queue
    client.memory(Kind(999), 0, 0, 0); // a kind of another build
    client.seq = u64::MAX - 5;
    client.launch(0, block(0)); // an impossible number
    let session = eventually("all records are taken in", || {
        let session = daemon.status().sessions.remove(0);
        (session.records == 10).then_some(session)
    });
    assert_eq!((session.records_rejected, session.records_unknown), (8, 1));
    assert_eq!(session.snapshot.managed_bytes, BLOCK_BYTES);
    assert_eq!(session.stats.launches, 0);
}

#[test]
fn freed_memory_is_dead_once_its_last_launch_is_over_and_not_before() {
    let daemon = Daemon::start();
    let mut client = Client::connect(&daemon);
    let pool = MemoryRecord::MANAGED | MemoryRecord::POOL;
    client.memory(Kind::ALLOC, pool, block(0), 16 * BLOCK_BYTES);
    client.memory(Kind::USE, 0, block(0), BLOCK_BYTES);
    client.launch(0, block(0));
    let last = client.launch(0, block(0));
    client.unuse(block(0), BLOCK_BYTES);
    client.launch(0, block(0));
    let is_dead_at = |launch: u64| {
        eventually("the device gets there", || {
            let question = WhyQuestion {
                session: None,
                address: Some(block(0)),
                newest: 0,
            };
            let Answer::Why(sessions) = daemon.ask(Question::Why(question)) else {
                panic!("no answer to why");
            };
            let view = sessions.into_iter().next()?.block?;
            (view.launch == launch).then_some(view.dead)
        })
    };
    client.passed(last - 1);
    assert!(!is_dead_at(last), "its last launch still runs");
    client.passed(last);
    assert!(is_dead_at(last + 1), "nobody uses it any more");
}

#[test]
fn nonsense_from_the_device_page_is_ignored() {
    let daemon = Daemon::start();
    let mut client = Client::connect(&daemon);
    for word in &client.device_page().progress {
        word.store(u32::MAX, Ordering::Release);
    }
    for word in &client.device_page().done {
        word.store(12345, Ordering::Release);
    }
    client.memory(Kind::ALLOC, MemoryRecord::MANAGED, block(0), BLOCK_BYTES);
    client.launch(0, block(0));
    eventually("the launch is seen", || {
        (daemon.status().sessions[0].stats.launches == 1).then_some(())
    });
    assert!(!client.is_ended());
}

#[test]
fn a_client_that_floods_does_not_starve_another() {
    let daemon = Daemon::start();
    let flooder = Client::connect(&daemon);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let record = MemoryRecord::new(Kind::SYNC, 0, 0, 1, 0, 0);
            while !stop.load(Ordering::Relaxed) {
                flooder.try_push(&record);
            }
        });
        let mut client = Client::connect(&daemon);
        client.launch(0, block(0));
        eventually("the other's launch is seen", || {
            let status = daemon.status();
            let own = status
                .sessions
                .iter()
                .find(|view| view.session == client.welcome.session);
            own.filter(|view| view.stats.launches == 1).map(|_| ())
        });
        stop.store(true, Ordering::Relaxed);
    });
    assert!(!flooder.is_ended());
}

#[test]
fn a_client_that_speaks_on_the_session_socket_is_expelled() {
    let daemon = Daemon::start();
    let client = Client::connect(&daemon);
    send(client.socket.as_raw_fd(), b"more", MsgFlags::empty()).unwrap();
    eventually("the session ends", || {
        daemon.status().sessions.is_empty().then_some(())
    });
}

#[test]
fn a_client_that_tampers_with_its_descriptors_holds_nobody() {
    let daemon = Daemon::start();
    let hostile = Client::connect(&daemon);
    for fd in &hostile.fds[2..] {
        // Blocking, and the command's wake-up full: a careless daemon would wait for us.
        fcntl(fd, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    }
    nix::unistd::write(&hostile.fds[3], &(u64::MAX - 1).to_ne_bytes()).unwrap();
    hostile.wake();
    drop(hostile);
    eventually("the session ends", || {
        daemon.status().sessions.is_empty().then_some(())
    });
    let _next = Client::connect(&daemon);
    assert_eq!(daemon.status().sessions.len(), 1);
}

#[test]
fn two_sessions_are_served_side_by_side_and_end_apart() {
    let daemon = Daemon::start();
    let mut first = Client::connect(&daemon);
    let soft = Hello {
        flags: Hello::SOFT_DEVICE | Hello::HAS_PROGRESS,
        ..hello()
    };
    let mut second = Client::connect_as(&daemon, &soft);
    first.alloc(block(0), 4 * BLOCK_BYTES);
    second.alloc(block(0), 2 * BLOCK_BYTES);
    first.launch(0, block(0));
    second.launch(0, block(1));
    eventually("both are seen", || {
        let status = daemon.status();
        let managed: Vec<_> = status
            .sessions
            .iter()
            .map(|view| (view.gpu.clone(), view.snapshot.managed_bytes))
            .collect();
        let uuid = "GPU-07070707-0707-0707-0707-070707070707".to_owned();
        (managed
            == [
                (uuid, 4 * BLOCK_BYTES),
                ("soft".to_owned(), 2 * BLOCK_BYTES),
            ])
        .then_some(())
    });
    drop(first);
    eventually("one ends", || {
        (daemon.status().sessions.len() == 1).then_some(())
    });
    assert!(!second.is_ended());
}

#[test]
fn a_handshake_gives_four_descriptors_and_the_sizes_configured() {
    let daemon = Daemon::start_with(&[], "[session]\nevent_slots = 1024\ncommand_slots = 128\n");
    let (welcome, fds) = say(&dial(&daemon), hello().as_bytes()).unwrap();
    assert_eq!(
        (welcome.event_slots, welcome.command_slots, fds.len()),
        (1024, 128, 4)
    );
}

#[test]
fn a_program_leaves_its_fence_to_the_daemon_only_where_both_can() {
    const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;
    // SAFETY: no pointers.
    let can = unsafe { libc::syscall(libc::SYS_membarrier, REGISTER_GLOBAL_EXPEDITED, 0, 0) } == 0;
    let daemon = Daemon::start();
    let mut plain = Client::connect(&daemon);
    let registered = Hello {
        flags: hello().flags | Hello::HAS_BARRIER,
        ..hello()
    };
    let mut client = Client::connect_as(&daemon, &registered);
    let prefetched = MemoryRecord::MANAGED | MemoryRecord::PREFETCHED;
    for client in [&mut plain, &mut client] {
        client.function(0, "fits");
        client.memory(Kind::ALLOC, prefetched, block(0), 4 * BLOCK_BYTES);
        eventually("the session is calm", || {
            (client.control_page().calm.load(Ordering::Relaxed) == 1).then_some(())
        });
    }
    eventually("the daemon makes the barrier if it can", || {
        (client.barrier_word() == u32::from(can)).then_some(())
    });
    for launches in 1..=20_u64 {
        // Each finds the daemon asleep, or about to be.
        client.launch(0, block(0));
        eventually("the launch is seen", || {
            let sessions = daemon.status().sessions;
            let seen = sessions.iter().any(|view| view.stats.launches == launches);
            seen.then_some(())
        });
    }
    assert_eq!(plain.barrier_word(), 0, "it did not say that it can");
    // What does not fit has the daemon sleep often, and then each side fences.
    let managed = MemoryRecord::MANAGED;
    client.memory(Kind::ALLOC, managed, block(8), 48 * BLOCK_BYTES);
    eventually("the daemon takes its word back", || {
        (client.barrier_word() == 0).then_some(())
    });
}
