//! What passes between the shim and a daemon, and what happens when there is none.

// Helpers of a test are part of it.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use common::Program;
use common::daemon::{Daemon, Session, send};
use oversub_protocol::command::Operation;
use oversub_protocol::decode::Record;
use oversub_protocol::event::{CopyRecord, LaunchRecord, MemoryRecord, Words};
use oversub_protocol::handshake::{Hello, Status, Welcome};
use zerocopy::IntoBytes;

const MIB: u64 = 1 << 20;

struct Meeting {
    daemon: Option<Daemon>,
    path: PathBuf,
    program: Program,
}

fn meeting(name: &str, environment: &[(&str, &str)]) -> Meeting {
    let path = std::env::temp_dir().join(format!("oversub-{name}-{}.sock", std::process::id()));
    let daemon = Some(Daemon::listen(&path));
    let mut environment = environment.to_vec();
    environment.push(("OVERSUB_SOCKET", path.to_str().unwrap()));
    let program = Program::start("dlsym", &environment);
    Meeting {
        daemon,
        path,
        program,
    }
}

impl Meeting {
    fn session(&self) -> Session {
        self.daemon.as_ref().unwrap().session()
    }
}

/// The next record that is not about a synchronisation.
fn next(session: &mut Session) -> Vec<Words> {
    loop {
        let slots = session.record();
        if !matches!(Record::decode(&slots).unwrap(), Record::Sync(_)) {
            return slots;
        }
    }
}

macro_rules! expect {
    ($session:expr, $pattern:pat => $value:expr) => {{
        let slots = next($session);
        match Record::decode(&slots).unwrap() {
            $pattern => $value,
            other => panic!("unexpected {other:?}"),
        }
    }};
}

fn alloc(meeting: &mut Meeting, bytes: u64) -> u64 {
    meeting.program.number(&format!("alloc {bytes}"))
}

#[test]
fn a_program_says_who_it_is_and_what_it_has() {
    let mut meeting = meeting("hello", &[("OVERSUB_POLICY", "demand")]);
    let address = alloc(&mut meeting, 5 * MIB);
    let mut session = meeting.session();
    assert_eq!(session.hello.policy(), "demand");
    assert_eq!(session.hello.device_name(), "fake");
    assert_eq!(session.hello.device_bytes, 256 * MIB);
    assert_eq!(session.hello.free_bytes, 240 * MIB);
    // What the kernel lets this test do it lets the program do.
    let barrier = if common::daemon::can_register() {
        Hello::HAS_BARRIER
    } else {
        0
    };
    let flags = Hello::HAS_DISCARD | Hello::HAS_PROGRESS | barrier;
    assert_eq!(session.hello.flags, flags);
    assert!(session.hello.driver_path().ends_with(b"/libcuda.so.1"));
    let record = expect!(&mut session, Record::Alloc(record) => *record);
    assert_eq!((record.address, record.bytes), (address, 6 * MIB));
    assert_eq!(
        record.head.flags,
        MemoryRecord::MANAGED | MemoryRecord::PREFETCHED
    );
    assert_eq!(meeting.program.ask(&format!("free {address}")), "0");
    let record = expect!(&mut session, Record::Free(record) => *record);
    assert_eq!(record.address, address);
    meeting.program.quit();
}

#[test]
fn a_launch_is_told_with_its_name_geometry_and_arguments() {
    let mut meeting = meeting("launch", &[]);
    let address = alloc(&mut meeting, 4 * MIB);
    let mut session = meeting.session();
    expect!(&mut session, Record::Alloc(_) => ());
    // The hooks record from now on, or a moment later.
    meeting.program.ask(&format!("launch {address}"));
    while meeting.program.count("cuFuncGetName") == 0 {
        meeting.program.ask(&format!("launch {address}"));
    }
    let function = expect!(&mut session, Record::Function { record, name } => {
        assert_eq!(name, "kernel_nine");
        assert_eq!(record.head.flags, 2, "two parameters");
        record.function
    });
    expect!(&mut session, Record::Launch { record, words } => {
        assert_eq!(record.function, function);
        assert_eq!((record.grid, record.block), ([3, 2, 1], [64, 1, 1]));
        assert_eq!(words, [address, 77]);
        assert_eq!((record.seq, record.head.stream), (1, 0));
    });
    session.control().mark_stride.store(1, Ordering::Relaxed);
    meeting.program.ask(&format!("launch {address} 2"));
    session.wait_progress(0, 3);
    // A kernel on lists of tensors has all its pointers in one parameter of nearly 4 KiB.
    meeting.program.ask(&format!("lists {address}"));
    loop {
        let slots = next(&mut session);
        if let Ok(Record::Launch { record, words }) = Record::decode(&slots)
            && record.function != function
        {
            assert_eq!(record.head.flags & LaunchRecord::FLAG_TRUNCATED, 0);
            let expected = (address..address + 510).chain([77]);
            assert!(words.iter().copied().eq(expected), "{words:x?}");
            break;
        }
    }
    meeting.program.quit();
}

