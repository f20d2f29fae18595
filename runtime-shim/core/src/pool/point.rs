//! When freed memory is free of its last users.

use crate::abi::Handle;

/// A place in the order of the shim's own stream, which waits there for streams of the program
/// that no one can wait for any more; 0: none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Turn(pub u64);

impl Turn {
    /// None: there is nothing to wait for.
    pub const NONE: Turn = Turn(0);
}

/// A moment in the order of streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, u32)]
pub enum Point {
    /// Past: no one uses it any more.
    Done = 0,
    /// Everything that this stream was given up to then.
    Stream {
        /// The stream in whose order the memory was freed.
        stream: Handle,
        /// Its slot.
        slot: u8,
        /// The number last given out at that time.
        seq: u64,
    } = 1,
}

impl Point {
    /// Memory with this point may be used in `stream` at once.
    pub fn is_ready_in(&self, stream: Handle) -> bool {
        match self {
            Point::Done => true,
            Point::Stream { stream: own, .. } => *own == stream,
        }
    }

    /// It lies in this stream's order.
    pub fn is_of(&self, stream: Handle) -> bool {
        matches!(self, Point::Stream { stream: own, .. } if *own == stream)
    }

    /// The point of two parts taken together, if one point can say it.
    pub fn merged(self, other: Point) -> Option<Point> {
        match (self, other) {
            (Point::Done, point) | (point, Point::Done) => Some(point),
            (
                Point::Stream {
                    stream: a, seq: x, ..
                },
                Point::Stream {
                    stream: b, seq: y, ..
                },
            ) => (a == b).then_some(if x >= y { self } else { other }),
        }
    }
}
