//! What oversub changes for a program on the real driver: the same program with and
//! without it, each at two lengths, so that the difference is the steady state.

use oversub_vm::plan::{Answer, Outcome, Plan, ProgramCounts, ProgramLoad, Steering, Work};
use serde_json::{Value, json};

/// Iterations of the shorter and the longer run.
pub const ITERATIONS: [u32; 2] = [4, 8];

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

/// The figures of a program, where all of its runs have an outcome.
pub fn figures(plan: &Plan, answer: &Answer, program: &str) -> Option<Figures> {
    let runs: Vec<(&ProgramLoad, ProgramCounts)> = plan
        .rounds
        .iter()
        .zip(&answer.rounds)
        .filter_map(|(round, rounded)| match (&round.work, &rounded.outcome) {
            (Work::Program(load), Ok(Outcome::Program(counts))) if load.program == program => {
                Some((load, *counts))
            }
            _ => None,
        })
        .collect();
    let find = |steering, iterations| {
        let mut fitting = runs
            .iter()
            .filter(|(load, _)| load.steering == steering && load.iterations == iterations);
        fitting.next().map(|(_, counts)| *counts)
    };
    let driver = steady(|iterations| find(Steering::Driver, iterations))?;
    let oversub = steady(|iterations| find(Steering::Oversub, iterations))?;
    Some(Figures {
        checksum_ok: runs.iter().all(|(_, counts)| counts.ok),
        fault_reduction: 1.0 - oversub.0 / driver.0,
        bytes_ratio: oversub.1 / driver.1,
    })
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
        };
        assert_eq!(figures(&plan, &answer, "sweep"), Some(expected));
        assert_eq!(figures(&plan, &answer, "train"), None);
    }
}