#[test]
fn the_last_launches_are_marked_when_the_stream_goes_quiet_or_is_waited_for() {
    let mut meeting = meeting("marks", &[]);
    alloc(&mut meeting, 4 * MIB);
    let mut session = meeting.session();
    session.control().mark_stride.store(1000, Ordering::Relaxed);
    expect!(&mut session, Record::Alloc(_) => ());
    meeting.program.ask("launch 0 5");
    while meeting.program.count("cuFuncGetName") == 0 {
        meeting.program.ask("launch 0 5");
    }
    session.wait_progress(0, 5);
    let writes = meeting.program.count("cuStreamWriteValue32_v2");
    assert!(writes >= 1, "an idle stream is marked by the executor");
    let stream = meeting.program.number("stream");
    meeting.program.ask(&format!("launch 0 1 {stream}"));
    meeting.program.ask(&format!("sync {stream}"));
    session.wait_progress(1, 6);
    meeting.program.quit();
}

#[test]
fn a_daemon_that_dozes_is_woken_for_memory_and_not_for_launches() {
    let mut meeting = meeting("doze", &[]);
    alloc(&mut meeting, 4 * MIB);
    let mut session = meeting.session();
    expect!(&mut session, Record::Alloc(_) => ());
    meeting.program.ask("launch 0");
    while meeting.program.count("cuFuncGetName") == 0 {
        meeting.program.ask("launch 0");
    }
    while !session.doze() {
        session.drain();
    }
    session.was_woken();
    meeting.program.ask("launch 0 20");
    assert!(!session.was_woken(), "a launch can wait");
    assert!(session.drain() >= 20, "and is told all the same");
    assert!(session.doze());
    assert_eq!(session.control().woken_ns.load(Ordering::Relaxed), 0);
    alloc(&mut meeting, 4 * MIB);
    assert!(session.was_woken(), "new memory cannot");
    assert!(session.control().woken_ns.load(Ordering::Relaxed) > 0);
    meeting.program.quit();
}

#[test]
fn a_calm_daemon_learns_of_the_last_launches_all_the_same() {
    let mut meeting = meeting("calm", &[]);
    alloc(&mut meeting, 4 * MIB);
    let mut session = meeting.session();
    session.control().mark_stride.store(64, Ordering::Relaxed);
    session.control().calm.store(1, Ordering::Relaxed);
    expect!(&mut session, Record::Alloc(_) => ());
    meeting.program.ask("launch 0 5");
    while meeting.program.count("cuFuncGetName") == 0 {
        meeting.program.ask("launch 0 5");
    }
    session.wait_progress(0, 5);
    meeting.program.quit();
}

#[test]
fn copies_and_memsets_are_told_where_they_touch_managed_memory() {
    let mut meeting = meeting("copies", &[]);
    let address = alloc(&mut meeting, 4 * MIB);
    let small = meeting.program.number("alloc 4096");
    let mut session = meeting.session();
    expect!(&mut session, Record::Alloc(_) => ());
    while session.control().last_seq.load(Ordering::Relaxed) == 0 {
        meeting.program.ask(&format!("write {small} 64"));
        meeting.program.ask(&format!("write {address} 4096"));
    }
    expect!(&mut session, Record::Copy(record) => {
        assert_eq!((record.dst, record.bytes), (address, 4096));
        assert_eq!(record.head.flags, CopyRecord::DST_MANAGED);
    });
    meeting.program.ask(&format!("fill {address} 100"));
    loop {
        let slots = next(&mut session);
        match Record::decode(&slots).unwrap() {
            Record::Copy(record) => assert_eq!(record.dst, address),
            Record::Memset(record) => break assert_eq!((record.dst, record.bytes), (address, 100)),
            other => panic!("unexpected {other:?}"),
        }
    }
    meeting.program.quit();
}

