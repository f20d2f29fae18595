//! Allocation, copies, hints and questions, as a program sees them.

mod driver;

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use driver::*;

const NONE: StreamHandle = StreamHandle(0);
const DEVICE: Location = Location {
    kind: LocationType::DEVICE,
    id: 0,
};
const HOST: Location = Location {
    kind: LocationType::HOST,
    id: 0,
};
const MIB: usize = 1 << 20;

fn pointer<T: Default>(attribute: PointerAttribute, address: DevicePtr) -> Result<T, CuResult> {
    let mut value = T::default();
    // SAFETY: the caller asks for the attribute's type.
    unsafe { cuPointerGetAttribute((&raw mut value).cast(), attribute, address) }.ok()?;
    Ok(value)
}

fn range(attribute: RangeAttribute, address: DevicePtr, bytes: usize) -> Result<c_int, CuResult> {
    let mut value = 0;
    // SAFETY: four bytes, as the call says.
    unsafe { cuMemRangeGetAttribute((&raw mut value).cast(), 4, attribute, address, bytes) }
        .ok()?;
    Ok(value)
}

#[test]
fn copies_carry_bytes_between_every_two_kinds_of_memory() {
    let context = Context::new();
    let source: Vec<u8> = (0..300_000u32).map(|i| (i * 7 % 251) as u8).collect();
    let bytes = source.len();
    let mut pinned = null_mut();
    // SAFETY: all ranges have `bytes` bytes.
    unsafe {
        ok(cuMemHostAlloc(&mut pinned, bytes, 0));
        let places = [
            context.device_memory(bytes),
            pinned as DevicePtr,
            context.managed(bytes),
            context.device_memory(bytes),
        ];
        ok(cuMemcpyHtoD_v2(places[0], source.as_ptr().cast(), bytes));
        for pair in places.windows(2) {
            ok(cuMemcpyAsync(pair[1], pair[0], bytes, NONE));
        }
        let mut back = vec![0u8; bytes];
        ok(cuMemcpy(back.as_mut_ptr() as u64, places[3], bytes));
        assert!(back == source);
        assert_eq!(
            std::slice::from_raw_parts(places[2] as *const u8, bytes),
            source
        );
        ok(cuMemFreeHost(pinned));
    }
}

#[test]
fn a_small_copy_of_pageable_memory_is_taken_when_the_call_returns() {
    let context = Context::new();
    let stream = context.stream(STREAM_NON_BLOCKING);
    let gate = Gate::new(&context);
    let memory = context.device_memory(4096);
    let mut word = 5u32;
    gate.stop(stream, 1);
    // SAFETY: four bytes on both sides.
    unsafe {
        ok(cuMemcpyHtoDAsync_v2(
            memory,
            (&raw const word).cast(),
            4,
            stream,
        ));
        (&raw mut word).write_volatile(6);
        gate.set(1);
        ok(cuStreamSynchronize(stream));
    }
    assert_eq!(context.read(memory, 1), [5]);
}

#[test]
fn memsets_write_elements_of_each_size() {
    let context = Context::new();
    let memory = context.device_memory(4096);
    // SAFETY: inside the allocation, or refused.
    unsafe {
        ok(cuMemsetD32_v2(memory, 0x0403_0201, 4));
        ok(cuMemsetD16_v2(memory + 4, 0xbbaa, 1));
        ok(cuMemsetD8_v2(memory + 9, 0xff, 2));
        assert_eq!(
            context.read(memory, 4),
            [0x0403_0201, 0x0403_bbaa, 0x04ff_ff01, 0x0403_0201]
        );
        ok(cuMemsetD8_v2(memory, 0, 0));
        assert_eq!(
            cuMemsetD32_v2(memory + 2, 0, 1),
            CuResult::INVALID_VALUE,
            "unaligned"
        );
        assert_eq!(
            cuMemsetD8_v2(memory, 0, 4097),
            CuResult::INVALID_VALUE,
            "too long"
        );
        assert_eq!(
            cuMemsetD32_v2(memory, 0, usize::MAX / 2),
            CuResult::INVALID_VALUE
        );
        assert_eq!(
            cuMemsetD8_v2(0x1000, 0, 1),
            CuResult::INVALID_VALUE,
            "nobody's"
        );
    }
}

