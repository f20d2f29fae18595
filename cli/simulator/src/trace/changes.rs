//! Programs that change from one phase to another, and back: training and evaluation, another
//! shape of input, another solver. Made from a seed, to see how soon a policy finds its way.
//!
//! A phase is an iteration that repeats: its own launches, over its own part of the memory and
//! in its own order, with scratch memory that is born and dies in it. Two to four phases differ in
//! all of these and share some of the memory. The program stays in one for some iterations, goes
//! on to another, and comes back to some. What decides is drawn from the seed alone.

use std::ops::Range;

use super::builder::{BuildError, LaunchSpec, ProgramBuilder};
use super::program::Program;
use super::random::Random;
use crate::units::{BLOCK_BYTES, LEAF_BYTES, Nanos, Region};

/// First byte of the memory of a generated program.
const BASE: u64 = 0x7f00_0000_0000;
/// Iterations of a stay.
const STAY: Range<u64> = 8..13;

/// Iterations of one phase in a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stay {
    /// Which phase.
    pub phase: usize,
    /// Its iterations, in the program's numbers.
    pub iterations: Range<usize>,
    /// The program was in this phase before.
    pub returns: bool,
}

/// A program that changes.
#[derive(Clone, Debug)]
pub struct Changes {
    seed: u64,
    /// The pool of memory, cut into parts.
    parts: Vec<Region>,
    phases: Vec<Phase>,
    /// Phase by stay, and its iterations.
    stays: Vec<(usize, u64)>,
}

#[derive(Clone, Debug)]
struct Phase {
    launches: Vec<Step>,
    /// Blocks of scratch memory that it uses.
    scratch: u64,
}

#[derive(Clone, Debug)]
struct Step {
    name: String,
    reads: Vec<usize>,
    /// The part that it updates.
    writes: Option<usize>,
    /// It fills scratch memory (that many blocks from this one on), or reads it for the last time.
    born: Option<(u64, u64)>,
    dies: Option<(u64, u64)>,
    time: Nanos,
}

impl Changes {
    /// The program of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x7068_6173_6573);
        let size = [4, 8, 16][random.below(3) as usize];
        let count = 24 + random.below(25);
        // Parts that end within blocks share them with the next.
        let bytes = size * BLOCK_BYTES - [0, LEAF_BYTES][random.below(2) as usize];
        let parts = (0..count).map(|part| Region {
            address: BASE + part * bytes,
            bytes,
        });
        let parts: Vec<Region> = parts.collect();
        let number = 2 + random.below(3) as usize;
        let phases: Vec<Phase> = (0..number)
            .map(|phase| Phase::draw(phase, parts.len(), size, &mut random))
            .collect();
        // Each once, in turn, then some again.
        let mut order: Vec<usize> = (0..number).collect();
        for _ in 0..2 + random.below(3) {
            let last = order[order.len() - 1];
            let step = 1 + random.below(number as u64 - 1) as usize;
            order.push((last + step) % number);
        }
        let stay = |phase| (phase, STAY.start + random.below(STAY.end - STAY.start));
        Self {
            seed,
            parts,
            phases,
            stays: order.into_iter().map(stay).collect(),
        }
    }

    /// How many phases.
    pub fn phases(&self) -> usize {
        self.phases.len()
    }

    /// Where the program is in which phase.
    pub fn stays(&self) -> Vec<Stay> {
        let mut first = 0;
        let stays = self.stays.iter().enumerate();
        stays
            .map(|(index, (phase, length))| {
                let iterations = first..first + *length as usize;
                first = iterations.end;
                Stay {
                    phase: *phase,
                    iterations,
                    returns: self.stays[..index].iter().any(|(other, _)| other == phase),
                }
            })
            .collect()
    }

    /// Most memory that any phase uses.
    pub fn widest_bytes(&self) -> u64 {
        let pool = self.parts.iter().map(|part| part.bytes).max().unwrap_or(0);
        let bytes = self.phases.iter().map(|phase| {
            let mut used: Vec<usize> = phase.parts().collect();
            used.sort_unstable();
            used.dedup();
            used.len() as u64 * pool + phase.scratch * BLOCK_BYTES
        });
        bytes.max().unwrap_or(0)
    }

    /// The whole program.
    ///
    /// # Errors
    /// None that is known: what is drawn is valid.
    pub fn program(&self) -> Result<Program, BuildError> {
        self.build("changes", &self.stays)
    }

    /// A phase that the program stays in for `iterations`, from its beginning.
    ///
    /// # Errors
    /// As [`Changes::program`].
    pub fn alone(&self, phase: usize, iterations: u64) -> Result<Program, BuildError> {
        self.build("alone", &[(phase, iterations)])
    }

    fn build(&self, name: &str, stays: &[(usize, u64)]) -> Result<Program, BuildError> {
        let mut builder = ProgramBuilder::new(&format!("{name}-{}", self.seed));
        let end = self.parts.last().map_or(BASE, |part| part.end());
        let pool = (end - BASE).div_ceil(BLOCK_BYTES) * BLOCK_BYTES;
        builder.alloc(BASE, pool)?;
        let scratch = BASE + pool + BLOCK_BYTES;
        let most = self.phases.iter().map(|phase| phase.scratch).max();
        builder.alloc(scratch, most.unwrap_or(0).max(1) * BLOCK_BYTES)?;
        for part in &self.parts {
            builder.use_(part.address, part.bytes)?;
        }
        builder.host(&[], &self.parts)?;
        let mut number = 0;
        for (phase, iterations) in stays {
            for _ in 0..*iterations {
                builder.iteration(number)?;
                number += 1;
                for step in &self.phases[*phase].launches {
                    self.launch(&mut builder, step, scratch)?;
                }
            }
        }
        Ok(builder.finish())
    }

    fn launch(
        &self,
        builder: &mut ProgramBuilder,
        step: &Step,
        scratch: u64,
    ) -> Result<(), BuildError> {
        let blocks = |(first, blocks): (u64, u64)| Region {
            address: scratch + first * BLOCK_BYTES,
            bytes: blocks * BLOCK_BYTES,
        };
        let mut reads: Vec<Region> = step.reads.iter().map(|part| self.parts[*part]).collect();
        let mut writes: Vec<Region> = step.writes.iter().map(|part| self.parts[*part]).collect();
        if let Some(born) = step.born.map(blocks) {
            builder.use_(born.address, born.bytes)?;
            writes.push(born);
        }
        reads.extend(step.dies.map(blocks));
        builder.launch(LaunchSpec::kernel(&step.name, step.time, &reads, &writes))?;
        if let Some(dies) = step.dies.map(blocks) {
            builder.unuse(dies.address)?;
        }
        Ok(())
    }
}

