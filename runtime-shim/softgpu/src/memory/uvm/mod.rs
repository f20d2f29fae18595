//! Memory that the real nvidia-uvm keeps, in a test guest: what libcuda does with the
//! driver, on top of the guest's software GPU.
//!
//! | area | what is mapped |
//! | --- | --- |
//! | C, managed part | `/dev/nvidia-uvm`, allocation by allocation: the driver serves the CPU's faults |
//! | C, device part | nothing: device memory is not the CPU's to touch |
//! | V = C + delta, managed part | `/dev/softgpu`: a walk of the page tables that the driver wrote |
//! | V, device part | this process's own memory |
//!
//! A kernel's access that the page tables do not allow is a packet in the device's fault
//! buffer and a SIGBUS here; the driver's replay lets it try again. Migration, eviction and
//! data are the driver's. Device memory (`cuMemAlloc`) would be RM's and is not taken from
//! the software GPU's; it only counts as used.

mod book;
mod events;

use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::time::Duration;

use oversub_uvm::session::Session;
use oversub_uvm::softgpu::{Settled, SoftGpu};
use oversub_uvm::{CPU, Uuid};

use self::book::Book;
use self::events::Events;
use super::backend::Backend;
use super::{
    Advice, Allocation, BLOCK_BYTES, Fill, GpuFault, Kind, Location, MemoryError, Place,
    RangeState, Served, WINDOW_BYTES, lock,
};
use crate::config::Config;
use crate::counters::Counters;

/// Address space for device memory.
const DEVICE_BYTES: u64 = 1 << 30;
/// What never holds a program's content: RM's first 2 MiB, and a chunk in which the driver
/// keeps page tables.
const DRIVERS_OWN: u64 = 2 * BLOCK_BYTES;
/// How long the driver may take for a batch of faults.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes that pass through the bounce buffer at once.
const BOUNCE_BYTES: u64 = 256 << 10;

/// The memory.
pub struct UvmMemory {
    config: Config,
    counters: &'static Counters,
    session: Session,
    device: SoftGpu,
    /// C and V: same length, same order of parts.
    program: Range<u64>,
    view_start: u64,
    book: Mutex<Book>,
    events: Events,
}

/// Maps `bytes` at a multiple of the block size.
fn reserve(bytes: u64, protection: libc::c_int) -> Result<u64, MemoryError> {
    let length = (bytes + BLOCK_BYTES) as usize;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping where the kernel likes.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(system("mmap"));
    }
    Ok((at as u64).next_multiple_of(BLOCK_BYTES))
}

fn system(call: &'static str) -> MemoryError {
    let source = io::Error::last_os_error();
    MemoryError::System { call, source }
}

