//! The address space of the device: who sees which page where.
//!
//! | area | meaning | faults |
//! | --- | --- | --- |
//! | C | the CPU's view, the pointers that the program has | wait for the host service |
//! | V | the kernels' view, V = C + delta | SIGBUS in the kernel's thread |
//! | H | a block's host frame, while no view maps it | never touched when missing |
//! | P | the device's frames, while V does not map them | never touched when missing |
//!
//! A page is in exactly one of them, and moves by `UFFDIO_MOVE`, which unmaps and maps
//! atomically. No program thread has an address in H or P, so content is copied only
//! between pages that no view maps: no write can be lost. This module owns the mappings
//! and the moves; which page is where is `block`'s.

use std::io;
use std::ops::Range;
use std::sync::Mutex;

use super::uffd::{Faults, Uffd, die};
use super::{BLOCK_BYTES, MemoryError, lock};

const MADV_POPULATE_WRITE: libc::c_int = 23;

/// Address space of one mapping; unmapped on drop.
struct Reserved {
    map: u64,
    map_bytes: u64,
    /// 2 MiB aligned start.
    base: u64,
    bytes: u64,
}

impl Reserved {
    fn new(bytes: u64) -> Result<Self, MemoryError> {
        let map_bytes = bytes + BLOCK_BYTES;
        // SAFETY: a new anonymous mapping where the kernel likes.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                map_bytes as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(MemoryError::System {
                call: "mmap",
                source: io::Error::last_os_error(),
            });
        }
        let map = map as u64;
        let area = Self {
            map,
            map_bytes,
            base: map.next_multiple_of(BLOCK_BYTES),
            bytes,
        };
        // A forked child has no service, so it must not have the memory either: it would
        // read zeros, and its references would make pages unmovable here.
        area.advise(libc::MADV_DONTFORK)?;
        // Without huge pages everything works, only slower.
        let _ = area.advise(libc::MADV_HUGEPAGE);
        Ok(area)
    }

    fn advise(&self, advice: libc::c_int) -> Result<(), MemoryError> {
        // SAFETY: the range is this mapping's own; these advices do not change content.
        let rc = unsafe { libc::madvise(self.base as *mut _, self.bytes as usize, advice) };
        if rc == 0 {
            return Ok(());
        }
        Err(MemoryError::System {
            call: "madvise",
            source: io::Error::last_os_error(),
        })
    }

    fn range(&self) -> Range<u64> {
        self.base..self.base + self.bytes
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and the device that goes away had its only users.
        unsafe { libc::munmap(self.map as *mut _, self.map_bytes as usize) };
    }
}

/// Where new huge frames come to life: not registered, so touching it is no fault of ours.
struct Nursery {
    /// Room for one.
    cradle: Reserved,
    /// Frames made beforehand.
    warm: Option<Reserved>,
    /// Bytes of them that were taken.
    taken: u64,
}

impl Nursery {
    fn new(warm_bytes: u64) -> Result<Self, MemoryError> {
        let warm = match warm_bytes {
            0 => None,
            bytes => Some(Reserved::new(bytes)?),
        };
        if let Some(warm) = &warm {
            warm.advise(MADV_POPULATE_WRITE)?;
        }
        Ok(Self {
            cradle: Reserved::new(BLOCK_BYTES)?,
            warm,
            taken: 0,
        })
    }

    /// A zeroed frame, to be moved to `at`.
    fn frame(&mut self, at: u64) -> u64 {
        if let Some(warm) = self.warm.as_ref().filter(|warm| self.taken < warm.bytes) {
            self.taken += BLOCK_BYTES;
            return warm.base + self.taken - BLOCK_BYTES;
        }
        if let Err(error) = self.cradle.advise(MADV_POPULATE_WRITE) {
            die("no memory for a frame", at, BLOCK_BYTES, &error);
        }
        self.cradle.base
    }
}

/// The four areas.
pub struct Areas {
    cpu: Reserved,
    view: Reserved,
    host: Reserved,
    pool: Reserved,
    nursery: Mutex<Nursery>,
    managed_bytes: u64,
    cpu_faults: Uffd,
    view_faults: Uffd,
}

