//! The units that do the work of streams: compute, one copy engine for each direction,
//! the local unit for what needs no transfer, and one for functions of the program.
//!
//! Each is a thread with a line of streams; a stream stands in one line at most, so the
//! units go round the streams. This module decides which unit an operation needs and
//! does it there. It owns no memory and no order.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::CuResult;
use crate::context::Context;
use crate::memory::{Device, Location, MemoryError, Place, lock};
use crate::stream::op::{Op, Ranges, UNITS, Unit, WaitValue};
use crate::stream::{Step, Stream};

/// How long a unit looks for more work before it sleeps: a wake-up costs more.
const LINGER: Duration = Duration::from_micros(5);
/// How often a word that a stream waits for is looked at.
const POLL: Duration = Duration::from_micros(50);

/// How long a discard comes behind what it should come before, where it is late.
const LATE: Duration = Duration::from_micros(500);

/// One unit's line of streams.
#[derive(Default)]
struct Line {
    streams: Mutex<VecDeque<&'static Stream>>,
    length: AtomicUsize,
    wake: Condvar,
    sleeping: AtomicBool,
}

impl Line {
    fn put(&self, stream: &'static Stream) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.push_back(stream);
        self.length.store(streams.len(), Ordering::Release);
        let sleeping = self.sleeping.load(Ordering::Relaxed);
        drop(streams);
        if sleeping {
            self.wake.notify_one();
        }
    }

    /// The next stream; none after `patience` without one. Patience is asked for again
    /// whenever the unit is woken.
    fn take(&self, patience: impl Fn() -> Option<Duration>) -> Option<&'static Stream> {
        let begin = Instant::now();
        while self.length.load(Ordering::Acquire) == 0 && begin.elapsed() < LINGER {
            std::hint::spin_loop();
        }
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(stream) = streams.pop_front() {
                self.length.store(streams.len(), Ordering::Release);
                return Some(stream);
            }
            self.sleeping.store(true, Ordering::Relaxed);
            streams = match patience() {
                None => self
                    .wake
                    .wait(streams)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(time) => {
                    let (streams, timeout) = self
                        .wake
                        .wait_timeout(streams, time)
                        .unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() && streams.is_empty() {
                        self.sleeping.store(false, Ordering::Relaxed);
                        return None;
                    }
                    streams
                }
            };
            self.sleeping.store(false, Ordering::Relaxed);
        }
    }
}

/// The units of the device.
pub struct Engines {
    device: &'static Device,
    lines: [Line; UNITS],
    /// Streams that wait for a word in memory.
    watched: Mutex<Vec<&'static Stream>>,
    /// Discards that no stream waits for.
    late: Late,
}

/// Discards to be made, with when they were due.
#[derive(Default)]
struct Late {
    discards: Mutex<VecDeque<(Instant, Ranges)>>,
    wake: Condvar,
}

static ENGINES: OnceLock<Engines> = OnceLock::new();

