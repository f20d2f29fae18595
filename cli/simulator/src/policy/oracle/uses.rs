//! The whole future as one string: which block each launch uses next, when it is used again,
//! and which of its content is needed until then.

use crate::class::Future;
use crate::trace::{Block, Launch, Mode, Step};
use crate::units::{Leaves, Nanos};

/// No use.
pub(in crate::policy) const NEVER: u32 = u32::MAX;

/// One use of one block by one launch; all accesses of the launch to the block that follow
/// each other are one use.
#[derive(Clone, Copy, Debug)]
pub(in crate::policy) struct Use {
    /// Which block.
    pub block: Block,
    /// The block's next use, or [`NEVER`].
    pub next: u32,
    /// Content that is needed just before it.
    pub before: Leaves,
    /// Content that is needed from then on.
    pub after: Leaves,
    /// Parts touched.
    pub touched: Leaves,
    /// The block cannot stay until its next use: it is given back, or the CPU takes it.
    pub cut: bool,
    /// It could not stay since its last use, or there was none.
    pub fresh: bool,
}

/// All uses in the order of the device.
#[derive(Debug)]
pub(in crate::policy) struct Uses {
    all: Vec<Use>,
    starts: Vec<u32>,
    times: Vec<Nanos>,
    /// By block: parts with content on the host before the first use.
    on_host: Vec<Leaves>,
    /// Uses before which the CPU touches the block, and the launch that comes next then.
    barriers: Vec<(u32, u32)>,
}

impl Uses {
    /// Reads the trace. With lifetimes, content is needed until it is declared dead or is
    /// overwritten unread; without, until the memory is given back.
    pub fn of(future: Future<'_>) -> Self {
        let program = future.program;
        let mut uses = Self {
            all: Vec::new(),
            starts: Vec::with_capacity(program.launches().len() + 1),
            times: program.launches().iter().map(|info| info.time).collect(),
            on_host: vec![Leaves::NONE; program.blocks()],
            barriers: Vec::new(),
        };
        uses.forward(future);
        uses.backward(future);
        uses
    }

    fn forward(&mut self, future: Future<'_>) {
        let program = future.program;
        let mut last = vec![NEVER; program.blocks()];
        let mut barrier = vec![NEVER; program.blocks()];
        let mut cut = vec![true; program.blocks()];
        let mut launches = 0;
        for step in program.steps() {
            match step {
                Step::Launch(launch) => {
                    let start = self.all.len();
                    self.starts.push(start as u32);
                    launches = launch.0 + 1;
                    for access in program.accesses(*launch) {
                        if let Some(open) = self.all[start..].last_mut()
                            && open.block == access.block
                        {
                            open.touched |= access.leaves;
                            continue;
                        }
                        let index = access.block.index();
                        let at = self.all.len() as u32;
                        if let Some(before) = self.all.get_mut(last[index] as usize) {
                            before.next = at;
                        }
                        last[index] = at;
                        if barrier[index] != NEVER {
                            self.barriers.push((at, barrier[index]));
                            barrier[index] = NEVER;
                        }
                        self.all.push(Use {
                            block: access.block,
                            next: NEVER,
                            before: Leaves::ALL,
                            after: Leaves::ALL,
                            touched: access.leaves,
                            cut: false,
                            fresh: std::mem::take(&mut cut[index]),
                        });
                    }
                }
                Step::Host(span) => {
                    for access in program.host_accesses(*span) {
                        let index = access.block.index();
                        barrier[index] = launches;
                        cut[index] = true;
                        match self.all.get_mut(last[index] as usize) {
                            Some(before) => before.cut = true,
                            None => self.on_host[index] |= access.leaves,
                        }
                    }
                }
                Step::Free(region, _) => {
                    for piece in program.pieces_of(*region) {
                        let index = piece.block.index();
                        cut[index] = true;
                        if let Some(before) = self.all.get_mut(last[index] as usize) {
                            before.cut = true;
                        }
                    }
                }
                Step::Alloc(_) | Step::Use(_) | Step::Unuse(..) | Step::Iteration(_) => {}
            }
        }
        self.starts.push(self.all.len() as u32);
    }

    fn backward(&mut self, future: Future<'_>) {
        let program = future.program;
        // What nobody declares dead is a result: it is kept to the end.
        let mut needed = vec![Leaves::ALL; program.blocks()];
        for step in program.steps().iter().rev() {
            match step {
                Step::Launch(launch) => {
                    let mut at = self.starts[launch.index() + 1] as usize;
                    let accesses = program.accesses(*launch);
                    for (index, access) in accesses.iter().enumerate().rev() {
                        let first = index == 0 || accesses[index - 1].block != access.block;
                        let last = accesses.get(index + 1).map(|next| next.block);
                        let needed = &mut needed[access.block.index()];
                        if last != Some(access.block) {
                            at -= 1;
                            self.all[at].after = *needed;
                        }
                        *needed = needs(*needed, access.leaves, access.mode, future.lifetimes);
                        if first {
                            self.all[at].before = *needed;
                        }
                    }
                }
                Step::Host(span) => {
                    for access in program.host_accesses(*span) {
                        let needed = &mut needed[access.block.index()];
                        *needed = needs(*needed, access.leaves, access.mode, future.lifetimes);
                    }
                }
                Step::Unuse(_, dead) if future.lifetimes => {
                    for piece in program.dead(*dead) {
                        let needed = &mut needed[piece.block.index()];
                        *needed = needed.minus(piece.leaves);
                    }
                }
                Step::Free(_, dead) => {
                    for piece in program.dead(*dead) {
                        let needed = &mut needed[piece.block.index()];
                        *needed = needed.minus(piece.leaves);
                    }
                }
                Step::Unuse(..) | Step::Alloc(_) | Step::Use(_) | Step::Iteration(_) => {}
            }
        }
    }

    /// How many uses there are.
    pub fn len(&self) -> u32 {
        self.all.len() as u32
    }

    /// How many blocks the program has.
    pub fn blocks(&self) -> usize {
        self.on_host.len()
    }

    /// One use.
    pub fn get(&self, at: u32) -> &Use {
        &self.all[at as usize]
    }

    /// The uses of one launch.
    pub fn of_launch(&self, launch: Launch) -> std::ops::Range<u32> {
        self.starts[launch.index()]..self.starts[launch.index() + 1]
    }

    /// Duration of each launch with everything resident.
    pub fn times(&self) -> &[Nanos] {
        &self.times
    }

    /// Parts that the CPU wrote before the block's first use.
    pub fn on_host(&self, block: Block) -> Leaves {
        self.on_host[block.index()]
    }

    /// The launch that must have begun before the block may be brought for this use:
    /// earlier, the CPU still has it.
    pub fn barrier(&self, at: u32) -> u32 {
        match self.barriers.binary_search_by_key(&at, |(at, _)| *at) {
            Ok(found) => self.barriers[found].1,
            Err(_) => 0,
        }
    }
}

/// What is needed before an access, given what is needed after it.
fn needs(after: Leaves, leaves: Leaves, mode: Mode, lifetimes: bool) -> Leaves {
    if mode.needs_content() {
        after | leaves
    } else if lifetimes {
        after.minus(leaves)
    } else {
        after
    }
}
