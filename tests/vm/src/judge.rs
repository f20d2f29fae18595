//! Decides whether a guest's answer is as it must be.

use std::collections::BTreeSet;

use oversub_vm::combination::Combination;
use oversub_vm::kernel::SelfChecks;
use oversub_vm::plan::{Answer, FaultCounts, Outcome, Plan, ProbeCounts, Steering, Work};

use crate::permissions;
use crate::probed;
use crate::product::{self, Figure, Length};
use crate::report::Verdict;
use crate::scraped;
use crate::sources;

/// The round whose counts are reported.
pub const COUNTS: &str = "counts, pascal";
/// The round whose counts by probes are reported.
pub const PROBES: &str = "probes";
/// The round in which data must be found wrong.
pub const CONTROL: &str = "negative control";
/// The GPU's memory, MiB. Whatever the size, a few blocks are the driver's, in flight, or
/// kept free; of a small device that is so much that even the best order would move nearly
/// half of what the driver does.
const SWEEP_MIB: u64 = 128;
const TRAIN_MIB: u64 = 64;
/// With the library in it, a program is known after a few iterations; from outside it takes
/// more, as nothing is told of it.
const LEARNED: Length = Length {
    iterations: 7,
    settled_after: 4,
};
const OBSERVED: Length = Length {
    iterations: 8,
    settled_after: 5,
};
/// What is reported of the product: a program, steered in a way, against the same program
/// on the driver alone; and what must come out of it at least.
pub const FIGURES: [Figure; 4] = [
    Figure {
        name: "sweep",
        program: "sweep",
        memory_mib: SWEEP_MIB,
        baseline: Steering::Alone,
        steering: Steering::Oversub,
        length: LEARNED,
        least_reduction: 0.95,
        most_bytes: Some(0.5),
    },
    Figure {
        name: "train",
        program: "train",
        memory_mib: TRAIN_MIB,
        baseline: Steering::Driver,
        steering: Steering::Oversub,
        length: LEARNED,
        least_reduction: 0.95,
        most_bytes: None,
    },
    Figure {
        name: "attach",
        program: "sweep",
        memory_mib: SWEEP_MIB,
        baseline: Steering::Alone,
        steering: Steering::Attached,
        length: OBSERVED,
        least_reduction: 0.8,
        most_bytes: None,
    },
    Figure {
        name: "queue",
        program: "sweep",
        memory_mib: SWEEP_MIB,
        baseline: Steering::Alone,
        steering: Steering::Queued,
        length: LEARNED,
        least_reduction: 0.95,
        most_bytes: Some(0.5),
    },
];
/// Fewer faults than this prove nothing.
const FEWEST_FAULTS: u64 = 10_000;

/// What is wrong with the counts of a round in which everything works.
fn faults_with(counts: &FaultCounts) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut must = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    must(
        counts.wrong_words == 0,
        format!("{} of {} words wrong", counts.wrong_words, counts.words),
    );
    must(
        counts.procfs == counts.tools,
        format!(
            "procfs counts {} faults, the tools queue {}",
            counts.procfs, counts.tools
        ),
    );
    must(
        counts.tools_dropped == 0,
        format!("{} events dropped", counts.tools_dropped),
    );
    must(
        counts.device >= counts.procfs,
        format!(
            "the driver counts {} faults of the device's {}",
            counts.procfs, counts.device
        ),
    );
    must(counts.evicted_bytes > 0, "nothing was evicted".to_owned());
    wrong
}

