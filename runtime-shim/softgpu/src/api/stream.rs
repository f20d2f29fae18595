//! Streams: making, ending, waiting, and the words that streams write and wait for.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use super::{Answer, DefaultStream, put, put_if_wanted, stream};
use crate::abi::{
    ContextHandle, CuResult, DevicePtr, EventHandle, HostFunction, STREAM_LEGACY,
    STREAM_NON_BLOCKING, STREAM_PER_THREAD, StreamCallback, StreamHandle,
};
use crate::allocations;
use crate::context::{STREAMS, usable};
use crate::driver;
use crate::stream::Stream;
use crate::stream::op::{Op, WaitValue};

/// `CU_STREAM_WAIT_VALUE_FLUSH`: nothing to flush here.
const WAIT_FLUSH: c_uint = 1 << 30;
/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`.
const WRITE_NO_BARRIER: c_uint = 1;

pub(super) unsafe fn create(to: *mut StreamHandle, flags: c_uint) -> Answer {
    driver::ready()?;
    let context = usable()?;
    if flags & !STREAM_NON_BLOCKING != 0 || to.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    let (handle, _) = context.add_stream(flags)?;
    // SAFETY: the program's pointer.
    unsafe { put(to, StreamHandle(handle)) }
}

/// Priorities are taken and not honoured, as `cuCtxGetStreamPriorityRange` says.
pub(super) unsafe fn create_with_priority(
    to: *mut StreamHandle,
    flags: c_uint,
    _priority: c_int,
) -> Answer {
    // SAFETY: as this call.
    unsafe { create(to, flags) }
}

pub(super) unsafe fn destroy(handle: StreamHandle) -> Answer {
    driver::ready()?;
    // What it still has to do is done; the object is used again behind that.
    STREAMS
        .remove(handle.0)
        .ok_or(CuResult::INVALID_HANDLE)?
        .close();
    Ok(())
}

/// Whether it is a legacy stream with unfinished work in streams that it waits for.
fn is_behind_others(stream: &'static Stream) -> bool {
    let context = stream.context();
    std::ptr::eq(stream, context.legacy())
        && context
            .blocking_streams()
            .iter()
            .any(|s| s.completed() < s.enqueued())
}

pub(super) unsafe fn synchronize(default: DefaultStream, handle: StreamHandle) -> Answer {
    let stream = stream(default, handle)?;
    let end = match is_behind_others(stream) {
        true => stream.push(Op::Mark),
        false => stream.enqueued(),
    };
    stream.wait_for(end);
    stream.context().error()
}

pub(super) unsafe fn query(default: DefaultStream, handle: StreamHandle) -> Answer {
    let stream = stream(default, handle)?;
    if stream.completed() < stream.enqueued() || is_behind_others(stream) {
        return Err(CuResult::NOT_READY);
    }
    stream.context().error()
}

pub(super) unsafe fn wait_event(
    default: DefaultStream,
    handle: StreamHandle,
    event: EventHandle,
    flags: c_uint,
) -> Answer {
    let stream = stream(default, handle)?;
    if flags > 1 {
        return Err(CuResult::INVALID_VALUE);
    }
    let event = super::event::event_of(event)?;
    match event.position() {
        Some(position) if !position.reached() && !std::ptr::eq(position.stream, stream) => {
            let (other, sequence) = (position.stream, position.sequence);
            stream.push(Op::Wait {
                stream: other,
                sequence,
            });
        }
        _ => {}
    }
    Ok(())
}

pub(super) unsafe fn context(
    default: DefaultStream,
    handle: StreamHandle,
    to: *mut ContextHandle,
) -> Answer {
    let context = stream(default, handle)?.context().handle();
    // SAFETY: the program's pointer.
    unsafe {
        put(
            to,
            ContextHandle(context.ok_or(CuResult::CONTEXT_IS_DESTROYED)?),
        )
    }
}

pub(super) unsafe fn context_v2(
    default: DefaultStream,
    handle: StreamHandle,
    to: *mut ContextHandle,
    green: *mut usize,
) -> Answer {
    // SAFETY: as this call; there are no green contexts.
    unsafe {
        context(default, handle, to)?;
        put_if_wanted(green, 0);
    }
    Ok(())
}

pub(super) unsafe fn flags(
    default: DefaultStream,
    handle: StreamHandle,
    flags: *mut c_uint,
) -> Answer {
    let answer = stream(default, handle)?.flags();
    // SAFETY: the program's pointer.
    unsafe { put(flags, answer) }
}

pub(super) unsafe fn priority(
    default: DefaultStream,
    handle: StreamHandle,
    priority: *mut c_int,
) -> Answer {
    stream(default, handle)?;
    // SAFETY: the program's pointer.
    unsafe { put(priority, 0) }
}

pub(super) unsafe fn id(
    default: DefaultStream,
    handle: StreamHandle,
    id: *mut c_ulonglong,
) -> Answer {
    let answer = match handle.0 {
        STREAM_LEGACY | STREAM_PER_THREAD => handle.0 as u64,
        _ => stream(default, handle)?.index() as u64 + 3,
    };
    // SAFETY: the program's pointer.
    unsafe { put(id, answer) }
}

/// Nothing is ever captured: `CU_STREAM_CAPTURE_STATUS_NONE`.
pub(super) unsafe fn is_capturing(
    default: DefaultStream,
    handle: StreamHandle,
    status: *mut c_uint,
) -> Answer {
    stream(default, handle)?;
    // SAFETY: the program's pointer.
    unsafe { put(status, 0) }
}

pub(super) unsafe fn capture_info_v2(
    default: DefaultStream,
    handle: StreamHandle,
    status: *mut c_uint,
    _id: *mut u64,
    _graph: *mut usize,
    _dependencies: *mut *const c_void,
    _count: *mut usize,
) -> Answer {
    // SAFETY: as this call; the rest is only set for a stream that is captured.
    unsafe { is_capturing(default, handle, status) }
}

#[expect(clippy::too_many_arguments, reason = "the driver's interface")]
pub(super) unsafe fn capture_info_v3(
    default: DefaultStream,
    handle: StreamHandle,
    status: *mut c_uint,
    _id: *mut u64,
    _graph: *mut usize,
    _dependencies: *mut *const c_void,
    _edges: *mut *const c_void,
    _count: *mut usize,
) -> Answer {
    // SAFETY: as this call; the rest is only set for a stream that is captured.
    unsafe { is_capturing(default, handle, status) }
}

/// There is no capture, so all modes are the same; the exchange is remembered.
pub(super) unsafe fn exchange_capture_mode(mode: *mut c_uint) -> Answer {
    thread_local! { static MODE: std::cell::Cell<c_uint> = const { std::cell::Cell::new(0) }; }
    driver::ready()?;
    if mode.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: the program's pointer.
    let next = unsafe { mode.read() };
    if next > 2 {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: the program's pointer.
    unsafe { put(mode, MODE.replace(next)) }
}

pub(super) unsafe fn launch_host_function(
    default: DefaultStream,
    handle: StreamHandle,
    function: HostFunction,
    argument: *mut c_void,
) -> Answer {
    let stream = stream(default, handle)?;
    if function.is_none() {
        return Err(CuResult::INVALID_VALUE);
    }
    stream.push(Op::Host {
        function,
        argument: argument as usize,
    });
    Ok(())
}

pub(super) unsafe fn add_callback(
    default: DefaultStream,
    handle: StreamHandle,
    function: StreamCallback,
    argument: *mut c_void,
    flags: c_uint,
) -> Answer {
    let stream = stream(default, handle)?;
    if function.is_none() || flags != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    stream.push(Op::Callback {
        function,
        stream: handle,
        argument: argument as usize,
    });
    Ok(())
}

/// The place of a word: in device memory, or in pinned host memory.
fn word(address: DevicePtr, bytes: u8) -> Result<crate::memory::Place, CuResult> {
    if !address.is_multiple_of(bytes as u64) {
        return Err(CuResult::INVALID_VALUE);
    }
    let place = allocations::place(address, bytes as u64)?;
    let host = matches!(place, crate::memory::Place::Host(_));
    if host && !allocations::is_pinned(address, bytes as u64) {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(place)
}

fn write(
    default: DefaultStream,
    handle: StreamHandle,
    address: DevicePtr,
    value: u64,
    bytes: u8,
    flags: c_uint,
) -> Answer {
    let stream = stream(default, handle)?;
    if flags & !WRITE_NO_BARRIER != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    stream.push(Op::Write {
        to: word(address, bytes)?,
        value,
        bytes,
    });
    Ok(())
}

fn wait(
    default: DefaultStream,
    handle: StreamHandle,
    address: DevicePtr,
    value: u64,
    bytes: u8,
    flags: c_uint,
) -> Answer {
    let stream = stream(default, handle)?;
    let compare = flags & !WAIT_FLUSH;
    if compare > 3 {
        return Err(CuResult::INVALID_VALUE);
    }
    stream.push(Op::WaitValue(WaitValue {
        from: word(address, bytes)?,
        value,
        compare,
        bytes,
    }));
    Ok(())
}

pub(super) unsafe fn write_value_32(
    default: DefaultStream,
    handle: StreamHandle,
    address: DevicePtr,
    value: u32,
    flags: c_uint,
) -> Answer {
    write(default, handle, address, value as u64, 4, flags)
}

pub(super) unsafe fn write_value_64(
    default: DefaultStream,
    handle: StreamHandle,
    address: DevicePtr,
    value: u64,
    flags: c_uint,
) -> Answer {
    write(default, handle, address, value, 8, flags)
}

pub(super) unsafe fn wait_value_32(
    default: DefaultStream,
    handle: StreamHandle,
    address: DevicePtr,
    value: u32,
    flags: c_uint,
) -> Answer {
    wait(default, handle, address, value as u64, 4, flags)
}

pub(super) unsafe fn wait_value_64(
    default: DefaultStream,
    handle: StreamHandle,
    address: DevicePtr,
    value: u64,
    flags: c_uint,
) -> Answer {
    wait(default, handle, address, value, 8, flags)
}
