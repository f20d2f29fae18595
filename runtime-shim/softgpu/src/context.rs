//! Contexts, and which one is current in a thread.
//!
//! A context owns its streams' membership and its error: a fault of a kernel ends the
//! work of the whole context, as CUDA says of `CUDA_ERROR_ILLEGAL_ADDRESS`. There is one
//! device, so contexts share its memory; an allocation remembers whose it is in
//! `allocations`.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::abi::{CuResult, STREAM_NON_BLOCKING};
use crate::handle::Table;
use crate::memory::MemoryError;
use crate::stream::Stream;

/// All contexts. None is used again after its end.
pub static CONTEXTS: Table<Context> = Table::new(1);
/// All streams that a program made, and the default ones.
pub static STREAMS: Table<Stream> = Table::new(2);

/// Contexts that a thread may push.
const STACK: usize = 64;

/// One context.
pub struct Context {
    index: u32,
    flags: AtomicU32,
    primary: bool,
    failure: AtomicU32,
    destroyed: AtomicBool,
    legacy: OnceLock<&'static Stream>,
    /// Default streams of threads, by the thread's number.
    per_thread: Mutex<Vec<(u64, &'static Stream)>>,
    /// All but the legacy stream.
    streams: Mutex<Vec<&'static Stream>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Context {
    /// Makes a context with its legacy stream.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`, when there are too many.
    pub fn create(flags: u32, primary: bool) -> Result<(usize, &'static Context), CuResult> {
        let made = CONTEXTS.insert(|index| Context {
            index,
            flags: AtomicU32::new(flags),
            primary,
            failure: AtomicU32::new(0),
            destroyed: AtomicBool::new(false),
            legacy: OnceLock::new(),
            per_thread: Mutex::default(),
            streams: Mutex::default(),
        });
        let (handle, context) = made.ok_or(CuResult::OUT_OF_MEMORY)?;
        let (_, legacy) = STREAMS
            .insert(|index| Stream::new(index, context, 0))
            .ok_or(CuResult::OUT_OF_MEMORY)?;
        context.legacy.get_or_init(|| legacy);
        Ok((handle, context))
    }

    /// Its number in the process.
    pub fn id(&self) -> u64 {
        self.index as u64 + 1
    }

    /// Its handle, while it lives.
    pub fn handle(&self) -> Option<usize> {
        CONTEXTS.handle_of(self.index)
    }

    /// `CUctx_flags`.
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Changes the flags.
    pub fn set_flags(&self, flags: u32) {
        self.flags.store(flags, Ordering::Relaxed);
    }

    /// Whether it is the device's primary context.
    pub fn is_primary(&self) -> bool {
        self.primary
    }

    /// The failure that ended its work, if there was one.
    ///
    /// # Errors
    /// That failure.
    #[inline]
    pub fn error(&self) -> Result<(), CuResult> {
        CuResult(self.failure.load(Ordering::Acquire)).ok()
    }

    /// Ends the context's work, because an operation failed. The first failure stays.
    #[cold]
    pub fn fail(&self, error: MemoryError) {
        let result = match error {
            MemoryError::IllegalAddress { .. } | MemoryError::InvalidRange { .. } => {
                CuResult::ILLEGAL_ADDRESS
            }
            _ => CuResult::LAUNCH_FAILED,
        };
        let first = self
            .failure
            .compare_exchange(0, result.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if first {
            eprintln!("soft GPU: {error}; the context takes no more work");
        }
    }

    /// The stream that synchronises with the blocking ones.
    #[inline]
    pub fn legacy(&self) -> &'static Stream {
        match self.legacy.get() {
            Some(stream) => stream,
            // `create` sets it before anyone has the handle.
            None => std::process::abort(),
        }
    }

    /// The default stream of the calling thread.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`, when there are too many streams.
    pub fn per_thread(&'static self) -> Result<&'static Stream, CuResult> {
        let thread = thread_number();
        let mut all = locked(&self.per_thread);
        if let Some((_, stream)) = all.iter().find(|(number, _)| *number == thread) {
            return Ok(stream);
        }
        let (_, stream) = self.add_stream(0)?;
        all.push((thread, stream));
        Ok(stream)
    }

    /// Makes a stream, out of one that has ended where there is one.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`, when there are too many streams.
    pub fn add_stream(&'static self, flags: u32) -> Result<(usize, &'static Stream), CuResult> {
        let mut streams = locked(&self.streams);
        let free = streams.iter().find(|stream| stream.is_free()).copied();
        if let Some(stream) = free {
            // Before the new handle exists, so that no one sees the old flags.
            stream.renew(flags);
            return STREAMS
                .revive(stream.index())
                .ok_or(CuResult::OUT_OF_MEMORY);
        }
        let made = STREAMS.insert(|index| Stream::new(index, self, flags));
        let (handle, stream) = made.ok_or(CuResult::OUT_OF_MEMORY)?;
        streams.push(stream);
        Ok((handle, stream))
    }

    /// The streams that the legacy stream waits for.
    pub fn blocking_streams(&self) -> Vec<&'static Stream> {
        let streams = locked(&self.streams);
        streams
            .iter()
            .filter(|s| s.flags() & STREAM_NON_BLOCKING == 0)
            .copied()
            .collect()
    }

    /// Blocks until all that is enqueued now is done.
    pub fn synchronize(&self) {
        let streams = locked(&self.streams).clone();
        for stream in streams {
            stream.synchronize();
        }
        self.legacy().synchronize();
    }

    /// Ends the context: waits for its work, ends its streams. False: ended before.
    pub fn destroy(&'static self) -> bool {
        if self.destroyed.swap(true, Ordering::AcqRel) {
            return false;
        }
        if let Some(handle) = self.handle() {
            CONTEXTS.remove(handle);
        }
        self.synchronize();
        let streams = std::mem::take(&mut *locked(&self.streams));
        for stream in streams.iter().chain([&self.legacy()]) {
            if let Some(handle) = STREAMS.handle_of(stream.index()) {
                STREAMS.remove(handle);
            }
        }
        true
    }
}

thread_local! {
    static CURRENT: Cell<Option<&'static Context>> = const { Cell::new(None) };
    static BELOW: Cell<[Option<&'static Context>; STACK]> = const { Cell::new([None; STACK]) };
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// A number of the calling thread, never used again.
fn thread_number() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// The calling thread's context, if it has one.
#[inline]
pub fn current() -> Option<&'static Context> {
    CURRENT.with(Cell::get)
}

/// Replaces the calling thread's context.
pub fn set_current(context: Option<&'static Context>) {
    CURRENT.with(|current| current.set(context));
}

/// Puts a context over the calling thread's.
///
/// # Errors
/// `OUT_OF_MEMORY`, when the stack is full.
pub fn push(context: &'static Context) -> Result<(), CuResult> {
    let depth = DEPTH.with(Cell::get);
    let mut below = BELOW.with(Cell::get);
    *below.get_mut(depth).ok_or(CuResult::OUT_OF_MEMORY)? = current();
    BELOW.with(|b| b.set(below));
    DEPTH.with(|d| d.set(depth + 1));
    set_current(Some(context));
    Ok(())
}

/// Takes the calling thread's context away; the one below is current again.
pub fn pop() -> Option<&'static Context> {
    let top = current()?;
    let depth = DEPTH.with(Cell::get);
    let below = match depth.checked_sub(1) {
        Some(depth) => {
            DEPTH.with(|d| d.set(depth));
            BELOW.with(Cell::get)[depth]
        }
        None => None,
    };
    set_current(below);
    Some(top)
}

/// The calling thread's context, able to take work.
///
/// # Errors
/// `INVALID_CONTEXT` without one, `CONTEXT_IS_DESTROYED` behind its end, or the failure
/// that ended its work.
#[inline]
pub fn usable() -> Result<&'static Context, CuResult> {
    let context = current().ok_or(CuResult::INVALID_CONTEXT)?;
    if context.destroyed.load(Ordering::Relaxed) {
        return Err(CuResult::CONTEXT_IS_DESTROYED);
    }
    context.error()?;
    Ok(context)
}
