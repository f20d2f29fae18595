//! The policies, one file each, and the table that names them.

mod allocations;
mod always_max;
mod autoswap;
mod autotm;
mod belady;
mod capuchin;
#[cfg(test)]
mod checks;
mod deeptm;
mod deepum;
mod deepum_plus;
mod dragon;
mod driver;
mod flashneuron;
mod foresight;
mod g10;
mod ocdnn;
mod ondemand;
mod opt;
mod oracle;
mod patrickstar;
mod plan;
mod prefetch_at_alloc;
mod recency;
#[cfg(test)]
mod samples;
mod sentinel;
mod sequential;
mod steering;
mod stride;
mod swap;
mod swapadvisor;
mod tensors;
mod tmof;
mod vdnn;
mod zero_offload;

use crate::bound::Deaths;
use crate::class::{AnyPolicy, Future};
use crate::machine::Machine;
use crate::trace::Program;
use crate::units::BLOCK_BYTES;

/// How a policy is made for a run. The first three kinds cannot look at the trace.
#[derive(Clone, Copy)]
pub enum Make {
    /// Of the fault class.
    Fault(fn(&Machine) -> Box<dyn crate::class::FaultPolicy>),
    /// Of the launch class.
    Launch(fn(&Machine) -> Box<dyn crate::class::LaunchPolicy>),
    /// Of the lifetime class.
    Lifetime(fn(&Machine) -> Box<dyn crate::class::LifetimePolicy>),
    /// Of the future class.
    Future(for<'p> fn(&Machine, Future<'p>) -> Box<dyn crate::class::FuturePolicy + 'p>),
    /// Of the future class, with a plan searched at random from a seed.
    Search(for<'p> fn(&Machine, Future<'p>, u64) -> Box<dyn crate::class::FuturePolicy + 'p>),
    /// Of the future class, and perhaps carried out by a policy of another class.
    Best(for<'p> fn(&Machine, Future<'p>, u64) -> AnyPolicy<'p>),
}

/// One line of the table.
pub struct Entry {
    /// Name on the command line.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// How to make it.
    pub make: Make,
}

/// All policies, in the order in which they are listed.
pub const POLICIES: &[Entry] = &[
    ondemand::ENTRY,
    driver::ENTRY,
    prefetch_at_alloc::ENTRY,
    sequential::ENTRY,
    stride::ENTRY,
    always_max::ENTRY,
    vdnn::ENTRY,
    ocdnn::ENTRY,
    autoswap::ENTRY,
    capuchin::ENTRY,
    flashneuron::ENTRY,
    sentinel::ENTRY,
    deepum_plus::ENTRY,
    g10::ENTRY,
    swapadvisor::ENTRY,
    autotm::ENTRY,
    tmof::ENTRY,
    dragon::ENTRY,
    zero_offload::ENTRY,
    deeptm::ENTRY,
    patrickstar::ENTRY,
    belady::ENTRY,
    opt::ENTRY,
    deepum::ENTRY,
    foresight::ENTRY,
];

impl Entry {
    /// Makes the policy for one run.
    pub fn policy<'p>(
        &self,
        machine: &Machine,
        program: &'p Program,
        lifetimes: bool,
        seed: u64,
    ) -> AnyPolicy<'p> {
        let future = Future { program, lifetimes };
        if self.plans() && fits(machine, program) {
            // Whoever plans from the whole future sees that there is nothing to plan.
            return driver::ENTRY.policy(machine, program, lifetimes, seed);
        }
        match self.make {
            Make::Fault(make) => AnyPolicy::Fault(make(machine)),
            Make::Launch(make) => AnyPolicy::Launch(make(machine)),
            Make::Lifetime(make) => AnyPolicy::Lifetime(make(machine)),
            Make::Future(make) => AnyPolicy::Future(make(machine, future)),
            Make::Search(make) => AnyPolicy::Future(make(machine, future, seed)),
            Make::Best(make) => make(machine, future, seed),
        }
    }
}

impl Entry {
    /// How it comes to know of deaths: the class of bounds that holds for it.
    pub fn deaths(&self) -> Deaths {
        if self.plans() {
            Deaths::Foreseen
        } else {
            Deaths::Told
        }
    }

    /// Of the future class.
    fn plans(&self) -> bool {
        matches!(self.make, Make::Future(_) | Make::Search(_) | Make::Best(_))
    }
}

/// All that the program ever populates at once has a frame.
fn fits(machine: &Machine, program: &Program) -> bool {
    program.footprint_bytes().div_ceil(BLOCK_BYTES) <= machine.memory_bytes / BLOCK_BYTES
}

/// The policy of this name.
pub fn named(name: &str) -> Option<&'static Entry> {
    POLICIES.iter().find(|entry| entry.name == name)
}