#[test]
fn copies_outside_allocations_and_of_null_are_refused() {
    let context = Context::new();
    let memory = context.device_memory(4096);
    let mut host = [0u8; 8192];
    let to = host.as_mut_ptr().cast::<c_void>();
    // SAFETY: refused before anything is copied.
    unsafe {
        assert_eq!(cuMemcpyDtoH_v2(to, memory, 8192), CuResult::INVALID_VALUE);
        assert_eq!(
            cuMemcpyDtoH_v2(null_mut(), memory, 1),
            CuResult::INVALID_VALUE
        );
        assert_eq!(cuMemcpyDtoH_v2(to, 0, 1), CuResult::INVALID_VALUE);
        assert_eq!(cuMemcpyHtoD_v2(0x7777_0000, to, 1), CuResult::INVALID_VALUE);
        ok(cuMemcpyDtoH_v2(null_mut(), memory, 0));
    }
}

#[test]
fn memory_is_freed_once_and_reported() {
    let context = Context::new();
    let (mut before, mut after, mut total) = (0, 0, 0);
    // SAFETY: valid places for the results.
    unsafe {
        ok(cuMemGetInfo_v2(&mut before, &mut total));
        assert_eq!(total, 64 * MIB);
        let memory = context.device_memory(4 * MIB);
        ok(cuMemGetInfo_v2(&mut after, null_mut()));
        assert!(after < total);
        assert_eq!(
            cuMemFree_v2(memory + 4),
            CuResult::INVALID_VALUE,
            "not its begin"
        );
        ok(cuMemFree_v2(memory));
        assert_eq!(cuMemFree_v2(memory), CuResult::INVALID_VALUE);
        ok(cuMemFree_v2(0));
        let mut address = 0;
        assert_eq!(
            cuMemAlloc_v2(&mut address, 65 * MIB),
            CuResult::OUT_OF_MEMORY
        );
        assert_eq!(cuMemAlloc_v2(&mut address, 0), CuResult::INVALID_VALUE);
        assert_eq!(cuMemAlloc_v2(null_mut(), 1), CuResult::INVALID_VALUE);
        assert_eq!(
            cuMemAllocManaged(&mut address, 1, 3),
            CuResult::INVALID_VALUE
        );
    }
}

#[test]
fn stream_ordered_memory_is_freed_in_its_turn_and_then_used_again() {
    let context = Context::new();
    let stream = context.stream(STREAM_NON_BLOCKING);
    let gate = Gate::new(&context);
    let mut address = 0;
    // SAFETY: valid places for the results and ranges inside the allocations.
    unsafe {
        ok(cuMemAllocAsync(&mut address, 4 * MIB, stream));
        gate.stop(stream, 1);
        ok(cuMemsetD8Async(address, 7, 4 * MIB, stream));
        ok(cuMemFreeAsync(address, stream));
        assert_eq!(cuMemFreeAsync(address, stream), CuResult::INVALID_VALUE);
        assert_eq!(cuMemFree_v2(address), CuResult::INVALID_VALUE);
        gate.set(1);
        // More than the device has, one after the other, without a wait by the program.
        for _ in 0..40 {
            ok(cuMemAllocAsync(&mut address, 4 * MIB, stream));
            ok(cuMemsetD8Async(address, 1, 4 * MIB, stream));
            ok(cuMemFreeAsync(address, stream));
        }
        ok(cuStreamSynchronize(stream));
        let mut pool = PoolHandle(0);
        ok(cuDeviceGetDefaultMemPool(&mut pool, 0));
        let mut threshold = 1u64 << 30;
        ok(cuMemPoolSetAttribute(pool, 4, (&raw mut threshold).cast()));
        threshold = 0;
        ok(cuMemPoolGetAttribute(pool, 4, (&raw mut threshold).cast()));
        assert_eq!(threshold, 1 << 30);
    }
}

