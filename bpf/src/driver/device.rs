//! Address spaces of nvidia-uvm: opening one, mapping managed memory in it, asking it for
//! things.
//!
//! An address space of our own serves the probes' self-test: the host's faults on it need
//! no GPU. Requests on other processes' address spaces take their descriptor, got by
//! `pidfd_getfd`; who may do that is the kernel's decision.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::ptr::NonNull;

use thiserror::Error;

use super::abi::{self, Request};

/// The device of address spaces.
pub const DEVICE: &str = "/dev/nvidia-uvm";
/// The device of event queues.
pub const TOOLS_DEVICE: &str = "/dev/nvidia-uvm-tools";

/// Why the driver did not do something.
#[derive(Debug, Error)]
pub enum DriverError {
    /// A device cannot be opened.
    #[error("cannot open {path}: {source}; is nvidia-uvm loaded, and may this process use it?")]
    Open {
        /// The device.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused a request.
    #[error("the kernel refuses nvidia-uvm's request {request}: {source}")]
    Kernel {
        /// Its name.
        request: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The driver refused a request.
    #[error("nvidia-uvm answers the request {request} with status {status:#x}")]
    Status {
        /// Its name.
        request: &'static str,
        /// `NV_STATUS`.
        status: u32,
    },
    /// The driver did not answer where its interface says.
    #[error(
        "nvidia-uvm left the request {request} without an answer: its interface is another one"
    )]
    Unanswered {
        /// Its name.
        request: &'static str,
    },
    /// Memory cannot be mapped.
    #[error("cannot map {bytes} bytes of managed memory: {source}")]
    Map {
        /// How many.
        bytes: usize,
        /// Why.
        source: io::Error,
    },
    /// Another process's address space cannot be had.
    #[error("cannot reach the managed memory of process {pid}: {reason}")]
    Process {
        /// The process.
        pid: u32,
        /// Why.
        reason: String,
    },
}

/// Makes one request and checks its answer.
pub(super) fn request<R: Request>(file: BorrowedFd<'_>, mut asked: R) -> Result<R, DriverError> {
    asked.set_status(abi::UNANSWERED);
    // SAFETY: the structure has the layout that the driver expects for this number, and
    // outlives the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), R::NUMBER, &raw mut asked) };
    if result != 0 {
        return Err(DriverError::Kernel {
            request: R::NAME,
            source: io::Error::last_os_error(),
        });
    }
    match asked.status() {
        abi::OK => Ok(asked),
        abi::UNANSWERED => Err(DriverError::Unanswered { request: R::NAME }),
        status => Err(DriverError::Status {
            request: R::NAME,
            status,
        }),
    }
}

/// Opens one of the driver's devices.
pub(super) fn open(path: &str) -> Result<File, DriverError> {
    let failed = |source| DriverError::Open {
        path: path.to_owned(),
        source,
    };
    let file = File::options()
        .read(true)
        .write(true)
        .open(path)
        .map_err(failed)?;
    Ok(file)
}

/// An address space: ours, or one that another process shares with us.
#[derive(Debug)]
pub struct VaSpace {
    file: OwnedFd,
    /// What ties our memory to it; none for another process's.
    _memory: Option<File>,
}

impl VaSpace {
    /// A new one, tied to this process.
    ///
    /// # Errors
    /// The driver is not there, is suspended, or this process may not use it.
    pub fn new() -> Result<VaSpace, DriverError> {
        let file = open(DEVICE)?;
        request(file.as_fd(), abi::Initialize::default())?;
        let memory = open(DEVICE)?;
        let tie = abi::MmInitialize {
            uvm_fd: file.as_raw_fd(),
            ..Default::default()
        };
        match request(memory.as_fd(), tie) {
            Ok(_)
            | Err(DriverError::Status {
                status: abi::NOTHING_TO_DO,
                ..
            }) => {}
            Err(error) => return Err(error),
        }
        Ok(VaSpace {
            file: file.into(),
            _memory: Some(memory),
        })
    }

