//! DeepUM+: DeepUM with perfect prediction, as the G10 paper compares with.
//!
//! Zhang et al., MICRO'23, section 7.1, and the public artifact (commit de2c8c6,
//! `analysis.cc`, `simulationComponents.cc`): at the start of launch i the exact operands of
//! launch i + 8 are prefetched, born ones populated; room for them is made of the oldest
//! blocks that launches i to i + 7 do not use, and where there is none the prefetch stalls;
//! a fault evicts the oldest block whatever the window says; dead content is dropped.
//!
//! Choices: content that dies and is born anew at the same place within the window (the
//! artifact reuses no address) is populated by a fault; arrivals alone order the blocks, so operands that are there already are not
//! touched; under nvidia-uvm's rules dead content is dropped when it dies, and room is made
//! ahead for all that was asked for. On the `g10` machine it is as in the artifact: content
//! that is dead or not born yet is dropped when it is the oldest, a victim leaves only when
//! what takes its place comes, and what the running launch loses comes back before its end.

use std::collections::{HashMap, VecDeque};

use crate::class::{Desk, DriverNotice, Future, FutureNotice, FuturePolicy, Ticket, Victim};
use crate::machine::{Machine, Rules};
use crate::model::{Place, Room};
use crate::trace::{Block, Launch, Piece, Program};

use super::{Entry, Make};

pub(super) const ENTRY: Entry = Entry {
    name: "deepum-plus",
    about: "DeepUM with perfect prediction, 8 launches ahead (the G10 paper's DeepUM+)",
    make: Make::Future(make),
};

fn make<'p>(machine: &Machine, future: Future<'p>) -> Box<dyn FuturePolicy + 'p> {
    let mut policy = DeepUmPlus::new(future.program);
    policy.artifact = machine.rules == Rules::G10;
    Box::new(policy)
}

/// Launches of look-ahead (`prefetch_degree`).
const DEGREE: u32 = 8;
/// Victims looked up at once.
const CANDIDATES: usize = 256;

struct DeepUmPlus<'p> {
    program: &'p Program,
    /// How many launches of the window use each block.
    window: Vec<u16>,
    /// The window's end: the first launch that is not counted.
    window_end: u32,
    /// The first launch that was not prefetched for.
    ahead: u32,
    /// Asked for and without a frame.
    waiting: Vec<bool>,
    waiting_count: u32,
    coming: HashMap<Ticket, Vec<Block>>,
    /// Being evicted by our order.
    leaving: Vec<bool>,
    leaving_count: u32,
    going: HashMap<Ticket, Vec<Block>>,
    candidates: VecDeque<Block>,
    /// The window leaves no victim until it moves.
    stalled: bool,
    pieces: Vec<Piece>,
    blocks: Vec<Block>,
    /// The artifact's rules: a victim leaves when what takes its place comes, not before.
    artifact: bool,
}

impl<'p> DeepUmPlus<'p> {
    fn new(program: &'p Program) -> Self {
        Self {
            program,
            window: vec![0; program.blocks()],
            window_end: 0,
            ahead: 0,
            waiting: vec![false; program.blocks()],
            waiting_count: 0,
            coming: HashMap::new(),
            leaving: vec![false; program.blocks()],
            leaving_count: 0,
            going: HashMap::new(),
            candidates: VecDeque::new(),
            stalled: false,
            pieces: Vec::new(),
            blocks: Vec::new(),
            artifact: false,
        }
    }

    fn starting(&mut self, launch: u32, desk: &mut Desk<'_>) {
        let launches = self.program.launches().len() as u32;
        while self.window_end < (launch + DEGREE).min(launches) {
            for access in self.program.accesses(Launch(self.window_end)) {
                self.window[access.block.index()] += 1;
            }
            self.window_end += 1;
        }
        self.candidates.clear();
        self.stalled = false;
        self.ahead = self.ahead.max((launch + DEGREE).min(launches));
        while self.ahead <= launch + DEGREE && self.ahead < launches {
            if self.artifact {
                self.ask(Launch(self.ahead), desk);
            } else {
                self.prefetch(Launch(self.ahead), desk);
            }
            self.ahead += 1;
        }
        self.make_room(desk);
    }

    /// Asks for all that a launch lacks, part by part, as the artifact does page by page.
    fn ask(&mut self, launch: Launch, desk: &mut Desk<'_>) {
        self.pieces.clear();
        self.blocks.clear();
        for access in self.program.accesses(launch) {
            let block = access.block;
            let lacking = access.leaves.minus(desk.resident(block));
            let away = desk.missing(block);
            if desk.place(block) == Place::Outgoing || !(away & lacking).is_empty() {
                self.blocks.push(block);
            }
            let leaves = lacking.minus(away);
            if !leaves.is_empty() {
                self.pieces.push(Piece { block, leaves });
            }
        }
        desk.populate(&self.pieces, Room::Take);
        desk.prefetch(&self.blocks, Room::Take);
    }

