//! What every policy must either keep on the device or move out and in again.
//!
//! A **gap** is content of one block between two uses of it by the device. At both ends it
//! is on the device, whatever the policy; at each boundary in between it is there, and then
//! its block holds a frame, or it was moved out after the first use and must come in before
//! the second. Gaps are all that the bounds know of a program. Owns which content counts:
//!
//! - Content that nothing wrote is no gap: the model lets it be dropped and made anew.
//! - With lifetimes on, content is needed only if it is read (or updated) before it dies or
//!   is wholly overwritten: a policy that knows the future may drop it unread at no cost, so
//!   the bound must let it.
//! - Where deaths are [`Deaths::Told`], written content must be preserved from its last use until
//!   all launches are over before which the program gave its memory back: a **tail**. Nothing
//!   else tells a policy without knowledge of the future that it is not read again. At its end
//!   it need not be on the device, so it costs a move outward alone. That a kernel overwrites
//!   all of it nobody tells: then it moves in, as the driver does it. Only a copy or a fill
//!   over it is told, and ends it as giving the memory back does.
//! - With lifetimes off, written content must be preserved until its memory goes back to the
//!   driver, and an overwrite finds it on the host and moves it in. What is never used again
//!   must be preserved too, but memory that is given back in the end is not held to that.
//! - After the CPU touched it, content is let in free once: the bound does not say who moved
//!   it.
//!
//! Whoever may also use content of some blocks where it lies, on the host ([`Reach`]), need not
//! move a leaf of theirs that is away to use it: what the access uses of it goes over the link, in where it
//! needs the content, and out where it changes it. A leaf that is away at some boundary of its
//! gap has, since, at least come in or been read there; and before, if the first use changed it,
//! at least been written there or left. So such a gap costs what is used of a leaf at its end,
//! and what is written of it at its beginning ([`Cell::inward`], [`Cell::outward`]).

use super::Deaths;
use super::slots::Slots;
use crate::trace::{Access, Block, Mode, Piece, Program, Step};
use crate::units::{LEAF_PAGES, LEAVES, Leaves};

/// Leaves with the same gap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Cell {
    /// Slot of the use that ends it; `slots.len() + 1`: after the stretch.
    pub to: u32,
    /// A frame of these is shared by at most so many leaves that are in a gap: see
    /// [`Gaps`]. One of [`SHARES`].
    pub share: u32,
    /// What goes in at the least for a leaf that is away, in pages: [`WHOLE_LEAF`] where it has
    /// to come, none where its content dies at the end of the gap. One of [`USES`].
    pub inward: u32,
    /// What goes out at the least.
    pub outward: u32,
    /// Slot of the use that begins it; 0: before the stretch.
    pub from: u32,
    /// How many leaves.
    pub leaves: u64,
}

impl Cell {
    /// What it has in common with others that are alike once idle, wherever they began.
    pub fn pool(&self) -> (u32, u32, u32, u32) {
        (self.to, self.share, self.inward, self.outward)
    }
}

/// The values that [`Cell::share`] is rounded down to.
pub(super) const SHARES: [u32; 6] = [32, 24, 16, 8, 4, 1];

/// Which blocks launches may also use on the host, over the link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reach {
    /// None: whatever is used moves to the device.
    Nothing,
    /// Those that some launch uses by an index ([`Program::is_indexed`]).
    Indexed,
    /// All.
    Everything,
}

impl Reach {
    fn includes(self, program: &Program, block: Block) -> bool {
        match self {
            Self::Nothing => false,
            Self::Indexed => program.is_indexed(block),
            Self::Everything => true,
        }
    }
}

/// Pages of a leaf.
pub(super) const WHOLE_LEAF: u32 = LEAF_PAGES;
/// The values that [`Cell::inward`] and [`Cell::outward`] are rounded down to.
const USES: [u32; 9] = [16, 12, 8, 6, 4, 3, 2, 1, 0];

