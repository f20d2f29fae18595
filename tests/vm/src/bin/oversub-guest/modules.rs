//! Loads the stand-in and nvidia-uvm, makes their nodes, and unloads them.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use oversub_uvm::session::UVM_PATH;
use oversub_uvm::tools::TOOLS_PATH;
use oversub_vm::plan::{MODULES_PATH, Round};

/// How long a module may be in use after the last program that used it is gone.
const UNLOAD_LIMIT: Duration = Duration::from_secs(10);

/// Both modules, loaded.
pub struct Loaded;

fn insert(file: &str, parameters: &str) -> Result<()> {
    let path = format!("{MODULES_PATH}/{file}");
    let module = File::open(&path).with_context(|| format!("cannot open {path}"))?;
    let parameters_c = CString::new(parameters)?;
    // SAFETY: an open descriptor and a text that lives for the call.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_finit_module,
            module.as_raw_fd(),
            parameters_c.as_ptr(),
            0,
        )
    };
    if rc != 0 {
        bail!(
            "{file} cannot be loaded with \"{parameters}\": {}",
            io::Error::last_os_error()
        );
    }
    Ok(())
}

fn remove(name: &str) -> Result<()> {
    let name_c = CString::new(name)?;
    let end = Instant::now() + UNLOAD_LIMIT;
    loop {
        // SAFETY: a text that lives for the call.
        let rc =
            unsafe { libc::syscall(libc::SYS_delete_module, name_c.as_ptr(), libc::O_NONBLOCK) };
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            _ if rc == 0 => return Ok(()),
            // The driver takes VA spaces down behind their last descriptor's back.
            Some(libc::EAGAIN) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            _ => bail!("{name}: {error}"),
        }
    }
}

/// What `nvidia-modprobe` does on other systems.
fn make_nodes() -> Result<()> {
    let devices = fs::read_to_string("/proc/devices")?;
    let major = devices.lines().find_map(|line| {
        let (number, name) = line.trim().split_once(' ')?;
        (name == "nvidia-uvm").then(|| number.parse::<u32>().ok())?
    });
    let major = major.context("nvidia-uvm has no entry in /proc/devices")?;
    for (path, minor) in [(UVM_PATH, 0), (TOOLS_PATH, 1)] {
        let _ = fs::remove_file(path);
        let path_c = CString::new(path)?;
        let device = libc::makedev(major, minor);
        // SAFETY: a text that lives for the call.
        if unsafe { libc::mknod(path_c.as_ptr(), libc::S_IFCHR | 0o666, device) } != 0 {
            bail!("{path} cannot be made: {}", io::Error::last_os_error());
        }
        // For every user, whatever this process's mask.
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    }
    Ok(())
}

/// The version that the module itself gives.
pub fn version() -> Result<String> {
    let path = Path::new("/sys/module/nvidia_uvm/version");
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.trim().to_owned())
}

fn load_driver(parameters: &[&str]) -> Result<()> {
    let parameters = [&["uvm_enable_debug_procfs=1"], parameters].concat();
    insert("nvidia-uvm.ko", &parameters.join(" "))?;
    make_nodes()
}

/// Unloads nvidia-uvm alone, as an upgrade does, and loads it again with these parameters.
pub fn reload_driver(parameters: &[&str]) -> Result<()> {
    remove("nvidia_uvm")?;
    load_driver(parameters)
}

impl Loaded {
    /// Loads both.
    pub fn load(round: &Round) -> Result<Self> {
        let device = format!(
            "memory_mb={} model={} drop_copies={}",
            round.memory_mib,
            round.model.parameter(),
            u8::from(round.drop_copies)
        );
        insert("nvidia.ko", &device)?;
        load_driver(&[])?;
        Ok(Self)
    }

    /// Unloads both; nobody may use them any more.
    pub fn unload(self) -> Result<()> {
        remove("nvidia_uvm")?;
        remove("nvidia")
    }
}
