//! `liboversub.so`: preloaded into a CUDA program, it lets the program's device memory grow
//! beyond the device, and tells the daemon what will be touched.
//!
//! Only the export layer, the driver calls and the executor thread are here; what can be
//! decided without them is in `oversub-shim-core`. Follow one launch: [`entry_points`] ->
//! [`hooks::launch`] -> the event ring of the [`session`]; and one command back:
//! [`executor`] -> [`driver`].
//!
//! `no_std`, and nothing is allocated: the program's allocator may be what called us, and
//! the standard library would bring thread-local storage and an unwinder into every
//! program. (Test builds unwind, which needs the standard library; they are not shipped.)
#![cfg_attr(panic = "abort", no_std)]

mod barrier;
mod capture;
mod connect;
mod context;
mod driver;
mod entry_points;
mod executor;
mod hold;
mod hooks;
mod loader;
mod log;
mod managed;
mod order;
mod process;
mod schedule;
mod session;
mod state;

#[link(name = "c")]
unsafe extern "C" {}

/// Code here is written not to panic; what is unforeseen must not unwind into the program.
#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}
