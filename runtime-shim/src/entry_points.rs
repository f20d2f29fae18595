//! Every entry point that the shim stands in for, once: exported name, form with the
//! calling thread's null stream, family and version as `cuGetProcAddress` knows them, duty,
//! signature and implementation.
//!
//! The exports, the answers of `dlsym` and `cuGetProcAddress`, the coverage table and a test
//! are made of this list. What is not in it passes untouched.

use core::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ushort, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use oversub_shim_core::abi::{CuResult, Device, DevicePtr, Handle, LaunchConfig, PoolProperties};

use crate::hooks::{context, copy, device, export, launch, memory, module, pointer, pool, stream};
use crate::loader;

/// What the shim does at an entry point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Duty {
    /// Does something else than was asked for, to the same effect.
    Transform,
    /// Does what was asked for and takes note.
    Observe,
    /// Does what was asked for and corrects the answer.
    Fix,
}

/// One exported function.
#[derive(Debug)]
pub struct EntryPoint {
    /// Exported name.
    pub symbol: &'static CStr,
    /// Name that `cuGetProcAddress` is asked for.
    pub family: &'static CStr,
    /// First CUDA version whose programs mean this form by that name.
    pub since: c_int,
    /// The form whose null stream is the calling thread's own.
    pub per_thread: bool,
    /// What the shim does here.
    pub duty: Duty,
    /// Our function.
    pub wrapper: unsafe extern "C" fn(),
}

/// The driver's own function behind an entry point.
#[derive(Clone, Copy, Debug)]
pub struct Real<F> {
    /// `None`: this driver has none.
    pub function: Option<F>,
    /// The form whose null stream is the calling thread's own was called.
    pub per_thread: bool,
}

/// Calls the driver's own function.
macro_rules! forward {
    ($real:expr $(, $arg:expr)* $(,)?) => {
        match $real.function {
            Some(function) => function($($arg),*),
            None => oversub_shim_core::abi::CuResult::NOT_FOUND,
        }
    };
}
pub(crate) use forward;

/// Marks a function that was looked for and not found.
const ABSENT: *mut c_void = core::ptr::dangling_mut();

/// The driver's function number `id`; looked up at the first call.
#[inline]
fn real(id: Id) -> *mut c_void {
    let known = REAL[id as usize].load(Ordering::Relaxed);
    if known.is_null() { look_up(id) } else { known }
}

#[cold]
fn look_up(id: Id) -> *mut c_void {
    let found = loader::driver_symbol(ENTRY_POINTS[id as usize].symbol);
    match loader::is_loaded() {
        // Not loaded yet: look again next time.
        false => ABSENT,
        true => {
            let value = if found.is_null() { ABSENT } else { found };
            REAL[id as usize].store(value, Ordering::Relaxed);
            value
        }
    }
}

/// Notes that the driver gives `function` for entry point `index`, if nothing is known yet.
pub fn note_real(index: usize, function: *mut c_void) {
    if let Some(cell) = REAL.get(index) {
        let known = cell.load(Ordering::Relaxed);
        if known.is_null() || known == ABSENT {
            cell.store(function, Ordering::Relaxed);
        }
    }
}

/// The driver's function for entry point `index`, null where it has none.
pub fn known_real(index: usize) -> *mut c_void {
    let Some(entry) = ENTRY_POINTS.get(index) else {
        return core::ptr::null_mut();
    };
    let Some(cell) = REAL.get(index) else {
        return core::ptr::null_mut();
    };
    let mut known = cell.load(Ordering::Relaxed);
    if known.is_null() {
        known = loader::driver_symbol(entry.symbol);
        if !known.is_null() {
            cell.store(known, Ordering::Relaxed);
        }
    }
    if known == ABSENT {
        core::ptr::null_mut()
    } else {
        known
    }
}

