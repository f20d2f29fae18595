//! A daemon for one program at a time: the handshake, and both rings in the test's hands.

use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use oversub_protocol::command::{CommandRecord, Operation, queue};
use oversub_protocol::event::Words;
use oversub_protocol::handshake::{Hello, Status, Welcome};
use oversub_protocol::layout::{ControlPage, DevicePage, commands_memfd, events_memfd};
use oversub_protocol::ring::{Lengths, Push, Reader, Ring, SoleWriter};
use zerocopy::IntoBytes;

use super::PATIENCE;

/// Slots of both rings.
pub const SLOTS: u32 = 1 << 12;

/// Listens; dropping it closes the socket and removes it.
pub struct Daemon {
    socket: OwnedFd,
    path: PathBuf,
}

/// Whether a process may register for barriers of others.
pub fn can_register() -> bool {
    const REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0 }
}

/// As the daemon's: all threads of the programs that registered.
fn barrier() -> bool {
    const GLOBAL_EXPEDITED: i32 = 1 << 1;
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL_EXPEDITED, 0, 0) == 0 }
}

fn check(result: i32) -> i32 {
    assert!(result >= 0, "{}", std::io::Error::last_os_error());
    result
}

fn own(result: i32) -> OwnedFd {
    // SAFETY: a descriptor that was just made.
    unsafe { OwnedFd::from_raw_fd(check(result)) }
}

