//! oversub's own policy: the engine that runs live (`oversub-engine`, `policy/foresight`).
//!
//! Sees the launch stream, faults, and, with lifetimes on, what the allocator hands out
//! and takes back.

use oversub_engine::PolicyKind;

use super::steering::Steering;
use super::{Entry, Make};

pub(super) const ENTRY: Entry = Entry {
    name: "foresight",
    about: "oversub's own, the very engine that runs live: learned next uses, planned eviction",
    make: Make::Lifetime(|machine| Box::new(Steering::new(machine, PolicyKind::Foresight))),
};

#[cfg(test)]
mod tests {
    use super::super::checks::{self, blocks_in};
    use super::super::samples::{BASE, blocks, launch};
    use super::ENTRY;
    use crate::trace::ProgramBuilder;
    use crate::units::{BLOCK_BYTES, Nanos};

    #[test]
    fn what_the_program_manages_itself_comes_when_it_is_needed_and_not_at_its_allocation() {
        let mut builder = ProgramBuilder::new("managed");
        builder.alloc(BASE, 16 * BLOCK_BYTES).unwrap();
        builder.host(&[], &[blocks(0, 16)]).unwrap();
        builder.iteration(0).unwrap();
        let time = Nanos::from_micros(100);
        launch(&mut builder, "read", time, &[blocks(0, 2)], &[]);
        let outcome = checks::outcome(&builder.finish(), &ENTRY, 32);
        assert_eq!(blocks_in(&outcome.first().totals), 2);
    }
}
