//! Whose turn it is: threads that run fibres, threads that wait, and the one that serves.
//!
//! A batch is cut when every running thread is out of fibres, when it is full, or shortly
//! after the first thread ran out while another computes on. So faults gather as in the
//! hardware's buffer, and a fibre that was served gets to repeat its access before the
//! next batch can take the page away again.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::memory::backend::Backend;
use crate::memory::link::now_ns;
use crate::memory::{BATCH_LIMIT, GpuFault, Served, lock};

/// How long a batch waits for threads that still compute.
const GATHER: Duration = Duration::from_micros(100);

/// What became of a suspended fibre.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// It can go on.
    Ready(u32),
    /// It accessed this program address, where nothing is.
    Illegal(u32, u64),
}

/// The state of a launch's threads.
pub struct Turn {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Threads in the launch, and those of them that have nothing to run.
    running: usize,
    waiting: usize,
    serving: bool,
    pending: Vec<GpuFault>,
    woken: Vec<Vec<Woken>>,
    /// Since when all threads wait.
    stalled_since: Option<f64>,
}

impl Turn {
    /// For so many threads.
    pub fn new(threads: usize) -> Self {
        let state = State {
            woken: vec![Vec::new(); threads],
            ..State::default()
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// The calling thread takes part in the launch.
    pub fn join(&self) {
        lock(&self.state).running += 1;
    }

    /// The calling thread has nothing left to do in it.
    pub fn leave(&self) {
        let mut state = lock(&self.state);
        state.running -= 1;
        state.note_stall();
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until all threads have left.
    pub fn wait_alone(&self) {
        let mut state = lock(&self.state);
        while state.running > 0 {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Hands in the thread's faults and waits, or serves, until some of its fibres can go
    /// on.
    pub fn wait(&self, index: u32, faults: &mut Vec<GpuFault>, memory: &dyn Backend) -> Vec<Woken> {
        let mut state = lock(&self.state);
        state.pending.append(faults);
        state.waiting += 1;
        state.note_stall();
        let gather_until = Instant::now() + GATHER;
        loop {
            if !state.woken[index as usize].is_empty() {
                break;
            }
            if state.serving || state.pending.is_empty() {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let complete = state.waiting == state.running || state.pending.len() >= BATCH_LIMIT;
            let left = gather_until.saturating_duration_since(Instant::now());
            if !complete && !left.is_zero() {
                let (guard, _) = self
                    .changed
                    .wait_timeout(state, left)
                    .unwrap_or_else(PoisonError::into_inner);
                state = guard;
                continue;
            }
            state.serving = true;
            let size = state.pending.len().min(BATCH_LIMIT);
            let mut batch: Vec<GpuFault> = state.pending.drain(..size).collect();
            drop(state);
            let mut served = Vec::with_capacity(batch.len());
            memory.serve_batch(&mut batch, &mut |fault, outcome| {
                served.push((fault, outcome))
            });
            state = lock(&self.state);
            state.serving = false;
            state.end_stall(memory);
            for (fault, outcome) in served {
                let (thread, fibre) = fault.waiter;
                match outcome {
                    Served::Yes => state.woken[thread as usize].push(Woken::Ready(fibre)),
                    Served::Illegal => {
                        state.woken[thread as usize].push(Woken::Illegal(fibre, fault.address));
                    }
                    Served::Later => state.pending.push(fault),
                }
            }
            // Otherwise nobody waits but this thread.
            if state.waiting > 1 {
                self.changed.notify_all();
            }
        }
        state.waiting -= 1;
        std::mem::take(&mut state.woken[index as usize])
    }
}

impl State {
    fn note_stall(&mut self) {
        if self.running > 0 && self.waiting == self.running && self.stalled_since.is_none() {
            self.stalled_since = Some(now_ns());
        }
    }

    fn end_stall(&mut self, memory: &dyn Backend) {
        if let Some(since) = self.stalled_since.take() {
            memory
                .counters()
                .stall_ns
                .add((now_ns() - since).max(0.0) as u64);
        }
    }
}