#[test]
fn a_captured_launch_is_told_as_one_and_gets_no_mark() {
    let mut meeting = meeting("capture", &[]);
    alloc(&mut meeting, 4 * MIB);
    let mut session = meeting.session();
    session.control().mark_stride.store(1, Ordering::Relaxed);
    expect!(&mut session, Record::Alloc(_) => ());
    let stream = meeting.program.number("stream");
    while meeting.program.count("cuStreamWriteValue32_v2") == 0 {
        meeting.program.ask(&format!("launch 0 1 {stream}"));
    }
    meeting.program.ask(&format!("capture {stream}"));
    let marks = meeting.program.count("cuStreamWriteValue32_v2");
    meeting.program.ask(&format!("launch 0 4 {stream}"));
    assert_eq!(meeting.program.count("cuStreamWriteValue32_v2"), marks);
    meeting.program.ask(&format!("captured {stream}"));
    let captured = (0..)
        .map(|_| {
            let slots = next(&mut session);
            matches!(
                Record::decode(&slots).unwrap(),
                Record::Launch { record, .. } if record.head.flags & LaunchRecord::FLAG_CAPTURED != 0
            )
        })
        .find(|captured| *captured);
    assert_eq!(captured, Some(true));
    meeting.program.quit();
}

#[test]
fn commands_are_executed_merged_and_reported_done() {
    let mut meeting = meeting("commands", &[]);
    let address = alloc(&mut meeting, 16 * MIB);
    let mut session = meeting.session();
    session.command(Operation::EVICT, address, 2 * MIB);
    let id = session.command(Operation::EVICT, address + 2 * MIB, 2 * MIB);
    session.wait_done(1, id);
    assert_eq!(meeting.program.ask("last prefetch-kind"), "2");
    let id = session.command(Operation::PREFETCH, address + 8 * MIB, 4 * MIB);
    session.wait_done(0, id);
    assert_eq!(
        meeting.program.ask("last prefetch"),
        (address + 8 * MIB).to_string()
    );
    assert_eq!(
        meeting.program.ask("last prefetch-bytes"),
        (4 * MIB).to_string()
    );
    assert_eq!(meeting.program.ask("last prefetch-kind"), "1");
    let executed = &session.control().commands_executed;
    let executed = [1, 2].map(|operation: usize| executed[operation].load(Ordering::Relaxed));
    assert_eq!(executed, [1, 2]);
    meeting.program.quit();
}

#[test]
fn fetches_go_over_several_streams_and_are_over_before_they_are_reported() {
    let mut meeting = meeting("lanes", &[]);
    let address = alloc(&mut meeting, 64 * MIB);
    let mut session = meeting.session();
    let id = session.command(Operation::POPULATE, address, 2 * MIB);
    session.wait_done(2, id);
    let last = |meeting: &mut Meeting, what| {
        let said = meeting.program.ask(&format!("last {what}"));
        said.parse::<u64>().unwrap()
    };
    let before = last(&mut meeting, "fetching-streams");
    let mut newest = 0;
    // One alone, then many at once; no two are neighbours.
    for part in 0..16 {
        newest = session.command(Operation::PREFETCH, address + part * 4 * MIB, 2 * MIB);
        if part == 0 {
            session.wait_done(0, newest);
        }
    }
    session.wait_done(0, newest);
    assert_eq!(last(&mut meeting, "fetching-streams"), before + 4);
    assert_eq!(last(&mut meeting, "fetches-not-over"), 0);
    let executed = &session.control().commands_executed;
    let fetched = executed[usize::from(Operation::PREFETCH.0)].load(Ordering::Relaxed);
    assert_eq!(fetched, 16);
    meeting.program.quit();
}

