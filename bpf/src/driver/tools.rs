//! The driver's event queue of one process (`/dev/nvidia-uvm-tools`): the second source of
//! events, for hosts on which no probe can be attached.
//!
//! The process observed has to share its descriptor of the driver (`pidfd_getfd`: the same
//! user, or CAP_SYS_PTRACE). While the queue is there the driver keeps the process's address
//! space, so it has to be dropped when the process ends.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use oversub_uvm::UvmError;
use oversub_uvm::process::{Process, ProcessError};
use oversub_uvm::session::UVM_PATH;
use oversub_uvm::tools::{self, Form, Queue};
use thiserror::Error;

use super::entry::Decoder;
use crate::event::ProbeEvent;
use crate::offsets::DriverVersion;

/// Entries of a queue: 2 MiB of memory, pinned. A power of two.
const ENTRIES: u32 = 1 << 15;

/// Why a queue cannot be had.
#[derive(Debug, Error)]
pub enum DriverError {
    /// The process's descriptors cannot be taken.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The driver refuses.
    #[error(transparent)]
    Driver(#[from] UvmError),
}

/// The queue of one process.
#[derive(Debug)]
pub struct ToolsQueue {
    queue: Queue,
    space: File,
    process: Process,
    decoder: Decoder,
}

impl ToolsQueue {
    /// Opens the queue of a process, whose driver is of this version.
    ///
    /// # Errors
    /// The process has no managed memory, may not be looked into, or the driver refuses.
    pub fn open(pid: u32, version: Option<DriverVersion>) -> Result<ToolsQueue, DriverError> {
        let process = Process::open(pid)?;
        let form =
            Form::of(version.map(|DriverVersion(branch, minor, patch)| (branch, minor, patch)));
        let mut refused = None;
        for space in process.take_descriptors(Path::new(UVM_PATH))? {
            // A descriptor that is no address space is refused; the next one may be one.
            match Queue::attach_as(space.as_fd(), ENTRIES, form) {
                Ok(queue) => {
                    return Ok(ToolsQueue {
                        queue,
                        space,
                        process,
                        decoder: Decoder::new(pid, version),
                    });
                }
                Err(error) => refused = Some(error),
            }
        }
        Err(match refused {
            Some(error) => error.into(),
            None => ProcessError::Gone { pid }.into(),
        })
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Readable when there are entries.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.file().as_fd()
    }

    /// Readable when the process has ended, and the queue has to go.
    pub fn process_fd(&self) -> BorrowedFd<'_> {
        self.process.pidfd()
    }

    /// The process has ended.
    pub fn process_has_ended(&self) -> bool {
        self.process.has_ended()
    }

    /// Hands over what has come; returns how many entries there were. Migrations and
    /// replays come when the driver next looks at what its engines have done.
    pub fn drain(&mut self, sink: &mut dyn FnMut(ProbeEvent)) -> usize {
        // Best effort: what is not flushed comes the next time.
        let _ = tools::flush(&self.space);
        self.decoder.set_offset(clock_offset_ns());
        let decoder = &mut self.decoder;
        let taken = self.queue.drain(|entry| decoder.take(entry, sink));
        decoder.flush(sink);
        taken
    }

    /// Entries for which there was no room, since the start.
    pub fn dropped(&self) -> u64 {
        self.queue.dropped()
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
