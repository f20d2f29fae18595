//! PatrickStar: chunks, a warm-up iteration, and eviction by the next moment of use.
//!
//! Fang et al., IEEE TPDS 2023 (arXiv 2108.05818), sections 6 and 8: model data live in
//! chunks of equal size; before an operator runs, the chunks that it needs are brought to
//! the device, one after the other, and room is made by evicting the chunk whose next use
//! (moment) is furthest away. The moments are recorded during the first iteration, the
//! warm-up, in which the oldest chunk leaves.
//!
//! Choices: a chunk is [`CHUNK`] neighbouring blocks of one allocation (the paper searches
//! a size; 64 MiB is in its range) and moves whole, as far as it has content; activations
//! are chunks, too, as there is no recomputation here; moments after the warm-up are those
//! of the trace, which repeat where the program does. Where the framework's allocator is
//! known, dead content is dropped.

use std::collections::BTreeSet;

use crate::class::{Desk, Future, FutureNotice, FuturePolicy};
use crate::machine::Machine;
use crate::model::{Place, Room};
use crate::trace::{Block, Launch, Program};

use super::plan::{Gaps, NEVER, Uses, drop_dead, populate_births};
use super::{Entry, Make};

pub(super) const ENTRY: Entry = Entry {
    name: "patrickstar",
    about: "PatrickStar (TPDS 2023): chunks on demand, the next moment furthest away out",
    make: Make::Future(make),
};

/// Blocks of one chunk: 64 MiB.
const CHUNK: u32 = 32;
/// A chunk is at most this part of the device, so that an operator's chunks fit.
const PARTS: u32 = 16;

fn make<'p>(machine: &Machine, future: Future<'p>) -> Box<dyn FuturePolicy + 'p> {
    let frames = machine.memory_bytes / crate::units::BLOCK_BYTES;
    let part = u32::try_from(frames / u64::from(PARTS)).unwrap_or(u32::MAX);
    Box::new(PatrickStar::new(future, part.clamp(1, CHUNK)))
}

struct PatrickStar<'p> {
    program: &'p Program,
    gaps: Gaps,
    uses: Uses<'p>,
    /// First block of each chunk, and at the end the number of blocks.
    chunks: Vec<u32>,
    /// The chunk of each block.
    of: Vec<u32>,
    /// The last launch of the warm-up.
    warm_up: u32,
    /// Frames that the running launch's chunks need and do not have.
    needed: Vec<u32>,
    stamp: Vec<u32>,
}

impl<'p> PatrickStar<'p> {
    fn new(future: Future<'p>, size: u32) -> Self {
        let program = future.program;
        let blocks = program.blocks() as u32;
        let (mut chunks, mut of) = (Vec::new(), Vec::new());
        for number in 0..blocks {
            let follows = number > 0
                && program.address(Block(number))
                    == program.address(Block(number - 1)) + crate::units::BLOCK_BYTES;
            let first = chunks.last().copied().unwrap_or(0);
            if chunks.is_empty() || !follows || number - first == size {
                chunks.push(number);
            }
            of.push(chunks.len() as u32 - 1);
        }
        let count = chunks.len();
        chunks.push(blocks);
        let first = program.iterations().first();
        Self {
            program,
            gaps: Gaps::of(future),
            uses: Uses::new(program),
            chunks,
            of,
            warm_up: first.map_or(0, |iteration| iteration.end),
            needed: Vec::new(),
            stamp: vec![0; count],
        }
    }

    fn blocks(&self, chunk: u32) -> impl Iterator<Item = Block> + use<> {
        let chunk = chunk as usize;
        (self.chunks[chunk]..self.chunks[chunk + 1]).map(Block)
    }

    /// The next launch that uses any of a chunk.
    fn moment(&self, chunk: u32) -> u32 {
        let uses = self.blocks(chunk).map(|block| self.uses.next(block));
        uses.min().unwrap_or(NEVER)
    }

