//! What the engine is told.

use crate::units::{FunctionId, Range, Seq, StreamId};

/// One thing that happened in the program, on the device or in the driver.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A kernel function has this name. Comes before its first launch.
    Function {
        /// Number by which launches name it.
        function: FunctionId,
        /// Its (mangled) name, possibly cut.
        name: &'a str,
    },
    /// Managed memory was obtained from the driver.
    Alloc {
        /// Where; the address is a multiple of 2 MiB.
        range: Range,
        /// It is a segment of the shim's pool: [`Event::Use`] and [`Event::Unuse`] tell
        /// which parts of it live. Otherwise all of it lives until freed.
        pool: bool,
        /// The shim has already prefetched it to the device.
        prefetched: bool,
        /// The shim has populated it on the host, since it does not fit the budget.
        on_host: bool,
    },
    /// The shim has prefetched a part of new memory to the device.
    Placed {
        /// Which part.
        range: Range,
    },
    /// Managed memory was given back.
    Free {
        /// Start of what was obtained.
        address: u64,
    },
    /// A part of a pool segment was handed out: its content is undefined until written.
    Use {
        /// Which part.
        range: Range,
        /// Launches with smaller numbers came before.
        seq: Seq,
    },
    /// A part of a pool segment was taken back: dead once `stream` has passed `seq`.
    Unuse {
        /// Start of what was handed out.
        address: u64,
        /// Stream in whose order it dies.
        stream: StreamId,
        /// Launches with smaller numbers came before.
        seq: Seq,
    },
    /// A kernel was launched (put into its stream; it runs later).
    Launch(Launch<'a>),
    /// A copy was put into its stream.
    Copy(Copy),
    /// The device has passed `seq` in `stream`, though what it faulted on before is still to be
    /// told: faults that come now may be those of any launch up to the next one.
    /// [`Event::Progress`] follows them.
    Reached {
        /// The stream.
        stream: StreamId,
        /// Everything up to this number in that stream has been executed.
        seq: Seq,
    },
    /// The device has passed `seq` in `stream`.
    Progress {
        /// The stream.
        stream: StreamId,
        /// Everything up to this number in that stream has been executed.
        seq: Seq,
    },
    /// The device has executed all commands of `queue` up to `id`.
    Completed {
        /// The queue.
        queue: crate::Queue,
        /// [`crate::Command::id`] of the last one.
        id: u32,
    },
    /// The driver refused a command, or the shim declined it: it had no effect.
    Refused {
        /// The queue.
        queue: crate::Queue,
        /// [`crate::Command::id`].
        id: u32,
    },
    /// The device (or the host) faulted on pages of one block. Only with probes.
    Fault {
        /// First faulted byte.
        address: u64,
        /// Faults, after the driver's merging of duplicates.
        faults: u32,
        /// By the host, not by the device.
        by_host: bool,
    },
    /// The driver finished serving a batch of faults. Only with probes.
    FaultBatch {
        /// Faults in the batch.
        faults: u32,
        /// From the first fault read to the replay, microseconds.
        service_us: u32,
    },
    /// The driver moved bytes of one block. Only with probes.
    Migration {
        /// What moved.
        range: Range,
        /// Which way.
        direction: Direction,
        /// Why.
        cause: Cause,
    },
    /// The driver put pages of one block on the device without a transfer (first touch).
    /// Only with probes.
    Populated {
        /// What was populated.
        range: Range,
    },
    /// Nothing but time has passed.
    Tick,
}

/// One kernel launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Position in program order.
    pub seq: Seq,
    /// Its stream.
    pub stream: StreamId,
    /// Which kernel.
    pub function: FunctionId,
    /// Grid in thread blocks.
    pub grid: [u32; 3],
    /// Thread block in threads.
    pub block: [u16; 3],
    /// Argument words: each parameter begins a new word, short ones extended with zeros.
    pub words: &'a [u64],
}

/// One copy or memset.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// Position in program order, from the same counter as launches.
    pub seq: Seq,
    /// Its stream.
    pub stream: StreamId,
    /// Managed memory that is wholly overwritten.
    pub dst: Option<Range>,
    /// Managed memory that is read.
    pub src: Option<Range>,
}

/// Which way over the link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// Host to device.
    In,
    /// Device to host.
    Out,
}

/// Why the driver migrated something (`UvmEventMigrationCause`, uvm_types.h, 580.142).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// The page that faulted.
    Fault,
    /// The driver's density prefetcher added it to a fault's pages.
    Density,
    /// The driver needed the room.
    Eviction,
    /// A prefetch call: ours or the program's.
    Call,
    /// The host touched it.
    HostFault,
    /// Anything else.
    Other,
}
