//! The driver's event queue of one process (`/dev/nvidia-uvm-tools`): the second source of
//! events, for hosts on which no probe can be attached.
//!
//! The driver writes entries into memory of this process and counts those that found no
//! room. The process observed has to share its descriptor of the driver (`pidfd_getfd`:
//! the same user, or CAP_SYS_PTRACE). While the queue is there the driver keeps the
//! process's address space, so it has to be dropped when the process ends.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::abi;
use super::device::{DriverError, TOOLS_DEVICE, VaSpace, open, request};
use super::entry::{Decoder, ENTRY_BYTES, Entry, WANTED};
use crate::event::ProbeEvent;
use crate::offsets::DriverVersion;

/// Entries of a queue: 2 MiB of memory, pinned. A power of two.
const ENTRIES: usize = 1 << 15;
/// Counters of lost entries in the control page, by kind.
const KINDS: usize = 64;

/// `UvmToolsEventControlData`, in memory that the driver shares.
#[repr(C)]
struct Control {
    get_ahead: AtomicU32,
    get_behind: AtomicU32,
    put_ahead: AtomicU32,
    put_behind: AtomicU32,
    dropped: [AtomicU64; KINDS],
}

const _: () = assert!(size_of::<Control>() == 528);

/// Pages of this process that the driver writes to.
struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

impl Pages {
    fn new(bytes: usize) -> Result<Pages, DriverError> {
        // SAFETY: no address is given, so nothing that exists is touched.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        match NonNull::new(mapped.cast()) {
            Some(start) if mapped != libc::MAP_FAILED => Ok(Pages { start, bytes }),
            _ => Err(DriverError::Map {
                bytes,
                source: io::Error::last_os_error(),
            }),
        }
    }

    fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; whoever owns the pages keeps no pointer into them.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// The queue of one process.
pub struct ToolsQueue {
    // First, so that the driver has let go before the pages go.
    tools: File,
    space: VaSpace,
    queue: Pages,
    control: Pages,
    process: OwnedFd,
    pid: u32,
    decoder: Decoder,
}

// SAFETY: the pages belong to the structure and are used through it alone; the driver
// shares them with any thread alike.
unsafe impl Send for ToolsQueue {}

