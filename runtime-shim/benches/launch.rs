//! What a kernel launch costs with the shim: against the driver's bare call, disabled,
//! without a daemon, and with one that reads every record.
//!
//! Three copies of `liboversub.so` are loaded, each with a state and an environment of its
//! own. The driver is `OVERSUB_BENCH_DRIVER`, else the soft GPU where it is built in the
//! release profile, else a driver that does nothing, whose call costs next to nothing.
//! `OVERSUB_BENCH_OTHER` is another build of the library, to be compared with this one in
//! turns: phases of the machine differ by more than builds do. Only launches are timed, not the waiting for them.

#![allow(clippy::unwrap_used)] // a benchmark that cannot be set up says so and ends

#[path = "../tests/common/mod.rs"]
mod common;

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::daemon::Daemon;
use criterion::Criterion;

type Launch = unsafe extern "C" fn(
    usize,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    usize,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_uint;

/// Launches between two waits: fewer than any driver lets be outstanding.
const BURST: u64 = 64;

struct Library(*mut c_void);

impl Library {
    fn open(path: &Path, flags: c_int) -> Library {
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a terminated path.
        let handle = unsafe { libc::dlopen(name.as_ptr(), flags | libc::RTLD_NOW) };
        assert!(!handle.is_null(), "cannot load {}", path.display());
        Library(handle)
    }

    /// A function by its name.
    ///
    /// # Safety
    /// `F` is its type.
    unsafe fn get<F: Copy>(&self, name: &str) -> F {
        let name = CString::new(name).unwrap();
        // SAFETY: by this function's contract; a pointer has the size of a function's.
        unsafe {
            let found = libc::dlsym(self.0, name.as_ptr());
            assert!(!found.is_null(), "{name:?} is missing");
            std::mem::transmute_copy(&found)
        }
    }
}

fn driver_path() -> PathBuf {
    if let Some(path) = std::env::var_os("OVERSUB_BENCH_DRIVER") {
        return path.into();
    }
    let mut path = std::env::current_exe().unwrap();
    while path.pop() {
        let soft = path.join("liboversub_softgpu.so");
        if soft.exists() {
            return soft;
        }
        if path.file_name().is_some_and(|name| name == "release") {
            break;
        }
    }
    common::fixtures().join("libcuda.so.1")
}

/// A kernel and what to launch it with.
struct Kernel {
    function: usize,
    memory: u64,
    synchronize: unsafe extern "C" fn(usize) -> c_uint,
}

fn prepare(driver: &Library) -> Kernel {
    const PTX: &str = "../tests/workloads/kernels/kernels.ptx";
    // SAFETY: the driver's functions by their signatures, with locals to write to.
    unsafe {
        let init: unsafe extern "C" fn(c_uint) -> c_uint = driver.get("cuInit");
        let create: unsafe extern "C" fn(*mut usize, c_uint, c_int) -> c_uint =
            driver.get("cuCtxCreate_v2");
        let alloc: unsafe extern "C" fn(*mut u64, usize) -> c_uint = driver.get("cuMemAlloc_v2");
        let (mut context, mut memory, mut function) = (0, 0, 0x900);
        assert_eq!(init(0), 0);
        assert_eq!(create(&raw mut context, 0, 0), 0);
        assert_eq!(alloc(&raw mut memory, 4096), 0);
        if !libc::dlsym(driver.0, c"cuModuleLoadData".as_ptr()).is_null() {
            let load: unsafe extern "C" fn(*mut usize, *const c_void) -> c_uint =
                driver.get("cuModuleLoadData");
            let get: unsafe extern "C" fn(*mut usize, usize, *const c_char) -> c_uint =
                driver.get("cuModuleGetFunction");
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PTX);
            let text = CString::new(std::fs::read(path).unwrap()).unwrap();
            let mut module = 0;
            assert_eq!(load(&raw mut module, text.as_ptr().cast()), 0);
            assert_eq!(get(&raw mut function, module, c"fill_u32".as_ptr()), 0);
        }
        Kernel {
            function,
            memory,
            synchronize: driver.get("cuStreamSynchronize"),
        }
    }
}

/// A copy of the shim with its own state; it reads the environment at its first call.
fn shim(name: &str, environment: &[(&str, &Path)]) -> Library {
    shim_of(common::library(), name, environment)
}

fn shim_of(library: &Path, name: &str, environment: &[(&str, &Path)]) -> Library {
    let copy = std::env::temp_dir().join(format!("liboversub-{name}-{}.so", std::process::id()));
    std::fs::copy(library, &copy).unwrap();
    let shim = Library::open(&copy, libc::RTLD_LOCAL);
    std::fs::remove_file(&copy).unwrap();
    for variable in ["OVERSUB_DISABLE", "OVERSUB_SOCKET"] {
        // SAFETY: no other thread of this program reads the environment.
        unsafe { std::env::remove_var(variable) };
    }
    for (variable, value) in environment {
        // SAFETY: as above.
        unsafe { std::env::set_var(variable, value) };
    }
    // SAFETY: the shim's functions by their signatures.
    unsafe {
        let alloc: unsafe extern "C" fn(*mut u64, usize) -> c_uint = shim.get("cuMemAlloc_v2");
        let mut memory = 0;
        assert_eq!(alloc(&raw mut memory, 4 << 20), 0);
    }
    shim
}

