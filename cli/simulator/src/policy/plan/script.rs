//! Carries out a finished plan: what to evict and what to prefetch at the start of each launch.
//!
//! Births are populated ahead of their launch and dead content is dropped at once, as a
//! framework that owns its tensors does. What a plan misses is left to faults and to the
//! fallback order of eviction.

use crate::class::{Desk, FutureNotice, FuturePolicy};
use crate::model::{Place, Room};
use crate::trace::{Block, Piece, Program};

use super::{Furthest, Gaps};

/// A plan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::policy) struct Script {
    /// Launch at whose start a gap's blocks leave, and the gap's number.
    pub evictions: Vec<(u32, u32)>,
    /// Likewise, to the SSD.
    pub deep_evictions: Vec<(u32, u32)>,
    /// Launch at whose start they are asked for again, and the gap's number.
    pub prefetches: Vec<(u32, u32)>,
}

impl Script {
    /// In the order of the launches; gaps of one launch stay as they are.
    pub fn sort(&mut self) {
        self.evictions.sort_by_key(|&(launch, _)| launch);
        self.deep_evictions.sort_by_key(|&(launch, _)| launch);
        self.prefetches.sort_by_key(|&(launch, _)| launch);
    }
}

/// Which block makes room for what no plan foresaw.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::policy) enum Fallback {
    /// The driver's choice.
    Driver,
    /// The one needed last.
    Furthest,
}

/// Drops dead content and gives up the frames that hold nothing else.
pub(in crate::policy) fn drop_dead(pieces: &[Piece], desk: &mut Desk<'_>) {
    desk.discard(pieces);
    let empty =
        |block: &Block| desk.place(*block) == Place::Device && desk.resident(*block).is_empty();
    let empty: Vec<Block> = pieces
        .iter()
        .map(|piece| piece.block)
        .filter(empty)
        .collect();
    if !empty.is_empty() {
        desk.evict(&empty);
    }
}

/// Gives new content its pages: a launch ahead, and once more where the content before it has
/// died meanwhile.
pub(in crate::policy) fn populate_births(gaps: &Gaps, launch: u32, desk: &mut Desk<'_>) {
    let last = (launch + 1).min(gaps.launches() - 1);
    // Of one that is coming, other parts may have been asked for.
    let bare = |piece: &&Piece| !matches!(desk.place(piece.block), Place::Host | Place::Outgoing);
    let born: Vec<Piece> = (launch..=last)
        .flat_map(|at| gaps.births(at))
        .filter(bare)
        .copied()
        .collect();
    if !born.is_empty() {
        desk.populate(&born, Room::Take);
    }
}

/// A policy that follows a [`Script`].
pub(in crate::policy) struct Scripted<'p> {
    gaps: Gaps,
    script: Script,
    room: Room,
    furthest: Option<Furthest<'p>>,
    evicted: usize,
    evicted_deep: usize,
    prefetched: usize,
}

impl<'p> Scripted<'p> {
    /// From a sorted script over these gaps.
    pub fn new(
        program: &'p Program,
        gaps: Gaps,
        script: Script,
        room: Room,
        fallback: Fallback,
    ) -> Self {
        Self {
            gaps,
            script,
            room,
            furthest: (fallback == Fallback::Furthest).then(|| Furthest::new(program)),
            evicted: 0,
            evicted_deep: 0,
            prefetched: 0,
        }
    }

    fn starting(&mut self, launch: u32, desk: &mut Desk<'_>) {
        while let Some(&(at, gap)) = self.script.evictions.get(self.evicted)
            && at <= launch
        {
            self.evicted += 1;
            desk.evict(self.gaps.blocks(&self.gaps.list()[gap as usize]));
        }
        while let Some(&(at, gap)) = self.script.deep_evictions.get(self.evicted_deep)
            && at <= launch
        {
            self.evicted_deep += 1;
            desk.evict_deep(self.gaps.blocks(&self.gaps.list()[gap as usize]));
        }
        // New content first: the launch waits for it, and it needs no transfer.
        populate_births(&self.gaps, launch, desk);
        while let Some(&(at, gap)) = self.script.prefetches.get(self.prefetched)
            && at <= launch
        {
            self.prefetched += 1;
            let gap = &self.gaps.list()[gap as usize];
            if gap.to >= launch {
                desk.prefetch(self.gaps.blocks(gap), self.room);
            }
        }
    }
}

impl FuturePolicy for Scripted<'_> {
    fn notice(&mut self, notice: FutureNotice<'_>, desk: &mut Desk<'_>) {
        if let Some(furthest) = &mut self.furthest {
            furthest.notice(&notice);
        }
        match notice {
            FutureNotice::Starting(launch) => self.starting(launch.0, desk),
            FutureNotice::Dead(pieces) => drop_dead(pieces, desk),
            _ => {}
        }
    }

    fn victim(&mut self, desk: &Desk<'_>) -> Option<Block> {
        self.furthest.as_mut()?.victim(desk)
    }
}
