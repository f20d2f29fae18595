//! Getting a session: the socket, the handshake, the shared memory.
//!
//! All in the executor's thread, so waiting here makes no one wait.

use core::mem;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, Ordering};

use oversub_protocol::PROTOCOL_VERSION;
use oversub_protocol::fences::Fences;
use oversub_protocol::handshake::{Hello, MAGIC, Status, Welcome, padded};
use oversub_protocol::layout::{PAGE_BYTES, commands_memfd, events_memfd};
use oversub_protocol::ring::{Lengths, Reader, Ring, Writer};
use oversub_shim_core::abi::HOST_REGISTER_PORTABLE_MAPPED;
use oversub_shim_core::environment::Settings;
use zerocopy::{FromZeros, IntoBytes};

use crate::context::Place;
use crate::session::Session;
use crate::{barrier, driver, loader};

/// Longest wait for an answer, milliseconds.
const ANSWER_MS: i32 = 2000;

/// Why there is no session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// No one listens.
    NoDaemon,
    /// What listens does not answer as a daemon does.
    NotDaemon,
    /// The daemon speaks another version.
    Version,
    /// The daemon said no; its status.
    Refused(u32),
    /// The shared memory is not as promised.
    Memory,
}

/// A descriptor that is closed when dropped.
#[derive(Debug)]
pub struct Owned(i32);

impl Owned {
    /// Its number.
    pub fn number(&self) -> i32 {
        self.0
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: owned, so closed once.
        unsafe { libc::close(self.0) };
    }
}

/// One shared mapping.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    /// Its start.
    pub start: NonNull<u8>,
    /// Its size.
    pub bytes: usize,
}

/// A session that has just begun.
#[derive(Debug)]
pub struct Connection {
    /// Open and silent while the session lasts.
    pub socket: Owned,
    /// Written by us when the daemon sleeps.
    pub events_wake: Owned,
    /// Written by the daemon when we sleep.
    pub commands_wake: Owned,
    /// Events.
    pub events: Mapping,
    /// Commands.
    pub commands: Mapping,
    /// The command ring.
    pub reader: Reader,
    /// For the hooks.
    pub session: Session,
}

/// Tries once to reach a daemon and to greet it with `hello`. The session's device page is
/// not registered yet: see [`register`].
///
/// # Errors
/// [`Failure`]: the program runs on alone.
pub fn connect(settings: &Settings, hello: &Hello) -> Result<Connection, Failure> {
    let socket = open(settings.socket.as_bytes()).ok_or(Failure::NoDaemon)?;
    let message = hello.as_bytes();
    // SAFETY: a local message.
    let sent = unsafe {
        libc::send(
            socket.0,
            message.as_ptr().cast(),
            message.len(),
            libc::MSG_NOSIGNAL,
        )
    };
    if usize::try_from(sent) != Ok(message.len()) {
        return Err(Failure::NotDaemon);
    }
    let (welcome, descriptors) = receive(&socket)?;
    let [
        Some(events_file),
        Some(commands_file),
        Some(events_wake),
        Some(commands_wake),
    ] = descriptors
    else {
        return Err(Failure::NotDaemon);
    };
    let events_bytes = events_memfd::bytes(welcome.event_slots).map_err(|_| Failure::Memory)?;
    let commands_bytes =
        commands_memfd::bytes(welcome.command_slots).map_err(|_| Failure::Memory)?;
    let events = map(&events_file, events_bytes).ok_or(Failure::Memory)?;
    let Some(commands) = map(&commands_file, commands_bytes) else {
        unmap(events);
        return Err(Failure::Memory);
    };
    let (Some(writer), Some(reader)) = (
        ring(
            events,
            events_memfd::RING_HEAD,
            events_memfd::SLOTS,
            welcome.event_slots,
        ),
        ring(
            commands,
            commands_memfd::RING_HEAD,
            commands_memfd::SLOTS,
            welcome.command_slots,
        ),
    ) else {
        unmap(events);
        unmap(commands);
        return Err(Failure::Memory);
    };
    // SAFETY: all of them lie in the mapping, whose size was checked.
    let (device_page, control_page, events_head, events_slots) = unsafe {
        (
            events.start.add(events_memfd::DEVICE_PAGE).cast(),
            events.start.add(events_memfd::CONTROL_PAGE).cast(),
            events.start.add(events_memfd::RING_HEAD).cast(),
            events.start.add(events_memfd::SLOTS).cast(),
        )
    };
    // Without a registration the daemon's barriers do not reach us, whatever it says.
    let fences = match hello.flags & Hello::HAS_BARRIER {
        0 => Fences::Both,
        _ => Fences::Reader,
    };
    let session = Session {
        device_page,
        control_page,
        events_head,
        events_slots,
        events: Writer::new(writer, fences),
        events_wake: events_wake.0,
        marks_at: 0.into(),
        marks_refused: 0.into(),
    };
    let reader = Reader::new(reader, Lengths::One);
    Ok(Connection {
        socket,
        events_wake,
        commands_wake,
        events,
        commands,
        reader,
        session,
    })
}

