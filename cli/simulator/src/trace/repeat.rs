//! Longer programs out of recorded ones: a trace holds a few iterations, a job runs thousands.
//!
//! What is repeated is the longest run of recorded iterations that leaves memory as it found it,
//! so that one may follow another: the same allocations, and the same parts handed out of them. A
//! caching allocator comes back to that soon, though not after each iteration. Where there are such
//! runs, one is taken that the program was seen to begin anew: what was recorded behind it launches
//! what the run does, so that what happens every third iteration does so for ever.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use super::builder::{Limits, peaks};
use super::program::{Launch, Program, Step};

/// Iterations that differ from the steady ones: buffers grow, an allocator settles.
const SETTLING: usize = 2;

/// Why a program is not made longer.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RepeatError {
    /// No two places are alike.
    #[error(
        "cannot be repeated: from the third of its {iterations} iterations on, no two begin with \
         the same memory allocated and handed out"
    )]
    NeverAlike {
        /// Recorded iterations.
        iterations: usize,
    },
    /// It would be too long.
    #[error("cannot be repeated so often: that is more than {limit} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

impl Program {
    /// The same program with at least `iterations` iterations: those recorded, up to the end of
    /// the run that repeats, and that run again and again, cut off at the end. A program that has
    /// so many already stays as it is.
    ///
    /// # Errors
    /// Where the recorded iterations never come back to the same memory, or it would be too long.
    pub fn repeated(mut self, iterations: usize) -> Result<Self, RepeatError> {
        if iterations <= self.iterations.len() {
            return Ok(self);
        }
        let run = self.run().ok_or(RepeatError::NeverAlike {
            iterations: self.iterations.len(),
        })?;
        let starts = self.starts();
        let steps = starts[run.start]..starts[run.end];
        self.cut(steps.end, run.end);
        let unit = self.steps[steps].to_vec();
        while self.iterations.len() < iterations {
            for step in &unit {
                if matches!(step, Step::Iteration(_)) && self.iterations.len() == iterations {
                    break;
                }
                self.again(*step)?;
            }
        }
        self.peaks = peaks(&self.steps, self.lifetimes, &self.iterations);
        Ok(self)
    }

    /// The first step of each iteration, and the end.
    fn starts(&self) -> Vec<usize> {
        let steps = self.steps.iter().enumerate();
        let begins = steps.filter(|(_, step)| matches!(step, Step::Iteration(_)));
        let begins = begins.map(|(index, _)| index);
        begins.chain([self.steps.len()]).collect()
    }

    /// The longest run of iterations that begins and ends with the same memory, the first of
    /// several; one that was seen to begin anew, where there are any. The end of the last iteration
    /// counts where the program takes nothing apart there.
    fn run(&self) -> Option<Range<usize>> {
        let memory = self.memory();
        let does: Vec<u64> = self.iterations.iter().map(|one| self.does(one)).collect();
        let begins_anew = |run: &Range<usize>| {
            let behind = &does[run.end..];
            let again = does[run.clone()].iter().cycle();
            !behind.is_empty() && again.zip(behind).all(|(one, other)| one == other)
        };
        let last = memory.len() - 1;
        let lengths = (1..=last.saturating_sub(SETTLING)).rev();
        let of_length = |length| (SETTLING..=last - length).map(move |start| start..start + length);
        let mut runs = lengths
            .flat_map(of_length)
            .filter(|run| memory[run.start] == memory[run.end]);
        let longest = runs.next()?;
        let mut all = std::iter::once(longest.clone()).chain(runs);
        Some(all.find(begins_anew).unwrap_or(longest))
    }

