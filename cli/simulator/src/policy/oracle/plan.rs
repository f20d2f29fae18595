//! Which blocks leave between two of their uses.
//!
//! A plan is a set of gaps: a block either stays from one use to its next or leaves. The
//! planner walks the uses with a clock of its own for the kernel and both directions of the
//! link. A use that finds its block missing gets a frame: a free one, or that of the block
//! whose next use is furthest (Belady 1966), blocks without needed content first. It looks
//! `ahead` missing uses beyond the running one whenever the link has nothing to do, and
//! then takes a frame only from a block that is needed later than what it brings: with
//! a small `ahead` that is `Conservative`, with a large one `Aggressive` (Cao, Felten,
//! Karlin, Li: A study of integrated prefetching and caching strategies, SIGMETRICS 1995).
//! On a cyclic sweep the first keeps one part and streams the other; the second spreads
//! what is streamed over the sweep, so that the link never idles.

use std::collections::{BinaryHeap, VecDeque};

use super::uses::{NEVER, Uses};
use crate::machine::Machine;
use crate::units::{LEAF_BYTES, Nanos};

/// Transfers that the planner has under way at once, in leaves: eight blocks.
const DEPTH: u64 = 8 * 32;

/// A use whose block has to be brought or populated.
#[derive(Clone, Copy, Debug)]
pub(in crate::policy) struct Item {
    /// Which use.
    pub at: u32,
    /// The use after which a block leaves to make room for it, or [`NEVER`].
    pub victim: u32,
}

/// Which blocks come and go.
#[derive(Debug, Default)]
pub(in crate::policy) struct Plan {
    /// Uses whose block has to be brought, in order.
    pub items: Vec<Item>,
    leaves: Vec<u64>,
    brings: Vec<u64>,
}

impl Plan {
    /// Whether the same blocks come and go.
    pub fn same(&self, other: &Self) -> bool {
        self.leaves == other.leaves && self.brings == other.brings
    }

    /// Whether the block has to be brought for this use.
    pub fn brings(&self, at: u32) -> bool {
        self.brings[at as usize / 64] >> (at % 64) & 1 == 1
    }

    /// Whether the block leaves after this use.
    pub fn leaves_after(&self, at: u32) -> bool {
        self.leaves[at as usize / 64] >> (at % 64) & 1 == 1
    }

    fn mark(&mut self, at: u32) {
        self.leaves[at as usize / 64] |= 1 << (at % 64);
    }
}

/// Plans for so many frames, looking so many missing blocks ahead.
pub(in crate::policy) fn plan(uses: &Uses, machine: &Machine, frames: u32, ahead: u32) -> Plan {
    let half = machine.link_total.map_or(u64::MAX, |total| total.0 / 2);
    let leaf = |rate: u64| LEAF_BYTES * 1_000_000_000 / rate.min(half).max(1);
    let mut planner = Planner {
        uses,
        keys: vec![ABSENT; uses.blocks()],
        last: vec![NEVER; uses.blocks()],
        needed: BinaryHeap::new(),
        dead: BinaryHeap::new(),
        free: frames.max(1),
        frames: frames.max(1) as usize,
        coming: VecDeque::new(),
        clock: 0,
        in_free: 0,
        out_free: 0,
        in_leaf: leaf(machine.link_in.0),
        out_leaf: leaf(machine.link_out.0),
        plan: Plan {
            items: Vec::new(),
            leaves: vec![0; uses.len() as usize / 64 + 1],
            brings: vec![0; uses.len() as usize / 64 + 1],
        },
    };
    planner.walk(ahead.max(1) as usize);
    planner.plan
}

/// Key of a block that holds no frame.
const ABSENT: u32 = u32::MAX - 1;

struct Planner<'a> {
    uses: &'a Uses,
    /// By block: its next use as of the running one, or [`ABSENT`].
    keys: Vec<u32>,
    /// By block: its last use.
    last: Vec<u32>,
    /// Blocks that can leave, by next use; entries whose key has changed are stale.
    needed: BinaryHeap<(u32, u32)>,
    /// The same of blocks without needed content.
    dead: BinaryHeap<(u32, u32)>,
    free: u32,
    frames: usize,
    /// Uses with a frame that the kernel has not come to, and when their block arrives.
    coming: VecDeque<(u32, u64)>,
    clock: u64,
    in_free: u64,
    out_free: u64,
    in_leaf: u64,
    out_leaf: u64,
    plan: Plan,
}

