//! Keeping only the capabilities that are still needed, and following the parent's end.

use std::io;

/// What attaching probes to programs that come later still needs. Bits of
/// `include/uapi/linux/capability.h`.
const KEPT: [(u32, &str); 6] = [
    (2, "CAP_DAC_READ_SEARCH"), // the driver library in another user's files
    (19, "CAP_SYS_PTRACE"),     // /proc/PID/maps of another user's process
    (21, "CAP_SYS_ADMIN"),      // uprobes before CAP_PERFMON covered them
    (23, "CAP_SYS_NICE"),       // engine threads that answer at once
    (38, "CAP_PERFMON"),
    (39, "CAP_BPF"),
];
const NAMES: [(u32, &str); 3] = [
    (1, "CAP_DAC_OVERRIDE"),
    (12, "CAP_NET_ADMIN"),
    (24, "CAP_SYS_RESOURCE"),
];
/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Gives up every capability that later work does not need, for all threads to come.
///
/// # Errors
/// The kernel refuses.
pub fn drop_capabilities() -> io::Result<()> {
    nix::sys::prctl::set_no_new_privs()?;
    let mut sets = read()?;
    for (half, set) in sets.iter_mut().enumerate() {
        let kept = KEPT.iter().filter(|(bit, _)| (*bit / 32) as usize == half);
        let kept = kept.fold(0u32, |mask, (bit, _)| mask | 1 << (bit % 32));
        set.effective &= kept;
        set.permitted &= kept;
        set.inheritable = 0;
    }
    let header = Header {
        version: VERSION,
        pid: 0,
    };
    // SAFETY: both pointers are to structures of the layout that this version has.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Effective capabilities, by name where this module knows one.
pub fn effective() -> Vec<String> {
    let Ok(sets) = read() else { return Vec::new() };
    let has = |bit: u32| sets[(bit / 32) as usize].effective & 1 << (bit % 32) != 0;
    let name = |bit: u32| {
        let known = KEPT.iter().chain(&NAMES).find(|(number, _)| *number == bit);
        known.map_or_else(
            || format!("capability {bit}"),
            |(_, name)| (*name).to_owned(),
        )
    };
    (0..64).filter(|bit| has(*bit)).map(name).collect()
}

fn read() -> io::Result<[Sets; 2]> {
    let mut header = Header {
        version: VERSION,
        pid: 0,
    };
    let mut sets = [Sets::default(); 2];
    // SAFETY: both pointers are to structures of the layout that this version has.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) };
    if result == 0 {
        Ok(sets)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Asks the kernel to send SIGTERM when the parent ends; `false`: it has ended already.
///
/// # Errors
/// The kernel refuses.
pub fn end_with_parent(parent: nix::unistd::Pid) -> io::Result<bool> {
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM)?;
    // It may have ended before the request.
    Ok(nix::unistd::getppid() == parent)
}
