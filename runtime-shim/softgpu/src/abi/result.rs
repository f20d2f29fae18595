//! `CUresult`: the codes that the soft GPU gives, with their names and texts.

use std::ffi::CStr;

/// `CUresult`; any value is legal, 0 is success.
#[must_use]
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CuResult(pub u32);

macro_rules! results {
    ($($name:ident = $number:literal, $symbol:literal, $text:literal;)*) => {
        #[allow(missing_docs)] // The text beside each is its documentation.
        impl CuResult {
            $( #[doc = $text] pub const $name: CuResult = CuResult($number); )*

            /// The code's name in the header; none for a code that is not known here.
            pub fn name(self) -> Option<&'static CStr> {
                match self.0 { $( $number => Some($symbol), )* _ => None }
            }

            /// What the code means; none for a code that is not known here.
            pub fn text(self) -> Option<&'static CStr> {
                match self.0 {
                    $( $number => {
                        const TEXT: &CStr = match CStr::from_bytes_with_nul(
                            concat!($text, "\0").as_bytes()) { Ok(t) => t, Err(_) => c"" };
                        Some(TEXT)
                    } )*
                    _ => None,
                }
            }
        }
    };
}

results! {
    SUCCESS = 0, c"CUDA_SUCCESS", "no error";
    INVALID_VALUE = 1, c"CUDA_ERROR_INVALID_VALUE", "invalid argument";
    OUT_OF_MEMORY = 2, c"CUDA_ERROR_OUT_OF_MEMORY", "out of memory";
    NOT_INITIALIZED = 3, c"CUDA_ERROR_NOT_INITIALIZED", "initialization error";
    DEINITIALIZED = 4, c"CUDA_ERROR_DEINITIALIZED", "driver shutting down";
    NO_DEVICE = 100, c"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, c"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal";
    INVALID_IMAGE = 200, c"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid";
    INVALID_CONTEXT = 201, c"CUDA_ERROR_INVALID_CONTEXT", "invalid device context";
    NO_BINARY_FOR_GPU = 209, c"CUDA_ERROR_NO_BINARY_FOR_GPU",
        "no kernel image is available for execution on the device";
    UNSUPPORTED_LIMIT = 215, c"CUDA_ERROR_UNSUPPORTED_LIMIT",
        "limit is not supported on this architecture";
    INVALID_PTX = 218, c"CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed";
    FILE_NOT_FOUND = 301, c"CUDA_ERROR_FILE_NOT_FOUND", "file not found";
    OPERATING_SYSTEM = 304, c"CUDA_ERROR_OPERATING_SYSTEM",
        "OS call failed or operation not supported on this OS";
    INVALID_HANDLE = 400, c"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle";
    NOT_FOUND = 500, c"CUDA_ERROR_NOT_FOUND", "named symbol not found";
    NOT_READY = 600, c"CUDA_ERROR_NOT_READY", "device not ready";
    ILLEGAL_ADDRESS = 700, c"CUDA_ERROR_ILLEGAL_ADDRESS",
        "an illegal memory access was encountered";
    LAUNCH_OUT_OF_RESOURCES = 701, c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        "too many resources requested for launch";
    PRIMARY_CONTEXT_ACTIVE = 708, c"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
        "cannot set while device is active in this process";
    CONTEXT_IS_DESTROYED = 709, c"CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed";
    HOST_MEMORY_ALREADY_REGISTERED = 712, c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        "part or all of the requested memory range is already mapped";
    HOST_MEMORY_NOT_REGISTERED = 713, c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        "pointer does not correspond to a registered memory region";
    LAUNCH_FAILED = 719, c"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure";
    COOPERATIVE_LAUNCH_TOO_LARGE = 720, c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        "too many blocks in cooperative launch";
    NOT_PERMITTED = 800, c"CUDA_ERROR_NOT_PERMITTED", "operation not permitted";
    NOT_SUPPORTED = 801, c"CUDA_ERROR_NOT_SUPPORTED", "operation not supported";
    UNKNOWN = 999, c"CUDA_ERROR_UNKNOWN", "unknown error";
}

impl CuResult {
    /// As a `Result`, to be used with `?`.
    ///
    /// # Errors
    /// The code itself, unless it is success.
    pub fn ok(self) -> Result<(), CuResult> {
        if self == CuResult::SUCCESS {
            Ok(())
        } else {
            Err(self)
        }
    }
}

impl From<Result<(), CuResult>> for CuResult {
    fn from(result: Result<(), CuResult>) -> CuResult {
        result.err().unwrap_or(CuResult::SUCCESS)
    }
}
