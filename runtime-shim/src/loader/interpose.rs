//! `dlsym` and `dlvsym`, exported.
//!
//! The C library decides what `RTLD_NEXT` means by the return address, so both are naked
//! functions that *jump* to the real one for `RTLD_NEXT` and `RTLD_DEFAULT`: a wrapper that
//! called it would send every library that looks for the next definition of a function back
//! to itself. `RTLD_DEFAULT` finds our exports by itself.

use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_void};
use core::ptr;

use super::{DLSYM, DLVSYM, c_library, substitute_symbol};

extern "C" fn find_dlsym() -> *mut c_void {
    c_library(&DLSYM, c"dlsym")
}

extern "C" fn find_dlvsym() -> *mut c_void {
    c_library(&DLVSYM, c"dlvsym")
}

/// # Safety
/// As the C library defines `dlsym`, but that `name` may be null.
unsafe extern "C" fn answer_dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    type Function = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    let real = c_library(&DLSYM, c"dlsym");
    if real.is_null() || name.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the C library's function, with its caller's arguments.
    let found = unsafe { core::mem::transmute::<*mut c_void, Function>(real)(handle, name) };
    // SAFETY: `dlsym` takes a terminated name.
    substitute_symbol(unsafe { CStr::from_ptr(name) }, found)
}

/// # Safety
/// As the C library defines `dlvsym`, but that `name` may be null.
unsafe extern "C" fn answer_dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    type Function = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
    let real = c_library(&DLVSYM, c"dlvsym");
    if real.is_null() || name.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the C library's function, with its caller's arguments.
    let found =
        unsafe { core::mem::transmute::<*mut c_void, Function>(real)(handle, name, version) };
    // SAFETY: `dlvsym` takes a terminated name.
    substitute_symbol(unsafe { CStr::from_ptr(name) }, found)
}

macro_rules! interposed {
    ($name:ident ($($arg:ident: $ty:ty),*), $real:ident, $find:ident, $answer:ident) => {
        #[doc = concat!("Stands in for the C library's `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As the C library defines it.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> *mut c_void {
            naked_asm!(
                "endbr64",
                // RTLD_NEXT is -1, RTLD_DEFAULT 0.
                "lea rax, [rdi + 1]",
                "cmp rax, 1",
                "jbe 2f",
                "jmp {answer}",
                "2:",
                "mov rax, qword ptr [rip + {real}]",
                "test rax, rax",
                "jnz 3f",
                "push rdi",
                "push rsi",
                "push rdx",
                "call {find}",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "test rax, rax",
                "jnz 3f",
                "ret",
                "3:",
                "jmp rax",
                answer = sym $answer,
                real = sym $real,
                find = sym $find,
            )
        }

        #[doc = concat!("Stands in for the C library's `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As the C library defines it.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> *mut c_void {
            naked_asm!(
                "hint #34",
                "add x9, x0, #1",
                "cmp x9, #1",
                "b.ls 2f",
                "b {answer}",
                "2:",
                "adrp x9, {real}",
                "ldr x16, [x9, :lo12:{real}]",
                "cbnz x16, 3f",
                "stp x29, x30, [sp, #-48]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                "bl {find}",
                "mov x16, x0",
                "ldr x2, [sp, #32]",
                "ldp x0, x1, [sp, #16]",
                "ldp x29, x30, [sp], #48",
                "cbnz x16, 3f",
                "mov x0, xzr",
                "ret",
                "3:",
                "br x16",
                answer = sym $answer,
                real = sym $real,
                find = sym $find,
            )
        }
    };
}

interposed!(dlsym(handle: *mut c_void, name: *const c_char), DLSYM, find_dlsym, answer_dlsym);
interposed!(
    dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char),
    DLVSYM,
    find_dlvsym,
    answer_dlvsym
);
