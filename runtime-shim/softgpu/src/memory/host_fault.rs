//! Service of the CPU's faults on managed memory.
//!
//! A few threads read the same descriptor: while one waits for a block that is being
//! migrated, others serve the rest. They never touch C or V themselves, or they would
//! wait for their own answer.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::density::{GRANULE_BYTES, Mask, grow};
use super::migrate::Out;
use super::uffd::die;
use super::{BLOCK_BYTES, Location, Memory, MemoryError};
use crate::probes;

/// Threads of the service.
const THREADS: usize = 3;

/// The threads that serve, until it is dropped.
pub struct HostService {
    stop: Arc<AtomicBool>,
    stop_fd: OwnedFd,
    threads: Vec<JoinHandle<()>>,
}

impl HostService {
    /// Starts them.
    pub fn start(memory: &Arc<Memory>) -> Result<Self, MemoryError> {
        // SAFETY: the call takes flags only.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            let source = io::Error::last_os_error();
            return Err(MemoryError::System {
                call: "eventfd",
                source,
            });
        }
        // Made before its threads, so that it stops them if one cannot be started.
        let mut service = Self {
            stop: Arc::new(AtomicBool::new(false)),
            // SAFETY: a fresh descriptor that nothing else owns.
            stop_fd: unsafe { OwnedFd::from_raw_fd(fd) },
            threads: Vec::new(),
        };
        for index in 0..THREADS {
            let (memory, stop) = (Arc::clone(memory), Arc::clone(&service.stop));
            let thread = std::thread::Builder::new()
                .name(format!("softgpu-host{index}"))
                .spawn(move || serve(&memory, &stop, fd))
                .map_err(|source| MemoryError::System {
                    call: "thread",
                    source,
                })?;
            service.threads.push(thread);
        }
        Ok(service)
    }
}

impl Drop for HostService {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let one = 1u64;
        // SAFETY: eight bytes are written from a live word.
        unsafe { libc::write(self.stop_fd.as_raw_fd(), (&raw const one).cast(), 8) };
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Serves until told to stop, which wakes the poll through `stop_fd`.
fn serve(memory: &Memory, stop: &AtomicBool, stop_fd: libc::c_int) {
    let uffd = memory.areas.cpu_faults();
    let mut addresses = Vec::with_capacity(16);
    while !stop.load(Ordering::Acquire) {
        let poll = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut fds = [poll(uffd.raw()), poll(stop_fd)];
        // SAFETY: two descriptors, as told.
        unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) };
        while uffd.read_faults(&mut addresses) > 0 {
            for address in &addresses {
                memory.serve_host_fault(*address);
            }
        }
    }
}

impl Memory {
    /// One access of the CPU to a page that it does not see: the page comes back, with
    /// what the density prefetcher adds, as for a GPU's fault (uvm_perf_prefetch.c:447 in
    /// 570; a CPU fault takes the same way, `uvm_va_block_cpu_fault`).
    fn serve_host_fault(&self, address: u64) {
        let uffd = self.areas.cpu_faults();
        let page = address & !4095;
        if !self.areas.managed().contains(&address) {
            die(
                "the service faulted on its own frame",
                address,
                0,
                &"a page is in no area",
            );
        }
        let block = ((address - self.areas.managed().start) / BLOCK_BYTES) as u32;
        let faulted: Mask = 1 << ((address % BLOCK_BYTES) / GRANULE_BYTES);
        let mut state = self.blocks.lock(block);
        if state.valid & faulted == 0 {
            drop(state);
            // A wild access: the program gets a SIGBUS, as it would without a device.
            self.note_poisoned(block);
            uffd.poison(page, 4096);
            return;
        }
        if state.mapped & faulted != 0 {
            // Another fault of the same pages was served first, or a kernel was lent them.
            self.take_back(block, &mut state, faulted);
            drop(state);
            uffd.wake(page, 4096);
            return;
        }
        self.counters.host_faults.add(1);
        probes::oversub_softgpu_fault(page, 1, 1, 0);
        let want = match state.preferred {
            Some(Location::Host) if state.device | state.host == 0 => state.valid,
            Some(Location::Device) => faulted,
            // Content that waits on the host only has to be mapped: all of it at once.
            _ if state.host & faulted != 0 => state.host & !state.mapped,
            _ => grow(state.valid, state.mapped | state.host, faulted),
        };
        let mut transfer = self.link_out.begin();
        self.bring_to_cpu(block, &mut state, want, Out::HostFault, &mut transfer);
        self.settle_if_left(&state);
    }
}
