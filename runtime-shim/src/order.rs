//! The shim's own streams, and the order between them and the program's.
//!
//! Discards go into the local queue's stream, or, where they wait for what a stream of the
//! program's was given before, into one of their own, and are numbered in each. Whoever gets
//! memory back from the pool with a discard's number waits for an event recorded behind the
//! newest discard: the stream runs in order, so that covers all earlier ones. A stream that is
//! about to be destroyed is covered in the same way: the local stream waits for it.
//!
//! Discards under way wait for one stream of the program's at a time. So who gets memory that
//! was freed in that stream waits for nothing by them that it did not wait for already.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use oversub_protocol::command::queue;
use oversub_shim_core::abi::{EVENT_DISABLE_TIMING, Handle, STREAM_NON_BLOCKING};
use oversub_shim_core::lock::Lock;
use oversub_shim_core::pool::Discards;

use crate::driver;

#[derive(Debug)]
struct Own {
    context: Handle,
    streams: [Handle; queue::COUNT],
    /// Recorded behind the newest discard of each way.
    newest: [Handle; WAYS],
    /// For the moment between recording and waiting.
    passing: Handle,
}

static OWN: Lock<Option<Own>> = Lock::new(None);
/// Number of the newest discard of each way.
static NUMBERS: [AtomicU64; WAYS] = [const { AtomicU64::new(0) }; WAYS];
/// Every discard of each way up to this number has been executed.
static EXECUTED: [AtomicU64; WAYS] = [const { AtomicU64::new(0) }; WAYS];
/// The stream that ordered discards wait for while any is under way.
static FOLLOWED: AtomicUsize = AtomicUsize::new(0);

/// How many ways there are for discards.
const WAYS: usize = 2;

/// A way for discards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// At once.
    Local = 0,
    /// After what the program's stream was given before.
    Ordered = 1,
}

impl Way {
    /// Both.
    pub const ALL: [Way; WAYS] = [Way::Local, Way::Ordered];

    /// The way of a queue; `None`: nothing is discarded there.
    pub fn of(number: u8) -> Option<Way> {
        Way::ALL.into_iter().find(|way| way.queue() == number)
    }

    /// Its queue.
    pub fn queue(self) -> u8 {
        match self {
            Way::Local => queue::LOCAL,
            Way::Ordered => queue::ORDERED,
        }
    }

    /// What memory waits for behind discard `number` of this way.
    pub fn discards(self, number: u64) -> Discards {
        match self {
            Way::Local => Discards::local(number),
            Way::Ordered => Discards::ordered(number),
        }
    }

    fn number(self) -> &'static AtomicU64 {
        &NUMBERS[self as usize]
    }

    fn executed(self) -> &'static AtomicU64 {
        &EXECUTED[self as usize]
    }
}

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
    let priorities = [greatest, least, greatest, greatest];
    let mut streams = [0; queue::COUNT];
    for (stream, priority) in streams.iter_mut().zip(priorities) {
        // SAFETY: a place to write to; the context is current.
        let result =
            unsafe { driver::cuStreamCreateWithPriority(stream, STREAM_NON_BLOCKING, priority) };
        if !result.is_ok() {
            return None;
        }
    }
    let mut events = [0; WAYS + 1];
    for event in &mut events {
        // SAFETY: a place to write to.
        if !unsafe { driver::cuEventCreate(event, EVENT_DISABLE_TIMING) }.is_ok() {
            return None;
        }
    }
    let [local, ordered, passing] = events;
    Some(Own {
        context,
        streams,
        newest: [local, ordered],
        passing,
    })
}

/// The context is gone, and the streams with it.
pub fn forget() {
    *OWN.lock() = None;
    for way in Way::ALL {
        note_executed(way, way.number().load(Ordering::Relaxed));
    }
}

/// Numbers what a way's stream was just given. `None`: it cannot be waited for.
pub fn number_discard(context: Handle, way: Way) -> Option<u64> {
    let mut own = OWN.lock();
    let own = ensure(&mut own, context)?;
    let stream = own.streams[usize::from(way.queue())];
    // SAFETY: our own event and stream.
    let result = unsafe { driver::cuEventRecord(own.newest[way as usize], stream) };
    result
        .is_ok()
        .then(|| way.number().fetch_add(1, Ordering::Relaxed) + 1)
}

/// Every discard of a way up to `number` has been executed.
pub fn note_executed(way: Way, number: u64) {
    way.executed().fetch_max(number, Ordering::Relaxed);
}

/// Makes the local stream wait for everything that `stream` was given; what to wait for in
/// its place.
pub fn follow(context: Handle, stream: Handle) -> Option<Discards> {
    queue_behind(context, stream, Way::Local)?;
    number_discard(context, Way::Local).map(Discards::local)
}

/// Makes the next ordered discards wait for everything that `stream` was given. `false`: they
/// cannot, or others that wait for another stream are under way.
pub fn follow_in_order(context: Handle, stream: Handle) -> bool {
    if FOLLOWED.load(Ordering::Relaxed) != stream {
        if !is_idle(context, Way::Ordered) {
            return false;
        }
        FOLLOWED.store(stream, Ordering::Relaxed);
    }
    queue_behind(context, stream, Way::Ordered).is_some()
}

/// No discard of a way is under way.
fn is_idle(context: Handle, way: Way) -> bool {
    let newest = way.number().load(Ordering::Relaxed);
    if way.executed().load(Ordering::Relaxed) >= newest {
        return true;
    }
    let mut own = OWN.lock();
    let done = ensure(&mut own, context).is_some_and(|own| {
        // SAFETY: our own event.
        unsafe { driver::cuEventQuery(own.newest[way as usize]) }.is_ok()
    });
    if done {
        note_executed(way, newest);
    }
    done
}

/// Makes a way's stream wait for everything that `stream`, which the program holds, was given.
fn queue_behind(context: Handle, stream: Handle, way: Way) -> Option<()> {
    let mut own = OWN.lock();
    let own = ensure(&mut own, context)?;
    let waits = own.streams[usize::from(way.queue())];
    // SAFETY: our own event and stream, and a stream that the program holds.
    let ordered = unsafe {
        driver::cuEventRecord(own.passing, stream).is_ok()
            && driver::cuStreamWaitEvent(waits, own.passing, 0).is_ok()
    };
    ordered.then_some(())
}

/// Makes `stream` wait for `others` and for `discards`. `false`: it could not be arranged. The
/// caller holds the pool, which keeps `others` from being destroyed.
pub fn wait(context: Handle, stream: Handle, others: &[Handle], discards: Discards) -> bool {
    let numbers = [discards.local, discards.ordered];
    let pending = |way: Way| numbers[way as usize] > way.executed().load(Ordering::Relaxed);
    let ways = Way::ALL.map(pending);
    if others.is_empty() && ways == [false; WAYS] {
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
    let discarded = ways.iter().zip(own.newest).all(|(pending, newest)| {
        // SAFETY: our own event.
        !pending || unsafe { driver::cuStreamWaitEvent(stream, newest, 0).is_ok() }
    });
    others_done && discarded
}
