//! What oversub changes for a program on the real driver: the same program with and
//! without it, in the iterations after everything is learned.

use oversub_vm::plan::{Answer, Outcome, Plan, ProgramCounts, Settled, Steering, Work};
use serde_json::{Value, json};

/// Iterations of a program, and after how many of them everything is learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    /// So many.
    pub iterations: u32,
    /// After these.
    pub settled_after: u32,
}

/// On the driver alone, which learns nothing: its second iteration is as its tenth.
pub const ALONE: Length = Length {
    iterations: 2,
    settled_after: 1,
};

/// One figure of the product.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// In the report.
    pub name: &'static str,
    /// The program.
    pub program: &'static str,
    /// The GPU's memory, MiB.
    pub memory_mib: u64,
    /// The driver alone, for a program of this kind.
    pub baseline: Steering,
    /// Who moves its memory.
    pub steering: Steering,
    /// How long it runs with it.
    pub length: Length,
    /// Part of the driver's faults that must not happen.
    pub least_reduction: f64,
    /// Most bytes in parts of the driver's, where that is asked for.
    pub most_bytes: Option<f64>,
}

/// One program's figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// All results were right.
    pub checksum_ok: bool,
    /// Part of the driver's faults that do not happen.
    pub fault_reduction: f64,
    /// Bytes moved, in parts of what the driver alone moves.
    pub bytes_ratio: f64,
}

/// The counts of a program's run, steered in a way.
fn run(plan: &Plan, answer: &Answer, program: &str, steering: Steering) -> Option<ProgramCounts> {
    let mut rounds = plan.rounds.iter().zip(&answer.rounds);
    rounds.find_map(|(round, rounded)| match (&round.work, &rounded.outcome) {
        (Work::Program(load), Ok(Outcome::Program(counts)))
            if load.program == program && load.steering == steering =>
        {
            Some(**counts)
        }
        _ => None,
    })
}

/// Faults and bytes of an iteration after everything was learned; none where the driver did
/// nothing at all in them, which nobody can have seen.
fn steady(counts: ProgramCounts) -> Option<(f64, f64)> {
    let Settled {
        iterations,
        faults,
        bytes,
    } = counts.settled;
    let count = f64::from(iterations);
    (iterations > 0 && bytes > 0).then(|| (faults as f64 / count, bytes as f64 / count))
}

/// The plan asks for it.
pub fn is_planned(plan: &Plan, figure: &Figure) -> bool {
    plan.rounds.iter().any(|round| match &round.work {
        Work::Program(load) => load.program == figure.program && load.steering == figure.steering,
        _ => false,
    })
}

/// The figures, where all of its runs have an outcome.
pub fn figures(plan: &Plan, answer: &Answer, figure: &Figure) -> Option<Figures> {
    let of = |steering| run(plan, answer, figure.program, steering);
    let (alone, with) = (of(figure.baseline)?, of(figure.steering)?);
    let (driver, steered) = (steady(alone)?, steady(with)?);
    // A driver that has nothing to do proves nothing.
    (driver.0 > 0.0).then(|| Figures {
        checksum_ok: alone.ok && with.ok,
        fault_reduction: 1.0 - steered.0 / driver.0,
        bytes_ratio: steered.1 / driver.1,
    })
}

/// What is not as it must be.
pub fn wrong_with(figure: &Figure, figures: &Figures) -> Vec<String> {
    let Figures {
        fault_reduction,
        bytes_ratio,
        ..
    } = figures;
    let mut wrong = Vec::new();
    if !figures.checksum_ok {
        wrong.push(format!("{}: a result is wrong", figure.name));
    }
    if *fault_reduction < figure.least_reduction {
        wrong.push(format!(
            "{}: {:.1} % fewer faults, {:.0} % are wanted",
            figure.name,
            100.0 * fault_reduction,
            100.0 * figure.least_reduction
        ));
    }
    if let Some(most) = figure.most_bytes.filter(|most| bytes_ratio > most) {
        wrong.push(format!(
            "{}: {bytes_ratio:.3} of the driver's bytes, at most {most} is wanted",
            figure.name
        ));
    }
    wrong
}

impl Figures {
    /// As an object.
    pub fn json(&self) -> Value {
        json!({
            "checksum_ok": self.checksum_ok,
            "fault_reduction": self.fault_reduction,
            "bytes_ratio": self.bytes_ratio,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oversub_vm::combination::Model;
    use oversub_vm::plan::{ProgramLoad, Round, Rounded};

    const SWEEP: Figure = Figure {
        name: "sweep",
        program: "sweep",
        memory_mib: 128,
        baseline: Steering::Alone,
        steering: Steering::Oversub,
        length: Length {
            iterations: 12,
            settled_after: 4,
        },
        least_reduction: 0.95,
        most_bytes: Some(0.5),
    };

    #[test]
    fn figures_are_of_an_iteration_after_the_learned_ones() {
        let mut plan = Plan { rounds: Vec::new() };
        let mut rounds = Vec::new();
        for (steering, iterations, faults, bytes) in [
            (Steering::Alone, 2, 1000, 400),
            (Steering::Oversub, 8, 200, 400),
        ] {
            plan.rounds.push(Round {
                name: String::new(),
                model: Model::Pascal,
                memory_mib: 64,
                drop_copies: false,
                work: Work::Program(ProgramLoad {
                    program: "sweep".to_owned(),
                    bytes: 1,
                    iterations,
                    settled_after: 1,
                    steering,
                    arguments: Vec::new(),
                    compute_scale: 1,
                }),
            });
            let counts = ProgramCounts {
                ok: true,
                faults: 10_000,
                settled: Settled {
                    iterations,
                    faults,
                    bytes,
                },
                ..ProgramCounts::default()
            };
            rounds.push(Rounded {
                name: String::new(),
                seconds: 1.0,
                processor_seconds: 0.0,
                outcome: Ok(Outcome::Program(Box::new(counts))),
            });
        }
        let mut answer = Answer {
            kernel: String::new(),
            driver: String::new(),
            btf: false,
            boot_seconds: 0.0,
            rounds,
            kernel_trouble: Vec::new(),
        };
        let expected = Figures {
            checksum_ok: true,
            fault_reduction: 0.95,
            bytes_ratio: 0.25,
        };
        assert_eq!(figures(&plan, &answer, &SWEEP), Some(expected));
        let train = Figure {
            program: "train",
            ..SWEEP
        };
        assert_eq!(figures(&plan, &answer, &train), None);
        assert!(is_planned(&plan, &SWEEP) && !is_planned(&plan, &train));
        // A run whose iterations nobody saw has no figures.
        let Ok(Outcome::Program(counts)) = &mut answer.rounds[1].outcome else {
            panic!("no counts");
        };
        counts.settled = Settled::default();
        assert_eq!(figures(&plan, &answer, &SWEEP), None);
    }

    #[test]
    fn figures_below_what_is_wanted_are_wrong() {
        let good = Figures {
            checksum_ok: true,
            fault_reduction: 0.96,
            bytes_ratio: 0.49,
        };
        assert_eq!(wrong_with(&SWEEP, &good), Vec::<String>::new());
        for bad in [
            Figures {
                checksum_ok: false,
                ..good
            },
            Figures {
                fault_reduction: 0.94,
                ..good
            },
            Figures {
                bytes_ratio: 0.51,
                ..good
            },
        ] {
            assert_eq!(wrong_with(&SWEEP, &bad).len(), 1, "{bad:?}");
        }
    }
}
