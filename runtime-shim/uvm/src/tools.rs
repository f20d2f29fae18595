//! The event queue of the tools interface: entries of the first version, which every driver
//! from 530 on can be asked for (uvm_types.h, uvm_tools.c).

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::requests::{ToolsEnableEvents, ToolsFlushEvents, ToolsInitEventTracker};
use crate::{UvmError, open, send};

/// The driver's node.
pub const TOOLS_PATH: &str = "/dev/nvidia-uvm-tools";

const ENTRY_BYTES: usize = 64;
const EVENT_TYPES: usize = 64;

/// Event types that are decoded here.
const MIGRATION: u8 = 2;
const GPU_FAULT: u8 = 3;
const REPLAY: u8 = 4;
const ALL: u64 = 1 << MIGRATION | 1 << GPU_FAULT | 1 << REPLAY;

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
    /// Any other.
    Other(u8),
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Bytes moved from one processor to another (0 is the CPU).
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
    },
    /// A raw fault of a GPU.
    GpuFault {
        /// Address of the page.
        address: u64,
        /// Batch in which it was served.
        batch: u32,
    },
    /// A replay.
    Replay,
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

impl Queue {
    /// Attaches a queue of `entries` (a power of two) to the VA space behind a descriptor
    /// of this process.
    ///
    /// # Errors
    /// [`UvmError`].
    pub fn attach(va_space: &File, entries: u32) -> Result<Self, UvmError> {
        let file = open(Path::new(TOOLS_PATH))?;
        let queue = Shared::new(entries as usize * ENTRY_BYTES)?;
        let control = Shared::new(size_of::<Control>().next_multiple_of(4096))?;
        let mut request = ToolsInitEventTracker {
            queue: queue.at as u64,
            entries: u64::from(entries),
            control: control.at as u64,
            uvm_fd: va_space.as_raw_fd() as u32,
            version: 1,
            ..ToolsInitEventTracker::default()
        };
        send(&file, &mut request)?;
        send(
            &file,
            &mut ToolsEnableEvents {
                types: ALL,
                rm_status: 0,
            },
        )?;
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

    /// Has the driver write out what waits for copies to end.
    ///
    /// # Errors
    /// [`UvmError`].
    pub fn flush(&self, va_space: &File) -> Result<(), UvmError> {
        send(va_space, &mut ToolsFlushEvents::default())
    }

    /// Events that found no room, of all types.
    pub fn dropped(&self) -> u64 {
        let dropped = &self.control().dropped;
        dropped.iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }

    /// Takes all events that are there.
    pub fn drain(&mut self, mut take: impl FnMut(Event)) {
        let control = self.control();
        let end = control.put_behind.load(Ordering::Acquire);
        let mut at = control.get_behind.load(Ordering::Relaxed);
        while at != end {
            let mut entry = [0u8; ENTRY_BYTES];
            // SAFETY: `at` is below the queue's length, and the driver has finished the
            // entries before `put_behind`.
            unsafe {
                let from = self.queue.at.add(at as usize * ENTRY_BYTES);
                ptr::copy_nonoverlapping(from, entry.as_mut_ptr(), ENTRY_BYTES);
            }
            take(decode(&entry));
            at = (at + 1) & (self.entries - 1);
        }
        control.get_ahead.store(at, Ordering::Release);
        control.get_behind.store(at, Ordering::Release);
    }

    /// The descriptor: it becomes readable when events wait.
    pub fn file(&self) -> &File {
        &self.file
    }
}

fn word(entry: &[u8; ENTRY_BYTES], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&entry[at..at + 8]);
    u64::from_le_bytes(bytes)
}

/// The offsets are those of `UvmEventMigrationInfo` and `UvmEventGpuFaultInfo`.
fn decode(entry: &[u8; ENTRY_BYTES]) -> Event {
    match entry[0] {
        MIGRATION => Event::Migration {
            address: word(entry, 8),
            bytes: word(entry, 16),
            cause: match entry[1] {
                1 => Cause::Call,
                2 => Cause::Fault,
                3 => Cause::Prefetch,
                4 => Cause::Eviction,
                other => Cause::Other(other),
            },
            source: entry[2],
            target: entry[3],
        },
        GPU_FAULT => Event::GpuFault {
            address: word(entry, 8),
            batch: word(entry, 32) as u32,
        },
        REPLAY => Event::Replay,
        other => Event::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_decoded_by_their_type() {
        let mut entry = [0; ENTRY_BYTES];
        entry[..4].copy_from_slice(&[MIGRATION, 4, 1, 0]);
        entry[8..16].copy_from_slice(&0x7e00_0020_0000u64.to_le_bytes());
        entry[16..24].copy_from_slice(&0x20_0000u64.to_le_bytes());
        let expected = Event::Migration {
            address: 0x7e00_0020_0000,
            bytes: 2 << 20,
            cause: Cause::Eviction,
            source: 1,
            target: 0,
        };
        assert_eq!(decode(&entry), expected);
        entry[0] = GPU_FAULT;
        entry[32..36].copy_from_slice(&7u32.to_le_bytes());
        let address = 0x7e00_0020_0000;
        assert_eq!(decode(&entry), Event::GpuFault { address, batch: 7 });
        entry[0] = 13;
        assert_eq!(decode(&entry), Event::Other(13));
    }
}
