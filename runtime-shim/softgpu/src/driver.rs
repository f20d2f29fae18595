//! The life of the driver in a process: `cuInit`, fork, exit.
//!
//! It owns the one device and the state that every call looks at first. A forked child
//! has no engines, so its calls answer `NOT_INITIALIZED`; behind `exit` they answer
//! `DEINITIALIZED`, and the threads are left to the end of the process.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::abi::CuResult;
use crate::config::{Backend, Config};
use crate::context::Context;
use crate::memory::{Device, MemoryError};
use crate::stats;
use crate::stream::engine::Engines;

/// CUDA 13.0.
const OWN_VERSION: c_int = 13000;
const NOT_YET: u8 = 0;
const READY: u8 = 1;
const ENDED: u8 = 2;
const FORKED: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(NOT_YET);
static DEVICE: OnceLock<Device> = OnceLock::new();
static PRIMARY: Mutex<Primary> = Mutex::new(Primary {
    context: None,
    users: 0,
    flags: 0,
});
static STARTING: Mutex<()> = Mutex::new(());

/// The device's primary context.
struct Primary {
    context: Option<&'static Context>,
    users: u32,
    flags: u32,
}

/// Whether calls are served.
///
/// # Errors
/// `NOT_INITIALIZED` before `cuInit` and in a forked child, `DEINITIALIZED` behind exit.
#[inline]
pub fn ready() -> Result<(), CuResult> {
    match STATE.load(Ordering::Acquire) {
        READY => Ok(()),
        ENDED => Err(CuResult::DEINITIALIZED),
        _ => Err(CuResult::NOT_INITIALIZED),
    }
}

/// The device.
///
/// # Errors
/// As [`ready`].
pub fn device() -> Result<&'static Device, CuResult> {
    ready()?;
    DEVICE.get().ok_or(CuResult::NOT_INITIALIZED)
}

/// The CUDA version that the driver speaks: 13.0, or with nvidia-uvm behind it what the
/// libcuda of that release does, because programs conclude from it what there is.
///
/// # Errors
/// `INVALID_VALUE` for a wrong configuration.
pub fn version() -> Result<c_int, CuResult> {
    let config = match device() {
        Ok(device) => device.config().clone(),
        Err(_) => Config::from_environment().map_err(|_| CuResult::INVALID_VALUE)?,
    };
    Ok(match config.backend {
        Backend::Own => OWN_VERSION,
        Backend::Uvm => uvm_version(),
    })
}

/// From NVIDIA's table of the driver branches that come with each CUDA release.
fn uvm_version() -> c_int {
    let text = std::fs::read_to_string("/sys/module/nvidia_uvm/version").unwrap_or_default();
    match text
        .split('.')
        .next()
        .and_then(|branch| branch.parse().ok())
    {
        Some(580u32..) => 13000,
        Some(570..) => 12080,
        Some(550..) => 12040,
        _ => 12020,
    }
}

/// `cuInit`: reads the configuration, makes the device, starts the engines.
///
/// # Errors
/// `INVALID_VALUE` for a wrong configuration, `OPERATING_SYSTEM` when the machine cannot
/// carry the device; a line on standard error says why.
pub fn init() -> Result<(), CuResult> {
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    match STATE.load(Ordering::Acquire) {
        READY => return Ok(()),
        NOT_YET => {}
        _ => return ready(),
    }
    let config = Config::from_environment().map_err(|error| {
        eprintln!("soft GPU: {error}");
        CuResult::INVALID_VALUE
    })?;
    let _quiet = SignalsBlocked::new();
    let device = match DEVICE.get() {
        Some(device) => device,
        None => {
            let device = Device::new(config).map_err(|error| {
                eprintln!("soft GPU: the device cannot be made: {error}");
                result_of(error)
            })?;
            DEVICE.get_or_init(|| device)
        }
    };
    Engines::start(device)?;
    // SAFETY: both handlers are functions of this library, which is never unloaded.
    unsafe {
        libc::pthread_atfork(None, None, Some(in_forked_child));
        libc::atexit(at_exit);
    }
    STATE.store(READY, Ordering::Release);
    Ok(())
}

/// The program's signals stay with its own threads: the driver's begin with all blocked
/// but those that a thread raises itself.
struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    fn new() -> SignalsBlocked {
        // SAFETY: both sets are initialised before they are used; the mask is the thread's.
        unsafe {
            let mut set = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigfillset(&mut set);
            for own in [
                libc::SIGBUS,
                libc::SIGSEGV,
                libc::SIGILL,
                libc::SIGFPE,
                libc::SIGTRAP,
            ] {
                libc::sigdelset(&mut set, own);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before);
            SignalsBlocked(before)
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the mask that `new` found.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

extern "C" fn in_forked_child() {
    STATE.store(FORKED, Ordering::Release);
}

extern "C" fn at_exit() {
    if STATE
        .compare_exchange(READY, ENDED, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    if let Some(device) = DEVICE.get()
        && let Some(path) = &device.config().stats
        && let Err(error) = stats::write(
            path,
            &device.counters().snapshot(),
            device.config().memory_bytes,
        )
    {
        eprintln!(
            "soft GPU: the counters cannot be written to {}: {error}",
            path.display()
        );
    }
}

/// What a program is told of a failed memory call.
pub fn result_of(error: MemoryError) -> CuResult {
    match error {
        MemoryError::OutOfMemory { .. } => CuResult::OUT_OF_MEMORY,
        MemoryError::InvalidRange { .. } => CuResult::INVALID_VALUE,
        MemoryError::IllegalAddress { .. } => CuResult::ILLEGAL_ADDRESS,
        MemoryError::NotSupported(_) => CuResult::NOT_SUPPORTED,
        MemoryError::System { .. } | MemoryError::Uvm(_) => CuResult::OPERATING_SYSTEM,
    }
}

fn primary() -> std::sync::MutexGuard<'static, Primary> {
    PRIMARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes part in the primary context, which the first user makes.
///
/// # Errors
/// As [`Context::create`].
pub fn retain_primary() -> Result<&'static Context, CuResult> {
    let mut primary = primary();
    let context = match primary.context {
        Some(context) => context,
        None => Context::create(primary.flags, true)?.1,
    };
    primary.context = Some(context);
    primary.users += 1;
    Ok(context)
}

/// Leaves the primary context; the last user's leave ends it.
///
/// # Errors
/// `INVALID_CONTEXT`, when nobody takes part.
pub fn release_primary() -> Result<(), CuResult> {
    let last = {
        let mut primary = primary();
        primary.users = primary
            .users
            .checked_sub(1)
            .ok_or(CuResult::INVALID_CONTEXT)?;
        if primary.users == 0 {
            primary.context.take()
        } else {
            None
        }
    };
    if let Some(context) = last {
        crate::allocations::end_context(context);
    }
    Ok(())
}

/// Ends the primary context whoever takes part.
pub fn reset_primary() {
    let context = {
        let mut primary = primary();
        primary.users = 0;
        primary.context.take()
    };
    if let Some(context) = context {
        crate::allocations::end_context(context);
    }
}

/// Flags of the primary context, and whether it lives.
pub fn primary_state() -> (u32, bool) {
    let primary = primary();
    (
        primary.context.map_or(primary.flags, Context::flags),
        primary.context.is_some(),
    )
}

/// Sets the flags of the primary context.
pub fn set_primary_flags(flags: u32) {
    let mut primary = primary();
    primary.flags = flags;
    if let Some(context) = primary.context {
        context.set_flags(flags);
    }
}
