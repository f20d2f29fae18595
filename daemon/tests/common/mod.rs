//! A daemon of its own in a temporary directory, and a program that talks to it.
#![allow(dead_code)] // each suite uses a part

use std::io::{BufRead, BufReader, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, connect, recvmsg,
    send, socket,
};
use nix::unistd::Pid;
use oversub_protocol::command::CommandRecord;
use oversub_protocol::encode::{Function, Launch, LaunchShape};
use oversub_protocol::event::{Kind, MemoryRecord};
use oversub_protocol::fences::Fences;
use oversub_protocol::handshake::{Hello, MAGIC, Status, Welcome, padded};
use oversub_protocol::layout::{
    ControlPage, DevicePage, RingHead, SlotCell, commands_memfd, events_memfd,
};
use oversub_protocol::ring::{Encode, Lengths, Push, Reader, Ring, Writer};
use oversub_protocol::{BLOCK_BYTES, PROTOCOL_VERSION};
use oversubd::control::{Answer, CONTROL_VERSION, Question, Request};
use zerocopy::{FromZeros, IntoBytes};

/// Longest wait for anything: far beyond what a loaded machine needs.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `condition` gives something.
pub fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub struct Daemon {
    pub directory: tempfile::TempDir,
    pub child: Child,
    pub http: String,
}

impl Daemon {
    pub fn start() -> Daemon {
        Daemon::start_with(&[], "")
    }

    /// With more arguments, and a configuration.
    pub fn start_with(arguments: &[&str], config: &str) -> Daemon {
        Daemon::start_in(tempfile::tempdir().unwrap(), arguments, config)
    }

    pub fn start_in(directory: tempfile::TempDir, arguments: &[&str], config: &str) -> Daemon {
        Daemon::try_start(directory, arguments, config, |_| {}).expect("the daemon gets ready")
    }

    /// `Err`: what it said before it ended.
    pub fn try_start(
        directory: tempfile::TempDir,
        arguments: &[&str],
        config: &str,
        prepare: impl FnOnce(&mut Command),
    ) -> Result<Daemon, String> {
        let file = directory.path().join("config.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_oversubd"));
        command
            .arg("--config")
            .arg(&file)
            .arg("--socket")
            .arg(directory.path().join("run/oversubd.sock"))
            .args(["--http", "127.0.0.1:0", "--log-format", "json"])
            .args(arguments)
            .env("OVERSUBD_LOG", "info")
            .stderr(Stdio::piped());
        prepare(&mut command);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = String::new();
        let http = loop {
            let Some(line) = lines.next() else {
                child.wait().unwrap();
                return Err(said);
            };
            let line = line.unwrap();
            said.push_str(&line);
            match serde_json::from_str::<serde_json::Value>(&line) {
                Ok(line) if line["message"] == "ready" => {
                    break line["http"].as_str().unwrap_or_default().to_owned();
                }
                _ => {}
            }
        };
        // Go on reading, so that the daemon never waits for us.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                eprintln!("daemon: {line}");
            }
        });
        Ok(Daemon {
            directory,
            child,
            http,
        })
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("run/oversubd.sock")
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    pub fn exit_code(&mut self) -> Option<i32> {
        eventually("the daemon ends", || self.child.try_wait().unwrap()).code()
    }

    pub fn ask_line(&self, line: &str) -> Answer {
        let mut stream = UnixStream::connect(self.socket().with_file_name("control.sock")).unwrap();
        writeln!(stream, "{line}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    pub fn ask(&self, question: Question) -> Answer {
        let request = Request {
            version: CONTROL_VERSION,
            request: question,
        };
        self.ask_line(&serde_json::to_string(&request).unwrap())
    }

    pub fn status(&self) -> oversubd::control::Status {
        match self.ask(Question::Status) {
            Answer::Status(status) => status,
            other => panic!("no status: {other:?}"),
        }
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.http).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let code = text.split(' ').nth(1).unwrap().parse().unwrap();
        let body = text.split_once("\r\n\r\n").unwrap().1;
        (code, body.to_owned())
    }

    /// The value of a series, by its whole name with labels.
    pub fn metric(&self, series: &str) -> Option<f64> {
        let (_, text) = self.get("/metrics");
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
        Some(line.parse().unwrap())
    }
}

