//! The event queue of the tools interface: entries of the first version, 64 bytes, which
//! every driver from 530 on can be asked for (uvm_types.h, uvm_tools.c; from 550.54 on by
//! the name `UvmEventEntry_V1`).
//!
//! The driver writes entries into memory of this process and counts those that found no
//! room.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::requests::{
    ToolsEnableEvents, ToolsFlushEvents, ToolsInitEventTracker, ToolsInitEventTracker560,
    ToolsSetThreshold,
};
use crate::{UvmError, open, send};

/// The driver's node.
pub const TOOLS_PATH: &str = "/dev/nvidia-uvm-tools";

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 64;
/// One entry.
pub type Entry = [u8; ENTRY_BYTES];
const EVENT_TYPES: usize = 64;

/// Event types that are decoded here (`UvmEventType`).
mod kind {
    pub const CPU_FAULT: u8 = 1;
    pub const MIGRATION: u8 = 2;
    pub const GPU_FAULT: u8 = 3;
    pub const REPLAY: u8 = 4;
    pub const THRASHING: u8 = 10;
    pub const THROTTLE: u8 = 11;
}

/// All of them, as `UVM_TOOLS_EVENT_QUEUE_ENABLE_EVENTS` wants them.
const ALL: u64 = 1 << kind::CPU_FAULT
    | 1 << kind::MIGRATION
    | 1 << kind::GPU_FAULT
    | 1 << kind::REPLAY
    | 1 << kind::THRASHING
    | 1 << kind::THROTTLE;

/// `UvmEventFaultClientTypeGpc`: of a replay of replayable faults.
pub const CLIENT_GPC: u8 = 1;

/// The forms that the request for a queue has had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Before 550.54, and from 565 on.
    Plain,
    /// 550.54 to 555: a version can be asked for.
    Requested,
    /// 560: a version, before the status.
    VersionFirst,
}

impl Form {
    /// Of a driver by its version: major, minor, patch. Unknown ones are the newest.
    pub fn of(version: Option<(u32, u32, u32)>) -> Self {
        match version {
            Some(version) if version < (550, 54, 0) => Self::Plain,
            Some(version) if version < (560, 0, 0) => Self::Requested,
            Some(version) if version < (565, 0, 0) => Self::VersionFirst,
            _ => Self::Plain,
        }
    }
}

/// Why the driver moved something (`UvmEventMigrationCause`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A call asked for it.
    Call,
    /// A processor faulted.
    Fault,
    /// The density prefetcher added it.
    Prefetch,
    /// Room was needed.
    Eviction,
    /// The device read host memory often.
    AccessCounter,
    /// Any other.
    Other(u8),
}

/// One entry. Times are the driver's (`CLOCK_MONOTONIC_RAW`), nanoseconds. Processors are
/// indices: 0 is the CPU, then devices in the order of their registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A fault of the CPU.
    CpuFault {
        /// Address of the page.
        address: u64,
        /// When.
        time_ns: u64,
    },
    /// Bytes moved from one processor to another.
    Migration {
        /// First byte.
        address: u64,
        /// Length.
        bytes: u64,
        /// Why.
        cause: Cause,
        /// From.
        source: u8,
        /// To.
        target: u8,
        /// When it began.
        time_ns: u64,
    },
    /// A raw fault of a GPU.
    GpuFault {
        /// Address of the page.
        address: u64,
        /// Batch in which it was served.
        batch: u32,
        /// The device.
        device: u8,
        /// When.
        time_ns: u64,
    },
    /// A replay, of any process's faults.
    Replay {
        /// The batch.
        batch: u32,
        /// The device.
        device: u8,
        /// [`CLIENT_GPC`], or another client.
        client: u8,
        /// When.
        time_ns: u64,
    },
    /// Processors fight over pages.
    Thrashing {
        /// First byte.
        address: u64,
        /// Length.
        bytes: u64,
        /// When.
        time_ns: u64,
    },
    /// A processor has to wait for a page that others fight for.
    Throttle {
        /// First byte of the page.
        address: u64,
        /// The processor.
        processor: u8,
        /// When.
        time_ns: u64,
    },
    /// Anything else, by type.
    Other(u8),
}

/// `UvmToolsEventControlData`.
#[repr(C)]
struct Control {
    get_ahead: AtomicU32,
    get_behind: AtomicU32,
    put_ahead: AtomicU32,
    put_behind: AtomicU32,
    dropped: [AtomicU64; EVENT_TYPES],
}

