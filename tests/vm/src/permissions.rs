//! Who may have which process steered: what is asked in a guest, and decides whether each
//! answer is right.
//!
//! The rules (`attach.processes`) are the daemon's; whether it can look into a process at all
//! is the kernel's: by its user, its capabilities and Yama (`Documentation/admin-guide/LSM/
//! Yama.rst`). Both are asked, and a request that is refused must say by whom and what to do.

use oversub_vm::asked::{
    AttachAnswer, AttachCounts, AttachDaemon, AttachLoad, AttachRequest, OWNER, Rights, SERVICE,
    STRANGER, Target, Then, capability,
};
use oversub_vm::plan::ProgramLoad;

const ROOT: u32 = 0;
/// What the systemd unit leaves the daemon (deploy/systemd/oversubd.service).
const OF_UNIT: [u32; 6] = [
    capability::BPF,
    capability::PERFMON,
    capability::SYS_PTRACE,
    capability::DAC_READ_SEARCH,
    capability::SYS_NICE,
    capability::SYS_ADMIN,
];
/// What a daemon needs that is not root, to look into other users' processes.
const LOOKS: [u32; 2] = [capability::SYS_PTRACE, capability::DAC_READ_SEARCH];
/// And to observe the driver by probes.
const LEAST: [u32; 4] = [
    capability::BPF,
    capability::PERFMON,
    capability::SYS_PTRACE,
    capability::DAC_READ_SEARCH,
];
/// Debian's strictest `kernel.perf_event_paranoid`, its default, under which observing the
/// kernel takes CAP_SYS_ADMIN; and the strictest of kernels without its patch.
const DEBIANS: u32 = 3;
const EVERYBODYS: u32 = 2;

const PROBES: &str = "probes";
const QUEUE: &str = "event queue";

/// What must come of a request.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// It is granted, with the driver's events from there.
    Granted(&'static str),
    /// It is refused, and all of this is said.
    Refused(&'static [&'static str]),
}
use Expected::{Granted, Refused};

/// What the rules say of others' processes, unless configured otherwise.
const NOT_OWN: Expected = Refused(&["off by default", "attach.processes"]);
const OFF: Expected = Refused(&["switched off by configuration", "attach.processes"]);
const ONLY_ROOT: Expected = Refused(&["only root may attach"]);
/// What the kernel refuses a daemon of another user without both capabilities, and one of the
/// same user under Yama without one.
const NO_LISTING: Expected = Refused(&[
    "listing the descriptors",
    "denied",
    "CAP_SYS_PTRACE",
    "CAP_DAC_READ_SEARCH",
]);
const NO_TAKING: Expected = Refused(&[
    "pidfd_getfd",
    "not permitted",
    "kernel.yama.ptrace_scope 0",
    "CAP_SYS_PTRACE",
]);

/// `kernel.yama.ptrace_scope`, who asks, for what, what follows, what must come of it.
type Case = (u32, u32, Target, Then, Expected);