impl Daemon {
    /// Kills it at once; its directory stays.
    pub fn kill(mut self) -> tempfile::TempDir {
        self.signal(Signal::SIGKILL);
        self.child.wait().unwrap();
        std::mem::replace(&mut self.directory, tempfile::tempdir().unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn hello() -> Hello {
    let mut hello = Hello::new_zeroed();
    hello.magic = MAGIC;
    hello.version = PROTOCOL_VERSION;
    hello.device_bytes = 64 << 20;
    hello.free_bytes = 64 << 20;
    hello.flags = Hello::HAS_DISCARD | Hello::HAS_PROGRESS;
    hello.uuid = [7; 16];
    hello.device_name = padded(b"Test GPU");
    hello
}

/// A connection that has said nothing yet.
pub fn dial(daemon: &Daemon) -> OwnedFd {
    let fd = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .unwrap();
    connect(fd.as_raw_fd(), &UnixAddr::new(&daemon.socket()).unwrap()).unwrap();
    fd
}

/// The answer to `message`; none where the daemon hung up.
pub fn say(socket: &OwnedFd, message: &[u8]) -> Option<(Welcome, Vec<OwnedFd>)> {
    send(socket.as_raw_fd(), message, MsgFlags::MSG_NOSIGNAL).unwrap();
    let mut buffer = [0u8; 256];
    let mut control = nix::cmsg_space!([i32; 8]);
    let mut parts = [IoSliceMut::new(&mut buffer)];
    let received = recvmsg::<()>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut control),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )
    .ok()?;
    let mut fds = Vec::new();
    for message in received.cmsgs().unwrap() {
        if let ControlMessageOwned::ScmRights(raw) = message {
            // SAFETY: the kernel has just given them to us.
            fds.extend(
                raw.into_iter()
                    .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
            );
        }
    }
    let length = received.bytes;
    (length > 0).then(|| {
        let welcome = Welcome::from_message(&buffer[..length]);
        let welcome = welcome.unwrap_or_else(|error| panic!("bad welcome: {error}"));
        (welcome, fds)
    })
}

/// What the status is for a first message; none where the daemon hung up.
pub fn greet(daemon: &Daemon, message: &[u8]) -> Option<Status> {
    say(&dial(daemon), message).map(|(welcome, _)| welcome.status)
}

fn map(fd: &OwnedFd) -> (NonNull<u8>, usize) {
    let bytes = nix::sys::stat::fstat(fd).unwrap().st_size as usize;
    let length = NonZeroUsize::new(bytes).unwrap();
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping; it is never unmapped.
    let start = unsafe {
        mmap(
            None,
            length,
            protection,
            MapFlags::MAP_SHARED,
            fd.as_fd(),
            0,
        )
    };
    (start.unwrap().cast(), bytes)
}

/// A program with a session.
pub struct Client {
    pub socket: OwnedFd,
    pub welcome: Welcome,
    pub fds: Vec<OwnedFd>,
    pub events: NonNull<u8>,
    writer: Writer,
    reader: Reader,
    pub seq: u64,
}

// SAFETY: `events` is only ever read through atomics, and stays mapped.
unsafe impl Sync for Client {}

fn barrier_word(events: NonNull<u8>) -> u32 {
    // SAFETY: the daemon's layout; an atomic.
    let head: &RingHead = unsafe { events.add(events_memfd::RING_HEAD).cast().as_ref() };
    head.reader.0.barrier.load(Ordering::Acquire)
}

impl Client {
    pub fn connect(daemon: &Daemon) -> Client {
        Client::connect_as(daemon, &hello())
    }

    pub fn connect_as(daemon: &Daemon, hello: &Hello) -> Client {
        let socket = dial(daemon);
        let (welcome, fds) = say(&socket, hello.as_bytes()).expect("an answer");
        assert_eq!(welcome.status, Status::ACCEPTED);
        assert_eq!(fds.len(), 4);
        let (events, _) = map(&fds[0]);
        let (commands, _) = map(&fds[1]);
        // SAFETY: the daemon's layout; never unmapped.
        let (event_ring, command_ring) = unsafe {
            (
                Ring::from_raw(
                    events.add(events_memfd::RING_HEAD).cast::<RingHead>(),
                    events.add(events_memfd::SLOTS).cast::<SlotCell>(),
                    welcome.event_slots,
                ),
                Ring::from_raw(
                    commands.add(commands_memfd::RING_HEAD).cast::<RingHead>(),
                    commands.add(commands_memfd::SLOTS).cast::<SlotCell>(),
                    welcome.command_slots,
                ),
            )
        };
        let fences = match hello.flags & Hello::HAS_BARRIER {
            0 => Fences::Both,
            _ => Fences::Reader,
        };
        Client {
            socket,
            welcome,
            fds,
            events,
            writer: Writer::new(event_ring.unwrap(), fences),
            reader: Reader::new(command_ring.unwrap(), Lengths::One),
            seq: 0,
        }
    }