fn open(path: &[u8]) -> Option<Owned> {
    // SAFETY: all zero is a valid address of no family.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if path.is_empty() || path.len() >= address.sun_path.len() {
        return None;
    }
    for (target, byte) in address.sun_path.iter_mut().zip(path) {
        *target = *byte as libc::c_char;
    }
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let socket = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if socket < 0 {
        return None;
    }
    let socket = Owned(socket);
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: a whole address. A full backlog refuses at once: the socket does not block.
    let result = unsafe { libc::connect(socket.0, (&raw const address).cast(), length) };
    (result == 0).then_some(socket)
}

/// Waits for the answer and takes the descriptors that come with it.
fn receive(socket: &Owned) -> Result<(Welcome, [Option<Owned>; 4]), Failure> {
    let mut waiting = libc::pollfd {
        fd: socket.0,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one local entry.
    if unsafe { libc::poll(&raw mut waiting, 1, ANSWER_MS) } != 1 {
        return Err(Failure::NotDaemon);
    }
    // One byte more than the message: a longer one is not taken for it.
    let mut text = [0_u8; size_of::<Welcome>() + 1];
    let mut part = libc::iovec {
        iov_base: text.as_mut_ptr().cast(),
        iov_len: text.len(),
    };
    let mut space = [0_u64; 16];
    // SAFETY: all zero is an empty message.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = space.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&space) as _;
    // SAFETY: local buffers, described with their sizes.
    let bytes = unsafe { libc::recvmsg(socket.0, &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let mut descriptors = [const { None }; 4];
    // SAFETY: the kernel has filled `message`.
    unsafe { take_descriptors(&message, &mut descriptors) };
    let text = usize::try_from(bytes)
        .ok()
        .and_then(|bytes| text.get(..bytes));
    let text = text.ok_or(Failure::NotDaemon)?;
    let welcome = match Welcome::from_message(text) {
        Ok(welcome) => welcome,
        Err(error) if error.status() == Status::VERSION_MISMATCH => return Err(Failure::Version),
        Err(_) => return Err(Failure::NotDaemon),
    };
    match welcome.status {
        Status::ACCEPTED => Ok((welcome, descriptors)),
        Status::VERSION_MISMATCH => Err(Failure::Version),
        Status(other) => Err(Failure::Refused(other)),
    }
}

/// # Safety
/// `message` was filled by `recvmsg`.
unsafe fn take_descriptors(message: &libc::msghdr, to: &mut [Option<Owned>; 4]) {
    // SAFETY: the control buffer is as the kernel wrote it; the macros stay inside it.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let is_rights =
                (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS;
            if is_rights {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let numbers = libc::CMSG_DATA(header).cast::<i32>();
                for index in 0..bytes / size_of::<i32>() {
                    let owned = Owned(numbers.add(index).read_unaligned());
                    if let Some(cell) = to.get_mut(index) {
                        *cell = Some(owned);
                    }
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// Maps a file that has exactly this size and can never be shrunk under us.
fn map(file: &Owned, bytes: usize) -> Option<Mapping> {
    const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: a local to write to; no other pointers.
    let (seals, size) = unsafe {
        let mut status: libc::stat = mem::zeroed();
        let known = libc::fstat(file.0, &raw mut status) == 0;
        (
            libc::fcntl(file.0, libc::F_GET_SEALS),
            if known { status.st_size } else { -1 },
        )
    };
    if seals < 0 || seals & SEALS != SEALS || usize::try_from(size) != Ok(bytes) {
        return None;
    }
    // Populated here, in the executor's thread: no launch shall pay for a first touch.
    // SAFETY: a new mapping.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            file.0,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: our mapping. A forked child must not write into the parent's rings.
    unsafe { libc::madvise(start, bytes, libc::MADV_DONTFORK) };
    Some(Mapping {
        start: NonNull::new(start)?.cast(),
        bytes,
    })
}

/// Gives a mapping back.
pub fn unmap(mapping: Mapping) {
    // SAFETY: the caller knows that no one uses it.
    unsafe { libc::munmap(mapping.start.as_ptr().cast(), mapping.bytes) };
}

/// Gives all of the events back but its first page, into which the device may still write.
pub fn unmap_events(mapping: Mapping) {
    let rest = mapping.bytes.saturating_sub(PAGE_BYTES);
    // SAFETY: all but the first page of our mapping; the caller knows that no hook uses it.
    unsafe { libc::munmap(mapping.start.as_ptr().add(PAGE_BYTES).cast(), rest) };
}

fn ring(mapping: Mapping, head: usize, slots: usize, count: u32) -> Option<Ring> {
    // SAFETY: the mapping has the size that this number of slots needs, and is unmapped only
    // after the last use of the ring.
    unsafe {
        Ring::from_raw(
            mapping.start.add(head).cast(),
            mapping.start.add(slots).cast(),
            count,
        )
        .ok()
    }
}

/// Registers the device page with the driver; its address for the device, 0: none. The
/// caller keeps the context alive meanwhile.
pub fn register(events: Mapping) -> u64 {
    let page = events.start.as_ptr().cast();
    let mut address = 0;
    // SAFETY: a page of ours, which is never unmapped; a local to write to.
    let results = unsafe {
        [
            driver::cuMemHostRegister_v2(page, PAGE_BYTES, HOST_REGISTER_PORTABLE_MAPPED),
            driver::cuMemHostGetDevicePointer_v2(&raw mut address, page, 0),
        ]
    };
    if results.iter().all(|result| result.is_ok()) {
        address
    } else {
        0
    }
}

/// Room for `realpath`, which needs this much.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// The CUDA release that brought `cuMemDiscardBatchAsync`.
const DISCARD_SINCE: i32 = 13000;

/// A soft GPU that serves its faults itself: no driver of the kernel's sees them.
fn serves_itself() -> bool {
    let word = loader::driver_symbol(c"oversub_softgpu_serves").cast::<AtomicU32>();
    // SAFETY: null, or the word that this name stands for in a library that stays loaded.
    unsafe { word.as_ref() }.is_some_and(|word| word.load(Ordering::Acquire) != 0)
}

/// What the program says of itself. The caller keeps the context alive meanwhile.
pub fn hello(settings: &Settings, place: &Place) -> Hello {
    let mut hello = Hello::new_zeroed();
    hello.magic = MAGIC;
    hello.version = PROTOCOL_VERSION;
    hello.device = place.device.unsigned_abs();
    hello.device_bytes = place.device_total;
    hello.free_bytes = place.device_total.saturating_sub(place.baseline);
    hello.budget_bytes = settings.budget;
    hello.policy = padded(settings.policy.as_bytes());
    let mut version = 0;
    let mut name = [0_u8; 64];
    // SAFETY: locals to write to, with their sizes.
    unsafe {
        driver::cuDeviceGetUuid(hello.uuid.as_mut_ptr(), place.device);
        driver::cuDriverGetVersion(&raw mut version);
        driver::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, place.device);
    }
    hello.driver_version = version.unsigned_abs();
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    hello.device_name = padded(name);
    let mut path = [0_u8; PATH_MAX];
    hello.driver_path = padded(loader::driver_path(&mut path));
    // Whether the device page can be registered is only known once there is one; the driver
    // that can write values can register memory as well.
    let has = |symbol| !loader::driver_symbol(symbol).is_null();
    let flags = [
        (serves_itself(), Hello::SOFT_DEVICE),
        (
            version >= DISCARD_SINCE && has(c"cuMemDiscardBatchAsync"),
            Hello::HAS_DISCARD,
        ),
        (
            has(c"cuStreamWriteValue32_v2") || has(c"cuStreamWriteValue32"),
            Hello::HAS_PROGRESS,
        ),
        (barrier::is_registered_for_others(), Hello::HAS_BARRIER),
    ];
    for (is_so, flag) in flags {
        hello.flags |= if is_so { flag } else { 0 };
    }
    hello
}
