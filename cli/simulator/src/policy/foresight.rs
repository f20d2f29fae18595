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
