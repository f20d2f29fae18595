//! The device's memory: allocations, residency, migration, faults.
//!
//! The public face is [`Device`]. All addresses in it are the program's (CPU view) as
//! `u64`; [`Device::to_device_view`] gives where kernels see the same byte. Everything may
//! be called from any thread; calls that move data block until it has moved.

use std::io;

use crate::config::Config;
use crate::counters::Counters;
use crate::kernels::{Kernel, Shape};

/// Unit of residency decisions, and of device frames: nvidia-uvm's `va_block`, bytes.
pub const BLOCK_BYTES: u64 = 2 << 20;

/// Why a memory call failed.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// Device memory, or the address space reserved for managed memory, is used up.
    #[error(
        "out of memory: {requested} bytes asked for, {available} left; free some or raise OVERSUB_SOFTGPU_MEMORY"
    )]
    OutOfMemory {
        /// Bytes asked for.
        requested: u64,
        /// Bytes left.
        available: u64,
    },
    /// The address or length does not name (a part of) one allocation of the right kind.
    #[error("no {wanted} at {address:#x}+{bytes:#x}; pass an address inside one live allocation")]
    InvalidRange {
        /// What was expected there.
        wanted: &'static str,
        /// First byte.
        address: u64,
        /// Length.
        bytes: u64,
    },
    /// A kernel accessed an address where nothing is allocated. The kernel was ended.
    #[error("a kernel accessed {address:#x}, which is in no allocation; check its parameters")]
    IllegalAccess {
        /// The address, as the program sees it.
        address: u64,
    },
    /// A request that this device does not know how to honour.
    #[error("{0} is not supported by the soft GPU")]
    NotSupported(&'static str),
    /// The operating system refused what the device is built on.
    #[error("{call} failed: {source}; the soft GPU needs userfaultfd with UFFDIO_MOVE (Linux 6.8)")]
    System {
        /// The system call.
        call: &'static str,
        /// Its error.
        source: io::Error,
    },
}

/// What an allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Managed: migrates, visible to CPU and kernels.
    Managed,
    /// Device memory: never leaves the device, invisible to the CPU.
    Device,
}

/// One live allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// First byte.
    pub base: u64,
    /// Length as asked for.
    pub bytes: u64,
    /// What it is.
    pub kind: Kind,
}

/// A side of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// Host memory.
    Host,
    /// Device memory.
    Device,
}

/// Advice on a managed range (`CU_MEM_ADVISE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Preferred location set, or cleared.
    Preferred(Option<Location>),
    /// The device will access it, or not any more.
    AccessedByDevice(bool),
    /// Read-mostly: [`MemoryError::NotSupported`] when set, as nothing keeps two copies.
    ReadMostly(bool),
}

/// What `cuMemRangeGetAttribute` asks of a managed range. `None` in the outer option:
/// the blocks of the range differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeState {
    /// Preferred location.
    pub preferred: Option<Option<Location>>,
    /// Where the last prefetch call sent it.
    pub last_prefetch: Option<Option<Location>>,
    /// Advised as accessed by the device, all of it.
    pub accessed_by_device: bool,
}

/// One end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The CPU's memory, through its own pointer (which may fault).
    Host(u64),
    /// Managed or device memory, accessed by the device.
    Device(u64),
}

/// What a memset writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// One byte, repeated.
    Bytes(u8),
    /// Two bytes, repeated.
    Halves(u16),
    /// Four bytes, repeated.
    Words(u32),
}

/// The device.
pub struct Device {
    config: Config,
    counters: Counters,
}

impl Device {
    /// Makes a device: reserves its areas and starts its service threads.
    pub fn new(config: Config) -> Result<Self, MemoryError> {
        Ok(Self {
            config,
            counters: Counters::default(),
        })
    }

    /// What it was made of.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What it did.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Allocates managed memory, 2 MiB aligned, populated nowhere.
    pub fn alloc_managed(&self, _bytes: u64) -> Result<u64, MemoryError> {
        Err(MemoryError::NotSupported("alloc_managed"))
    }

    /// Allocates device memory, 512-byte aligned (2 MiB from 2 MiB on). Managed blocks
    /// are evicted to make room.
    pub fn alloc_device(&self, _bytes: u64) -> Result<u64, MemoryError> {
        Err(MemoryError::NotSupported("alloc_device"))
    }

    /// Frees the allocation that begins at `address`. No kernel or copy may be using it.
    pub fn free(&self, address: u64) -> Result<Allocation, MemoryError> {
        Err(MemoryError::InvalidRange {
            wanted: "allocation",
            address,
            bytes: 0,
        })
    }

    /// The allocation that holds `address`.
    pub fn lookup(&self, _address: u64) -> Option<Allocation> {
        None
    }

    /// Where kernels see `address`; `None` outside the device's address space.
    pub fn to_device_view(&self, _address: u64) -> Option<u64> {
        None
    }

    /// Free and total device memory, bytes.
    pub fn memory_info(&self) -> (u64, u64) {
        (self.config.memory_bytes, self.config.memory_bytes)
    }

    /// Managed bytes on the device now.
    pub fn resident_bytes(&self) -> u64 {
        0
    }

    /// Moves a managed range; returns when it is there.
    pub fn prefetch(&self, _address: u64, _bytes: u64, _to: Location) -> Result<(), MemoryError> {
        Err(MemoryError::NotSupported("prefetch"))
    }

    /// Whether [`Device::prefetch`] of the range would use the link now: pages that have
    /// content on the other side, or (to the device) that need an eviction of content. A
    /// cheap look by blocks, not a promise.
    pub fn needs_transfer(&self, _address: u64, _bytes: u64, _to: Location) -> bool {
        true
    }

    /// Declares the content of a managed range dead: undefined until written or prefetched.
    pub fn discard(&self, _address: u64, _bytes: u64) -> Result<(), MemoryError> {
        Err(MemoryError::NotSupported("discard"))
    }

    /// Applies advice to a managed range.
    pub fn advise(&self, _address: u64, _bytes: u64, _advice: Advice) -> Result<(), MemoryError> {
        Err(MemoryError::NotSupported("advise"))
    }

    /// Policy and last prefetch of a managed range.
    pub fn range_state(&self, _address: u64, _bytes: u64) -> Result<RangeState, MemoryError> {
        Err(MemoryError::NotSupported("range_state"))
    }

    /// Copies as a copy engine does: throttled by the link in the direction it crosses.
    ///
    /// # Safety
    /// A [`Place::Host`] must be valid for `bytes`.
    pub unsafe fn copy(&self, _to: Place, _from: Place, _bytes: u64) -> Result<(), MemoryError> {
        Err(MemoryError::NotSupported("copy"))
    }

    /// Fills `count` elements of managed or device memory, on the device.
    pub fn memset(&self, _address: u64, _fill: Fill, _count: u64) -> Result<(), MemoryError> {
        Err(MemoryError::NotSupported("memset"))
    }

    /// Runs a kernel to its end. One at a time: a second caller waits.
    ///
    /// # Safety
    /// `words` are the kernel's parameters, pointers already in the device's view, naming
    /// live memory as large as the kernel touches.
    ///
    /// # Errors
    /// [`MemoryError::IllegalAccess`]: the launch failed, its effects are undefined.
    pub unsafe fn run_kernel(
        &self,
        _kernel: &Kernel,
        _shape: &Shape,
        _words: &[u64],
    ) -> Result<(), MemoryError> {
        Err(MemoryError::NotSupported("run_kernel"))
    }
}
