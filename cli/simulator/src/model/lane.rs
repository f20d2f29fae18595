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
    rate: u64,
}

impl Current {
    /// The rate at which it moves.
    pub fn rate(&self) -> Rate {
        Rate(self.rate)
    }

    /// It stands still for so long.
    pub fn hold_up(&mut self, time: Nanos) {
        self.end += time;
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
    /// It had work but no share of the joint rate.
    waiting: bool,
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
            waiting: false,
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

    /// The rate that a transfer beginning now gets, given what the `other` direction does
    /// and the cap on both; none where it has to wait for the other.
    pub fn share(&mut self, other: &Lane, total: Option<Rate>) -> Option<Rate> {
        let Some(total) = total else {
            return Some(self.rate);
        };
        let half = total.0 / 2;
        let accesses = other.accesses.map_or(0, |(_, rate)| rate.0);
        let others = other.current.map_or(accesses, |current| current.rate);
        let fair = if other.waiting { half } else { total.0 };
        let rate = self.rate.0.min(fair).min(total.0.saturating_sub(others));
        self.waiting = rate < half.min(self.rate.0);
        (!self.waiting).then_some(Rate(rate))
    }

    /// Begins to move something.
    pub fn begin(&mut self, transfer: Transfer, now: Nanos, extra: Nanos, rate: Rate) {
        self.current = Some(Current {
            transfer,
            start: now,
            end: now + extra + rate.time(transfer.leaves.bytes()),
            rate: rate.0,
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
