//! What is so on this machine. Gathers and judges nothing.

use std::path::{Path, PathBuf};

use oversubd::control::Doctor;

use crate::control;
use crate::device::{self, Device, NoDevice};
use crate::install::Installation;

/// Everything that the judgement rests on. The default is: nothing is there.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The files of oversub: name and where, or why not.
    pub files: Vec<(&'static str, Result<PathBuf, String>)>,
    /// The daemon's own view, or why there is none.
    pub daemon: Result<Doctor, String>,
    /// Release of the running kernel.
    pub kernel: Option<String>,
    /// The kernel has type information for BPF.
    pub btf: bool,
    /// A userfaultfd that also serves faults of the kernel could be opened.
    pub userfaultfd: Result<(), String>,
    /// Bytes that may be locked in memory; none: no limit.
    pub memlock: Option<u64>,
    /// First CUDA device.
    pub device: Result<Device, NoDevice>,
    /// The driver has `cuMemDiscardBatchAsync`; none without a driver.
    pub discard: Option<bool>,
    /// Version of the loaded NVIDIA module; none where none is loaded.
    pub module: Option<String>,
    /// nvidia-uvm is loaded.
    pub uvm_module: bool,
    /// nvidia-uvm's type information is there.
    pub uvm_btf: bool,
    /// A process can be watched through a descriptor.
    pub pidfd: Result<(), String>,
    /// The loaded driver's kernel modules are the open ones; none: not known.
    pub open_flavour: Option<bool>,
    /// Parameters of nvidia-uvm that matter here, by name.
    pub uvm_parameters: Vec<(&'static str, String)>,
    /// The kernel's lockdown mode; none: it has none.
    pub lockdown: Option<String>,
    /// Yama's `ptrace_scope`; none: there is no Yama.
    pub ptrace_scope: Option<u32>,
}

impl Facts {
    /// Looks at this machine and at the daemon at `socket`.
    pub fn gather(socket: &Path) -> Self {
        let installation = Installation::find();
        let file = |name: &'static str| {
            let found = installation.as_ref().map_err(|error| error.to_string());
            (
                name,
                found.and_then(|place| place.file(name).map_err(|error| error.to_string())),
            )
        };
        Self {
            files: ["liboversub.so", "liboversub_softgpu.so", "oversubd"]
                .map(file)
                .to_vec(),
            daemon: control::doctor(socket).map_err(|error| format!("{error:#}")),
            kernel: read("/proc/sys/kernel/osrelease"),
            btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
            userfaultfd: userfaultfd(),
            memlock: memlock(),
            device: device::first_device(),
            discard: device::has_symbol("cuMemDiscardBatchAsync"),
            module: read("/sys/module/nvidia/version"),
            uvm_module: Path::new("/sys/module/nvidia_uvm").exists(),
            uvm_btf: Path::new("/sys/kernel/btf/nvidia_uvm").exists(),
            pidfd: pidfd(),
            open_flavour: read("/proc/driver/nvidia/version")
                .map(|text| text.contains("Open Kernel Module")),
            uvm_parameters: UVM_PARAMETERS
                .iter()
                .filter_map(|name| {
                    let path = format!("/sys/module/nvidia_uvm/parameters/{name}");
                    Some((*name, read(&path)?))
                })
                .collect(),
            lockdown: read("/sys/kernel/security/lockdown").and_then(|text| lockdown(&text)),
            ptrace_scope: read("/proc/sys/kernel/yama/ptrace_scope")
                .and_then(|text| text.parse().ok()),
        }
    }
}

/// Parameters of nvidia-uvm that change what oversub can do.
const UVM_PARAMETERS: [&str; 4] = [
    "uvm_disable_hmm",
    "uvm_ats_mode",
    "uvm_global_oversubscription",
    "uvm_perf_prefetch_enable",
];

/// The mode in brackets of `none [integrity] confidentiality`.
fn lockdown(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    let (mode, _) = rest.split_once(']')?;
    Some(mode.to_owned())
}

fn read(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The soft GPU serves faults that system calls make on its memory too, so it needs one
/// that is not limited to user mode.
fn userfaultfd() -> Result<(), String> {
    if std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/userfaultfd")
        .is_ok()
    {
        return Ok(());
    }
    opened(
        // SAFETY: the call takes flags and returns a descriptor.
        unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) },
    )
}

fn pidfd() -> Result<(), String> {
    // SAFETY: the call takes a process id and flags and returns a descriptor.
    opened(unsafe { libc::syscall(libc::SYS_pidfd_open, std::process::id(), 0) })
}

/// Closes what a system call opened, or says why it did not.
fn opened(returned: i64) -> Result<(), String> {
    let fd = i32::try_from(returned).unwrap_or(-1);
    if fd < 0 {
        return Err(std::io::Error::last_os_error().to_string());
    }
    // SAFETY: the kernel has just given this descriptor to us alone.
    unsafe { libc::close(fd) };
    Ok(())
}

fn memlock() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the out pointer is valid for the call.
    let told = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    if told != 0 || limit.rlim_cur == libc::RLIM_INFINITY {
        None
    } else {
        Some(limit.rlim_cur)
    }
}
