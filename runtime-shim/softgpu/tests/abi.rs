//! The binary interface against cudarc's bindings of CUDA 13.0: every function's
//! parameters by size and alignment, every structure, every value.

use std::mem::{align_of, offset_of, size_of};

use cudarc::driver::sys;
use oversub_softgpu::abi::*;
use oversub_softgpu::api::table;

/// Sizes and alignments of a function's parameters and result.
trait Signature {
    fn shape(&self) -> Vec<(usize, usize)>;
}

macro_rules! signatures {
    ($(($($arg:ident),*))*) => { $(
        impl<R, $($arg),*> Signature for unsafe extern "C" fn($($arg),*) -> R {
            fn shape(&self) -> Vec<(usize, usize)> {
                vec![$((size_of::<$arg>(), align_of::<$arg>()),)* (size_of::<R>(), align_of::<R>())]
            }
        }
        impl<R, $($arg),*> Signature for unsafe fn($($arg),*) -> R {
            fn shape(&self) -> Vec<(usize, usize)> {
                vec![$((size_of::<$arg>(), align_of::<$arg>()),)* (size_of::<R>(), align_of::<R>())]
            }
        }
    )* };
}
signatures! {
    () (A) (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) (A, B, C, D, E, F)
    (A, B, C, D, E, F, G) (A, B, C, D, E, F, G, H) (A, B, C, D, E, F, G, H, I)
    (A, B, C, D, E, F, G, H, I, J) (A, B, C, D, E, F, G, H, I, J, K)
}

macro_rules! same {
    ($($args:tt: $($name:ident)*;)*) => { $( same!(@row $args: $($name)*); )* };
    (@row $args:tt: $($name:ident)*) => { $( same!(@one $args $name); )* };
    (@one ($($arg:tt),*) $name:ident) => {
        assert_eq!(
            (table::$name as unsafe extern "C" fn($($arg),*) -> _).shape(),
            (sys::$name as unsafe fn($($arg),*) -> _).shape(),
            stringify!($name)
        );
    };
}

#[test]
fn every_function_has_the_parameters_of_the_header() {
    same! {
        ():
            cuCtxSynchronize;
        (_):
            cuInit cuDriverGetVersion cuDeviceGetCount cuDevicePrimaryCtxRelease_v2
            cuDevicePrimaryCtxReset_v2 cuCtxDestroy_v2 cuCtxPushCurrent_v2 cuCtxPopCurrent_v2
            cuCtxSetCurrent cuCtxGetCurrent cuCtxGetDevice cuCtxGetFlags cuCtxSetFlags
            cuCtxSynchronize_v2 cuStreamDestroy_v2 cuStreamSynchronize cuStreamQuery
            cuThreadExchangeStreamCaptureMode cuEventDestroy_v2 cuEventQuery cuEventSynchronize
            cuModuleUnload cuMemFree_v2 cuMemFreeHost cuMemHostUnregister;
        (_, _):
            cuGetExportTable cuGetErrorName cuGetErrorString cuDeviceGet cuDeviceGetUuid_v2
            cuDeviceTotalMem_v2 cuDeviceGetByPCIBusId cuDevicePrimaryCtxRetain
            cuDevicePrimaryCtxSetFlags_v2 cuCtxGetApiVersion cuCtxGetId cuCtxGetStreamPriorityRange
            cuCtxGetLimit cuCtxSetLimit cuStreamCreate cuStreamGetCtx cuStreamGetFlags
            cuStreamGetPriority cuStreamGetId cuStreamIsCapturing cuEventCreate cuEventRecord
            cuModuleLoad cuModuleLoadData cuFuncSetCacheConfig cuFuncGetModule cuFuncGetName
            cuMemGetInfo_v2 cuMemAlloc_v2 cuMemFreeAsync cuDeviceGetDefaultMemPool
            cuDeviceGetMemPool cuDeviceSetMemPool cuMemPoolTrimTo cuMemAllocHost_v2
            cuMemHostGetFlags;
        (_, _, _):
            cuDeviceGetName cuDeviceGetAttribute cuDeviceComputeCapability cuDeviceGetPCIBusId
            cuDeviceCanAccessPeer cuDevicePrimaryCtxGetState cuStreamCreateWithPriority
            cuStreamWaitEvent cuStreamGetCtx_v2 cuLaunchHostFunc cuEventRecordWithFlags
            cuEventElapsedTime_v2 cuModuleGetFunction cuFuncGetAttribute cuFuncSetAttribute
            cuMemAllocManaged cuMemAllocAsync cuMemPoolSetAttribute cuMemPoolGetAttribute
            cuMemHostAlloc cuMemHostRegister_v2 cuMemHostGetDevicePointer_v2 cuMemcpy
            cuMemcpyHtoD_v2 cuMemcpyDtoH_v2 cuMemcpyDtoD_v2 cuMemsetD8_v2 cuMemsetD16_v2
            cuMemsetD32_v2 cuPointerGetAttribute cuPointerSetAttribute cuMemGetAddressRange_v2;
        (_, _, _, _):
            cuCtxCreate_v4 cuStreamAddCallback cuStreamAttachMemAsync cuStreamWriteValue32_v2
            cuStreamWriteValue64_v2 cuStreamWaitValue32_v2 cuStreamWaitValue64_v2
            cuModuleGetGlobal_v2 cuFuncGetParamInfo cuOccupancyMaxActiveBlocksPerMultiprocessor
            cuLaunchKernelEx cuMemAllocFromPoolAsync cuMemcpyAsync cuMemcpyHtoDAsync_v2
            cuMemcpyDtoHAsync_v2 cuMemcpyDtoDAsync_v2 cuMemsetD8Async cuMemsetD16Async
            cuMemsetD32Async cuMemAdvise_v2 cuPointerGetAttributes;
        (_, _, _, _, _):
            cuGetProcAddress_v2 cuModuleLoadDataEx
            cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuMemAllocPitch_v2
            cuMemPrefetchAsync_v2 cuMemDiscardBatchAsync cuMemRangeGetAttribute;
        (_, _, _, _, _, _):
            cuMemRangeGetAttributes;
        (_, _, _, _, _, _, _):
            cuStreamGetCaptureInfo_v3;
        (_, _, _, _, _, _, _, _):
            cuMemPrefetchBatchAsync cuMemDiscardAndPrefetchBatchAsync;
        (_, _, _, _, _, _, _, _, _, _):
            cuLaunchCooperativeKernel;
        (_, _, _, _, _, _, _, _, _, _, _):
            cuLaunchKernel;
    }
}

