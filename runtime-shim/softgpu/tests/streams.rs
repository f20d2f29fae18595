//! Order inside a stream, between streams, and what runs side by side. A stream is held
//! by a word in memory ([`driver::Gate`]), so that order is shown and not timed.

mod driver;

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use driver::*;

const NON_BLOCKING: u32 = STREAM_NON_BLOCKING;

fn query(stream: StreamHandle) -> CuResult {
    // SAFETY: no pointers.
    unsafe { cuStreamQuery(stream) }
}

fn synchronize(stream: StreamHandle) {
    // SAFETY: no pointers.
    ok(unsafe { cuStreamSynchronize(stream) });
}

fn write(stream: StreamHandle, gate: &Gate, value: u32) {
    // SAFETY: a registered word.
    ok(unsafe { cuStreamWriteValue32_v2(stream, gate.address(), value, 0) });
}

#[test]
fn a_call_returns_before_its_work_is_done_and_streams_do_not_wait_for_each_other() {
    let context = Context::new();
    let (held, free) = (context.stream(NON_BLOCKING), context.stream(NON_BLOCKING));
    let (gate, done) = (Gate::new(&context), Gate::new(&context));
    let memory = context.device_memory(1 << 20);
    gate.stop(held, 1);
    ok(context.fill(held, memory, 1000, 1));
    ok(context.fill(free, memory + 4096, 1000, 1));
    write(free, &done, 1);
    synchronize(free);
    assert_eq!(
        (query(held), query(free), done.get()),
        (CuResult::NOT_READY, CuResult::SUCCESS, 1)
    );
    gate.set(1);
    synchronize(held);
    assert_eq!(
        context.read(memory, 1000),
        context.read(memory + 4096, 1000)
    );
}

#[test]
fn operations_of_a_stream_are_done_in_order() {
    let context = Context::new();
    let stream = context.stream(NON_BLOCKING);
    let (gate, word) = (Gate::new(&context), Gate::new(&context));
    let memory = context.managed(4 << 20);
    gate.stop(stream, 1);
    // SAFETY: the allocation is as large.
    unsafe {
        ok(cuMemsetD32Async(memory, 7, 1 << 20, stream));
        ok(cuMemcpyDtoDAsync_v2(memory + (1 << 20), memory, 4, stream));
        ok(cuMemsetD32Async(memory, 8, 1, stream));
    }
    for value in 1..=100 {
        write(stream, &word, value);
    }
    assert_eq!(word.get(), 0);
    gate.set(1);
    synchronize(stream);
    // SAFETY: managed memory, and the device is done.
    let at = |offset: u64| unsafe { ((memory + offset) as *const u32).read() };
    assert_eq!((at(0), at(4), at(1 << 20), word.get()), (8, 7, 7, 100));
}

#[test]
fn a_stream_waits_for_the_event_as_it_was_when_the_wait_was_enqueued() {
    let context = Context::new();
    let streams = [0; 3].map(|_| context.stream(NON_BLOCKING));
    let (gate, word) = (Gate::new(&context), Gate::new(&context));
    let event = context.event();
    // SAFETY: live handles.
    unsafe {
        gate.stop(streams[0], 1);
        ok(cuEventRecord(event, streams[0]));
        ok(cuStreamWaitEvent(streams[1], event, 0));
        write(streams[1], &word, 1);
        // Recorded again where nothing is pending: the first wait still holds.
        ok(cuEventRecord(event, streams[2]));
        ok(cuEventSynchronize(event));
        assert_eq!((query(streams[1]), word.get()), (CuResult::NOT_READY, 0));
        gate.set(1);
        synchronize(streams[1]);
        assert_eq!(word.get(), 1);
    }
}

#[test]
fn an_event_tells_when_it_is_reached_and_how_long_it_took() {
    let context = Context::new();
    let stream = context.stream(NON_BLOCKING);
    let gate = Gate::new(&context);
    let (begin, end) = (context.event(), context.event());
    let mut milliseconds = 0f32;
    // SAFETY: live handles and a valid place for the result.
    unsafe {
        assert_eq!(cuEventQuery(begin), CuResult::SUCCESS, "never recorded");
        assert_eq!(
            cuEventElapsedTime(&mut milliseconds, begin, end),
            CuResult::INVALID_HANDLE
        );
        ok(cuEventRecord(begin, stream));
        gate.stop(stream, 1);
        ok(cuEventRecord(end, stream));
        assert_eq!(cuEventQuery(end), CuResult::NOT_READY);
        assert_eq!(
            cuEventElapsedTime_v2(&mut milliseconds, begin, end),
            CuResult::NOT_READY
        );
        gate.set(1);
        ok(cuEventSynchronize(end));
        ok(cuEventElapsedTime_v2(&mut milliseconds, begin, end));
        assert!(milliseconds > 0.0);
        ok(cuEventElapsedTime(&mut milliseconds, end, begin));
        assert!(milliseconds < 0.0);
        ok(cuEventDestroy_v2(end));
        assert_eq!(cuEventQuery(end), CuResult::INVALID_HANDLE);
        let mut untimed = EventHandle(0);
        ok(cuEventCreate(&mut untimed, 2));
        ok(cuEventRecord(untimed, stream));
        ok(cuEventSynchronize(untimed));
        assert_eq!(
            cuEventElapsedTime(&mut milliseconds, begin, untimed),
            CuResult::INVALID_HANDLE
        );
    }
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
    let context = Context::new();
    let (blocking, other) = (context.stream(0), context.stream(0));
    let gate = Gate::new(&context);
    let words = [0; 2].map(|_| Gate::new(&context));
    let legacy = StreamHandle(0);
    gate.stop(blocking, 1);
    write(legacy, &words[0], 1);
    write(other, &words[1], 1);
    assert_eq!(
        (query(legacy), query(other)),
        (CuResult::NOT_READY, CuResult::NOT_READY)
    );
    assert_eq!((words[0].get(), words[1].get()), (0, 0));
    gate.set(1);
    synchronize(other);
    assert_eq!((words[0].get(), words[1].get()), (1, 1));
}

