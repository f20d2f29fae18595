//! DeepUM (ASPLOS 2023): the engine's exact policy (`oversub-engine`, `policy/deepum`).
//!
//! Correlation tables of execution IDs and blocks learned from faults, chained prefetch
//! over N = 32 kernels, least recently migrated out but what the next kernels are expected
//! to use, and (with lifetimes on) inactive allocator blocks dropped: paper sections 3 to 5.

use oversub_engine::PolicyKind;

use super::steering::Steering;
use super::{Entry, Make};

pub(super) const ENTRY: Entry = Entry {
    name: "deepum",
    about: "DeepUM (ASPLOS 2023), the very engine that runs live: correlation tables, N = 32",
    make: Make::Lifetime(|machine| Box::new(Steering::new(machine, PolicyKind::Deepum))),
};