const _: () = assert!(size_of::<Control>() == 528);

/// Memory shared with the driver, which pins it.
struct Shared {
    at: *mut u8,
    bytes: usize,
}

// SAFETY: the memory is owned; the driver's side of it goes through atomics.
unsafe impl Send for Shared {}

impl Shared {
    fn new(bytes: usize) -> Result<Self, UvmError> {
        // SAFETY: a new anonymous mapping where the kernel likes.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(UvmError::last("mmap of the event queue"));
        }
        Ok(Self {
            at: at.cast(),
            bytes,
        })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: our own mapping; the driver has its own hold on the pages.
        unsafe { libc::munmap(self.at.cast(), self.bytes) };
    }
}

/// An event queue of one VA space.
pub struct Queue {
    // Closed before the memory goes: the driver writes into it until then.
    file: File,
    entries: u32,
    queue: Shared,
    control: Shared,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("entries", &self.entries)
            .finish_non_exhaustive()
    }
}

impl Queue {
    /// Attaches a queue of `entries` (a power of two) to the VA space behind a descriptor
    /// of this process, under a driver that is of 535 or 550.
    ///
    /// # Errors
    /// [`UvmError`].
    pub fn attach(va_space: &File, entries: u32) -> Result<Self, UvmError> {
        Self::attach_as(va_space.as_fd(), entries, Form::Requested)
    }

    /// The same, in the form that the driver wants.
    ///
    /// # Errors
    /// [`UvmError`].
    pub fn attach_as(va_space: BorrowedFd<'_>, entries: u32, form: Form) -> Result<Self, UvmError> {
        let file = open(Path::new(TOOLS_PATH))?;
        let queue = Shared::new(entries as usize * ENTRY_BYTES)?;
        let control = Shared::new(size_of::<Control>().next_multiple_of(4096))?;
        let uvm_fd = va_space.as_raw_fd().cast_unsigned();
        let (at, control_at) = (queue.at as u64, control.at as u64);
        if form == Form::VersionFirst {
            let mut request = ToolsInitEventTracker560 {
                queue: at,
                entries: u64::from(entries),
                control: control_at,
                uvm_fd,
                version: 1,
                ..ToolsInitEventTracker560::default()
            };
            send(&file, &mut request)?;
        } else {
            // Drivers that know no version do not look so far.
            let mut request = ToolsInitEventTracker {
                queue: at,
                entries: u64::from(entries),
                control: control_at,
                uvm_fd,
                version: 1,
                ..ToolsInitEventTracker::default()
            };
            send(&file, &mut request)?;
        }
        let mut threshold = ToolsSetThreshold {
            threshold: 1,
            rm_status: 0,
        };
        send(&file, &mut threshold)?;
        let mut events = ToolsEnableEvents {
            types: ALL,
            rm_status: 0,
        };
        send(&file, &mut events)?;
        Ok(Self {
            file,
            entries,
            queue,
            control,
        })
    }

    fn control(&self) -> &Control {
        // SAFETY: the mapping is as large, zeroed, and made of atomics only.
        unsafe { &*self.control.at.cast::<Control>() }
    }

    /// Has the driver write out what waits for copies to end: see [`flush`].
    ///
    /// # Errors
    /// [`UvmError`].
    pub fn flush(&self, va_space: &File) -> Result<(), UvmError> {
        flush(va_space)
    }

    /// Events that found no room, of all types.
    pub fn dropped(&self) -> u64 {
        let dropped = &self.control().dropped;
        dropped.iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }

    /// Takes all events that are there; how many. Migrations and replays come when the
    /// driver next looks at what its engines have done: see [`flush`].
    pub fn drain(&mut self, mut take: impl FnMut(Event)) -> usize {
        let control = self.control();
        let mask = self.entries - 1;
        let end = control.put_behind.load(Ordering::Acquire) & mask;
        let mut at = control.get_behind.load(Ordering::Relaxed) & mask;
        let mut taken = 0;
        while at != end {
            let mut entry = [0u8; ENTRY_BYTES];
            // SAFETY: `at` is below the queue's length, and the driver has finished the
            // entries before `put_behind`.
            unsafe {
                let from = self.queue.at.add(at as usize * ENTRY_BYTES);
                ptr::copy_nonoverlapping(from, entry.as_mut_ptr(), ENTRY_BYTES);
            }
            take(decode(&entry));
            at = (at + 1) & mask;
            taken += 1;
        }
        control.get_ahead.store(at, Ordering::Release);
        control.get_behind.store(at, Ordering::Release);
        taken
    }