/// Time of `count` launches; then waits for them.
fn burst(launch: Launch, kernel: &Kernel, count: u64) -> Duration {
    let (mut memory, mut words, mut value) = (kernel.memory, 1_u64, 7_u32);
    let mut parameters: [*mut c_void; 4] = [
        (&raw mut memory).cast(),
        (&raw mut words).cast(),
        (&raw mut value).cast(),
        (&raw mut value).cast(),
    ];
    let list = parameters.as_mut_ptr();
    let start = Instant::now();
    for _ in 0..count {
        // SAFETY: a kernel that writes one word of memory that it may write.
        unsafe {
            launch(
                kernel.function,
                1,
                1,
                1,
                32,
                1,
                1,
                0,
                0,
                list,
                ptr::null_mut(),
            )
        };
    }
    let spent = start.elapsed();
    // SAFETY: the default stream.
    unsafe { (kernel.synchronize)(0) };
    spent
}

fn measure(criterion: &mut Criterion, name: &str, launch: Launch, kernel: &Kernel) {
    criterion.bench_function(name, |bencher| {
        bencher.iter_custom(|times| {
            let (mut left, mut spent) = (times, Duration::ZERO);
            while left > 0 {
                let count = left.min(BURST);
                spent += burst(launch, kernel, count);
                left -= count;
            }
            spent
        });
    });
}

/// Bursts of all ways in turn, so that what else the machine does falls on each alike;
/// prints the median of each, nanoseconds a launch, and what it adds to the bare call.
fn compare(ways: &[(&str, Launch)], kernel: &Kernel) {
    const ROUNDS: usize = 2000;
    let mut times = vec![Vec::with_capacity(ROUNDS); ways.len()];
    for _ in 0..ROUNDS {
        for ((_, launch), times) in ways.iter().zip(&mut times) {
            times.push(burst(*launch, kernel, BURST).as_nanos() as f64 / BURST as f64);
        }
    }
    let mut bare = None;
    for ((name, _), times) in ways.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        let median = times[ROUNDS / 2];
        let added = median - *bare.get_or_insert(median);
        println!("{name}: median {median:.1} ns a launch, added {added:.1} ns");
    }
}

fn main() {
    let path = driver_path();
    println!("driver: {}", path.display());
    let driver = Library::open(&path, libc::RTLD_GLOBAL);
    let kernel = prepare(&driver);
    let socket = std::env::temp_dir().join(format!("oversub-bench-{}.sock", std::process::id()));
    let daemon = Daemon::listen(&socket);
    let disabled = shim("disabled", &[("OVERSUB_DISABLE", Path::new("1"))]);
    let alone = shim(
        "alone",
        &[("OVERSUB_SOCKET", Path::new("/nonexistent/oversub.sock"))],
    );
    let told = shim("told", &[("OVERSUB_SOCKET", &socket)]);
    let mut sessions = vec![daemon.session()];
    let other = std::env::var_os("OVERSUB_BENCH_OTHER").map(|path| {
        let other = shim_of(path.as_ref(), "other", &[("OVERSUB_SOCKET", &socket)]);
        sessions.push(daemon.session());
        other
    });
    for session in &sessions {
        let stride = &session.control().mark_stride;
        stride.store(1 << 20, Ordering::Relaxed);
    }
    let (read, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // As a daemon does: everything that has come, then a pause.
            while !stop.load(Ordering::Relaxed) {
                let count: usize = sessions
                    .iter_mut()
                    .map(common::daemon::Session::drain)
                    .sum();
                read.fetch_add(count as u64, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        let mut criterion = Criterion::default()
            .warm_up_time(Duration::from_millis(500))
            .measurement_time(Duration::from_secs(3))
            .configure_from_args();
        // SAFETY: each is `cuLaunchKernel`.
        let mut ways: Vec<(&str, Launch)> = unsafe {
            vec![
                ("launch/bare", driver.get("cuLaunchKernel")),
                ("launch/disabled", disabled.get("cuLaunchKernel")),
                ("launch/no daemon", alone.get("cuLaunchKernel")),
                ("launch/daemon", told.get("cuLaunchKernel")),
            ]
        };
        if let Some(other) = &other {
            // SAFETY: as above.
            ways.push(("launch/other", unsafe { other.get("cuLaunchKernel") }));
        }
        for (name, launch) in &ways {
            measure(&mut criterion, name, *launch, &kernel);
        }
        criterion.final_summary();
        compare(&ways, &kernel);
        stop.store(true, Ordering::Relaxed);
    });
    println!(
        "records read by the daemon: {}, dropped: {}",
        read.load(Ordering::Relaxed),
        sessions
            .iter()
            .map(common::daemon::Session::dropped)
            .sum::<u64>()
    );
}
