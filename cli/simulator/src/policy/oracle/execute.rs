//! Carries a plan out: gives the orders, in order of need, as the device comes along.

use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::rc::Rc;

use super::plan::{Item, Plan};
use super::progress::Progress;
use super::uses::{NEVER, Uses};
use crate::class::{Desk, DriverNotice, FutureNotice, FuturePolicy, Ticket};
use crate::model::{Place, Room};
use crate::trace::{Block, Piece};
use crate::units::{Leaves, Nanos};

/// Blocks with content that one call moves: enough to make its cost small.
const CALL_TRANSFERS: u32 = 32;
/// Blocks of one prefetch call.
const CALL_BLOCKS: usize = 64;
/// Calls of each direction that are open at once.
const CALLS: usize = 2;
/// Frames that no prefetch takes, so that a fault need not evict.
const SPARE: u32 = 2;
/// Blocks that are asked for before their frames are free: no more than are being evicted. So
/// the way in goes on as soon as the way out has made room.
const EARLY: u32 = 64;

/// When a block leaves that the plan lets go.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::policy) enum When {
    /// As soon as the device is done with it.
    Early,
    /// When what takes its frame is brought, at most so many missing blocks ahead.
    Late(u32),
}

/// Whether a block is to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leaving {
    /// It stays.
    No,
    /// It goes when the link has time for it, unless it is needed before.
    Waits,
    /// It has been ordered out.
    Ordered,
}

/// Whether an item can be brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    /// Its block is there, because it never went.
    There,
    /// Now.
    Now,
    /// Not yet.
    Later,
}

/// Executes one plan.
pub(in crate::policy) struct Executor {
    uses: Rc<Uses>,
    plan: Rc<Plan>,
    when: When,
    progress: Progress,
    /// Uses up to here have been looked at for blocks that leave.
    swept: u32,
    /// The next item to bring.
    item: usize,
    /// Items before it that the device has not come to: their uses.
    ahead: VecDeque<u32>,
    open: Vec<(Ticket, Vec<Block>)>,
    /// By block: ordered in, not arrived.
    coming: Vec<bool>,
    /// How many.
    orders: u32,
    /// Blocks of calls that are over: those that were there already did not arrive.
    over: Vec<Block>,
    /// When the last of these calls was over.
    over_at: Nanos,
    /// By block: whether it is to go.
    leaving: Vec<Leaving>,
    /// Blocks that are to go: next use, last use. The one needed last goes first.
    out: BinaryHeap<(u32, u32)>,
    out_open: Vec<Ticket>,
    /// Blocks that were ordered out and have not left.
    going: u32,
    /// By block: its next use.
    next: Vec<u32>,
    /// Blocks of which parts are missing although they should be there.
    mend: Vec<Block>,
    /// Blocks that the driver left in part on the host.
    again: Vec<Block>,
    /// Uses whose block has gone although the plan keeps it.
    extra: BTreeSet<u32>,
    /// Blocks that stay: next use, last use; stale where the block has been used since.
    stay: BinaryHeap<(u32, u32)>,
}

impl Executor {
    pub fn new(uses: Rc<Uses>, plan: Rc<Plan>, when: When) -> Self {
        let blocks = uses.blocks();
        let mut next = vec![NEVER; blocks];
        for at in (0..uses.len()).rev() {
            next[uses.get(at).block.index()] = at;
        }
        Self {
            uses,
            plan,
            when,
            progress: Progress::default(),
            swept: 0,
            item: 0,
            ahead: VecDeque::new(),
            open: Vec::new(),
            coming: vec![false; blocks],
            orders: 0,
            over: Vec::new(),
            over_at: Nanos::NEVER,
            leaving: vec![Leaving::No; blocks],
            out: BinaryHeap::new(),
            out_open: Vec::new(),
            going: 0,
            next,
            mend: Vec::new(),
            again: Vec::new(),
            extra: BTreeSet::new(),
            stay: BinaryHeap::new(),
        }
    }

    fn act(&mut self, desk: &mut Desk<'_>) {
        self.progress.advance(&self.uses, desk, &self.coming);
        while self.swept < self.progress.passed {
            let used = self.uses.get(self.swept);
            self.next[used.block.index()] = used.next;
            let leaving = &mut self.leaving[used.block.index()];
            if *leaving == Leaving::Waits {
                // Used again before it went.
                *leaving = Leaving::No;
            }
            if self.plan.leaves_after(self.swept)
                && (self.when == When::Early || used.cut || used.after.is_empty())
            {
                self.release(self.swept, desk);
            } else {
                self.stay.push((used.next, self.swept));
            }
            self.swept += 1;
        }
        if self.stay.len() > 4 * desk.capacity() as usize + 64 {
            let (uses, next) = (&self.uses, &self.next);
            self.stay
                .retain(|(use_next, at)| next[uses.get(*at).block.index()] == *use_next);
        }
        while self
            .ahead
            .front()
            .is_some_and(|at| *at < self.progress.passed)
        {
            self.ahead.pop_front();
        }
        while self.open.len() < CALLS && self.call(desk) {}
        while self.out_open.len() < CALLS && self.evict(desk) {}
    }

