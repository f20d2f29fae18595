//! Events.

use std::ffi::c_uint;
use std::sync::{Mutex, PoisonError};

use super::{Answer, DefaultStream, put, stream};
use crate::abi::{CuResult, EventHandle, StreamHandle};
use crate::context::usable;
use crate::driver;
use crate::handle::Table;
use crate::stream::event::{Event, Position};
use crate::stream::op::Op;

/// All events.
static EVENTS: Table<Event> = Table::new(3);
/// Events that have ended and can be used again.
static FREE: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// `CU_EVENT_BLOCKING_SYNC`, `DISABLE_TIMING`, `INTERPROCESS`.
const FLAGS: c_uint = 7;
/// `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: c_uint = 4;

/// The event of a handle.
///
/// # Errors
/// `INVALID_HANDLE`.
pub(super) fn event_of(handle: EventHandle) -> Result<&'static Event, CuResult> {
    EVENTS.get(handle.0).ok_or(CuResult::INVALID_HANDLE)
}

pub(super) unsafe fn create(to: *mut EventHandle, flags: c_uint) -> Answer {
    driver::ready()?;
    usable()?;
    if flags & !FLAGS != 0 || to.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    if flags & INTERPROCESS != 0 {
        return super::refuse("cuEventCreate(INTERPROCESS)");
    }
    let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let made = match free {
        Some(index) => EVENTS
            .revive(index)
            .inspect(|(_, event)| event.renew(flags)),
        None => EVENTS.insert(|index| Event::new(index, flags)),
    };
    let (handle, _) = made.ok_or(CuResult::OUT_OF_MEMORY)?;
    // SAFETY: the program's pointer.
    unsafe { put(to, EventHandle(handle)) }
}

pub(super) unsafe fn destroy(handle: EventHandle) -> Answer {
    driver::ready()?;
    let event = EVENTS.remove(handle.0).ok_or(CuResult::INVALID_HANDLE)?;
    FREE.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(event.index());
    Ok(())
}

pub(super) unsafe fn record(
    default: DefaultStream,
    event: EventHandle,
    handle: StreamHandle,
) -> Answer {
    let stream = stream(default, handle)?;
    let event = event_of(event)?;
    let record = event.begin_record();
    let sequence = stream.push(Op::Record { event, record });
    event.place_record(record, Position { stream, sequence });
    Ok(())
}

pub(super) unsafe fn record_with_flags(
    default: DefaultStream,
    event: EventHandle,
    handle: StreamHandle,
    flags: c_uint,
) -> Answer {
    if flags != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: as this call.
    unsafe { record(default, event, handle) }
}

pub(super) unsafe fn query(event: EventHandle) -> Answer {
    driver::ready()?;
    match event_of(event)?.position() {
        Some(position) if !position.reached() => Err(CuResult::NOT_READY),
        Some(position) => position.stream.context().error(),
        None => Ok(()),
    }
}

pub(super) unsafe fn synchronize(event: EventHandle) -> Answer {
    driver::ready()?;
    match event_of(event)?.position() {
        Some(position) => {
            position.stream.wait_for(position.sequence);
            position.stream.context().error()
        }
        None => Ok(()),
    }
}

pub(super) unsafe fn elapsed_time(
    milliseconds: *mut f32,
    begin: EventHandle,
    end: EventHandle,
) -> Answer {
    driver::ready()?;
    let (begin, end) = (event_of(begin)?.time()?, event_of(end)?.time()?);
    let seconds = match end.checked_duration_since(begin) {
        Some(later) => later.as_secs_f64(),
        None => -begin.duration_since(end).as_secs_f64(),
    };
    // SAFETY: the program's pointer.
    unsafe { put(milliseconds, (seconds * 1e3) as f32) }
}