/// Judges a whole answer.
pub fn judge(combination: Combination, packaged: &str, plan: &Plan, answer: Answer) -> Verdict {
    let mut wrong = Vec::new();
    if answer.driver != packaged {
        wrong.push(format!(
            "driver {} runs, {packaged} was built",
            answer.driver
        ));
    }
    if answer.btf != combination.btf {
        wrong.push(format!(
            "module BTF is {}, {} was asked for",
            answer.btf, combination.btf
        ));
    }
    wrong.extend(
        answer
            .kernel_trouble
            .iter()
            .map(|line| format!("kernel: {line}")),
    );
    let mut reported = FaultCounts::default();
    let mut observed = ProbeCounts::default();
    let mut attached = BTreeSet::new();
    for round in &answer.rounds {
        let name = &round.name;
        match &round.outcome {
            Err(error) => wrong.push(format!("{name}: {error}")),
            Ok(Outcome::Faults(counts)) if name == CONTROL => {
                if counts.dropped_copies == 0 {
                    wrong.push(format!("{name}: no copy was dropped"));
                } else if counts.wrong_words == 0 {
                    wrong.push(format!("{name}: lost copies were not noticed"));
                }
            }
            Ok(Outcome::Program(counts)) => {
                if !counts.ok {
                    wrong.push(format!("{name}: its result is wrong"));
                }
                if let Some(metrics) = &counts.metrics {
                    let found = scraped::wrong_with(metrics, is_queued(plan, name));
                    wrong.extend(found.into_iter().map(|what| format!("{name}: {what}")));
                }
            }
            Ok(Outcome::Checked(found)) => {
                wrong.extend(found.wrong.iter().map(|what| format!("{name}: {what}")));
            }
            Ok(Outcome::Attach(counts)) => {
                let found = permissions::wrong_with(counts).into_iter();
                wrong.extend(found.map(|what| format!("{name}: {what}")));
            }
            Ok(Outcome::Source(counts)) => {
                let found = sources::wrong_with(counts).into_iter();
                wrong.extend(found.map(|what| format!("{name}: {what}")));
            }
            Ok(Outcome::Probes(counts)) => {
                let load = plan.rounds.iter().find_map(|planned| match &planned.work {
                    Work::Probes(load) if planned.name == *name => Some(load),
                    _ => None,
                });
                match load {
                    Some(load) => wrong.extend(
                        probed::wrong_with(load, counts)
                            .into_iter()
                            .map(|what| format!("{name}: {what}")),
                    ),
                    None => wrong.push(format!("{name}: not planned")),
                }
                let ways = counts.attached.values();
                attached.extend(ways.filter_map(|how| Some(how.split(' ').next()?.to_owned())));
                if name == PROBES {
                    observed = counts.as_ref().clone();
                }
            }
            Ok(Outcome::Faults(counts)) => {
                wrong.extend(
                    faults_with(counts)
                        .into_iter()
                        .map(|what| format!("{name}: {what}")),
                );
                if name == COUNTS {
                    reported = *counts;
                }
            }
        }
    }
    let planned = |name: &str| plan.rounds.iter().any(|round| round.name == name);
    if planned(COUNTS) && reported.procfs < FEWEST_FAULTS {
        wrong.push(format!(
            "only {} faults, {FEWEST_FAULTS} are wanted",
            reported.procfs
        ));
    }
    if planned(PROBES) && observed.probes.faults < FEWEST_FAULTS {
        wrong.push(format!(
            "only {} faults by probes, {FEWEST_FAULTS} are wanted",
            observed.probes.faults
        ));
    }
    let mut products = Vec::new();
    for figure in &FIGURES {
        match product::figures(plan, &answer, figure) {
            Some(figures) => {
                wrong.extend(product::wrong_with(figure, &figures));
                products.push((figure.name, figures));
            }
            None if product::is_planned(plan, figure) => {
                wrong.push(format!("no figures for {}", figure.name));
            }
            None => {}
        }
    }
    Verdict {
        products,
        combination,
        driver: answer.driver,
        kernel: answer.kernel,
        boot_seconds: answer.boot_seconds,
        processor_seconds: 0.0,
        rounds: answer.rounds,
        counts: reported,
        observed,
        attached,
        self_checks: SelfChecks::default(),
        passed: wrong.is_empty(),
        wrong,
    }
}

/// The round observes the driver by its event queue.
fn is_queued(plan: &Plan, name: &str) -> bool {
    plan.rounds.iter().any(|round| {
        let queued =
            matches!(&round.work, Work::Program(load) if load.steering == Steering::Queued);
        queued && round.name == name
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use oversub_vm::combination::Model;
    use oversub_vm::plan::{FaultLoad, Round, Rounded};

    fn good() -> FaultCounts {
        FaultCounts {
            device: 12_100,
            procfs: 12_000,
            tools: 12_000,
            evicted_bytes: 1 << 20,
            words: 1000,
            ..FaultCounts::default()
        }
    }

    fn answer(counts: FaultCounts, control: FaultCounts) -> Answer {
        let round = |name: &str, counts| Rounded {
            name: name.to_owned(),
            seconds: 1.0,
            processor_seconds: 0.0,
            outcome: Ok(Outcome::Faults(counts)),
        };
        Answer {
            kernel: "6.1".to_owned(),
            driver: "535.1".to_owned(),
            btf: false,
            boot_seconds: 1.0,
            rounds: vec![round(COUNTS, counts), round(CONTROL, control)],
            kernel_trouble: Vec::new(),
        }
    }

    fn control() -> FaultCounts {
        FaultCounts {
            wrong_words: 5,
            dropped_copies: 3,
            ..good()
        }
    }

    /// That asks for the counts.
    fn plan() -> Plan {
        let load = FaultLoad {
            ratio: 1.5,
            sweeps: 1,
            stride: 4096,
        };
        let round = Round {
            name: COUNTS.to_owned(),
            model: Model::Pascal,
            memory_mib: 16,
            drop_copies: false,
            work: Work::Faults(load),
        };
        Plan {
            rounds: vec![round],
        }
    }

    fn wrong(counts: FaultCounts, control: FaultCounts) -> Vec<String> {
        let plan = plan();
        judge(
            Combination::DEFAULT,
            "535.1",
            &plan,
            answer(counts, control),
        )
        .wrong
    }

    #[test]
    fn equal_counts_and_a_control_that_fails_pass() {
        assert_eq!(wrong(good(), control()), [""; 0]);
    }

    #[test]
    fn a_control_whose_data_is_right_fails_the_run() {
        let unnoticed = FaultCounts {
            wrong_words: 0,
            ..control()
        };
        assert_eq!(wrong(good(), unnoticed).len(), 1);
    }

    #[test]
    fn unequal_counts_wrong_words_and_too_few_faults_each_fail_the_run() {
        for broken in [
            FaultCounts {
                tools: 11_999,
                ..good()
            },
            FaultCounts {
                wrong_words: 1,
                ..good()
            },
            FaultCounts {
                tools_dropped: 1,
                ..good()
            },
            FaultCounts {
                evicted_bytes: 0,
                ..good()
            },
            FaultCounts {
                device: 100,
                procfs: 100,
                tools: 100,
                ..good()
            },
        ] {
            assert_eq!(wrong(broken, control()).len(), 1, "{broken:?}");
        }
    }

    #[test]
    fn a_warning_of_the_kernel_fails_the_run() {
        let mut answer = answer(good(), control());
        answer.kernel_trouble.push("WARNING: x".to_owned());
        let plan = plan();
        assert!(!judge(Combination::DEFAULT, "535.1", &plan, answer).passed);
    }
}
