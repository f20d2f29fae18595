//! Whose event queues this process may open: by what the kernel asks of whoever takes another
//! process's descriptor (`PTRACE_MODE_ATTACH_REALCREDS`, fs/proc/fd.c,
//! security/yama/yama_lsm.c). Facts, then a pure choice.

use std::fs;

use oversub_uvm::tools::{self, TOOLS_PATH};

use crate::host::{CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, effective};

/// Whose event queues can be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Any process's.
    All,
    /// Those of processes of this process's own user.
    Own,
    /// Nobody's, and why.
    Nobody(String),
}

impl Reach {
    /// That of this process, now. Reads two files.
    pub fn now() -> Reach {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
        // Without Yama, a user's processes may look into each other.
        let scope = scope.ok().and_then(|text| text.trim().parse().ok());
        Self::of(
            tools::is_there(),
            effective(&status),
            scope.unwrap_or_default(),
        )
    }

    /// Where the device of event queues is `there`, of a process with these effective
    /// capabilities, under this `kernel.yama.ptrace_scope`.
    fn of(there: bool, capabilities: u64, scope: u32) -> Reach {
        let has = |capability: u32| capabilities >> capability & 1 == 1;
        if !there {
            return Reach::Nobody(format!(
                "the driver's event queue is not there ({TOOLS_PATH})"
            ));
        }
        match (has(CAP_SYS_PTRACE), scope) {
            (_, 3..) => Reach::Nobody(format!(
                "event queues cannot be opened: kernel.yama.ptrace_scope {scope} lets no process \
                 look into another"
            )),
            // The descriptors of other users' processes have to be listed first.
            (true, _) if has(CAP_DAC_READ_SEARCH) => Reach::All,
            (true, _) | (false, 0) => Reach::Own,
            (false, _) => Reach::Nobody(format!(
                "event queues cannot be opened: kernel.yama.ptrace_scope {scope} asks for \
                 CAP_SYS_PTRACE"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTRACE: u64 = 1 << CAP_SYS_PTRACE;
    const BOTH: u64 = PTRACE | 1 << CAP_DAC_READ_SEARCH;

    #[test]
    fn who_may_look_into_whom_is_the_capabilities_and_yamas_to_say() {
        for (capabilities, scope, expected) in [
            (BOTH, 0, Reach::All),
            (BOTH, 2, Reach::All),
            (PTRACE, 0, Reach::Own),
            (PTRACE, 2, Reach::Own),
            (0, 0, Reach::Own),
        ] {
            assert_eq!(Reach::of(true, capabilities, scope), expected, "{scope}");
        }
    }

    #[test]
    fn where_nobody_can_be_observed_the_reason_is_told() {
        for (there, capabilities, scope, says) in [
            (false, BOTH, 0, TOOLS_PATH),
            (true, BOTH, 3, "ptrace_scope 3"),
            (true, 0, 1, "CAP_SYS_PTRACE"),
            (true, 0, 2, "ptrace_scope 2"),
        ] {
            match Reach::of(there, capabilities, scope) {
                Reach::Nobody(reason) => assert!(reason.contains(says), "{reason}"),
                other => panic!("{other:?}"),
            }
        }
    }
}
