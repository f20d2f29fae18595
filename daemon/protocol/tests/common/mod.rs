//! Ring memory for tests: on the heap instead of in a memfd.

#![expect(
    clippy::unwrap_used,
    reason = "clippy's exception knows #[test] functions only"
)]

use std::ptr::NonNull;

use oversub_protocol::layout::{RingHead, SlotCell};
use oversub_protocol::ring::Ring;

/// Zeroed memory of one ring. Leaked: rings are `Copy` and may outlive any scope.
pub struct Memory {
    pub head: &'static RingHead,
    pub slots: &'static [SlotCell],
}

impl Memory {
    pub fn new(slots: u32) -> Memory {
        let head = Box::leak(Box::new(RingHead::default()));
        let cells: Vec<SlotCell> = (0..slots).map(|_| SlotCell::default()).collect();
        Memory {
            head,
            slots: Box::leak(cells.into_boxed_slice()),
        }
    }

    pub fn ring(&self) -> Ring {
        let slots = u32::try_from(self.slots.len()).unwrap();
        let first = NonNull::from(self.slots).cast::<SlotCell>();
        // SAFETY: both live for ever; all of it is interior-mutable.
        unsafe { Ring::from_raw(NonNull::from(self.head), first, slots) }.unwrap()
    }
}