#[test]
fn pointers_tell_what_they_are() {
    let context = Context::new();
    let (device, managed) = (context.device_memory(4096), context.managed(3 * MIB));
    let gate = Gate::new(&context);
    let host = gate.address();
    use PointerAttribute as A;
    assert_eq!(
        pointer::<u32>(A::MEMORY_TYPE, device),
        Ok(MEMORYTYPE_DEVICE)
    );
    assert_eq!(
        pointer::<u32>(A::MEMORY_TYPE, managed),
        Ok(MEMORYTYPE_DEVICE)
    );
    assert_eq!(pointer::<u32>(A::MEMORY_TYPE, host), Ok(MEMORYTYPE_HOST));
    assert_eq!(pointer::<bool>(A::IS_MANAGED, managed + 5), Ok(true));
    assert_eq!(pointer::<bool>(A::IS_MANAGED, device), Ok(false));
    assert_eq!(
        pointer::<u64>(A::RANGE_START_ADDR, managed + MIB as u64),
        Ok(managed)
    );
    assert_eq!(pointer::<usize>(A::RANGE_SIZE, managed), Ok(3 * MIB));
    assert_eq!(
        pointer::<u64>(A::HOST_POINTER, managed + 4),
        Ok(managed + 4)
    );
    assert_eq!(
        pointer::<u64>(A::HOST_POINTER, device),
        Err(CuResult::INVALID_VALUE)
    );
    assert_eq!(pointer::<usize>(A::CONTEXT, device), Ok(context.0.0));
    assert_ne!(
        pointer::<u64>(A::BUFFER_ID, device),
        pointer::<u64>(A::BUFFER_ID, managed)
    );
    assert_eq!(
        pointer::<u32>(A::MEMORY_TYPE, 0x1000),
        Err(CuResult::INVALID_VALUE)
    );
    assert_eq!(
        pointer::<u64>(PointerAttribute(99), device),
        Err(CuResult::INVALID_VALUE)
    );

    let (mut base, mut bytes) = (0, 0);
    let (mut kind, mut is_managed) = (9u32, true);
    let mut attributes = [A::MEMORY_TYPE, A::IS_MANAGED];
    let mut data = [
        (&raw mut kind).cast::<c_void>(),
        (&raw mut is_managed).cast(),
    ];
    // SAFETY: places of the attributes' types.
    unsafe {
        ok(cuMemGetAddressRange_v2(
            &mut base,
            &mut bytes,
            managed + 100,
        ));
        assert_eq!((base, bytes), (managed, 3 * MIB));
        ok(cuPointerGetAttributes(
            2,
            attributes.as_mut_ptr(),
            data.as_mut_ptr(),
            0x1000,
        ));
        assert_eq!(
            ((&raw const kind).read(), (&raw const is_managed).read()),
            (0, false)
        );
        ok(cuPointerGetAttributes(
            2,
            attributes.as_mut_ptr(),
            data.as_mut_ptr(),
            managed,
        ));
        assert_eq!(
            ((&raw const kind).read(), (&raw const is_managed).read()),
            (2, true)
        );
    }
}

#[test]
fn prefetches_and_advice_are_remembered_and_content_stays() {
    let context = Context::new();
    let stream = context.stream(STREAM_NON_BLOCKING);
    let memory = context.managed(8 * MIB);
    use RangeAttribute as R;
    // SAFETY: inside the allocation; the CPU reads it when the stream is done.
    unsafe {
        *(memory as *mut u32) = 42;
        ok(cuMemPrefetchAsync_v2(memory, 4 * MIB, DEVICE, 0, stream));
        ok(cuStreamSynchronize(stream));
        assert_eq!(range(R::LAST_PREFETCH_LOCATION, memory, 4 * MIB), Ok(0));
        assert_eq!(
            range(R::LAST_PREFETCH_LOCATION, memory, 8 * MIB),
            Ok(DEVICE_INVALID)
        );
        assert_eq!(
            range(R::LAST_PREFETCH_LOCATION_TYPE, memory, 4 * MIB),
            Ok(1)
        );
        ok(cuMemPrefetchAsync(memory, 4 * MIB, DEVICE_CPU, stream));
        ok(cuStreamSynchronize(stream));
        assert_eq!(
            range(R::LAST_PREFETCH_LOCATION, memory, 4 * MIB),
            Ok(DEVICE_CPU)
        );
        assert_eq!(*(memory as *const u32), 42);
        ok(cuMemAdvise_v2(
            memory,
            8 * MIB,
            Advice::SET_PREFERRED_LOCATION,
            HOST,
        ));
        assert_eq!(
            range(R::PREFERRED_LOCATION, memory, 8 * MIB),
            Ok(DEVICE_CPU)
        );
        ok(cuMemAdvise(memory, 8 * MIB, Advice::SET_ACCESSED_BY, 0));
        assert_eq!(range(R::ACCESSED_BY, memory, 8 * MIB), Ok(0));
        ok(cuMemAdvise(
            memory,
            8 * MIB,
            Advice::UNSET_PREFERRED_LOCATION,
            0,
        ));
        assert_eq!(range(R::PREFERRED_LOCATION_TYPE, memory, 8 * MIB), Ok(0));
    }
}

