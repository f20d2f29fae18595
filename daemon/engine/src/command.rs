//! What the engine asks for.

use crate::units::Range;

/// Something for the shim's executor to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command {
    /// Which executor queue runs it. Queues run side by side, each in order.
    pub queue: Queue,
    /// Position in its queue, from 1, without gaps; wraps.
    pub id: u32,
    /// What to do.
    pub operation: Operation,
    /// On what; whole blocks.
    pub range: Range,
}

/// A queue of the executor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Queue {
    /// Host to device.
    In,
    /// Device to host.
    Out,
    /// Without transfer.
    Local,
}

impl Queue {
    /// All of them, in the order of their wire numbers.
    pub const ALL: [Queue; 3] = [Queue::In, Queue::Out, Queue::Local];
}

/// What a command does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// Bring to the device ([`Queue::In`]).
    Prefetch,
    /// Bring to the host ([`Queue::Out`]).
    Evict,
    /// Drop dead content ([`Queue::Local`]).
    Discard,
    /// Give device memory to blocks without content ([`Queue::Local`]).
    Populate,
    /// Bring what is there to the end of the driver's list of what to evict ([`Queue::Local`]).
    Touch,
    /// Leave on the host what lies there and what is born: launches use it there, and no fault
    /// brings it to the device ([`Queue::Local`]).
    UseOnHost,
    /// Take that back: faults bring it again ([`Queue::Local`]).
    LetMigrate,
}
