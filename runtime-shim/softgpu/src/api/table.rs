//! Every entry point, once: base name, version, exported names, implementation.
//!
//! The base name and the version are those under which `cuGetProcAddress` knows it
//! (cudaTypedefs.h: `PFN_cuMemAlloc_v3020`). Where a second name follows, it is the form
//! whose null stream is the calling thread's; both forms are one implementation, which is
//! told the difference.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

use super::{
    DefaultStream, context, copy, device, error, event, hints, host, launch, memory, module, pool,
    proc_address, query, stream,
};
use crate::abi::{
    Advice, ContextHandle, CuResult, Device, DevicePtr, EventHandle, FunctionHandle, HostFunction,
    LaunchConfig, Location, ModuleHandle, PointerAttribute, PoolHandle, RangeAttribute,
    StreamCallback, StreamHandle, Uuid,
};

/// One exported function.
#[derive(Clone, Copy, Debug)]
pub struct EntryPoint {
    /// The name that `cuGetProcAddress` is asked for.
    pub base: &'static str,
    /// The CUDA version that brought it.
    pub version: c_int,
    /// The exported name.
    pub name: &'static str,
    /// What its null stream means; none: it has no second form.
    pub default: Option<DefaultStream>,
    /// The function, without its type.
    pub address: unsafe extern "C" fn(),
}

macro_rules! entry_points {
    ($($base:literal $version:literal: $name:ident $(/ $thread:ident)?
        => $module:ident::$function:ident $args:tt;)*) => {
        $( entry_points!(@export $name $($thread)? => $module::$function $args); )*

        /// All of them.
        pub static ENTRY_POINTS: &[EntryPoint] = &[
            $( entry_points!(@first $base $version $name $($thread)? => $args), )*
            $( $( entry_points!(@entry $base $version $thread
                Some(DefaultStream::PerThread) => $args), )? )*
        ];
    };
    (@export $name:ident => $module:ident::$function:ident
        ($($arg:ident: $ty:ty),* $(,)?)) => {
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// The arguments are as the CUDA driver API defines them.
        #[allow(non_snake_case, clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> CuResult {
            // SAFETY: by this function's contract.
            unsafe { $module::$function($($arg),*) }.into()
        }
    };
    (@export $name:ident $thread:ident => $module:ident::$function:ident
        ($($arg:ident: $ty:ty),* $(,)?)) => {
        entry_points!(@with Legacy $name => $module::$function($($arg: $ty),*));
        entry_points!(@with PerThread $thread => $module::$function($($arg: $ty),*));
    };
    (@with $default:ident $name:ident => $module:ident::$function:ident
        ($($arg:ident: $ty:ty),*)) => {
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// The arguments are as the CUDA driver API defines them.
        #[allow(non_snake_case, clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> CuResult {
            // SAFETY: by this function's contract.
            unsafe { $module::$function(DefaultStream::$default, $($arg),*) }.into()
        }
    };
    (@first $base:literal $version:literal $name:ident => $args:tt) => {
        entry_points!(@entry $base $version $name None => $args)
    };
    (@first $base:literal $version:literal $name:ident $thread:ident => $args:tt) => {
        entry_points!(@entry $base $version $name Some(DefaultStream::Legacy) => $args)
    };
    (@entry $base:literal $version:literal $name:ident $default:expr
        => ($($arg:ident: $ty:ty),* $(,)?)) => {
        EntryPoint {
            base: $base,
            version: $version,
            name: stringify!($name),
            default: $default,
            // SAFETY: only the type is forgotten; nobody calls it through this one.
            address: unsafe {
                std::mem::transmute::<
                    unsafe extern "C" fn($($ty),*) -> CuResult,
                    unsafe extern "C" fn(),
                >($name as unsafe extern "C" fn($($ty),*) -> CuResult)
            },
        }
    };
}

