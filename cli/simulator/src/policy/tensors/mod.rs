//! The tensors of a program, as a framework's own graph would show them.
//!
//! What systems inside a framework plan with: which tensors there are, which launch uses
//! which, when each is born and dies, how full memory is, where an iteration turns from
//! forward to backward, and how long everything takes undisturbed. Owns the view, and
//! nothing that moves memory (see [`super::swap`]).
//!
//! A tensor is a part that the framework's allocator handed out, from `use` to `unuse`.
//! Parts that are never taken back (weights, optimizer state, grids) are cut at every
//! address that some launch names as an argument, so a matrix used by tiles is as many
//! tensors as it has tiles. With lifetimes hidden, or in a trace without them, what was
//! obtained from the driver takes the place of what was handed out, cut alike.
//!
//! Tensors below [`MIN_BYTES`] are not listed: they share 64 KiB leaves with others, cannot
//! be moved alone, and every paper here filters them out. What they occupy counts as memory
//! that is never free.

mod build;
mod iterations;
#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::class::Future;
use crate::trace::{Block, Launch, Piece, Program};
use crate::units::{BLOCK_BYTES, LEAF_BYTES, Nanos, Region};

pub(super) use iterations::{Iteration, Role};

/// Smallest tensor that is listed, bytes: two leaves, so that each has one to itself.
pub(super) const MIN_BYTES: u64 = 2 * LEAF_BYTES;

/// A tensor, numbered from 0 in the order in which they were handed out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct TensorId(pub u32);

impl TensorId {
    /// For indexing.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tensor {
    /// Its memory.
    pub region: Region,
    /// The first launch that may use it.
    pub birth: Launch,
    /// The first launch that may no longer; the number of launches where it never dies.
    pub death: Launch,
    /// It outlives an iteration that it was not born in: weights, gradients kept in place,
    /// optimizer state.
    pub persistent: bool,
    pieces: Range<u32>,
    uses: Range<u32>,
}

impl Tensor {
    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.region.bytes
    }
}

/// One launch's use of one tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Use {
    /// Which launch.
    pub launch: Launch,
    /// Which tensor.
    pub tensor: TensorId,
    /// It needs what the tensor held before.
    pub reads: bool,
    /// It changes what the tensor holds.
    pub writes: bool,
}

/// A time in which a tensor holds content that nobody touches: after the launch `from`, up
/// to the launch `to`, which needs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Gap {
    /// Which tensor.
    pub tensor: TensorId,
    /// The use before.
    pub from: Launch,
    /// The use after.
    pub to: Launch,
}

/// All tensors of a program.
#[derive(Debug)]
pub(super) struct Tensors<'p> {
    program: &'p Program,
    tensors: Vec<Tensor>,
    pieces: Vec<Piece>,
    /// Sorted by tensor, then by launch.
    uses: Vec<Use>,
    /// Sorted by launch, then by first touch.
    launch_uses: Vec<Use>,
    launch_starts: Vec<u32>,
    /// Undisturbed start of each launch, and the end of the last.
    starts: Vec<Nanos>,
    /// Blocks that hold anything alive, by launch.
    load: Vec<u32>,
    mixed: Vec<bool>,
    by_hand: bool,
    iterations: Vec<Iteration>,
}

impl<'p> Tensors<'p> {
    /// Reads them out of the trace. Takes time linear in it.
    pub fn of(future: Future<'p>) -> Self {
        build::build(future)
    }

    /// The trace.
    pub fn program(&self) -> &'p Program {
        self.program
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// All of them.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = TensorId> + use<> {
        (0..self.tensors.len() as u32).map(TensorId)
    }

    /// One of them.
    pub fn get(&self, tensor: TensorId) -> &Tensor {
        &self.tensors[tensor.index()]
    }

    /// The parts of blocks that a tensor lies in. Its first and last may be shared.
    pub fn pieces(&self, tensor: TensorId) -> &[Piece] {
        let range = &self.get(tensor).pieces;
        &self.pieces[range.start as usize..range.end as usize]
    }

    /// The blocks that a tensor lies in, by address.
    pub fn blocks(&self, tensor: TensorId) -> impl Iterator<Item = Block> + '_ {
        self.pieces(tensor).iter().map(|piece| piece.block)
    }

    /// A tensor's uses, by launch.
    pub fn uses(&self, tensor: TensorId) -> &[Use] {
        let range = &self.get(tensor).uses;
        &self.uses[range.start as usize..range.end as usize]
    }

    /// A launch's tensors, in the order of its first touch.
    pub fn of_launch(&self, launch: Launch) -> &[Use] {
        let at = launch.index();
        &self.launch_uses[self.launch_starts[at] as usize..self.launch_starts[at + 1] as usize]
    }

    /// The times in which a tensor holds content that nobody touches. A next use that wholly
    /// overwrites it ends none: there is nothing to keep.
    pub fn gaps(&self, tensor: TensorId) -> impl Iterator<Item = Gap> + '_ {
        self.uses(tensor).windows(2).filter_map(move |pair| {
            (pair[1].reads && pair[1].launch.0 > pair[0].launch.0 + 1).then_some(Gap {
                tensor,
                from: pair[0].launch,
                to: pair[1].launch,
            })
        })
    }

    /// When a launch starts with everything resident and none before it late. The number of
    /// launches stands for the end of the last.
    pub fn start(&self, launch: Launch) -> Nanos {
        self.starts[launch.index()]
    }

    /// When a launch ends, undisturbed.
    pub fn end(&self, launch: Launch) -> Nanos {
        self.starts[launch.index() + 1]
    }

    /// The last launch that starts no later than `time`, undisturbed; the first where none.
    pub fn launch_at(&self, time: Nanos) -> Launch {
        let launches = self.starts.len() - 1;
        let after = self.starts[..launches].partition_point(|&start| start <= time);
        Launch(after.saturating_sub(1) as u32)
    }

    /// Bytes of the blocks that hold anything alive while a launch runs: what the device
    /// would have to hold so that nothing ever moves.
    pub fn load(&self, launch: Launch) -> u64 {
        u64::from(self.load[launch.index()]) * BLOCK_BYTES
    }

    /// The most that [`Tensors::load`] reaches.
    pub fn peak(&self) -> u64 {
        self.load
            .iter()
            .max()
            .map_or(0, |&blocks| u64::from(blocks) * BLOCK_BYTES)
    }

    /// Whether tensors are what the framework's allocator handed out, born and dying, and
    /// not only parts of what the driver gave.
    pub fn knows_lives(&self) -> bool {
        self.by_hand
    }

    /// Whether launches use anything in this block that is not a listed tensor's.
    pub fn is_mixed(&self, block: Block) -> bool {
        self.mixed[block.index()]
    }

    /// The iterations, with their turning points.
    pub fn iterations(&self) -> &[Iteration] {
        &self.iterations
    }
}
