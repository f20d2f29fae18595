//! Modules, functions, launches: what is taken, what is refused, and how.

mod driver;

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use driver::*;
use oversub_softgpu::stats;

const NONE: StreamHandle = StreamHandle(0);

fn launch(
    function: FunctionHandle,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CuResult {
    let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
    // SAFETY: the parameters are those of the test's function.
    unsafe {
        cuLaunchKernel(
            function, gx, gy, gz, bx, by, bz, shared, NONE, parameters, extra,
        )
    }
}

#[test]
fn parameters_come_from_addresses_or_from_one_buffer() {
    let context = Context::new();
    let memory = context.device_memory(8192);
    ok(context.fill(NONE, memory, 256, 9));

    #[repr(C)]
    struct Buffer {
        out: u64,
        count: u64,
        first: u32,
        seed: u32,
    }
    let mut buffer = Buffer {
        out: memory + 4096,
        count: 256,
        first: 0,
        seed: 9,
    };
    let mut size = size_of::<Buffer>();
    let mut extra = [
        LAUNCH_PARAM_BUFFER_POINTER as *mut c_void,
        (&raw mut buffer).cast(),
        LAUNCH_PARAM_BUFFER_SIZE as *mut c_void,
        (&raw mut size).cast(),
        LAUNCH_PARAM_END as *mut c_void,
    ];
    let function = context.function("fill_u32");
    let mut by_buffer = || {
        launch(
            function,
            [1; 3],
            [256, 1, 1],
            0,
            null_mut(),
            extra.as_mut_ptr(),
        )
    };
    ok(by_buffer());
    let words = context.read(memory, 256);
    assert_eq!(words, context.read(memory + 4096, 256));
    assert!(words.windows(2).any(|w| w[0] != w[1]), "the kernel ran");

    // SAFETY: the size that `extra` points to.
    unsafe { (&raw mut size).write_volatile(size_of::<Buffer>() - 1) };
    assert_eq!(
        by_buffer(),
        CuResult::INVALID_VALUE,
        "a buffer that is too short"
    );
}

#[test]
fn a_launch_by_configuration_is_the_same_launch() {
    let context = Context::new();
    let memory = context.managed(8192);
    ok(context.fill(NONE, memory, 256, 4));
    let (mut out, mut count, mut first, mut seed) = (memory + 4096, 256u64, 0u32, 4u32);
    let mut parameters: [*mut c_void; 4] = [
        (&raw mut out).cast(),
        (&raw mut count).cast(),
        (&raw mut first).cast(),
        (&raw mut seed).cast(),
    ];
    let function = context.function("fill_u32");
    let attribute = |id, value| LaunchAttribute {
        id,
        pad: [0; 4],
        value: [value, 1, 0, 0, 0, 0, 0, 0],
    };
    let mut with = |attributes: &[LaunchAttribute]| {
        let config = LaunchConfig {
            grid: [1; 3],
            block: [256, 1, 1],
            shared_bytes: 0,
            stream: NONE,
            attributes: attributes.as_ptr(),
            attribute_count: attributes.len() as u32,
        };
        // SAFETY: the parameters of `fill_u32`.
        unsafe { cuLaunchKernelEx(&config, function, parameters.as_mut_ptr(), null_mut()) }
    };
    ok(with(&[
        attribute(2, 1),
        attribute(8, 0),
        attribute(4, 1 | 1 << 32),
    ]));
    assert_eq!(
        with(&[attribute(4, 2 | 1 << 32)]),
        CuResult::NOT_SUPPORTED,
        "a cluster"
    );
    assert_eq!(
        with(&[attribute(77, 0)]),
        CuResult::NOT_SUPPORTED,
        "of a newer header"
    );
    assert_eq!(context.read(memory, 256), context.read(memory + 4096, 256));
    // SAFETY: null is refused.
    let nothing = unsafe {
        cuLaunchKernelEx(
            std::ptr::null(),
            function,
            parameters.as_mut_ptr(),
            null_mut(),
        )
    };
    assert_eq!(nothing, CuResult::INVALID_VALUE);
    let cooperative = unsafe {
        // SAFETY: the parameters of `fill_u32`.
        cuLaunchCooperativeKernel(
            function,
            1,
            1,
            1,
            64,
            1,
            1,
            0,
            NONE,
            parameters.as_mut_ptr(),
        )
    };
    ok(cooperative);
}

#[test]
fn a_function_tells_its_name_and_the_layout_of_its_parameters() {
    let context = Context::new();
    let function = context.function("fill_u32");
    let (mut offset, mut size, mut count, mut name) = (0, 0, 0, std::ptr::null());
    // SAFETY: valid places for the results.
    unsafe {
        for (index, expected) in [(0, (0, 8)), (1, (8, 8)), (2, (16, 4)), (3, (20, 4))] {
            ok(cuFuncGetParamInfo(function, index, &mut offset, &mut size));
            assert_eq!((offset, size), expected);
        }
        assert_eq!(
            cuFuncGetParamInfo(function, 4, &mut offset, &mut size),
            CuResult::INVALID_VALUE
        );
        ok(cuFuncGetParamInfo(function, 3, &mut offset, null_mut()));
        ok(cuFuncGetParamCount(function, &mut count));
        ok(cuFuncGetName(&mut name, function));
        assert_eq!((count, CStr::from_ptr(name)), (4, c"fill_u32"));
        let mut threads = 0;
        ok(cuFuncGetAttribute(&mut threads, 0, function));
        assert_eq!(threads, 1024);
        assert_eq!(
            cuFuncGetAttribute(&mut threads, 99, function),
            CuResult::INVALID_VALUE
        );
    }
}

#[test]
fn a_kernel_that_the_soft_gpu_does_not_have_is_refused_and_counted() {
    let context = Context::new();
    let count = || {
        stats::unsupported()
            .get("cuLaunchKernel of an unknown kernel")
            .copied()
            .unwrap_or(0)
    };
    let before = count();
    let mut word = 0u64;
    let mut parameters = [(&raw mut word).cast::<c_void>()];
    // One that it has never heard of, and one that is declared with other parameters.
    for name in ["nobody_has_this", "sweep_step"] {
        let function = context.function(name);
        let result = launch(
            function,
            [1; 3],
            [1; 3],
            0,
            parameters.as_mut_ptr(),
            null_mut(),
        );
        assert_eq!(result, CuResult::NOT_SUPPORTED, "{name}");
    }
    assert!(count() >= before + 2);
    // SAFETY: no pointers.
    ok(unsafe { cuCtxSynchronize() });
}

#[test]
fn shapes_beyond_the_device_and_missing_parameters_are_refused() {
    let context = Context::new();
    let function = context.function("fill_u32");
    let mut word = 0u64;
    let mut parameters = [(&raw mut word).cast::<c_void>(); 4];
    let mut try_shape = |grid, block, shared| {
        launch(
            function,
            grid,
            block,
            shared,
            parameters.as_mut_ptr(),
            null_mut(),
        )
    };
    for (grid, block, shared) in [
        ([0, 1, 1], [1, 1, 1], 0),
        ([1, 65536, 1], [1, 1, 1], 0),
        ([1, 1, 1], [0, 1, 1], 0),
        ([1, 1, 1], [1025, 1, 1], 0),
        ([1, 1, 1], [32, 33, 1], 0),
        ([1, 1, 1], [1, 1, 65], 0),
        ([1, 1, 1], [1, 1, 1], 1 << 20),
    ] {
        assert_eq!(
            try_shape(grid, block, shared),
            CuResult::INVALID_VALUE,
            "{grid:?} {block:?}"
        );
    }
    let none = launch(function, [1; 3], [1; 3], 0, null_mut(), null_mut());
    assert_eq!(none, CuResult::INVALID_VALUE);
    parameters[2] = null_mut();
    let missing = launch(
        function,
        [1; 3],
        [1; 3],
        0,
        parameters.as_mut_ptr(),
        null_mut(),
    );
    assert_eq!(missing, CuResult::INVALID_VALUE);
}

#[test]
fn handles_are_checked() {
    let context = Context::new();
    let module = context.module(PTX);
    let mut function = FunctionHandle(0);
    let mut word = 0u64;
    let mut parameters = [(&raw mut word).cast::<c_void>(); 4];
    // SAFETY: valid places for the results; wrong handles are never followed.
    unsafe {
        let missing = cuModuleGetFunction(&mut function, module, c"absent".as_ptr());
        assert_eq!(missing, CuResult::NOT_FOUND);
        ok(cuModuleGetFunction(
            &mut function,
            module,
            c"fill_u32".as_ptr(),
        ));
        let mut same = FunctionHandle(0);
        ok(cuModuleGetFunction(&mut same, module, c"fill_u32".as_ptr()));
        assert_eq!(function, same);
        ok(cuModuleUnload(module));
        for dead in [
            function,
            FunctionHandle(0),
            FunctionHandle(0x1000),
            FunctionHandle(!0),
        ] {
            let result = launch(dead, [1; 3], [1; 3], 0, parameters.as_mut_ptr(), null_mut());
            assert_eq!(result, CuResult::INVALID_HANDLE, "{dead:?}");
        }
        assert_eq!(cuModuleUnload(module), CuResult::INVALID_HANDLE);
        let gone = cuModuleGetFunction(&mut function, module, c"fill_u32".as_ptr());
        assert_eq!(gone, CuResult::INVALID_HANDLE);
    }
}

#[test]
fn images_that_are_not_ptx_are_refused_by_kind() {
    let context = Context::new();
    let _ = &context;
    let mut module = ModuleHandle(0);
    let mut load = |image: &[u8]| {
        let mut image = image.to_vec();
        image.push(0);
        // SAFETY: the image ends with a zero.
        unsafe { cuModuleLoadData(&mut module, image.as_ptr().cast()) }
    };
    assert_eq!(
        load(b"\x7fELF\x02\x01\x01\x33"),
        CuResult::NO_BINARY_FOR_GPU
    );
    assert_eq!(
        load(&0x466243b1u32.to_le_bytes()),
        CuResult::NO_BINARY_FOR_GPU
    );
    assert_eq!(
        load(&0xba55ed50u32.to_le_bytes()),
        CuResult::NO_BINARY_FOR_GPU
    );
    assert_eq!(load(b"hello"), CuResult::INVALID_IMAGE);
    assert_eq!(load(b""), CuResult::INVALID_IMAGE);
    assert_eq!(load(b"\xff\xfe"), CuResult::INVALID_IMAGE);
    assert_eq!(
        load(b".version 7.0 .entry k(.param .what x)"),
        CuResult::INVALID_PTX
    );
    // SAFETY: null is refused.
    let nothing = unsafe { cuModuleLoadData(&mut module, std::ptr::null()) };
    assert_eq!(nothing, CuResult::INVALID_VALUE);
}

#[test]
fn an_address_that_is_nowhere_ends_the_work_of_its_context_alone() {
    let healthy = Context::new();
    let broken = Context::new();
    let stream = broken.stream(STREAM_NON_BLOCKING);
    // The call is fine: what the kernel does is found out later, as on a GPU.
    ok(broken.fill(stream, 0xdead_0000, 16, 1));
    let mut address = 0;
    // SAFETY: valid places for the results.
    unsafe {
        assert_eq!(cuStreamSynchronize(stream), CuResult::ILLEGAL_ADDRESS);
        assert_eq!(cuCtxSynchronize(), CuResult::ILLEGAL_ADDRESS);
        assert_eq!(cuMemAlloc_v2(&mut address, 4096), CuResult::ILLEGAL_ADDRESS);
        let mut top = ContextHandle(0);
        ok(cuCtxPopCurrent_v2(&mut top));
        assert_eq!(top, broken.0);
        ok(cuMemAlloc_v2(&mut address, 4096));
        ok(healthy.fill(NONE, address, 16, 1));
        ok(cuCtxSynchronize());
    }
}

#[test]
fn a_kernel_that_leaves_its_allocation_fails_its_context_and_not_the_process() {
    let context = Context::new();
    let memory = context.managed(2 << 20);
    // Far beyond the allocation, and all others of these tests, inside the device's space.
    let function = context.function("fill_u32");
    let (mut out, mut count, mut first, mut seed) = (memory + (8 << 30), 1024u64, 0u32, 1u32);
    let mut parameters: [*mut c_void; 4] = [
        (&raw mut out).cast(),
        (&raw mut count).cast(),
        (&raw mut first).cast(),
        (&raw mut seed).cast(),
    ];
    ok(launch(
        function,
        [4, 1, 1],
        [256, 1, 1],
        0,
        parameters.as_mut_ptr(),
        null_mut(),
    ));
    // SAFETY: no pointers.
    assert_eq!(unsafe { cuCtxSynchronize() }, CuResult::ILLEGAL_ADDRESS);
}