#[test]
fn what_is_not_managed_or_not_a_place_is_refused() {
    let context = Context::new();
    let (device, managed) = (context.device_memory(MIB), context.managed(2 * MIB));
    let elsewhere = Location {
        kind: LocationType::DEVICE,
        id: 3,
    };
    let nowhere = Location {
        kind: LocationType(77),
        id: 0,
    };
    // SAFETY: refused.
    unsafe {
        let to = |address, bytes, place| cuMemPrefetchAsync_v2(address, bytes, place, 0, NONE);
        assert_eq!(to(device, MIB, DEVICE), CuResult::INVALID_VALUE);
        assert_eq!(to(managed, 3 * MIB, DEVICE), CuResult::INVALID_VALUE);
        assert_eq!(to(managed, 0, DEVICE), CuResult::INVALID_VALUE);
        assert_eq!(to(managed, MIB, elsewhere), CuResult::INVALID_DEVICE);
        assert_eq!(to(managed, MIB, nowhere), CuResult::INVALID_VALUE);
        assert_eq!(
            cuMemPrefetchAsync(managed, MIB, 9, NONE),
            CuResult::INVALID_DEVICE
        );
        assert_eq!(
            cuMemPrefetchAsync_v2(managed, MIB, DEVICE, 1, NONE),
            CuResult::INVALID_VALUE
        );
        assert_eq!(
            cuMemAdvise(managed, MIB, Advice(99), 0),
            CuResult::INVALID_VALUE
        );
        let mostly = cuMemAdvise(managed, MIB, Advice::SET_READ_MOSTLY, 0);
        assert_eq!(mostly, CuResult::NOT_SUPPORTED);
        assert!(oversub_softgpu::stats::unsupported().contains_key("cuMemAdvise(SET_READ_MOSTLY)"));
    }
}

#[test]
fn batches_move_and_discard_each_range_as_its_place_says() {
    let context = Context::new();
    let stream = context.stream(STREAM_NON_BLOCKING);
    let memory = context.managed(8 * MIB);
    let (mut addresses, mut sizes) = (
        [0u64, 2, 4, 6].map(|at| memory + at * MIB as u64),
        [2 * MIB; 4],
    );
    let mut batch = |locations: &mut [Location], first: &mut [usize], flags, stream| {
        // SAFETY: arrays of the lengths that are passed.
        unsafe {
            cuMemPrefetchBatchAsync(
                addresses.as_mut_ptr(),
                sizes.as_mut_ptr(),
                4,
                locations.as_mut_ptr(),
                first.as_mut_ptr(),
                first.len(),
                flags,
                stream,
            )
        }
    };
    ok(batch(&mut [DEVICE, HOST], &mut [0, 3], 0, stream));
    // SAFETY: no pointers.
    ok(unsafe { cuStreamSynchronize(stream) });
    let last = |at: u64| {
        range(
            RangeAttribute::LAST_PREFETCH_LOCATION,
            memory + at * MIB as u64,
            2 * MIB,
        )
    };
    assert_eq!(
        [0, 2, 4, 6].map(last),
        [Ok(0), Ok(0), Ok(0), Ok(DEVICE_CPU)]
    );
    for (first, what) in [
        ([1, 3], "not from the first on"),
        ([0, 0], "not ascending"),
        ([0, 4], "beyond"),
    ] {
        let result = batch(&mut [DEVICE, HOST], &mut first.clone(), 0, stream);
        assert_eq!(result, CuResult::INVALID_VALUE, "{what}");
    }
    assert_eq!(
        batch(&mut [DEVICE], &mut [0], 1, stream),
        CuResult::INVALID_VALUE,
        "flags"
    );
    assert_eq!(
        batch(&mut [DEVICE], &mut [0], 0, NONE),
        CuResult::INVALID_VALUE,
        "legacy stream"
    );
    // SAFETY: arrays of the lengths that are passed.
    unsafe {
        ok(cuMemsetD8Async(memory, 3, 8 * MIB, stream));
        ok(cuStreamSynchronize(stream));
        let discard = cuMemDiscardBatchAsync;
        ok(discard(
            addresses.as_mut_ptr(),
            sizes.as_mut_ptr(),
            2,
            0,
            stream,
        ));
        ok(cuStreamSynchronize(stream));
        assert_eq!(
            *((memory + 5 * MIB as u64) as *const u8),
            3,
            "not discarded"
        );
        let nothing = discard(addresses.as_mut_ptr(), sizes.as_mut_ptr(), 0, 0, stream);
        assert_eq!(nothing, CuResult::INVALID_VALUE);
    }
}

