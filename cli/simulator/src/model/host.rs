//! The program's own thread: issues the launches, ahead of the device, in program order.

use std::collections::VecDeque;

use crate::trace::{Launch, Span, Step};
use crate::units::Nanos;

use super::blocks::Frame;
use super::lane::Why;
use super::{Model, Note};

/// What the device finds in its queue, in order.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Launch(Launch),
    Dead(Span),
    Iteration(u32),
}

/// What the host does next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Move {
    /// Tells the policy of one step, which is carried out already.
    Told(Step),
    /// Nothing before this time, or before the device is further.
    Waits,
}

/// The host's thread.
#[derive(Debug, Default)]
pub(super) struct Host {
    at: usize,
    /// Launches issued so far.
    pub issued: u32,
    /// Of them, not finished.
    pub ahead: u32,
    /// It waits for everything issued to be finished.
    draining: bool,
    /// It waits for its own faults.
    faulting: bool,
    pub queue: VecDeque<Work>,
    /// When it can go on.
    pub time: Nanos,
}

impl Host {
    /// All steps are taken.
    pub fn over(&self, model: &Model<'_>) -> bool {
        self.at == model.program.steps().len() && !self.draining && !self.faulting
    }

    /// Takes the next step, if it can be taken now.
    pub fn step(&mut self, model: &mut Model<'_>) -> Move {
        if self.time > model.now {
            return Move::Waits;
        }
        if self.faulting {
            if model.host_waits > 0 {
                return Move::Waits;
            }
            self.faulting = false;
        }
        if self.draining {
            if self.ahead > 0 || !self.queue.is_empty() {
                return Move::Waits;
            }
            self.draining = false;
        }
        let Some(step) = model.program.steps().get(self.at).copied() else {
            return Move::Waits;
        };
        match step {
            Step::Launch(launch) => {
                let queue = model.machine.launch_queue;
                let most = model.most_ahead.map_or(queue, |held| held.min(queue));
                if self.ahead >= most.max(1) {
                    return Move::Waits;
                }
                self.ahead += 1;
                self.issued += 1;
                self.queue.push_back(Work::Launch(launch));
                self.time = model.now + model.machine.launch;
                self.draining = model.program.launch(launch).sync;
            }
            Step::Iteration(number) => self.queue.push_back(Work::Iteration(number)),
            Step::Alloc(region) => model.alloc(region),
            Step::Use(_) => {}
            Step::Unuse(_, dead) => {
                if model.lifetimes {
                    self.queue.push_back(Work::Dead(dead));
                }
            }
            Step::Free(region, _) => {
                // The driver's free waits for the device.
                if self.ahead > 0 || !self.queue.is_empty() {
                    self.draining = true;
                    return Move::Waits;
                }
                model.free(region);
            }
            Step::Host(touched) => {
                if self.ahead > 0 || !self.queue.is_empty() {
                    self.draining = true;
                    return Move::Waits;
                }
                self.fault(model, touched);
            }
        }
        self.at += 1;
        Move::Told(step)
    }

    /// The CPU touches managed memory: what is on the device comes back.
    fn fault(&mut self, model: &mut Model<'_>, touched: Span) {
        for access in model.program.host_accesses(touched) {
            let state = *model.blocks.get(access.block);
            let there = state.frame == Frame::Held && !(state.device & access.leaves).is_empty();
            if there {
                model.host_waits += 1;
                model.evict_for(access.block, Why::HostFault);
            }
            let state = model.blocks.get_mut(access.block);
            let fresh = access.leaves.minus(state.populated);
            state.populated |= fresh;
            model.host_bytes += fresh.bytes();
            if !there && !fresh.is_empty() {
                model.notes.push_back(Note::HostFault(access.block));
            }
            model.use_content(access);
        }
        self.faulting = model.host_waits > 0;
    }
}
