//! The shim's own streams, and the order between them and the program's.
//!
//! A stream of the program's that no one can wait for any more, because it is about to be
//! destroyed or only its own thread can name it, is waited for by the local queue's stream.
//! Each such wait is a numbered [`Turn`]; whoever gets memory back from the pool with one waits
//! for an event recorded behind the newest: the stream runs in order, so that covers all earlier
//! ones.
//!
//! Discards have a stream that is given nothing else, and is waited for after each of them. Where
//! a stream still has something to do, libcuda (580.159, on an H100) lets what follows a discard
//! in it go ahead: events are recorded, words written and other streams released first, and the
//! content that they allow to be written is lost. In an idle stream a discard is over when the
//! call returns.
//!
//! What comes in goes over [`LANES`] streams in turn: a call of 2 MiB has the link idle for more
//! than half of its time, which calls in other streams fill. The queue's own stream is behind
//! them all. On an H100 (PCIe 5, driver 580.159) calls of 2 MiB bring 14 GB/s in one stream and
//! 35 in four, of 8 MiB 31 and 46; one `cuMemPrefetchBatchAsync` of such ranges is as slow as one
//! stream. What goes out is made by the calling thread, and no faster over more streams.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use oversub_protocol::command::queue;
use oversub_shim_core::abi::{CuResult, EVENT_DISABLE_TIMING, Handle, STREAM_NON_BLOCKING};
use oversub_shim_core::lock::Lock;
use oversub_shim_core::pool::point::Turn;

use crate::driver;

/// Streams that fetches go over.
pub const LANES: usize = 4;

#[derive(Debug)]
struct Own {
    context: Handle,
    streams: [Handle; queue::COUNT],
    /// What comes in, and an event for each.
    lanes: [Lane; LANES],
    discards: Handle,
    /// Recorded behind the newest turn.
    newest: Handle,
    /// For the moment between recording and waiting.
    passing: Handle,
}

/// A stream of fetches.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    /// The stream.
    pub stream: Handle,
    /// For the moment between recording and waiting.
    passing: Handle,
}

static OWN: Lock<Option<Own>> = Lock::new(None);
/// Number of the newest turn.
static NEWEST: AtomicU64 = AtomicU64::new(0);
/// Every turn up to this number is over.
static OVER: AtomicU64 = AtomicU64::new(0);
/// The stream of discards did not become idle once: nothing is discarded any more.
static DISCARDS_FAILED: AtomicBool = AtomicBool::new(false);

/// The streams of `context`, which is current, by queue; made at the first call.
pub fn streams(context: Handle) -> Option<[Handle; queue::COUNT]> {
    let mut own = OWN.lock();
    ensure(&mut own, context).map(|own| own.streams)
}

/// The streams that fetches go over in turn; made at the first call.
pub fn lanes(context: Handle) -> Option<[Lane; LANES]> {
    let mut own = OWN.lock();
    ensure(&mut own, context).map(|own| own.lanes)
}

/// Makes `stream`, of the same context, wait for what the lane was given.
pub fn join(stream: Handle, lane: &Lane) {
    // SAFETY: our own event and streams.
    unsafe {
        let joined = driver::cuEventRecord(lane.passing, lane.stream).is_ok()
            && driver::cuStreamWaitEvent(stream, lane.passing, 0).is_ok();
        if !joined {
            driver::cuStreamSynchronize(lane.stream);
        }
    }
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
    let stream = |priority| {
        let mut stream = 0;
        // SAFETY: a place to write to; the context is current.
        let result = unsafe {
            driver::cuStreamCreateWithPriority(&raw mut stream, STREAM_NON_BLOCKING, priority)
        };
        result.is_ok().then_some(stream)
    };
    let event = || {
        let mut event = 0;
        // SAFETY: a place to write to.
        let result = unsafe { driver::cuEventCreate(&raw mut event, EVENT_DISABLE_TIMING) };
        result.is_ok().then_some(event)
    };
    let lane = || {
        Some(Lane {
            stream: stream(greatest)?,
            passing: event()?,
        })
    };
    // What a launch waits for comes first; what makes room may take its time.
    Some(Own {
        context,
        streams: [stream(greatest)?, stream(least)?, stream(greatest)?],
        lanes: [lane()?, lane()?, lane()?, lane()?],
        discards: stream(greatest)?,
        newest: event()?,
        passing: event()?,
    })
}

/// The context is gone, and the streams with it.
pub fn forget() {
    *OWN.lock() = None;
    note_over(Turn(NEWEST.load(Ordering::Relaxed)));
}

/// The newest turn; `None`: it is over.
pub fn newest_turn() -> Option<Turn> {
    let newest = NEWEST.load(Ordering::Relaxed);
    (newest > OVER.load(Ordering::Relaxed)).then_some(Turn(newest))
}

/// Every turn up to this one is over.
pub fn over() -> Turn {
    Turn(OVER.load(Ordering::Relaxed))
}

/// Notes that every turn up to this one is over.
pub fn note_over(turn: Turn) {
    OVER.fetch_max(turn.0, Ordering::Relaxed);
}

/// Makes the local stream wait for everything that `stream`, which the program holds, was given;
/// what to wait for in its place. `None`: it cannot.
pub fn follow(context: Handle, stream: Handle) -> Option<Turn> {
    let mut own = OWN.lock();
    let own = ensure(&mut own, context)?;
    let waits = own.streams[usize::from(queue::LOCAL)];
    // SAFETY: our own events and stream, and a stream that the program holds.
    let ordered = unsafe {
        driver::cuEventRecord(own.passing, stream).is_ok()
            && driver::cuStreamWaitEvent(waits, own.passing, 0).is_ok()
            && driver::cuEventRecord(own.newest, waits).is_ok()
    };
    ordered.then(|| Turn(NEWEST.fetch_add(1, Ordering::Relaxed) + 1))
}

/// Has the driver drop the content of each of `ranges`, which no one has and no one uses, and
/// waits until it has; one result for each.
pub fn discard(context: Handle, ranges: &[(u64, u64)], results: &mut [CuResult]) {
    let stream = {
        let mut own = OWN.lock();
        ensure(&mut own, context).map(|own| own.discards)
    };
    let Some(stream) = stream else {
        results.fill(CuResult::NOT_SUPPORTED);
        return;
    };
    for ((address, bytes), result) in ranges.iter().zip(results.iter_mut()) {
        if DISCARDS_FAILED.load(Ordering::Relaxed) {
            *result = CuResult::NOT_SUPPORTED;
            continue;
        }
        let (mut address, mut size) = (*address, *bytes as usize);
        // SAFETY: the caller has claimed the range; the stream is our own, and idle.
        *result = unsafe {
            driver::cuMemDiscardBatchAsync(&raw mut address, &raw mut size, 1, 0, stream)
        };
        // SAFETY: our own stream.
        if !unsafe { driver::cuStreamSynchronize(stream) }.is_ok() {
            DISCARDS_FAILED.store(true, Ordering::Relaxed);
        }
    }
}

/// Makes `stream` wait for `others` and for `turn`. `false`: it could not be arranged. The
/// caller holds the pool, which keeps `others` from being destroyed.
pub fn wait(context: Handle, stream: Handle, others: &[Handle], turn: Turn) -> bool {
    let pending = turn.0 > OVER.load(Ordering::Relaxed);
    if others.is_empty() && !pending {
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
    let turned = !pending || unsafe { driver::cuStreamWaitEvent(stream, own.newest, 0).is_ok() };
    others_done && turned
}
