//! The types of the CUDA driver's binary interface, as far as the shim looks into them.
//!
//! Enumerations are open: a value that only a newer driver knows is legal. Layouts are
//! compared with cudarc's at compile time, in the tests of the package `oversub-shim`.

use core::ffi::{c_int, c_uint, c_void};

/// `CUresult`. Open.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CuResult(pub c_uint);

impl CuResult {
    /// `CUDA_SUCCESS`.
    pub const SUCCESS: CuResult = CuResult(0);
    /// `CUDA_ERROR_INVALID_VALUE`.
    pub const INVALID_VALUE: CuResult = CuResult(1);
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub const OUT_OF_MEMORY: CuResult = CuResult(2);
    /// `CUDA_ERROR_NOT_INITIALIZED`.
    pub const NOT_INITIALIZED: CuResult = CuResult(3);
    /// `CUDA_ERROR_INVALID_CONTEXT`.
    pub const INVALID_CONTEXT: CuResult = CuResult(201);
    /// `CUDA_ERROR_NOT_FOUND`.
    pub const NOT_FOUND: CuResult = CuResult(500);
    /// `CUDA_ERROR_NOT_SUPPORTED`.
    pub const NOT_SUPPORTED: CuResult = CuResult(801);

    /// It is `CUDA_SUCCESS`.
    #[inline]
    pub fn is_ok(self) -> bool {
        self == CuResult::SUCCESS
    }
}

/// `CUdeviceptr`.
pub type DevicePtr = u64;
/// `CUdevice`.
pub type Device = c_int;
/// Any opaque handle: `CUcontext`, `CUstream`, `CUfunction`, ...
pub type Handle = usize;

/// `CU_STREAM_LEGACY`.
pub const STREAM_LEGACY: Handle = 1;
/// `CU_STREAM_PER_THREAD`.
pub const STREAM_PER_THREAD: Handle = 2;
/// `CU_STREAM_NON_BLOCKING`.
pub const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_MEM_ATTACH_GLOBAL`.
pub const MEM_ATTACH_GLOBAL: c_uint = 1;
/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`.
pub const HOST_REGISTER_PORTABLE_MAPPED: c_uint = 3;
/// `CU_MEMORYTYPE_DEVICE`.
pub const MEMORY_TYPE_DEVICE: c_uint = 2;
/// `CU_DEVICE_CPU`.
pub const DEVICE_CPU: Device = -1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub const CAPTURE_MODE_RELAXED: c_uint = 2;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
pub const PROC_PER_THREAD_STREAM: u64 = 2;

/// `CUmemLocationType`. Open.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocationType(pub c_uint);

impl LocationType {
    /// A device by its ordinal.
    pub const DEVICE: LocationType = LocationType(1);
    /// The host.
    pub const HOST: LocationType = LocationType(2);
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    /// Device or host.
    pub kind: LocationType,
    /// Ordinal of the device.
    pub id: c_int,
}

impl Location {
    /// The host.
    pub const HOST: Location = Location {
        kind: LocationType::HOST,
        id: 0,
    };

    /// A device.
    pub const fn device(ordinal: Device) -> Location {
        Location {
            kind: LocationType::DEVICE,
            id: ordinal,
        }
    }
}

/// `CU_MEM_ADVISE_SET_PREFERRED_LOCATION`.
pub const ADVISE_PREFERRED_LOCATION: c_uint = 3;
/// `CU_MEM_ADVISE_SET_ACCESSED_BY`.
pub const ADVISE_ACCESSED_BY: c_uint = 5;

/// `CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION`.
pub const UNADVISE_PREFERRED_LOCATION: c_uint = 4;

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    /// Grid in thread blocks.
    pub grid: [c_uint; 3],
    /// Block in threads.
    pub block: [c_uint; 3],
    /// Dynamic shared memory, bytes.
    pub shared_bytes: c_uint,
    /// The stream.
    pub stream: Handle,
    /// Attributes, not looked at.
    pub attributes: *mut c_void,
    /// How many.
    pub attribute_count: c_uint,
}

/// `CUmemPoolProps`, the part that every version has.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolProperties {
    /// `CUmemAllocationType`: 1 pinned.
    pub allocation_type: c_uint,
    /// `CUmemAllocationHandleType`: 0 none.
    pub handle_types: c_uint,
    /// Where.
    pub location: Location,
    /// Not looked at.
    pub security_attributes: *mut c_void,
    /// Not looked at: later versions put fields here.
    pub reserved: [u8; 64],
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Copy2d {
    /// Bytes to skip in each source row.
    pub src_x: usize,
    /// Source rows to skip.
    pub src_y: usize,
    /// `CUmemorytype` of the source.
    pub src_type: c_uint,
    /// Source on the host.
    pub src_host: *const c_void,
    /// Source on the device.
    pub src_device: DevicePtr,
    /// Source array.
    pub src_array: Handle,
    /// Bytes from row to row.
    pub src_pitch: usize,
    /// As for the source.
    pub dst_x: usize,
    /// As for the source.
    pub dst_y: usize,
    /// As for the source.
    pub dst_type: c_uint,
    /// As for the source.
    pub dst_host: *mut c_void,
    /// As for the source.
    pub dst_device: DevicePtr,
    /// As for the source.
    pub dst_array: Handle,
    /// As for the source.
    pub dst_pitch: usize,
    /// Bytes of each row.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

macro_rules! pointer_attributes {
    ($($(#[$doc:meta])* $name:ident = $number:expr;)*) => {
        /// `CUpointer_attribute`, those that the shim answers.
        pub mod pointer_attribute {
            use core::ffi::c_uint;
            $($(#[$doc])* pub const $name: c_uint = $number;)*
        }
    };
}

pointer_attributes! {
    /// `CUmemorytype`.
    MEMORY_TYPE = 2;
    /// The host's address; device memory has none.
    HOST_POINTER = 4;
    /// Managed or not.
    IS_MANAGED = 8;
    /// The device's ordinal.
    DEVICE_ORDINAL = 9;
    /// Whether `cuIpcGetMemHandle` would work.
    IS_LEGACY_IPC_CAPABLE = 10;
    /// Start of the allocation.
    RANGE_START = 11;
    /// Bytes of the allocation.
    RANGE_SIZE = 12;
    /// The pool that it comes from.
    MEMPOOL_HANDLE = 17;
}

/// `CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS`.
pub const DEVICE_ATTRIBUTE_CONCURRENT_MANAGED: c_uint = 89;
/// `CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED`.
pub const DEVICE_ATTRIBUTE_MEMORY_POOLS: c_uint = 115;

/// `CUmemPool_attribute`, those with a number behind them.
pub mod pool_attribute {
    use core::ffi::c_uint;
    /// Bytes to keep when a synchronisation frees memory (64 bits).
    pub const RELEASE_THRESHOLD: c_uint = 4;
    /// Bytes obtained from the driver.
    pub const RESERVED_CURRENT: c_uint = 5;
    /// The most there ever were.
    pub const RESERVED_HIGH: c_uint = 6;
    /// Bytes handed out.
    pub const USED_CURRENT: c_uint = 7;
    /// The most there ever were.
    pub const USED_HIGH: c_uint = 8;
}
