//! Faults that are none of the device's stay the program's own. Each case runs in a child
//! process, as it ends it.

mod common;

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use common::{MIX, device, launch};
use oversub_softgpu::memory::{BLOCK_BYTES, Device};

const CASE: &str = "SOFTGPU_SIGNAL_CASE";

/// Runs one test of this file in a child, where `CASE` is set.
fn child(test: &str) -> ExitStatus {
    let me = std::env::current_exe().expect("this test's file");
    let mut command = Command::new(me);
    command
        .args([test, "--exact", "--nocapture"])
        .env(CASE, "1");
    // SAFETY: setrlimit is async-signal-safe; no core files of deliberate crashes.
    unsafe {
        command.pre_exec(|| {
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            Ok(())
        })
    };
    command.output().expect("a child").status
}

fn in_child() -> bool {
    std::env::var_os(CASE).is_some()
}

/// A device that has run a kernel, so that its handler is installed.
fn used_device() -> (Device, u64) {
    let device = device(4);
    let address = device.alloc_managed(BLOCK_BYTES).expect("managed memory");
    launch(&device, &MIX, address, BLOCK_BYTES, 1);
    (device, address)
}

/// A page whose access raises SIGBUS: of a file that is shorter than its mapping.
fn bus_error() {
    let file = std::fs::File::open("/proc/self/exe").expect("a file");
    let end = file
        .metadata()
        .expect("length")
        .len()
        .next_multiple_of(4096);
    use std::os::fd::AsRawFd;
    // SAFETY: a new mapping; its second page lies beyond the end of the file.
    let page = unsafe {
        let map = libc::mmap(
            std::ptr::null_mut(),
            8192,
            libc::PROT_READ,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            (end - 4096) as libc::off_t,
        );
        assert_ne!(map, libc::MAP_FAILED);
        map.add(4096) as *const u8
    };
    // SAFETY: raises SIGBUS, on purpose.
    unsafe { page.read_volatile() };
}

#[test]
fn a_bus_error_of_the_programs_own_ends_it_as_without_the_device() {
    if !in_child() {
        let status = child("a_bus_error_of_the_programs_own_ends_it_as_without_the_device");
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
        return;
    }
    let _device = used_device();
    bus_error();
}

extern "C" fn leave_with_7(_: libc::c_int) {
    // SAFETY: ends the process; async-signal-safe.
    unsafe { libc::_exit(7) };
}

#[test]
fn the_handler_that_was_there_before_gets_what_is_not_ours() {
    if !in_child() {
        let status = child("the_handler_that_was_there_before_gets_what_is_not_ours");
        assert_eq!(status.code(), Some(7), "{status}");
        return;
    }
    // SAFETY: the handler is async-signal-safe.
    unsafe {
        libc::signal(
            libc::SIGBUS,
            leave_with_7 as *const () as libc::sighandler_t,
        )
    };
    let _device = used_device();
    bus_error();
}

#[test]
fn a_handler_set_later_gets_it_too_and_kernels_still_fault() {
    if !in_child() {
        let status = child("a_handler_set_later_gets_it_too_and_kernels_still_fault");
        assert_eq!(status.code(), Some(7), "{status}");
        return;
    }
    let (device, address) = used_device();
    // SAFETY: the handler is async-signal-safe.
    unsafe {
        libc::signal(
            libc::SIGBUS,
            leave_with_7 as *const () as libc::sighandler_t,
        )
    };
    let other = device.alloc_managed(BLOCK_BYTES).expect("managed memory");
    launch(&device, &MIX, other, BLOCK_BYTES, 1);
    launch(&device, &MIX, address, BLOCK_BYTES, 1);
    bus_error();
}

#[test]
fn an_access_of_the_cpu_to_freed_managed_memory_is_a_bus_error() {
    if !in_child() {
        let status = child("an_access_of_the_cpu_to_freed_managed_memory_is_a_bus_error");
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
        return;
    }
    let (device, address) = used_device();
    device.free(address).expect("free");
    // SAFETY: raises SIGBUS, on purpose.
    unsafe { (address as *const u64).read_volatile() };
}

#[test]
fn an_access_of_the_cpu_to_device_memory_is_a_segmentation_fault() {
    if !in_child() {
        let status = child("an_access_of_the_cpu_to_device_memory_is_a_segmentation_fault");
        assert_eq!(status.signal(), Some(libc::SIGSEGV), "{status}");
        return;
    }
    let (device, _) = used_device();
    let address = device.alloc_device(64).expect("device memory");
    // SAFETY: raises SIGSEGV, on purpose.
    unsafe { (address as *const u64).read_volatile() };
}

#[test]
fn a_forked_child_does_not_disturb_its_parent() {
    let (device, address) = used_device();
    // SAFETY: the child only sleeps and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: async-signal-safe calls alone.
        unsafe {
            libc::usleep(200_000);
            libc::_exit(0);
        }
    }
    for round in 0..3 {
        launch(&device, &MIX, address, BLOCK_BYTES, round);
        // SAFETY: allocated above, no kernel runs.
        assert!(unsafe { (address as *const u64).read_volatile() } > 0);
    }
    let mut status = 0;
    // SAFETY: our child; the status is written to a live word.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0);
}