impl Engines {
    /// Starts the threads. Once in a process.
    ///
    /// # Errors
    /// `OPERATING_SYSTEM`, when a thread cannot be started.
    pub fn start(device: &'static Device) -> Result<(), CuResult> {
        let engines = ENGINES.get_or_init(|| Engines {
            device,
            lines: Default::default(),
            watched: Mutex::default(),
            late: Late::default(),
        });
        let names = [
            (Unit::Compute, "softgpu-compute"),
            (Unit::In, "softgpu-in"),
            (Unit::Out, "softgpu-out"),
            (Unit::Local, "softgpu-local"),
            (Unit::Host, "softgpu-host"),
        ];
        for (unit, name) in names {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || engines.serve(unit))
                .map_err(|_| CuResult::OPERATING_SYSTEM)?;
        }
        std::thread::Builder::new()
            .name("softgpu-late".to_owned())
            .spawn(move || engines.discard_late())
            .map_err(|_| CuResult::OPERATING_SYSTEM)?;
        Ok(())
    }

    /// The thread of late discards.
    fn discard_late(&'static self) {
        let mut discards = lock(&self.late.discards);
        loop {
            let Some((due, ranges)) = discards.pop_front() else {
                let woken = self.late.wake.wait(discards);
                discards = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(discards);
            std::thread::sleep((due + LATE).saturating_duration_since(Instant::now()));
            for (address, bytes) in ranges {
                // Freed meanwhile, if it fails.
                let _ = self.device.discard(address, bytes);
            }
            discards = lock(&self.late.discards);
        }
    }

    /// The running units.
    pub(super) fn get() -> &'static Engines {
        match ENGINES.get() {
            Some(engines) => engines,
            // No stream exists before `start`.
            None => std::process::abort(),
        }
    }

    /// Puts a stream into a unit's line.
    pub(super) fn submit(&self, unit: Unit, stream: &'static Stream) {
        self.lines[unit as usize].put(stream);
    }

    /// Looks at the word of a stream's wait from now on.
    pub(super) fn watch(&self, stream: &'static Stream) {
        self.watched
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(stream);
        let line = &self.lines[Unit::Local as usize];
        // Whoever holds this has yet to ask for its patience, or sleeps: no wake-up is lost.
        drop(line.streams.lock().unwrap_or_else(PoisonError::into_inner));
        line.wake.notify_one();
    }

    /// A unit's thread.
    fn serve(&'static self, unit: Unit) {
        let line = &self.lines[unit as usize];
        loop {
            // The local unit also looks after the watched words.
            let patience = || (unit == Unit::Local).then(|| self.patience()).flatten();
            if let Some(stream) = line.take(patience)
                && let Some(op) = stream.take()
            {
                self.perform(op, stream);
                stream.complete();
                stream.go_on();
            }
            if unit == Unit::Local {
                self.look_at_watched();
            }
        }
    }

    /// How long the local unit may sleep: until the next look at the watched words.
    fn patience(&self) -> Option<Duration> {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        (!watched.is_empty()).then_some(POLL)
    }

    fn look_at_watched(&self) {
        let watched =
            std::mem::take(&mut *self.watched.lock().unwrap_or_else(PoisonError::into_inner));
        // Each is evaluated again, and comes back here when its word is not there yet.
        for stream in watched {
            stream.go_on();
        }
    }

    /// What becomes of an operation in front of a stream. Light ones are done here, under
    /// the stream's lock.
    pub(super) fn next_step(&self, op: &Op, context: &Context) -> Step {
        match op {
            Op::Wait { stream, sequence } if stream.completed() < *sequence => Step::Wait {
                stream,
                sequence: *sequence,
            },
            Op::Wait { .. } | Op::Mark => Step::Done,
            Op::Record { event, record } => {
                event.reach(*record);
                Step::Done
            }
            Op::Host { .. } | Op::Callback { .. } => Step::Unit(Unit::Host),
            // After a fault nothing of the context runs any more.
            _ if context.error().is_err() => Step::Done,
            Op::Write {
                to: Place::Host(address),
                value,
                bytes,
            } => {
                // SAFETY: the call checked that the word is in registered host memory.
                unsafe { write_word(*address, *value, *bytes) };
                Step::Done
            }
            Op::WaitValue(wait) => match self.satisfied(wait) {
                Ok(true) => Step::Done,
                Ok(false) => Step::Poll,
                Err(error) => {
                    context.fail(error);
                    Step::Done
                }
            },
            Op::Fault { kernel, address } => {
                context.fail(MemoryError::IllegalAddress {
                    kernel: kernel.name,
                    address: *address,
                });
                Step::Done
            }
            Op::Kernel { .. } | Op::Memset { .. } | Op::Write { .. } => Step::Unit(Unit::Compute),
            Op::Copy { to, from, .. } => Step::Unit(match (to, from) {
                (Place::Device(_), Place::Host(_)) => Unit::In,
                (Place::Host(_), Place::Device(_)) => Unit::Out,
                (Place::Device(_), Place::Device(_)) => Unit::Compute,
                (Place::Host(_), Place::Host(_)) => Unit::Local,
            }),
            Op::CopyStaged { .. } => Step::Unit(Unit::In),
            Op::DiscardLate { ranges } => {
                let late = (Instant::now(), ranges.clone());
                lock(&self.late.discards).push_back(late);
                self.late.wake.notify_one();
                Step::Done
            }
            Op::Discard { .. } | Op::Free { .. } => Step::Unit(Unit::Local),
            Op::PrefetchOne { address, bytes, to } => {
                Step::Unit(self.prefetch_unit([(*address, *bytes, *to)].iter()))
            }
            Op::Prefetch { ranges } => Step::Unit(self.prefetch_unit(ranges.iter())),
        }
    }

    /// The copy engine that a prefetch needs, or the local unit when nothing moves.
    fn prefetch_unit<'a>(&self, ranges: impl Iterator<Item = &'a (u64, u64, Location)>) -> Unit {
        let mut unit = Unit::Local;
        for (address, bytes, to) in ranges {
            if self.device.needs_link(*address, *bytes, *to) {
                match to {
                    Location::Device => return Unit::In,
                    Location::Host => unit = Unit::Out,
                }
            }
        }
        unit
    }

    fn satisfied(&self, wait: &WaitValue) -> Result<bool, MemoryError> {
        let word = match (wait.from, wait.bytes) {
            // SAFETY: the call checked that the word is in registered host memory.
            (Place::Host(address), 4) => unsafe { (address as *const u32).read_volatile() as u64 },
            // SAFETY: as above.
            (Place::Host(address), _) => unsafe { (address as *const u64).read_volatile() },
            (from, bytes) => {
                let mut word = 0u64;
                let to = Place::Host(&raw mut word as u64);
                // SAFETY: `to` is a word of this frame, and `bytes` is 4 or 8.
                unsafe { self.device.copy(to, from, bytes as u64)? };
                word
            }
        };
        Ok(wait.satisfied_by(word))
    }

    /// Does an operation to its end.
    fn perform(&self, op: Op, stream: &'static Stream) {
        let context = stream.context();
        let result = match op {
            Op::Host { function, argument } => {
                if let (Some(function), Ok(())) = (function, context.error()) {
                    // SAFETY: the program gave this function for this argument.
                    unsafe { function(argument as *mut _) };
                }
                return;
            }
            Op::Callback {
                function,
                stream,
                argument,
            } => {
                if let Some(function) = function {
                    // SAFETY: the program gave this function for this argument.
                    unsafe { function(stream, context.error().into(), argument as *mut _) };
                }
                return;
            }
            _ if context.error().is_err() => return,
            Op::Kernel {
                kernel,
                shape,
                words,
            } => {
                // SAFETY: the launch checked count and kind of the parameters; an address
                // outside the device's memory comes back as an error.
                unsafe { self.device.run_kernel(kernel, &shape, words.as_slice()) }
            }
            Op::Memset {
                address,
                fill,
                count,
            } => self.device.memset(address, fill, count),
            // SAFETY: a host address is the program's; it answers for its validity until
            // the copy is done, as with any driver.
            Op::Copy { to, from, bytes } => unsafe { self.device.copy(to, from, bytes) },
            Op::CopyStaged { to, from } => {
                let place = Place::Host(from.as_ptr() as u64);
                // SAFETY: the staged bytes live until the copy is done.
                unsafe { self.device.copy(to, place, from.len() as u64) }
            }
            Op::Prefetch { ranges } => ranges
                .iter()
                .try_for_each(|(address, bytes, to)| self.prefetch(*address, *bytes, *to)),
            Op::PrefetchOne { address, bytes, to } => self.prefetch(address, bytes, to),
            Op::Discard { ranges } => ranges
                .iter()
                .try_for_each(|(address, bytes)| self.device.discard(*address, *bytes)),
            Op::Free { address } => self.device.free(address).map(|_| ()),
            Op::Write { to, value, bytes } => {
                let from = Place::Host(&raw const value as u64);
                // SAFETY: `value` lives until the copy is done; little-endian, so the low
                // bytes are the word.
                unsafe { self.device.copy(to, from, bytes as u64) }
            }
            // Light ones are done in `next_step`.
            Op::Mark
            | Op::Record { .. }
            | Op::Wait { .. }
            | Op::WaitValue(_)
            | Op::DiscardLate { .. }
            | Op::Fault { .. } => Ok(()),
        };
        if let Err(error) = result {
            context.fail(error);
        }
    }

    /// Moves a range. A prefetch is a wish: what does not fit stays where it is.
    fn prefetch(&self, address: u64, bytes: u64, to: Location) -> Result<(), MemoryError> {
        match self.device.prefetch(address, bytes, to) {
            Err(MemoryError::OutOfMemory { .. }) => Ok(()),
            result => result,
        }
    }
}

/// Writes a word of 4 or 8 bytes that other processors may be reading.
///
/// # Safety
/// The address is valid for the write.
unsafe fn write_word(address: u64, value: u64, bytes: u8) {
    std::sync::atomic::fence(Ordering::Release);
    if bytes == 4 {
        // SAFETY: by this function's contract.
        unsafe { (address as *mut u32).write_volatile(value as u32) };
    } else {
        // SAFETY: by this function's contract.
        unsafe { (address as *mut u64).write_volatile(value) };
    }
}
