//! The few driver calls that measurements make in processes of their own, from whichever
//! library has them.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::ptr::{null, null_mut};

use anyhow::{Context, Result, bail};
use libloading::Library;

type Handle = *mut c_void;

/// The calls needed, from one library.
pub struct Api {
    init: unsafe extern "C" fn(c_uint) -> c_int,
    retain: unsafe extern "C" fn(*mut Handle, c_int) -> c_int,
    set_current: unsafe extern "C" fn(Handle) -> c_int,
    stream: unsafe extern "C" fn(*mut Handle, c_uint) -> c_int,
    wait: unsafe extern "C" fn(Handle) -> c_int,
    allocate: unsafe extern "C" fn(*mut u64, usize) -> c_int,
    memory: unsafe extern "C" fn(*mut usize, *mut usize) -> c_int,
    load_module: unsafe extern "C" fn(*mut Handle, *const c_void) -> c_int,
    function: unsafe extern "C" fn(*mut Handle, Handle, *const c_char) -> c_int,
    #[allow(clippy::type_complexity)]
    launch: unsafe extern "C" fn(
        Handle,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        Handle,
        *const *const c_void,
        *const *const c_void,
    ) -> c_int,
}

/// Loads a library for good: drivers are not made to be unloaded.
pub fn library(path: &str) -> Result<ManuallyDrop<Library>> {
    // SAFETY: both libraries' constructors expect nothing.
    let library = unsafe { Library::new(path) }
        .with_context(|| format!("cannot load {path} for the launch measurement"))?;
    Ok(ManuallyDrop::new(library))
}

impl Api {
    /// Each call from the first library that has it, as the dynamic linker would find it.
    pub fn find(libraries: &[&Library]) -> Result<Self> {
        macro_rules! symbol {
            ($name:literal) => {{
                let name = $name.as_bytes();
                let found = libraries.iter().find_map(|library| {
                    // SAFETY: the field's signature is that of cuda.h for this name.
                    unsafe { library.get(name) }.ok().map(|symbol| *symbol)
                });
                found.with_context(|| format!("no library has {}", $name))?
            }};
        }
        Ok(Self {
            init: symbol!("cuInit"),
            retain: symbol!("cuDevicePrimaryCtxRetain"),
            set_current: symbol!("cuCtxSetCurrent"),
            stream: symbol!("cuStreamCreate"),
            wait: symbol!("cuStreamSynchronize"),
            allocate: symbol!("cuMemAlloc_v2"),
            memory: symbol!("cuMemGetInfo_v2"),
            load_module: symbol!("cuModuleLoadData"),
            function: symbol!("cuModuleGetFunction"),
            launch: symbol!("cuLaunchKernel"),
        })
    }
}

impl Api {
    /// Obtains so much memory that not all of it can be on the device.
    pub fn exceed(&self) -> Result<()> {
        let (mut free, mut total, mut address) = (0, 0, 0);
        // SAFETY: the out pointers are valid for their calls.
        unsafe {
            check((self.memory)(&raw mut free, &raw mut total), "cuMemGetInfo")?;
            check((self.allocate)(&raw mut address, total), "cuMemAlloc")
        }
    }
}

/// A device with one stream, one kernel and one array.
pub struct Device {
    stream: Handle,
    kernel: Handle,
    array: u64,
}

/// The workload programs' fill kernel; the soft GPU knows it by name and parameters.
const MODULE: &str = ".version 7.0\n.target sm_70\n.address_size 64\n\
    .visible .entry fill_u32(.param .u64 fill_u32_param_0, .param .u64 fill_u32_param_1, \
    .param .u32 fill_u32_param_2, .param .u32 fill_u32_param_3)\n{\n ret;\n}\n";

fn check(code: c_int, call: &str) -> Result<()> {
    if code == 0 {
        Ok(())
    } else {
        bail!("{call} failed with CUresult {code}")
    }
}

impl Device {
    /// All set-up goes through the library, as it would in a program.
    pub fn start(api: &Api, bytes: u64) -> Result<Self> {
        let (mut context, mut stream, mut module, mut kernel) =
            (null_mut(), null_mut(), null_mut(), null_mut());
        let mut array = 0;
        let text = CString::new(MODULE)?;
        // SAFETY: every out pointer is valid for its call and the module is terminated text.
        unsafe {
            check((api.init)(0), "cuInit")?;
            check(
                (api.retain)(&raw mut context, 0),
                "cuDevicePrimaryCtxRetain",
            )?;
            check((api.set_current)(context), "cuCtxSetCurrent")?;
            check((api.stream)(&raw mut stream, 0), "cuStreamCreate")?;
            check(
                (api.allocate)(&raw mut array, usize::try_from(bytes)?),
                "cuMemAlloc",
            )?;
            check(
                (api.load_module)(&raw mut module, text.as_ptr().cast()),
                "cuModuleLoadData",
            )?;
            let name = c"fill_u32";
            check(
                (api.function)(&raw mut kernel, module, name.as_ptr()),
                "cuModuleGetFunction",
            )?;
        }
        Ok(Self {
            stream,
            kernel,
            array,
        })
    }

    /// Launches a kernel that fills `words` words from `offset` bytes into the array on.
    pub fn launch(&self, api: &Api, offset: u64, words: u64) -> Result<()> {
        let (address, first, seed) = (self.array + offset, 0_u32, 0_u32);
        let parameters: [*const c_void; 4] = [
            (&raw const address).cast(),
            (&raw const words).cast(),
            (&raw const first).cast(),
            (&raw const seed).cast(),
        ];
        // SAFETY: the kernel has these four parameters, and they outlive the call.
        let code = unsafe {
            (api.launch)(
                self.kernel,
                1,
                1,
                1,
                32,
                1,
                1,
                0,
                self.stream,
                parameters.as_ptr(),
                null(),
            )
        };
        check(code, "cuLaunchKernel")
    }

    /// Waits for everything launched.
    pub fn wait(&self, api: &Api) -> Result<()> {
        // SAFETY: the stream is this device's own.
        check(unsafe { (api.wait)(self.stream) }, "cuStreamSynchronize")
    }
}