/// Pages of each leaf that an access uses, rounded down to one of [`USES`].
fn uses(access: &Access) -> u32 {
    let each = u32::from(access.pages) / access.leaves.count().max(1);
    USES.into_iter().find(|uses| *uses <= each).unwrap_or(0)
}

/// All gaps that span a boundary of the slots.
///
/// What is wanted of the device can be counted in leaves, 32 to a frame ([`Gaps::in_leaves`]):
/// then all leaves weigh the same. Or in frames: at a boundary, each block with any leaf in a gap holds a frame unless
/// **all** these leaves are away. Weights of the leaves that sum to at least 1 therefore
/// bound the frames saved from above by the weighted leaves away. A leaf's weight is 1 over
/// the least number of its block's leaves that are in gaps at one time during its own gap
/// (`share`): at each boundary the weights of a block then sum to at least 1, and to exactly
/// 1 for a block that is used as a whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Gaps {
    /// Sorted.
    pub cells: Vec<Cell>,
    /// By boundary: what is wanted of the device, in leaves.
    pub wanted: Vec<u64>,
    /// By slot: most leaves that one launch touches.
    pub widest: Vec<u64>,
    /// Most blocks that one launch of the stretch touches.
    pub widest_blocks: u64,
}

/// Content of one block since its last use.
#[derive(Clone, Copy)]
struct Open {
    leaves: Leaves,
    slot: u32,
    outward: u32,
}

#[derive(Clone, Copy)]
struct Gap {
    block: u32,
    from: u32,
    to: u32,
    leaves: u32,
    inward: u32,
    outward: u32,
}

struct Scan<'p> {
    program: &'p Program,
    lifetimes: bool,
    deaths: Deaths,
    /// The last launch is over in this slot.
    slot: u32,
    /// By block: it may be used on the host.
    reached: Vec<bool>,
    open: Vec<Vec<Open>>,
    written: Vec<Leaves>,
    gaps: Vec<Gap>,
    /// By block: the launch that was counted last as touching it.
    counted: Vec<u32>,
    count: u32,
}

impl Gaps {
    /// Goes through the whole program once.
    pub fn of(
        program: &Program,
        slots: &Slots,
        lifetimes: bool,
        deaths: Deaths,
        reach: Reach,
    ) -> Self {
        let mut scan = Scan {
            program,
            lifetimes,
            deaths,
            slot: 0,
            reached: (0..program.blocks())
                .map(|block| reach.includes(program, Block(block as u32)))
                .collect(),
            open: vec![Vec::new(); program.blocks()],
            written: vec![Leaves::NONE; program.blocks()],
            gaps: Vec::new(),
            counted: vec![0; program.blocks()],
            count: 0,
        };
        let mut walk = slots.walk();
        let mut widest = vec![0; slots.len() + 2];
        let mut widest_blocks = 0;
        for step in program.steps() {
            match *step {
                Step::Launch(launch) => {
                    let accesses = program.accesses(launch);
                    // The driver's own calls say what they overwrite.
                    let name = program.kernel_name(launch);
                    let call = ["memcpy", "memset"]
                        .iter()
                        .any(|call| name.starts_with(call));
                    let known = lifetimes && (call || deaths == Deaths::Foreseen);
                    let mut reach = None;
                    for (index, access) in accesses.iter().enumerate() {
                        let slot = walk.slot(launch, index);
                        scan.touch(access, slot, known);
                        scan.slot = slot;
                        reach = Some((reach.map_or(slot, |(first, _)| first), slot));
                    }
                    if slots.launches.contains(&launch.0) {
                        let blocks = scan.count_blocks(accesses);
                        widest_blocks = widest_blocks.max(blocks);
                        // A launch that lies in several slots limits none of them alone.
                        if let Some((first, last)) = reach
                            && first == last
                        {
                            let leaves = accesses.iter().map(|a| u64::from(a.leaves.count()));
                            let most: &mut u64 = &mut widest[first as usize];
                            *most = leaves.sum::<u64>().max(*most);
                        }
                    }
                }
                Step::Free(_, dead) => scan.die(program.dead(dead)),
                Step::Unuse(_, dead) if lifetimes => scan.die(program.dead(dead)),
                Step::Host(touched) => scan.host(program.host_accesses(touched)),
                Step::Alloc(_) | Step::Use(_) | Step::Unuse(..) | Step::Iteration(_) => {}
            }
        }
        let gaps = scan.finish(slots.len() as u32 + 1);
        let (shares, wanted) = shares(&gaps, slots.len());
        let mut cells: Vec<Cell> = gaps
            .iter()
            .zip(shares)
            .map(|(gap, share)| Cell {
                to: gap.to,
                share,
                inward: gap.inward,
                outward: gap.outward,
                from: gap.from,
                leaves: u64::from(gap.leaves),
            })
            .collect();
        merge(&mut cells);
        Self {
            cells,
            wanted: wanted
                .into_iter()
                .map(|frames| u64::from(frames) * WHOLE)
                .collect(),
            widest,
            widest_blocks,
        }
    }
}

