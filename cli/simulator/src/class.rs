//! Information classes: what a policy of each kind is told, as types.
//!
//! A policy implements exactly one of the four traits here and so is handed only that
//! class's notices. None of the three online classes can name a [`Program`], an access set,
//! a duration or an iteration mark; only [`FuturePolicy`] is made from the whole trace.
//!
//! | class | sees |
//! | --- | --- |
//! | [`FaultPolicy`] | driver: allocations, faults, arrivals, evictions |
//! | [`LaunchPolicy`] | and launches with their pointer arguments, and device progress |
//! | [`LifetimePolicy`] | and what the framework's allocator hands out and takes back, where `--lifetimes on` |
//! | [`FuturePolicy`] | everything: the oracles, and systems that plan from a compiler's graph and profiled times |
//!
//! A policy of a lower class cannot read what a launch touches:
//!
//! ```compile_fail
//! use oversub_sim::class::{Desk, LaunchNotice, LaunchPolicy};
//! struct Cheat;
//! impl LaunchPolicy for Cheat {
//!     fn notice(&mut self, notice: LaunchNotice<'_>, desk: &mut Desk<'_>) {
//!         if let LaunchNotice::Launched(launch) = notice {
//!             let _ = launch.accesses; // no such field: only faults show it
//!         }
//!     }
//! }
//! ```
//!
//! ```compile_fail
//! use oversub_sim::class::{Desk, LaunchNotice, LaunchPolicy};
//! struct Cheat;
//! impl LaunchPolicy for Cheat {
//!     fn notice(&mut self, _: LaunchNotice<'_>, desk: &mut Desk<'_>) {
//!         let _ = desk.program(); // the trace is private to the model
//!     }
//! }
//! ```
//!
//! ```compile_fail
//! use oversub_sim::class::{Desk, LaunchNotice, LaunchPolicy};
//! struct Cheat;
//! impl LaunchPolicy for Cheat {
//!     fn notice(&mut self, notice: LaunchNotice<'_>, _: &mut Desk<'_>) {
//!         if let LaunchNotice::Launched(launch) = notice {
//!             let _ = launch.time; // durations are learned from progress, not told
//!         }
//!     }
//! }
//! ```

use oversub_engine::{Profile, Without};

pub use crate::model::Desk;

use crate::explain::{Ask, Explanation};
use crate::timeline::Plan;
use crate::trace::{Block, Call, Launch, Program};
use crate::units::{Leaves, Region};

/// Position of a launch in program order, as an online policy knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Seq(pub u32);

/// Names one order given through [`Desk`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// Why something came to the device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Arrival {
    /// A kernel's fault.
    Fault,
    /// The policy's order.
    Prefetch,
}

/// Who caused an eviction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Evictor {
    /// The driver, to make room.
    Driver,
    /// The policy's own order.
    Policy,
}

/// What the driver shows.
#[derive(Clone, Copy, Debug)]
pub enum DriverNotice<'a> {
    /// Managed memory was obtained.
    Alloc(Region),
    /// Managed memory was given back; its blocks are gone.
    Free(Region),
    /// A batch of device faults is about to be served: which parts of which blocks are
    /// missing. In order of arrival; each block once.
    Faults(&'a [(Block, Leaves)]),
    /// The CPU faulted on a block that was on the device, or had parts without content.
    HostFault(Block),
    /// So many bytes of a block have come to the device; none where its parts had no
    /// content and were only populated.
    Arrived {
        /// Which block.
        block: Block,
        /// Bytes moved.
        bytes: u64,
        /// Why.
        by: Arrival,
    },
    /// A block has left the device.
    Evicted {
        /// Which block.
        block: Block,
        /// Bytes moved.
        bytes: u64,
        /// Who wanted it.
        by: Evictor,
    },
    /// An order is over: all its blocks were moved, were there already, or were given up.
    Done(Ticket),
    /// The time asked for with [`Desk::wake_at`] has come.
    Wake,
}

/// A launch as the shim sees it, when the host issues it.
#[derive(Clone, Copy, Debug)]
pub struct LaunchRecord<'a> {
    /// Its number.
    pub seq: Seq,
    /// Kernel name.
    pub name: &'a str,
    /// Hash of name, geometry and by-value integer arguments.
    pub signature: u64,
    /// Pointer arguments.
    pub pointers: &'a [u64],
    /// The kernel takes scalars that change at every launch: a hash of the raw arguments is
    /// new each time.
    pub varies: bool,
    /// What it is where it is a copy or memset, which is a call of its own.
    pub call: Option<Call>,
}