/// A daemon: what is configured, as which user with which capabilities; what is asked of it.
struct Stage {
    processes: Option<&'static str>,
    perf_event_paranoid: u32,
    /// None: the command starts one of its own.
    daemon: Option<(u32, &'static [u32])>,
    cases: &'static [Case],
}

use Target::{Hidden, Plain, Program, SetUser, TwoUsers};
use Then::{LetGo, Steer, SteerToEnd};

const STAGES: [Stage; 10] = [
    Stage {
        cases: &[
            (0, ROOT, Program, LetGo, NOT_OWN),
            (0, STRANGER, Program, LetGo, NOT_OWN),
            (0, OWNER, Hidden, LetGo, NOT_OWN),
            (0, OWNER, SetUser, LetGo, NOT_OWN),
            (0, OWNER, TwoUsers, LetGo, NOT_OWN),
            (0, OWNER, Plain, LetGo, Granted(PROBES)),
            (1, OWNER, Program, Steer, Granted(PROBES)),
        ],
        ..BY_DEFAULT
    },
    Stage {
        processes: Some("off"),
        cases: &[
            (0, ROOT, Program, LetGo, OFF),
            (0, OWNER, Program, LetGo, OFF),
            (0, STRANGER, Program, LetGo, OFF),
        ],
        ..BY_DEFAULT
    },
    // A user's own daemon, and what `oversub attach` starts where there is none.
    Stage {
        daemon: Some((OWNER, &[])),
        cases: &[
            (1, OWNER, Program, LetGo, NO_TAKING),
            (2, OWNER, Program, LetGo, NO_TAKING),
            (0, OWNER, Program, LetGo, Granted(QUEUE)),
        ],
        ..BY_DEFAULT
    },
    Stage {
        daemon: None,
        cases: &[(0, OWNER, Program, Steer, Granted(QUEUE))],
        ..BY_DEFAULT
    },
    // A daemon that is neither root nor the user's.
    Stage {
        processes: Some("all"),
        daemon: Some((SERVICE, &[])),
        cases: &[(0, ROOT, Program, LetGo, NO_LISTING)],
        ..BY_DEFAULT
    },
    Stage {
        processes: Some("all"),
        daemon: Some((SERVICE, &[capability::SYS_PTRACE])),
        cases: &[(0, ROOT, Program, LetGo, NO_LISTING)],
        ..BY_DEFAULT
    },
    Stage {
        processes: Some("all"),
        daemon: Some((SERVICE, &LOOKS)),
        cases: &[(2, ROOT, Program, LetGo, Granted(QUEUE))],
        ..BY_DEFAULT
    },
    Stage {
        processes: Some("all"),
        daemon: Some((SERVICE, &LEAST)),
        cases: &[(2, ROOT, Program, LetGo, Granted(QUEUE))],
        ..BY_DEFAULT
    },
    Stage {
        processes: Some("all"),
        perf_event_paranoid: EVERYBODYS,
        daemon: Some((SERVICE, &LEAST)),
        cases: &[(2, ROOT, Program, LetGo, Granted(PROBES))],
    },
    Stage {
        processes: Some("all"),
        cases: &[
            (2, STRANGER, Program, LetGo, ONLY_ROOT),
            (2, STRANGER, SetUser, LetGo, ONLY_ROOT),
            (2, ROOT, Hidden, LetGo, Granted(PROBES)),
            (2, ROOT, SetUser, LetGo, Granted(PROBES)),
            (2, ROOT, TwoUsers, LetGo, Granted(PROBES)),
            (2, ROOT, Program, SteerToEnd, Granted(PROBES)),
        ],
        ..BY_DEFAULT
    },
];

/// The system's daemon, as its unit runs it with the default configuration.
const BY_DEFAULT: Stage = Stage {
    processes: None,
    perf_event_paranoid: DEBIANS,
    daemon: Some((ROOT, &OF_UNIT)),
    cases: &[],
};

fn request(case: &Case) -> AttachRequest {
    let (ptrace_scope, asker, target, then, _) = *case;
    AttachRequest {
        ptrace_scope,
        asker,
        target,
        then,
    }
}

/// Everything that is asked, with this program.
pub fn load(program: ProgramLoad) -> AttachLoad {
    let daemons = STAGES.iter().map(|stage| AttachDaemon {
        processes: stage.processes.map(str::to_owned),
        perf_event_paranoid: stage.perf_event_paranoid,
        rights: stage.daemon.map(|(user, capabilities)| Rights {
            user,
            capabilities: Some(capabilities.to_vec()),
        }),
        requests: stage.cases.iter().map(request).collect(),
    });
    AttachLoad {
        program,
        daemons: daemons.collect(),
    }
}

/// What is not as it must be.
pub fn wrong_with(counts: &AttachCounts) -> Vec<String> {
    let cases: Vec<_> = STAGES
        .iter()
        .flat_map(|stage| stage.cases.iter().map(move |case| (stage, case)))
        .collect();
    let mut wrong = Vec::new();
    if counts.answers.len() != cases.len() {
        let (asked, answers) = (cases.len(), counts.answers.len());
        wrong.push(format!("{answers} answers to {asked} requests"));
    }
    for ((stage, case), answer) in cases.into_iter().zip(&counts.answers) {
        let (scope, asker, target, ..) = case;
        let whose = stage.processes.unwrap_or("the default");
        let daemon = match stage.daemon {
            Some((user, capabilities)) => {
                format!(
                    "a daemon of user {user} with {} capabilities",
                    capabilities.len()
                )
            }
            None => "no daemon".to_owned(),
        };
        let what = format!(
            "user {asker} for {target:?}, attach.processes {whose}, {daemon}, ptrace_scope {scope}"
        );
        let mut found = wrong_with_one(case, answer);
        if stage.daemon.is_some() {
            found.extend(wrong_beside_daemon(case, answer));
        }
        let found = found.into_iter();
        wrong.extend(found.map(|found| format!("{what}: {found}")));
    }
    if !counts.ok {
        wrong.push("the program computed something else".to_owned());
    }
    if !counts.unloaded {
        wrong.push("the driver could not be unloaded beside the daemon".to_owned());
    }
    wrong
}

fn wrong_with_one(case: &Case, answer: &AttachAnswer) -> Vec<String> {
    let (_, _, _, then, expected) = *case;
    let mut wrong = Vec::new();
    let mut must = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    let said = &answer.said;
    must(
        answer.left == 0,
        format!("the daemon holds {} descriptors of the driver", answer.left),
    );
    match expected {
        Refused(_) if answer.granted => must(false, "granted".to_owned()),
        Refused(says) => {
            for text in says {
                must(said.contains(text), format!("no {text:?} in {said:?}"));
            }
        }
        Granted(_) if !answer.granted => must(false, format!("refused: {said}")),
        Granted(source) => {
            let found = &answer.source;
            must(
                found == source,
                format!("events by {found:?}, not {source:?}"),
            );
            let ended = match then {
                SteerToEnd => "the process has ended",
                LetGo | Steer => "detached",
            };
            let found = &answer.ended;
            must(found == ended, format!("ended by {found:?}, not {ended:?}"));
            must(
                then == LetGo || answer.moved_bytes > 0,
                "nothing was moved".to_owned(),
            );
        }
    }
    wrong
}

/// What of an answer comes of a daemon that runs, and stays when the attachment ends.
fn wrong_beside_daemon(case: &Case, answer: &AttachAnswer) -> Vec<String> {
    let mut wrong = Vec::new();
    if answer.granted && answer.held == 0 {
        wrong.push("attached without a descriptor of the driver".to_owned());
    }
    let told = &answer.stranger_told;
    if answer.granted && case.3 != SteerToEnd && !told.contains("another user's") {
        wrong.push(format!("another user was told {told:?} on letting it go"));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a product that keeps every rule answers.
    fn right() -> AttachCounts {
        let answer = |stage: &Stage, case: &Case| match case.4 {
            Refused(says) => AttachAnswer {
                said: says.join(" "),
                ..AttachAnswer::default()
            },
            Granted(source) => AttachAnswer {
                granted: true,
                source: source.to_owned(),
                moved_bytes: 1,
                held: u64::from(stage.daemon.is_some()),
                ended: match case.3 {
                    SteerToEnd => "the process has ended".to_owned(),
                    _ => "detached".to_owned(),
                },
                stranger_told: "process 7 is another user's".to_owned(),
                ..AttachAnswer::default()
            },
        };
        let stages = STAGES.iter();
        let of_stage = |stage: &'static Stage| stage.cases.iter().map(move |c| answer(stage, c));
        AttachCounts {
            answers: stages.flat_map(of_stage).collect(),
            ok: true,
            unloaded: true,
        }
    }

    #[test]
    fn right_answers_pass() {
        assert_eq!(wrong_with(&right()), [""; 0]);
    }

    #[test]
    fn every_answer_that_is_turned_round_is_noticed() {
        let count = right().answers.len();
        for index in 0..count {
            let mut counts = right();
            let answer = &mut counts.answers[index];
            answer.granted = !answer.granted;
            assert!(!wrong_with(&counts).is_empty(), "{index}");
        }
    }

    #[test]
    fn a_refusal_without_its_reason_and_a_descriptor_that_is_kept_are_noticed() {
        let mut counts = right();
        counts.answers[0].said = "no".to_owned();
        assert_eq!(wrong_with(&counts).len(), 2, "two things must be said");
        let mut counts = right();
        counts.answers[0].left = 1;
        assert_eq!(wrong_with(&counts).len(), 1);
    }

    #[test]
    fn a_program_that_is_not_steered_or_harmed_is_noticed() {
        type Change = fn(&mut AttachCounts);
        let changes: [Change; 8] = [
            |counts| counts.ok = false,
            |counts| counts.unloaded = false,
            |counts| {
                counts.answers.pop();
            },
            |counts| of_owner(counts).moved_bytes = 0,
            |counts| of_owner(counts).held = 0,
            |counts| of_owner(counts).source = QUEUE.to_owned(),
            |counts| of_owner(counts).ended = "the process has ended".to_owned(),
            |counts| of_owner(counts).stranger_told = String::new(),
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut counts = right();
            change(&mut counts);
            assert_eq!(wrong_with(&counts).len(), 1, "{index}");
        }
    }

    /// Of the request that the program's own user makes under the default configuration.
    fn of_owner(counts: &mut AttachCounts) -> &mut AttachAnswer {
        let last = STAGES[0].cases.len() - 1;
        assert_eq!(STAGES[0].cases[last].3, Steer);
        &mut counts.answers[last]
    }
}