    /// One eviction call; false where nothing has to go.
    fn evict(&mut self, desk: &mut Desk<'_>) -> bool {
        let mut blocks = Vec::new();
        while blocks.len() < CALL_TRANSFERS as usize
            && let Some((next, at)) = self.out.pop()
        {
            let block = self.uses.get(at).block;
            let leaving = &mut self.leaving[block.index()];
            if *leaving == Leaving::Waits && self.next[block.index()] == next {
                *leaving = Leaving::Ordered;
                blocks.push(block);
            }
        }
        if blocks.is_empty() {
            return false;
        }
        self.going += blocks.len() as u32;
        self.out_open.push(desk.evict(&blocks));
        true
    }

    /// The block leaves after this use: what is not needed again is dropped.
    fn release(&mut self, at: u32, desk: &mut Desk<'_>) {
        let used = self.uses.get(at);
        let (block, needed) = (used.block, used.after);
        if used.next < self.progress.end {
            return;
        }
        desk.discard(&[Piece {
            block,
            leaves: !needed,
        }]);
        if !(desk.resident(block) & needed).is_empty() {
            self.leaving[block.index()] = Leaving::Waits;
            self.out.push((used.next, at));
        }
    }

    /// One prefetch call; false where nothing can be brought now.
    fn call(&mut self, desk: &mut Desk<'_>) -> bool {
        if !self.mend.is_empty() {
            let pieces: Vec<Piece> = std::mem::take(&mut self.mend)
                .into_iter()
                .filter(|block| desk.place(*block) == Place::Device)
                .map(|block| Piece {
                    block,
                    leaves: Leaves::ALL,
                })
                .collect();
            if !pieces.is_empty() {
                let ticket = desk.populate(&pieces, Room::Wait);
                self.open.push((ticket, Vec::new()));
                return true;
            }
        }
        let mut blocks: Vec<Block> = std::mem::take(&mut self.again);
        blocks.retain(|block| desk.place(*block) == Place::Host);
        let mut transfers = blocks.len() as u32;
        let spare = SPARE.min(desk.capacity() / 8);
        let coming_free = self.going.min(EARLY);
        let mut room = (desk.free() + coming_free).saturating_sub(self.orders + transfers + spare);
        while transfers < CALL_TRANSFERS && blocks.len() < CALL_BLOCKS {
            let Some(item) = self.due() else {
                break;
            };
            // What the running launch needs is not held back.
            if room == 0 {
                if item.at >= self.progress.near(&self.uses) {
                    break;
                }
                self.relieve(item.at, desk);
            }
            if let When::Late(most) = self.when
                && self.ahead.len() >= most as usize
            {
                break;
            }
            if item.at < self.progress.passed {
                // Came by fault meanwhile.
                self.done(item);
                continue;
            }
            let used = *self.uses.get(item.at);
            let block = used.block;
            match self.turn(block, item.at, desk) {
                Turn::Later => break,
                Turn::Now => {}
                Turn::There => {
                    self.done(item);
                    if !desk.resident(block).covers(used.touched) {
                        self.mend.push(block);
                    }
                    continue;
                }
            }
            if self.when != When::Early && item.victim != NEVER {
                if item.victim >= self.progress.passed {
                    break;
                }
                let victim = self.uses.get(item.victim);
                if !victim.after.is_empty() && !victim.cut {
                    self.release(item.victim, desk);
                }
            }
            self.done(item);
            self.ahead.push_back(item.at);
            if item.at >= self.progress.end {
                desk.discard(&[Piece {
                    block,
                    leaves: !used.before,
                }]);
            }
            transfers += u32::from(!desk.missing(block).is_empty());
            blocks.push(block);
            room = room.saturating_sub(1);
        }
        for block in &blocks {
            if !std::mem::replace(&mut self.coming[block.index()], true) {
                self.orders += 1;
            }
        }
        if blocks.is_empty() {
            return false;
        }
        let ticket = desk.prefetch(&blocks, Room::Wait);
        self.open.push((ticket, blocks));
        true
    }

    /// The next item: of the plan, or what went against it.
    fn due(&self) -> Option<Item> {
        let planned = self.plan.items.get(self.item).copied();
        let extra = self.extra.first().copied();
        match (planned, extra) {
            (Some(item), Some(at)) if item.at <= at => Some(item),
            (_, Some(at)) => Some(Item { at, victim: NEVER }),
            (planned, None) => planned,
        }
    }

    fn done(&mut self, item: Item) {
        if !self.extra.remove(&item.at) {
            self.item += 1;
        }
    }

