//! The types of the CUDA driver's binary interface, as far as the soft GPU speaks it.
//!
//! Enumerations are open: a value that a newer header knows is legal here and is answered
//! with an error, not with undefined behaviour. `tests/abi.rs` compares sizes, alignments
//! and values with cudarc's bindings.

mod result;

pub use result::CuResult;

use std::ffi::{c_char, c_int, c_uint, c_void};

/// Address in the one address space of host and device.
pub type DevicePtr = u64;
/// Device ordinal.
pub type Device = c_int;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => { $(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name(pub usize);
    )* };
}

handles! {
    /// `CUcontext`.
    ContextHandle;
    /// `CUstream`.
    StreamHandle;
    /// `CUevent`.
    EventHandle;
    /// `CUmodule`.
    ModuleHandle;
    /// `CUfunction`.
    FunctionHandle;
    /// `CUmemoryPool`.
    PoolHandle;
}

macro_rules! open_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $value:ident = $number:expr,)* }) => {
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name(pub c_uint);
        impl $name { $( $(#[$vdoc])* pub const $value: $name = $name($number); )* }
    };
}

open_enum! {
    /// `CUmem_advise`.
    Advice {
        /// Copies for readers.
        SET_READ_MOSTLY = 1,
        /// No more copies for readers.
        UNSET_READ_MOSTLY = 2,
        /// Where the data should stay.
        SET_PREFERRED_LOCATION = 3,
        /// No preference.
        UNSET_PREFERRED_LOCATION = 4,
        /// Keep mapped for a processor.
        SET_ACCESSED_BY = 5,
        /// Not kept mapped.
        UNSET_ACCESSED_BY = 6,
    }
}

open_enum! {
    /// `CUmemLocationType`.
    LocationType {
        /// None.
        INVALID = 0,
        /// A device, by ordinal.
        DEVICE = 1,
        /// The host.
        HOST = 2,
        /// A NUMA node of the host, by number.
        HOST_NUMA = 3,
        /// The calling thread's NUMA node.
        HOST_NUMA_CURRENT = 4,
    }
}

/// `CUmemLocation`, as of CUDA 12.2 to 13.1.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    /// Device or host.
    pub kind: LocationType,
    /// Ordinal of the device or the NUMA node.
    pub id: c_int,
}

/// `CU_DEVICE_CPU`: the host as a device, in the first version of prefetch and advice.
pub const DEVICE_CPU: Device = -1;
/// `CU_DEVICE_INVALID`: no device.
pub const DEVICE_INVALID: Device = -2;

open_enum! {
    /// `CUmem_range_attribute`.
    RangeAttribute {
        /// All of the range is read-mostly.
        READ_MOSTLY = 1,
        /// The preferred location of all of the range.
        PREFERRED_LOCATION = 2,
        /// Devices that keep all of the range mapped.
        ACCESSED_BY = 3,
        /// Where all of the range was last prefetched to.
        LAST_PREFETCH_LOCATION = 4,
        /// Type of the preferred location.
        PREFERRED_LOCATION_TYPE = 5,
        /// Ordinal of the preferred location.
        PREFERRED_LOCATION_ID = 6,
        /// Type of the last prefetch location.
        LAST_PREFETCH_LOCATION_TYPE = 7,
        /// Ordinal of the last prefetch location.
        LAST_PREFETCH_LOCATION_ID = 8,
    }
}

open_enum! {
    /// `CUpointer_attribute`.
    PointerAttribute {
        /// Context of the allocation.
        CONTEXT = 1,
        /// `CUmemorytype`.
        MEMORY_TYPE = 2,
        /// The address for kernels.
        DEVICE_POINTER = 3,
        /// The address for the host.
        HOST_POINTER = 4,
        /// Synchronous memory operations.
        SYNC_MEMOPS = 6,
        /// Number of the allocation, unique in the process.
        BUFFER_ID = 7,
        /// From `cuMemAllocManaged`.
        IS_MANAGED = 8,
        /// Ordinal of the device.
        DEVICE_ORDINAL = 9,
        /// Exportable by `cuIpcGetMemHandle`.
        IS_LEGACY_CUDA_IPC_CAPABLE = 10,
        /// First address of the allocation.
        RANGE_START_ADDR = 11,
        /// Bytes of the allocation.
        RANGE_SIZE = 12,
        /// Mapped.
        MAPPED = 13,
        /// Handle types it can be exported as.
        ALLOWED_HANDLE_TYPES = 14,
        /// Usable with GPUDirect RDMA.
        IS_GPU_DIRECT_RDMA_CAPABLE = 15,
        /// Access flags of the current device.
        ACCESS_FLAGS = 16,
        /// The pool it is from.
        MEMPOOL_HANDLE = 17,
    }
}

/// `CU_MEMORYTYPE_HOST`.
pub const MEMORYTYPE_HOST: c_uint = 1;
/// `CU_MEMORYTYPE_DEVICE`.
pub const MEMORYTYPE_DEVICE: c_uint = 2;

/// `CUuuid`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Uuid {
    /// Its bytes.
    pub bytes: [u8; 16],
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    /// Blocks.
    pub grid: [c_uint; 3],
    /// Threads of a block.
    pub block: [c_uint; 3],
    /// Dynamic shared memory, bytes.
    pub shared_bytes: c_uint,
    /// The stream.
    pub stream: StreamHandle,
    /// `CUlaunchAttribute[attribute_count]`.
    pub attributes: *const LaunchAttribute,
    /// How many attributes.
    pub attribute_count: c_uint,
}

/// `CUlaunchAttribute`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchAttribute {
    /// `CUlaunchAttributeID`.
    pub id: c_uint,
    /// Fills up to the value.
    pub pad: [u8; 4],
    /// `CUlaunchAttributeValue`: 64 bytes, by `id`.
    pub value: [u64; 8],
}

/// `CU_LAUNCH_PARAM_END`, in the `extra` list of a launch.
pub const LAUNCH_PARAM_END: usize = 0;
/// `CU_LAUNCH_PARAM_BUFFER_POINTER`.
pub const LAUNCH_PARAM_BUFFER_POINTER: usize = 1;
/// `CU_LAUNCH_PARAM_BUFFER_SIZE`.
pub const LAUNCH_PARAM_BUFFER_SIZE: usize = 2;

/// `CU_STREAM_LEGACY`: the default stream that synchronises with the others.
pub const STREAM_LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`: the default stream of the calling thread.
pub const STREAM_PER_THREAD: usize = 2;
/// `CU_STREAM_NON_BLOCKING`.
pub const STREAM_NON_BLOCKING: c_uint = 1;

/// `CUhostFn`.
pub type HostFunction = Option<unsafe extern "C" fn(*mut c_void)>;
/// `CUstreamCallback`.
pub type StreamCallback = Option<unsafe extern "C" fn(StreamHandle, CuResult, *mut c_void)>;

/// What `cuGetProcAddress_v2` says about the symbol.
pub mod symbol_status {
    use super::c_uint;
    /// Found.
    pub const SUCCESS: c_uint = 0;
    /// No such function.
    pub const NOT_FOUND: c_uint = 1;
    /// Only in a newer version than asked for.
    pub const VERSION_NOT_SUFFICIENT: c_uint = 2;
}

/// Reads a C string that a program passed.
///
/// # Safety
/// `text` is null or points to a string that ends with a zero.
pub unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, CuResult> {
    if text.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: not null, and zero-terminated by the caller's contract.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    text.to_str().map_err(|_| CuResult::INVALID_VALUE)
}