#[test]
fn structures_are_laid_out_as_in_the_header() {
    macro_rules! layout {
        ($own:ty = $theirs:ty { $($field:ident = $their_field:ident),* }) => {
            assert_eq!(size_of::<$own>(), size_of::<$theirs>());
            assert_eq!(align_of::<$own>(), align_of::<$theirs>());
            $( assert_eq!(offset_of!($own, $field), offset_of!($theirs, $their_field)); )*
        };
    }
    layout!(Location = sys::CUmemLocation { kind = type_, id = id });
    layout!(Uuid = sys::CUuuid { bytes = bytes });
    layout!(LaunchAttribute = sys::CUlaunchAttribute { id = id, value = value });
    layout!(LaunchConfig = sys::CUlaunchConfig {
        grid = gridDimX,
        block = blockDimX,
        shared_bytes = sharedMemBytes,
        stream = hStream,
        attributes = attrs,
        attribute_count = numAttrs
    });
}

#[test]
fn values_are_those_of_the_header() {
    macro_rules! values {
        ($($own:expr => $theirs:expr;)*) => { $( assert_eq!($own.0, $theirs as u32); )* };
    }
    use sys::CUdevice_attribute_enum as D;
    use sys::CUmem_advise_enum as A;
    use sys::CUmem_range_attribute_enum as R;
    use sys::CUmemLocationType_enum as L;
    use sys::CUpointer_attribute_enum as P;
    use sys::cudaError_enum as E;
    values! {
        CuResult::OUT_OF_MEMORY => E::CUDA_ERROR_OUT_OF_MEMORY;
        CuResult::NOT_INITIALIZED => E::CUDA_ERROR_NOT_INITIALIZED;
        CuResult::DEINITIALIZED => E::CUDA_ERROR_DEINITIALIZED;
        CuResult::INVALID_DEVICE => E::CUDA_ERROR_INVALID_DEVICE;
        CuResult::INVALID_CONTEXT => E::CUDA_ERROR_INVALID_CONTEXT;
        CuResult::NO_BINARY_FOR_GPU => E::CUDA_ERROR_NO_BINARY_FOR_GPU;
        CuResult::INVALID_HANDLE => E::CUDA_ERROR_INVALID_HANDLE;
        CuResult::NOT_FOUND => E::CUDA_ERROR_NOT_FOUND;
        CuResult::NOT_READY => E::CUDA_ERROR_NOT_READY;
        CuResult::ILLEGAL_ADDRESS => E::CUDA_ERROR_ILLEGAL_ADDRESS;
        CuResult::CONTEXT_IS_DESTROYED => E::CUDA_ERROR_CONTEXT_IS_DESTROYED;
        CuResult::HOST_MEMORY_NOT_REGISTERED => E::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
        CuResult::LAUNCH_FAILED => E::CUDA_ERROR_LAUNCH_FAILED;
        CuResult::NOT_SUPPORTED => E::CUDA_ERROR_NOT_SUPPORTED;
        Advice::SET_ACCESSED_BY => A::CU_MEM_ADVISE_SET_ACCESSED_BY;
        Advice::UNSET_PREFERRED_LOCATION => A::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
        LocationType::DEVICE => L::CU_MEM_LOCATION_TYPE_DEVICE;
        LocationType::HOST => L::CU_MEM_LOCATION_TYPE_HOST;
        LocationType::HOST_NUMA_CURRENT => L::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
        RangeAttribute::LAST_PREFETCH_LOCATION => R::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION;
        RangeAttribute::LAST_PREFETCH_LOCATION_ID =>
            R::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID;
        PointerAttribute::IS_MANAGED => P::CU_POINTER_ATTRIBUTE_IS_MANAGED;
        PointerAttribute::RANGE_SIZE => P::CU_POINTER_ATTRIBUTE_RANGE_SIZE;
        PointerAttribute::MEMPOOL_HANDLE => P::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
    }
    // Every error that has a name here has the number of that name there.
    assert_eq!(E::CUDA_ERROR_INVALID_PTX as u32, CuResult::INVALID_PTX.0);
    assert_eq!(D::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS as u32, 89);
    assert_eq!(
        D::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS as u32,
        122
    );
    assert_eq!(D::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED as u32, 115);
}
