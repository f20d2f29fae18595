//! What a simulated machine is: rates, costs and limits, each with its source.

mod named;

pub use named::{DEFAULT, MACHINES, Named, named};

use crate::units::{Nanos, Rate};

/// Whose rules a run follows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rules {
    /// nvidia-uvm's (open-gpu-kernel-modules 580): LRM lists, density prefetch, fault batches.
    Uvm,
    /// The G10 artifact's page simulator (commit de2c8c6), whose numbers are published.
    G10,
}

/// A disk below the host's memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ssd {
    /// Rate of reads.
    pub read: Rate,
    /// Rate of writes.
    pub write: Rate,
}

/// One machine.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Machine {
    /// Name on the command line.
    pub name: String,
    /// Device memory that managed memory may fill, bytes.
    pub memory_bytes: u64,
    /// Host to device.
    pub link_in: Rate,
    /// Device to host.
    pub link_out: Rate,
    /// Cap on the sum of both directions, where there is one.
    pub link_total: Option<Rate>,
    /// Rate of the device's own accesses to the host's memory, percent of the rate of copies in
    /// the same direction.
    pub access_percent: u32,
    /// Cost of one prefetch, evict or discard call, before its transfer starts.
    pub call: Nanos,
    /// Cost of serving one fault batch, without its transfers.
    pub fault: Nanos,
    /// Further cost for each block in the batch.
    pub fault_block: Nanos,
    /// Most faults in a batch; a fault is a 64 KiB leaf.
    pub fault_batch: u32,
    /// Blocks of a kernel whose accesses are in flight at once: how many missing blocks
    /// one batch can hold faults of.
    pub fault_blocks: u32,
    /// Leaves that a kernel's accesses in flight can fault on at once, over all its blocks.
    pub fault_leaves: u32,
    /// The driver's density threshold, percent of a region of a block.
    pub density: u32,
    /// From one launch of the host to its next.
    pub launch: Nanos,
    /// Most launches that the host runs ahead of the device.
    pub launch_queue: u32,
    /// Host memory for evicted content, where it is limited.
    pub host_bytes: Option<u64>,
    /// What takes the rest.
    pub ssd: Option<Ssd>,
    /// Whose rules.
    pub rules: Rules,
}