macro_rules! entry_points {
    ($($duty:ident $symbol:ident $(/ $thread:ident)? = $family:literal $since:literal
        => $module:ident::$hook:ident $args:tt;)*) => {
        /// Signatures.
        #[allow(non_camel_case_types)]
        pub mod types {
            use super::*;
            $( entry_points!(@type $symbol $args); )*
        }

        /// Positions in [`ENTRY_POINTS`].
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy)]
        #[repr(usize)]
        enum Id { $($symbol, $($thread,)?)* Count }

        static REAL: [AtomicPtr<c_void>; Id::Count as usize] =
            [const { AtomicPtr::new(core::ptr::null_mut()) }; Id::Count as usize];

        /// All of them.
        pub static ENTRY_POINTS: [EntryPoint; Id::Count as usize] = [
            $(
                entry_points!(@entry $symbol $symbol $family $since false $duty),
                $(entry_points!(@entry $thread $symbol $family $since true $duty),)?
            )*
        ];

        $(
            entry_points!(@export $symbol $symbol false $module $hook $args);
            $(entry_points!(@export $thread $symbol true $module $hook $args);)?
        )*
    };
    (@type $symbol:ident ($($arg:ident: $ty:ty),* $(,)?)) => {
        #[doc = concat!("`", stringify!($symbol), "`.")]
        pub type $symbol = unsafe extern "C" fn($($ty),*) -> CuResult;
    };
    (@entry $name:ident $type:ident $family:literal $since:literal $per_thread:literal
        $duty:ident) => {
        EntryPoint {
            symbol: match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            },
            family: match CStr::from_bytes_with_nul(concat!($family, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            },
            since: $since,
            per_thread: $per_thread,
            duty: Duty::$duty,
            // SAFETY: function pointers have one size; no one calls it by this type.
            wrapper: unsafe {
                core::mem::transmute::<types::$type, unsafe extern "C" fn()>($name)
            },
        }
    };
    (@export $name:ident $type:ident $per_thread:literal $module:ident $hook:ident
        ($($arg:ident: $ty:ty),* $(,)?)) => {
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// The arguments are as the CUDA driver API defines them.
        #[allow(non_snake_case, clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> CuResult {
            let function = real(Id::$name);
            let function = if function == ABSENT {
                None
            } else {
                // SAFETY: the driver's function of this name has this signature.
                Some(unsafe { core::mem::transmute::<*mut c_void, types::$type>(function) })
            };
            // SAFETY: by this function's contract.
            unsafe { $module::$hook(Real { function, per_thread: $per_thread } $(, $arg)*) }
        }
    };
}