#[test]
fn a_fetch_does_not_wait_for_all_that_leaves() {
    let mut meeting = meeting("leaving", &[("FAKE_SLOW_OUT_US", "20000")]);
    let address = alloc(&mut meeting, 64 * MIB);
    let mut session = meeting.session();
    let mut last_out = 0;
    for part in 0..16 {
        last_out = session.command(Operation::EVICT, address + part * 4 * MIB, 2 * MIB);
    }
    let id = session.command(Operation::PREFETCH, address + 2 * MIB, 2 * MIB);
    session.wait_done(0, id);
    let executed = &session.control().commands_executed;
    let evicted = executed[usize::from(Operation::EVICT.0)].load(Ordering::Relaxed);
    assert!(evicted < 16, "{evicted} evictions came before the fetch");
    session.wait_done(1, last_out);
    meeting.program.quit();
}

#[test]
fn memory_is_not_freed_between_the_check_of_a_command_and_the_driver() {
    let mut meeting = meeting("free", &[("FAKE_SLOW_TAKE_US", "300000")]);
    let address = alloc(&mut meeting, 4 * MIB);
    let mut session = meeting.session();
    // The placement of new memory is one as well.
    let before = meeting.program.ask("last takes");
    let id = session.command(Operation::PREFETCH, address, 2 * MIB);
    meeting
        .program
        .wait_for("last takes", |takes| takes != before);
    assert_eq!(meeting.program.ask(&format!("free {address}")), "0");
    session.wait_done(0, id);
    assert_eq!(meeting.program.ask("last freed-while-taken"), "0");
    let executed = &session.control().commands_executed;
    let fetched = executed[usize::from(Operation::PREFETCH.0)].load(Ordering::Relaxed);
    assert_eq!(fetched, 1);
    meeting.program.quit();
}

#[test]
fn memory_stays_on_the_host_by_command_and_migrates_again_by_another() {
    let mut meeting = meeting("on-host", &[]);
    let address = alloc(&mut meeting, 4 * MIB);
    let mut session = meeting.session();
    let id = session.command(Operation::USE_ON_HOST, address, 4 * MIB);
    session.wait_done(2, id);
    assert_eq!(meeting.program.ask("last advice"), "32", "prefers the host");
    let id = session.command(Operation::LET_MIGRATE, address, 4 * MIB);
    session.wait_done(2, id);
    let told = meeting.program.ask("last advice");
    assert_eq!(told, "323141", "then the device for a moment, then nothing");
    meeting.program.quit();
}

#[test]
fn on_memory_that_the_program_manages_itself_it_alone_advises() {
    let mut meeting = meeting("advice", &[]);
    alloc(&mut meeting, 4 * MIB);
    let own = meeting.program.number(&format!("managed {}", 4 * MIB));
    let mut session = meeting.session();
    for _ in 0..2 {
        expect!(&mut session, Record::Alloc(_) => ());
    }
    let id = session.command(Operation::USE_ON_HOST, own, 4 * MIB);
    session.wait_done(2, id);
    let refused = expect!(&mut session, Record::CommandFailed(record) => *record);
    assert_eq!(refused.seq, u64::from(id));
    assert_eq!(meeting.program.count("cuMemAdvise_v2"), 0);
    meeting.program.quit();
}

#[test]
fn a_command_on_memory_that_is_not_there_is_refused_and_the_queue_goes_on() {
    let mut meeting = meeting("refused", &[]);
    let address = alloc(&mut meeting, 4 * MIB);
    let mut session = meeting.session();
    expect!(&mut session, Record::Alloc(_) => ());
    let wrong = session.command(Operation::PREFETCH, address + 4 * MIB, 2 * MIB);
    let too_long = session.command(Operation::PREFETCH, address, 8 * MIB);
    let right = session.command(Operation::PREFETCH, address, 4 * MIB);
    session.wait_done(0, right);
    for id in [wrong, too_long] {
        let record = expect!(&mut session, Record::CommandFailed(record) => *record);
        assert_eq!((record.head.flags, record.seq), (0, u64::from(id)));
    }
    assert_eq!(session.control().commands_failed.load(Ordering::Relaxed), 2);
    meeting.program.quit();
}