    /// The descriptor: it becomes readable when events wait.
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// Has the driver write out what waits for copies to end.
///
/// # Errors
/// [`UvmError`]; where the descriptor is no VA space, too.
pub fn flush(va_space: &File) -> Result<(), UvmError> {
    send(va_space, &mut ToolsFlushEvents::default())
}

/// The driver's device of event queues is there now.
pub fn is_there() -> bool {
    Path::new(TOOLS_PATH).exists()
}

fn word(entry: &Entry, at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&entry[at..at + 8]);
    u64::from_ne_bytes(bytes)
}

fn half(entry: &Entry, at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&entry[at..at + 4]);
    u32::from_ne_bytes(bytes)
}

/// What an entry says: `UvmEventCpuFaultInfo`, `UvmEventMigrationInfo` and so on.
pub fn decode(entry: &Entry) -> Event {
    let (at, at32) = (|at| word(entry, at), |at| half(entry, at));
    match entry[0] {
        kind::CPU_FAULT => Event::CpuFault {
            address: at(8),
            time_ns: at(16),
        },
        kind::MIGRATION => Event::Migration {
            address: at(8),
            bytes: at(16),
            cause: match entry[1] {
                // Moves within the host carry the driver's inner number 6 (uvm_tools.c).
                1 | 6 => Cause::Call,
                2 => Cause::Fault,
                3 => Cause::Prefetch,
                4 => Cause::Eviction,
                5 => Cause::AccessCounter,
                other => Cause::Other(other),
            },
            source: entry[2],
            target: entry[3],
            time_ns: at(24),
        },
        kind::GPU_FAULT => Event::GpuFault {
            address: at(8),
            batch: at32(32),
            device: entry[3],
            time_ns: at(16),
        },
        kind::REPLAY => Event::Replay {
            batch: at32(4),
            device: entry[1],
            client: entry[2],
            time_ns: at(8),
        },
        kind::THRASHING => Event::Thrashing {
            address: at(16),
            bytes: at(24),
            time_ns: at(32),
        },
        kind::THROTTLE => Event::Throttle {
            address: at(8),
            processor: entry[1],
            time_ns: at(16),
        },
        other => Event::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: u8, fields: &[(usize, &[u8])]) -> Entry {
        let mut entry = [0; ENTRY_BYTES];
        entry[0] = kind;
        for (at, bytes) in fields {
            entry[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        entry
    }

    #[test]
    fn entries_are_decoded_by_their_type() {
        let address = 0x7e00_0020_0000u64;
        let (at, time) = (address.to_ne_bytes(), 9u64.to_ne_bytes());
        let bytes = (2u64 << 20).to_ne_bytes();
        let migration = entry(
            kind::MIGRATION,
            &[(1, &[4, 1, 0]), (8, &at), (16, &bytes), (24, &time)],
        );
        let expected = Event::Migration {
            address,
            bytes: 2 << 20,
            cause: Cause::Eviction,
            source: 1,
            target: 0,
            time_ns: 9,
        };
        assert_eq!(decode(&migration), expected);
        let fault = entry(
            kind::GPU_FAULT,
            &[(3, &[2]), (8, &at), (16, &time), (32, &7u32.to_ne_bytes())],
        );
        let expected = Event::GpuFault {
            address,
            batch: 7,
            device: 2,
            time_ns: 9,
        };
        assert_eq!(decode(&fault), expected);
        let replay = entry(
            kind::REPLAY,
            &[(1, &[2, CLIENT_GPC]), (4, &7u32.to_ne_bytes()), (8, &time)],
        );
        let expected = Event::Replay {
            batch: 7,
            device: 2,
            client: CLIENT_GPC,
            time_ns: 9,
        };
        assert_eq!(decode(&replay), expected);
        assert_eq!(decode(&entry(13, &[])), Event::Other(13));
    }

    #[test]
    fn the_request_that_makes_a_queue_has_the_form_of_the_drivers_version() {
        for (version, form) in [
            ((535, 183, 1), Form::Plain),
            ((550, 40, 7), Form::Plain),
            ((550, 54, 14), Form::Requested),
            ((555, 58, 0), Form::Requested),
            ((560, 35, 3), Form::VersionFirst),
            ((565, 57, 1), Form::Plain),
            ((595, 45, 4), Form::Plain),
        ] {
            assert_eq!(Form::of(Some(version)), form, "{version:?}");
        }
        assert_eq!(Form::of(None), Form::Plain);
    }
}
