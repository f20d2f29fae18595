//! Streams: queues of operations that are done in order, side by side with other streams.
//!
//! A stream is in the hands of at most one thread at a time, its *owner*: the thread that
//! makes it go on. Whoever puts an operation into an idle stream becomes its owner; the
//! owner does light operations at once ([`Stream::go_on`]) and hands the stream to the
//! unit that its next operation needs, or parks it at another stream. So an engine that
//! ends an operation does the value writes and records behind it without a hand-off.
//!
//! The units are in [`engine`], the operations in [`op`], events in [`event`].

pub mod engine;
pub mod event;
pub mod op;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::context::Context;
use crate::stream::engine::Engines;
use crate::stream::op::{Op, Unit};

/// Operations a stream holds before the caller waits, as drivers do.
pub const DEPTH: usize = 1024;

struct Queue {
    /// Not yet begun, the next in front.
    ops: VecDeque<Op>,
    /// Some thread, unit or other stream has it.
    owned: bool,
    /// Streams parked until this one has done an operation.
    parked: Vec<(u64, &'static Stream)>,
}

/// One stream.
pub struct Stream {
    index: u32,
    context: &'static Context,
    flags: AtomicU32,
    /// Behind which operation of the context's legacy stream this one already is.
    behind_legacy: AtomicU64,
    queue: Mutex<Queue>,
    /// Signals progress to threads that wait, of which there are `waiting`.
    progress: Condvar,
    waiting: AtomicU32,
    enqueued: AtomicU64,
    completed: AtomicU64,
    closed: AtomicBool,
}

impl Stream {
    /// An idle stream of a context.
    pub fn new(index: u32, context: &'static Context, flags: u32) -> Stream {
        Stream {
            index,
            context,
            flags: AtomicU32::new(flags),
            behind_legacy: AtomicU64::new(0),
            queue: Mutex::new(Queue {
                ops: VecDeque::with_capacity(DEPTH),
                owned: false,
                parked: Vec::new(),
            }),
            progress: Condvar::new(),
            waiting: AtomicU32::new(0),
            enqueued: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        }
    }

    /// Its place in the table of streams.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its context.
    pub fn context(&self) -> &'static Context {
        self.context
    }

    /// `CUstream_flags`.
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Begins a new life with other flags. Only for a stream that is closed and idle.
    pub fn renew(&self, flags: u32) {
        self.flags.store(flags, Ordering::Relaxed);
        self.closed.store(false, Ordering::Release);
    }

    /// Ends its life; what is enqueued is still done.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Ended, with nothing left to do.
    pub fn is_free(&self) -> bool {
        self.closed.load(Ordering::Acquire) && self.completed() >= self.enqueued()
    }

    /// Number of the last operation that was enqueued.
    pub fn enqueued(&self) -> u64 {
        self.enqueued.load(Ordering::Acquire)
    }

    /// Number of the last operation that is done.
    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    /// All that it was given is done.
    pub fn is_idle(&self) -> bool {
        self.completed() >= self.enqueued()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues an operation, behind what the default stream rules put before it, and
    /// returns its number. Waits while the queue is full.
    #[inline]
    pub fn push(&'static self, op: Op) -> u64 {
        let legacy = self.context.legacy();
        if std::ptr::eq(self, legacy) {
            self.wait_for_blocking_streams();
        } else if self.flags() & crate::abi::STREAM_NON_BLOCKING == 0 {
            let last = legacy.enqueued();
            if last > self.behind_legacy.load(Ordering::Relaxed) {
                self.behind_legacy.store(last, Ordering::Relaxed);
                if last > legacy.completed() {
                    self.append(Op::Wait {
                        stream: legacy,
                        sequence: last,
                    });
                }
            }
        }
        self.append(op)
    }

    /// The legacy stream's operations come behind all that the blocking streams have.
    #[cold]
    fn wait_for_blocking_streams(&'static self) {
        for stream in self.context.blocking_streams() {
            let sequence = stream.enqueued();
            if sequence > stream.completed() {
                self.append(Op::Wait { stream, sequence });
            }
        }
    }

    /// Enqueues an operation as it is.
    fn append(&'static self, op: Op) -> u64 {
        let mut queue = self.lock();
        while queue.ops.len() >= DEPTH {
            queue = self.sleep(queue);
        }
        queue.ops.push_back(op);
        // Only written under the lock.
        let sequence = self.enqueued.load(Ordering::Relaxed) + 1;
        self.enqueued.store(sequence, Ordering::Release);
        if !queue.owned {
            queue.owned = true;
            drop(queue);
            self.go_on();
        }
        sequence
    }

    fn sleep<'a>(&self, queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let queue = self
            .progress
            .wait(queue)
            .unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        queue
    }