    fn prefetch(&mut self, launch: Launch, desk: &mut Desk<'_>) {
        self.pieces.clear();
        self.blocks.clear();
        for access in self.program.accesses(launch) {
            let (block, waiting) = (access.block, &mut self.waiting[access.block.index()]);
            if *waiting {
                continue;
            }
            let piece = Piece {
                block,
                leaves: access.leaves,
            };
            match desk.place(block) {
                Place::Incoming => continue,
                Place::Device if desk.resident(block).covers(access.leaves) => continue,
                Place::Device if desk.missing(block).is_empty() => self.pieces.push(piece),
                Place::Device => self.blocks.push(block),
                Place::Unpopulated => {
                    self.pieces.push(piece);
                    *waiting = true;
                }
                Place::Host | Place::Outgoing => {
                    self.blocks.push(block);
                    *waiting = true;
                }
            }
        }
        let (waiting, count) = (&self.waiting, &mut self.waiting_count);
        let mut remember = |ticket, blocks: &mut dyn Iterator<Item = Block>| {
            let blocks: Vec<Block> = blocks.filter(|block| waiting[block.index()]).collect();
            *count += blocks.len() as u32;
            self.coming.insert(ticket, blocks);
        };
        if !self.pieces.is_empty() {
            let ticket = desk.populate(&self.pieces, Room::Wait);
            remember(ticket, &mut self.pieces.iter().map(|piece| piece.block));
        }
        if !self.blocks.is_empty() {
            let ticket = desk.prefetch(&self.blocks, Room::Wait);
            remember(ticket, &mut self.blocks.iter().copied());
        }
    }

    /// Orders out as many blocks as there are waiting ones without a frame in sight.
    fn make_room(&mut self, desk: &mut Desk<'_>) {
        if self.stalled || self.artifact {
            return;
        }
        let mut victims = Vec::new();
        while desk.free() + self.leaving_count < self.waiting_count {
            let Some(victim) = self.next_victim(desk) else {
                self.stalled = true;
                break;
            };
            self.leaving[victim.index()] = true;
            self.leaving_count += 1;
            victims.push(victim);
        }
        if !victims.is_empty() {
            let ticket = desk.evict(&victims);
            self.going.insert(ticket, victims);
        }
    }

    fn next_victim(&mut self, desk: &Desk<'_>) -> Option<Block> {
        for refill in [false, true] {
            if refill {
                let (window, leaving) = (&self.window, &self.leaving);
                let free = |block: &Block| window[block.index()] == 0 && !leaving[block.index()];
                self.candidates
                    .extend(desk.oldest().filter(free).take(CANDIDATES));
            }
            while let Some(block) = self.candidates.pop_front() {
                if !self.leaving[block.index()] && desk.place(block) == Place::Device {
                    return Some(block);
                }
            }
        }
        None
    }

    fn has_frame(&mut self, block: Block) {
        if std::mem::take(&mut self.waiting[block.index()]) {
            self.waiting_count -= 1;
        }
    }

    fn left(&mut self, block: Block) {
        if std::mem::take(&mut self.leaving[block.index()]) {
            self.leaving_count -= 1;
        }
    }

    fn driver(&mut self, notice: DriverNotice<'_>, desk: &mut Desk<'_>) {
        match notice {
            DriverNotice::Arrived { block, .. } => self.has_frame(block),
            DriverNotice::Evicted { block, .. } => self.left(block),
            DriverNotice::Done(ticket) => {
                for block in self.coming.remove(&ticket).unwrap_or_default() {
                    self.has_frame(block);
                }
                for block in self.going.remove(&ticket).unwrap_or_default() {
                    self.left(block);
                }
            }
            _ => return,
        }
        self.make_room(desk);
    }
}

impl FuturePolicy for DeepUmPlus<'_> {
    fn notice(&mut self, notice: FutureNotice<'_>, desk: &mut Desk<'_>) {
        match notice {
            FutureNotice::Begin => {
                desk.set_density(false);
                desk.drop_unwritten();
                desk.bring_back();
            }
            FutureNotice::Starting(launch) => self.starting(launch.0, desk),
            FutureNotice::Finished(launch) => {
                for access in self.program.accesses(launch) {
                    self.window[access.block.index()] -= 1;
                }
            }
            FutureNotice::Dead(pieces) => desk.discard(pieces),
            FutureNotice::Driver(notice) => self.driver(notice, desk),
        }
    }

    fn victim_of_prefetch(&mut self, desk: &Desk<'_>) -> Victim {
        if self.stalled {
            return Victim::Nobody;
        }
        match self.next_victim(desk) {
            Some(block) => Victim::Block(block),
            None => {
                self.stalled = true;
                Victim::Nobody
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::checks::{contract, outcome};
    use crate::policy::samples::Training;

    #[test]
    fn keeps_the_contract() {
        contract(&ENTRY);
    }

    #[test]
    fn operands_are_there_before_their_launch_where_the_link_can_bring_them() {
        // 5 ms of launch for blocks of 0.1 ms, and a window of 8 launches that fits.
        let training = Training {
            layers: 24,
            launch_us: 5_000,
            ..Training::SMALL
        };
        let run = outcome(&training.program(), &ENTRY, 100);
        let last = run.iterations[2];
        assert!(last.totals.bytes_in > 0);
        // What dies in the window and is born again in it faults.
        assert_eq!(last.totals.bytes_in, last.totals.prefetch_useful);
        assert!(last.time.0 < last.ideal.0 + last.ideal.0 / 20);
    }

    #[test]
    fn a_window_larger_than_the_device_stalls_prefetch_and_still_ends() {
        let run = outcome(&Training::SMALL.program(), &ENTRY, 16);
        assert!(run.iterations[2].totals.bytes_in > 0);
    }
}