#[test]
fn dead_memory_of_the_pool_is_discarded_and_live_memory_is_not() {
    let mut meeting = meeting("discard", &[]);
    let live = meeting.program.number(&format!("async {} 0", 8 * MIB));
    let dead = meeting.program.number(&format!("async {} 0", 8 * MIB));
    let mut session = meeting.session();
    let segment = expect!(&mut session, Record::Alloc(record) => *record);
    assert_ne!(segment.head.flags & MemoryRecord::POOL, 0);
    for part in [live, dead] {
        let record = expect!(&mut session, Record::Use(record) => *record);
        assert_eq!((record.address, record.bytes), (part, 8 * MIB));
    }
    assert_eq!(meeting.program.ask(&format!("afree {dead} 0")), "0");
    let death = expect!(&mut session, Record::Unuse(record) => *record);
    assert_eq!((death.address, death.head.stream), (dead, 0));
    session.wait_progress(0, death.seq);
    let id = session.command(Operation::DISCARD, live, 2 * MIB);
    session.wait_done(2, id);
    assert_eq!(meeting.program.count("cuMemDiscardBatchAsync"), 0);
    assert_eq!(
        session.control().discards_declined.load(Ordering::Relaxed),
        1
    );
    let id = session.command(Operation::DISCARD, dead + 2 * MIB, 2 * MIB);
    session.wait_done(2, id);
    assert_eq!(
        meeting.program.ask("last discard"),
        (dead + 2 * MIB).to_string()
    );
    assert_eq!(
        meeting.program.number(&format!("async {} 0", 8 * MIB)),
        dead
    );
    meeting.program.quit();
}

#[test]
fn nothing_is_discarded_before_the_device_has_passed_the_free() {
    let mut meeting = meeting("stuck", &[("FAKE_STUCK", "1")]);
    let dead = meeting.program.number(&format!("async {} 0", 8 * MIB));
    let mut session = meeting.session();
    expect!(&mut session, Record::Alloc(_) => ());
    expect!(&mut session, Record::Use(_) => ());
    while session.control().last_seq.load(Ordering::Relaxed) == 0 {
        meeting.program.ask("launch 0");
    }
    meeting.program.ask(&format!("afree {dead} 0"));
    session.command(Operation::DISCARD, dead, 2 * MIB);
    while session.control().discards_declined.load(Ordering::Relaxed) == 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(meeting.program.count("cuMemDiscardBatchAsync"), 0);
    meeting.program.quit();
}

#[test]
fn a_discard_has_an_idle_stream_and_is_over_before_the_memory_is_handed_out() {
    let mut meeting = meeting("idle", &[]);
    let dead = meeting.program.number(&format!("async {} 0", 8 * MIB));
    let mut session = meeting.session();
    expect!(&mut session, Record::Alloc(_) => ());
    expect!(&mut session, Record::Use(_) => ());
    meeting.program.ask(&format!("afree {dead} 0"));
    let death = expect!(&mut session, Record::Unuse(record) => *record);
    session.wait_progress(0, death.seq);
    // Among commands of all kinds.
    for part in 0..4 {
        let part = dead + part * 2 * MIB;
        session.command(Operation::POPULATE, part, 2 * MIB);
        session.command(Operation::EVICT, part, 2 * MIB);
        session.command(Operation::PREFETCH, part, 2 * MIB);
        let id = session.command(Operation::DISCARD, part, 2 * MIB);
        session.wait_done(2, id);
        assert_eq!(meeting.program.ask("last discard"), part.to_string());
        assert_eq!(meeting.program.ask("last discard-is-over"), "1");
    }
    let waits = |meeting: &mut Meeting| meeting.program.count("cuStreamWaitEvent");
    let before = waits(&mut meeting);
    let again = meeting.program.number(&format!("async {} 0", 8 * MIB));
    assert_eq!(again, dead);
    assert_eq!(waits(&mut meeting), before, "there is nothing to wait for");
    assert_eq!(meeting.program.ask("last given-beside-discards"), "0");
    meeting.program.quit();
}