    fn starting(&mut self, launch: Launch, desk: &mut Desk<'_>) {
        self.needed.clear();
        for access in self.program.accesses(launch) {
            let chunk = self.of[access.block.index()];
            if self.stamp[chunk as usize] != launch.0 + 1 {
                self.stamp[chunk as usize] = launch.0 + 1;
                self.needed.push(chunk);
            }
        }
        if launch.0 < self.warm_up {
            populate_births(&self.gaps, launch.0, desk);
            return;
        }
        let on_host = |block: &Block| matches!(desk.place(*block), Place::Host | Place::Outgoing);
        let missing: Vec<Block> = self
            .needed
            .iter()
            .flat_map(|&chunk| self.blocks(chunk))
            .filter(on_host)
            .collect();
        // A part that is born in a block with a frame needs none, and one on the host is
        // among the missing.
        let births = self.gaps.births(launch.0).iter();
        let born: BTreeSet<Block> = births
            .map(|piece| piece.block)
            .filter(|block| desk.place(*block) == Place::Unpopulated)
            .collect();
        let born = born.len();
        let room = missing.len() + born;
        if room > desk.free() as usize {
            self.make_room(room - desk.free() as usize, launch, desk);
        }
        populate_births(&self.gaps, launch.0, desk);
        if missing.len() + born <= desk.capacity() as usize {
            desk.prefetch(&missing, Room::Take);
        }
    }

    /// Evicts whole chunks, the furthest next moment first, never those of this launch.
    fn make_room(&mut self, mut frames: usize, launch: Launch, desk: &mut Desk<'_>) {
        let mut seen = BTreeSet::new();
        let mut candidates: Vec<(u32, u32)> = desk
            .oldest()
            .map(|block| self.of[block.index()])
            .filter(|chunk| self.stamp[*chunk as usize] != launch.0 + 1 && seen.insert(*chunk))
            .map(|chunk| (self.moment(chunk), chunk))
            .collect();
        candidates.sort_unstable_by(|a, b| b.cmp(a));
        for (_, chunk) in candidates {
            if frames == 0 {
                break;
            }
            let there = |block: &Block| desk.place(*block) == Place::Device;
            let blocks: Vec<Block> = self.blocks(chunk).filter(there).collect();
            frames = frames.saturating_sub(blocks.len());
            desk.evict(&blocks);
        }
    }
}

impl FuturePolicy for PatrickStar<'_> {
    fn notice(&mut self, notice: FutureNotice<'_>, desk: &mut Desk<'_>) {
        match notice {
            FutureNotice::Starting(launch) => self.starting(launch, desk),
            FutureNotice::Finished(launch) => self.uses.passed(launch),
            FutureNotice::Dead(pieces) => drop_dead(pieces, desk),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::checks::{blocks_in, contract, outcome, sweep};
    use crate::policy::ondemand;

    #[test]
    fn keeps_the_contract() {
        contract(&ENTRY);
    }

    #[test]
    fn after_the_warm_up_the_furthest_moment_leaves() {
        // Many launches over the same memory in turn: the oldest is the one needed next.
        use crate::policy::samples::{BASE, blocks, launch};
        use crate::units::{BLOCK_BYTES, Nanos};
        let mut builder = crate::trace::ProgramBuilder::new("turns");
        builder.alloc(BASE, 64 * BLOCK_BYTES).unwrap();
        for iteration in 0..4 {
            builder.iteration(iteration).unwrap();
            for turn in 0..16 {
                let part = [blocks(4 * turn, 4)];
                launch(&mut builder, "turn", Nanos(1_000_000), &part, &part);
            }
        }
        let program = builder.finish();
        let ours = outcome(&program, &ENTRY, 48);
        let oldest = outcome(&program, &ondemand::ENTRY, 48);
        assert_eq!(blocks_in(&oldest.iterations[2].totals), 64);
        assert!(blocks_in(&ours.iterations[2].totals) <= 32);
    }

    #[test]
    fn a_launch_larger_than_the_device_is_left_to_faults() {
        let run = outcome(&sweep(32, 3), &ENTRY, 16);
        assert!(run.iterations[2].totals.faults > 0);
    }
}
