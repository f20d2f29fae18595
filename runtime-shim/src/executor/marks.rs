//! Marks for streams that have gone quiet: without one, the daemon would never learn that
//! their last launches are over.

use core::sync::atomic::Ordering;

use oversub_protocol::layout::STREAM_SLOTS;

use super::ISSUE;
use crate::capture;
use crate::context::{self, Place};
use crate::session::{Session, marked_slots};
use crate::state::{STREAM_WRITERS, STREAMS};

/// What the last look saw.
#[derive(Debug)]
pub struct Marks {
    seen: [u64; STREAM_SLOTS],
}

impl Marks {
    /// Nothing seen yet.
    pub fn new() -> Self {
        Self {
            seen: [0; STREAM_SLOTS],
        }
    }

    /// Marks streams in which nothing has happened since the last look. `true`: some wait.
    pub fn look(&mut self, session: &Session, place: &Place) -> bool {
        session
            .control()
            .last_seq
            .store(STREAMS.current(), Ordering::Relaxed);
        if session.marks_at.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut busy = false;
        for (slot, seen) in marked_slots().zip(&mut self.seen) {
            let Some(last) = STREAMS.unmarked(slot) else {
                continue;
            };
            busy = true;
            if *seen != last {
                *seen = last;
                continue;
            }
            mark(session, place, slot);
        }
        busy
    }
}

fn mark(session: &Session, place: &Place, slot: u8) {
    if capture::is_any() {
        return;
    }
    let _issue = ISSUE.lock();
    // The stream cannot be destroyed while this is held.
    let _writers = STREAM_WRITERS.lock();
    let is_there = context::place().is_some_and(|now| now.context == place.context);
    if let Some(stream) = STREAMS.stream(slot).filter(|_| is_there) {
        session.mark(stream, slot, None);
    }
}