    /// No frame is free and none is about to be: lets go what is needed last, where that
    /// is later than what is waiting.
    fn relieve(&mut self, at: u32, desk: &mut Desk<'_>) {
        if !self.out.is_empty() || !self.out_open.is_empty() || self.when != When::Early {
            return;
        }
        for _ in 0..CALL_TRANSFERS {
            match self.furthest(desk) {
                Some((next, last)) if next > at => {
                    self.leaving[self.uses.get(last).block.index()] = Leaving::Waits;
                    self.out.push((next, last));
                }
                Some(entry) => {
                    self.stay.push(entry);
                    break;
                }
                None => break,
            }
        }
    }

    /// Of the blocks that stay on the device, the one that is needed last; taken out.
    fn furthest(&mut self, desk: &Desk<'_>) -> Option<(u32, u32)> {
        while let Some((next, last)) = self.stay.pop() {
            let block = self.uses.get(last).block;
            if self.next[block.index()] == next
                && self.leaving[block.index()] == Leaving::No
                && desk.place(block) == Place::Device
            {
                return Some((next, last));
            }
        }
        None
    }

    /// Whether the block can be brought for its use at `at`: it exists, and is not there
    /// still from before.
    fn turn(&mut self, block: Block, at: u32, desk: &Desk<'_>) -> Turn {
        let used = self.uses.get(at);
        if desk.block_at(desk.address(block)).is_none()
            || (used.fresh && self.uses.barrier(at) > self.progress.launch)
            || self.next[block.index()] != at
        {
            return Turn::Later;
        }
        let leaving = &mut self.leaving[block.index()];
        match *leaving {
            // By fault, meanwhile.
            Leaving::No if desk.resident(block).covers(used.touched) => Turn::There,
            Leaving::No => Turn::Now,
            Leaving::Waits if used.fresh => Turn::Later,
            Leaving::Waits => {
                *leaving = Leaving::No;
                Turn::There
            }
            Leaving::Ordered if self.out_open.is_empty() => {
                *leaving = Leaving::No;
                Turn::Now
            }
            Leaving::Ordered => Turn::Later,
        }
    }
}

impl FuturePolicy for Executor {
    fn notice(&mut self, notice: FutureNotice<'_>, desk: &mut Desk<'_>) {
        if self.over_at < desk.now() {
            for block in self.over.drain(..) {
                self.orders -= u32::from(std::mem::take(&mut self.coming[block.index()]));
            }
            self.over_at = Nanos::NEVER;
        }
        match notice {
            FutureNotice::Begin => desk.set_density(false),
            FutureNotice::Starting(launch) => {
                self.progress.start(launch, &self.uses, desk.now());
            }
            FutureNotice::Finished(launch) => self.progress.finish(launch, &self.uses),
            FutureNotice::Dead(_) => return,
            FutureNotice::Driver(notice) => match notice {
                DriverNotice::Arrived { block, .. } => {
                    self.progress.advance(&self.uses, desk, &self.coming);
                    self.orders -= u32::from(std::mem::take(&mut self.coming[block.index()]));
                    if !desk.missing(block).is_empty() {
                        self.again.push(block);
                    } else if desk.resident(block) != Leaves::ALL {
                        self.mend.push(block);
                    }
                }
                DriverNotice::Evicted { block, .. } => {
                    if self.leaving[block.index()] == Leaving::Ordered {
                        self.going = self.going.saturating_sub(1);
                    }
                    self.leaving[block.index()] = Leaving::No;
                    let next = self.next[block.index()];
                    if next != NEVER && !self.plan.brings(next) {
                        self.extra.insert(next);
                    }
                }
                DriverNotice::Done(ticket) => {
                    if let Some(at) = self.open.iter().position(|(open, _)| *open == ticket) {
                        self.over.append(&mut self.open.swap_remove(at).1);
                        self.over_at = desk.now();
                    }
                    self.out_open.retain(|open| *open != ticket);
                    if self.out_open.is_empty() {
                        // Those that were gone already did not leave again.
                        self.going = 0;
                    }
                }
                DriverNotice::Wake => self.progress.wake(),
                DriverNotice::Faults(batch) => {
                    self.progress.advance(&self.uses, desk, &self.coming);
                    self.progress.fault(batch, desk);
                }
                DriverNotice::Alloc(_) | DriverNotice::Free(_) | DriverNotice::HostFault(_) => {}
            },
        }
        self.act(desk);
    }

    /// For a fault that finds no frame: what is about to leave anyway, else what is needed
    /// last.
    fn victim(&mut self, desk: &Desk<'_>) -> Option<Block> {
        let mut leaving = None;
        while leaving.is_none()
            && let Some((next, at)) = self.out.pop()
        {
            let block = self.uses.get(at).block;
            leaving = Some(block).filter(|block| {
                self.leaving[block.index()] == Leaving::Waits
                    && self.next[block.index()] == next
                    && desk.place(*block) == Place::Device
            });
        }
        leaving.or_else(|| {
            let (_, last) = self.furthest(desk)?;
            Some(self.uses.get(last).block)
        })
    }
}