/// Leaves of a block.
const WHOLE: u64 = LEAVES as u64;

impl Gaps {
    /// The same gaps, counted in leaves.
    pub fn in_leaves(&self) -> Self {
        let mut cells = self.cells.clone();
        let mut wanted = vec![0; self.wanted.len()];
        let (mut begin, mut end) = (wanted.clone(), wanted.clone());
        for cell in &mut cells {
            cell.share = LEAVES;
            begin[cell.from as usize] += cell.leaves;
            if let Some(end) = end.get_mut(cell.to as usize) {
                *end += cell.leaves;
            }
        }
        let mut open = 0;
        for (boundary, wanted) in wanted.iter_mut().enumerate() {
            open = open + begin[boundary] - end[boundary];
            *wanted = open;
        }
        merge(&mut cells);
        Self {
            cells,
            wanted,
            ..self.clone()
        }
    }
}

impl Scan<'_> {
    /// The device uses leaves of a block in `slot`. `known`: of what is wholly overwritten it is
    /// known in time.
    fn touch(&mut self, access: &Access, slot: u32, known: bool) {
        let index = access.block.index();
        let needed = !known || access.mode.needs_content();
        let needed = if needed {
            access.leaves & self.written[index]
        } else {
            Leaves::NONE
        };
        if access.mode.writes() {
            self.written[index] |= self.program.written(access);
        }
        let (inward, outward) = match (self.reached[index], access.mode) {
            (false, _) => (WHOLE_LEAF, WHOLE_LEAF),
            (true, Mode::Read) => (uses(access), 0),
            (true, Mode::Update) => (uses(access), uses(access)),
            (true, Mode::Overwrite) => (0, uses(access)),
        };
        let gaps = &mut self.gaps;
        let open = &mut self.open[index];
        for part in open.iter_mut() {
            let again = part.leaves & needed;
            if !again.is_empty() && part.slot < slot {
                gaps.push(Gap {
                    block: access.block.0,
                    from: part.slot,
                    to: slot,
                    leaves: again.count(),
                    inward,
                    outward: part.outward,
                });
            }
            part.leaves = part.leaves.minus(access.leaves);
        }
        open.retain(|part| !part.leaves.is_empty());
        let same = |part: &&mut Open| (part.slot, part.outward) == (slot, outward);
        match open.iter_mut().find(same) {
            Some(part) => part.leaves |= access.leaves,
            None => open.push(Open {
                leaves: access.leaves,
                slot,
                outward,
            }),
        }
    }

    /// Content dies.
    fn die(&mut self, dead: &[Piece]) {
        for piece in dead {
            let index = piece.block.index();
            let open = match self.deaths {
                Deaths::Told => self.open[index].as_slice(),
                Deaths::Foreseen => &[],
            };
            let dying = piece.leaves & self.written[index];
            let parts = open
                .iter()
                .map(|part| (part.slot, part.leaves & dying, part.outward));
            let tails = parts.filter(|(slot, leaves, _)| *slot < self.slot && !leaves.is_empty());
            self.gaps.extend(tails.map(|(slot, leaves, outward)| Gap {
                block: piece.block.0,
                from: slot,
                to: self.slot,
                leaves: leaves.count(),
                inward: 0,
                outward,
            }));
            self.written[index] = self.written[index].minus(piece.leaves);
            self.forget(index, piece.leaves);
        }
    }

    /// The CPU uses content.
    fn host(&mut self, touched: &[Access]) {
        for access in touched {
            let index = access.block.index();
            if access.mode.writes() {
                self.written[index] |= self.program.written(access);
            }
            self.forget(index, access.leaves);
        }
    }

    fn forget(&mut self, index: usize, leaves: Leaves) {
        let open = &mut self.open[index];
        for part in open.iter_mut() {
            part.leaves = part.leaves.minus(leaves);
        }
        open.retain(|part| !part.leaves.is_empty());
    }

    /// How many blocks a launch touches.
    fn count_blocks(&mut self, accesses: &[Access]) -> u64 {
        self.count += 1;
        let mut blocks = 0;
        for access in accesses {
            let counted = &mut self.counted[access.block.index()];
            blocks += u64::from(*counted != self.count);
            *counted = self.count;
        }
        blocks
    }

    /// The gaps, ordered by block. `after` is the slot after the stretch.
    fn finish(mut self, after: u32) -> Vec<Gap> {
        if !self.lifetimes {
            for (index, open) in self.open.iter().enumerate() {
                for part in open {
                    let preserved = part.leaves & self.written[index];
                    if !preserved.is_empty() && part.slot < after {
                        self.gaps.push(Gap {
                            block: index as u32,
                            from: part.slot,
                            to: after,
                            leaves: preserved.count(),
                            // Beyond the stretch it may come at any price.
                            inward: WHOLE_LEAF,
                            outward: part.outward,
                        });
                    }
                }
            }
        }
        self.gaps
            .sort_unstable_by_key(|gap| (gap.block, gap.from, gap.to, gap.inward));
        self.gaps
    }
}