#[test]
fn a_dead_daemon_is_survived_and_its_successor_is_told_everything_again() {
    let mut meeting = meeting("restart", &[]);
    let address = alloc(&mut meeting, 4 * MIB);
    let part = meeting.program.number(&format!("async {} 0", 4 * MIB));
    let session = meeting.session();
    while meeting.program.count("cuFuncGetName") == 0 {
        meeting.program.ask("launch 0 3");
    }
    drop(session);
    meeting.daemon = None;
    for _ in 0..200 {
        meeting.program.ask("launch 0 10");
    }
    let late = alloc(&mut meeting, 6 * MIB);
    meeting.daemon = Some(Daemon::listen(&meeting.path));
    let mut session = meeting.session();
    let mut found = Vec::new();
    let mut names = Vec::new();
    while names.is_empty() {
        let slots = next(&mut session);
        match Record::decode(&slots).unwrap() {
            Record::Alloc(record) => found.push(record.address),
            Record::Use(record) => assert_eq!(record.address, part),
            Record::Function { name, .. } => names.push(name.to_owned()),
            other => panic!("unexpected {other:?}"),
        }
    }
    assert!(
        found.contains(&address) && found.contains(&late),
        "{found:?}"
    );
    assert_eq!((found.len(), names), (3, vec!["kernel_nine".to_owned()]));
    let id = session.command(Operation::PREFETCH, late, 2 * MIB);
    session.wait_done(0, id);
    meeting.program.quit();
}

#[test]
fn a_daemon_of_another_version_leaves_the_program_alone() {
    let mut meeting = meeting("version", &[]);
    alloc(&mut meeting, 4 * MIB);
    let (client, _) = meeting.daemon.as_ref().unwrap().accept();
    let mut welcome = Welcome::new(Status::VERSION_MISMATCH, 0, 0, 0);
    welcome.version += 1;
    send(&client, welcome.as_bytes(), &[]);
    for _ in 0..50 {
        assert_eq!(meeting.program.ask("launch 0"), "0");
    }
    assert_eq!(
        meeting.program.count("cuFuncGetName"),
        0,
        "nothing is recorded"
    );
    meeting.program.quit();
}

#[test]
fn a_daemon_that_talks_nonsense_leaves_the_program_alone() {
    let mut meeting = meeting("nonsense", &[]);
    alloc(&mut meeting, 4 * MIB);
    let (client, _) = meeting.daemon.as_ref().unwrap().accept();
    // Accepted, but without the descriptors that must come with it.
    send(
        &client,
        Welcome::new(Status::ACCEPTED, 1, 4096, 4096).as_bytes(),
        &[],
    );
    assert_eq!(meeting.program.ask("launch 0"), "0");
    let (client, _) = meeting.daemon.as_ref().unwrap().accept();
    send(&client, &[0xff; 1000], &[]);
    assert_eq!(meeting.program.ask("launch 0"), "0");
    assert_eq!(
        meeting.program.count("cuFuncGetName"),
        0,
        "nothing is recorded"
    );
    meeting.program.quit();
}

#[test]
fn a_daemon_that_never_reads_costs_records_and_nothing_else() {
    let mut meeting = meeting("full", &[]);
    alloc(&mut meeting, 4 * MIB);
    let session = meeting.session();
    while meeting.program.count("cuFuncGetName") == 0 {
        meeting.program.ask("launch 0");
    }
    let launches = meeting.program.count("cuLaunchKernel");
    assert_eq!(meeting.program.ask("launch 0 20000"), "0");
    assert_eq!(meeting.program.count("cuLaunchKernel"), launches + 20_000);
    drop(session);
    meeting.program.quit();
}

#[test]
fn errno_stays_the_programs() {
    let mut meeting = meeting("errno", &[]);
    alloc(&mut meeting, 4 * MIB);
    let _session = meeting.session();
    while meeting.program.count("cuFuncGetName") == 0 {
        meeting.program.ask("launch 0");
    }
    assert_eq!(meeting.program.ask("errno"), "4711");
    meeting.program.quit();
}