#[test]
fn asking_for_the_legacy_stream_enqueues_nothing() {
    let context = Context::new();
    let blocking = context.stream(0);
    let gate = Gate::new(&context);
    gate.stop(blocking, 1);
    // Many more than a stream takes: none of them waits for room.
    for _ in 0..5000 {
        assert_eq!(query(StreamHandle(0)), CuResult::NOT_READY);
    }
    gate.set(1);
    synchronize(StreamHandle(0));
    assert_eq!(query(StreamHandle(0)), CuResult::SUCCESS);
}

#[test]
fn a_non_blocking_stream_takes_no_part_in_that() {
    let context = Context::new();
    let (held, free) = (context.stream(NON_BLOCKING), context.stream(NON_BLOCKING));
    let gate = Gate::new(&context);
    let word = Gate::new(&context);
    gate.stop(held, 1);
    write(StreamHandle(STREAM_LEGACY), &word, 1);
    synchronize(StreamHandle(0));
    assert_eq!(word.get(), 1);
    gate.set(1);
    synchronize(held);
    gate.stop(StreamHandle(0), 2);
    write(free, &word, 2);
    synchronize(free);
    assert_eq!(
        (word.get(), query(StreamHandle(0))),
        (2, CuResult::NOT_READY)
    );
    gate.set(2);
    synchronize(StreamHandle(0));
}

#[test]
fn the_per_thread_entry_points_use_a_stream_of_the_thread() {
    let context = Context::new();
    let gate = Gate::new(&context);
    let word = Gate::new(&context);
    let handle = context.0;
    // SAFETY: registered words and live handles.
    unsafe {
        ok(cuStreamWaitValue32_v2_ptsz(
            StreamHandle(0),
            gate.address(),
            1,
            0,
        ));
        assert_eq!(cuStreamQuery_ptsz(StreamHandle(0)), CuResult::NOT_READY);
        assert_eq!(query(StreamHandle(STREAM_PER_THREAD)), CuResult::NOT_READY);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ok(cuCtxSetCurrent(handle));
                ok(cuStreamWriteValue32_v2_ptsz(
                    StreamHandle(0),
                    word.address(),
                    5,
                    0,
                ));
                ok(cuStreamSynchronize_ptsz(StreamHandle(0)));
            });
        });
        assert_eq!(
            (word.get(), cuStreamQuery_ptsz(StreamHandle(0))),
            (5, CuResult::NOT_READY)
        );
        gate.set(1);
        ok(cuStreamSynchronize_ptsz(StreamHandle(0)));
    }
}

#[test]
fn a_thousand_operations_are_taken_before_a_caller_waits() {
    let context = Context::new();
    let stream = context.stream(NON_BLOCKING);
    let (gate, word) = (Gate::new(&context), Gate::new(&context));
    gate.stop(stream, 1);
    for value in 1..1000 {
        write(stream, &word, value);
    }
    assert_eq!((query(stream), word.get()), (CuResult::NOT_READY, 0));
    gate.set(1);
    // More than the queue holds: the caller waits for room, and all are done.
    for value in 1000..5000 {
        write(stream, &word, value);
    }
    synchronize(stream);
    assert_eq!(word.get(), 4999);
}

