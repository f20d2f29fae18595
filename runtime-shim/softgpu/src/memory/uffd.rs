//! userfaultfd: the few requests that the areas need. It owns descriptors and the layout
//! of the kernel's structures (linux/userfaultfd.h, Linux 6.8), not their use.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::MemoryError;

const PAGE_BYTES: u64 = 4096;

const API: u64 = 0xAA;
const FEATURE_SIGBUS: u64 = 1 << 7;
const FEATURE_EXACT_ADDRESS: u64 = 1 << 11;
const FEATURE_POISON: u64 = 1 << 14;
const FEATURE_MOVE: u64 = 1 << 16;
const USER_MODE_ONLY: libc::c_int = 1;
const MODE_MISSING: u64 = 1;
const MOVE_DONTWAKE: u64 = 1;
/// `_IO(0xAA, 0)` of /dev/userfaultfd.
const DEVICE_NEW: libc::c_ulong = 0xAA00;

/// Size of one `struct uffd_msg`.
pub const MESSAGE_BYTES: usize = 32;
const EVENT_PAGEFAULT: u8 = 0x12;

/// `_IOWR(0xAA, number, size)`.
const fn request(number: u64, size: usize) -> libc::c_ulong {
    (3 << 30) | ((size as u64) << 16) | (0xAA << 8) | number
}

/// `_IOR(0xAA, number, size)`.
const fn request_read(number: u64, size: usize) -> libc::c_ulong {
    (2 << 30) | ((size as u64) << 16) | (0xAA << 8) | number
}

#[repr(C)]
struct ApiRequest {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct RegisterRequest {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct RangeRequest {
    start: u64,
    len: u64,
}

#[repr(C)]
struct PoisonRequest {
    start: u64,
    len: u64,
    mode: u64,
    updated: i64,
}

#[repr(C)]
struct MoveRequest {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    moved: i64,
}

/// Who is told of a fault on an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Faults {
    /// The reader of the descriptor; the faulting thread waits, in system calls too.
    Block,
    /// The faulting thread, by SIGBUS; system calls get EFAULT.
    Signal,
}

/// One userfaultfd.
pub struct Uffd(OwnedFd);

impl Uffd {
    /// Opens one and checks that the kernel has what the device is built on.
    pub fn open(faults: Faults) -> Result<Self, MemoryError> {
        let fd = match faults {
            Faults::Block => open_full()?,
            Faults::Signal => open_call(USER_MODE_ONLY)?,
        };
        let mode = match faults {
            Faults::Block => FEATURE_EXACT_ADDRESS | FEATURE_POISON,
            Faults::Signal => FEATURE_SIGBUS,
        };
        let uffd = Self(fd);
        let mut api = ApiRequest {
            api: API,
            features: FEATURE_MOVE | mode,
            ioctls: 0,
        };
        uffd.ioctl(request(0x3F, size_of::<ApiRequest>()), &mut api)
            .map_err(|source| MemoryError::System {
                call: "UFFDIO_API",
                source,
            })?;
        Ok(uffd)
    }