impl Daemon {
    /// Listens at `path`.
    pub fn listen(path: &Path) -> Daemon {
        let _ = std::fs::remove_file(path);
        // SAFETY: all zero is an address of no family.
        let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
        address.sun_family = libc::AF_UNIX as u16;
        let text = path.as_os_str().as_encoded_bytes();
        for (to, byte) in address.sun_path.iter_mut().zip(text) {
            *to = *byte as libc::c_char;
        }
        let bytes = size_of_val(&address) as u32;
        // SAFETY: a whole address.
        let socket = unsafe {
            let socket = own(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0));
            check(libc::bind(
                socket.as_raw_fd(),
                (&raw const address).cast(),
                bytes,
            ));
            check(libc::listen(socket.as_raw_fd(), 4));
            socket
        };
        Daemon {
            socket,
            path: path.to_owned(),
        }
    }

    /// Waits for a program; its socket and what it says.
    pub fn accept(&self) -> (OwnedFd, Hello) {
        let mut waiting = libc::pollfd {
            fd: self.socket.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let patience = PATIENCE.as_millis() as i32;
        let mut message = [0_u8; 1024];
        // SAFETY: local buffers with their sizes.
        let (client, bytes) = unsafe {
            assert_eq!(
                libc::poll(&raw mut waiting, 1, patience),
                1,
                "no program came"
            );
            let no_one = std::ptr::null_mut();
            let client = own(libc::accept(self.socket.as_raw_fd(), no_one, no_one.cast()));
            let buffer = message.as_mut_ptr().cast();
            let bytes = libc::recv(client.as_raw_fd(), buffer, message.len(), 0);
            (client, bytes)
        };
        let bytes = usize::try_from(bytes).unwrap();
        (client, Hello::from_message(&message[..bytes]).unwrap())
    }

    /// Waits for a program and begins a session with it.
    pub fn session(&self) -> Session {
        let (client, hello) = self.accept();
        let events = SharedMemory::new(events_memfd::bytes(SLOTS).unwrap());
        let commands = SharedMemory::new(commands_memfd::bytes(SLOTS).unwrap());
        // SAFETY: no pointers.
        let wakes = unsafe {
            [
                own(libc::eventfd(0, libc::EFD_NONBLOCK)),
                own(libc::eventfd(0, libc::EFD_NONBLOCK)),
            ]
        };
        let files = [&events.file, &commands.file, &wakes[0], &wakes[1]];
        let welcome = Welcome::new(Status::ACCEPTED, 1, SLOTS, SLOTS);
        send(&client, welcome.as_bytes(), &files.map(AsRawFd::as_raw_fd));
        // SAFETY: the mappings have the sizes that these rings need, and live as long.
        unsafe {
            let event_ring = Ring::from_raw(
                events.at(events_memfd::RING_HEAD),
                events.at(events_memfd::SLOTS),
                SLOTS,
            );
            let command_ring = Ring::from_raw(
                commands.at(commands_memfd::RING_HEAD),
                commands.at(commands_memfd::SLOTS),
                SLOTS,
            );
            let [events_wake, commands_wake] = wakes;
            let mut reader = Reader::new(event_ring.unwrap(), Lengths::FromHead);
            if hello.flags & Hello::HAS_BARRIER != 0 {
                // As a daemon that has nothing to steer.
                reader = reader.with_barrier(barrier);
                reader.spare_writers(true);
            }
            Session {
                hello,
                _client: client,
                reader,
                writer: SoleWriter::new(command_ring.unwrap()),
                events_wake,
                commands_wake,
                next_id: [0; queue::COUNT],
                events,
                _commands: commands,
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Sends a message, with descriptors.
pub fn send(client: &OwnedFd, text: &[u8], files: &[i32]) {
    let mut part = libc::iovec {
        iov_base: text.as_ptr().cast_mut().cast(),
        iov_len: text.len(),
    };
    let mut space = [0_u64; 16];
    // SAFETY: all zero is an empty message; the control buffer has room for what is put in.
    unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if !files.is_empty() {
            let bytes = size_of_val(files) as u32;
            message.msg_control = space.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(bytes) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as usize;
            let to = libc::CMSG_DATA(header).cast::<i32>();
            std::ptr::copy_nonoverlapping(files.as_ptr(), to, files.len());
        }
        check(libc::sendmsg(client.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) as i32);
    }
}

struct SharedMemory {
    file: OwnedFd,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping may be used from any thread.
unsafe impl Send for SharedMemory {}

impl SharedMemory {
    fn new(bytes: usize) -> SharedMemory {
        // SAFETY: a new file and a new mapping of it.
        unsafe {
            let name = c"oversub-test".as_ptr();
            let file = own(libc::memfd_create(name, libc::MFD_ALLOW_SEALING));
            check(libc::ftruncate(file.as_raw_fd(), bytes as i64));
            let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
            check(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals));
            let start = libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            assert_ne!(start, libc::MAP_FAILED);
            SharedMemory {
                file,
                start: NonNull::new(start.cast()).unwrap(),
                bytes,
            }
        }
    }

    fn at<T>(&self, offset: usize) -> NonNull<T> {
        assert!(offset < self.bytes);
        // SAFETY: inside the mapping.
        unsafe { self.start.add(offset).cast() }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: our own mapping.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// One program's session. Dropping it is the daemon's death, as far as the program can see.
pub struct Session {
    /// What the program said.
    pub hello: Hello,
    _client: OwnedFd,
    reader: Reader,
    writer: SoleWriter,
    events_wake: OwnedFd,
    commands_wake: OwnedFd,
    next_id: [u32; queue::COUNT],
    events: SharedMemory,
    _commands: SharedMemory,
}

impl Session {
    /// Words that the device writes.
    pub fn device(&self) -> &DevicePage {
        // SAFETY: the page lies in the mapping.
        unsafe { self.events.at(events_memfd::DEVICE_PAGE).as_ref() }
    }

    /// Words that both sides write.
    pub fn control(&self) -> &ControlPage {
        // SAFETY: the page lies in the mapping.
        unsafe { self.events.at(events_memfd::CONTROL_PAGE).as_ref() }
    }

    /// The next record, waited for.
    pub fn record(&mut self) -> Vec<Words> {
        let start = Instant::now();
        loop {
            if let Some(slots) = self.reader.next_record().unwrap() {
                return slots.to_vec();
            }
            assert!(start.elapsed() < PATIENCE, "no record came");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Announces that prompt records alone need wake the daemon; `false`: there are records.
    pub fn doze(&self) -> bool {
        self.reader.prepare_doze()
    }

    /// Whether the program has woken the daemon since this was last asked.
    pub fn was_woken(&self) -> bool {
        let mut count = 0_u64;
        // SAFETY: eight bytes of a local; the descriptor does not block.
        let read = unsafe { libc::read(self.events_wake.as_raw_fd(), (&raw mut count).cast(), 8) };
        read == 8
    }

    /// Reads and forgets all records that there are; how many.
    pub fn drain(&mut self) -> usize {
        self.reader.drain(SLOTS as usize, |_| {}).unwrap()
    }

    /// Records that found no room.
    pub fn dropped(&self) -> u64 {
        self.reader.ring().dropped()
    }

    /// Has the program's shim do something; the number of the command in its queue.
    pub fn command(&mut self, operation: Operation, address: u64, bytes: u64) -> u32 {
        let queue = match operation {
            Operation::PREFETCH => queue::IN,
            Operation::EVICT => queue::OUT,
            _ => queue::LOCAL,
        };
        let next = &mut self.next_id[usize::from(queue)];
        *next += 1;
        let id = *next;
        let (cause_ns, reserved_words) = (1, [0; 3]);
        let record = CommandRecord {
            operation,
            queue,
            reserved: 0,
            id,
            address,
            bytes,
            cause_ns,
            reserved_words,
        };
        let pushed = self.writer.push(&record);
        assert_ne!(pushed, Push::Full);
        if pushed == Push::WrittenWake {
            let one = 1_u64;
            // SAFETY: eight bytes of a local.
            unsafe { libc::write(self.commands_wake.as_raw_fd(), (&raw const one).cast(), 8) };
        }
        id
    }

    /// Waits until the device has executed command `id` of `queue`.
    pub fn wait_done(&self, queue: u8, id: u32) {
        let start = Instant::now();
        while self.device().done[usize::from(queue)].load(Ordering::Acquire) < id {
            assert!(
                start.elapsed() < PATIENCE,
                "command {id} of queue {queue} was not executed"
            );
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Waits until the device's progress in `slot` has reached `number`.
    pub fn wait_progress(&self, slot: u8, number: u64) {
        let start = Instant::now();
        while u64::from(self.device().progress[usize::from(slot)].load(Ordering::Acquire)) < number
        {
            assert!(
                start.elapsed() < PATIENCE,
                "slot {slot} does not reach {number}"
            );
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}