impl ToolsQueue {
    /// Opens the queue of a process, whose driver is of this version.
    ///
    /// # Errors
    /// The process has no managed memory, may not be looked into, or the driver refuses.
    pub fn open(pid: u32, version: Option<DriverVersion>) -> Result<ToolsQueue, DriverError> {
        // SAFETY: takes a process id and flags and returns a descriptor.
        let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let number = i32::try_from(opened).unwrap_or(-1);
        if number < 0 {
            return Err(DriverError::Process {
                pid,
                reason: format!("pidfd_open: {}", io::Error::last_os_error()),
            });
        }
        // SAFETY: the kernel has just given this descriptor to us alone.
        let process = unsafe { OwnedFd::from_raw_fd(number) };
        let mut refused = None;
        for space in VaSpace::of_process(pid)? {
            let queue = Pages::new(ENTRIES * ENTRY_BYTES)?;
            let control = Pages::new(4096)?;
            let tools = open(TOOLS_DEVICE)?;
            // A descriptor that is no address space is refused; the next one may be one.
            match start(&tools, &space, &queue, &control, version) {
                Ok(()) => {
                    return Ok(ToolsQueue {
                        tools,
                        space,
                        queue,
                        control,
                        process,
                        pid,
                        decoder: Decoder::new(pid, version),
                    });
                }
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.unwrap_or_else(|| DriverError::Process {
            pid,
            reason: "it has no address space of the driver".to_owned(),
        }))
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Readable when there are entries.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.tools.as_fd()
    }

    /// Readable when the process has ended, and the queue has to go.
    pub fn process_fd(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    /// The process has ended.
    pub fn process_has_ended(&self) -> bool {
        let mut poll = libc::pollfd {
            fd: self.process.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    /// Hands over what has come; returns how many entries there were. Migrations and
    /// replays come when the driver next looks at what its engines have done.
    pub fn drain(&mut self, sink: &mut dyn FnMut(ProbeEvent)) -> usize {
        // Best effort: what is not flushed comes the next time.
        let _ = self.space.flush_events();
        self.decoder.set_offset(clock_offset_ns());
        let mask = ENTRIES as u32 - 1;
        let control = self.control();
        let put = control.put_behind.load(Ordering::Acquire) & mask;
        let mut get = control.get_behind.load(Ordering::Relaxed) & mask;
        let mut taken = 0;
        while get != put {
            // SAFETY: `get` is below the number of entries, all inside the pages; the driver
            // does not write entries that lie between get and put.
            let entry = unsafe {
                let first = self.queue.start.as_ptr().cast::<Entry>();
                std::ptr::read_volatile(first.add(get as usize))
            };
            self.decoder.take(&entry, sink);
            get = (get + 1) & mask;
            taken += 1;
        }
        self.decoder.flush(sink);
        let control = self.control();
        control.get_ahead.store(get, Ordering::Release);
        control.get_behind.store(get, Ordering::Release);
        taken
    }

    /// Entries for which there was no room, since the start.
    pub fn dropped(&self) -> u64 {
        let counters = &self.control().dropped;
        counters
            .iter()
            .map(|counter| counter.load(Ordering::Relaxed))
            .sum()
    }

    fn control(&self) -> &Control {
        // SAFETY: the page is aligned, larger than the structure, lives as long as `self`,
        // and is shared with the driver through atomics only.
        unsafe { self.control.start.cast::<Control>().as_ref() }
    }
}

impl std::fmt::Debug for ToolsQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ToolsQueue")
            .field("pid", &self.pid)
            .finish_non_exhaustive()
    }
}

/// Makes `tools` the queue of an address space. Its request has had three forms.
fn start(
    tools: &File,
    space: &VaSpace,
    queue: &Pages,
    control: &Pages,
    version: Option<DriverVersion>,
) -> Result<(), DriverError> {
    let (queue, control) = (queue.address(), control.address());
    let entries = ENTRIES as u64;
    let uvm_fd = space.as_fd().as_raw_fd().cast_unsigned();
    let tools = tools.as_fd();
    match form(version) {
        Form::Plain => {
            let asked = abi::InitTracker {
                queue,
                entries,
                control,
                uvm_fd,
                ..Default::default()
            };
            request(tools, asked)?;
        }
        Form::Requested => {
            let asked = abi::InitTrackerVersioned {
                queue,
                entries,
                control,
                uvm_fd,
                requested: 1,
                ..Default::default()
            };
            request(tools, asked)?;
        }
        Form::VersionFirst => {
            let asked = abi::InitTracker560 {
                queue,
                entries,
                control,
                uvm_fd,
                version: 1,
                ..Default::default()
            };
            request(tools, asked)?;
        }
    }
    let threshold = abi::SetThreshold {
        threshold: 1,
        ..Default::default()
    };
    request(tools, threshold)?;
    let events = abi::EnableEvents {
        types: WANTED,
        ..Default::default()
    };
    request(tools, events)?;
    Ok(())
}

/// The forms of the request that makes a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Plain,
    Requested,
    VersionFirst,
}

fn form(version: Option<DriverVersion>) -> Form {
    match version {
        Some(version) if version < DriverVersion(550, 54, 0) => Form::Plain,
        Some(version) if version < DriverVersion(560, 0, 0) => Form::Requested,
        Some(version) if version < DriverVersion(565, 0, 0) => Form::VersionFirst,
        _ => Form::Plain,
    }
}

/// From `CLOCK_MONOTONIC_RAW`, which the driver uses, to `CLOCK_MONOTONIC`.
fn clock_offset_ns() -> i64 {
    let now = |clock| {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the out pointer is valid for the call.
        unsafe { libc::clock_gettime(clock, &raw mut time) };
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    };
    now(libc::CLOCK_MONOTONIC) - now(libc::CLOCK_MONOTONIC_RAW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_that_makes_a_queue_has_the_form_of_the_drivers_version() {
        let of = |text: &str| form(text.parse().ok());
        assert_eq!(of("535.183.01"), Form::Plain);
        assert_eq!(of("550.40.07"), Form::Plain);
        assert_eq!(of("550.54.14"), Form::Requested);
        assert_eq!(of("555.58"), Form::Requested);
        assert_eq!(of("560.35.03"), Form::VersionFirst);
        assert_eq!(of("565.57.01"), Form::Plain);
        assert_eq!(of("595.45.04"), Form::Plain);
        assert_eq!(form(None), Form::Plain);
    }
}