#[test]
fn host_memory_is_registered_once_and_released_by_its_own_call() {
    let context = Context::new();
    let _ = &context;
    let mut memory = vec![0u8; 8192];
    let base = memory.as_mut_ptr().cast::<c_void>();
    let (mut address, mut flags, mut allocated) = (0, 0, null_mut());
    // SAFETY: the memory outlives its registration.
    unsafe {
        ok(cuMemHostRegister_v2(base, 8192, 2));
        let again = cuMemHostRegister_v2(base.wrapping_byte_add(4096), 8192, 0);
        assert_eq!(again, CuResult::HOST_MEMORY_ALREADY_REGISTERED);
        ok(cuMemHostGetDevicePointer_v2(
            &mut address,
            base.wrapping_byte_add(8),
            0,
        ));
        assert_eq!(address, base as u64 + 8);
        ok(cuMemHostGetFlags(&mut flags, base));
        assert_eq!(flags, 2);
        assert_eq!(
            cuMemFreeHost(base),
            CuResult::INVALID_VALUE,
            "it was not allocated"
        );
        ok(cuMemHostUnregister(base));
        assert_eq!(
            cuMemHostUnregister(base),
            CuResult::HOST_MEMORY_NOT_REGISTERED
        );
        let gone = cuMemHostGetDevicePointer_v2(&mut address, base, 0);
        assert_eq!(gone, CuResult::INVALID_VALUE);
        ok(cuMemAllocHost_v2(&mut allocated, 4096));
        let result = cuMemHostUnregister(allocated);
        assert_eq!(
            result,
            CuResult::HOST_MEMORY_NOT_REGISTERED,
            "it was allocated"
        );
        ok(cuMemFreeHost(allocated));
    }
}

#[test]
fn a_context_takes_its_memory_and_its_handles_with_it() {
    let outer = Context::new();
    let _ = &outer;
    let inner = Context::new();
    let (stream, memory) = (inner.stream(0), inner.managed(MIB));
    let handle = inner.0;
    drop(inner);
    let mut context = ContextHandle(0);
    // SAFETY: valid places for the results; dead handles are refused.
    unsafe {
        ok(cuCtxGetCurrent(&mut context));
        assert_eq!(context, outer.0);
        assert_eq!(cuCtxSetCurrent(handle), CuResult::INVALID_CONTEXT);
        assert_eq!(cuStreamSynchronize(stream), CuResult::INVALID_HANDLE);
        assert_eq!(cuMemFree_v2(memory), CuResult::INVALID_VALUE);
        assert_eq!(cuCtxDestroy_v2(handle), CuResult::INVALID_CONTEXT);
    }
}

#[test]
fn without_a_context_calls_that_need_one_are_refused() {
    driver::init();
    std::thread::spawn(|| {
        let mut address = 0;
        let mut stream = StreamHandle(0);
        // SAFETY: valid places for the results.
        unsafe {
            assert_eq!(cuMemAlloc_v2(&mut address, 4096), CuResult::INVALID_CONTEXT);
            assert_eq!(cuStreamCreate(&mut stream, 0), CuResult::INVALID_CONTEXT);
            assert_eq!(cuCtxSynchronize(), CuResult::INVALID_CONTEXT);
            assert_eq!(cuCtxPopCurrent_v2(null_mut()), CuResult::INVALID_CONTEXT);
            let mut context = ContextHandle(7);
            ok(cuCtxGetCurrent(&mut context));
            assert_eq!(context, ContextHandle(0));
            ok(cuDevicePrimaryCtxRetain(&mut context, 0));
            ok(cuCtxPushCurrent_v2(context));
            ok(cuMemAlloc_v2(&mut address, 4096));
            assert_eq!(
                cuCtxDestroy_v2(context),
                CuResult::INVALID_CONTEXT,
                "the primary one"
            );
            ok(cuDevicePrimaryCtxRelease_v2(0));
            assert_eq!(
                cuMemAlloc_v2(&mut address, 4096),
                CuResult::CONTEXT_IS_DESTROYED
            );
            assert_eq!(cuDevicePrimaryCtxRelease_v2(0), CuResult::INVALID_CONTEXT);
        }
    })
    .join()
    .expect("no panic");
}
