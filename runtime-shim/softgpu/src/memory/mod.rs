//! The device's memory: allocations, residency, migration, faults.
//!
//! The public face is [`Device`]. All addresses in it are the program's (CPU view) as
//! `u64`; [`Device::to_device_view`] gives where kernels see the same byte. Everything may
//! be called from any thread; calls that move data block until it has moved.

mod allocate;
mod areas;
pub(crate) mod backend;
mod block;
mod density;
mod gpu_fault;
mod host_fault;
pub(crate) mod link;
mod migrate;
mod pool;
mod ranges;
mod remote;
mod transfer;
pub(crate) mod uffd;
mod uvm;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::allocate::Book;
use self::areas::Areas;
use self::backend::Backend;
use self::block::Blocks;
use self::host_fault::HostService;
use self::link::Link;
use self::pool::Pool;
use self::remote::Lent;
use crate::config::{self, Config};
use crate::counters::Counters;
use crate::kernels::{Kernel, Shape};
use crate::probes;
use crate::sm::Processors;

pub(crate) use self::gpu_fault::{BATCH_LIMIT, GpuFault, Served};

/// Unit of residency decisions, and of device frames: nvidia-uvm's `va_block`, bytes.
pub const BLOCK_BYTES: u64 = 2 << 20;

/// Address space for managed memory: what a program may have live at once, bytes.
const WINDOW_BYTES: u64 = 64 << 30;

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
    /// A request that this device does not know how to honour.
    #[error("{0} is not supported by the soft GPU")]
    NotSupported(&'static str),
    /// A kernel accessed an address of the device's view where nothing is allocated.
    #[error(
        "kernel {kernel} accessed {address:#x}, where nothing is allocated; check its pointers and sizes"
    )]
    IllegalAddress {
        /// Entry name.
        kernel: &'static str,
        /// Program address of the access.
        address: u64,
    },
    /// The test guest's driver refused a call.
    #[error(transparent)]
    Uvm(#[from] oversub_uvm::UvmError),
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

/// Locks, whether or not a thread died with the lock held: all states behind our locks
/// are consistent at every point where a thread could panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the parts of the device share.
pub(crate) struct Memory {
    pub(crate) config: Config,
    pub(crate) counters: Counters,
    pub(crate) areas: Areas,
    blocks: Blocks,
    pool: Mutex<Pool>,
    book: Mutex<Book>,
    link_in: Link,
    link_out: Link,
    lent: Mutex<Lent>,
    batch_id: AtomicU64,
    /// How much longer than modelled the last batch of faults took, nanoseconds.
    batch_debt_ns: Mutex<f64>,
}

impl Memory {
    fn new(config: Config) -> Result<Self, MemoryError> {
        let frames = (config.memory_bytes / BLOCK_BYTES) as u32;
        let pool_bytes = u64::from(frames) * BLOCK_BYTES;
        // Frames are mapped one by one, but addresses are contiguous: room for holes.
        let areas = Areas::new(WINDOW_BYTES, 4 * pool_bytes, pool_bytes, config.warm_bytes)?;
        let book = Book::new(areas.managed(), areas.device());
        Ok(Self {
            counters: Counters::default(),
            blocks: Blocks::new((WINDOW_BYTES / BLOCK_BYTES) as usize, frames as usize),
            pool: Mutex::new(Pool::new(frames)),
            book: Mutex::new(book),
            link_in: Link::new(config.link_in_bytes_per_s),
            link_out: Link::new(config.link_out_bytes_per_s),
            lent: Mutex::default(),
            batch_id: AtomicU64::new(0),
            batch_debt_ns: Mutex::new(0.0),
            areas,
            config,
        })
    }

    /// The block of a managed program address.
    fn block_of(&self, address: u64) -> Option<u32> {
        let managed = self.areas.managed();
        managed
            .contains(&address)
            .then(|| ((address - managed.start) / BLOCK_BYTES) as u32)
    }

    /// Program address of a block.
    fn block_address(&self, block: u32) -> u64 {
        self.areas.managed().start + u64::from(block) * BLOCK_BYTES
    }
}

/// The device.
pub struct Device {
    memory: Arc<dyn Backend>,
    processors: Processors,
    _host_service: Option<HostService>,
}

impl Device {
    /// Makes a device: reserves its areas and starts its service threads.
    pub fn new(config: Config) -> Result<Self, MemoryError> {
        let (memory, host_service): (Arc<dyn Backend>, _) = match config.backend {
            config::Backend::Own => {
                let memory = Arc::new(Memory::new(config)?);
                let service = HostService::start(&memory)?;
                (memory, Some(service))
            }
            config::Backend::Uvm => {
                probes::oversub_softgpu_serves.store(0, Ordering::Release);
                (Arc::new(uvm::UvmMemory::new(config)?), None)
            }
        };
        let processors = Processors::new(Arc::clone(&memory))?;
        Ok(Self {
            memory,
            processors,
            _host_service: host_service,
        })
    }

    /// What it was made of.
    pub fn config(&self) -> &Config {
        self.memory.config()
    }

    /// What it did.
    pub fn counters(&self) -> &Counters {
        self.memory.settle_counters();
        self.memory.counters()
    }

    /// Allocates managed memory, 2 MiB aligned, populated nowhere.
    pub fn alloc_managed(&self, bytes: u64) -> Result<u64, MemoryError> {
        self.memory.alloc_managed(bytes)
    }

    /// Allocates device memory, 512-byte aligned (2 MiB from 2 MiB on). Managed blocks
    /// are evicted to make room.
    pub fn alloc_device(&self, bytes: u64) -> Result<u64, MemoryError> {
        self.memory.alloc_device(bytes)
    }

    /// Frees the allocation that begins at `address`. No kernel or copy may be using it.
    pub fn free(&self, address: u64) -> Result<Allocation, MemoryError> {
        self.memory.free(address)
    }

    /// The allocation that holds `address`.
    pub fn lookup(&self, address: u64) -> Option<Allocation> {
        self.memory.lookup(address)
    }

    /// Where kernels see `address`; `None` outside the device's address space.
    pub fn to_device_view(&self, address: u64) -> Option<u64> {
        self.memory.to_device_view(address)
    }

    /// Free and total device memory, bytes. Free: in no block's and no device
    /// allocation's hands.
    pub fn memory_info(&self) -> (u64, u64) {
        self.memory.memory_info()
    }

    /// Managed bytes on the device now.
    pub fn resident_bytes(&self) -> u64 {
        self.memory.resident_bytes()
    }

    /// Moves a managed range; returns when it is there. On the device this also counts as
    /// its latest migration where nothing has to move.
    pub fn prefetch(&self, address: u64, bytes: u64, to: Location) -> Result<(), MemoryError> {
        self.memory.prefetch(address, bytes, to)
    }

    /// Whether a prefetch would have something to do, as far as can be told without
    /// waiting for a migration that is under way.
    pub fn needs_transfer(&self, address: u64, bytes: u64, to: Location) -> bool {
        self.memory.needs_transfer(address, bytes, to)
    }

    /// Whether a prefetch would move content over the link, or make room first, as far as
    /// can be told without waiting: what does neither need not stand in a copy engine's line.
    pub fn needs_link(&self, address: u64, bytes: u64, to: Location) -> bool {
        self.memory.needs_link(address, bytes, to)
    }

    /// Declares the content of a managed range dead: undefined until written or
    /// prefetched. Granules of 64 KiB that the range covers only in part keep theirs.
    pub fn discard(&self, address: u64, bytes: u64) -> Result<(), MemoryError> {
        self.memory.discard(address, bytes)
    }

    /// Applies advice to the blocks of a managed range.
    pub fn advise(&self, address: u64, bytes: u64, advice: Advice) -> Result<(), MemoryError> {
        self.memory.advise(address, bytes, advice)
    }

    /// Policy and last prefetch of a managed range.
    pub fn range_state(&self, address: u64, bytes: u64) -> Result<RangeState, MemoryError> {
        self.memory.range_state(address, bytes)
    }

    /// Copies as a copy engine does: throttled by the link in the direction it crosses.
    ///
    /// # Safety
    /// A [`Place::Host`] must be valid for `bytes`.
    pub unsafe fn copy(&self, to: Place, from: Place, bytes: u64) -> Result<(), MemoryError> {
        // SAFETY: by the caller.
        unsafe { self.memory.copy(to, from, bytes) }
    }

    /// Fills `count` elements of managed or device memory, on the device.
    pub fn memset(&self, address: u64, fill: Fill, count: u64) -> Result<(), MemoryError> {
        self.memory.memset(address, fill, count)
    }

    /// Runs a kernel to its end. One at a time: a second caller waits.
    ///
    /// # Safety
    /// `words` are the kernel's parameters, pointers already in the device's view, naming
    /// live memory as large as the kernel touches.
    ///
    /// # Errors
    /// [`MemoryError::IllegalAddress`]: a piece touched an address of the view where no
    /// allocation is. What it had done so far stays done.
    pub unsafe fn run_kernel(
        &self,
        kernel: &Kernel,
        shape: &Shape,
        words: &[u64],
    ) -> Result<(), MemoryError> {
        // SAFETY: by the caller.
        unsafe { self.processors.run(kernel, shape, words) }
    }
}