impl UvmMemory {
    /// Registers the GPU and a channel with the driver, and lays out the address space.
    pub fn new(mut config: Config) -> Result<Self, MemoryError> {
        let device = SoftGpu::open()?;
        let info = device.info()?;
        config.memory_bytes = info.memory_bytes;
        let session = Session::open(info.uuid, std::process::id())?;
        device.bind(session.channel())?;
        let start = reserve(WINDOW_BYTES + DEVICE_BYTES, libc::PROT_NONE)?;
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let view_start = reserve(WINDOW_BYTES + DEVICE_BYTES, rw)?;
        // SAFETY: replaces a part of the reservation just made, which holds nothing. The
        // file's offset is the device's address.
        let mapped = unsafe {
            libc::mmap(
                view_start as *mut libc::c_void,
                WINDOW_BYTES as usize,
                rw,
                libc::MAP_SHARED | libc::MAP_FIXED,
                device.file().as_raw_fd(),
                start as libc::off_t,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(system("mmap of /dev/softgpu"));
        }
        // The counters live as long as the process: the thread of the events writes them.
        let counters: &'static Counters = Box::leak(Box::default());
        let events = Events::start(&session, counters)?;
        let managed = start..start + WINDOW_BYTES;
        let device_memory = managed.end..managed.end + DEVICE_BYTES;
        Ok(Self {
            config,
            counters,
            session,
            device,
            program: managed.start..device_memory.end,
            view_start,
            book: Mutex::new(Book::new(managed, device_memory)),
            events,
        })
    }

    fn to_view(&self, address: u64) -> u64 {
        address - self.program.start + self.view_start
    }

    fn require(&self, address: u64, bytes: u64, kind: Kind) -> Result<Allocation, MemoryError> {
        let wanted = match kind {
            Kind::Managed => "managed memory",
            Kind::Device => "device memory",
        };
        self.lookup(address)
            .filter(|found| found.kind == kind && bytes <= found.bytes - (address - found.base))
            .ok_or(MemoryError::InvalidRange {
                wanted,
                address,
                bytes,
            })
    }

    /// The whole pages of a managed range, as the driver's calls want them.
    fn pages(&self, address: u64, bytes: u64) -> Result<(u64, u64), MemoryError> {
        const PAGE: u64 = 4096;
        self.require(address, bytes, Kind::Managed)?;
        let start = address / PAGE * PAGE;
        Ok((start, (address + bytes).next_multiple_of(PAGE) - start))
    }

    fn uuid(&self, at: Location) -> Uuid {
        match at {
            Location::Host => CPU,
            Location::Device => self.session.gpu(),
        }
    }

    /// Reads from one end of a copy.
    ///
    /// # Safety
    /// A [`Place::Host`] must be valid for the buffer's length.
    unsafe fn read(&self, from: Place, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let pointer = match from {
            Place::Host(pointer) => pointer,
            Place::Device(at) => match self.lookup(at).map(|found| found.kind) {
                Some(Kind::Managed) => {
                    let read = self.device.file().read_exact_at(buffer, at);
                    let call = "read of /dev/softgpu";
                    return read.map_err(|source| MemoryError::System { call, source });
                }
                _ => self.to_view(at),
            },
        };
        // SAFETY: by the caller, or a part of live device memory.
        unsafe {
            std::ptr::copy_nonoverlapping(pointer as *const u8, buffer.as_mut_ptr(), buffer.len());
        }
        Ok(())
    }

    /// Writes to one end of a copy.
    ///
    /// # Safety
    /// A [`Place::Host`] must be valid for the buffer's length.
    unsafe fn write(&self, to: Place, buffer: &[u8]) -> Result<(), MemoryError> {
        let pointer = match to {
            Place::Host(pointer) => pointer,
            Place::Device(at) => match self.lookup(at).map(|found| found.kind) {
                Some(Kind::Managed) => {
                    let written = self.device.file().write_all_at(buffer, at);
                    let call = "write of /dev/softgpu";
                    return written.map_err(|source| MemoryError::System { call, source });
                }
                _ => self.to_view(at),
            },
        };
        // SAFETY: by the caller, or a part of live device memory.
        unsafe {
            std::ptr::copy_nonoverlapping(buffer.as_ptr(), pointer as *mut u8, buffer.len());
        }
        Ok(())
    }
}

fn plus(place: Place, bytes: u64) -> Place {
    match place {
        Place::Host(at) => Place::Host(at + bytes),
        Place::Device(at) => Place::Device(at + bytes),
    }
}

impl Backend for UvmMemory {
    fn config(&self) -> &Config {
        &self.config
    }

    fn counters(&self) -> &Counters {
        self.counters
    }

    fn alloc_managed(&self, bytes: u64) -> Result<u64, MemoryError> {
        let allocation = lock(&self.book).take(bytes, Kind::Managed)?;
        let span = bytes.next_multiple_of(BLOCK_BYTES);
        // SAFETY: the range was free in the book, so nothing of the program is there.
        if let Err(error) = unsafe { self.session.map_managed(allocation, span) } {
            lock(&self.book).give(allocation);
            return Err(error.into());
        }
        Ok(allocation)
    }

    fn alloc_device(&self, bytes: u64) -> Result<u64, MemoryError> {
        let (_, total) = self.memory_info();
        let mut book = lock(&self.book);
        let available = total.saturating_sub(book.device_bytes());
        if bytes > available {
            return Err(MemoryError::OutOfMemory {
                requested: bytes,
                available,
            });
        }
        book.take(bytes, Kind::Device)
    }

    fn free(&self, address: u64) -> Result<Allocation, MemoryError> {
        let found = lock(&self.book).start(address)?;
        let span = found.bytes.next_multiple_of(BLOCK_BYTES) as usize;
        if found.kind == Kind::Managed {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let (at, none) = (address as *mut libc::c_void, libc::PROT_NONE);
            // SAFETY: replaces the allocation's own mapping, with which the driver frees it.
            let gone = unsafe { libc::mmap(at, span, none, flags | libc::MAP_FIXED, -1, 0) };
            if gone == libc::MAP_FAILED {
                return Err(system("mmap"));
            }
        }
        lock(&self.book).give(address);
        Ok(found)
    }

    fn lookup(&self, address: u64) -> Option<Allocation> {
        lock(&self.book).find(address)
    }

    fn to_device_view(&self, address: u64) -> Option<u64> {
        let ours = self.program.contains(&address);
        ours.then(|| self.to_view(address))
    }

    fn memory_info(&self) -> (u64, u64) {
        // What nvidia-uvm holds for programs it gives back when RM needs it, so it counts as
        // free: on a GPU as small as the guests' the driver takes everything at once.
        let total = self.config.memory_bytes;
        let device = lock(&self.book).device_bytes();
        (total.saturating_sub(DRIVERS_OWN + device), total)
    }

    fn resident_bytes(&self) -> u64 {
        let held = self.device.info();
        held.map_or(0, |info| info.memory_bytes - info.free_bytes)
    }

    fn prefetch(&self, address: u64, bytes: u64, to: Location) -> Result<(), MemoryError> {
        let (start, length) = self.pages(address, bytes)?;
        self.session.migrate(start, length, self.uuid(to))?;
        lock(&self.book).note_prefetch(start, length, to);
        Ok(())
    }