#[test]
fn a_forked_child_does_not_keep_the_session_open_or_write_into_it() {
    let mut meeting = meeting("fork", &[]);
    let address = alloc(&mut meeting, 4 * MIB);
    let mut session = meeting.session();
    expect!(&mut session, Record::Alloc(_) => ());
    while meeting.program.count("cuFuncGetName") == 0 {
        meeting.program.ask("launch 0");
    }
    assert_eq!(meeting.program.ask("fork"), "0");
    meeting.program.ask(&format!("launch {address}"));
    // The child launched too: its record would stand between, or make this one come late.
    let mut numbers = Vec::new();
    let mut told = Vec::new();
    while told.last() != Some(&address) {
        let slots = next(&mut session);
        match Record::decode(&slots).unwrap() {
            Record::Launch { record, words } => {
                numbers.push(record.seq);
                told.push(words[0]);
            }
            Record::Function { .. } => {}
            other => panic!("unexpected {other:?}"),
        }
    }
    let expected: Vec<u64> = (1..=numbers.len() as u64).collect();
    assert_eq!(numbers, expected);
    assert!(
        told[..told.len() - 1].iter().all(|pointer| *pointer == 0),
        "{told:x?}"
    );
    meeting.program.quit();
}

/// A program on a device that is as far as the test says, which is up to the program's last
/// launch at first, with a session that asks for a mark at every launch and for no more than 8
/// launches ahead of the device. With the number of that launch: those before the session began
/// have none.
fn held(name: &str) -> (Meeting, Session, u32) {
    let mut meeting = meeting(name, &[("FAKE_STUCK", "1")]);
    let address = alloc(&mut meeting, 4 * MIB);
    let mut session = meeting.session();
    session.control().mark_stride.store(1, Ordering::Relaxed);
    while meeting.program.count("cuStreamWriteValue32_v2") == 0 {
        meeting.program.ask("launch 0");
    }
    meeting.program.ask(&format!("launch {address}"));
    let number = loop {
        let slots = next(&mut session);
        match Record::decode(&slots).unwrap() {
            Record::Launch { record, words } if words[0] == address => break record.seq as u32,
            _ => {}
        }
    };
    session.device().progress[0].store(number, Ordering::Release);
    session.control().run_ahead.store(8, Ordering::Relaxed);
    (meeting, session, number)
}

#[test]
fn a_program_gets_no_further_ahead_of_the_device_than_the_daemon_asks_for() {
    let (mut meeting, session, before) = held("ahead");
    // Fewer are no matter.
    meeting.program.ask("launch 0 8");
    assert_eq!(session.control().held_launches.load(Ordering::Relaxed), 0);
    let word = &session.device().progress[0];
    std::thread::scope(|scope| {
        let program = scope.spawn(|| meeting.program.ask("launch 0 20"));
        for passed in before..before + 20 {
            word.store(passed, Ordering::Release);
            std::thread::sleep(std::time::Duration::from_millis(5));
            assert!(!program.is_finished());
        }
        word.store(before + 20, Ordering::Release);
        assert_eq!(program.join().unwrap(), "0");
    });
    let control = session.control();
    assert!(control.held_launches.load(Ordering::Relaxed) >= 10);
    assert!(control.held_ns.load(Ordering::Relaxed) >= 50_000_000);
    meeting.program.quit();
}

#[test]
fn a_device_that_makes_no_progress_is_not_waited_for() {
    let (mut meeting, session, _) = held("still");
    let begun = std::time::Instant::now();
    meeting.program.ask("launch 0 4000");
    let held_ns = session.control().held_ns.load(Ordering::Relaxed);
    assert_eq!(session.control().held_launches.load(Ordering::Relaxed), 1);
    assert!((200_000_000..2_000_000_000).contains(&held_ns), "{held_ns}");
    assert!(begun.elapsed() < common::PATIENCE);
    meeting.program.quit();
}

#[test]
fn a_program_that_waits_runs_on_when_the_daemon_is_gone() {
    let (mut meeting, session, _) = held("gone");
    let far = meeting.program.count("cuLaunchKernel") + 1000;
    std::thread::scope(|scope| {
        let program = scope.spawn(|| meeting.program.ask("launch 0 1000"));
        while session.control().held_launches.load(Ordering::Relaxed) < 3 {
            session.device().progress[0].fetch_add(1, Ordering::AcqRel);
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        drop(session);
        assert_eq!(program.join().unwrap(), "0");
    });
    assert_eq!(meeting.program.count("cuLaunchKernel"), far);
    meeting.program.quit();
}
