//! The processors that run kernels.
//!
//! A launch runs on the thread that asks for it and on helper threads, each with its own
//! fibres. A thread whose fibres have all faulted either waits, or serves the batch itself
//! when no other does: with every fibre suspended it has nothing else to do, and no
//! hand-over is paid. It owns threads and launches; what a fault does is `memory`'s.

mod fibre;
mod job;
mod signal;
mod turn;

use std::cell::Cell;
use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use self::fibre::{Fibre, Left, Stage};
use self::job::Job;
use self::turn::{Turn, Woken};
use crate::config;
use crate::kernels::{Kernel, Shape};
use crate::memory::backend::Backend;
use crate::memory::link::{now_ns, sleep_until_ns};
use crate::memory::{GpuFault, MemoryError, lock};

/// Most threads that run kernels.
const MOST_THREADS: usize = 4;
/// Most fibres of a thread: together the faults that a launch can have in flight.
const MOST_FIBRES: usize = 32;
/// How long a helper looks for the next launch before it sleeps.
const SPIN_NS: f64 = 20_000.0;

/// The threads that run kernels.
pub struct Processors {
    shared: Arc<Shared>,
    /// The launching thread's own fibres. Its lock makes launches one at a time.
    lead: Mutex<Processor>,
    helpers: Vec<JoinHandle<()>>,
}

struct Shared {
    memory: Arc<dyn Backend>,
    turn: Turn,
    /// The running launch, which helpers may join.
    launch: Mutex<Launch>,
    launched: Condvar,
    /// Counts launches that helpers should look at.
    generation: AtomicU64,
    /// Most CPU time that a thread spent on the running launch, where that matters.
    busiest_cpu_ns: AtomicU64,
    stop: AtomicBool,
}

#[derive(Default)]
struct Launch {
    job: Option<Arc<Job>>,
    generation: u64,
}

impl Processors {
    /// Starts the helper threads.
    pub(crate) fn new(memory: Arc<dyn Backend>) -> Result<Self, MemoryError> {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        // Where nvidia-uvm serves faults and the guest's kernel copies, they need a core too.
        let cores = match memory.config().backend {
            config::Backend::Own => cores,
            config::Backend::Uvm => cores / 2,
        };
        let threads = cores.clamp(1, MOST_THREADS);
        let frames = (memory.config().memory_bytes / crate::memory::BLOCK_BYTES) as usize;
        // With few frames, few fibres: each must find its pages again when it comes on.
        let fibres = (frames / 4 / threads).clamp(1, MOST_FIBRES);
        let shared = Arc::new(Shared {
            turn: Turn::new(threads),
            memory,
            launch: Mutex::default(),
            launched: Condvar::new(),
            generation: AtomicU64::new(0),
            busiest_cpu_ns: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let lead = Mutex::new(Processor::new(0, fibres)?);
        let mut processors = Self {
            shared,
            lead,
            helpers: Vec::new(),
        };
        for index in 1..threads {
            let shared = Arc::clone(&processors.shared);
            let mut processor = Processor::new(index as u32, fibres)?;
            let thread = std::thread::Builder::new()
                .name(format!("softgpu-sm{index}"))
                .spawn(move || shared.help(&mut processor))
                .map_err(|source| MemoryError::System {
                    call: "thread",
                    source,
                })?;
            processors.helpers.push(thread);
        }
        Ok(processors)
    }

    /// See [`crate::memory::Device::run_kernel`].
    ///
    /// # Safety
    /// `words` are the kernel's parameters, pointers in the device's view.
    pub unsafe fn run(
        &self,
        kernel: &Kernel,
        shape: &Shape,
        words: &[u64],
    ) -> Result<(), MemoryError> {
        signal::install()?;
        let shared = &*self.shared;
        let counters = shared.memory.counters();
        let mut lead = lock(&self.lead);
        let began = now_ns();
        shared.busiest_cpu_ns.store(0, Ordering::Relaxed);
        let stalled_before = counters.stall_ns.get();
        let job = Arc::new(Job::new(kernel, shape, words));
        let shareable = job.pieces() > 1 && !self.helpers.is_empty();
        shared.turn.join();
        if shareable {
            shared.publish(&job);
        }
        lead.run(&job, shared);
        if shareable {
            shared.withdraw();
        }
        shared.turn.wait_alone();
        shared.memory.end_kernel();
        let stalled = (counters.stall_ns.get() - stalled_before) as f64;
        let scale = shared.memory.config().compute_scale;
        let computed = shared.busiest_cpu_ns.load(Ordering::Relaxed) as f64;
        let due = began + stalled + computed * scale;
        if scale > 1.0 && due > now_ns() {
            sleep_until_ns(due);
        }
        counters
            .compute_ns
            .add((now_ns() - began - stalled).max(0.0) as u64);
        counters.kernels.add(1);
        match job.illegal_address() {
            None => Ok(()),
            Some(address) => Err(MemoryError::IllegalAddress {
                kernel: kernel.name,
                address,
            }),
        }
    }
}

impl Drop for Processors {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        drop(lock(&self.shared.launch));
        self.shared.launched.notify_all();
        for helper in self.helpers.drain(..) {
            let _ = helper.join();
        }
    }
}

impl Shared {
    fn publish(&self, job: &Arc<Job>) {
        let mut launch = lock(&self.launch);
        launch.generation += 1;
        launch.job = Some(Arc::clone(job));
        self.generation.store(launch.generation, Ordering::Release);
        drop(launch);
        self.launched.notify_all();
    }