/// What a [`LaunchPolicy`] sees.
#[derive(Clone, Copy, Debug)]
pub enum LaunchNotice<'a> {
    /// From the driver.
    Driver(DriverNotice<'a>),
    /// The host has issued a launch; it runs later.
    Launched(LaunchRecord<'a>),
    /// The device has begun a launch.
    Started(Seq),
    /// The device has finished a launch.
    Finished(Seq),
}

/// What a [`LifetimePolicy`] sees.
#[derive(Clone, Copy, Debug)]
pub enum LifetimeNotice<'a> {
    /// As a [`LaunchPolicy`] sees it.
    Launch(LaunchNotice<'a>),
    /// The allocator hands out a part, before launch `Seq`; only with lifetimes on.
    Use(Region, Seq),
    /// The allocator takes a part back: dead once the device has finished all launches
    /// before `Seq`; only with lifetimes on.
    Unuse(Region, Seq),
}

/// What a [`FuturePolicy`] sees while it executes its plan.
#[derive(Clone, Copy, Debug)]
pub enum FutureNotice<'a> {
    /// From the driver.
    Driver(DriverNotice<'a>),
    /// The run begins: nothing has happened yet.
    Begin,
    /// The device is about to begin a launch (before it looks at what is resident).
    Starting(Launch),
    /// The device has finished a launch.
    Finished(Launch),
    /// Content died on the device's side: the parts may be discarded. Comes in device
    /// order; with lifetimes off only for memory given back to the driver.
    Dead(&'a [crate::trace::Piece]),
}

/// Sees the fault stream.
pub trait FaultPolicy {
    /// Something happened.
    fn notice(&mut self, notice: DriverNotice<'_>, desk: &mut Desk<'_>);

    /// Which block to evict for a fault or an [`crate::model::Room::Take`] prefetch; none
    /// leaves it to the driver's order. Only for systems that change the driver.
    fn victim(&mut self, _desk: &Desk<'_>) -> Option<Block> {
        None
    }
}

/// Sees the launch stream.
pub trait LaunchPolicy {
    /// Something happened.
    fn notice(&mut self, notice: LaunchNotice<'_>, desk: &mut Desk<'_>);

    /// As [`FaultPolicy::victim`].
    fn victim(&mut self, _desk: &Desk<'_>) -> Option<Block> {
        None
    }
}

/// Sees the launch stream and the allocator's hook.
pub trait LifetimePolicy {
    /// Something happened.
    fn notice(&mut self, notice: LifetimeNotice<'_>, desk: &mut Desk<'_>);

    /// As [`FaultPolicy::victim`].
    fn victim(&mut self, _desk: &Desk<'_>) -> Option<Block> {
        None
    }

    /// What the policy's own tables take, for the `engine` output; none where it is not
    /// an engine.
    fn engine(&self) -> Option<EngineFigures> {
        None
    }

    /// It may tell the driver to leave content on the host, where launches use it.
    fn uses_on_host(&self) -> bool {
        false
    }

    /// From now on measures the real time that its engine takes; nothing else may depend
    /// on it.
    fn measure(&mut self) {}

    /// Before anything happens: it shall say why a block is where it is, and what it plans.
    fn record(&mut self, _explain: Option<Ask>, _plan: bool) {}

    /// What [`LifetimePolicy::record`] asked for, once the run is over.
    fn recorded(&mut self) -> (Option<Explanation>, Option<Plan>) {
        (None, None)
    }

    /// Before anything happens: parts that its engine leaves out, and what it begins with.
    fn begin_with(&mut self, _without: Without, _profile: Option<&Profile>) {}

    /// What its engine has learned; none where it is not an engine.
    fn learned(&self) -> Option<Profile> {
        None
    }
}

/// Who makes room for a prefetch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Victim {
    /// Whoever would make room for a fault.
    AsForFault,
    /// Nobody: the prefetch waits.
    Nobody,
    /// This block.
    Block(Block),
}

/// Knows the whole future. Made from the [`Program`], see [`crate::policy`].
pub trait FuturePolicy {
    /// Something happened.
    fn notice(&mut self, notice: FutureNotice<'_>, desk: &mut Desk<'_>);

    /// As [`FaultPolicy::victim`].
    fn victim(&mut self, _desk: &Desk<'_>) -> Option<Block> {
        None
    }

    /// The same for a prefetch, under the `g10` machine's rules alone: they tell the two
    /// apart.
    fn victim_of_prefetch(&mut self, _desk: &Desk<'_>) -> Victim {
        Victim::AsForFault
    }
}

/// What an engine says of itself.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct EngineFigures {
    /// Events it took.
    pub events: u64,
    /// Bytes of its tables, at most.
    pub table_bytes: u64,
    /// Real time per event, where it was measured: the median over groups of events.
    pub nanos_per_event: Option<u64>,
}

/// A policy of any class, made for one run.
pub enum AnyPolicy<'p> {
    /// Fault stream.
    Fault(Box<dyn FaultPolicy + 'p>),
    /// Launch stream.
    Launch(Box<dyn LaunchPolicy + 'p>),
    /// Launch stream and allocator hook.
    Lifetime(Box<dyn LifetimePolicy + 'p>),
    /// Everything.
    Future(Box<dyn FuturePolicy + 'p>),
}

/// What a [`FuturePolicy`] is made from.
#[derive(Clone, Copy, Debug)]
pub struct Future<'p> {
    /// The whole trace.
    pub program: &'p Program,
    /// Content of parts that the allocator took back is known to be dead.
    pub lifetimes: bool,
}