entry_points! {
    // The driver and the device.
    "cuInit" 2000: cuInit => device::init(flags: c_uint);
    "cuDriverGetVersion" 2020: cuDriverGetVersion => device::driver_version(version: *mut c_int);
    "cuGetProcAddress" 11030: cuGetProcAddress => proc_address::get(
        symbol: *const c_char, to: *mut *mut c_void, version: c_int, flags: u64);
    "cuGetProcAddress" 12000: cuGetProcAddress_v2 => proc_address::get_v2(
        symbol: *const c_char, to: *mut *mut c_void, version: c_int, flags: u64,
        status: *mut c_uint);
    "cuGetExportTable" 3000: cuGetExportTable => proc_address::export_table(
        to: *mut *const c_void, id: *const Uuid);
    "cuGetErrorName" 6000: cuGetErrorName => error::name(
        result: CuResult, to: *mut *const c_char);
    "cuGetErrorString" 6000: cuGetErrorString => error::text(
        result: CuResult, to: *mut *const c_char);
    "cuDeviceGet" 2000: cuDeviceGet => device::get(device: *mut Device, ordinal: c_int);
    "cuDeviceGetCount" 2000: cuDeviceGetCount => device::count(count: *mut c_int);
    "cuDeviceGetName" 2000: cuDeviceGetName => device::name(
        name: *mut c_char, length: c_int, device: Device);
    "cuDeviceGetUuid" 9020: cuDeviceGetUuid => device::uuid(uuid: *mut Uuid, device: Device);
    "cuDeviceGetUuid" 11040: cuDeviceGetUuid_v2 => device::uuid(uuid: *mut Uuid, device: Device);
    "cuDeviceTotalMem" 3020: cuDeviceTotalMem_v2 => device::total_memory(
        bytes: *mut usize, device: Device);
    "cuDeviceGetAttribute" 2000: cuDeviceGetAttribute => device::attribute(
        value: *mut c_int, attribute: c_uint, device: Device);
    "cuDeviceComputeCapability" 2000: cuDeviceComputeCapability => device::compute_capability(
        major: *mut c_int, minor: *mut c_int, device: Device);
    "cuDeviceGetPCIBusId" 4010: cuDeviceGetPCIBusId => device::pci_bus_id(
        id: *mut c_char, length: c_int, device: Device);
    "cuDeviceGetByPCIBusId" 4010: cuDeviceGetByPCIBusId => device::by_pci_bus_id(
        device: *mut Device, id: *const c_char);
    "cuDeviceCanAccessPeer" 4000: cuDeviceCanAccessPeer => device::can_access_peer(
        can: *mut c_int, device: Device, peer: Device);

    // Contexts.
    "cuDevicePrimaryCtxRetain" 7000: cuDevicePrimaryCtxRetain => device::primary_retain(
        context: *mut ContextHandle, device: Device);
    "cuDevicePrimaryCtxRelease" 11000: cuDevicePrimaryCtxRelease_v2 => device::primary_release(
        device: Device);
    "cuDevicePrimaryCtxReset" 11000: cuDevicePrimaryCtxReset_v2 => device::primary_reset(
        device: Device);
    "cuDevicePrimaryCtxGetState" 7000: cuDevicePrimaryCtxGetState => device::primary_state(
        device: Device, flags: *mut c_uint, active: *mut c_int);
    "cuDevicePrimaryCtxSetFlags" 11000: cuDevicePrimaryCtxSetFlags_v2
        => device::primary_set_flags(device: Device, flags: c_uint);
    "cuCtxCreate" 3020: cuCtxCreate_v2 => context::create(
        to: *mut ContextHandle, flags: c_uint, device: Device);
    "cuCtxCreate" 11040: cuCtxCreate_v3 => context::create_v3(
        to: *mut ContextHandle, affinity: *const c_void, affinities: c_int, flags: c_uint,
        device: Device);
    "cuCtxCreate" 12050: cuCtxCreate_v4 => context::create_v4(
        to: *mut ContextHandle, parameters: *const c_void, flags: c_uint, device: Device);
    "cuCtxDestroy" 4000: cuCtxDestroy_v2 => context::destroy(context: ContextHandle);
    "cuCtxPushCurrent" 4000: cuCtxPushCurrent_v2 => context::push_current(
        context: ContextHandle);
    "cuCtxPopCurrent" 4000: cuCtxPopCurrent_v2 => context::pop_current(
        context: *mut ContextHandle);
    "cuCtxSetCurrent" 4000: cuCtxSetCurrent => context::set_current(context: ContextHandle);
    "cuCtxGetCurrent" 4000: cuCtxGetCurrent => context::get_current(context: *mut ContextHandle);
    "cuCtxGetDevice" 2000: cuCtxGetDevice => context::device(device: *mut Device);
    "cuCtxGetFlags" 7000: cuCtxGetFlags => context::flags(flags: *mut c_uint);
    "cuCtxSetFlags" 12010: cuCtxSetFlags => context::set_flags(flags: c_uint);
    "cuCtxSynchronize" 2000: cuCtxSynchronize => context::synchronize();
    "cuCtxSynchronize" 13000: cuCtxSynchronize_v2 => context::synchronize_context(
        context: ContextHandle);
    "cuCtxGetApiVersion" 3020: cuCtxGetApiVersion => context::api_version(
        context: ContextHandle, version: *mut c_uint);
    "cuCtxGetId" 12000: cuCtxGetId => context::id(context: ContextHandle, id: *mut c_ulonglong);
    "cuCtxGetStreamPriorityRange" 5050: cuCtxGetStreamPriorityRange => context::priority_range(
        least: *mut c_int, greatest: *mut c_int);
    "cuCtxGetLimit" 3010: cuCtxGetLimit => context::limit(value: *mut usize, limit: c_uint);
    "cuCtxSetLimit" 3010: cuCtxSetLimit => context::set_limit(limit: c_uint, value: usize);

    // Streams.
    "cuStreamCreate" 2000: cuStreamCreate => stream::create(
        to: *mut StreamHandle, flags: c_uint);
    "cuStreamCreateWithPriority" 5050: cuStreamCreateWithPriority
        => stream::create_with_priority(to: *mut StreamHandle, flags: c_uint, priority: c_int);
    "cuStreamDestroy" 4000: cuStreamDestroy_v2 => stream::destroy(stream: StreamHandle);
    "cuStreamSynchronize" 2000: cuStreamSynchronize / cuStreamSynchronize_ptsz
        => stream::synchronize(stream: StreamHandle);
    "cuStreamQuery" 2000: cuStreamQuery / cuStreamQuery_ptsz
        => stream::query(stream: StreamHandle);
    "cuStreamWaitEvent" 3020: cuStreamWaitEvent / cuStreamWaitEvent_ptsz => stream::wait_event(
        stream: StreamHandle, event: EventHandle, flags: c_uint);
    "cuStreamGetCtx" 9020: cuStreamGetCtx / cuStreamGetCtx_ptsz => stream::context(
        stream: StreamHandle, context: *mut ContextHandle);
    "cuStreamGetCtx" 12050: cuStreamGetCtx_v2 / cuStreamGetCtx_v2_ptsz => stream::context_v2(
        stream: StreamHandle, context: *mut ContextHandle, green: *mut usize);
    "cuStreamGetFlags" 5050: cuStreamGetFlags / cuStreamGetFlags_ptsz => stream::flags(
        stream: StreamHandle, flags: *mut c_uint);
    "cuStreamGetPriority" 5050: cuStreamGetPriority / cuStreamGetPriority_ptsz
        => stream::priority(stream: StreamHandle, priority: *mut c_int);
    "cuStreamGetId" 12000: cuStreamGetId / cuStreamGetId_ptsz => stream::id(
        stream: StreamHandle, id: *mut c_ulonglong);
    "cuStreamIsCapturing" 10000: cuStreamIsCapturing / cuStreamIsCapturing_ptsz
        => stream::is_capturing(stream: StreamHandle, status: *mut c_uint);
    "cuStreamGetCaptureInfo" 11030: cuStreamGetCaptureInfo_v2 / cuStreamGetCaptureInfo_v2_ptsz
        => stream::capture_info_v2(
            stream: StreamHandle, status: *mut c_uint, id: *mut u64, graph: *mut usize,
            dependencies: *mut *const c_void, count: *mut usize);
    "cuStreamGetCaptureInfo" 12030: cuStreamGetCaptureInfo_v3 / cuStreamGetCaptureInfo_v3_ptsz
        => stream::capture_info_v3(
            stream: StreamHandle, status: *mut c_uint, id: *mut u64, graph: *mut usize,
            dependencies: *mut *const c_void, edges: *mut *const c_void, count: *mut usize);
    "cuThreadExchangeStreamCaptureMode" 10010: cuThreadExchangeStreamCaptureMode
        => stream::exchange_capture_mode(mode: *mut c_uint);
    "cuLaunchHostFunc" 10000: cuLaunchHostFunc / cuLaunchHostFunc_ptsz
        => stream::launch_host_function(
            stream: StreamHandle, function: HostFunction, argument: *mut c_void);
    "cuStreamAddCallback" 5000: cuStreamAddCallback / cuStreamAddCallback_ptsz
        => stream::add_callback(
            stream: StreamHandle, function: StreamCallback, argument: *mut c_void,
            flags: c_uint);
    "cuStreamAttachMemAsync" 6000: cuStreamAttachMemAsync / cuStreamAttachMemAsync_ptsz
        => hints::attach(stream: StreamHandle, address: DevicePtr, length: usize, flags: c_uint);
    "cuStreamWriteValue32" 8000: cuStreamWriteValue32 / cuStreamWriteValue32_ptsz
        => stream::write_value_32(
            stream: StreamHandle, address: DevicePtr, value: u32, flags: c_uint);
    "cuStreamWriteValue32" 11070: cuStreamWriteValue32_v2 / cuStreamWriteValue32_v2_ptsz
        => stream::write_value_32(
            stream: StreamHandle, address: DevicePtr, value: u32, flags: c_uint);
    "cuStreamWriteValue64" 9000: cuStreamWriteValue64 / cuStreamWriteValue64_ptsz
        => stream::write_value_64(
            stream: StreamHandle, address: DevicePtr, value: u64, flags: c_uint);
    "cuStreamWriteValue64" 11070: cuStreamWriteValue64_v2 / cuStreamWriteValue64_v2_ptsz
        => stream::write_value_64(
            stream: StreamHandle, address: DevicePtr, value: u64, flags: c_uint);
    "cuStreamWaitValue32" 8000: cuStreamWaitValue32 / cuStreamWaitValue32_ptsz
        => stream::wait_value_32(
            stream: StreamHandle, address: DevicePtr, value: u32, flags: c_uint);
    "cuStreamWaitValue32" 11070: cuStreamWaitValue32_v2 / cuStreamWaitValue32_v2_ptsz
        => stream::wait_value_32(
            stream: StreamHandle, address: DevicePtr, value: u32, flags: c_uint);
    "cuStreamWaitValue64" 9000: cuStreamWaitValue64 / cuStreamWaitValue64_ptsz
        => stream::wait_value_64(
            stream: StreamHandle, address: DevicePtr, value: u64, flags: c_uint);
    "cuStreamWaitValue64" 11070: cuStreamWaitValue64_v2 / cuStreamWaitValue64_v2_ptsz
        => stream::wait_value_64(
            stream: StreamHandle, address: DevicePtr, value: u64, flags: c_uint);

    // Events.
    "cuEventCreate" 2000: cuEventCreate => event::create(to: *mut EventHandle, flags: c_uint);
    "cuEventDestroy" 4000: cuEventDestroy_v2 => event::destroy(event: EventHandle);
    "cuEventRecord" 2000: cuEventRecord / cuEventRecord_ptsz => event::record(
        event: EventHandle, stream: StreamHandle);
    "cuEventRecordWithFlags" 11010: cuEventRecordWithFlags / cuEventRecordWithFlags_ptsz
        => event::record_with_flags(event: EventHandle, stream: StreamHandle, flags: c_uint);
    "cuEventQuery" 2000: cuEventQuery => event::query(event: EventHandle);
    "cuEventSynchronize" 2000: cuEventSynchronize => event::synchronize(event: EventHandle);
    "cuEventElapsedTime" 2000: cuEventElapsedTime => event::elapsed_time(
        milliseconds: *mut f32, begin: EventHandle, end: EventHandle);
    "cuEventElapsedTime" 12080: cuEventElapsedTime_v2 => event::elapsed_time(
        milliseconds: *mut f32, begin: EventHandle, end: EventHandle);

    // Modules and functions.
    "cuModuleLoad" 2000: cuModuleLoad => module::load_file(
        to: *mut ModuleHandle, path: *const c_char);
    "cuModuleLoadData" 2000: cuModuleLoadData => module::load_data(
        to: *mut ModuleHandle, image: *const c_void);
    "cuModuleLoadDataEx" 2010: cuModuleLoadDataEx => module::load_data_ex(
        to: *mut ModuleHandle, image: *const c_void, count: c_uint, options: *const c_uint,
        values: *const *mut c_void);
    "cuModuleUnload" 2000: cuModuleUnload => module::unload(module: ModuleHandle);
    "cuModuleGetFunction" 2000: cuModuleGetFunction => module::function(
        to: *mut FunctionHandle, module: ModuleHandle, name: *const c_char);
    "cuModuleGetGlobal" 3020: cuModuleGetGlobal_v2 => module::global(
        to: *mut DevicePtr, bytes: *mut usize, module: ModuleHandle, name: *const c_char);
    "cuFuncGetAttribute" 2020: cuFuncGetAttribute => module::attribute(
        value: *mut c_int, attribute: c_uint, function: FunctionHandle);
    "cuFuncSetAttribute" 9000: cuFuncSetAttribute => module::set_attribute(
        function: FunctionHandle, attribute: c_uint, value: c_int);
    "cuFuncSetCacheConfig" 3000: cuFuncSetCacheConfig => module::set_cache(
        function: FunctionHandle, preference: c_uint);
    "cuFuncGetModule" 11000: cuFuncGetModule => module::module_of(
        to: *mut ModuleHandle, function: FunctionHandle);
    "cuFuncGetName" 12030: cuFuncGetName => module::name(
        to: *mut *const c_char, function: FunctionHandle);
    "cuFuncGetParamInfo" 12040: cuFuncGetParamInfo => module::parameter_info(
        function: FunctionHandle, index: usize, offset: *mut usize, size: *mut usize);
    "cuFuncGetParamCount" 13020: cuFuncGetParamCount => module::parameter_count(
        function: FunctionHandle, count: *mut usize);
    "cuOccupancyMaxActiveBlocksPerMultiprocessor" 6050:
        cuOccupancyMaxActiveBlocksPerMultiprocessor => module::active_blocks(
            count: *mut c_int, function: FunctionHandle, threads: c_int, shared_bytes: usize);
    "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags" 7000:
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
        => module::active_blocks_with_flags(
            count: *mut c_int, function: FunctionHandle, threads: c_int, shared_bytes: usize,
            flags: c_uint);

    // Launches.
    "cuLaunchKernel" 4000: cuLaunchKernel / cuLaunchKernel_ptsz => launch::kernel(
        function: FunctionHandle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint,
        stream: StreamHandle, parameters: *mut *mut c_void, extra: *mut *mut c_void);
    "cuLaunchKernelEx" 11060: cuLaunchKernelEx / cuLaunchKernelEx_ptsz => launch::kernel_ex(
        config: *const LaunchConfig, function: FunctionHandle, parameters: *mut *mut c_void,
        extra: *mut *mut c_void);
    "cuLaunchCooperativeKernel" 9000: cuLaunchCooperativeKernel / cuLaunchCooperativeKernel_ptsz
        => launch::cooperative(
            function: FunctionHandle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
            block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint,
            stream: StreamHandle, parameters: *mut *mut c_void);

    // Memory.
    "cuMemGetInfo" 3020: cuMemGetInfo_v2 => memory::info(free: *mut usize, total: *mut usize);
    "cuMemAlloc" 3020: cuMemAlloc_v2 => memory::alloc(to: *mut DevicePtr, bytes: usize);
    "cuMemAllocPitch" 3020: cuMemAllocPitch_v2 => memory::alloc_pitch(
        to: *mut DevicePtr, pitch: *mut usize, width: usize, height: usize, element: c_uint);
    "cuMemAllocManaged" 6000: cuMemAllocManaged => memory::alloc_managed(
        to: *mut DevicePtr, bytes: usize, flags: c_uint);
    "cuMemFree" 3020: cuMemFree_v2 => memory::free(address: DevicePtr);
    "cuMemAllocAsync" 11020: cuMemAllocAsync / cuMemAllocAsync_ptsz => memory::alloc_async(
        to: *mut DevicePtr, bytes: usize, stream: StreamHandle);
    "cuMemAllocFromPoolAsync" 11020: cuMemAllocFromPoolAsync / cuMemAllocFromPoolAsync_ptsz
        => pool::alloc_async(
            to: *mut DevicePtr, bytes: usize, pool: PoolHandle, stream: StreamHandle);
    "cuMemFreeAsync" 11020: cuMemFreeAsync / cuMemFreeAsync_ptsz => memory::free_async(
        address: DevicePtr, stream: StreamHandle);
    "cuDeviceGetDefaultMemPool" 11020: cuDeviceGetDefaultMemPool => pool::of_device(
        to: *mut PoolHandle, device: Device);
    "cuDeviceGetMemPool" 11020: cuDeviceGetMemPool => pool::of_device(
        to: *mut PoolHandle, device: Device);
    "cuDeviceSetMemPool" 11020: cuDeviceSetMemPool => pool::set_of_device(
        device: Device, pool: PoolHandle);
    "cuMemPoolSetAttribute" 11020: cuMemPoolSetAttribute => pool::set_attribute(
        pool: PoolHandle, attribute: c_uint, value: *mut c_void);
    "cuMemPoolGetAttribute" 11020: cuMemPoolGetAttribute => pool::attribute(
        pool: PoolHandle, attribute: c_uint, value: *mut c_void);
    "cuMemPoolTrimTo" 11020: cuMemPoolTrimTo => pool::trim(pool: PoolHandle, keep: usize);
    "cuMemHostAlloc" 2020: cuMemHostAlloc => host::alloc(
        to: *mut *mut c_void, bytes: usize, flags: c_uint);
    "cuMemAllocHost" 3020: cuMemAllocHost_v2 => host::alloc_plain(
        to: *mut *mut c_void, bytes: usize);
    "cuMemFreeHost" 2000: cuMemFreeHost => host::free(memory: *mut c_void);
    "cuMemHostRegister" 6050: cuMemHostRegister_v2 => host::register(
        memory: *mut c_void, bytes: usize, flags: c_uint);
    "cuMemHostUnregister" 4000: cuMemHostUnregister => host::unregister(memory: *mut c_void);
    "cuMemHostGetDevicePointer" 3020: cuMemHostGetDevicePointer_v2 => host::device_pointer(
        to: *mut DevicePtr, memory: *mut c_void, flags: c_uint);
    "cuMemHostGetFlags" 2030: cuMemHostGetFlags => host::flags(
        to: *mut c_uint, memory: *mut c_void);

    // Copies and memsets.
    "cuMemcpy" 4000: cuMemcpy / cuMemcpy_ptds => copy::any(
        to: DevicePtr, from: DevicePtr, bytes: usize);
    "cuMemcpyAsync" 4000: cuMemcpyAsync / cuMemcpyAsync_ptsz => copy::any_async(
        to: DevicePtr, from: DevicePtr, bytes: usize, stream: StreamHandle);
    "cuMemcpyHtoD" 3020: cuMemcpyHtoD_v2 / cuMemcpyHtoD_v2_ptds => copy::to_device(
        to: DevicePtr, from: *const c_void, bytes: usize);
    "cuMemcpyHtoDAsync" 3020: cuMemcpyHtoDAsync_v2 / cuMemcpyHtoDAsync_v2_ptsz
        => copy::to_device_async(
            to: DevicePtr, from: *const c_void, bytes: usize, stream: StreamHandle);
    "cuMemcpyDtoH" 3020: cuMemcpyDtoH_v2 / cuMemcpyDtoH_v2_ptds => copy::to_host(
        to: *mut c_void, from: DevicePtr, bytes: usize);
    "cuMemcpyDtoHAsync" 3020: cuMemcpyDtoHAsync_v2 / cuMemcpyDtoHAsync_v2_ptsz
        => copy::to_host_async(
            to: *mut c_void, from: DevicePtr, bytes: usize, stream: StreamHandle);
    "cuMemcpyDtoD" 3020: cuMemcpyDtoD_v2 / cuMemcpyDtoD_v2_ptds => copy::in_device(
        to: DevicePtr, from: DevicePtr, bytes: usize);
    "cuMemcpyDtoDAsync" 3020: cuMemcpyDtoDAsync_v2 / cuMemcpyDtoDAsync_v2_ptsz
        => copy::in_device_async(
            to: DevicePtr, from: DevicePtr, bytes: usize, stream: StreamHandle);
    "cuMemsetD8" 3020: cuMemsetD8_v2 / cuMemsetD8_v2_ptds => copy::fill_8(
        to: DevicePtr, value: c_uchar, count: usize);
    "cuMemsetD16" 3020: cuMemsetD16_v2 / cuMemsetD16_v2_ptds => copy::fill_16(
        to: DevicePtr, value: c_ushort, count: usize);
    "cuMemsetD32" 3020: cuMemsetD32_v2 / cuMemsetD32_v2_ptds => copy::fill_32(
        to: DevicePtr, value: c_uint, count: usize);
    "cuMemsetD8Async" 3020: cuMemsetD8Async / cuMemsetD8Async_ptsz => copy::fill_8_async(
        to: DevicePtr, value: c_uchar, count: usize, stream: StreamHandle);
    "cuMemsetD16Async" 3020: cuMemsetD16Async / cuMemsetD16Async_ptsz => copy::fill_16_async(
        to: DevicePtr, value: c_ushort, count: usize, stream: StreamHandle);
    "cuMemsetD32Async" 3020: cuMemsetD32Async / cuMemsetD32Async_ptsz => copy::fill_32_async(
        to: DevicePtr, value: c_uint, count: usize, stream: StreamHandle);

    // Hints and questions.
    "cuMemPrefetchAsync" 8000: cuMemPrefetchAsync / cuMemPrefetchAsync_ptsz => hints::prefetch(
        address: DevicePtr, bytes: usize, to: Device, stream: StreamHandle);
    "cuMemPrefetchAsync" 12020: cuMemPrefetchAsync_v2 / cuMemPrefetchAsync_v2_ptsz
        => hints::prefetch_v2(
            address: DevicePtr, bytes: usize, to: Location, flags: c_uint, stream: StreamHandle);
    "cuMemPrefetchBatchAsync" 13000: cuMemPrefetchBatchAsync / cuMemPrefetchBatchAsync_ptsz
        => hints::prefetch_batch(
            addresses: *mut DevicePtr, sizes: *mut usize, count: usize,
            locations: *mut Location, first: *mut usize, places: usize, flags: c_ulonglong,
            stream: StreamHandle);
    "cuMemDiscardBatchAsync" 13000: cuMemDiscardBatchAsync / cuMemDiscardBatchAsync_ptsz
        => hints::discard_batch(
            addresses: *mut DevicePtr, sizes: *mut usize, count: usize, flags: c_ulonglong,
            stream: StreamHandle);
    "cuMemDiscardAndPrefetchBatchAsync" 13000:
        cuMemDiscardAndPrefetchBatchAsync / cuMemDiscardAndPrefetchBatchAsync_ptsz
        => hints::discard_and_prefetch_batch(
            addresses: *mut DevicePtr, sizes: *mut usize, count: usize,
            locations: *mut Location, first: *mut usize, places: usize, flags: c_ulonglong,
            stream: StreamHandle);
    "cuMemAdvise" 8000: cuMemAdvise => hints::advise(
        address: DevicePtr, bytes: usize, advice: Advice, device: c_int);
    "cuMemAdvise" 12020: cuMemAdvise_v2 => hints::advise_v2(
        address: DevicePtr, bytes: usize, advice: Advice, location: Location);
    "cuMemRangeGetAttribute" 8000: cuMemRangeGetAttribute => query::range(
        to: *mut c_void, size: usize, attribute: RangeAttribute, address: DevicePtr,
        bytes: usize);
    "cuMemRangeGetAttributes" 8000: cuMemRangeGetAttributes => query::range_all(
        data: *mut *mut c_void, sizes: *mut usize, attributes: *mut RangeAttribute,
        count: usize, address: DevicePtr, bytes: usize);
    "cuPointerGetAttribute" 4000: cuPointerGetAttribute => query::pointer(
        to: *mut c_void, attribute: PointerAttribute, address: DevicePtr);
    "cuPointerGetAttributes" 7000: cuPointerGetAttributes => query::pointer_all(
        count: c_uint, attributes: *mut PointerAttribute, data: *mut *mut c_void,
        address: DevicePtr);
    "cuPointerSetAttribute" 6000: cuPointerSetAttribute => query::set_pointer(
        value: *const c_void, attribute: PointerAttribute, address: DevicePtr);
    "cuMemGetAddressRange" 3020: cuMemGetAddressRange_v2 => query::address_range(
        base: *mut DevicePtr, bytes: *mut usize, address: DevicePtr);
}
