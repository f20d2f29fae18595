//! When each block is needed next, and which of those on the device is needed last.

use std::collections::BinaryHeap;

use crate::class::{Desk, DriverNotice, FutureNotice};
use crate::model::Place;
use crate::trace::{Block, Launch, Program};

/// The launches that touch each block, in order, with a cursor that moves with the device.
pub(in crate::policy) struct Uses<'p> {
    program: &'p Program,
    launches: Vec<u32>,
    ends: Vec<u32>,
    cursors: Vec<u32>,
}

/// Of a block that nobody needs any more.
pub(in crate::policy) const NEVER: u32 = u32::MAX;

impl<'p> Uses<'p> {
    /// Counts and sorts all touches: linear.
    pub fn new(program: &'p Program) -> Self {
        let all = || (0..program.launches().len() as u32).map(Launch);
        let mut ends = vec![0u32; program.blocks() + 1];
        for launch in all() {
            for access in program.accesses(launch) {
                ends[access.block.index() + 1] += 1;
            }
        }
        for block in 1..ends.len() {
            ends[block] += ends[block - 1];
        }
        let mut fill: Vec<u32> = ends[..program.blocks()].to_vec();
        let cursors = fill.clone();
        let mut launches = vec![0u32; ends.last().copied().unwrap_or(0) as usize];
        for launch in all() {
            for access in program.accesses(launch) {
                let at = &mut fill[access.block.index()];
                launches[*at as usize] = launch.0;
                *at += 1;
            }
        }
        Self {
            program,
            launches,
            ends,
            cursors,
        }
    }

    /// The first launch at or after the device's place that touches the block.
    pub fn next(&self, block: Block) -> u32 {
        let cursor = self.cursors[block.index()];
        if cursor == self.ends[block.index() + 1] {
            NEVER
        } else {
            self.launches[cursor as usize]
        }
    }

    /// The device has finished a launch: its touches lie behind.
    pub fn passed(&mut self, launch: Launch) {
        for access in self.program.accesses(launch) {
            let block = access.block.index();
            let end = self.ends[block + 1];
            let cursor = &mut self.cursors[block];
            while *cursor < end && self.launches[*cursor as usize] <= launch.0 {
                *cursor += 1;
            }
        }
    }
}

/// Belady's order over the blocks on the device.
pub(in crate::policy) struct Furthest<'p> {
    uses: Uses<'p>,
    /// Blocks that came or were used, by next use; stale entries are dropped when met.
    heap: BinaryHeap<(u32, Block)>,
}

impl<'p> Furthest<'p> {
    /// Nothing is on the device.
    pub fn new(program: &'p Program) -> Self {
        Self {
            uses: Uses::new(program),
            heap: BinaryHeap::new(),
        }
    }

    /// To be told everything that the policy is told.
    pub fn notice(&mut self, notice: &FutureNotice<'_>) {
        match *notice {
            FutureNotice::Driver(DriverNotice::Arrived { block, .. }) => {
                self.heap.push((self.uses.next(block), block));
            }
            FutureNotice::Finished(launch) => {
                self.uses.passed(launch);
                for access in self.uses.program.accesses(launch) {
                    self.heap.push((self.uses.next(access.block), access.block));
                }
            }
            _ => {}
        }
    }

    /// The block on the device that is needed last; it stays listed until it has left.
    pub fn victim(&mut self, desk: &Desk<'_>) -> Option<Block> {
        while let Some(&(next, block)) = self.heap.peek() {
            if next == self.uses.next(block) && desk.place(block) == Place::Device {
                return Some(block);
            }
            self.heap.pop();
        }
        None
    }
}