    /// What the daemon says of its barrier.
    pub fn barrier_word(&self) -> u32 {
        barrier_word(self.events)
    }

    pub fn device_page(&self) -> &DevicePage {
        // SAFETY: the daemon's layout; never unmapped.
        unsafe { self.events.add(events_memfd::DEVICE_PAGE).cast().as_ref() }
    }

    pub fn control_page(&self) -> &ControlPage {
        // SAFETY: as above.
        unsafe { self.events.add(events_memfd::CONTROL_PAGE).cast().as_ref() }
    }

    pub fn push(&self, record: &impl Encode) {
        match self.writer.push(record) {
            Push::Written => {}
            Push::WrittenWake => self.wake(),
            Push::Full => panic!("the ring is full"),
        }
    }

    /// Writes if there is room.
    pub fn try_push(&self, record: &impl Encode) {
        if self.writer.push(record) == Push::WrittenWake {
            self.wake();
        }
    }

    pub fn wake(&self) {
        nix::unistd::write(&self.fds[2], &1u64.to_ne_bytes()).unwrap();
    }

    pub fn memory(&self, kind: Kind, flags: u32, address: u64, bytes: u64) {
        let next = self.seq + 1;
        self.push(&MemoryRecord::new(kind, 0, flags, next, address, bytes));
    }

    /// A part of a pool segment is freed behind the newest launch.
    pub fn unuse(&self, address: u64, bytes: u64) {
        let record = MemoryRecord::new(Kind::UNUSE, 0, 0, self.seq, address, bytes);
        self.push(&record);
    }

    pub fn alloc(&self, address: u64, bytes: u64) {
        self.memory(Kind::ALLOC, MemoryRecord::MANAGED, address, bytes);
    }

    pub fn function(&self, function: u32, name: &str) {
        self.push(&Function::new(function, 1, name.as_bytes()));
    }

    /// Launches `function` on one pointer; the launch's number.
    pub fn launch(&mut self, function: u32, pointer: u64) -> u64 {
        if self.launch_as_it_may_wait(function, pointer) {
            self.wake();
        }
        self.seq
    }

    /// The same, as a program writes it; `true`: the daemon is to be woken for it.
    pub fn launch_as_it_may_wait(&mut self, function: u32, pointer: u64) -> bool {
        self.seq += 1;
        let shape = LaunchShape {
            stream: 0,
            flags: 0,
            seq: self.seq,
            function,
            grid: [16, 1, 1],
            block: [256, 1, 1],
        };
        let pushed = self
            .writer
            .push_patient(&Launch::new(shape, &[pointer, 64]));
        assert_ne!(pushed, Push::Full, "the ring is full");
        pushed == Push::WrittenWake
    }

    /// The device has passed this number in stream 0.
    pub fn passed(&self, seq: u64) {
        self.device_page().progress[0].store(seq as u32, Ordering::Release);
    }

    /// The next command, if one is there.
    pub fn command(&mut self) -> Option<CommandRecord> {
        let record = self.reader.next_record().unwrap()?;
        Some(*CommandRecord::decode(&record[0]).expect("the daemon sends possible commands"))
    }

    /// The next command, slept for.
    pub fn wait_command(&mut self, timeout: Duration) -> Option<CommandRecord> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(command) = self.command() {
                return Some(command);
            }
            let left = end.checked_duration_since(Instant::now())?;
            if self.reader.prepare_sleep() {
                let mut ready = [PollFd::new(self.fds[3].as_fd(), PollFlags::POLLIN)];
                let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
                poll(&mut ready, wait).unwrap();
                let woken = ready[0]
                    .revents()
                    .is_some_and(|flags| flags.contains(PollFlags::POLLIN));
                self.reader.cancel_sleep();
                if woken {
                    nix::unistd::read(&self.fds[3], &mut [0u8; 8]).unwrap();
                }
            }
        }
    }

    /// The device has executed this command.
    pub fn done(&self, command: &CommandRecord) {
        self.device_page().done[usize::from(command.queue)].store(command.id, Ordering::Release);
    }

    /// The daemon has hung up.
    pub fn is_ended(&self) -> bool {
        let mut ready = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut ready, PollTimeout::ZERO).unwrap() == 1
    }
}

/// An address for block `index`.
pub fn block(index: u64) -> u64 {
    0x7f00_0000_0000 + index * BLOCK_BYTES
}