/// The share of each gap, and the frames wanted at each boundary.
fn shares(gaps: &[Gap], slots: usize) -> (Vec<u32>, Vec<u32>) {
    let mut shares = Vec::with_capacity(gaps.len());
    let mut wanted = vec![0u32; slots + 1];
    // Leaves of one block in gaps, by boundary.
    let mut held = vec![0u32; slots + 1];
    for block in gaps.chunk_by(|one, other| one.block == other.block) {
        for gap in block {
            for boundary in gap.from..gap.to {
                let held = &mut held[boundary as usize];
                wanted[boundary as usize] += u32::from(*held == 0);
                *held += gap.leaves;
            }
        }
        for gap in block {
            let least = if gap.leaves >= LEAVES {
                LEAVES
            } else {
                let span = &held[gap.from as usize..gap.to as usize];
                span.iter().copied().min().unwrap_or(LEAVES)
            };
            let share = SHARES.into_iter().find(|share| *share <= least);
            shares.push(share.unwrap_or(1));
        }
        for gap in block {
            held[gap.from as usize..gap.to as usize].fill(0);
        }
    }
    (shares, wanted)
}

/// Sorts cells and adds up those that differ in nothing else.
pub(super) fn merge(cells: &mut Vec<Cell>) {
    cells.sort_unstable();
    cells.dedup_by(|next, kept| {
        let same = next.from == kept.from && next.pool() == kept.pool();
        if same {
            kept.leaves += next.leaves;
        }
        same
    });
}
