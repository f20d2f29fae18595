//! The shim's own ABI types are laid out as cudarc's bindings of the driver's header say.
//! Everything here is checked when it compiles; the tests compare numbers.

use std::mem::{align_of, offset_of, size_of};

use cudarc::driver::sys;
use oversub_shim_core::abi;

macro_rules! same_layout {
    ($ours:ty, $theirs:ty) => {
        const _: () = assert!(size_of::<$ours>() == size_of::<$theirs>());
        const _: () = assert!(align_of::<$ours>() == align_of::<$theirs>());
    };
    ($ours:ty, $theirs:ty; $($our_field:tt = $their_field:tt,)*) => {
        same_layout!($ours, $theirs);
        $(const _: () =
            assert!(offset_of!($ours, $our_field) == offset_of!($theirs, $their_field));)*
    };
}

same_layout!(abi::CuResult, sys::CUresult);
same_layout!(abi::DevicePtr, sys::CUdeviceptr);
same_layout!(abi::Device, sys::CUdevice);
same_layout!(abi::Handle, sys::CUcontext);
same_layout!(abi::Handle, sys::CUstream);
same_layout!(abi::Handle, sys::CUfunction);
same_layout!(abi::Handle, sys::CUmemoryPool);
same_layout!(abi::LocationType, sys::CUmemLocationType);
same_layout!(abi::Location, sys::CUmemLocation; kind = type_, id = id,);
same_layout!(abi::LaunchConfig, sys::CUlaunchConfig;
    grid = gridDimX, block = blockDimX, shared_bytes = sharedMemBytes, stream = hStream,
    attributes = attrs, attribute_count = numAttrs,);
same_layout!(abi::PoolProperties, sys::CUmemPoolProps;
    allocation_type = allocType, handle_types = handleTypes, location = location,
    security_attributes = win32SecurityAttributes, reserved = maxSize,);

#[test]
fn the_numbers_are_the_headers() {
    use abi::{CuResult, pointer_attribute as pointer, pool_attribute as pool};
    use sys::CUmemPool_attribute as Pool;
    use sys::CUpointer_attribute as Pointer;
    use sys::cudaError_enum as Error;
    let pairs = [
        (CuResult::SUCCESS.0, Error::CUDA_SUCCESS as u32),
        (
            CuResult::INVALID_VALUE.0,
            Error::CUDA_ERROR_INVALID_VALUE as u32,
        ),
        (
            CuResult::OUT_OF_MEMORY.0,
            Error::CUDA_ERROR_OUT_OF_MEMORY as u32,
        ),
        (CuResult::NOT_FOUND.0, Error::CUDA_ERROR_NOT_FOUND as u32),
        (
            CuResult::NOT_SUPPORTED.0,
            Error::CUDA_ERROR_NOT_SUPPORTED as u32,
        ),
        (
            pointer::MEMORY_TYPE,
            Pointer::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as u32,
        ),
        (
            pointer::HOST_POINTER,
            Pointer::CU_POINTER_ATTRIBUTE_HOST_POINTER as u32,
        ),
        (
            pointer::IS_MANAGED,
            Pointer::CU_POINTER_ATTRIBUTE_IS_MANAGED as u32,
        ),
        (
            pointer::DEVICE_ORDINAL,
            Pointer::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as u32,
        ),
        (
            pointer::IS_LEGACY_IPC_CAPABLE,
            Pointer::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE as u32,
        ),
        (
            pointer::RANGE_START,
            Pointer::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR as u32,
        ),
        (
            pointer::RANGE_SIZE,
            Pointer::CU_POINTER_ATTRIBUTE_RANGE_SIZE as u32,
        ),
        (
            pointer::MEMPOOL_HANDLE,
            Pointer::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE as u32,
        ),
        (
            pool::RELEASE_THRESHOLD,
            Pool::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD as u32,
        ),
        (
            pool::RESERVED_CURRENT,
            Pool::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT as u32,
        ),
        (
            pool::RESERVED_HIGH,
            Pool::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH as u32,
        ),
        (
            pool::USED_CURRENT,
            Pool::CU_MEMPOOL_ATTR_USED_MEM_CURRENT as u32,
        ),
        (pool::USED_HIGH, Pool::CU_MEMPOOL_ATTR_USED_MEM_HIGH as u32),
        (
            abi::DEVICE_ATTRIBUTE_MEMORY_POOLS,
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED as u32,
        ),
        (
            abi::DEVICE_ATTRIBUTE_CONCURRENT_MANAGED,
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS as u32,
        ),
        (
            abi::MEMORY_TYPE_DEVICE,
            sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32,
        ),
        (
            abi::STREAM_NON_BLOCKING,
            sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32,
        ),
        (
            abi::MEM_ATTACH_GLOBAL,
            sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL as u32,
        ),
        (
            abi::PROC_PER_THREAD_STREAM as u32,
            sys::CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM as u32,
        ),
    ];
    for (index, (ours, header)) in pairs.into_iter().enumerate() {
        assert_eq!(ours, header, "pair {index}");
    }
}
