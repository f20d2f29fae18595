//! The quantities that the simulator counts in. All integers: a run repeats bit for bit.

use std::ops::{Add, AddAssign, BitAnd, BitAndAssign, BitOr, BitOrAssign, Not, Sub};

/// Bytes in one block (nvidia-uvm's `UVM_VA_BLOCK_SIZE`).
pub const BLOCK_BYTES: u64 = 2 << 20;
/// Bytes in one leaf: the driver's big page, the smallest part of a block that migrates.
pub const LEAF_BYTES: u64 = 64 << 10;
/// Leaves in one block.
pub const LEAVES: u32 = 32;
/// Bytes in one page: the smallest unit that traces count in.
pub const PAGE_BYTES: u64 = 4 << 10;
/// Pages in one leaf.
pub const LEAF_PAGES: u32 = (LEAF_BYTES / PAGE_BYTES) as u32;

/// A time since the start of the run, or a duration, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The later of all times: never.
    pub const NEVER: Nanos = Nanos(u64::MAX);

    /// Whole microseconds as nanoseconds.
    pub const fn from_micros(us: u64) -> Self {
        Self(us * 1_000)
    }

    /// Microseconds, for output.
    pub fn as_micros_f64(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// Difference, or zero where `other` is later.
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Nanos {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Nanos {
    type Output = Self;
    /// Saturates at zero.
    fn sub(self, other: Self) -> Self {
        self.saturating_sub(other)
    }
}

impl std::iter::Sum for Nanos {
    fn sum<I: Iterator<Item = Self>>(times: I) -> Self {
        times.fold(Self(0), Add::add)
    }
}

/// A rate over a link or to a disk, bytes per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Rate(pub u64);

impl Rate {
    /// Time to move `bytes`, rounded up; at least 1 ns for anything at all.
    pub fn time(self, bytes: u64) -> Nanos {
        let nanos = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(self.0.max(1)));
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// A set of the 32 leaves (64 KiB each) of one block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Leaves(pub u32);

impl Leaves {
    /// None of them.
    pub const NONE: Leaves = Leaves(0);
    /// All of them.
    pub const ALL: Leaves = Leaves(u32::MAX);

    /// The leaves from `first` up to and without `end` (0 to 32).
    pub fn between(first: u32, end: u32) -> Self {
        debug_assert!(first <= end && end <= LEAVES);
        let below = |n: u32| ((1u64 << n) - 1) as u32;
        Self(below(end) & !below(first))
    }

    /// How many.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Their size in bytes.
    pub fn bytes(self) -> u64 {
        u64::from(self.count()) * LEAF_BYTES
    }

    /// No leaf at all.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those that are not in `other`.
    pub fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// All of `other` are in it.
    pub fn covers(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }
}

impl BitOr for Leaves {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Leaves {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAnd for Leaves {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitAndAssign for Leaves {
    fn bitand_assign(&mut self, other: Self) {
        self.0 &= other.0;
    }
}

impl Not for Leaves {
    type Output = Self;
    fn not(self) -> Self {
        Self(!self.0)
    }
}

/// Bytes `address .. address + bytes` of the program's memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Region {
    /// First byte.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
}

impl Region {
    /// One past the last byte; saturates.
    pub fn end(self) -> u64 {
        self.address.saturating_add(self.bytes)
    }

    /// The addresses, divided by 2 MiB, of the blocks that it touches, and of each the leaves.
    pub fn parts(self) -> impl Iterator<Item = (u64, Leaves)> + Clone {
        let first = self.address / BLOCK_BYTES;
        let end = if self.bytes == 0 {
            first
        } else {
            (self.end() - 1) / BLOCK_BYTES + 1
        };
        (first..end).map(move |number| {
            let base = number * BLOCK_BYTES;
            let from = self.address.max(base) - base;
            let to = self.end().min(base + BLOCK_BYTES) - base;
            let leaves =
                Leaves::between((from / LEAF_BYTES) as u32, to.div_ceil(LEAF_BYTES) as u32);
            (number, leaves)
        })
    }
}
