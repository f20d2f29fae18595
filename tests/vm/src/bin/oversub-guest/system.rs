//! The guest as an operating system: mounts, time, the kernel's log, the end.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, bail};

/// File systems that programs and BPF tools expect.
const MOUNTS: &[(&str, &str)] = &[
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("tmpfs", "/tmp"),
    ("tmpfs", "/run"),
    ("tmpfs", "/dev/shm"),
    ("securityfs", "/sys/kernel/security"),
    ("debugfs", "/sys/kernel/debug"),
    ("tracefs", "/sys/kernel/tracing"),
    ("bpf", "/sys/fs/bpf"),
    ("cgroup2", "/sys/fs/cgroup"),
];

/// What the kernel's log must not hold, whoever writes it.
const TROUBLE: &[&str] = &[
    "WARNING:",
    "BUG:",
    "Oops",
    "Call Trace",
    "general protection fault",
    "Unable to handle kernel",
    "blocked for more than",
    "rcu_sched",
    "Assert failed",
    "softgpu: channel",
];
/// From this level down (3 is error) nothing may come from the modules.
const WORST_LEVEL: u32 = 3;
const MODULES: &[&str] = &["softgpu", "nvidia", "NVRM"];

fn text(s: &str) -> Result<CString> {
    CString::new(s).with_context(|| format!("{s:?} has a zero byte"))
}

/// Mounts everything.
pub fn mount_all() -> Result<()> {
    for (kind, at) in MOUNTS {
        // What is not there is made; in sysfs it is there or the kernel lacks it.
        let _ = fs::create_dir_all(at);
        let (kind_c, at_c) = (text(kind)?, text(at)?);
        // SAFETY: both texts live for the call; no data.
        let rc = unsafe {
            libc::mount(
                kind_c.as_ptr(),
                at_c.as_ptr(),
                kind_c.as_ptr(),
                0,
                std::ptr::null(),
            )
        };
        let error = io::Error::last_os_error();
        // The kernel may have mounted devtmpfs by itself.
        if rc != 0 && error.raw_os_error() != Some(libc::EBUSY) {
            bail!("{kind} cannot be mounted on {at}: {error}");
        }
    }
    let unlimited = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: a valid limit. Kernels before 5.11 count BPF maps against it.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &unlimited) };
    Ok(())
}

/// Brings the loopback interface up, by which metrics are asked for.
pub fn loopback_up() -> Result<()> {
    // SAFETY: no pointers.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        bail!("no socket: {}", io::Error::last_os_error());
    }
    // SAFETY: the call returned it, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: zeros are a value of this type.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: a request with a name and flags, which lives for the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request) };
    match done {
        0 => Ok(()),
        _ => bail!("lo cannot be brought up: {}", io::Error::last_os_error()),
    }
}

/// Seconds since the kernel started.
pub fn uptime_seconds() -> f64 {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// As `uname -r`.
pub fn kernel_release() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    text.trim().to_owned()
}

/// The lines of the kernel's log that must not be there.
pub fn kernel_trouble() -> Result<Vec<String>> {
    const READ_ALL: libc::c_int = 3;
    let mut buffer = vec![0u8; 4 << 20];
    // SAFETY: the buffer is as long as told.
    let got = unsafe {
        libc::klogctl(
            READ_ALL,
            buffer.as_mut_ptr().cast(),
            buffer.len() as libc::c_int,
        )
    };
    if got < 0 {
        bail!(
            "the kernel's log cannot be read: {}",
            io::Error::last_os_error()
        );
    }
    let log = String::from_utf8_lossy(&buffer[..got as usize]).into_owned();
    Ok(log
        .lines()
        .filter(|line| is_trouble(line))
        .map(str::to_owned)
        .collect())
}

fn is_trouble(line: &str) -> bool {
    let level = line
        .strip_prefix('<')
        .and_then(|rest| rest.split('>').next());
    let level = level
        .and_then(|digits| digits.parse::<u32>().ok())
        .map_or(6, |level| level & 7);
    let of_modules = MODULES.iter().any(|name| line.contains(name));
    TROUBLE.iter().any(|pattern| line.contains(pattern)) || (of_modules && level <= WORST_LEVEL)
}

/// Switches the guest off.
pub fn power_off() -> ! {
    // SAFETY: no arguments.
    unsafe { libc::sync() };
    // SAFETY: a command without further arguments.
    unsafe { libc::reboot(libc::RB_POWER_OFF) };
    // Without ACPI the kernel halts instead; the host ends the guest at its limit.
    loop {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::is_trouble;

    #[test]
    fn warnings_and_the_modules_errors_are_trouble_and_the_rest_is_not() {
        assert!(is_trouble(
            "<4>[ 1.0] WARNING: CPU: 0 PID: 1 at kernel/x.c:1"
        ));
        assert!(is_trouble(
            "<3>[ 1.0] softgpu: host method 0x1 is not modelled"
        ));
        assert!(!is_trouble("<3>[ 1.0] ata1: link is down"));
        assert!(!is_trouble(
            "<4>[ 1.0] nvidia: module verification failed: signature missing"
        ));
        assert!(!is_trouble(
            "<6>[ 1.0] softgpu: nvUvmInterfaceX is not modelled"
        ));
    }
}
