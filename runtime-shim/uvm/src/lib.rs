//! nvidia-uvm as its clients see it: the requests that libcuda sends, the event queue of
//! the tools interface, and the software GPU that stands behind the driver in test guests.
//!
//! It owns layouts and system calls. What to move where is its users' business: the daemon,
//! which steers programs from outside, the soft CUDA driver of the test guests, and tests.

pub mod process;
pub mod requests;
pub mod session;
pub mod softgpu;
pub mod tools;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// A processor as the driver names it.
pub type Uuid = [u8; 16];

/// The CPU: `NV_PROCESSOR_UUID_CPU_DEFAULT` (nvCpuUuid.c).
pub const CPU: Uuid = [
    0xa6, 0x5e, 0x0f, 0x4e, 0xd7, 0xd4, 0x7b, 0xa2, 0x50, 0x47, 0x41, 0x2c, 0x14, 0x2a, 0x77, 0x73,
];

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum UvmError {
    /// A device node could not be opened.
    #[error("{path} cannot be opened: {source}; is nvidia-uvm loaded, and its node made?")]
    Open {
        /// The node.
        path: String,
        /// Of the operating system.
        source: io::Error,
    },
    /// The kernel refused a system call.
    #[error("{call} failed: {source}")]
    System {
        /// Which one.
        call: &'static str,
        /// Of the operating system.
        source: io::Error,
    },
    /// The driver refused a request.
    #[error("nvidia-uvm refused {request} with status {status:#x} (see nvstatuscodes.h)")]
    Refused {
        /// Its name in uvm_ioctl.h.
        request: &'static str,
        /// The driver's `NV_STATUS`.
        status: u32,
    },
}

impl UvmError {
    pub(crate) fn last(call: &'static str) -> Self {
        let source = io::Error::last_os_error();
        Self::System { call, source }
    }
}

pub(crate) fn open(path: &Path) -> Result<File, UvmError> {
    let opened = File::options().read(true).write(true).open(path);
    opened.map_err(|source| UvmError::Open {
        path: path.display().to_string(),
        source,
    })
}

/// Sends one request to the driver.
///
/// # Errors
/// [`UvmError::System`], or [`UvmError::Refused`] with the driver's status, also where the
/// driver did not write one.
pub fn send<R: requests::Request>(file: &File, request: &mut R) -> Result<(), UvmError> {
    *request.status() = requests::UNANSWERED;
    // SAFETY: the request has the layout that its number stands for, and lives for the call.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), R::NUMBER, std::ptr::from_mut(request)) };
    if rc != 0 {
        return Err(UvmError::last(R::NAME));
    }
    match *request.status() {
        0 => Ok(()),
        status => Err(UvmError::Refused {
            request: R::NAME,
            status,
        }),
    }
}