#[test]
fn functions_of_the_program_run_in_order_and_do_not_hold_other_streams() {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn call(gate: *mut c_void) {
        // SAFETY: the test passes a gate that outlives the call.
        let gate = unsafe { &*gate.cast::<Gate>() };
        while gate.get() == 0 {
            std::thread::yield_now();
        }
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
    let context = Context::new();
    let (held, free) = (context.stream(NON_BLOCKING), context.stream(NON_BLOCKING));
    let (gate, word) = (Gate::new(&context), Gate::new(&context));
    let memory = context.device_memory(4096);
    // SAFETY: the gate outlives the stream's work.
    ok(unsafe { cuLaunchHostFunc(held, Some(call), (&raw const gate).cast_mut().cast()) });
    write(held, &word, 1);
    ok(context.fill(free, memory, 16, 1));
    synchronize(free);
    assert_eq!((CALLS.load(Ordering::Relaxed), word.get()), (0, 0));
    gate.set(1);
    synchronize(held);
    assert_eq!((CALLS.load(Ordering::Relaxed), word.get()), (1, 1));
}

#[test]
fn a_destroyed_stream_does_what_it_has_and_its_handle_is_dead() {
    let context = Context::new();
    let stream = context.stream(NON_BLOCKING);
    let (gate, word) = (Gate::new(&context), Gate::new(&context));
    gate.stop(stream, 1);
    write(stream, &word, 3);
    // SAFETY: no pointers.
    unsafe {
        ok(cuStreamDestroy_v2(stream));
        assert_eq!(cuStreamDestroy_v2(stream), CuResult::INVALID_HANDLE);
        assert_eq!(query(stream), CuResult::INVALID_HANDLE);
        assert_ne!(context.stream(0), stream);
        gate.set(1);
        ok(cuCtxSynchronize());
    }
    assert_eq!(word.get(), 3);
}

#[test]
fn words_of_device_and_managed_memory_are_written_and_waited_for() {
    let context = Context::new();
    let (writer, waiter) = (context.stream(NON_BLOCKING), context.stream(NON_BLOCKING));
    let done = Gate::new(&context);
    for memory in [context.device_memory(4096), context.managed(4096)] {
        // SAFETY: words inside the allocation.
        unsafe {
            ok(cuMemsetD8_v2(memory, 0, 16));
            ok(cuCtxSynchronize());
            ok(cuStreamWaitValue64_v2(waiter, memory + 8, 1 << 40, 1));
            write(waiter, &done, memory as u32 | 1);
            assert_eq!(query(waiter), CuResult::NOT_READY);
            ok(cuStreamWriteValue64_v2(writer, memory + 8, 1 << 40, 0));
            synchronize(waiter);
            assert_eq!(done.get(), memory as u32 | 1);
            let unaligned = cuStreamWriteValue32_v2(writer, memory + 2, 1, 0);
            assert_eq!(unaligned, CuResult::INVALID_VALUE);
        }
    }
    let plain = 0u32;
    // SAFETY: refused, as the word is not registered.
    let result = unsafe { cuStreamWriteValue32_v2(writer, &raw const plain as u64, 1, 0) };
    assert_eq!(result, CuResult::INVALID_VALUE);
}

#[test]
fn many_threads_and_streams_finish_all_their_work() {
    let context = Context::new();
    let handle = context.0;
    let words: Vec<Gate> = (0..8).map(|_| Gate::new(&context)).collect();
    let memory = context.device_memory(1 << 20);
    std::thread::scope(|scope| {
        for (number, word) in words.iter().enumerate() {
            let context = &context;
            scope.spawn(move || {
                // SAFETY: live handles.
                unsafe {
                    ok(cuCtxSetCurrent(handle));
                    let stream = context.stream((number % 2) as u32);
                    let event = context.event();
                    for round in 1..200 {
                        ok(cuMemsetD32Async(
                            memory + 4096 * number as u64,
                            round,
                            64,
                            stream,
                        ));
                        ok(cuEventRecord(event, stream));
                        ok(cuStreamWaitEvent(StreamHandle(0), event, 0));
                        write(stream, word, round);
                    }
                    synchronize(stream);
                }
            });
        }
    });
    // SAFETY: no pointers.
    ok(unsafe { cuCtxSynchronize() });
    for (number, word) in words.iter().enumerate() {
        assert_eq!(word.get(), 199);
        assert_eq!(context.read(memory + 4096 * number as u64, 1), [199]);
    }
}

/// Whether what is written behind a discard stays, with the stream `held` or idle when the
/// discard is given to it.
fn outlives_a_discard(held: bool) -> bool {
    const WORDS: u64 = 1 << 19;
    let context = Context::new();
    let stream = context.stream(NON_BLOCKING);
    let gate = Gate::new(&context);
    let memory = context.managed(WORDS as usize * 4);
    ok(context.fill(stream, memory, WORDS, 7));
    synchronize(stream);
    if held {
        gate.stop(stream, 1);
    }
    let (mut address, mut bytes) = (memory, WORDS as usize * 4);
    // SAFETY: a managed range.
    ok(unsafe { cuMemDiscardBatchAsync(&mut address, &mut bytes, 1, 0, stream) });
    ok(context.fill(stream, memory, WORDS, 9));
    gate.set(1);
    synchronize(stream);
    std::thread::sleep(std::time::Duration::from_millis(50));
    let expected = context.device_memory(WORDS as usize * 4);
    ok(context.fill(stream, expected, WORDS, 9));
    synchronize(stream);
    context.read(memory, WORDS as usize) == context.read(expected, WORDS as usize)
}

#[test]
fn a_discard_comes_before_what_follows_it_only_in_an_idle_stream() {
    assert!(outlives_a_discard(false));
    assert!(!outlives_a_discard(true));
}
