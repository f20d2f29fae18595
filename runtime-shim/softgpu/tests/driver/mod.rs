//! The driver as a program has it: initialised once, a context for each test.
#![allow(dead_code)]

use std::ffi::{CString, c_void};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

pub use oversub_softgpu::abi::*;
pub use oversub_softgpu::api::table::*;

/// The entries that tests launch, as their PTX declares them.
pub const PTX: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry fill_u32(.param .u64 out, .param .u64 count, .param .u32 first, .param .u32 seed)
{ ret; }
.visible .entry mix_rounds(.param .u64 x, .param .u64 count, .param .u32 rounds, .param .u32 key)
{ ret; }
.visible .entry nobody_has_this(.param .u64 out) { ret; }
.visible .entry sweep_step(.param .u32 not_as_the_soft_gpu_has_it) { ret; }
";

/// Initialises the driver with 64 MiB and a fast link.
pub fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        init_with(&[
            ("OVERSUB_SOFTGPU_MEMORY", "64MiB"),
            ("OVERSUB_SOFTGPU_LINK_IN", "100GB/s"),
            ("OVERSUB_SOFTGPU_LINK_OUT", "100GB/s"),
            ("OVERSUB_SOFTGPU_FAULT_US", "0"),
        ]);
    });
}

/// Initialises the driver. Once in a process.
pub fn init_with(variables: &[(&str, &str)]) {
    for (name, value) in variables {
        // SAFETY: before the driver has threads; the harness's read no variables now.
        unsafe { std::env::set_var(name, value) };
    }
    // SAFETY: no pointers.
    assert_eq!(unsafe { cuInit(0) }, CuResult::SUCCESS);
}

/// Asserts success of a call.
#[track_caller]
pub fn ok(result: CuResult) {
    assert_eq!(result, CuResult::SUCCESS, "{:?}", result.name());
}

/// A context, current in this thread, ended with the value.
pub struct Context(pub ContextHandle);

impl Context {
    pub fn new() -> Context {
        init();
        Context::here()
    }

    /// As `new`, where the driver is initialised already.
    pub fn here() -> Context {
        let mut handle = ContextHandle(0);
        // SAFETY: a valid place for the result.
        ok(unsafe { cuCtxCreate_v2(&mut handle, 0, 0) });
        Context(handle)
    }

    pub fn stream(&self, flags: u32) -> StreamHandle {
        let mut stream = StreamHandle(0);
        // SAFETY: a valid place for the result.
        ok(unsafe { cuStreamCreate(&mut stream, flags) });
        stream
    }

    pub fn event(&self) -> EventHandle {
        let mut event = EventHandle(0);
        // SAFETY: a valid place for the result.
        ok(unsafe { cuEventCreate(&mut event, 0) });
        event
    }

    pub fn device_memory(&self, bytes: usize) -> DevicePtr {
        let mut address = 0;
        // SAFETY: a valid place for the result.
        ok(unsafe { cuMemAlloc_v2(&mut address, bytes) });
        address
    }

    pub fn managed(&self, bytes: usize) -> DevicePtr {
        let mut address = 0;
        // SAFETY: a valid place for the result.
        ok(unsafe { cuMemAllocManaged(&mut address, bytes, 1) });
        address
    }

    pub fn module(&self, ptx: &str) -> ModuleHandle {
        let mut module = ModuleHandle(0);
        let image = CString::new(ptx).expect("no zero");
        // SAFETY: the image ends with a zero.
        ok(unsafe { cuModuleLoadData(&mut module, image.as_ptr().cast()) });
        module
    }

    pub fn function(&self, name: &str) -> FunctionHandle {
        let mut function = FunctionHandle(0);
        let module = self.module(PTX);
        let name = CString::new(name).expect("no zero");
        // SAFETY: a string and a valid place for the result.
        ok(unsafe { cuModuleGetFunction(&mut function, module, name.as_ptr()) });
        function
    }

    /// Launches `fill_u32` over words at an address.
    pub fn fill(
        &self,
        stream: StreamHandle,
        address: DevicePtr,
        count: u64,
        seed: u32,
    ) -> CuResult {
        let function = self.function("fill_u32");
        let (mut address, mut count, mut first, mut seed) = (address, count, 0u32, seed);
        let mut parameters = [
            (&raw mut address).cast::<c_void>(),
            (&raw mut count).cast(),
            (&raw mut first).cast(),
            (&raw mut seed).cast(),
        ];
        let blocks = count.div_ceil(256) as u32;
        // SAFETY: the parameters of `fill_u32`.
        unsafe {
            let parameters = parameters.as_mut_ptr();
            let extra = std::ptr::null_mut();
            cuLaunchKernel(
                function, blocks, 1, 1, 256, 1, 1, 0, stream, parameters, extra,
            )
        }
    }

    /// Copies words back, behind all work of the default stream.
    pub fn read(&self, address: DevicePtr, count: usize) -> Vec<u32> {
        let mut words = vec![0u32; count];
        // SAFETY: room for all words.
        ok(unsafe { cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), address, 4 * count) });
        words
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: a handle of this test.
        let _ = unsafe { cuCtxDestroy_v2(self.0) };
    }
}

/// A word that streams wait for, so that a test decides when they go on.
pub struct Gate(&'static AtomicU32);

impl Gate {
    pub fn new(_: &Context) -> Gate {
        // For ever, as streams may still write it when a test has failed.
        let word: &AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
        // SAFETY: the word lives as long as its registration.
        ok(unsafe { cuMemHostRegister_v2(word.as_ptr().cast(), 4, 0) });
        Gate(word)
    }

    pub fn address(&self) -> DevicePtr {
        self.0.as_ptr() as DevicePtr
    }

    /// Stops a stream until the gate has this value.
    pub fn stop(&self, stream: StreamHandle, value: u32) {
        // SAFETY: the word is registered.
        ok(unsafe { cuStreamWaitValue32_v2(stream, self.address(), value, 0) });
    }

    pub fn set(&self, value: u32) {
        self.0.store(value, Ordering::Release);
    }

    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.set(u32::MAX >> 1);
        // It waits for the streams, which a failed test may hold by other gates.
        if !std::thread::panicking() {
            // SAFETY: registered in `new`.
            let _ = unsafe { cuMemHostUnregister(self.0.as_ptr().cast()) };
        }
    }
}
