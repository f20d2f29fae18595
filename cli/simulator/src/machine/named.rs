//! The machines that have names.

use super::{Machine, Rules, Ssd};
use crate::units::{Nanos, Rate};

const GIB: u64 = 1 << 30;

/// One fault batch's service without its transfers: G10's configuration
/// (`system_latency_us 45`), within what the DeepUM paper's table 5 implies (2.6 to 9.5 us
/// for each fault entry).
const FAULT: Nanos = Nanos::from_micros(45);
/// Faults in a batch (`uvm_perf_fault_batch_count`, uvm_gpu_replayable_faults.c).
const FAULT_BATCH: u32 = 256;
/// Missing blocks that the accesses of a launch in flight meet at once. A choice: kernels walk
/// few places at a time, and each unit's faults come by themselves.
const FAULT_BLOCKS: u32 = 4;
/// Parts of 64 KiB that they fault on at once. A choice: one block's. A full batch of faults
/// on consecutive 4 KiB pages is 16 of them, one on scattered pages up to 256.
const FAULT_LEAVES: u32 = 32;
/// A prefetch call: ioctl, locks, page tables (UVM_MIGRATE, uvm_migrate.c; the time is a
/// choice, to be measured by `oversub bench` on a machine with a GPU).
const CALL: Nanos = Nanos::from_micros(5);
/// `uvm_perf_prefetch_threshold` (uvm_perf_prefetch.c).
const DENSITY: u32 = 51;
/// What the device's own accesses to the host's memory reach of the rate of copies, percent:
/// requests of a whole 128 B line nearly fill PCIe (EMOGI, VLDB 2021, abstract). Each comes with
/// some 26 B of framing and headers (PCIe 3.0: 154 B on the link for 128), a copy's with as much
/// for 256 B: (128 / 154) / (256 / 282) is 0.92. Single sectors of 32 B would reach 0.61 of it;
/// traces count in whole pages of 4 KiB, which are read line by line.
const ACCESS_PERCENT: u32 = 90;
/// Launches that the driver queues before a launch call blocks (CUDA: 1,022 and more).
const LAUNCH_QUEUE: u32 = 1_022;

/// One named machine.
pub struct Named {
    /// Name on the command line.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    memory_bytes: u64,
    link_in: u64,
    link_out: u64,
    link_total: Option<u64>,
}

/// All of them. Rates are pinned copies' best, bytes per second, so that bounds hold: 15.754
/// GB/s is PCIe 3 x16 after its encoding (8 GT/s x 16 x 128/130, what G10 takes), 12 GB/s
/// what DeepUM's and SwapAdvisor's PCIe 3 gave; 55 GB/s is what copies reach of the 63 GB/s of
/// PCIe 5 x16. Memory is the data sheet's.
pub const MACHINES: &[Named] = &[
    Named {
        name: "a100-40g",
        about: "A100 40 GB on PCIe 3 x16, G10's setting: 15.754 GB/s each way (default)",
        memory_bytes: 40 * GIB,
        link_in: 15_754_000_000,
        link_out: 15_754_000_000,
        link_total: None,
    },
    Named {
        name: "v100-32g",
        about: "V100 32 GB on PCIe 3 x16 as DeepUM measured it: 12 GB/s each way, 20 GB/s \
                both ways (SwapAdvisor section 6.1)",
        memory_bytes: 32 * GIB,
        link_in: 12_000_000_000,
        link_out: 12_000_000_000,
        link_total: Some(20_000_000_000),
    },
    Named {
        name: "h100-80g",
        about: "H100 80 GB on PCIe 5 x16: 55 GB/s each way",
        memory_bytes: 80 * GIB,
        link_in: 55_000_000_000,
        link_out: 55_000_000_000,
        link_total: None,
    },
    Named {
        name: "h200",
        about: "H200 141 GB on PCIe 5 x16: 55 GB/s each way",
        memory_bytes: 141_000_000_000,
        link_in: 55_000_000_000,
        link_out: 55_000_000_000,
        link_total: None,
    },
    Named {
        name: "rtx5090",
        about: "RTX 5090 32 GB on PCIe 5 x16: 55 GB/s each way",
        memory_bytes: 32 * GIB,
        link_in: 55_000_000_000,
        link_out: 55_000_000_000,
        link_total: None,
    },
    Named {
        name: "g10",
        about: "the G10 artifact's own rules (MICRO 2023): A100 40 GB, PCIe 15.754 GB/s each \
                way, 128 GiB of host memory, SSD at 3.151 GB/s each way",
        memory_bytes: 40 * GIB,
        link_in: 15_754_000_000,
        link_out: 15_754_000_000,
        link_total: None,
    },
];

/// Name of the machine that is used where none is named.
pub const DEFAULT: &str = "a100-40g";

impl Named {
    /// The machine.
    pub fn machine(&self) -> Machine {
        let g10 = self.name == "g10";
        Machine {
            name: self.name.to_owned(),
            memory_bytes: self.memory_bytes,
            link_in: Rate(self.link_in),
            link_out: Rate(self.link_out),
            link_total: self.link_total.map(Rate),
            access_percent: ACCESS_PERCENT,
            call: if g10 { Nanos(0) } else { CALL },
            fault: if g10 { Nanos(0) } else { FAULT },
            fault_block: Nanos(0),
            fault_batch: FAULT_BATCH,
            fault_blocks: FAULT_BLOCKS,
            fault_leaves: FAULT_LEAVES,
            density: DENSITY,
            launch: Nanos(0),
            launch_queue: LAUNCH_QUEUE,
            host_bytes: g10.then_some(128 * GIB),
            ssd: g10.then_some(Ssd {
                read: Rate(3_151_000_000),
                write: Rate(3_151_000_000),
            }),
            rules: if g10 { Rules::G10 } else { Rules::Uvm },
        }
    }
}

/// The machine of this name.
pub fn named(name: &str) -> Option<Machine> {
    let found = MACHINES.iter().find(|machine| machine.name == name)?;
    Some(found.machine())
}
