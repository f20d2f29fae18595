//! Processes that hold managed memory and do nothing, to be attached to.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use oversub_uvm::session::Space;
use oversub_vm::asked::{OWNER, Target};

/// First argument of such a process.
pub const HOLD: &str = "--hold";
const HELD_BYTES: usize = 2 << 20;
/// A copy of this program that belongs to root and runs as root, whoever starts it.
const SET_USER: &str = "/tmp/oversub-guest-set-user";
const READY: &str = "ready";

/// One of them, until dropped.
pub struct Holder {
    child: Child,
}

impl Holder {
    /// Starts one, and waits until it has its memory.
    pub fn start(kind: Target) -> Result<Self> {
        let mut command = match kind {
            Target::SetUser => {
                fs::copy("/proc/self/exe", SET_USER)?;
                fs::set_permissions(SET_USER, fs::Permissions::from_mode(0o4755))?;
                Command::new(SET_USER)
            }
            _ => Command::new("/proc/self/exe"),
        };
        // That of two users is root's first.
        if kind != Target::TwoUsers {
            command.uid(OWNER).gid(OWNER);
        }
        let child = command
            .args([HOLD, &serde_json::to_string(&kind)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{kind:?} cannot be started"))?;
        let mut holder = Self { child };
        let said = holder.child.stdout.take().context("it has no output")?;
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        ensure!(line.trim() == READY, "{kind:?} holds no memory: {line:?}");
        Ok(holder)
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other side: what such a process does.
pub fn hold(kind: &str) {
    let held = serde_json::from_str(kind)
        .context("the kind cannot be read")
        .and_then(become_kind)
        .and_then(|()| {
            let space = Space::open()?;
            let memory = space.map(HELD_BYTES)?;
            memory.touch(0, 1);
            Ok((space, memory))
        });
    match held {
        Ok(_held) => {
            println!("{READY}");
            // Until whoever started it goes, or ends it.
            let _ = io::stdin().read(&mut [0]);
        }
        Err(error) => println!("{error:#}"),
    }
}

fn become_kind(kind: Target) -> Result<()> {
    let dumpable = |yes: libc::c_ulong| {
        // SAFETY: no pointers.
        match unsafe { libc::prctl(libc::PR_SET_DUMPABLE, yes, 0, 0, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    match kind {
        Target::Hidden => dumpable(0)?,
        Target::TwoUsers => {
            // SAFETY: no pointers.
            let done =
                unsafe { libc::setresgid(OWNER, OWNER, OWNER) | libc::setresuid(OWNER, OWNER, 0) };
            ensure!(done == 0, "users: {}", io::Error::last_os_error());
            // So that it is its users by which it is judged, and not this.
            dumpable(1)?;
        }
        Target::Program | Target::Plain | Target::SetUser => {}
    }
    Ok(())
}
