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
//! move a leaf of theirs that is away to use it: what the access uses of it goes over the link, in
//! where it needs the content, and out where it changes it, at the rate of such accesses. A leaf
//! that is away at some boundary of its gap has, since, at least come in or been read there; and
//! before, if the first use, or another in the same slot, changed it, at least been written there
//! or left. So such a gap costs what is used of a leaf at its end, and what is written of it at its
//! beginning ([`Gap::inward`], [`Gap::outward`]), and never more than to move it.

use super::Deaths;
use super::cost::WHOLE_LEAF;
use super::slots::Slots;
use crate::trace::{Access, Block, Mode, Piece, Program, Step};
use crate::units::{LEAF_PAGES, Leaves};

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

/// What an access takes of the link for each of its leaves that it uses on the host, of
/// [`WHOLE_LEAF`]; no more than to move it. `percent`: see [`Rates::access_percent`].
fn used(access: &Access, percent: u32) -> u32 {
    let parts = u32::from(access.pages) * (WHOLE_LEAF / LEAF_PAGES);
    let leaves = access.leaves.count().max(1);
    (parts * 100 / (percent * leaves)).min(WHOLE_LEAF)
}

/// All gaps that span a boundary of the slots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Gaps {
    /// Ordered by block.
    pub all: Vec<Gap>,
    /// How many slots.
    pub slots: usize,
    /// By slot: most leaves that one launch touches.
    pub widest: Vec<u64>,
    /// Most blocks that one launch of the stretch touches.
    pub widest_blocks: u64,
}

/// Leaves of one block with the same gap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Gap {
    /// Which block.
    pub block: u32,
    /// Slot of the use that begins it; 0: before the stretch.
    pub from: u32,
    /// Slot of the use that ends it; the number of slots plus one: after the stretch.
    pub to: u32,
    /// Which leaves.
    pub leaves: Leaves,
    /// What goes in at the least for each that is away, of [`WHOLE_LEAF`]: all of it where it
    /// has to come, none where its content dies at the end of the gap.
    pub inward: u32,
    /// What goes out at the least.
    pub outward: u32,
}

/// Content of one block since its last use.
#[derive(Clone, Copy)]
struct Open {
    leaves: Leaves,
    slot: u32,
    outward: u32,
}

struct Scan<'p> {
    program: &'p Program,
    lifetimes: bool,
    deaths: Deaths,
    access_percent: u32,
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
        (lifetimes, deaths): (bool, Deaths),
        reach: Reach,
        access_percent: u32,
    ) -> Self {
        let mut scan = Scan {
            program,
            lifetimes,
            deaths,
            access_percent,
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
                    let call = program.is_call(launch);
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
        Self {
            all: scan.finish(slots.len() as u32 + 1),
            slots: slots.len(),
            widest,
            widest_blocks,
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
        let used = used(access, self.access_percent);
        let (inward, outward) = match (self.reached[index], access.mode) {
            (false, _) => (WHOLE_LEAF, WHOLE_LEAF),
            (true, Mode::Read) => (used, 0),
            (true, Mode::Update) => (used, used),
            (true, Mode::Overwrite) => (0, used),
        };
        let gaps = &mut self.gaps;
        let open = &mut self.open[index];
        // What is used again in the same slot was written there before, or left since.
        let mut now = vec![(access.leaves, outward)];
        for part in open.iter_mut() {
            let again = part.leaves & needed;
            if !again.is_empty() && part.slot < slot {
                gaps.push(Gap {
                    block: access.block.0,
                    from: part.slot,
                    to: slot,
                    leaves: again,
                    inward,
                    outward: part.outward,
                });
            }
            let both = part.leaves & access.leaves;
            if part.slot == slot && part.outward > 0 && access.mode.needs_content() {
                now[0].0 = now[0].0.minus(both);
                now.push((both, (part.outward + outward).min(WHOLE_LEAF)));
            }
            part.leaves = part.leaves.minus(access.leaves);
        }
        open.retain(|part| !part.leaves.is_empty());
        for (leaves, outward) in now.into_iter().filter(|(leaves, _)| !leaves.is_empty()) {
            let same = |part: &&mut Open| (part.slot, part.outward) == (slot, outward);
            match open.iter_mut().find(same) {
                Some(part) => part.leaves |= leaves,
                None => open.push(Open {
                    leaves,
                    slot,
                    outward,
                }),
            }
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
            let tails = open.iter().map(|part| Gap {
                block: piece.block.0,
                from: part.slot,
                to: self.slot,
                leaves: part.leaves & dying,
                inward: 0,
                outward: part.outward,
            });
            let idle = |gap: &Gap| gap.from < gap.to && !gap.leaves.is_empty();
            self.gaps.extend(tails.filter(idle));
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
                            leaves: preserved,
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
