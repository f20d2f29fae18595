//! Events: named places in streams, with the time at which they were reached.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::abi::CuResult;
use crate::stream::Stream;

/// `CU_EVENT_DISABLE_TIMING`.
pub const DISABLE_TIMING: u32 = 2;

/// A place in a stream: behind its operation of that number.
#[derive(Clone, Copy)]
pub struct Position {
    /// The stream.
    pub stream: &'static Stream,
    /// The operation.
    pub sequence: u64,
}

impl Position {
    /// Whether the stream has come past it.
    pub fn reached(&self) -> bool {
        self.stream.completed() >= self.sequence
    }
}

#[derive(Default)]
struct State {
    flags: u32,
    /// Records so far, over all lives of the object.
    records: u64,
    /// The latest record whose place is known.
    position: Option<(u64, Position)>,
    /// The latest record that was reached, and when.
    time: Option<(u64, Instant)>,
}

/// One event.
pub struct Event {
    index: u32,
    state: Mutex<State>,
}

impl Event {
    /// An event that is not recorded.
    pub fn new(index: u32, flags: u32) -> Event {
        Event {
            index,
            state: Mutex::new(State {
                flags,
                ..State::default()
            }),
        }
    }

    /// Its place in the table of events.
    pub fn index(&self) -> u32 {
        self.index
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a new life: as if never recorded.
    pub fn renew(&self, flags: u32) {
        let mut state = self.state();
        // The number of records goes on, so that a record of the old life is told apart.
        *state = State {
            flags,
            records: state.records,
            ..State::default()
        };
    }

    /// Counts a record that is about to be enqueued.
    pub fn begin_record(&self) -> u64 {
        let mut state = self.state();
        state.records += 1;
        state.records
    }

    /// Says where the record went.
    pub fn place_record(&self, record: u64, position: Position) {
        let mut state = self.state();
        if state.position.is_none_or(|(latest, _)| latest < record) {
            state.position = Some((record, position));
        }
    }

    /// Notes that a record was reached now.
    pub fn reach(&self, record: u64) {
        let mut state = self.state();
        if state.time.is_none_or(|(latest, _)| latest < record) {
            state.time = Some((record, Instant::now()));
        }
    }

    /// Where the latest record is; none if there was none.
    pub fn position(&self) -> Option<Position> {
        self.state().position.map(|(_, position)| position)
    }

    /// When the latest record was reached.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for an event without timing or never recorded, `NOT_READY` before
    /// it is reached.
    pub fn time(&self) -> Result<Instant, CuResult> {
        let state = self.state();
        let Some((record, _)) = state.position.filter(|_| state.flags & DISABLE_TIMING == 0) else {
            return Err(CuResult::INVALID_HANDLE);
        };
        match state.time {
            Some((reached, time)) if reached >= record => Ok(time),
            _ => Err(CuResult::NOT_READY),
        }
    }
}