impl Phase {
    fn draw(phase: usize, parts: usize, size: u64, random: &mut Random) -> Self {
        let share = 40 + random.below(61) as usize;
        let count = (parts * share / 100).max(4);
        let mut mine: Vec<usize> = (0..parts).collect();
        // Its own part of the pool in its own order, or a run of it as it lies.
        if random.chance(60) {
            shuffle(&mut mine, random);
        } else {
            let first = random.below(parts as u64) as usize;
            mine.rotate_left(first);
        }
        mine.truncate(count);
        // Some are used again later in the iteration.
        let again = random.below(3) as usize * count / 4;
        for _ in 0..again {
            mine.push(mine[random.below(count as u64) as usize]);
        }
        let updates = random.below(101) as u32;
        let block_time = [5, 40, 130, 400][random.below(4) as usize];
        let layers = if random.chance(50) {
            mine.len() as u64 / 3
        } else {
            0
        };
        let birth = 1 + random.below(size);
        let kinds = 1 + random.below(4);
        let mut launches = Vec::new();
        for (index, part) in mine.iter().enumerate() {
            let mut reads = vec![*part];
            if random.chance(25) {
                reads.push(mine[random.below(mine.len() as u64) as usize]);
            }
            let index = index as u64;
            let layer = |index: u64| (index * birth, birth);
            let back = (mine.len() as u64 - 1).saturating_sub(index);
            let touched = size * reads.len() as u64;
            let writes = random.chance(updates).then_some(*part);
            // Forward, then backward in the order of a stack.
            let born = (index < layers).then(|| layer(index));
            let dies = (back < layers).then(|| layer(back));
            // A kernel's arguments mean the same at each launch.
            let arguments = [
                reads.len(),
                writes.iter().len(),
                born.iter().len(),
                dies.iter().len(),
            ];
            launches.push(Step {
                name: format!("phase{phase}-{}-{arguments:?}", random.below(kinds)),
                reads,
                writes,
                born,
                dies,
                time: Nanos::from_micros(block_time * touched),
            });
        }
        Self {
            launches,
            scratch: layers * birth,
        }
    }

    fn parts(&self) -> impl Iterator<Item = usize> + '_ {
        let parts = |step: &Step| {
            let reads = step.reads.iter().copied();
            reads.chain(step.writes).collect::<Vec<_>>()
        };
        self.launches.iter().flat_map(parts)
    }
}

/// Fisher and Yates.
fn shuffle(items: &mut [usize], random: &mut Random) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.below(last as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_change_between_phases_and_come_back() {
        let (mut new, mut returns) = (0, 0);
        for seed in 0..40 {
            let changes = Changes::draw(seed);
            let program = changes.program().unwrap();
            let stays = changes.stays();
            let last = stays.last().unwrap();
            assert_eq!(program.iterations().len(), last.iterations.end);
            for pair in stays.windows(2) {
                assert_ne!(pair[0].phase, pair[1].phase);
                assert_eq!(pair[0].iterations.end, pair[1].iterations.start);
                new += u32::from(!pair[1].returns);
                returns += u32::from(pair[1].returns);
            }
            assert!(changes.widest_bytes() <= program.footprint_bytes());
        }
        assert!(new >= 40 && returns >= 40, "{new} {returns}");
    }

    #[test]
    fn a_phase_is_the_same_alone() {
        for seed in 0..10 {
            let changes = Changes::draw(seed);
            let program = changes.program().unwrap();
            for stay in changes.stays() {
                let alone = changes.alone(stay.phase, 2).unwrap();
                let here = program.iterations()[stay.iterations.start].clone();
                assert_eq!(
                    program.ideal(here.clone()),
                    alone.ideal(0..here.len() as u32)
                );
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_program() {
        let text = |seed| format!("{:?}", Changes::draw(seed));
        assert_eq!(text(3), text(3));
        assert_ne!(text(3), text(4));
    }
}
