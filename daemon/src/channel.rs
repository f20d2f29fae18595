//! The shared memory of one session: made, sealed, mapped, and the rings in it.
//!
//! Owns every `unsafe` of the daemon that touches memory which a client can write. What
//! the records mean is [`crate::session`]'s. All access goes through atomics; sizes are
//! sealed before the client sees the descriptors, so that it cannot make a read fault.

use std::ffi::CStr;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::unistd::ftruncate;
use oversub_protocol::command::CommandRecord;
use oversub_protocol::event::Words;
use oversub_protocol::layout::{
    ControlPage, DevicePage, RingHead, SlotCell, commands_memfd, events_memfd,
};
use oversub_protocol::ring::{Corrupt, Lengths, Push, Reader, Ring, SoleWriter};

use crate::barrier;

/// A shared mapping; unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    start: NonNull<libc::c_void>,
    bytes: usize,
}

// SAFETY: the mapping belongs to no thread; what is in it is read and written by atomics.
unsafe impl Send for Mapping {}

impl Mapping {
    fn of(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Mapping> {
        let length = NonZeroUsize::new(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, fd, 0)? };
        Ok(Mapping { start, bytes })
    }

    /// Pointer to `T` at `offset`, which must be in bounds and aligned.
    fn at<T>(&self, offset: usize) -> NonNull<T> {
        assert!(offset + size_of::<T>() <= self.bytes && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: in bounds, by the check above.
        unsafe { self.start.cast::<u8>().add(offset) }.cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours; `Channel` drops everything that points into it first.
        // An error is impossible for a range that mmap returned.
        let _ = unsafe { munmap(self.start, self.bytes) };
    }
}

/// The daemon's side of one session's shared memory and wake-ups.
#[derive(Debug)]
pub struct Channel {
    reader: Reader,
    writer: SoleWriter,
    /// Written by the program.
    events_wake: EventFd,
    /// Written by the daemon.
    commands_wake: EventFd,
    // Last: the rings point into them.
    events: Mapping,
    #[allow(dead_code)] // keeps the command ring mapped
    commands: Mapping,
}

/// What the program gets, in the order of the handshake.
pub type ClientFds = [OwnedFd; 4];

impl Channel {
    /// New shared memory with rings of these sizes, and the descriptors for the program.
    /// `barrier`: the program leaves its fence to this side when told to.
    ///
    /// # Errors
    /// Out of memory or descriptors, or impossible ring sizes.
    pub fn create(
        event_slots: u32,
        command_slots: u32,
        barrier: bool,
    ) -> io::Result<(Channel, ClientFds)> {
        let impossible = |error| io::Error::new(io::ErrorKind::InvalidInput, format!("{error}"));
        let event_bytes = events_memfd::bytes(event_slots).map_err(impossible)?;
        let command_bytes = commands_memfd::bytes(command_slots).map_err(impossible)?;
        let events_fd = sealed_memfd(c"oversub-events", event_bytes)?;
        let commands_fd = sealed_memfd(c"oversub-commands", command_bytes)?;
        let events = Mapping::of(events_fd.as_fd(), event_bytes)?;
        let commands = Mapping::of(commands_fd.as_fd(), command_bytes)?;
        let head = events.at::<RingHead>(events_memfd::RING_HEAD);
        let slots = events.at::<SlotCell>(events_memfd::SLOTS);
        // SAFETY: both lie in `events`, sized for this many slots above, mapped until after
        // the reader is dropped.
        let ring = unsafe { Ring::from_raw(head, slots, event_slots) }.map_err(impossible)?;
        let mut reader = Reader::new(ring, Lengths::FromHead);
        if barrier {
            reader = reader.with_barrier(barrier::across_programs);
        }
        let head = commands.at::<RingHead>(commands_memfd::RING_HEAD);
        let slots = commands.at::<SlotCell>(commands_memfd::SLOTS);
        // SAFETY: as above, in `commands`.
        let ring = unsafe { Ring::from_raw(head, slots, command_slots) }.map_err(impossible)?;
        let writer = SoleWriter::new(ring);
        let events_wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let commands_wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?;
        let client = [
            events_fd,
            commands_fd,
            events_wake.as_fd().try_clone_to_owned()?,
            commands_wake.as_fd().try_clone_to_owned()?,
        ];
        Ok((
            Channel {
                reader,
                writer,
                events_wake,
                commands_wake,
                events,
                commands,
            },
            client,
        ))
    }

