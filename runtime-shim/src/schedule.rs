//! How the kernel schedules the shim's own thread. The program's are never touched.

use core::{mem, ptr};

/// Nanoseconds that the thread asks to run for at a time.
const SLICE_NS: u64 = 100_000;
/// Nice value that the thread asks for, where it may: it runs little, and whoever it answers
/// waits for a device meanwhile.
const NICE: i32 = -10;

/// Asks for short turns on the processor, and so for early ones: a thread that wakes with a
/// shorter slice than the running one's need not wait for the end of that (Linux 6.12,
/// kernel/sched/fair.c, `PREEMPT_SHORT`), which older kernels ignore. And for a larger share,
/// which takes CAP_SYS_NICE: without, a thread that has just run waits for the others' turns
/// to end. A refusal changes nothing but latency.
pub fn prefer_short_turns() {
    // SAFETY: all zero is a valid value.
    let mut attributes: libc::sched_attr = unsafe { mem::zeroed() };
    let bytes = size_of_val(&attributes) as u32;
    // SAFETY: the calling thread; a local to write to, with its size.
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, bytes, 0) };
    if known != 0 || attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attributes.sched_runtime = SLICE_NS;
    let nice = attributes.sched_nice;
    attributes.sched_nice = nice.min(NICE);
    // SAFETY: the calling thread; a local to read, which has its size in it.
    let set = |attributes: &libc::sched_attr| unsafe {
        libc::syscall(libc::SYS_sched_setattr, 0, ptr::from_ref(attributes), 0) == 0
    };
    if !set(&attributes) {
        attributes.sched_nice = nice;
        set(&attributes);
    }
}
