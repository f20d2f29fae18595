//! The launch that runs: how far it has come, and what it needs next.
//!
//! Its accesses are due in order, each when the share of its time has passed that the leaves
//! before it have of all its leaves. A missing one stops it (fraction model,
//! facts of the field: a kernel's warps soon all wait for the same fault batch).

use crate::timeline::Stall;
use crate::trace::{Access, Block, Launch};
use crate::units::{Leaves, Nanos};

use super::Model;
use super::blocks::Frame;

/// The running launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    pub launch: Launch,
    pub started: Nanos,
    /// When it would have begun if it had never waited.
    anchor: Nanos,
    time: Nanos,
    next: usize,
    done_leaves: u64,
    all_leaves: u64,
    /// Until when its last access lasts, where that was on the host.
    on_host_until: Nanos,
    /// Since when it waits, and for what.
    pub wait: Option<(Nanos, Wait)>,
}

/// What a launch waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Wait {
    /// A transfer that was under way.
    Transfer(Block),
    /// The driver to serve its faults.
    Service,
}

/// What becomes of a launch next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// It misses parts of a block.
    Miss(Block),
    /// It uses parts of a block on the host: which access that is.
    OnHost(usize),
    /// It is over.
    End,
}

impl Kernel {
    pub fn new(launch: Launch, now: Nanos, time: Nanos, accesses: &[Access]) -> Self {
        let leaves = accesses.iter().map(|a| u64::from(a.leaves.count())).sum();
        Self {
            launch,
            started: now,
            anchor: now,
            time,
            next: 0,
            done_leaves: 0,
            all_leaves: leaves,
            on_host_until: Nanos(0),
            wait: None,
        }
    }

    /// The accesses that are still to come.
    pub fn rest<'a>(&self, accesses: &'a [Access]) -> &'a [Access] {
        &accesses[self.next..]
    }

    /// It goes on: all it waited for is there.
    pub fn resume(&mut self, now: Nanos) -> Option<(Nanos, Wait)> {
        let (since, why) = self.wait.take()?;
        self.anchor += now - since;
        Some((since, why))
    }

    fn due(&self) -> Nanos {
        if self.all_leaves == 0 {
            return self.anchor + self.time;
        }
        let share = u128::from(self.time.0) * u128::from(self.done_leaves);
        self.anchor + Nanos((share / u128::from(self.all_leaves)) as u64)
    }

    /// Its last access is on the host and lasts so long.
    pub fn uses_on_host_until(&mut self, until: Nanos) {
        self.on_host_until = until;
    }

    /// Runs until `until`, or until something becomes of it. Touches what it comes by.
    pub fn advance(
        &mut self,
        model: &mut Model<'_>,
        accesses: &[Access],
        until: Nanos,
    ) -> Option<(Nanos, Next)> {
        if self.wait.is_some() {
            return None;
        }
        while let Some(access) = accesses.get(self.next) {
            let due = self.at(model, until)?;
            let touched = model.touch(access);
            if touched == Touched::Missing {
                return Some((due, Next::Miss(access.block)));
            }
            self.next += 1;
            self.done_leaves += u64::from(access.leaves.count());
            if touched == Touched::OnHost {
                return Some((due, Next::OnHost(self.next - 1)));
            }
        }
        let end = self.at(model, until)?;
        Some((end, Next::End))
    }

    /// When the next access is due, or the launch over, if that is by `until`: not before its
    /// last access has ended.
    fn at(&mut self, model: &mut Model<'_>, until: Nanos) -> Option<Nanos> {
        let due = self.due();
        let at = due.max(self.on_host_until);
        if at > until {
            return None;
        }
        if at > due {
            self.anchor += at - due;
            model.totals.stall += at - due;
            if let Some(timeline) = &mut model.timeline {
                timeline.stall(Stall::OnHost, due, at);
            }
        }
        Some(at)
    }
}

/// What a launch finds where it touches parts of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Touched {
    /// All of them are on the device.
    There,
    /// Some of them are to be used on the host.
    OnHost,
    /// Some of them are missing.
    Missing,
}

impl Model<'_> {
    /// A launch touches parts of a block. Where they are on the device it uses them.
    fn touch(&mut self, access: &Access) -> Touched {
        let there = self.lacks(access.block, access.leaves).is_empty();
        if !there && self.under_way(access.block) {
            return Touched::Missing;
        }
        let state = self.blocks.get_mut(access.block);
        if !there && !state.stays {
            return Touched::Missing;
        }
        if state.unused > 0 && !(state.device & access.leaves).is_empty() {
            let bytes = u64::from(std::mem::take(&mut state.unused));
            self.totals.prefetch_useful += bytes;
        }
        if !there {
            return Touched::OnHost;
        }
        self.use_content(access);
        Touched::There
    }

    /// A launch or the CPU reads or writes content.
    pub(super) fn use_content(&mut self, access: &Access) {
        let written = self.program.written(access);
        let state = self.blocks.get_mut(access.block);
        let lost = state.lost & access.leaves;
        if access.mode.writes() {
            state.alive |= written;
        }
        if lost.is_empty() {
            return;
        }
        if access.mode.needs_content() {
            self.lose(access.block, lost);
        }
        self.blocks.get_mut(access.block).lost &= !lost;
    }

    /// Whether a block's parts are under way, so that a launch waits rather than faults.
    pub(super) fn under_way(&self, block: Block) -> bool {
        let state = self.blocks.get(block);
        let moving = |lane: &super::Lane| {
            lane.current
                .is_some_and(|current| current.transfer.block == block)
        };
        match state.frame {
            Frame::Incoming => true,
            Frame::Outgoing => true,
            Frame::Held => moving(&self.lane_in),
            Frame::None => false,
        }
    }

    /// The parts of a block that `leaves` lacks on the device.
    pub(super) fn lacks(&self, block: Block, leaves: Leaves) -> Leaves {
        leaves.minus(self.blocks.get(block).device)
    }
}