    /// Blocks until an operation is done.
    pub fn wait_for(&self, sequence: u64) {
        if self.completed() >= sequence {
            return;
        }
        let mut queue = self.lock();
        while self.completed() < sequence {
            queue = self.sleep(queue);
        }
    }

    /// Blocks until all that is enqueued now is done.
    pub fn synchronize(&self) {
        self.wait_for(self.enqueued());
    }

    /// Takes the operation in front. Only for the owner.
    fn take(&self) -> Option<Op> {
        self.lock().ops.pop_front()
    }

    /// Counts the operation that was taken last as done. Only for the owner.
    fn complete(&self) {
        let mut released = Released::default();
        self.count_completed(&mut self.lock(), &mut released);
        released.go_on();
    }

    fn count_completed(&self, queue: &mut Queue, released: &mut Released) {
        // Only written by the owner, under the lock.
        let completed = self.completed.load(Ordering::Relaxed) + 1;
        self.completed.store(completed, Ordering::Release);
        if !queue.parked.is_empty() {
            queue.parked.retain(|(sequence, stream)| {
                let stays = *sequence > completed;
                if !stays {
                    released.0.push(stream);
                }
                stays
            });
        }
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.progress.notify_all();
        }
    }

    /// Parks a stream here until an operation is done. False: it is done already.
    fn park(&self, sequence: u64, stream: &'static Stream) -> bool {
        let mut queue = self.lock();
        let pending = self.completed() < sequence;
        if pending {
            queue.parked.push((sequence, stream));
        }
        pending
    }

    /// Does what is light and gives the stream to whom it needs next. Only for the owner,
    /// who is it no longer afterwards.
    fn go_on(&'static self) {
        let mut released = Released::default();
        self.advance(&mut released);
        released.go_on();
    }

    fn advance(&'static self, released: &mut Released) {
        let engines = Engines::get();
        let mut queue = self.lock();
        loop {
            let next = match queue.ops.front() {
                None => {
                    queue.owned = false;
                    return;
                }
                Some(op) => engines.next_step(op, self.context),
            };
            match next {
                Step::Done => {
                    queue.ops.pop_front();
                    self.count_completed(&mut queue, released);
                }
                Step::Wait { stream, sequence } => {
                    // Not under the own lock, for no thread ever holds two streams'.
                    drop(queue);
                    if stream.park(sequence, self) {
                        return;
                    }
                    queue = self.lock();
                    queue.ops.pop_front();
                    self.count_completed(&mut queue, released);
                }
                Step::Unit(unit) => {
                    drop(queue);
                    engines.submit(unit, self);
                    return;
                }
                Step::Poll => {
                    drop(queue);
                    engines.watch(self);
                    return;
                }
            }
        }
    }
}

/// What becomes of the operation in front.
enum Step {
    /// It was light, and is done.
    Done,
    /// It waits for another stream.
    Wait {
        stream: &'static Stream,
        sequence: u64,
    },
    /// A unit does it.
    Unit(Unit),
    /// Its word is looked at from time to time.
    Poll,
}

/// Streams that were parked and may go on.
#[derive(Default)]
struct Released(Vec<&'static Stream>);

impl Released {
    /// Makes them go on, and those that they release in turn.
    fn go_on(mut self) {
        while let Some(stream) = self.0.pop() {
            stream.advance_released(&mut self);
        }
    }
}

impl Stream {
    /// As [`Stream::advance`], for a stream whose wait in front has ended.
    fn advance_released(&'static self, released: &mut Released) {
        {
            let mut queue = self.lock();
            queue.ops.pop_front();
            self.count_completed(&mut queue, released);
        }
        self.advance(released);
    }
}
