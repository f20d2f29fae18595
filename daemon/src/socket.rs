//! Unix sockets: binding without taking one away from a daemon that lives, who is at the
//! other end, and sending descriptors.

use std::fs;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr,
    UnixCredentials, accept4, bind, connect, getsockopt, listen, sendmsg, socket, sockopt,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A listening socket in the file system; its file goes with it.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    inode: (u64, u64),
}

impl Listener {
    /// Binds `path`. A socket that lies there already is replaced only if nobody answers.
    ///
    /// # Errors
    /// Another daemon answers there, something else lies there, or the kernel refuses.
    pub fn bind(path: &Path, kind: SockType, mode: u32) -> anyhow::Result<Listener> {
        if let Some(directory) = path.parent() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(directory)
                .with_context(|| format!("cannot make the directory {}", directory.display()))?;
        }
        remove_stale(path, kind)?;
        let failed = || format!("cannot listen on {}", path.display());
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Unix, kind, flags, None).with_context(failed)?;
        let address = UnixAddr::new(path).with_context(failed)?;
        bind(fd.as_raw_fd(), &address).with_context(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).with_context(failed)?;
        let metadata = fs::symlink_metadata(path).with_context(failed)?;
        listen(&fd, Backlog::new(128).with_context(failed)?).with_context(failed)?;
        Ok(Listener {
            fd,
            path: path.to_owned(),
            inode: (metadata.dev(), metadata.ino()),
        })
    }

    /// The next connection, if one waits.
    ///
    /// # Errors
    /// `WouldBlock` where none does.
    pub fn accept(&self) -> io::Result<OwnedFd> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = accept4(self.fd.as_raw_fd(), flags)?;
        // SAFETY: accept4 has just made it and nobody else knows of it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another daemon may have taken the place meanwhile: only our own goes.
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.inode);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

fn remove_stale(path: &Path, kind: SockType) -> anyhow::Result<()> {
    let shown = path.display();
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot look at {shown}")),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            bail!("{shown} is not a socket: move it away or name another path with --socket")
        }
        Ok(_) => {}
    }
    let probe = socket(
        AddressFamily::Unix,
        kind,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )?;
    match connect(probe.as_raw_fd(), &UnixAddr::new(path)?) {
        Err(Errno::ECONNREFUSED) => {}
        Err(Errno::ENOENT) => return Ok(()),
        Ok(()) | Err(Errno::EAGAIN) => {
            bail!("another daemon answers on {shown}: stop it or name another path with --socket")
        }
        Err(error) => bail!("cannot tell whether another daemon answers on {shown}: {error}"),
    }
    fs::remove_file(path).with_context(|| format!("cannot remove the stale socket {shown}"))
}

/// Who is at the other end, as the kernel recorded it when it connected.
///
/// # Errors
/// The kernel does not know.
pub fn credentials(fd: &impl AsFd) -> io::Result<UnixCredentials> {
    Ok(getsockopt(fd, sockopt::PeerCredentials)?)
}

/// Sends one message, with descriptors, without waiting.
///
/// # Errors
/// The other end has gone or does not read.
pub fn send_with_fds(socket: BorrowedFd<'_>, message: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let sent = sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(message)],
        control,
        flags,
        None,
    )?;
    if sent == message.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// Lets the runtime wait until `owner` is readable.
///
/// # Errors
/// The runtime's poller refuses.
pub(crate) fn watch<T: AsRawFd + AsFd>(owner: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: `AsFd` and `AsRawFd` of the types used here (a listener, a borrowed
    // connection) name one descriptor, which stays open while they live, and the watcher
    // holds them.
    unsafe { AsyncFd::register_with_interest(owner, Interest::READABLE) }.map_err(io::Error::from)
}
