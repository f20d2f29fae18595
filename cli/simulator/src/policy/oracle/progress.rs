//! How far the running launch has come, followed from outside: the policy is told when a
//! launch starts and what arrives, and knows the trace.

use super::uses::Uses;
use crate::class::Desk;
use crate::model::Place;
use crate::trace::{Block, Launch};
use crate::units::{Leaves, Nanos};

/// Launches of at most so many uses are not followed inside.
const WHOLE: u32 = 24;

/// The device's place in the string of uses.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Uses that the device is done with: all before this one.
    pub passed: u32,
    /// The launch that runs, or the next.
    pub launch: u32,
    /// One past the last use of the launch that runs.
    pub end: u32,
    anchor: Nanos,
    time: Nanos,
    done: u64,
    all: u64,
    /// Since when the next use waits for its block.
    waits: Option<Nanos>,
    running: bool,
    /// Faults that the driver serves: the launch goes on when all of it is there.
    batch: Vec<(Block, Leaves)>,
    /// And not before the driver has done its own work for them.
    served: Nanos,
    woken: Option<Nanos>,
}

impl Progress {
    pub fn start(&mut self, launch: Launch, uses: &Uses, now: Nanos) {
        let range = uses.of_launch(launch);
        self.launch = launch.0;
        self.all = range
            .clone()
            .map(|at| u64::from(uses.get(at).touched.count()))
            .sum();
        self.passed = range.start;
        self.end = range.end;
        self.anchor = now;
        self.time = uses.times()[launch.index()];
        self.done = 0;
        self.waits = None;
        self.running = true;
        self.batch.clear();
    }

    /// The launch has faulted and waits for these.
    pub fn fault(&mut self, batch: &[(Block, Leaves)], desk: &mut Desk<'_>) {
        self.batch.clear();
        self.batch.extend_from_slice(batch);
        // From now on, even if there is no word again before they are served: what has no
        // content to fetch is there without any.
        let due = self.due(self.done);
        self.waits.get_or_insert(due);
        let machine = desk.machine();
        let work = machine.fault.0 + machine.fault_block.0 * batch.len() as u64;
        self.served = desk.now() + Nanos(work);
        desk.wake_at(self.served + Nanos(1));
    }

    pub fn finish(&mut self, launch: Launch, uses: &Uses) {
        self.passed = uses.of_launch(launch).end;
        self.launch = launch.0 + 1;
        self.running = false;
    }

    /// A wake-up that was asked for has come.
    pub fn wake(&mut self) {
        self.woken = None;
    }

    fn followed(&self, uses: &Uses) -> bool {
        self.running && self.end - uses.of_launch(Launch(self.launch)).start > WHOLE
    }

    /// Uses before this one may be needed before there is word of it again.
    pub fn near(&self, uses: &Uses) -> u32 {
        if self.followed(uses) {
            self.passed + 4
        } else {
            self.end.max(self.passed + 1)
        }
    }

    fn due(&self, done: u64) -> Nanos {
        let share = u128::from(self.time.0) * u128::from(done) / u128::from(self.all.max(1));
        self.anchor + Nanos(share as u64)
    }

    /// Comes up to the present, without it: what the launch touches at this very moment it
    /// may not have touched yet.
    ///
    /// Blocks that are `coming` are not there until there is word of their arrival: at that
    /// very moment the launch still waited for them.
    pub fn advance(&mut self, uses: &Uses, desk: &mut Desk<'_>, coming: &[bool]) {
        if !self.followed(uses) {
            return;
        }
        let now = desk.now();
        // Of a block that an order gives pages to at this moment, they show before its end.
        let served = |(block, leaves): &(Block, Leaves)| {
            desk.resident(*block).covers(*leaves) && desk.place(*block) == Place::Device
        };
        if !self.batch.is_empty() && (now <= self.served || !self.batch.iter().all(served)) {
            let due = self.due(self.done);
            self.waits.get_or_insert(due);
            return;
        }
        self.batch.clear();
        while self.passed < self.end {
            let due = self.due(self.done);
            let used = uses.get(self.passed);
            let after = self.done + u64::from(used.touched.count());
            let late = coming[used.block.index()];
            if due < now && (late || !desk.resident(used.block).covers(used.touched)) {
                self.waits.get_or_insert(due);
                return;
            }
            // The launch may touch the block until it comes to the next.
            if self.waits.is_none() && self.due(after) >= now {
                break;
            }
            if let Some(since) = self.waits.take() {
                self.anchor += now - since;
                continue;
            }
            self.done = after;
            self.passed += 1;
        }
        let later = (self.passed + WHOLE / 2).min(self.end);
        let coming = (self.passed..later).map(|at| u64::from(uses.get(at).touched.count()));
        let wake = self.due(self.done + coming.sum::<u64>());
        if self.woken.is_none_or(|woken| woken > wake) && wake > now {
            self.woken = Some(wake);
            desk.wake_at(wake + Nanos(1));
        }
    }
}
