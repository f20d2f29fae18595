//! The driver's own account of faults and migrations, from its tools event queue, in the
//! device's counters.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use oversub_uvm::session::Session;
use oversub_uvm::tools::{Cause, Event, Queue};

use super::super::{MemoryError, lock};
use crate::counters::Counters;

const QUEUE_ENTRIES: u32 = 1 << 16;
/// How often the queue is emptied: at the fastest seen, it fills in many times that.
const PERIOD: Duration = Duration::from_millis(10);
/// The CPU's index in the queue's events.
const CPU_INDEX: u8 = 0;

/// The queue and who empties it.
pub struct Events {
    queue: Arc<Mutex<Queue>>,
    counters: &'static Counters,
}

impl Events {
    /// Attaches a queue and starts its thread, which lives as long as the process.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn start(session: &Session, counters: &'static Counters) -> Result<Self, MemoryError> {
        let queue = Queue::attach(session.file(), QUEUE_ENTRIES)?;
        let queue = Arc::new(Mutex::new(queue));
        let for_thread = Arc::clone(&queue);
        std::thread::Builder::new()
            .name("softgpu-events".to_owned())
            .spawn(move || {
                loop {
                    std::thread::sleep(PERIOD);
                    lock(&for_thread).drain(|event| count(counters, event));
                }
            })
            .map_err(|source| MemoryError::System {
                call: "thread",
                source,
            })?;
        Ok(Self { queue, counters })
    }

    /// Counts everything that happened before the call.
    pub fn settle(&self, session: &Session) {
        let mut queue = lock(&self.queue);
        if let Err(error) = queue.flush(session.file()) {
            eprintln!("soft GPU: events of the last copies are not counted: {error}");
        }
        queue.drain(|event| count(self.counters, event));
        if queue.dropped() > 0 {
            eprintln!(
                "soft GPU: {} events were dropped and not counted",
                queue.dropped()
            );
        }
    }
}

fn count(counters: &Counters, event: Event) {
    match event {
        Event::GpuFault { .. } => counters.faults.add(1),
        Event::Replay { .. } => counters.batches.add(1),
        Event::Migration {
            bytes,
            cause,
            target,
            ..
        } => {
            let counter = match (cause, target == CPU_INDEX) {
                (Cause::Call, false) => &counters.bytes_in_call,
                (Cause::Prefetch, false) => &counters.bytes_in_density,
                (_, false) => &counters.bytes_in_fault,
                (Cause::Call, true) => &counters.bytes_out_call,
                (Cause::Eviction, true) => &counters.bytes_out_eviction,
                (_, true) => &counters.bytes_out_host_fault,
            };
            counter.add(bytes);
        }
        _ => {}
    }
}