impl Areas {
    /// Reserves address space for `managed_bytes` of managed memory, `device_bytes` of
    /// device memory and a pool of `pool_bytes`. Nothing is populated, but `warm_bytes` are
    /// set aside for the first frames.
    pub fn new(
        managed_bytes: u64,
        device_bytes: u64,
        pool_bytes: u64,
        warm_bytes: u64,
    ) -> Result<Self, MemoryError> {
        let cpu_faults = Uffd::open(Faults::Block)?;
        let view_faults = Uffd::open(Faults::Signal)?;
        let cpu = Reserved::new(managed_bytes + device_bytes)?;
        let view = Reserved::new(managed_bytes + device_bytes)?;
        let host = Reserved::new(managed_bytes)?;
        let pool = Reserved::new(pool_bytes)?;
        let nursery = Nursery::new(warm_bytes)?;
        // Device memory is not the CPU's to touch: its part of C stays without access.
        // SAFETY: a part of our own mapping that holds nothing.
        let rc = unsafe {
            libc::mprotect(
                (cpu.base + managed_bytes) as *mut _,
                device_bytes as usize,
                libc::PROT_NONE,
            )
        };
        if rc != 0 {
            return Err(MemoryError::System {
                call: "mprotect",
                source: io::Error::last_os_error(),
            });
        }
        cpu_faults.register(cpu.base, managed_bytes)?;
        cpu_faults.register(host.base, managed_bytes)?;
        cpu_faults.register(pool.base, pool_bytes)?;
        view_faults.register(view.base, view.bytes)?;
        Ok(Self {
            cpu,
            view,
            host,
            pool,
            nursery: Mutex::new(nursery),
            managed_bytes,
            cpu_faults,
            view_faults,
        })
    }

    /// The descriptor on which CPU accesses wait.
    pub fn cpu_faults(&self) -> &Uffd {
        &self.cpu_faults
    }

    /// Program addresses of managed memory.
    pub fn managed(&self) -> Range<u64> {
        self.cpu.base..self.cpu.base + self.managed_bytes
    }

    /// Program addresses of device memory.
    pub fn device(&self) -> Range<u64> {
        self.managed().end..self.cpu.range().end
    }

    /// All addresses of the kernels' view.
    pub fn view(&self) -> Range<u64> {
        self.view.range()
    }

    /// Where kernels see a program address.
    pub fn to_view(&self, address: u64) -> u64 {
        address - self.cpu.base + self.view.base
    }

    /// The program address that kernels see at `view`.
    pub fn program_address(&self, view: u64) -> u64 {
        view - self.view.base + self.cpu.base
    }

    /// Where the host frame of a managed address is parked.
    pub fn to_host(&self, address: u64) -> u64 {
        address - self.cpu.base + self.host.base
    }

    /// Start of a device frame.
    pub fn frame(&self, chunk: u32) -> u64 {
        self.pool.base + u64::from(chunk) * BLOCK_BYTES
    }

    /// Makes a new zeroed frame of the device.
    pub fn create_frame(&self, chunk: u32) {
        self.create(self.frame(chunk));
    }

    /// Makes a new zeroed host frame for the block at `address`.
    pub fn create_host(&self, address: u64) {
        self.create(self.to_host(address));
    }

    fn create(&self, at: u64) {
        let mut nursery = lock(&self.nursery);
        let frame = nursery.frame(at);
        self.cpu_faults.move_pages(at, frame, BLOCK_BYTES, false);
    }

    /// H to C: the CPU sees it, and who waits for it goes on.
    pub fn map_cpu(&self, address: u64, bytes: u64) {
        self.cpu_faults
            .move_pages(address, self.to_host(address), bytes, true);
    }

    /// C to H: CPU accesses wait from here on.
    pub fn unmap_cpu(&self, address: u64, bytes: u64) {
        self.cpu_faults
            .move_pages(self.to_host(address), address, bytes, false);
    }

    /// P to V: kernels see it.
    pub fn map_view(&self, address: u64, frame: u64, bytes: u64) {
        self.view_faults
            .move_pages(self.to_view(address), frame, bytes, false);
    }

    /// V to P: kernels fault from here on.
    pub fn unmap_view(&self, address: u64, frame: u64, bytes: u64) {
        self.cpu_faults
            .move_pages(frame, self.to_view(address), bytes, false);
    }

    /// C or H, where `from` is, to V: kernels see the host's page.
    pub fn lend(&self, address: u64, from: u64, bytes: u64) {
        self.view_faults
            .move_pages(self.to_view(address), from, bytes, false);
    }

    /// V to C or H: kernels fault from here on; who waits for it in C goes on.
    pub fn take_back(&self, address: u64, to: u64, bytes: u64) {
        self.cpu_faults
            .move_pages(to, self.to_view(address), bytes, true);
    }

    /// Gives the host memory of a managed range back, wherever it is mapped.
    pub fn drop_host(&self, address: u64, bytes: u64) {
        for start in [address, self.to_host(address)] {
            // SAFETY: a part of our own areas; its allocation is being freed.
            unsafe { libc::madvise(start as *mut _, bytes as usize, libc::MADV_DONTNEED) };
        }
    }
}