impl Planner<'_> {
    fn walk(&mut self, ahead: usize) {
        let mut scan = 0;
        for (launch, &Nanos(time)) in self.uses.times().iter().enumerate() {
            let range = self.uses.of_launch(crate::trace::Launch(launch as u32));
            let all: u64 = range
                .clone()
                .map(|at| u64::from(self.uses.get(at).touched.count()))
                .sum();
            if all == 0 {
                self.clock += time;
            }
            for at in range {
                self.look(at, launch as u32, &mut scan, ahead);
                if let Some(&(first, arrival)) = self.coming.front()
                    && first == at
                {
                    self.coming.pop_front();
                    self.clock = self.clock.max(arrival);
                }
                self.clock += time * u64::from(self.uses.get(at).touched.count()) / all.max(1);
                self.pass(at);
            }
        }
    }

    /// Gives frames to the running use and to missing ones after it.
    fn look(&mut self, at: u32, launch: u32, scan: &mut u32, ahead: usize) {
        *scan = (*scan).max(at);
        let depth = DEPTH * self.in_leaf.max(self.out_leaf);
        while *scan < self.uses.len() {
            let next = *scan;
            let used = self.uses.get(next);
            let present = self.keys[used.block.index()] != ABSENT;
            if present && used.fresh {
                // There from before it goes: not before the kernel has come by.
                break;
            }
            if !present {
                let busy = self.in_free.max(self.out_free) > self.clock + depth;
                if next > at
                    && (busy || self.coming.len() >= ahead || self.uses.barrier(next) > launch)
                {
                    break;
                }
                if !self.bring(next) {
                    break;
                }
            }
            *scan += 1;
        }
    }

    /// Finds a frame for a use; false where only blocks needed earlier hold one.
    fn bring(&mut self, at: u32) -> bool {
        let (victim, room) = if self.free > 0 {
            self.free -= 1;
            (NEVER, self.clock)
        } else {
            let Some(victim) = self.victim(at) else {
                return false;
            };
            let gone = self.uses.get(victim);
            self.keys[gone.block.index()] = ABSENT;
            self.plan.mark(victim);
            let leaves = u64::from(gone.after.count());
            if leaves > 0 {
                self.out_free = self.out_free.max(self.clock) + leaves * self.out_leaf;
                (victim, self.out_free)
            } else {
                (victim, self.clock)
            }
        };
        let used = self.uses.get(at);
        let last = self.last[used.block.index()];
        let content = if last == NEVER {
            self.uses.on_host(used.block) & used.before
        } else {
            self.uses.get(last).after
        };
        let mut arrival = room;
        if !content.is_empty() {
            arrival = self.in_free.max(room) + u64::from(content.count()) * self.in_leaf;
            self.in_free = arrival;
        }
        self.keys[used.block.index()] = at;
        self.coming.push_back((at, arrival));
        self.plan.items.push(Item { at, victim });
        self.plan.brings[at as usize / 64] |= 1 << (at % 64);
        true
    }

    /// The last use of the block that goes.
    fn victim(&mut self, at: u32) -> Option<u32> {
        for heap in [&mut self.dead, &mut self.needed] {
            while let Some(&(next, block)) = heap.peek() {
                if self.keys[block as usize] != next {
                    heap.pop();
                    continue;
                }
                if next <= at {
                    break;
                }
                heap.pop();
                return Some(self.last[block as usize]);
            }
        }
        None
    }

    /// The kernel has used a block.
    fn pass(&mut self, at: u32) {
        let used = self.uses.get(at);
        let index = used.block.index();
        self.last[index] = at;
        let over = used.next == NEVER && used.after.is_empty();
        if used.cut || over {
            self.keys[index] = ABSENT;
            self.plan.mark(at);
            self.free += 1;
            return;
        }
        self.keys[index] = used.next;
        let heap = if used.after.is_empty() {
            &mut self.dead
        } else {
            &mut self.needed
        };
        if heap.len() > 4 * self.frames + 64 {
            let keys = &self.keys;
            heap.retain(|(next, block)| keys[*block as usize] == *next);
        }
        heap.push((used.next, used.block.0));
    }
}
