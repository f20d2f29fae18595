//! `belady`: when room is needed, the block whose next use is furthest goes (Belady: A study
//! of replacement algorithms for a virtual-storage computer, 1966), on the exact string of
//! block uses; what is missing is prefetched in order of need.
//!
//! Choices: blocks without needed content go first and are dropped, not copied. Eviction is
//! on demand: a block is copied out when the one that takes its frame is brought, at most
//! [`AHEAD`] missing blocks before its use. Nothing is planned further ahead; that is
//! `opt`.

use std::rc::Rc;

use super::oracle::{Executor, Uses, When, plan};
use super::{Entry, Make};
use crate::class::{Future, FuturePolicy};
use crate::machine::Machine;
use crate::units::BLOCK_BYTES;

/// Missing blocks that are brought ahead of their use.
const AHEAD: u32 = 32;

pub(super) const ENTRY: Entry = Entry {
    name: "belady",
    about: "oracle: evicts what is needed last when room is needed, prefetches perfectly",
    make: Make::Future(make),
};

fn make<'p>(machine: &Machine, future: Future<'p>) -> Box<dyn FuturePolicy + 'p> {
    let uses = Uses::of(future);
    let frames = (machine.memory_bytes / BLOCK_BYTES) as u32;
    let ahead = AHEAD.min(frames / 4).max(1);
    let plan = plan(&uses, machine, frames, ahead);
    Box::new(Executor::new(
        Rc::new(uses),
        Rc::new(plan),
        When::Late(ahead),
    ))
}
