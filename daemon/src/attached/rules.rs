//! Who may have whose process steered. Pure, but for reading a process's identity.
//!
//! The daemon may look into more processes than the one who asks, so it asks for them what
//! the kernel would ask: the asker's user must be every one of the process's users, and the
//! process must not hide itself (a set-user-ID program does). Other users' processes are
//! root's to ask for, and only where the configuration says so. What the kernel asks of the
//! daemon (the same user and no Yama against it, or CAP_SYS_PTRACE with CAP_DAC_READ_SEARCH)
//! comes on top.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::config::AttachProcesses;

/// Whose a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Real, effective, saved and file-system user.
    pub uids: [u32; 4],
    /// User of what `/proc` tells only those who may look into the process: root where it
    /// hides itself (`PR_SET_DUMPABLE`, `task_dump_owner` in fs/proc/base.c).
    pub visible_to: u32,
}

impl Owner {
    /// Of a process, from its folder in `/proc`; none where it has gone.
    pub fn of(folder: &Path) -> Option<Self> {
        // The folder itself belongs to the process's user even where it hides.
        let visible_to = std::fs::metadata(folder.join("fd")).ok()?.uid();
        let status = std::fs::read_to_string(folder.join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        let mut words = line.split_whitespace().map(str::parse);
        let mut next = || words.next()?.ok();
        let uids = [next()?, next()?, next()?, next()?];
        Some(Self { uids, visible_to })
    }

    /// The user that it is counted to.
    pub fn user(&self) -> u32 {
        self.uids[0]
    }
}

/// Whether `asker` may have a process of `owner` steered.
///
/// # Errors
/// It may not; the text says what it takes.
pub fn judge(processes: AttachProcesses, asker: u32, owner: &Owner) -> Result<(), String> {
    let own = owner.uids.iter().all(|uid| *uid == asker) && owner.visible_to == asker;
    match processes {
        AttachProcesses::Off => Err(
            "attaching is switched off by configuration: set attach.processes to \"own\""
                .to_owned(),
        ),
        _ if own => Ok(()),
        AttachProcesses::All if asker == 0 => Ok(()),
        AttachProcesses::All => Err(format!(
            "it is user {}'s, and not wholly yours: only root may attach to it",
            owner.user()
        )),
        AttachProcesses::Own => Err(format!(
            "it is user {}'s, and not wholly user {asker}'s: other users' processes are off by \
             default; let its user ask, or set attach.processes to \"all\" and ask as root",
            owner.user()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(uid: u32) -> Owner {
        Owner {
            uids: [uid; 4],
            visible_to: uid,
        }
    }

    #[test]
    fn by_default_only_ones_own_processes() {
        let own = AttachProcesses::Own;
        assert_eq!(judge(own, 1000, &owner(1000)), Ok(()));
        assert_eq!(judge(own, 0, &owner(0)), Ok(()));
        for (asker, owned) in [(1000, 1001), (1000, 0), (0, 1000)] {
            let refused = judge(own, asker, &owner(owned)).expect_err("not its own");
            assert!(refused.contains("off by default"), "{refused}");
        }
    }

    #[test]
    fn other_users_processes_are_roots_to_ask_for_where_configured() {
        let all = AttachProcesses::All;
        assert_eq!(judge(all, 0, &owner(1000)), Ok(()));
        assert_eq!(judge(all, 1000, &owner(1000)), Ok(()));
        assert!(judge(all, 1000, &owner(1001)).is_err());
        assert!(judge(all, 1000, &owner(0)).is_err());
    }

    #[test]
    fn switched_off_is_off_for_everybody() {
        for uid in [0, 1000] {
            assert!(judge(AttachProcesses::Off, uid, &owner(uid)).is_err());
        }
    }

    #[test]
    fn a_process_of_two_users_or_one_that_hides_is_not_ones_own() {
        for index in 0..4 {
            let mut mixed = owner(1000);
            mixed.uids[index] = 0;
            assert!(
                judge(AttachProcesses::Own, 1000, &mixed).is_err(),
                "{index}"
            );
        }
        let hidden = Owner {
            visible_to: 0,
            ..owner(1000)
        };
        assert!(judge(AttachProcesses::Own, 1000, &hidden).is_err());
        assert_eq!(judge(AttachProcesses::All, 0, &hidden), Ok(()));
    }

    #[test]
    fn the_owner_is_read_from_proc_and_its_absence_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(Owner::of(folder.path()), None);
        std::fs::create_dir(folder.path().join("fd")).expect("made");
        let status = "Name:\tx\nUid:\t1000\t1000\t0\t1000\nGid:\t5\t5\t5\t5\n";
        std::fs::write(folder.path().join("status"), status).expect("written");
        let owner = Owner::of(folder.path()).expect("read");
        assert_eq!(owner.uids, [1000, 1000, 0, 1000]);
        std::fs::write(folder.path().join("status"), "Uid:\t1\t2\n").expect("written");
        assert_eq!(Owner::of(folder.path()), None, "a cut file");
        let own = Owner::of(Path::new("/proc/self")).expect("read");
        assert_eq!(own.user(), nix::unistd::getuid().as_raw());
    }
}