    /// What these launches run, as a hash.
    fn does(&self, launches: &Range<u32>) -> u64 {
        let mut hasher = DefaultHasher::new();
        for launch in &self.launches[launches.start as usize..launches.end as usize] {
            (launch.name, launch.signature).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// What is allocated and handed out at the beginning of each iteration and at the end, as
    /// hashes of the sets.
    fn memory(&self) -> Vec<u64> {
        let hash = |what: (bool, u64, u64)| {
            let mut hasher = DefaultHasher::new();
            what.hash(&mut hasher);
            hasher.finish()
        };
        let mut allocations = HashMap::new();
        let mut parts = BTreeMap::new();
        // The sum of a set's hashes does not depend on the order.
        let mut sum = 0_u64;
        let mut at = Vec::new();
        for step in &self.steps {
            match *step {
                Step::Alloc(region) => {
                    let one = hash((true, region.address, region.bytes));
                    allocations.insert(region.address, one);
                    sum = sum.wrapping_add(one);
                }
                Step::Use(region) => {
                    let one = hash((false, region.address, region.bytes));
                    parts.insert(region.address, one);
                    sum = sum.wrapping_add(one);
                }
                Step::Unuse(region, _) => {
                    let one = parts.remove(&region.address).unwrap_or(0);
                    sum = sum.wrapping_sub(one);
                }
                Step::Free(region, _) => {
                    let one = allocations.remove(&region.address).unwrap_or(0);
                    sum = sum.wrapping_sub(one);
                    let inside = parts.range(region.address..region.end());
                    let inside: Vec<(u64, u64)> = inside.map(|(&at, &one)| (at, one)).collect();
                    for (address, one) in inside {
                        parts.remove(&address);
                        sum = sum.wrapping_sub(one);
                    }
                }
                Step::Iteration(_) => at.push(sum),
                Step::Launch(_) | Step::Host(_) => {}
            }
        }
        at.push(sum);
        at
    }

    /// Ends the program before this step, with so many iterations.
    fn cut(&mut self, steps: usize, iterations: usize) {
        self.steps.truncate(steps);
        self.iterations.truncate(iterations);
        let launches = self.iterations.last().map_or(0, |last| last.end);
        self.launches.truncate(launches as usize);
        self.calls.retain(|launch, _| launch.0 < launches);
    }

    /// The step happens once more.
    fn again(&mut self, step: Step) -> Result<(), RepeatError> {
        let limits = Limits::default();
        let too_many = |what, limit| Err(RepeatError::TooMany { what, limit });
        if self.steps.len() >= limits.steps {
            return too_many("events", limits.steps);
        }
        let step = match step {
            Step::Iteration(_) => {
                let next = self.launches.len() as u32;
                self.iterations.push(next..next);
                Step::Iteration(self.iterations.len() as u32 - 1)
            }
            Step::Launch(recorded) => {
                if self.launches.len() >= limits.launches {
                    return too_many("launches", limits.launches);
                }
                let launch = Launch(self.launches.len() as u32);
                let mut info = *self.launch(recorded);
                info.iteration = Some(self.iterations.len() as u32 - 1);
                self.launches.push(info);
                if let Some(last) = self.iterations.last_mut() {
                    last.end = self.launches.len() as u32;
                }
                if let Some(call) = self.calls.get(&recorded).copied() {
                    self.calls.insert(launch, call);
                }
                Step::Launch(launch)
            }
            other => other,
        };
        self.steps.push(step);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LaunchSpec, ProgramBuilder};
    use super::*;
    use crate::units::{BLOCK_BYTES, Nanos, Region};

    const BASE: u64 = 0x7f00_0000_0000;

    fn block(number: u64) -> Region {
        Region {
            address: BASE + number * BLOCK_BYTES,
            bytes: BLOCK_BYTES,
        }
    }

    /// By iteration: the block that stays handed out when it is over.
    fn program(kept: &[u64]) -> Program {
        let mut builder = ProgramBuilder::new("kept");
        builder.alloc(BASE, 16 * BLOCK_BYTES).unwrap();
        let mut held = None;
        for (number, keep) in kept.iter().enumerate() {
            builder.iteration(number as u64).unwrap();
            if let Some(held) = held.replace(*keep) {
                builder.unuse(block(held).address).unwrap();
            }
            builder.use_(block(*keep).address, BLOCK_BYTES).unwrap();
            let name = format!("writes{keep}");
            let writes = [block(*keep)];
            let spec = LaunchSpec::kernel(&name, Nanos::from_micros(10), &[], &writes);
            builder.launch(spec).unwrap();
            let copy = LaunchSpec::kernel("memset", Nanos::from_micros(1), &[], &writes);
            builder.launch(copy).unwrap();
        }
        builder.finish()
    }

    fn names(program: &Program) -> Vec<&str> {
        let launches = (0..program.launches().len() as u32).map(Launch);
        launches
            .map(|launch| program.kernel_name(launch))
            .filter(|name| *name != "memset")
            .collect()
    }

    #[test]
    fn the_run_that_leaves_memory_as_it_found_it_is_repeated() {
        // Blocks 5 and 6 are held in turn: after two iterations memory is as before.
        let long = program(&[1, 2, 5, 6, 5, 6, 7]).repeated(11).unwrap();
        let numbers: Vec<String> = [1, 2, 5, 6, 5, 6, 5, 6, 5, 6, 5]
            .iter()
            .map(|number| format!("writes{number}"))
            .collect();
        assert_eq!(names(&long), numbers);
        let iterations = long.iterations();
        assert_eq!(iterations.len(), 11);
        assert_eq!(iterations[10], 20..22);
        let last = long.launch(Launch(20));
        assert_eq!(last.iteration, Some(10));
        // Copies say what they are.
        assert!(long.call(Launch(21)).is_some() && long.call(Launch(20)).is_none());
        assert_eq!(long.steady().len(), 8);
    }

    #[test]
    fn what_is_repeated_is_as_if_it_had_been_recorded() {
        let long = program(&[1, 2, 5, 6, 5, 6, 5]).repeated(12).unwrap();
        let recorded = program(&[1, 2, 5, 6, 5, 6, 5, 6, 5, 6, 5, 6]);
        let steps = |program: &Program| {
            let steps = program.steps().iter().map(|step| match step {
                // Lists of pieces are stored where they come first.
                Step::Unuse(region, dead) => format!("{region:?} {:?}", program.dead(*dead)),
                step => format!("{step:?}"),
            });
            steps.collect::<Vec<_>>()
        };
        assert_eq!(steps(&long), steps(&recorded));
        assert_eq!(long.launches(), recorded.launches());
        assert_eq!(long.steady(), recorded.steady());
        assert_eq!(long.iterations(), recorded.iterations());
    }

    #[test]
    fn a_run_that_was_seen_to_begin_anew_is_preferred() {
        // Memory is the same at the beginning of each, and every third one does more.
        let program = |iterations: u64| {
            let mut builder = ProgramBuilder::new("thirds");
            builder.alloc(BASE, BLOCK_BYTES).unwrap();
            for number in 0..iterations {
                builder.iteration(number).unwrap();
                for name in ["step", "average"] {
                    if name == "step" || number % 3 == 2 {
                        let reads = [block(0)];
                        let spec = LaunchSpec::kernel(name, Nanos::from_micros(1), &reads, &[]);
                        builder.launch(spec).unwrap();
                    }
                }
            }
            builder.finish()
        };
        let long = program(7).repeated(14).unwrap();
        assert_eq!(names(&long), names(&program(14)));
    }

    #[test]
    fn a_program_that_is_long_enough_stays_as_it_is() {
        let same = program(&[1, 2, 3, 4]).repeated(4).unwrap();
        assert_eq!(names(&same).len(), 4);
    }

    #[test]
    fn a_program_that_never_comes_back_is_refused() {
        let never = program(&[1, 2, 3, 4, 5, 6]).repeated(7);
        assert_eq!(
            never.unwrap_err(),
            RepeatError::NeverAlike { iterations: 6 }
        );
        let short = ProgramBuilder::new("empty").finish().repeated(1);
        assert!(matches!(short, Err(RepeatError::NeverAlike { .. })));
    }

    #[test]
    fn freed_memory_takes_its_parts_with_it() {
        let mut builder = ProgramBuilder::new("freed");
        for number in 0..5 {
            builder.iteration(number).unwrap();
            builder.alloc(BASE, 2 * BLOCK_BYTES).unwrap();
            // Another part in turn.
            let part = block(number % 2);
            builder.use_(part.address, part.bytes).unwrap();
            let reads = [part];
            let spec = LaunchSpec::kernel("reads", Nanos::from_micros(1), &reads, &[]);
            builder.launch(spec).unwrap();
            builder.free(BASE).unwrap();
        }
        let long = builder.finish().repeated(9).unwrap();
        assert_eq!(long.iterations().len(), 9);
    }
}