    fn ioctl<T>(&self, code: libc::c_ulong, argument: &mut T) -> io::Result<()> {
        // SAFETY: `argument` is the structure that `code` names, valid and exclusive.
        let rc = unsafe { libc::ioctl(self.0.as_raw_fd(), code, argument as *mut T) };
        if rc == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// The descriptor, for poll.
    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Asks for the faults on missing pages of a range.
    pub fn register(&self, start: u64, len: u64) -> Result<(), MemoryError> {
        let mut request_ = RegisterRequest {
            start,
            len,
            mode: MODE_MISSING,
            ioctls: 0,
        };
        self.ioctl(request(0x00, size_of::<RegisterRequest>()), &mut request_)
            .map_err(|source| MemoryError::System {
                call: "UFFDIO_REGISTER",
                source,
            })
    }

    /// Wakes the threads that wait on a range; they look again.
    pub fn wake(&self, start: u64, len: u64) {
        let mut range = RangeRequest { start, len };
        if let Err(error) = self.ioctl(request_read(0x02, size_of::<RangeRequest>()), &mut range) {
            die("UFFDIO_WAKE", start, len, &error);
        }
    }

    /// Makes accesses to a range that is mapped nowhere raise SIGBUS, also for the threads
    /// that already wait on it.
    pub fn poison(&self, start: u64, len: u64) {
        let mut poison = PoisonRequest {
            start,
            len,
            mode: 0,
            updated: 0,
        };
        // A page that was poisoned or mapped in between is as good: the waiter looks again.
        let _ = self.ioctl(request(0x08, size_of::<PoisonRequest>()), &mut poison);
        self.wake(start, len);
    }

    /// Moves pages from `src` to `dst`, which this descriptor has registered, without a
    /// copy. `wake`: also wake who waits for them.
    ///
    /// A pinned page (direct I/O in flight) is waited for: it may not be lost. So is one that
    /// the kernel itself migrates, for compaction. Linux 6.18 may then answer `EAGAIN` for
    /// pages that it has moved all the same; asked again it says that they exist. Where each
    /// of them is, and no longer was, is what counts.
    pub fn move_pages(&self, dst: u64, src: u64, len: u64, wake: bool) {
        let mode = if wake { 0 } else { MOVE_DONTWAKE };
        let mut done = 0;
        let mut refused = 0u32;
        while done < len {
            let mut step = MoveRequest {
                dst: dst + done,
                src: src + done,
                len: len - done,
                mode,
                moved: 0,
            };
            match self.ioctl(request(0x05, size_of::<MoveRequest>()), &mut step) {
                Ok(()) => return,
                Err(_) if step.moved > 0 => {
                    done += step.moved as u64;
                    refused = 0;
                }
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                    let arrived = arrived(dst + done, src + done, len - done);
                    if arrived == 0 {
                        die("UFFDIO_MOVE", dst + done, src + done, &error);
                    }
                    if wake {
                        self.wake(dst + done, arrived);
                    }
                    done += arrived;
                    refused = 0;
                }
                Err(error) => {
                    let again = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY));
                    refused += 1;
                    if !again || refused > 100_000 {
                        die("UFFDIO_MOVE", dst + done, src + done, &error);
                    }
                    if refused > 100 {
                        std::thread::sleep(Duration::from_micros(100));
                    }
                }
            }
        }
    }

    /// Reads the addresses of waiting faults. 0: none at the moment.
    pub fn read_faults(&self, addresses: &mut Vec<u64>) -> usize {
        const AT_ONCE: usize = 16;
        let mut raw = [0u8; AT_ONCE * MESSAGE_BYTES];
        addresses.clear();
        // SAFETY: the buffer is as long as told.
        let got = unsafe { libc::read(self.raw(), raw.as_mut_ptr().cast(), raw.len()) };
        if got <= 0 {
            return 0;
        }
        for message in raw[..got as usize].chunks_exact(MESSAGE_BYTES) {
            if message[0] == EVENT_PAGEFAULT {
                let mut word = [0u8; 8];
                word.copy_from_slice(&message[16..24]);
                addresses.push(u64::from_ne_bytes(word));
            }
        }
        addresses.len()
    }
}

/// Bytes from the start of two ranges of pages that are mapped at `dst` and not at `src`.
fn arrived(dst: u64, src: u64, len: u64) -> u64 {
    let pages = (len / PAGE_BYTES) as usize;
    let mapped = |start: u64| {
        let mut there = vec![0u8; pages];
        // SAFETY: the kernel writes one byte for each page, and reads nothing of them.
        let rc = unsafe { libc::mincore(start as *mut _, len as usize, there.as_mut_ptr()) };
        if rc != 0 {
            die("mincore", start, len, &io::Error::last_os_error());
        }
        there
    };
    let (at_dst, at_src) = (mapped(dst), mapped(src));
    let moved = |(there, here): &(&u8, &u8)| *there & 1 != 0 && *here & 1 == 0;
    at_dst.iter().zip(&at_src).take_while(moved).count() as u64 * PAGE_BYTES
}

/// Invariants of the areas are broken: going on would lose the program's data.
pub fn die(what: &str, address: u64, other: u64, error: &dyn std::fmt::Display) -> ! {
    eprintln!(
        "oversub soft GPU: {what} at {address:#x} ({other:#x}): {error}; stopping, as the program's memory cannot be kept right"
    );
    std::process::abort();
}

fn open_call(flags: libc::c_int) -> Result<OwnedFd, MemoryError> {
    // SAFETY: the call takes flags only.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_userfaultfd,
            libc::O_CLOEXEC | libc::O_NONBLOCK | flags,
        )
    };
    if fd < 0 {
        return Err(MemoryError::System {
            call: "userfaultfd",
            source: io::Error::last_os_error(),
        });
    }
    // SAFETY: a fresh descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// A descriptor that serves faults of system calls too, where that is allowed; else one
/// for user-mode accesses alone.
fn open_full() -> Result<OwnedFd, MemoryError> {
    if let Ok(device) = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/userfaultfd")
    {
        // SAFETY: the request takes flags and returns a descriptor.
        let fd = unsafe {
            libc::ioctl(
                device.as_raw_fd(),
                DEVICE_NEW,
                libc::O_CLOEXEC | libc::O_NONBLOCK,
            )
        };
        if fd >= 0 {
            // SAFETY: a fresh descriptor that nothing else owns.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
    open_call(0).or_else(|_| open_call(USER_MODE_ONLY))
}
