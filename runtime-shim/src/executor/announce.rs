//! Telling a new daemon what there already is.

use oversub_protocol::encode::Function as FunctionMessage;
use oversub_protocol::event::{Kind, MemoryRecord};

use crate::managed;
use crate::session::{self, Session};
use crate::state::{self, ALLOCATIONS, FUNCTION_WRITERS, FUNCTIONS, POOL, STREAMS, WRITERS};

/// Makes `session` the current one after telling it of all memory and kernels. What comes
/// and goes meanwhile waits at the tables' locks, so nothing is told twice or missed.
pub fn all(session: *mut Session) {
    let pool = POOL.lock();
    let _writers = WRITERS.lock();
    let _function_writers = FUNCTION_WRITERS.lock();
    {
        // SAFETY: the caller's session, which no hook knows yet.
        let session = unsafe { &*session };
        for allocation in ALLOCATIONS.iter() {
            session.push(&managed::record(Kind::ALLOC, &allocation));
        }
        pool.for_each_part(|part| {
            let seq = STREAMS.current() + 1;
            let record = MemoryRecord::new(Kind::USE, u8::MAX, 0, seq, part.address, part.bytes);
            session.push(&record);
        });
        for (number, function) in FUNCTIONS.iter() {
            let name = FUNCTIONS.name(function);
            session.push(&FunctionMessage::new(number, function.parameters(), name));
        }
    }
    session::set(session);
    state::set_recording(true);
}
