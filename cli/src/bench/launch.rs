//! What the preloaded library adds to one kernel launch.
//!
//! One process per mode loads the soft GPU and the library side by side and times batches
//! of launches through each in turn, so both meet the same load of the machine. During a
//! batch the device is held busy by a kernel that sleeps: what is timed is the call, not
//! the device. Processes of the three modes take turns too.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::ptr::{null, null_mut};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use libloading::Library;
use serde::{Deserialize, Serialize};

use super::quantile::median;
use crate::args::LaunchOverheadOptions;
use crate::environment::Environment;
use crate::install::Installation;
use crate::private_daemon::PrivateDaemon;
use crate::softgpu;

/// Medians in nanoseconds; the first three are net of `bare`.
#[derive(Debug, Serialize)]
pub struct Overhead {
    /// With a daemon that takes the events.
    pub daemon: f64,
    /// With none.
    pub no_daemon: f64,
    /// With `OVERSUB_DISABLE=1`.
    pub disabled: f64,
    /// The soft GPU's own call.
    pub bare: f64,
    /// Smallest and largest median of a process, per mode in the order above.
    pub spread: [[f64; 2]; 3],
}

/// Rounds in which every mode gets a process.
const ROUNDS: usize = 5;
/// Pairs of batches in a process.
const BATCHES: u32 = 60;
/// Launches in a batch.
const LAUNCHES: u32 = 200;

#[derive(Clone, Copy)]
enum Mode {
    Daemon,
    NoDaemon,
    Disabled,
}

/// What a child prints: medians over its batches, nanoseconds per launch.
#[derive(Debug, Serialize, Deserialize)]
struct Medians {
    bare: f64,
    hooked: f64,
}

/// Runs the children and takes medians over them.
pub fn measure(installation: &Installation, folder: &Path) -> Result<Overhead> {
    let shim = installation.shim()?;
    let home = folder.join("launch");
    std::fs::create_dir(&home)?;
    let daemon = PrivateDaemon::start(&installation.daemon()?, &home)?;
    let mut net: [Vec<f64>; 3] = Default::default();
    let mut bare = Vec::new();
    for _ in 0..ROUNDS {
        for (mode, net) in [Mode::Daemon, Mode::NoDaemon, Mode::Disabled]
            .iter()
            .zip(&mut net)
        {
            let medians = run_child(*mode, &shim, folder, daemon.socket())?;
            net.push(medians.hooked - medians.bare);
            bare.push(medians.bare);
        }
    }
    let spread = net.each_ref().map(|values| {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        [
            least,
            values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        ]
    });
    let [daemon, no_daemon, disabled] = net.map(|mut values| median(&mut values));
    Ok(Overhead {
        daemon,
        no_daemon,
        disabled,
        bare: median(&mut bare),
        spread,
    })
}

fn run_child(mode: Mode, shim: &Path, folder: &Path, socket: &Path) -> Result<Medians> {
    let mut environment = Environment::default();
    softgpu::use_driver_in(&mut environment, folder);
    // A kernel sleeps this many times its own run time: see `Device::hold_busy`.
    environment.set("OVERSUB_SOFTGPU_COMPUTE_SCALE", "50");
    match mode {
        Mode::Daemon => environment.set("OVERSUB_SOCKET", socket),
        Mode::NoDaemon => environment.set("OVERSUB_SOCKET", "/dev/null/no-daemon"),
        Mode::Disabled => environment.set("OVERSUB_DISABLE", "1"),
    };
    let output = Command::new(std::env::current_exe()?)
        .arg("launch-overhead")
        .arg("--shim")
        .arg(shim)
        .args(["--batches", &BATCHES.to_string()])
        .envs(environment.variables())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start a process of the launch measurement")?;
    if !output.status.success() {
        bail!(
            "a process of the launch measurement failed ({})",
            output.status
        );
    }
    serde_json::from_slice(&output.stdout)
        .context("a process of the launch measurement printed no result")
}

/// The child: measures in its own process and prints [`Medians`].
///
/// # Errors
/// Where a library or a call fails.
pub fn child(options: &LaunchOverheadOptions) -> Result<ExitCode> {
    let driver = library("libcuda.so.1")?;
    let shim = library(&options.shim.to_string_lossy())?;
    let shim = Api::find(&[&shim, &driver])?;
    let driver = Api::find(&[&driver])?;
    let device = Device::start(&shim)?;
    let mut times: [Vec<f64>; 2] = Default::default();
    for _ in 0..options.batches {
        for (api, times) in [&driver, &shim].into_iter().zip(&mut times) {
            device.hold_busy(&driver)?;
            let begun = Instant::now();
            for _ in 0..LAUNCHES {
                device.launch(api, 0)?;
            }
            times.push(begun.elapsed().as_nanos() as f64 / f64::from(LAUNCHES));
            device.wait(&driver)?;
        }
    }
    let [bare, hooked] = times.each_mut().map(|values| median(values));
    println!("{}", serde_json::to_string(&Medians { bare, hooked })?);
    Ok(ExitCode::SUCCESS)
}

type Handle = *mut c_void;

/// The calls needed, from one library.
struct Api {
    init: unsafe extern "C" fn(c_uint) -> c_int,
    retain: unsafe extern "C" fn(*mut Handle, c_int) -> c_int,
    set_current: unsafe extern "C" fn(Handle) -> c_int,
    stream: unsafe extern "C" fn(*mut Handle, c_uint) -> c_int,
    wait: unsafe extern "C" fn(Handle) -> c_int,
    allocate: unsafe extern "C" fn(*mut u64, usize) -> c_int,
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
fn library(path: &str) -> Result<ManuallyDrop<Library>> {
    // SAFETY: both libraries' constructors expect nothing.
    let library = unsafe { Library::new(path) }
        .with_context(|| format!("cannot load {path} for the launch measurement"))?;
    Ok(ManuallyDrop::new(library))
}

impl Api {
    /// Each call from the first library that has it, as the dynamic linker would find it.
    fn find(libraries: &[&Library]) -> Result<Self> {
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
            load_module: symbol!("cuModuleLoadData"),
            function: symbol!("cuModuleGetFunction"),
            launch: symbol!("cuLaunchKernel"),
        })
    }
}

/// A device with one stream, one kernel and one array.
struct Device {
    stream: Handle,
    kernel: Handle,
    array: u64,
}

/// Words in the array: enough that filling it takes a while, and managed memory.
const WORDS: u64 = 1 << 20;

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
    fn start(api: &Api) -> Result<Self> {
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
                (api.allocate)(&raw mut array, WORDS as usize * 4),
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

    /// A kernel that is still asleep when the batch behind it has been queued.
    fn hold_busy(&self, api: &Api) -> Result<()> {
        self.launch(api, WORDS)
    }

    fn launch(&self, api: &Api, words: u64) -> Result<()> {
        let (first, seed) = (0_u32, 0_u32);
        let parameters: [*const c_void; 4] = [
            (&raw const self.array).cast(),
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

    fn wait(&self, api: &Api) -> Result<()> {
        // SAFETY: the stream is this device's own.
        check(unsafe { (api.wait)(self.stream) }, "cuStreamSynchronize")
    }
}
