//! What oversub changes for a program on the real driver: the same program with and
//! without it, each at two lengths, so that the difference is the steady state.

use oversub_vm::plan::{Answer, Outcome, Plan, ProgramCounts, ProgramLoad, Steering, Work};
use serde_json::{Value, json};

/// Iterations of the shorter and the longer run.
pub const ITERATIONS: [u32; 2] = [4, 8];

/// One figure of the product.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// In the report.
    pub name: &'static str,
    /// The program.
    pub program: &'static str,
    /// Who moves its memory.
    pub steering: Steering,
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
    /// The longer run had no fewer faults and moved no fewer bytes than the shorter one;
    /// otherwise the two differ by more than their length, and the figures say nothing.
    pub is_steady: bool,
}

/// Faults and bytes between the end of the shorter run and of the longer one.
fn steady(of: impl Fn(u32) -> Option<ProgramCounts>) -> Option<(f64, f64)> {
    let [short, long] = ITERATIONS.map(of);
    let (short, long) = (short?, long?);
    let bytes = |counts: ProgramCounts| (counts.bytes_in + counts.bytes_out) as f64;
    Some((
        long.faults as f64 - short.faults as f64,
        bytes(long) - bytes(short),
    ))
}

/// The counts of the runs of a figure's program, steered or not.
fn runs<'a>(
    plan: &'a Plan,
    answer: &'a Answer,
    figure: &Figure,
) -> Vec<(&'a ProgramLoad, ProgramCounts)> {
    let is_one = |load: &ProgramLoad| {
        load.program == figure.program
            && [Steering::Driver, figure.steering].contains(&load.steering)
    };
    let rounds = plan.rounds.iter().zip(&answer.rounds);
    rounds
        .filter_map(|(round, rounded)| match (&round.work, &rounded.outcome) {
            (Work::Program(load), Ok(Outcome::Program(counts))) if is_one(load) => {
                Some((load, *counts))
            }
            _ => None,
        })
        .collect()
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
    let runs = runs(plan, answer, figure);
    let find = |steering, iterations| {
        let mut fitting = runs
            .iter()
            .filter(|(load, _)| load.steering == steering && load.iterations == iterations);
        fitting.next().map(|(_, counts)| *counts)
    };
    let driver = steady(|iterations| find(Steering::Driver, iterations))?;
    let steered = steady(|iterations| find(figure.steering, iterations))?;
    // A driver that has nothing to do proves nothing.
    let is_busy = driver.0 > 0.0 && driver.1 > 0.0;
    is_busy.then(|| Figures {
        checksum_ok: runs.iter().all(|(_, counts)| counts.ok),
        fault_reduction: 1.0 - steered.0 / driver.0,
        bytes_ratio: steered.1 / driver.1,
        is_steady: steered.0 >= 0.0 && steered.1 >= 0.0,
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
    if !figures.is_steady {
        wrong.push(format!(
            "{}: the longer run had fewer faults or bytes than the shorter one, which leaves \
             nothing to compare",
            figure.name
        ));
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
    use oversub_vm::plan::{Round, Rounded};

    const SWEEP: Figure = Figure {
        name: "sweep",
        program: "sweep",
        steering: Steering::Oversub,
        least_reduction: 0.95,
        most_bytes: Some(0.5),
    };

    #[test]
    fn the_first_iterations_do_not_count() {
        let mut plan = Plan { rounds: Vec::new() };
        let mut rounds = Vec::new();
        for (steering, iterations, faults, bytes) in [
            (Steering::Driver, ITERATIONS[0], 1000, 400),
            (Steering::Driver, ITERATIONS[1], 2000, 800),
            (Steering::Oversub, ITERATIONS[0], 900, 300),
            (Steering::Oversub, ITERATIONS[1], 950, 400),
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
                    steering,
                    arguments: Vec::new(),
                    compute_scale: 1,
                }),
            });
            let counts = ProgramCounts {
                ok: true,
                faults,
                bytes_in: bytes,
                ..ProgramCounts::default()
            };
            rounds.push(Rounded {
                name: String::new(),
                seconds: 1.0,
                outcome: Ok(Outcome::Program(counts)),
            });
        }
        let answer = Answer {
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
            is_steady: true,
        };
        assert_eq!(figures(&plan, &answer, &SWEEP), Some(expected));
        let train = Figure {
            program: "train",
            ..SWEEP
        };
        assert_eq!(figures(&plan, &answer, &train), None);
        assert!(is_planned(&plan, &SWEEP) && !is_planned(&plan, &train));
    }

    #[test]
    fn figures_below_what_is_wanted_are_wrong() {
        let good = Figures {
            checksum_ok: true,
            fault_reduction: 0.96,
            bytes_ratio: 0.49,
            is_steady: true,
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
            Figures {
                fault_reduction: 2.0,
                is_steady: false,
                ..good
            },
        ] {
            assert_eq!(wrong_with(&SWEEP, &bad).len(), 1, "{bad:?}");
        }
    }
}
