//! How the kernel schedules the calling thread.

use std::mem;

/// Nanoseconds that the thread asks to run for at a time.
const SLICE_NS: u64 = 100_000;

/// Asks for short turns on the processor, and so for early ones: a thread that wakes with a
/// shorter slice than the running one's need not wait for the end of that (Linux 6.12,
/// kernel/sched/fair.c, `PREEMPT_SHORT`). It takes no more than its share, and needs no
/// privilege. Older kernels ignore it; a refusal changes nothing but latency.
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
    // SAFETY: the calling thread; a local to read, which has its size in it.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_thread_that_asks_keeps_its_policy_and_priority() {
        let read = || {
            // SAFETY: all zero is a valid value; a local to write to, with its size.
            unsafe {
                let mut now: libc::sched_attr = std::mem::zeroed();
                let bytes = size_of_val(&now);
                let result = libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, bytes, 0);
                assert_eq!(result, 0);
                now
            }
        };
        let before = read();
        super::prefer_short_turns();
        let after = read();
        assert_eq!(
            (after.sched_policy, after.sched_nice),
            (before.sched_policy, before.sched_nice)
        );
    }
}