    /// The descriptor that the program writes when it has something to say. To be watched
    /// by edges and never read: the program shares its file description and could make a
    /// read block.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.events_wake.as_fd()
    }

    /// The words that the device writes.
    pub fn device_page(&self) -> &DevicePage {
        // SAFETY: in bounds, aligned, mapped as long as `self`; only atomics.
        unsafe {
            self.events
                .at::<DevicePage>(events_memfd::DEVICE_PAGE)
                .as_ref()
        }
    }

    /// The words of shim and daemon.
    pub fn control_page(&self) -> &ControlPage {
        // SAFETY: as above.
        unsafe {
            self.events
                .at::<ControlPage>(events_memfd::CONTROL_PAGE)
                .as_ref()
        }
    }

    /// Hands at most `limit` records to `sink`; returns how many.
    ///
    /// # Errors
    /// The ring is corrupt: the session must end.
    pub fn drain(&mut self, limit: usize, sink: impl FnMut(&[Words])) -> Result<usize, Corrupt> {
        self.reader.drain(limit, sink)
    }

    /// Whether there is something to drain.
    pub fn has_news(&self) -> bool {
        self.reader.has_news()
    }

    /// Announces that nobody looks at the ring any more; `false`: something came, look.
    pub fn prepare_sleep(&self) -> bool {
        self.reader.prepare_sleep()
    }

    /// As [`Channel::prepare_sleep`], by one who looks again in time: records of what runs
    /// need not wake it.
    pub fn prepare_doze(&self) -> bool {
        self.reader.prepare_doze()
    }

    /// Records are many to a sleep, or not: whether the program may leave its fence to this
    /// side, where it can.
    pub fn spare_writers(&mut self, spare: bool) {
        self.reader.spare_writers(spare);
    }

    /// Takes the announcement back.
    pub fn cancel_sleep(&self) {
        self.reader.cancel_sleep();
    }

    /// Slots of the ring from the program.
    pub fn event_slots(&self) -> u64 {
        self.reader.ring().capacity()
    }

    /// Records dropped by the program because the ring was full, as it says.
    pub fn events_dropped(&self) -> u64 {
        self.reader.ring().dropped()
    }

    /// Writes one command and wakes the executor where it sleeps; `false`: no room now.
    pub fn push(&mut self, command: &CommandRecord) -> bool {
        match self.writer.push(command) {
            Push::Written => true,
            Push::WrittenWake => {
                self.wake_executor();
                true
            }
            Push::Full => false,
        }
    }

    /// Tells the program that nothing more is wanted of it.
    pub fn close(&self) {
        self.control_page().closing.store(1, Ordering::Release);
        self.wake_executor();
    }

    fn wake_executor(&self) {
        // The executor's descriptor blocks only at 2^64 - 2 unread wake-ups, which only a
        // client can bring about, against itself: ask first. One that fills it between the
        // two calls could hold this GPU's thread until the service manager's watchdog sees.
        let mut poll = [nix::poll::PollFd::new(
            self.commands_wake.as_fd(),
            nix::poll::PollFlags::POLLOUT,
        )];
        if nix::poll::poll(&mut poll, nix::poll::PollTimeout::ZERO).is_ok_and(|ready| ready == 1) {
            let _ = self.commands_wake.write(1);
        }
    }
}

fn sealed_memfd(name: &CStr, bytes: usize) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    let length = i64::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    ftruncate(&fd, length)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(fd)
}
