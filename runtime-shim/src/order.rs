//! The shim's own streams, and the order between them and the program's.
//!
//! Discards go into the local queue's stream and are numbered. Whoever gets memory back from
//! the pool with a discard's number waits for an event recorded behind the newest discard:
//! the stream runs in order, so that covers all earlier ones. A stream that is about to be
//! destroyed is covered in the same way: the local stream waits for it.

use core::sync::atomic::{AtomicU64, Ordering};

use oversub_protocol::command::queue;
use oversub_shim_core::abi::{EVENT_DISABLE_TIMING, Handle, STREAM_NON_BLOCKING};
use oversub_shim_core::lock::Lock;

use crate::driver;

#[derive(Debug)]
struct Own {
    context: Handle,
    streams: [Handle; queue::COUNT],
    /// Recorded behind the newest discard.
    newest: Handle,
    /// For the moment between recording and waiting.
    passing: Handle,
}

static OWN: Lock<Option<Own>> = Lock::new(None);
/// Number of the newest discard.
static NUMBER: AtomicU64 = AtomicU64::new(0);
/// Every discard up to this number has been executed.
static EXECUTED: AtomicU64 = AtomicU64::new(0);

/// The streams of `context`, which is current, by queue; made at the first call.
pub fn streams(context: Handle) -> Option<[Handle; queue::COUNT]> {
    let mut own = OWN.lock();
    ensure(&mut own, context).map(|own| own.streams)
}

fn ensure(own: &mut Option<Own>, context: Handle) -> Option<&Own> {
    if own.is_none() {
        *own = create(context);
    }
    own.as_ref().filter(|own| own.context == context)
}

fn create(context: Handle) -> Option<Own> {
    let (mut least, mut greatest) = (0, 0);
    // SAFETY: locals to write to.
    unsafe { driver::cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest) };
    // What a launch waits for comes first; what makes room may take its time.
    let priorities = [greatest, least, greatest];
    let mut streams = [0; queue::COUNT];
    for (stream, priority) in streams.iter_mut().zip(priorities) {
        // SAFETY: a place to write to; the context is current.
        let result =
            unsafe { driver::cuStreamCreateWithPriority(stream, STREAM_NON_BLOCKING, priority) };
        if !result.is_ok() {
            return None;
        }
    }
    let mut events = [0; 2];
    for event in &mut events {
        // SAFETY: a place to write to.
        if !unsafe { driver::cuEventCreate(event, EVENT_DISABLE_TIMING) }.is_ok() {
            return None;
        }
    }
    let [newest, passing] = events;
    Some(Own {
        context,
        streams,
        newest,
        passing,
    })
}

/// The context is gone, and the streams with it.
pub fn forget() {
    *OWN.lock() = None;
    EXECUTED.store(NUMBER.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Numbers what the local stream was just given. `None`: it cannot be waited for.
pub fn number_discard(context: Handle) -> Option<u64> {
    let mut own = OWN.lock();
    let own = ensure(&mut own, context)?;
    // SAFETY: our own event and stream.
    let result =
        unsafe { driver::cuEventRecord(own.newest, own.streams[usize::from(queue::LOCAL)]) };
    result
        .is_ok()
        .then(|| NUMBER.fetch_add(1, Ordering::Relaxed) + 1)
}

/// Every discard up to `number` has been executed.
pub fn note_executed(number: u64) {
    EXECUTED.fetch_max(number, Ordering::Relaxed);
}

/// Makes the local stream wait for everything that `stream` was given; the number to wait
/// for in its place.
pub fn follow(context: Handle, stream: Handle) -> Option<u64> {
    {
        let mut own = OWN.lock();
        let own = ensure(&mut own, context)?;
        let local = own.streams[usize::from(queue::LOCAL)];
        // SAFETY: our own event and stream, and a stream that the program holds.
        let ordered = unsafe {
            driver::cuEventRecord(own.passing, stream).is_ok()
                && driver::cuStreamWaitEvent(local, own.passing, 0).is_ok()
        };
        if !ordered {
            return None;
        }
    }
    number_discard(context)
}

/// Makes `stream` wait for `others` and for discard number `discard` (0: none). `false`: it
/// could not be arranged. The caller holds the pool, which keeps `others` from being
/// destroyed.
pub fn wait(context: Handle, stream: Handle, others: &[Handle], discard: u64) -> bool {
    let for_discard = discard > EXECUTED.load(Ordering::Relaxed);
    if others.is_empty() && !for_discard {
        return true;
    }
    let mut own = OWN.lock();
    let Some(own) = ensure(&mut own, context) else {
        return false;
    };
    let others_done = others.iter().all(|other| {
        // SAFETY: our own event; the pool forgets a stream before it is destroyed.
        unsafe {
            driver::cuEventRecord(own.passing, *other).is_ok()
                && driver::cuStreamWaitEvent(stream, own.passing, 0).is_ok()
        }
    });
    // SAFETY: our own event.
    let waits = || unsafe { driver::cuStreamWaitEvent(stream, own.newest, 0).is_ok() };
    others_done && (!for_discard || waits())
}
