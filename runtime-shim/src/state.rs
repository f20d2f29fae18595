//! What the hooks share: settings, tables and locks.
//!
//! Order of locks, outer first: `ISSUE` (executor), `HANDING_OVER` (what it asks of the driver),
//! `POOL`, `WRITERS`, `STREAM_WRITERS`, `FUNCTION_WRITERS`, those of `order`. The launch path
//! takes none of them.

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use oversub_shim_core::allocations::Allocations;
use oversub_shim_core::environment::Settings;
use oversub_shim_core::functions::Functions;
use oversub_shim_core::lock::Lock;
use oversub_shim_core::pool::Pool;
use oversub_shim_core::streams::Streams;

/// Managed memory by address.
pub static ALLOCATIONS: Allocations = Allocations::new();
/// Kernels by handle.
pub static FUNCTIONS: Functions = Functions::new();
/// Streams by handle, and the numbers of launches.
pub static STREAMS: Streams = Streams::new();
/// The stream-ordered pool.
pub static POOL: Lock<Pool> = Lock::new(Pool::new());
/// Held by writers of [`ALLOCATIONS`], and while allocation records are written.
pub static WRITERS: Lock<()> = Lock::new(());
/// Held while streams get or lose slots, and while others' streams are used.
pub static STREAM_WRITERS: Lock<()> = Lock::new(());
/// Held by writers of [`FUNCTIONS`].
pub static FUNCTION_WRITERS: Lock<()> = Lock::new(());
/// Bytes of the program's allocations that stayed device memory.
pub static DEVICE_KIND_BYTES: AtomicU64 = AtomicU64::new(0);
/// Bytes that the program's pool attribute says to keep; `u64::MAX` is its own value.
pub static POOL_THRESHOLD: AtomicU64 = AtomicU64::new(0);

const UNDECIDED: u32 = 0;
const INERT: u32 = 1;
const ACTIVE: u32 = 2;

static MODE: AtomicU32 = AtomicU32::new(UNDECIDED);
static RECORDING: AtomicU32 = AtomicU32::new(0);

struct SettingsCell(UnsafeCell<Settings>);
// SAFETY: written once under `DECIDING` before `MODE` leaves `UNDECIDED`, read after.
unsafe impl Sync for SettingsCell {}
static SETTINGS: SettingsCell = SettingsCell(UnsafeCell::new(Settings::DEFAULT));
static DECIDING: Lock<()> = Lock::new(());

/// Launches are to be recorded: the one thing that a launch asks.
#[inline]
pub fn is_recording() -> bool {
    RECORDING.load(Ordering::Relaxed) != 0
}

/// Switches recording.
pub fn set_recording(on: bool) {
    RECORDING.store(u32::from(on), Ordering::SeqCst);
}

/// The settings, if the shim does anything at all in this process.
pub fn active() -> Option<&'static Settings> {
    let mode = match MODE.load(Ordering::Acquire) {
        UNDECIDED => decide(),
        decided => decided,
    };
    // SAFETY: decided, so never written again.
    (mode == ACTIVE).then(|| unsafe { &*SETTINGS.0.get() })
}

#[cold]
fn decide() -> u32 {
    let _guard = DECIDING.lock();
    let decided = MODE.load(Ordering::Acquire);
    if decided != UNDECIDED {
        return decided;
    }
    let settings = Settings::from(|name| {
        // SAFETY: a terminated name. The text is copied before anyone could change it.
        let value = unsafe { libc::getenv(name.as_ptr()) };
        // SAFETY: `getenv` gives a terminated text.
        (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes())
    });
    // SAFETY: under the lock and still undecided: no one reads it.
    unsafe { *SETTINGS.0.get() = settings };
    let mode = if settings.disabled { INERT } else { ACTIVE };
    MODE.store(mode, Ordering::Release);
    mode
}

/// From now on every hook passes: the process is a forked child, or ends.
pub fn become_inert() {
    MODE.store(INERT, Ordering::SeqCst);
    set_recording(false);
}

/// Keeps `errno` as the program left it: what the shim does is none of its business.
#[derive(Debug)]
pub struct ErrnoKept(i32);

impl ErrnoKept {
    /// Until this is dropped.
    pub fn new() -> Self {
        // SAFETY: the calling thread's own variable.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for ErrnoKept {
    fn drop(&mut self) {
        // SAFETY: the calling thread's own variable.
        unsafe { *libc::__errno_location() = self.0 };
    }
}
