//! Which CUDA driver and device this machine has, asked of the driver itself.

use std::ffi::{CStr, c_char, c_int, c_void};

use libloading::Library;

/// The first device of the installed driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// `cuDeviceGetName`.
    pub name: String,
    /// `cuDriverGetVersion`: 13000 is CUDA 13.0.
    pub cuda_version: i32,
    /// Free device memory in bytes.
    pub free_bytes: u64,
    /// Host and device may touch managed memory at the same time: the device faults, and
    /// the driver moves pages. Without it nothing can be oversubscribed.
    pub concurrent_managed: bool,
    /// The device reads any memory of the host, by faults (HMM) or by tables (ATS).
    pub pageable: bool,
    /// It does so through the host's own page tables: a coherent platform.
    pub host_page_tables: bool,
}

/// Why there is no device to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoDevice {
    /// No libcuda.so.1 could be loaded.
    NoDriver(String),
    /// It was loaded and refused, with this CUresult.
    Refused(i32),
    /// It works and sees no device.
    None,
}

impl std::fmt::Display for NoDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoDriver(reason) => write!(f, "no CUDA driver: {reason}"),
            Self::Refused(code) => write!(f, "the CUDA driver refuses to start (CUresult {code})"),
            Self::None => f.write_str("the CUDA driver sees no device"),
        }
    }
}

const DRIVER: &str = "libcuda.so.1";

/// Loads the driver without starting it, to see whether it is there.
///
/// # Errors
/// The dynamic linker's message.
pub fn driver_present() -> Result<(), NoDevice> {
    load().map(|library| {
        // A driver is not made to be unloaded; the process is short.
        std::mem::forget(library);
    })
}

fn load() -> Result<Library, NoDevice> {
    // SAFETY: loading runs the library's constructors; the CUDA driver's expect nothing.
    unsafe { Library::new(DRIVER) }.map_err(|error| {
        // The dynamic linker's own words are the source of the error.
        let reason = std::error::Error::source(&error).map(ToString::to_string);
        NoDevice::NoDriver(reason.unwrap_or_else(|| error.to_string()))
    })
}

/// Starts the driver and asks for its first device.
///
/// # Errors
/// [`NoDevice`]: why there is none.
pub fn first_device() -> Result<Device, NoDevice> {
    let library = load()?;
    let device = ask(&library);
    std::mem::forget(library);
    device
}

fn ask(library: &Library) -> Result<Device, NoDevice> {
    type Init = unsafe extern "C" fn(u32) -> c_int;
    type OutInt = unsafe extern "C" fn(*mut c_int) -> c_int;
    type Get = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
    type Name = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
    let missing = |error: libloading::Error| NoDevice::NoDriver(error.to_string());
    let check = |code: c_int| {
        if code == 0 {
            Ok(())
        } else {
            Err(NoDevice::Refused(code))
        }
    };
    // SAFETY: the signatures are those of cuda.h, every out pointer is valid for the call,
    // and the name buffer's length is passed.
    unsafe {
        let init = library.get::<Init>(b"cuInit\0").map_err(missing)?;
        let version = library
            .get::<OutInt>(b"cuDriverGetVersion\0")
            .map_err(missing)?;
        let count = library
            .get::<OutInt>(b"cuDeviceGetCount\0")
            .map_err(missing)?;
        let get = library.get::<Get>(b"cuDeviceGet\0").map_err(missing)?;
        let name = library.get::<Name>(b"cuDeviceGetName\0").map_err(missing)?;
        check(init(0))?;
        let (mut cuda_version, mut devices, mut device) = (0, 0, 0);
        check(version(&raw mut cuda_version))?;
        check(count(&raw mut devices))?;
        if devices == 0 {
            return Err(NoDevice::None);
        }
        check(get(&raw mut device, 0))?;
        let mut text = [0 as c_char; 256];
        check(name(text.as_mut_ptr(), 255, device))?;
        let name = CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned();
        let free_bytes = free_bytes(library, device)?;
        Ok(Device {
            name,
            cuda_version,
            free_bytes,
            concurrent_managed: attribute(library, device, CONCURRENT_MANAGED_ACCESS)?,
            pageable: attribute(library, device, PAGEABLE_MEMORY_ACCESS)?,
            host_page_tables: attribute(library, device, USES_HOST_PAGE_TABLES)?,
        })
    }
}

/// `CUdevice_attribute`, cuda.h.
const PAGEABLE_MEMORY_ACCESS: c_int = 88;
const CONCURRENT_MANAGED_ACCESS: c_int = 89;
const USES_HOST_PAGE_TABLES: c_int = 100;

/// Whether the device has an attribute; a driver that does not know it says no.
fn attribute(library: &Library, device: c_int, which: c_int) -> Result<bool, NoDevice> {
    type Attribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
    let missing = |error: libloading::Error| NoDevice::NoDriver(error.to_string());
    // SAFETY: the signature is cuda.h's, and the out pointer is valid for the call.
    unsafe {
        let get = library
            .get::<Attribute>(b"cuDeviceGetAttribute\0")
            .map_err(missing)?;
        let mut value = 0;
        Ok(get(&raw mut value, which, device) == 0 && value != 0)
    }
}

/// Free memory can only be asked for with a context; it is given back at once.
fn free_bytes(library: &Library, device: c_int) -> Result<u64, NoDevice> {
    type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
    type Set = unsafe extern "C" fn(*mut c_void) -> c_int;
    type Info = unsafe extern "C" fn(*mut usize, *mut usize) -> c_int;
    type Release = unsafe extern "C" fn(c_int) -> c_int;
    let missing = |error: libloading::Error| NoDevice::NoDriver(error.to_string());
    let check = |code: c_int| {
        if code == 0 {
            Ok(())
        } else {
            Err(NoDevice::Refused(code))
        }
    };
    // SAFETY: the signatures are those of cuda.h, every out pointer is valid for the call,
    // and the context is released only after its last use.
    unsafe {
        let retain = library
            .get::<Retain>(b"cuDevicePrimaryCtxRetain\0")
            .map_err(missing)?;
        let set = library.get::<Set>(b"cuCtxSetCurrent\0").map_err(missing)?;
        let info = library.get::<Info>(b"cuMemGetInfo_v2\0").map_err(missing)?;
        let release = library
            .get::<Release>(b"cuDevicePrimaryCtxRelease_v2\0")
            .map_err(missing)?;
        let mut context = std::ptr::null_mut();
        check(retain(&raw mut context, device))?;
        let (mut free, mut total) = (0_usize, 0_usize);
        let asked = check(set(context)).and_then(|()| check(info(&raw mut free, &raw mut total)));
        release(device);
        asked.map(|()| free as u64)
    }
}

/// Whether the driver has this entry point; none without a driver.
pub fn has_symbol(name: &str) -> Option<bool> {
    let library = load().ok()?;
    // SAFETY: only the address is looked up, nothing is called.
    let found = unsafe { library.get::<*const c_void>(name.as_bytes()) }.is_ok();
    std::mem::forget(library);
    Some(found)
}
