//! Another process's use of the driver: its descriptors of a device, taken as our own, and
//! the memory that it maps through them.
//!
//! Who may take a descriptor is the kernel's decision (`PTRACE_MODE_ATTACH_REALCREDS`: the
//! same user and no Yama against it, or CAP_SYS_PTRACE); to list another user's, its folder's
//! permissions ask for CAP_DAC_READ_SEARCH too. The driver keeps an address space
//! for as long as anybody holds its descriptor, so what was taken has to be let go when the
//! process ends.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Longest `/proc/PID/maps` that is read, bytes.
const MAPS_BYTES: u64 = 64 << 20;

/// Why a process's memory cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// It is not there, or not any more.
    #[error("process {pid} does not exist (any more)")]
    Gone {
        /// The process.
        pid: u32,
    },
    /// The kernel does not allow it.
    #[error(
        "process {pid} may not be looked into ({call}: {source}): it takes the same user and \
         kernel.yama.ptrace_scope 0, or CAP_SYS_PTRACE, for other users' processes with \
         CAP_DAC_READ_SEARCH"
    )]
    Forbidden {
        /// The process.
        pid: u32,
        /// What was refused.
        call: &'static str,
        /// Of the operating system.
        source: io::Error,
    },
    /// Something else failed.
    #[error("{call} of process {pid} failed: {source}")]
    System {
        /// The process.
        pid: u32,
        /// What failed.
        call: &'static str,
        /// Of the operating system.
        source: io::Error,
    },
    /// It does not use the driver.
    #[error("process {pid} has not opened {device}: it uses no managed memory")]
    NotOpen {
        /// The process.
        pid: u32,
        /// The device.
        device: String,
    },
}

/// A part of a process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First byte.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

/// A process, by a descriptor that stays with it whatever becomes of its number.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    pidfd: OwnedFd,
}

impl Process {
    /// Finds a process.
    ///
    /// # Errors
    /// [`ProcessError::Gone`] where there is none of that number.
    pub fn open(pid: u32) -> Result<Self, ProcessError> {
        // SAFETY: takes a process id and flags and returns a descriptor.
        let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let pidfd = descriptor(opened).map_err(|source| failed(pid, "pidfd_open", source))?;
        Ok(Self { pid, pidfd })
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Readable when the process has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// It has ended. While it has not, its number is its own.
    pub fn has_ended(&self) -> bool {
        let mut poll = libc::pollfd {
            fd: self.pidfd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd.
        unsafe { libc::poll(&raw mut poll, 1, 0) != 0 }
    }

    fn folder(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.pid))
    }

    /// Its descriptors of a character device, taken as our own.
    ///
    /// # Errors
    /// [`ProcessError`].
    pub fn take_descriptors(&self, device: &Path) -> Result<Vec<File>, ProcessError> {
        let failed = |call| move |source| failed(self.pid, call, source);
        let wanted = fs::metadata(device).map_err(failed("looking for the device"))?;
        let is_device = |metadata: &fs::Metadata| {
            metadata.file_type().is_char_device() && metadata.rdev() == wanted.rdev()
        };
        let entries = fs::read_dir(self.folder("fd")).map_err(failed("listing the descriptors"))?;
        let mut taken = Vec::new();
        for entry in entries.flatten() {
            let number: Option<i32> = entry.file_name().to_str().and_then(|n| n.parse().ok());
            let Some(number) =
                number.filter(|_| fs::metadata(entry.path()).is_ok_and(|m| is_device(&m)))
            else {
                continue;
            };
            // SAFETY: takes two descriptors' numbers and flags and returns a descriptor.
            let got =
                unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.pidfd.as_raw_fd(), number, 0) };
            match descriptor(got) {
                Ok(file) => {
                    let file = File::from(file);
                    // It may have put something else there meanwhile.
                    if file.metadata().is_ok_and(|metadata| is_device(&metadata)) {
                        taken.push(file);
                    }
                }
                // Closed meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::EBADF) => {}
                Err(error) => return Err(failed("pidfd_getfd")(error)),
            }
        }
        match (taken.is_empty(), self.has_ended()) {
            (false, _) => Ok(taken),
            (true, true) => Err(ProcessError::Gone { pid: self.pid }),
            (true, false) => Err(ProcessError::NotOpen {
                pid: self.pid,
                device: device.display().to_string(),
            }),
        }
    }

    /// The managed memory that it maps through a device, in order, adjacent parts together.
    ///
    /// # Errors
    /// [`ProcessError`].
    pub fn managed(&self, device: &Path) -> Result<Vec<Mapping>, ProcessError> {
        use std::io::Read;
        let failed = |source| failed(self.pid, "reading the maps", source);
        let mut text = Vec::new();
        File::open(self.folder("maps"))
            .and_then(|file| file.take(MAPS_BYTES).read_to_end(&mut text))
            .map_err(failed)?;
        Ok(managed_in(&String::from_utf8_lossy(&text), device))
    }
}