    /// Only the driver knows; a call that has nothing to do costs little.
    fn needs_transfer(&self, _: u64, _: u64, _: Location) -> bool {
        true
    }

    fn needs_link(&self, _: u64, _: u64, _: Location) -> bool {
        true
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), MemoryError> {
        Err(MemoryError::NotSupported("discard, before driver 580,"))
    }

    fn advise(&self, address: u64, bytes: u64, advice: Advice) -> Result<(), MemoryError> {
        let (start, length) = self.pages(address, bytes)?;
        match advice {
            Advice::Preferred(at) => {
                let at = at.map(|at| self.uuid(at));
                self.session.prefer(start, length, at)?;
            }
            Advice::AccessedByDevice(yes) => self.session.access_by_gpu(start, length, yes)?,
            Advice::ReadMostly(yes) => self.session.duplicate_reads(start, length, yes)?,
        }
        lock(&self.book).note_advice(start, length, advice);
        Ok(())
    }

    fn range_state(&self, address: u64, bytes: u64) -> Result<RangeState, MemoryError> {
        let (start, length) = self.pages(address, bytes)?;
        Ok(lock(&self.book).state(start, length))
    }

    unsafe fn copy(&self, to: Place, from: Place, bytes: u64) -> Result<(), MemoryError> {
        let mut bounce = vec![0u8; BOUNCE_BYTES.min(bytes) as usize];
        let mut done = 0;
        while done < bytes {
            let part = &mut bounce[..BOUNCE_BYTES.min(bytes - done) as usize];
            // SAFETY: by the caller.
            unsafe { self.read(plus(from, done), part)? };
            // SAFETY: by the caller.
            unsafe { self.write(plus(to, done), part)? };
            done += part.len() as u64;
        }
        let counted = match (from, to) {
            (Place::Host(_), Place::Device(_)) => Some(&self.counters.copied_in_bytes),
            (Place::Device(_), Place::Host(_)) => Some(&self.counters.copied_out_bytes),
            _ => None,
        };
        counted.inspect(|counter| counter.add(bytes));
        self.counters.copies.add(1);
        Ok(())
    }

    fn memset(&self, address: u64, fill: Fill, count: u64) -> Result<(), MemoryError> {
        let (width, pattern) = match fill {
            Fill::Bytes(byte) => (1, u32::from_ne_bytes([byte; 4])),
            Fill::Halves(half) => (2, u32::from(half) << 16 | u32::from(half)),
            Fill::Words(word) => (4, word),
        };
        let invalid = MemoryError::InvalidRange {
            wanted: "aligned device or managed memory",
            address,
            bytes: count,
        };
        let fitting = count.checked_mul(width);
        let Some(bytes) = fitting.filter(|_| address.is_multiple_of(width)) else {
            return Err(invalid);
        };
        let kind = self.lookup(address).ok_or(invalid)?.kind;
        self.require(address, bytes, kind)?;
        let words = BOUNCE_BYTES.min(bytes.next_multiple_of(4)) / 4;
        let buffer = pattern.to_ne_bytes().repeat(words as usize);
        let mut done = 0;
        while done < bytes {
            let part = &buffer[..(bytes - done).min(buffer.len() as u64) as usize];
            // SAFETY: no host end.
            unsafe { self.write(Place::Device(address + done), part)? };
            done += part.len() as u64;
        }
        self.counters.copies.add(1);
        Ok(())
    }

    fn view(&self) -> Range<u64> {
        self.view_start..self.view_start + WINDOW_BYTES
    }

    fn program_address(&self, view: u64) -> u64 {
        view - self.view_start + self.program.start
    }

    /// The packets are in the driver's hands already; this waits for its replay, after
    /// which every access is tried again. What is no allocation it cancels.
    fn serve_batch(&self, faults: &mut [GpuFault], outcome: &mut dyn FnMut(GpuFault, Served)) {
        let settled = self.device.settle(PATIENCE);
        let lost = faults
            .iter()
            .any(|fault| self.lookup(fault.address).is_none());
        let broken = match settled {
            Ok(Settled::Replayed) => false,
            // Without an address that is nobody's, it was the driver that could not go on.
            Ok(Settled::Cancelled) => !lost,
            Ok(Settled::TimedOut) => {
                eprintln!("soft GPU: nvidia-uvm did not answer a fault in {PATIENCE:?}");
                true
            }
            Err(error) => {
                eprintln!("soft GPU: faults cannot be settled: {error}");
                true
            }
        };
        for fault in faults {
            let live = self.lookup(fault.address).is_some();
            let served = if broken || !live {
                Served::Illegal
            } else {
                Served::Yes
            };
            outcome(*fault, served);
        }
    }

    fn end_kernel(&self) {}

    fn settle_counters(&self) {
        self.events.settle(&self.session);
    }
}
