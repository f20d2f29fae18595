//! Content that launches use where it lies, on the host.
//!
//! What a policy has told so ([`super::Desk::use_on_host`]) the driver leaves on the host
//! (preferred location the CPU, accessed by the device: `block_select_processor_residency`,
//! uvm_va_block.c, 580). A launch then reads and writes what it uses of it over the link, with
//! no fault, no frame, and no copy; what is on the device is used there. The bytes take the
//! link from copies of the same direction: one under way is held up for as long. An access
//! lasts until its bytes have come, and the launch's next access begins no earlier; what the
//! launch computes between the two goes on meanwhile.

use crate::timeline::{Cause, Direction};
use crate::trace::{Access, Block};
use crate::units::{Leaves, Nanos, Rate};

use super::Model;

impl Model<'_> {
    /// From now on launches use a block where it lies, or no longer.
    pub(super) fn stay(&mut self, block: Block, stays: bool) {
        let state = self.blocks.get_mut(block);
        state.stays = stays && state.allocated;
    }

    /// What a launch needs of a block that is neither on the device nor used on the host.
    pub(super) fn faults_on(&self, access: &Access) -> Leaves {
        if self.blocks.get(access.block).stays {
            return Leaves::NONE;
        }
        self.lacks(access.block, access.leaves)
    }

    /// The running launch uses parts of a block on the host, from now until the moment
    /// returned.
    pub(super) fn use_on_host(&mut self, access: &Access) -> Nanos {
        let state = self.blocks.get_mut(access.block);
        let there = access.leaves.minus(state.device);
        let content = there & state.populated;
        let fresh = there.minus(state.populated);
        state.populated |= fresh;
        self.host_bytes += fresh.bytes();
        self.use_content(access);
        if !self.program.is_indexed(access.block) {
            self.totals.host_unindexed += access.used_bytes(there);
        }
        let mut until = self.now;
        if access.mode.needs_content() {
            until = self.over_link(Direction::In, access.used_bytes(content), self.now);
        }
        if access.mode.writes() {
            let (one, other) = (self.accesses(Direction::In), self.accesses(Direction::Out));
            let both = one.0.saturating_add(other.0);
            // Under a joint cap the two take turns.
            let turns = self.machine.link_total.is_some_and(|total| both > total.0);
            let start = if turns { until } else { self.now };
            let written = self.over_link(Direction::Out, access.used_bytes(there), start);
            until = until.max(written);
        }
        until
    }

    /// The rate at which the device's accesses go over the link.
    fn accesses(&self, direction: Direction) -> Rate {
        let rate = match direction {
            Direction::In => self.machine.link_in,
            Direction::Out => self.machine.link_out,
        };
        let rate = rate.min(self.machine.link_total.unwrap_or(rate));
        let share = u128::from(rate.0) * u128::from(self.machine.access_percent) / 100;
        Rate(share as u64)
    }

    /// The device reads or writes so many bytes over the link, from `start` on; when that ends.
    fn over_link(&mut self, direction: Direction, bytes: u64, start: Nanos) -> Nanos {
        if bytes == 0 {
            return start;
        }
        let mut rate = self.accesses(direction);
        let total = self.machine.link_total;
        let (own, other) = match direction {
            Direction::In => (&mut self.lane_in, &mut self.lane_out),
            Direction::Out => (&mut self.lane_out, &mut self.lane_in),
        };
        if let Some(current) = &mut own.current {
            rate = rate.min(current.rate());
            current.hold_up(rate.time(bytes));
        } else if let Some(current) = &mut other.current
            && total.is_some_and(|total| current.rate().0 + rate.0 > total.0)
        {
            current.hold_up(rate.time(bytes));
        }
        let end = start + rate.time(bytes);
        if own.current.is_none() {
            own.accesses = Some((end, rate));
        }
        let sum = match direction {
            Direction::In => &mut self.totals.host_read,
            Direction::Out => &mut self.totals.host_written,
        };
        *sum += bytes;
        if let Some(timeline) = &mut self.timeline {
            timeline.transfer(direction, Cause::Access, bytes, start, end);
        }
        end
    }
}
