//! Fibres: suspended pieces of a kernel, many to one thread, as warps to a multiprocessor.
//!
//! A fibre leaves its thread when it is out of pieces or, from within the SIGBUS handler,
//! when it touched a page that is not on the device. The handler's frame stays on the
//! fibre's own stack, so returning from it later repeats the access.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::ptr;

use crate::memory::MemoryError;

/// Bytes of a fibre's stack; pages are populated as they are used.
const STACK_BYTES: usize = 128 << 10;
const GUARD_BYTES: usize = 4096;

/// Why a fibre gave its thread back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// It is out of pieces.
    Idle,
    /// It touched an address of the view that is not on the device.
    Faulted(u64),
}

/// What the thread's fibres and the signal handler share. It belongs to one thread.
pub struct Stage {
    scheduler: libc::ucontext_t,
    current: *mut libc::ucontext_t,
    left: Left,
    /// Addresses whose faults are ours.
    view: Range<u64>,
    /// What an idle fibre does when it is resumed.
    work: fn(),
}

thread_local! {
    static STAGE: Cell<*mut Stage> = const { Cell::new(ptr::null_mut()) };
}

/// One fibre. The context is boxed, since it points into itself.
pub struct Fibre {
    context: Box<libc::ucontext_t>,
    stack: *mut libc::c_void,
}

// SAFETY: the stack is owned, and a fibre is resumed by the thread that holds it alone.
unsafe impl Send for Fibre {}

impl Fibre {
    /// A fibre that will do the stage's work each time that it is resumed from idle.
    pub fn new() -> Result<Self, MemoryError> {
        let failed = |call| MemoryError::System {
            call,
            source: io::Error::last_os_error(),
        };
        // SAFETY: a new anonymous mapping where the kernel likes.
        let stack = unsafe {
            libc::mmap(
                ptr::null_mut(),
                STACK_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK,
                -1,
                0,
            )
        };
        if stack == libc::MAP_FAILED {
            return Err(failed("mmap of a fibre's stack"));
        }
        // SAFETY: an all-zero ucontext_t is a valid value, filled in by `reset`.
        let context = Box::new(unsafe { std::mem::zeroed() });
        let mut fibre = Self { context, stack };
        // SAFETY: the lowest page of the stack just mapped.
        if unsafe { libc::mprotect(stack, GUARD_BYTES, libc::PROT_NONE) } != 0 {
            return Err(failed("mprotect of a fibre's stack"));
        }
        fibre.reset();
        Ok(fibre)
    }

    /// Forgets what the fibre was doing.
    pub fn reset(&mut self) {
        let context = &mut *self.context;
        // SAFETY: the context is valid and boxed; the stack is ours and outlives it.
        unsafe {
            libc::getcontext(context);
            context.uc_stack.ss_sp = self.stack;
            context.uc_stack.ss_size = STACK_BYTES;
            context.uc_link = ptr::null_mut();
            libc::makecontext(context, enter, 0);
        }
    }
}

impl Drop for Fibre {
    fn drop(&mut self) {
        // SAFETY: our mapping; the fibre does not run, as its owner drops it.
        unsafe { libc::munmap(self.stack, STACK_BYTES) };
    }
}

impl Stage {
    /// A stage for the calling thread.
    pub fn new(view: Range<u64>, work: fn()) -> Box<Self> {
        Box::new(Self {
            // SAFETY: an all-zero ucontext_t is a valid value, filled in by swapcontext.
            scheduler: unsafe { std::mem::zeroed() },
            current: ptr::null_mut(),
            left: Left::Idle,
            view,
            work,
        })
    }

    /// Makes this the calling thread's stage, until [`Stage::leave`].
    pub fn enter(&mut self) {
        STAGE.set(self);
    }

    /// Takes the thread off the stage.
    pub fn leave() {
        STAGE.set(ptr::null_mut());
    }

    /// Runs a fibre until it leaves the thread. The stage must be the thread's.
    pub fn resume(&mut self, fibre: &mut Fibre) -> Left {
        self.current = &mut *fibre.context;
        let stage: *mut Self = self;
        // SAFETY: both contexts are valid; the fibre comes back through `yield_now`.
        // Access goes through `stage`, as the fibre writes to it meanwhile.
        unsafe {
            libc::swapcontext(&raw mut (*stage).scheduler, (*stage).current);
            (*stage).left
        }
    }
}

/// Leaves the thread to the scheduler; returns when the fibre is resumed.
///
/// # Safety
/// Runs on a fibre of `stage`, the thread's stage.
unsafe fn yield_now(stage: *mut Stage, left: Left) {
    // SAFETY: by the caller; the scheduler is suspended in `resume`.
    unsafe {
        (*stage).left = left;
        libc::swapcontext((*stage).current, &raw const (*stage).scheduler);
    }
}

/// Never inlined: a fibre may come back on another thread, and the compiler would keep the
/// address of the thread's own variables from before.
#[inline(never)]
fn stage_of_this_thread() -> *mut Stage {
    STAGE.get()
}

extern "C" fn enter() {
    loop {
        let stage = stage_of_this_thread();
        // SAFETY: a fibre runs only between `enter` and `leave` of its thread's stage. The
        // work is a plain function, which several fibres may be in at once.
        unsafe {
            ((*stage).work)();
            yield_now(stage, Left::Idle);
        }
    }
}

/// Called by the SIGBUS handler: suspends the fibre if the access is one of ours.
/// `false`: it is not.
///
/// # Safety
/// Runs in the handler of the faulting access.
pub unsafe fn suspend_on_fault(address: u64) -> bool {
    let stage = STAGE.get();
    // SAFETY: a set stage is valid for as long as it is set.
    if stage.is_null() || !unsafe { (*stage).view.contains(&address) } {
        return false;
    }
    // SAFETY: the access to the view came from a fibre: the scheduler makes none.
    unsafe { yield_now(stage, Left::Faulted(address)) };
    true
}
