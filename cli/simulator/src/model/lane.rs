//! One direction of the link: what it moves now, what is urgent, and what was ordered.

use std::collections::VecDeque;

use crate::class::Ticket;
use crate::trace::Block;
use crate::units::{Leaves, Nanos, Rate};

use super::Room;

/// Why something moves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Why {
    /// A kernel waits for it.
    Fault,
    /// The CPU waits for it.
    HostFault,
    /// The policy ordered it.
    Order(Ticket),
    /// The driver needs the frame.
    Room,
}

/// A transfer of parts of one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub block: Block,
    pub leaves: Leaves,
    pub why: Why,
}

/// What an order wants of one block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Want {
    /// Bring its content to the device.
    Prefetch(Room),
    /// Give these parts pages on the device without a transfer.
    Populate(Leaves, Room),
    /// Bring its content to the host.
    Evict,
    /// Bring its content to the SSD, where there is one.
    EvictDeep,
}

/// One block's part of an order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub block: Block,
    pub want: Want,
    pub ticket: Ticket,
    /// The first of its call: pays the call's cost.
    pub first: bool,
    /// Counted as queued.
    pub bytes: u64,
    /// Parts of the block that it queues; only the `g10` machine's rules tell them apart.
    pub parts: Leaves,
}

/// What is being moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Current {
    pub transfer: Transfer,
    pub start: Nanos,
    pub end: Nanos,
    rate: Rate,
    /// What it moves at with no joint cap.
    alone: Rate,
}

impl Current {
    /// The rate at which it moves.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// It stands still for so long.
    pub fn hold_up(&mut self, time: Nanos) {
        self.end += time;
    }

    /// What is left of it moves at this rate.
    fn go_on_at(&mut self, rate: Rate, now: Nanos) {
        if rate == self.rate {
            return;
        }
        let left = u128::from(self.end.0.saturating_sub(now.0));
        let left = (left * u128::from(self.rate.0)).div_ceil(u128::from(rate.0.max(1)));
        self.end = Nanos(
            now.0
                .saturating_add(u64::try_from(left).unwrap_or(u64::MAX)),
        );
        self.rate = rate;
    }
}

/// One direction.
#[derive(Debug)]
pub(super) struct Lane {
    rate: Rate,
    pub urgent: VecDeque<Transfer>,
    pub orders: VecDeque<Order>,
    pub current: Option<Current>,
    pub queued_bytes: u64,
    /// The device's own accesses take it, until when and at what rate, with nothing else moving.
    pub accesses: Option<(Nanos, Rate)>,
}

impl Lane {
    pub fn new(rate: Rate) -> Self {
        Self {
            rate,
            urgent: VecDeque::new(),
            orders: VecDeque::new(),
            current: None,
            queued_bytes: 0,
            accesses: None,
        }
    }

    /// Whether a transfer can begin.
    pub fn is_free(&self) -> bool {
        self.current.is_none() && self.accesses.is_none()
    }

    /// When something becomes of it next.
    pub fn moment(&self) -> Nanos {
        let accesses = self.accesses.map_or(Nanos::NEVER, |(end, _)| end);
        accesses.min(self.end())
    }

    /// Accesses that have ended by now take it no longer.
    pub fn forget_accesses(&mut self, now: Nanos) {
        if self.accesses.is_some_and(|(end, _)| end <= now) {
            self.accesses = None;
        }
    }

    /// When what it moves now has arrived.
    pub fn end(&self) -> Nanos {
        self.current.map_or(Nanos::NEVER, |current| current.end)
    }

    /// The rate of a transfer that begins now, alone, under a joint cap of `total`; none where it
    /// waits for the device's accesses in the `other` direction, which leave less than half.
    pub fn share(&self, other: &Lane, total: Option<Rate>) -> Option<Rate> {
        let Some(total) = total else {
            return Some(self.rate);
        };
        let accesses = other.accesses.map_or(0, |(_, rate)| rate.0);
        let rate = self.rate.0.min(total.0.saturating_sub(accesses));
        let waits = accesses > 0 && rate < self.rate.0.min(total.0 / 2);
        (!waits).then_some(Rate(rate))
    }

    /// What moves in both directions now shares the joint cap: each gets half of it, or all that it
    /// can use of what the other leaves.
    pub fn share_out(one: &mut Self, other: &mut Self, total: Rate, now: Nanos) {
        let half = total.0 / 2;
        // While the device's accesses take a direction, the other one goes on as it does.
        let alone = one.accesses.is_none() && other.accesses.is_none();
        match (&mut one.current, &mut other.current) {
            (Some(one), Some(other)) => {
                let left = total.0.saturating_sub(other.alone.0);
                let rate = one.alone.0.min(left.max(half));
                one.go_on_at(Rate(rate), now);
                let rate = other.alone.0.min(total.0 - rate);
                other.go_on_at(Rate(rate), now);
            }
            (Some(current), None) | (None, Some(current)) if alone => {
                current.go_on_at(current.alone, now);
            }
            _ => {}
        }
    }

    /// Begins to move something.
    pub fn begin(&mut self, transfer: Transfer, now: Nanos, extra: Nanos, rate: Rate) {
        self.current = Some(Current {
            transfer,
            start: now,
            end: now + extra + rate.time(transfer.leaves.bytes()),
            rate,
            alone: rate,
        });
    }

    /// Appends an order.
    pub fn push(&mut self, order: Order) {
        self.queued_bytes += order.bytes;
        self.orders.push_back(order);
    }

    /// Takes the oldest order out.
    pub fn pop(&mut self) -> Option<Order> {
        let order = self.orders.pop_front()?;
        self.queued_bytes -= order.bytes;
        Some(order)
    }
}
