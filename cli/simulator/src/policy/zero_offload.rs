//! ZeRO-Offload: optimizer state on the host.
//!
//! Ren et al., USENIX ATC 2021, section 3: of a model's data the fp32 optimizer state lives
//! on the host, gradients go there as they are produced, the step is computed there, and
//! updated parameters come back; parameters and activations stay on the device, so that
//! the link carries each gradient and each parameter once.
//!
//! Choices: the trace's optimizer kernels run on the device whatever the policy, so the
//! state is streamed through it: asked for [`AHEAD`] launches before the kernel that
//! updates it and sent back at once after. Optimizer state is known by its use: content
//! that outlives iterations and that every launch of an iteration that touches it updates
//! in place, by one short run of launches. Nothing leaves where everything fits. What still
//! does not fit is paged by the driver, as the system has no answer to it.

use crate::class::{Desk, Future, FutureNotice, FuturePolicy};
use crate::machine::Machine;
use crate::model::Room;
use crate::trace::{Block, Launch, Mode, Program};
use crate::units::BLOCK_BYTES;

use super::plan::{Gaps, drop_dead, populate_births};
use super::{Entry, Make};

pub(super) const ENTRY: Entry = Entry {
    name: "zero-offload",
    about: "ZeRO-Offload (ATC 2021): optimizer state lives on the host",
    make: Make::Future(make),
};

/// Launches by which state is asked for early.
const AHEAD: u32 = 4;
/// An iteration's uses of state lie within this part of its launches.
const PART: u32 = 8;

fn make<'p>(machine: &Machine, future: Future<'p>) -> Box<dyn FuturePolicy + 'p> {
    let gaps = Gaps::of(future);
    let frames = machine.memory_bytes / BLOCK_BYTES;
    let most = gaps.occupied().iter().copied().max().unwrap_or(0);
    let state = if u64::from(most) <= frames {
        vec![false; future.program.blocks()]
    } else {
        state(future.program)
    };
    Box::new(ZeroOffload {
        program: future.program,
        gaps,
        last: last_uses(future.program, &state),
        state,
    })
}

/// Blocks that hold nothing but optimizer state.
fn state(program: &Program) -> Vec<bool> {
    #[derive(Clone, Copy, Default)]
    struct Seen {
        iterations: u32,
        now: u32,
        first: u32,
        other: bool,
    }
    let mut seen = vec![Seen::default(); program.blocks()];
    for (number, launches) in program.iterations().iter().enumerate() {
        let span = (launches.len() as u32 / PART).max(1);
        for launch in launches.clone() {
            for access in program.accesses(Launch(launch)) {
                let seen = &mut seen[access.block.index()];
                if seen.now != number as u32 + 1 {
                    seen.now = number as u32 + 1;
                    seen.iterations += 1;
                    seen.first = launch;
                }
                seen.other |= access.mode != Mode::Update || launch - seen.first >= span;
            }
        }
    }
    let enough = (program.iterations().len() as u32).clamp(1, 2);
    seen.iter()
        .map(|seen| !seen.other && seen.iterations >= enough)
        .collect()
}

/// For each launch, the blocks of state that it is the last of its iteration to use.
fn last_uses(program: &Program, state: &[bool]) -> Vec<Vec<Block>> {
    let mut last = vec![Vec::new(); program.launches().len()];
    let mut seen = vec![false; program.blocks()];
    for launches in program.iterations() {
        seen.fill(false);
        for launch in launches.clone().rev() {
            for access in program.accesses(Launch(launch)) {
                let block = access.block.index();
                if state[block] && !std::mem::replace(&mut seen[block], true) {
                    last[launch as usize].push(access.block);
                }
            }
        }
    }
    last
}

struct ZeroOffload<'p> {
    program: &'p Program,
    gaps: Gaps,
    state: Vec<bool>,
    last: Vec<Vec<Block>>,
}

impl ZeroOffload<'_> {
    fn ask(&self, launch: u32, desk: &mut Desk<'_>) {
        if launch as usize >= self.program.launches().len() {
            return;
        }
        let accesses = self.program.accesses(Launch(launch)).iter();
        let wanted: Vec<Block> = accesses
            .map(|access| access.block)
            .filter(|block| self.state[block.index()] && !desk.missing(*block).is_empty())
            .collect();
        if !wanted.is_empty() && wanted.len() <= desk.capacity() as usize / 2 {
            desk.prefetch(&wanted, Room::Take);
        }
    }
}

impl FuturePolicy for ZeroOffload<'_> {
    fn notice(&mut self, notice: FutureNotice<'_>, desk: &mut Desk<'_>) {
        match notice {
            FutureNotice::Starting(launch) => {
                populate_births(&self.gaps, launch.0, desk);
                self.ask(launch.0 + AHEAD, desk);
            }
            FutureNotice::Finished(launch) => {
                let done = &self.last[launch.index()];
                if !done.is_empty() {
                    desk.evict(done);
                }
            }
            FutureNotice::Dead(pieces) => drop_dead(pieces, desk),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::checks::{contract, outcome};
    use crate::policy::samples::{BASE, Training, blocks, hand_out, launch};
    use crate::trace::ProgramBuilder;
    use crate::units::Nanos;

    #[test]
    fn keeps_the_contract() {
        contract(&ENTRY);
    }

    /// Weights used twice and updated by a step that also updates state.
    fn training() -> Program {
        let mut builder = ProgramBuilder::new("adam");
        builder.alloc(BASE, 64 * BLOCK_BYTES).unwrap();
        hand_out(&mut builder, blocks(0, 48));
        let time = Nanos(5_000_000);
        for iteration in 0..4 {
            builder.iteration(iteration).unwrap();
            for _ in 0..2 {
                for layer in 0..16 {
                    let weights = [blocks(layer, 1)];
                    launch(&mut builder, "layer", time, &weights, &[]);
                }
            }
            for layer in 0..16 {
                let both = [blocks(layer, 1), blocks(16 + 2 * layer, 2)];
                launch(&mut builder, "step", time, &both, &both);
            }
        }
        builder.finish()
    }

    #[test]
    fn state_is_what_only_the_step_updates() {
        let state = state(&training());
        assert!(state[..16].iter().all(|&is| !is));
        assert!(state[16..48].iter().all(|&is| is));
        let weights_too = super::state(&Training::SMALL.program());
        assert!(weights_too.iter().all(|&is| !is));
    }

    #[test]
    fn the_link_carries_the_state_once_each_way() {
        let run = outcome(&training(), &ENTRY, 40);
        let totals = run.iterations[2].totals;
        assert_eq!(totals.bytes_in, 32 * BLOCK_BYTES);
        assert_eq!(totals.bytes_out, 32 * BLOCK_BYTES);
        assert_eq!(totals.faults, 0);
    }
}
