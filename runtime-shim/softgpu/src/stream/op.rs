//! What a stream can be told to do, and who does it.

use crate::abi::{HostFunction, StreamCallback, StreamHandle};
use crate::kernels::{Kernel, Shape};
use crate::memory::{Fill, Location, Place};
use crate::stream::Stream;
use crate::stream::event::Event;

/// Parameters that a launch carries without an allocation.
pub const INLINE_PARAMETERS: usize = 16;

/// A kernel's parameters, in the GPU's view where they are pointers.
pub enum Words {
    /// The usual case.
    Inline([u64; INLINE_PARAMETERS], u8),
    /// A kernel with many parameters.
    Boxed(Box<[u64]>),
}

impl Words {
    /// The parameters.
    pub fn as_slice(&self) -> &[u64] {
        match self {
            Words::Inline(words, count) => &words[..*count as usize],
            Words::Boxed(words) => words,
        }
    }
}

/// Addresses and lengths, bytes.
pub type Ranges = Box<[(u64, u64)]>;

/// Addresses, lengths in bytes, and where to.
pub type Placed = Box<[(u64, u64, Location)]>;

/// One operation.
pub enum Op {
    /// Nothing: a point in the stream.
    Mark,
    /// A kernel launch.
    Kernel {
        /// What to run.
        kernel: &'static Kernel,
        /// Its geometry.
        shape: Shape,
        /// Its parameters.
        words: Words,
    },
    /// A launch with an address that is nowhere: ends the context's work.
    Fault {
        /// What was launched.
        kernel: &'static Kernel,
        /// The address.
        address: u64,
    },
    /// Fills device memory.
    Memset {
        /// First byte.
        address: u64,
        /// With what.
        fill: Fill,
        /// Elements.
        count: u64,
    },
    /// Copies.
    Copy {
        /// Where to.
        to: Place,
        /// Where from.
        from: Place,
        /// How much.
        bytes: u64,
    },
    /// Copies bytes that were staged when the call was made.
    CopyStaged {
        /// Where to.
        to: Place,
        /// The content.
        from: Box<[u8]>,
    },
    /// Moves managed ranges.
    Prefetch {
        /// Which, each with its place.
        ranges: Placed,
    },
    /// Moves one managed range.
    PrefetchOne {
        /// First byte.
        address: u64,
        /// How much.
        bytes: u64,
        /// Where to.
        to: Location,
    },
    /// Declares managed content dead.
    Discard {
        /// Which.
        ranges: Ranges,
    },
    /// The same of a call made while the stream had something to do: nothing behind it waits
    /// until that is done.
    DiscardLate {
        /// Which.
        ranges: Ranges,
    },
    /// Frees device memory.
    Free {
        /// The allocation.
        address: u64,
    },
    /// Writes a word of 4 or 8 bytes.
    Write {
        /// Where.
        to: Place,
        /// The word.
        value: u64,
        /// 4 or 8.
        bytes: u8,
    },
    /// Waits until a word of 4 or 8 bytes satisfies a comparison.
    WaitValue(WaitValue),
    /// Notes the time in an event.
    Record {
        /// The event.
        event: &'static Event,
        /// Which of its records.
        record: u64,
    },
    /// Waits for a place in another stream.
    Wait {
        /// The stream.
        stream: &'static Stream,
        /// Its operation.
        sequence: u64,
    },
    /// Calls a function of the program.
    Host {
        /// The function.
        function: HostFunction,
        /// Its argument.
        argument: usize,
    },
    /// Calls a function of the program with the stream's result.
    Callback {
        /// The function.
        function: StreamCallback,
        /// The stream, as the program knows it.
        stream: StreamHandle,
        /// Its argument.
        argument: usize,
    },
}

/// A wait for a word in memory.
#[derive(Clone, Copy)]
pub struct WaitValue {
    /// Where.
    pub from: Place,
    /// What to compare with.
    pub value: u64,
    /// `CUstreamWaitValue_flags`, without the flush.
    pub compare: u32,
    /// 4 or 8.
    pub bytes: u8,
}

impl WaitValue {
    /// Whether a word ends the wait (`CUstreamWaitValue_flags` in cuda.h).
    pub fn satisfied_by(&self, word: u64) -> bool {
        // Cyclic for words of 4 and 8 bytes alike: (int)(*addr - value) >= 0.
        match (self.compare, self.bytes) {
            (0, 4) => (word as u32).wrapping_sub(self.value as u32) as i32 >= 0,
            (0, _) => word.wrapping_sub(self.value) as i64 >= 0,
            (1, _) => word == self.value,
            (2, _) => word & self.value != 0,
            (_, 4) => !(word as u32 | self.value as u32) != 0,
            (_, _) => !(word | self.value) != 0,
        }
    }
}

/// Who does an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Kernels, memsets, and copies inside the device.
    Compute,
    /// Copies to the device.
    In,
    /// Copies from the device.
    Out,
    /// What needs no transfer.
    Local,
    /// Functions of the program.
    Host,
}

/// How many units there are.
pub const UNITS: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(compare: u32, value: u64, bytes: u8) -> WaitValue {
        WaitValue {
            from: Place::Host(0),
            value,
            compare,
            bytes,
        }
    }

    #[test]
    fn at_least_is_cyclic() {
        assert!(wait(0, 5, 4).satisfied_by(5) && wait(0, 5, 4).satisfied_by(6));
        assert!(!wait(0, 5, 4).satisfied_by(4));
        assert!(
            wait(0, u32::MAX as u64, 4).satisfied_by(1),
            "wrapped around"
        );
        assert!(wait(0, u64::MAX, 8).satisfied_by(1) && !wait(0, 1, 8).satisfied_by(u64::MAX));
    }

    #[test]
    fn the_other_comparisons_follow_the_header() {
        assert!(wait(1, 7, 4).satisfied_by(7) && !wait(1, 7, 4).satisfied_by(8));
        assert!(wait(2, 6, 4).satisfied_by(2) && !wait(2, 6, 4).satisfied_by(1));
        assert!(wait(3, 1, 4).satisfied_by(2));
        assert!(!wait(3, 0xffff_fff0, 4).satisfied_by(0xf));
        assert!(!wait(3, !0xf, 8).satisfied_by(0xf));
    }
}