entry_points! {
    // Discovery.
    Transform cuGetProcAddress = "cuGetProcAddress" 11030 => export::proc_address(
        symbol: *const c_char, to: *mut *mut c_void, version: c_int, flags: u64);
    Transform cuGetProcAddress_v2 = "cuGetProcAddress" 12000 => export::proc_address_v2(
        symbol: *const c_char, to: *mut *mut c_void, version: c_int, flags: u64,
        status: *mut c_uint);
    Observe cuInit = "cuInit" 2000 => device::init(flags: c_uint);

    // Devices and contexts.
    Fix cuDeviceTotalMem_v2 = "cuDeviceTotalMem" 3020 => device::total_memory(
        bytes: *mut usize, device: Device);
    Fix cuDeviceGetAttribute = "cuDeviceGetAttribute" 2000 => device::attribute(
        value: *mut c_int, attribute: c_uint, device: Device);
    Fix cuMemGetInfo_v2 = "cuMemGetInfo" 3020 => device::memory_info(
        free: *mut usize, total: *mut usize);
    Observe cuCtxCreate_v2 = "cuCtxCreate" 3020 => context::create(
        context: *mut Handle, flags: c_uint, device: Device);
    Observe cuCtxCreate_v3 = "cuCtxCreate" 11040 => context::create_v3(
        context: *mut Handle, affinity: *mut c_void, count: c_int, flags: c_uint, device: Device);
    Observe cuCtxCreate_v4 = "cuCtxCreate" 12050 => context::create_v4(
        context: *mut Handle, parameters: *mut c_void, flags: c_uint, device: Device);
    Observe cuCtxDestroy_v2 = "cuCtxDestroy" 4000 => context::destroy(context: Handle);
    Observe cuCtxSynchronize = "cuCtxSynchronize" 2000 => context::synchronize();
    Observe cuCtxSynchronize_v2 = "cuCtxSynchronize" 13000 => context::synchronize_v2(
        context: Handle);
    Observe cuDevicePrimaryCtxRetain = "cuDevicePrimaryCtxRetain" 7000 => context::primary_retain(
        context: *mut Handle, device: Device);
    Observe cuDevicePrimaryCtxRelease_v2 = "cuDevicePrimaryCtxRelease" 11000
        => context::primary_release(device: Device);
    Observe cuDevicePrimaryCtxReset_v2 = "cuDevicePrimaryCtxReset" 11000
        => context::primary_reset(device: Device);

    // Allocation.
    Transform cuMemAlloc_v2 = "cuMemAlloc" 3020 => memory::alloc(
        address: *mut DevicePtr, bytes: usize);
    Transform cuMemAllocPitch_v2 = "cuMemAllocPitch" 3020 => memory::alloc_pitch(
        address: *mut DevicePtr, pitch: *mut usize, width: usize, height: usize, element: c_uint);
    Transform cuMemFree_v2 = "cuMemFree" 3020 => memory::free(address: DevicePtr);
    Observe cuMemAllocManaged = "cuMemAllocManaged" 6000 => memory::alloc_managed(
        address: *mut DevicePtr, bytes: usize, flags: c_uint);
    Transform cuMemAllocAsync / cuMemAllocAsync_ptsz = "cuMemAllocAsync" 11020
        => pool::alloc_async(address: *mut DevicePtr, bytes: usize, stream: Handle);
    Transform cuMemAllocFromPoolAsync / cuMemAllocFromPoolAsync_ptsz
        = "cuMemAllocFromPoolAsync" 11020 => pool::alloc_from_pool_async(
        address: *mut DevicePtr, bytes: usize, pool: Handle, stream: Handle);
    Transform cuMemFreeAsync / cuMemFreeAsync_ptsz = "cuMemFreeAsync" 11020
        => pool::free_async(address: DevicePtr, stream: Handle);
    Fix cuDeviceGetDefaultMemPool = "cuDeviceGetDefaultMemPool" 11020 => pool::of_device(
        pool: *mut Handle, device: Device);
    Fix cuDeviceGetMemPool = "cuDeviceGetMemPool" 11020 => pool::of_device(
        pool: *mut Handle, device: Device);
    Observe cuDeviceSetMemPool = "cuDeviceSetMemPool" 11020 => pool::set_of_device(
        device: Device, pool: Handle);
    Observe cuMemPoolCreate = "cuMemPoolCreate" 11020 => pool::create(
        pool: *mut Handle, properties: *const PoolProperties);
    Observe cuMemPoolDestroy = "cuMemPoolDestroy" 11020 => pool::destroy(pool: Handle);
    Fix cuMemPoolSetAttribute = "cuMemPoolSetAttribute" 11020 => pool::set_attribute(
        pool: Handle, attribute: c_uint, value: *mut c_void);
    Fix cuMemPoolGetAttribute = "cuMemPoolGetAttribute" 11020 => pool::get_attribute(
        pool: Handle, attribute: c_uint, value: *mut c_void);
    Transform cuMemPoolTrimTo = "cuMemPoolTrimTo" 11020 => pool::trim_to(
        pool: Handle, keep: usize);

    // Pointer queries and sharing.
    Fix cuPointerGetAttribute = "cuPointerGetAttribute" 4000 => pointer::attribute(
        data: *mut c_void, attribute: c_uint, address: DevicePtr);
    Fix cuPointerGetAttributes = "cuPointerGetAttributes" 7000 => pointer::attributes(
        count: c_uint, attributes: *mut c_uint, data: *mut *mut c_void, address: DevicePtr);
    Fix cuMemGetAddressRange_v2 = "cuMemGetAddressRange" 3020 => pointer::address_range(
        base: *mut DevicePtr, bytes: *mut usize, address: DevicePtr);
    Observe cuIpcGetMemHandle = "cuIpcGetMemHandle" 4010 => pointer::ipc_handle(
        handle: *mut c_void, address: DevicePtr);

    // Kernels.
    Observe cuLaunchKernel / cuLaunchKernel_ptsz = "cuLaunchKernel" 4000 => launch::kernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: Handle,
        parameters: *mut *mut c_void, extra: *mut *mut c_void);
    Observe cuLaunchKernelEx / cuLaunchKernelEx_ptsz = "cuLaunchKernelEx" 11060
        => launch::kernel_ex(config: *const LaunchConfig, function: Handle,
        parameters: *mut *mut c_void, extra: *mut *mut c_void);
    Observe cuLaunchCooperativeKernel / cuLaunchCooperativeKernel_ptsz
        = "cuLaunchCooperativeKernel" 9000 => launch::cooperative(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: Handle,
        parameters: *mut *mut c_void);
    Observe cuGraphLaunch / cuGraphLaunch_ptsz = "cuGraphLaunch" 10000 => launch::graph(
        graph: Handle, stream: Handle);
    Observe cuModuleUnload = "cuModuleUnload" 2000 => module::unload(module: Handle);
    Observe cuLibraryUnload = "cuLibraryUnload" 12000 => module::unload_library(library: Handle);
    Observe cuLibraryGetKernel = "cuLibraryGetKernel" 12000 => module::library_kernel(
        kernel: *mut Handle, library: Handle, name: *const c_char);

    // Streams.
    Observe cuStreamCreate = "cuStreamCreate" 2000 => stream::create(
        stream: *mut Handle, flags: c_uint);
    Observe cuStreamCreateWithPriority = "cuStreamCreateWithPriority" 5050
        => stream::create_with_priority(stream: *mut Handle, flags: c_uint, priority: c_int);
    Observe cuStreamDestroy_v2 = "cuStreamDestroy" 4000 => stream::destroy(stream: Handle);
    Observe cuStreamSynchronize / cuStreamSynchronize_ptsz = "cuStreamSynchronize" 2000
        => stream::synchronize(stream: Handle);
    Observe cuStreamBeginCapture_v2 / cuStreamBeginCapture_v2_ptsz = "cuStreamBeginCapture" 10010
        => stream::begin_capture(stream: Handle, mode: c_uint);
    Observe cuStreamEndCapture / cuStreamEndCapture_ptsz = "cuStreamEndCapture" 10000
        => stream::end_capture(stream: Handle, graph: *mut Handle);

    // Copies and memsets.
    Observe cuMemcpy / cuMemcpy_ptds = "cuMemcpy" 4000 => copy::any(
        to: DevicePtr, from: DevicePtr, bytes: usize);
    Observe cuMemcpyAsync / cuMemcpyAsync_ptsz = "cuMemcpyAsync" 4000 => copy::any_async(
        to: DevicePtr, from: DevicePtr, bytes: usize, stream: Handle);
    Observe cuMemcpyHtoD_v2 / cuMemcpyHtoD_v2_ptds = "cuMemcpyHtoD" 3020 => copy::to_device(
        to: DevicePtr, from: *const c_void, bytes: usize);
    Observe cuMemcpyHtoDAsync_v2 / cuMemcpyHtoDAsync_v2_ptsz = "cuMemcpyHtoDAsync" 3020
        => copy::to_device_async(
        to: DevicePtr, from: *const c_void, bytes: usize, stream: Handle);
    Observe cuMemcpyDtoH_v2 / cuMemcpyDtoH_v2_ptds = "cuMemcpyDtoH" 3020 => copy::to_host(
        to: *mut c_void, from: DevicePtr, bytes: usize);
    Observe cuMemcpyDtoHAsync_v2 / cuMemcpyDtoHAsync_v2_ptsz = "cuMemcpyDtoHAsync" 3020
        => copy::to_host_async(to: *mut c_void, from: DevicePtr, bytes: usize, stream: Handle);
    Observe cuMemcpyDtoD_v2 / cuMemcpyDtoD_v2_ptds = "cuMemcpyDtoD" 3020 => copy::any(
        to: DevicePtr, from: DevicePtr, bytes: usize);
    Observe cuMemcpyDtoDAsync_v2 / cuMemcpyDtoDAsync_v2_ptsz = "cuMemcpyDtoDAsync" 3020
        => copy::any_async(to: DevicePtr, from: DevicePtr, bytes: usize, stream: Handle);
    Observe cuMemsetD8_v2 / cuMemsetD8_v2_ptds = "cuMemsetD8" 3020 => copy::fill_8(
        to: DevicePtr, value: c_uchar, count: usize);
    Observe cuMemsetD16_v2 / cuMemsetD16_v2_ptds = "cuMemsetD16" 3020 => copy::fill_16(
        to: DevicePtr, value: c_ushort, count: usize);
    Observe cuMemsetD32_v2 / cuMemsetD32_v2_ptds = "cuMemsetD32" 3020 => copy::fill_32(
        to: DevicePtr, value: c_uint, count: usize);
    Observe cuMemsetD8Async / cuMemsetD8Async_ptsz = "cuMemsetD8Async" 3020
        => copy::fill_8_async(to: DevicePtr, value: c_uchar, count: usize, stream: Handle);
    Observe cuMemsetD16Async / cuMemsetD16Async_ptsz = "cuMemsetD16Async" 3020
        => copy::fill_16_async(to: DevicePtr, value: c_ushort, count: usize, stream: Handle);
    Observe cuMemsetD32Async / cuMemsetD32Async_ptsz = "cuMemsetD32Async" 3020
        => copy::fill_32_async(to: DevicePtr, value: c_uint, count: usize, stream: Handle);
}
