//! As whom programs run in the guest: another user, with the capabilities that a service
//! manager would leave it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use oversub_vm::asked::Rights;

/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION: u32 = 0x2008_0522;
/// More than any kernel has.
const CAPABILITIES: u32 = 64;

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

/// Has a program run with these rights.
pub fn give(rights: &Rights, command: &mut Command) {
    let user = rights.user;
    match rights.capabilities.clone() {
        // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
        Some(capabilities) => unsafe {
            command.pre_exec(move || become_user(user, &capabilities));
        },
        None if user != 0 => {
            command.uid(user).gid(user);
        }
        None => {}
    }
}

fn done(returned: libc::c_int) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes this process one of a user that has these capabilities and can get no others
/// (capabilities(7): bounding, permitted and ambient sets).
fn become_user(user: u32, capabilities: &[u32]) -> io::Result<()> {
    for capability in (0..CAPABILITIES).filter(|number| !capabilities.contains(number)) {
        let number = libc::c_ulong::from(capability);
        // SAFETY: no pointers. Numbers beyond the kernel's last are refused, which is fine.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, number, 0, 0, 0) };
    }
    // SAFETY: no pointers, but for an empty list of groups.
    unsafe {
        done(libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0))?;
        done(libc::setgroups(0, std::ptr::null()))?;
        done(libc::setresgid(user, user, user))?;
        done(libc::setresuid(user, user, user))?;
    }
    let mut sets = [Sets::default(); 2];
    for capability in capabilities {
        let set = &mut sets[(capability / 32) as usize % 2];
        let bit = 1 << (capability % 32);
        set.effective |= bit;
        set.permitted |= bit;
        set.inheritable |= bit;
    }
    let header = Header {
        version: VERSION,
        pid: 0,
    };
    // SAFETY: both pointers are to structures of the layout that this version has.
    let set = unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) };
    done(set as libc::c_int)?;
    for capability in capabilities {
        let (raise, number) = (libc::PR_CAP_AMBIENT_RAISE, libc::c_ulong::from(*capability));
        // SAFETY: no pointers.
        done(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, raise, number, 0, 0) })?;
    }
    Ok(())
}
