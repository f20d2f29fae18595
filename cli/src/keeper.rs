//! The process that keeps what a running program needs: its private folder and daemon.
//!
//! `oversub run` becomes the program, so that nothing stands between the program and its
//! terminal, its signals and its exit status. Someone else must then stop the daemon and
//! remove the folder. That is the keeper: no child of the program (its `wait` never sees
//! it), in a session of its own (its terminal's signals never reach it), asleep until the
//! program has ended.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, getpid, pipe2, setsid};

use crate::private_daemon::PrivateDaemon;

/// Starts a keeper for this process and what this process will become.
///
/// Returns once the daemon, if one is asked for, answers. From then on `folder` belongs
/// to the keeper, which removes it in the end.
///
/// # Errors
/// Where the daemon cannot be started, with its reason. The folder is removed then too.
pub fn keep(folder: &Path, daemon: Option<&Path>, profile: Option<&Path>) -> Result<()> {
    let program = getpid();
    let (mut ours, theirs) = {
        let (read, write) = pipe2(OFlag::O_CLOEXEC).context("cannot make a pipe")?;
        (File::from(read), File::from(write))
    };
    // SAFETY: this process has one thread (nothing before this starts one), so the child
    // may do whatever this process may.
    match unsafe { fork() }.context("cannot start the keeper")? {
        ForkResult::Parent { child } => {
            drop(theirs);
            let _ = waitpid(child, None);
            let mut word = String::new();
            ours.read_to_string(&mut word)
                .context("the keeper ended without a word")?;
            match word.as_str() {
                READY => Ok(()),
                "" => bail!("the keeper ended without a word"),
                reason => bail!("{reason}"),
            }
        }
        ForkResult::Child => {
            drop(ours);
            // The second fork makes the keeper nobody's child.
            // SAFETY: as above.
            if let Ok(ForkResult::Child) = unsafe { fork() } {
                be_keeper(program, folder, (daemon, profile), theirs);
            }
            exit_quietly()
        }
    }
}

const READY: &str = "ready";

/// Its program and the profile that it keeps.
type Wanted<'a> = (Option<&'a Path>, Option<&'a Path>);

fn be_keeper(program: Pid, folder: &Path, daemon: Wanted<'_>, mut word: File) {
    let guard = RemoveFolder(folder.to_path_buf());
    match prepare(program, folder, daemon, &word) {
        Ok((program, daemon)) => {
            let told = word.write_all(READY.as_bytes());
            drop(word);
            if told.is_ok() {
                wait_for_end(program.as_fd());
            }
            drop(daemon);
        }
        Err(error) => {
            let _ = word.write_all(format!("{error:#}").as_bytes());
        }
    }
    drop(guard);
}

fn prepare(
    program: Pid,
    folder: &Path,
    (daemon, profile): Wanted<'_>,
    word: &File,
) -> Result<(OwnedFd, Option<PrivateDaemon>)> {
    setsid().context("the keeper cannot have a session of its own")?;
    SigSet::all().thread_set_mask()?;
    let program = watch(program)?;
    leave_files(&[program.as_raw_fd(), word.as_raw_fd()])?;
    let daemon = daemon
        .map(|path| PrivateDaemon::start_with(path, folder, profile))
        .transpose()?;
    Ok((program, daemon))
}

/// A descriptor that becomes readable when the process ends.
fn watch(program: Pid) -> Result<OwnedFd> {
    // SAFETY: the call takes a process id and flags, and returns a new descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, program.as_raw(), 0) };
    let fd = i32::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(std::io::Error::last_os_error())
            .context("cannot watch the program (pidfd_open)");
    }
    // SAFETY: the kernel has just given this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Lets go of the program's files: a pipe that it writes to must end when it ends.
fn leave_files(kept: &[i32]) -> Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    for standard in 0..=2 {
        // SAFETY: both are descriptors of this process; the old file behind 0 to 2 is
        // not used by anything here.
        unsafe { libc::dup2(null.as_raw_fd(), standard) };
    }
    drop(null);
    // The listing is a descriptor too, so it ends before the closing begins.
    let open: Vec<i32> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for fd in open {
        if fd > 2 && !kept.contains(&fd) {
            // SAFETY: nothing in this process owns it: the keeper has opened only `kept`.
            unsafe { libc::close(fd) };
        }
    }
    Ok(())
}

fn wait_for_end(program: BorrowedFd<'_>) {
    let mut watched = [PollFd::new(program, PollFlags::POLLIN)];
    while poll(&mut watched, PollTimeout::NONE) == Err(nix::errno::Errno::EINTR) {}
}

/// Ends the process without running what the forked-from process has registered.
fn exit_quietly() -> ! {
    // SAFETY: ends the process; nothing of it is used afterwards.
    unsafe { libc::_exit(0) }
}

struct RemoveFolder(PathBuf);

impl Drop for RemoveFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
