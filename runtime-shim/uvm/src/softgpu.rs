//! `/dev/softgpu`, the software GPU of the test guests (tests/vm/device/softgpu_abi.h).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use crate::{Uuid, UvmError, open};

/// Kind of access, as a fault packet numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Access {
    /// Load.
    Read = 0,
    /// Store.
    Write = 1,
    /// Read and write in one.
    Atomic = 2,
}

/// The device, and what it did since its module was loaded.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Info {
    /// Name.
    pub uuid: Uuid,
    /// Video memory.
    pub memory_bytes: u64,
    /// Of it, in nobody's hands.
    pub free_bytes: u64,
    /// Pushbuffers run.
    pub pushes: u64,
    /// Copies and memsets.
    pub copies: u64,
    /// Bytes of them.
    pub copied_bytes: u64,
    /// Invalidations of the TLB.
    pub invalidates: u64,
    /// Replays of faults.
    pub replays: u64,
    /// Of them, cancellations.
    pub cancels: u64,
    /// Fault packets written.
    pub fault_packets: u64,
    /// Interrupts raised.
    pub interrupts: u64,
    /// Copies left out, as a negative control.
    pub dropped_copies: u64,
}

#[repr(C)]
struct Bind {
    channel: u32,
    pad: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct TouchRequest {
    access: u32,
    in_flight: u32,
    address: u64,
    count: u64,
    stride: u64,
    value: u64,
    timeout_ms: u32,
    result: i32,
    faults: u64,
    waits: u64,
    device_hits: u64,
    host_hits: u64,
}

#[repr(C)]
struct SettleRequest {
    timeout_ms: u32,
    cancelled: u32,
}

/// A launch whose accesses are an arithmetic sequence of words.
#[derive(Clone, Copy, Debug)]
pub struct Touch {
    /// What it does with each word.
    pub access: Access,
    /// First address.
    pub address: u64,
    /// Words.
    pub count: u64,
    /// Bytes from one to the next.
    pub stride: u64,
    /// Word `i` is written `value + i`.
    pub value: u64,
    /// Most faults before it waits for a replay.
    pub in_flight: u32,
}

/// How it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Sum of the words that were read.
    pub sum: u64,
    /// Fault packets.
    pub faults: u64,
    /// Accesses that found video memory.
    pub device_hits: u64,
    /// Accesses that found system memory.
    pub host_hits: u64,
}

/// How a fault ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Replayed: try again.
    Replayed,
    /// Cancelled: the driver found nothing there.
    Cancelled,
    /// No answer in time.
    TimedOut,
}

const fn number(direction: u64, index: u64, size: usize) -> libc::c_ulong {
    direction << 30 | (size as u64) << 16 | (b'G' as u64) << 8 | index
}
const WRITES: u64 = 1;
const READS: u64 = 2;
const INFO: libc::c_ulong = number(READS, 1, size_of::<Info>());
const BIND: libc::c_ulong = number(WRITES, 2, size_of::<Bind>());
const TOUCH: libc::c_ulong = number(READS | WRITES, 3, size_of::<TouchRequest>());
const SETTLE: libc::c_ulong = number(READS | WRITES, 4, size_of::<SettleRequest>());

/// An open device.
#[derive(Debug)]
pub struct SoftGpu {
    file: File,
}

impl SoftGpu {
    /// Where it is.
    pub const PATH: &'static str = "/dev/softgpu";

    /// Opens it.
    ///
    /// # Errors
    /// [`UvmError::Open`].
    pub fn open() -> Result<Self, UvmError> {
        let file = open(Path::new(Self::PATH))?;
        Ok(Self { file })
    }

    fn call<T>(
        &self,
        number: libc::c_ulong,
        with: &mut T,
        name: &'static str,
    ) -> Result<(), UvmError> {
        // SAFETY: each number goes with its structure, which lives for the call.
        match unsafe { libc::ioctl(self.file.as_raw_fd(), number, std::ptr::from_mut(with)) } {
            0 => Ok(()),
            _ => Err(UvmError::last(name)),
        }
    }

    /// What it is and did.
    ///
    /// # Errors
    /// [`UvmError::System`].
    pub fn info(&self) -> Result<Info, UvmError> {
        let mut info = Info::default();
        self.call(INFO, &mut info, "SOFTGPU_INFO")?;
        Ok(info)
    }

    /// Ties this descriptor to a registered channel's address space.
    ///
    /// # Errors
    /// [`UvmError::System`] with `ENOENT`: no such channel.
    pub fn bind(&self, channel: u32) -> Result<(), UvmError> {
        self.call(BIND, &mut Bind { channel, pad: 0 }, "SOFTGPU_BIND")
    }

    /// Runs a launch; faults are the driver's to serve. The descriptor must be bound.
    ///
    /// # Errors
    /// [`UvmError::System`]: `EFAULT` when the driver cancelled it, `ETIMEDOUT` after
    /// `limit`.
    pub fn touch(&self, touch: Touch, limit: Duration) -> Result<Touched, UvmError> {
        let mut request = TouchRequest {
            access: touch.access as u32,
            in_flight: touch.in_flight,
            address: touch.address,
            count: touch.count,
            stride: touch.stride,
            value: touch.value,
            timeout_ms: limit.as_millis() as u32,
            ..TouchRequest::default()
        };
        self.call(TOUCH, &mut request, "SOFTGPU_TOUCH")?;
        if request.result != 0 {
            return Err(UvmError::System {
                call: "SOFTGPU_TOUCH",
                source: io::Error::from_raw_os_error(-request.result),
            });
        }
        Ok(Touched {
            sum: request.value,
            faults: request.faults,
            device_hits: request.device_hits,
            host_hits: request.host_hits,
        })
    }

    /// Waits for the driver's answer to what the mapping faulted on.
    ///
    /// # Errors
    /// [`UvmError::System`].
    pub fn settle(&self, limit: Duration) -> Result<Settled, UvmError> {
        let mut request = SettleRequest {
            timeout_ms: limit.as_millis() as u32,
            cancelled: 0,
        };
        // A signal, such as one that stops the process for a while, ends the wait early.
        let answer = loop {
            match self.call(SETTLE, &mut request, "SOFTGPU_SETTLE") {
                Err(UvmError::System { source, .. })
                    if source.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        match answer {
            Ok(()) if request.cancelled != 0 => Ok(Settled::Cancelled),
            Ok(()) => Ok(Settled::Replayed),
            Err(UvmError::System { source, .. })
                if source.raw_os_error() == Some(libc::ETIMEDOUT) =>
            {
                Ok(Settled::TimedOut)
            }
            Err(error) => Err(error),
        }
    }

    /// The descriptor, for a mapping of the device's view.
    pub fn file(&self) -> &File {
        &self.file
    }
}
