//! When blocks lie idle: the gaps between two uses of the same content.
//!
//! Planners of the future class choose among these. Blocks that lie next to each other and
//! share both ends of a gap are one gap, which is what the papers call a tensor's inactive
//! period. It owns no choice: see [`super::slots`] and the policies.

use crate::class::Future;
use crate::trace::{Block, Piece, Program, Step};
use crate::units::{BLOCK_BYTES, Leaves, Nanos};

/// One idle period of some blocks whose content is needed again (or never used again, but
/// not known to be dead).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::policy) struct Gap {
    /// Launch that used them last.
    pub from: u32,
    /// Launch that uses them next; the number of launches where there is none.
    pub to: u32,
    /// Content that an eviction copies out, bytes.
    pub bytes: u64,
    start: u32,
    end: u32,
}

impl Gap {
    /// Frames that an eviction frees.
    pub fn frames(&self) -> u32 {
        self.end - self.start
    }

    /// Memory that an eviction frees, bytes.
    pub fn frame_bytes(&self) -> u64 {
        u64::from(self.frames()) * BLOCK_BYTES
    }
}

/// All gaps of a program, in the order of their ends.
pub(in crate::policy) struct Gaps {
    gaps: Vec<Gap>,
    blocks: Vec<Block>,
    births: Vec<Piece>,
    birth_ends: Vec<u32>,
    occupied: Vec<u32>,
    starts: Vec<Nanos>,
}

/// One block while the program is walked.
#[derive(Clone, Copy, Default)]
struct Walked {
    /// Launch of the last use, where the content is from before it.
    last: Option<u32>,
    content: Leaves,
}

impl Gaps {
    /// Reads a program once.
    pub fn of(future: Future<'_>) -> Self {
        let program = future.program;
        let launches = program.launches().len();
        let mut walk = Walk {
            blocks: vec![Walked::default(); program.blocks()],
            occupied: vec![0i64; launches + 1],
            found: Vec::new(),
            gaps: Self {
                gaps: Vec::new(),
                blocks: Vec::new(),
                births: Vec::new(),
                birth_ends: Vec::with_capacity(launches),
                occupied: Vec::new(),
                starts: Vec::with_capacity(launches + 1),
            },
        };
        let mut now = Nanos(0);
        for step in program.steps() {
            match *step {
                Step::Launch(launch) => {
                    walk.gaps.starts.push(now);
                    now += program.launch(launch).time;
                    walk.launch(program, launch);
                }
                Step::Free(_, dead) => walk.died(program.dead(dead)),
                Step::Unuse(_, dead) if future.lifetimes => walk.died(program.dead(dead)),
                _ => {}
            }
        }
        walk.gaps.starts.push(now);
        walk.finish(launches)
    }

    /// The gaps, by end and, where that is equal, by beginning.
    pub fn list(&self) -> &[Gap] {
        &self.gaps
    }

    /// The blocks of one.
    pub fn blocks(&self, gap: &Gap) -> &[Block] {
        &self.blocks[gap.start as usize..gap.end as usize]
    }

    /// Parts whose content comes into being with this launch.
    pub fn births(&self, launch: u32) -> &[Piece] {
        let launch = launch as usize;
        let start = launch.checked_sub(1).map_or(0, |l| self.birth_ends[l]);
        &self.births[start as usize..self.birth_ends[launch] as usize]
    }

    /// Frames that hold content during each launch where nothing is ever evicted.
    pub fn occupied(&self) -> &[u32] {
        &self.occupied
    }

    /// Number of launches.
    pub fn launches(&self) -> u32 {
        self.occupied.len() as u32
    }

    /// When a launch would start, were everything resident; of the number of launches: the end.
    pub fn start(&self, launch: u32) -> Nanos {
        self.starts[launch as usize]
    }

    /// The launch that would run at a time, were everything resident.
    pub fn launch_at(&self, time: Nanos) -> u32 {
        let after = self.starts.partition_point(|start| *start <= time);
        (after.max(1) as u32 - 1).min(self.launches())
    }

    /// Time between the end of a gap's first launch and the start of its last.
    pub fn idle(&self, gap: &Gap) -> Nanos {
        self.start(gap.to).saturating_sub(self.start(gap.from + 1))
    }
}

struct Walk {
    blocks: Vec<Walked>,
    occupied: Vec<i64>,
    found: Vec<(u32, Block, Leaves)>,
    gaps: Gaps,
}

impl Walk {
    fn launch(&mut self, program: &Program, launch: crate::trace::Launch) {
        self.found.clear();
        for access in program.accesses(launch) {
            let walked = &mut self.blocks[access.block.index()];
            match walked.last {
                Some(last) if last == launch.0 => {}
                Some(last) if last + 1 == launch.0 => {}
                Some(last) => self.found.push((last, access.block, walked.content)),
                None => self.occupied[launch.index()] += 1,
            }
            walked.last = Some(launch.0);
            let fresh = access.leaves.minus(walked.content);
            walked.content |= fresh;
            if !fresh.is_empty() {
                self.born(access.block, fresh);
            }
        }
        self.gaps.birth_ends.push(self.gaps.births.len() as u32);
        self.close(launch.0);
    }

    fn born(&mut self, block: Block, leaves: Leaves) {
        let start = self.gaps.birth_ends.last().copied().unwrap_or(0) as usize;
        match self.gaps.births[start..].last_mut() {
            Some(piece) if piece.block == block => piece.leaves |= leaves,
            _ => self.gaps.births.push(Piece { block, leaves }),
        }
    }

    /// Turns what was found into gaps that end at `to`.
    fn close(&mut self, to: u32) {
        self.found
            .sort_unstable_by_key(|&(from, block, _)| (from, block));
        let mut before: Option<(u32, Block)> = None;
        for &(from, block, content) in &self.found {
            let joins = before.is_some_and(|(f, b)| f == from && b.0 + 1 == block.0);
            before = Some((from, block));
            let start = self.gaps.blocks.len() as u32;
            self.gaps.blocks.push(block);
            match self.gaps.gaps.last_mut() {
                Some(gap) if joins => {
                    gap.end += 1;
                    gap.bytes += content.bytes();
                }
                _ => self.gaps.gaps.push(Gap {
                    from,
                    to,
                    bytes: content.bytes(),
                    start,
                    end: start + 1,
                }),
            }
        }
    }

    fn died(&mut self, pieces: &[Piece]) {
        // Launches are pushed as they come: the next is the number so far.
        let next = self.gaps.birth_ends.len();
        for piece in pieces {
            let walked = &mut self.blocks[piece.block.index()];
            if walked.last.is_none() {
                continue;
            }
            walked.content = walked.content.minus(piece.leaves);
            if walked.content.is_empty() {
                walked.last = None;
                self.occupied[next] -= 1;
            }
        }
    }

    fn finish(mut self, launches: usize) -> Gaps {
        self.found.clear();
        for (number, walked) in self.blocks.iter().enumerate() {
            if let Some(last) = walked.last
                && last as usize + 1 < launches
            {
                self.found
                    .push((last, Block(number as u32), walked.content));
            }
        }
        self.close(launches as u32);
        let mut held = 0;
        self.gaps.occupied = self.occupied[..launches]
            .iter()
            .map(|change| {
                held += change;
                u32::try_from(held).unwrap_or(0)
            })
            .collect();
        self.gaps
    }
}
