//! The quantities that everything is counted in.

/// Bytes in one block (nvidia-uvm's `UVM_VA_BLOCK_SIZE`).
pub const BLOCK_BYTES: u64 = 2 << 20;

/// A size in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Bytes(pub u64);

/// A time or a duration in microseconds. As a time: since any fixed moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Micros(pub u64);

/// A 2 MiB-aligned part of the program's address space: address divided by 2 MiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockId(pub u64);

impl BlockId {
    /// The block that holds `address`.
    pub fn containing(address: u64) -> Self {
        Self(address / BLOCK_BYTES)
    }

    /// First byte of the block.
    pub fn address(self) -> u64 {
        self.0 * BLOCK_BYTES
    }
}

/// Position of a launch, copy or memset in program order, over all streams, from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Seq(pub u64);

/// Moments told apart within one launch.
pub(crate) const TICKS: u64 = 1024;

/// A stream of the program, by its slot in the shared memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(pub u8);

/// A kernel function of the program, by the number the shim gave it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FunctionId(pub u32);

/// Bytes `address .. address + bytes`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Range {
    /// First byte.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
}

impl Range {
    /// One past the last byte; saturates.
    pub fn end(self) -> u64 {
        self.address.saturating_add(self.bytes)
    }

    /// Whether an address lies in it.
    pub fn contains(self, address: u64) -> bool {
        address >= self.address && address < self.end()
    }

    /// The blocks that the range touches.
    pub fn blocks(self) -> impl DoubleEndedIterator<Item = BlockId> + Clone {
        let last = if self.bytes == 0 {
            self.address
        } else {
            self.end() - 1
        };
        let first = self.address / BLOCK_BYTES;
        let end = if self.bytes == 0 {
            first
        } else {
            last / BLOCK_BYTES + 1
        };
        (first..end).map(BlockId)
    }
}