    /// Those of another process, by its descriptors of [`DEVICE`]. Among them are
    /// descriptors that are no address spaces; the driver refuses requests on those.
    ///
    /// The driver keeps an address space alive while it is held: let go of it when the
    /// process ends.
    ///
    /// # Errors
    /// The process has none, has ended, or may not be looked into: another user's process
    /// takes CAP_SYS_PTRACE.
    pub fn of_process(pid: u32) -> Result<Vec<VaSpace>, DriverError> {
        let failed = |reason: String| DriverError::Process { pid, reason };
        let told = |what: &'static str| {
            move |error: io::Error| DriverError::Process {
                pid,
                reason: format!("{what}: {error}"),
            }
        };
        let device = std::fs::metadata(DEVICE).map_err(told("looking for the device"))?;
        // SAFETY: the call takes a process id and flags and returns a descriptor.
        let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let process = descriptor(opened).map_err(told("pidfd_open"))?;
        let folder = format!("/proc/{pid}/fd");
        let entries = std::fs::read_dir(&folder).map_err(told("listing its descriptors"))?;
        let mut found = Vec::new();
        for entry in entries.flatten() {
            let number = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<i32>().ok());
            let same = std::fs::metadata(entry.path()).is_ok_and(|metadata| {
                metadata.file_type().is_char_device() && metadata.rdev() == device.rdev()
            });
            let (Some(number), true) = (number, same) else {
                continue;
            };
            // SAFETY: takes two descriptors' numbers and flags and returns a descriptor.
            let taken =
                unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
            let file = descriptor(taken).map_err(told("pidfd_getfd"))?;
            found.push(VaSpace {
                file,
                _memory: None,
            });
        }
        if found.is_empty() {
            return Err(failed(format!("it has not opened {DEVICE}")));
        }
        Ok(found)
    }

    /// Maps managed memory, aligned to blocks, untouched.
    ///
    /// # Errors
    /// There is no room, or the driver refuses.
    pub fn map(&self, bytes: usize) -> Result<Managed, DriverError> {
        const BLOCK: usize = 2 << 20;
        let failed = |source| DriverError::Map { bytes, source };
        let room = bytes.next_multiple_of(BLOCK) + BLOCK;
        // The driver wants the offset to be the address, so an address is found first.
        // SAFETY: no address is given, so nothing that exists is touched.
        let reserved = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                room,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if reserved == libc::MAP_FAILED {
            return Err(failed(io::Error::last_os_error()));
        }
        let start = (reserved as usize).next_multiple_of(BLOCK);
        // SAFETY: lies inside the room that was reserved above for this.
        let mapped = unsafe {
            libc::mmap(
                start as *mut libc::c_void,
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                self.file.as_raw_fd(),
                start as libc::off_t,
            )
        };
        let outcome = io::Error::last_os_error();
        let managed = Managed {
            room: NonNull::new(reserved.cast()).ok_or_else(|| failed(io::Error::other("null")))?,
            room_bytes: room,
            start,
            bytes,
        };
        if mapped == libc::MAP_FAILED {
            return Err(failed(outcome));
        }
        Ok(managed)
    }

    /// Moves a range to the processor with this UUID.
    ///
    /// # Errors
    /// The range is not managed memory there, or the processor is not in use there.
    pub fn migrate(
        &self,
        address: u64,
        bytes: u64,
        processor: [u8; 16],
    ) -> Result<(), DriverError> {
        let asked = abi::Migrate {
            base: address,
            length: bytes,
            destination: processor,
            host_node: -1,
            ..Default::default()
        };
        request(self.file.as_fd(), asked).map(|_| ())
    }

    /// Waits until what the driver has done is in the event queues of this address space.
    ///
    /// # Errors
    /// This is no address space.
    pub fn flush_events(&self) -> Result<(), DriverError> {
        request(self.file.as_fd(), abi::FlushEvents::default()).map(|_| ())
    }
}

impl AsFd for VaSpace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn descriptor(returned: libc::c_long) -> io::Result<OwnedFd> {
    let number = i32::try_from(returned).unwrap_or(-1);
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Managed memory of this process; unmapped when dropped.
#[derive(Debug)]
pub struct Managed {
    room: NonNull<u8>,
    room_bytes: usize,
    start: usize,
    bytes: usize,
}

impl Managed {
    /// Its first byte.
    pub fn address(&self) -> u64 {
        self.start as u64
    }

    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes one byte, `offset` bytes in; `false`: it does not reach that far.
    pub fn touch(&self, offset: usize, value: u8) -> bool {
        if offset >= self.bytes {
            return false;
        }
        // SAFETY: inside the mapping, which is writable and lives as long as `self`.
        unsafe { std::ptr::write_volatile((self.start + offset) as *mut u8, value) };
        true
    }

    /// Reads one byte; `None`: it does not reach that far.
    pub fn read(&self, offset: usize) -> Option<u8> {
        // SAFETY: inside the mapping, which is readable and lives as long as `self`.
        (offset < self.bytes)
            .then(|| unsafe { std::ptr::read_volatile((self.start + offset) as *const u8) })
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        // SAFETY: the room was mapped by `VaSpace::map`, and nothing points into it any more.
        unsafe { libc::munmap(self.room.as_ptr().cast(), self.room_bytes) };
    }
}

/// Whether the device of event queues is there now.
pub fn queue_is_there() -> bool {
    Path::new(TOOLS_DEVICE).exists()
}