    /// From here on no helper joins.
    fn withdraw(&self) {
        lock(&self.launch).job = None;
    }

    /// A helper's life.
    fn help(&self, processor: &mut Processor) {
        let mut seen = 0;
        while let Some((generation, job)) = self.next_job(seen) {
            seen = generation;
            let Some(job) = job else { continue };
            processor.run(&job, self);
        }
    }

    /// Waits for a launch after `seen` and joins it if it still runs. `None`: stop.
    fn next_job(&self, seen: u64) -> Option<(u64, Option<Arc<Job>>)> {
        let give_up = now_ns() + SPIN_NS;
        while self.generation.load(Ordering::Acquire) == seen && now_ns() < give_up {
            std::hint::spin_loop();
        }
        let mut launch = lock(&self.launch);
        while launch.generation == seen {
            if self.stop.load(Ordering::Acquire) {
                return None;
            }
            launch = self
                .launched
                .wait(launch)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        let job = launch.job.clone().filter(|job| job.has_pieces());
        if job.is_some() {
            // Under the launch's lock: the lead cannot miss that somebody joined.
            self.turn.join();
        }
        Some((launch.generation, job))
    }
}

thread_local! {
    /// What this thread's fibres work on.
    static JOB: Cell<*const Job> = const { Cell::new(ptr::null()) };
}

/// One thread's fibres.
struct Processor {
    index: u32,
    fibres: Vec<Fibre>,
    idle: Vec<u32>,
}

impl Processor {
    fn new(index: u32, fibres: usize) -> Result<Self, MemoryError> {
        let idle = (0..fibres as u32).rev().collect();
        let fibres = (0..fibres)
            .map(|_| Fibre::new())
            .collect::<Result<_, _>>()?;
        Ok(Self {
            index,
            fibres,
            idle,
        })
    }

    /// Runs pieces until none is left and none of this thread's is suspended. The thread
    /// has joined the turn; it leaves it here.
    fn run(&mut self, job: &Arc<Job>, shared: &Shared) {
        let memory = &*shared.memory;
        let mut stage = Stage::new(memory.view(), work_on_job);
        let mut clock = memory.config().compute_scale.gt(&1.0).then(CpuClock::start);
        JOB.set(Arc::as_ptr(job));
        stage.enter();
        let mut ready: VecDeque<u32> = VecDeque::with_capacity(self.fibres.len());
        let mut faults: Vec<GpuFault> = Vec::with_capacity(self.fibres.len());
        let mut suspended = 0;
        loop {
            let fresh = || job.has_pieces().then_some(());
            let next = ready.pop_front().map(|fibre| (fibre, true));
            let next = next.or_else(|| fresh().and_then(|()| self.idle.pop()).map(|f| (f, false)));
            if let Some((fibre, resumed)) = next {
                suspended -= usize::from(resumed);
                match stage.resume(&mut self.fibres[fibre as usize]) {
                    Left::Idle => self.idle.push(fibre),
                    Left::Faulted(view) => {
                        let address = memory.program_address(view);
                        faults.push(GpuFault {
                            address,
                            waiter: (self.index, fibre),
                        });
                        suspended += 1;
                    }
                }
            } else if suspended > 0 {
                clock.as_mut().map(CpuClock::pause);
                let woken = shared.turn.wait(self.index, &mut faults, memory);
                clock.as_mut().map(CpuClock::go_on);
                for woken in woken {
                    match woken {
                        Woken::Ready(fibre) => ready.push_back(fibre),
                        Woken::Illegal(fibre, address) => {
                            job.condemn(address);
                            self.fibres[fibre as usize].reset();
                            self.idle.push(fibre);
                            suspended -= 1;
                        }
                    }
                }
            } else {
                break;
            }
        }
        Stage::leave();
        JOB.set(ptr::null());
        if let Some(mut clock) = clock {
            clock.pause();
            shared
                .busiest_cpu_ns
                .fetch_max(clock.spent_ns, Ordering::Relaxed);
        }
        shared.turn.leave();
    }
}

/// What a fibre does: pieces of its thread's launch.
fn work_on_job() {
    // SAFETY: `JOB` is set for as long as fibres run, to a launch for whose words the
    // caller of `Processors::run` vouches.
    unsafe { (*JOB.get()).work() }
}

/// CPU time of the calling thread, without its pauses.
struct CpuClock {
    since_ns: u64,
    spent_ns: u64,
}

impl CpuClock {
    fn start() -> Self {
        Self {
            since_ns: Self::now_ns(),
            spent_ns: 0,
        }
    }

    fn pause(&mut self) {
        self.spent_ns += Self::now_ns() - self.since_ns;
    }

    fn go_on(&mut self) {
        self.since_ns = Self::now_ns();
    }

    fn now_ns() -> u64 {
        let mut t = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `t` is valid for the write.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
        t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
    }
}