fn descriptor(returned: libc::c_long) -> io::Result<OwnedFd> {
    let number = i32::try_from(returned).unwrap_or(-1);
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn failed(pid: u32, call: &'static str, source: io::Error) -> ProcessError {
    match source.raw_os_error() {
        Some(libc::ESRCH) => ProcessError::Gone { pid },
        Some(libc::EPERM | libc::EACCES) => ProcessError::Forbidden { pid, call, source },
        _ => ProcessError::System { pid, call, source },
    }
}

/// Lines of `/proc/PID/maps` that are managed memory: mappings of a device of that name at
/// an offset that is the address, as the driver demands.
fn managed_in(text: &str, device: &Path) -> Vec<Mapping> {
    let mut found: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(addresses), Some(_), Some(offset)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let name = fields.nth(2).map(Path::new).and_then(Path::file_name);
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let ends = addresses.split_once('-');
        let (Some(start), Some(end)) = (
            ends.and_then(|(start, _)| hex(start)),
            ends.and_then(|(_, end)| hex(end)),
        ) else {
            continue;
        };
        if name.is_none()
            || name != device.file_name()
            || hex(offset) != Some(start)
            || end <= start
        {
            continue;
        }
        match found.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => found.push(Mapping { start, end }),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// Any character device stands for the driver's.
    const DEVICE: &str = "/dev/zero";

    struct Target(Child);

    impl Target {
        fn start(script: &str) -> Self {
            let child = Command::new("sh")
                .args(["-c", script])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            Self(child)
        }

        /// Waits until it says something.
        fn ready(mut self) -> Self {
            use std::io::Read;
            let mut byte = [0];
            self.0
                .stdout
                .as_mut()
                .unwrap()
                .read_exact(&mut byte)
                .unwrap();
            self
        }
    }

    impl Drop for Target {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_descriptor_of_the_device_is_found_among_others_and_works() {
        use std::io::Read;
        let target =
            Target::start("exec 5</dev/null 7</dev/zero 8</dev/zero; echo; read x").ready();
        let process = Process::open(target.0.id()).unwrap();
        let mut taken = process.take_descriptors(Path::new(DEVICE)).unwrap();
        assert_eq!(taken.len(), 2);
        let mut bytes = [1; 4];
        taken[0].read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [0; 4]);
        assert!(!process.has_ended());
    }

    #[test]
    fn a_process_without_the_device_is_told_apart_from_one_that_is_gone() {
        let target = Target::start("exec 5</dev/null; echo; read x").ready();
        let pid = target.0.id();
        let process = Process::open(pid).unwrap();
        let none = process.take_descriptors(Path::new(DEVICE));
        assert!(
            matches!(none, Err(ProcessError::NotOpen { .. })),
            "{none:?}"
        );
        drop(target);
        assert!(process.has_ended());
        let gone = process.take_descriptors(Path::new(DEVICE));
        assert!(
            matches!(
                gone,
                Err(ProcessError::Gone { .. } | ProcessError::System { .. })
            ),
            "{gone:?}"
        );
        assert!(matches!(
            Process::open(u32::MAX / 2),
            Err(ProcessError::Gone { .. } | ProcessError::System { .. })
        ));
    }

    #[test]
    fn a_process_that_opens_and_closes_all_the_time_is_never_mistaken() {
        let target = Target::start(
            "echo; while :; do exec 5</dev/zero; exec 5</dev/null; exec 6</dev/zero; exec 6<&-; done",
        )
        .ready();
        let process = Process::open(target.0.id()).unwrap();
        for _ in 0..200 {
            match process.take_descriptors(Path::new(DEVICE)) {
                Ok(taken) => {
                    for file in taken {
                        assert_eq!(
                            file.metadata().unwrap().rdev(),
                            fs::metadata(DEVICE).unwrap().rdev()
                        );
                    }
                }
                Err(ProcessError::NotOpen { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
    }

    #[test]
    fn after_an_exec_it_is_the_same_process_without_the_descriptor() {
        // The shell's own redirections stay open over exec, so they are closed for it.
        let target =
            Target::start("exec 5</dev/zero; exec 5<&-; exec sh -c 'echo; read x'").ready();
        let process = Process::open(target.0.id()).unwrap();
        assert!(matches!(
            process.take_descriptors(Path::new(DEVICE)),
            Err(ProcessError::NotOpen { .. })
        ));
        assert!(!process.has_ended());
    }

    #[test]
    fn managed_memory_is_what_maps_the_device_at_its_own_address() {
        let text = "\
            7e0000000000-7e0000400000 rw-s 7e0000000000 00:06 99 /dev/nvidia-uvm\n\
            7e0000400000-7e0000600000 rw-s 7e0000400000 00:06 99 /dev/nvidia-uvm\n\
            7e0000800000-7e0000a00000 rw-s 00000000 00:06 99 /dev/nvidia-uvm\n\
            7e0000c00000-7e0000e00000 rw-s 7e0000c00000 00:06 98 /dev/nvidia-uvm-tools\n\
            7e0001000000-7e0001200000 rw-s 7e0001000000 00:06 99 /host/dev/nvidia-uvm\n\
            7f0000000000-7f0000200000 rw-p 00000000 00:00 0\n\
            nonsense\n7f-7e rw-s 7f 00:06 9 /dev/nvidia-uvm\n";
        let found = managed_in(text, Path::new("/dev/nvidia-uvm"));
        let expected = [
            (0x7e00_0000_0000, 0x7e00_0060_0000),
            (0x7e00_0100_0000, 0x7e00_0120_0000),
        ]
        .map(|(start, end)| Mapping { start, end });
        assert_eq!(found, expected);
    }
}
