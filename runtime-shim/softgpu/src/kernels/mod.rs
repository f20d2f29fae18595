//! The kernels that the soft GPU can run: the workload programs', by entry name.
//!
//! Each one computes bit for bit what the committed PTX computes on a GPU: the same
//! operations in the same order, without contraction. A launch is cut into pieces, which
//! run in any order and side by side, as thread blocks do. `run` works on raw device
//! memory in the GPU's view and may be suspended at any load or store by a page fault,
//! so it holds no lock, allocates nothing and does not panic.
//!
//! Launches are one-dimensional, as the programs make them. A launch with fewer threads
//! than elements leaves the rest untouched; where threads work together on a group of
//! elements (a panel, a group of features), only groups that are wholly covered run.

mod adam;
mod gather;
mod gemm;
mod mlp;
#[cfg(test)]
mod tests;
mod vector;
mod words;

/// Grid and block of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Thread blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared_bytes: u32,
}

impl Shape {
    /// Threads along x: what a one-dimensional kernel sees.
    pub fn threads(&self) -> u64 {
        u64::from(self.grid[0]) * u64::from(self.block[0])
    }
}

/// How a parameter is passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Param {
    /// Device pointer: [`Kernel::run`] gets it translated into the GPU's view.
    Pointer,
    /// 64-bit integer.
    U64,
    /// 32-bit integer.
    U32,
    /// 32-bit float, as bits.
    F32,
}

/// One kernel.
#[derive(Clone, Copy)]
pub struct Kernel {
    /// Entry name in the PTX.
    pub name: &'static str,
    /// Its parameters, in order.
    pub params: &'static [Param],
    /// How many independent pieces a launch has; each touches about 64 KiB.
    pub pieces: fn(&Shape, &[u64]) -> u64,
    /// Runs one piece. Safety: the words are this kernel's parameters, pointers in the
    /// GPU's view, and name memory as large as the other parameters say.
    pub run: unsafe fn(&Shape, &[u64], u64),
}

/// All of them.
pub static KERNELS: &[Kernel] = &[
    words::FILL_U32,
    words::FILL_F32,
    words::SWEEP_STEP,
    words::MIX_ROUNDS,
    gather::GATHER_ROWS,
    gemm::GEMM_TILE,
    mlp::FORWARD,
    mlp::LOSS,
    mlp::ACTIVATION_GRAD,
    mlp::INPUT_GRAD,
    mlp::WEIGHT_GRAD,
    adam::ADAM_STEP,
];
