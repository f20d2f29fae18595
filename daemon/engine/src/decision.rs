//! Why: what was decided about each block, written down where it is decided.
//!
//! Owns the record alone: a ring of the newest decisions and the last one of each block.
//! Nothing is derived afterwards: whoever asks for a move names the reason, or it does not
//! compile. What a policy would do next with a block is its own word ([`Standing`]).

use std::collections::VecDeque;
use std::num::{NonZeroU32, NonZeroU64};

use crate::command::Operation;
use crate::stats::BreakerState;
use crate::table::entry;
use crate::units::{BlockId, Micros, TICKS};

/// Why a block was moved.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// Fetched: a launch needs it.
    Needed,
    /// Fetched: launches use it on the host, though nothing foretells when again.
    UsedOnHost,
    /// Fetched: it followed what faulted before.
    Correlated,
    /// Given a frame: a launch is about to write it for the first time.
    Born,
    /// Touched: it came to the device long ago, and the driver would evict it before its use.
    Kept,
    /// Evicted: too few frames are free for faults.
    Reserve,
    /// Evicted: births that come sooner than its next use need frames.
    Births,
    /// Evicted: what is fetched in its place is needed sooner.
    Exchange,
    /// Evicted: a frame is needed, and it is to be seen whether launches use it that are taken to.
    Unproven,
    /// Evicted or dropped: more is on the device than the budget allows.
    Budget,
    /// Evicted: it came to the device, or was used, longest ago.
    LeastRecent,
    /// Dropped: its content is dead, and its frame is wanted before it is born again.
    Dead,
    /// Moved out: its content is dead, but cannot be dropped here.
    Undroppable,
    /// Dropped: its content is dead and lies on the host.
    Stale,
    /// Used on the host: faults brought it again and again, though little of it is used each time or
    /// little room is missing.
    Sparse,
    /// Fetched: a part of it is on the device, and the rest would be used on the host.
    Partly,
    /// Migrates again: launches took longer while it was used on the host.
    Slower,
    /// Migrates again: memory was handed out anew there.
    Renewed,
    /// Migrates for a while: whether that is faster by now is to be seen.
    Compared,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 19] = [
        Self::Needed,
        Self::UsedOnHost,
        Self::Correlated,
        Self::Born,
        Self::Kept,
        Self::Reserve,
        Self::Births,
        Self::Exchange,
        Self::Unproven,
        Self::Budget,
        Self::LeastRecent,
        Self::Dead,
        Self::Undroppable,
        Self::Stale,
        Self::Sparse,
        Self::Partly,
        Self::Slower,
        Self::Renewed,
        Self::Compared,
    ];

    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Needed => "needed",
            Self::UsedOnHost => "used-on-host",
            Self::Correlated => "correlated",
            Self::Born => "born",
            Self::Kept => "kept",
            Self::Reserve => "reserve",
            Self::Births => "births",
            Self::Exchange => "exchange",
            Self::Unproven => "unproven",
            Self::Budget => "budget",
            Self::LeastRecent => "least-recent",
            Self::Dead => "dead",
            Self::Undroppable => "undroppable",
            Self::Stale => "stale",
            Self::Sparse => "sparse",
            Self::Partly => "partly",
            Self::Slower => "slower",
            Self::Renewed => "renewed",
            Self::Compared => "compared",
        }
    }

    /// It in words.
    pub fn about(self) -> &'static str {
        match self {
            Self::Needed => "a launch needs it",
            Self::UsedOnHost => "launches use it on the host, though nothing foretells when again",
            Self::Correlated => "it followed what faulted before",
            Self::Born => "a launch is about to write it for the first time",
            Self::Kept => "the driver would have evicted it before its next use",
            Self::Reserve => "too few frames were free for faults, and it is needed last",
            Self::Births => "births that come sooner than its next use need frames",
            Self::Exchange => "what is fetched in its place is needed sooner",
            Self::Unproven => "a frame was needed, and it was to be seen whether launches use it",
            Self::Budget => "more was on the device than the budget allows",
            Self::LeastRecent => "it came to the device, or was used, longest ago",
            Self::Dead => "its content is dead, and its frame is wanted before it is born again",
            Self::Undroppable => "its content is dead, but cannot be dropped here",
            Self::Stale => "its content is dead and lay on the host",
            Self::Sparse => {
                "faults brought it again and again: little of it is used each time, or little room \
                 is missing"
            }
            Self::Partly => "a part of it was on the device, and the rest used on the host",
            Self::Slower => "launches took longer while it was used on the host",
            Self::Renewed => "memory was handed out anew there",
            Self::Compared => "it was to be seen whether launches are faster by now if it migrates",
        }
    }
}

/// A reason, with the moment of the need that decided it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Because {
    pub reason: Reason,
    pub rival: Option<u64>,
}

impl Reason {
    /// Because of something that is needed at this moment.
    pub(crate) fn for_need(self, moment: Option<u64>) -> Because {
        Because {
            reason: self,
            rival: moment,
        }
    }
}

impl From<Reason> for Because {
    fn from(reason: Reason) -> Self {
        reason.for_need(None)
    }
}

/// What became of a command on a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fate {
    /// Fetched in time: there when it was used.
    Useful,
    /// Fetched too late: still under way when it was used.
    Late,
    /// Fetched in vain: it left again before it was used.
    Wasted,
    /// The command had no effect; the block is left alone until it is used.
    Refused,
}

impl Fate {
    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Useful => "useful",
            Self::Late => "late",
            Self::Wasted => "wasted",
            Self::Refused => "refused",
        }
    }
}

/// What is written down.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// A command was given.
    Ordered(Operation, Reason),
    /// It became known what a command came to.
    Came(Fate),
}

/// One decision, or what came of one. Launches are numbered from 1 in program order, over
/// all streams of the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// When.
    pub at: Micros,
    /// The block.
    pub block: BlockId,
    /// What.
    pub step: Step,
    /// The oldest launch that was not over then.
    pub launch: u64,
    /// The launch that was expected to use the block next; none known.
    pub next_use: Option<u64>,
    /// The launch for whose sake it was decided, where that is another one.
    pub rival_use: Option<u64>,
    /// Microseconds that the link takes for it, as measured so far.
    pub cost_us: u32,
    /// Launches of the learned cycle by which the next use is foretold; none known.
    pub cycle: Option<u64>,
    /// Whether prefetching was on.
    pub breaker: BreakerState,
}

/// Why a policy went no further than it did when it last decided.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stop {
    /// There is nothing left of the kind.
    Nothing,
    /// Everything fits: nothing has to go.
    Fits,
    /// Prefetching is off: the circuit breaker has judged that it does not help.
    Breaker,
    /// As much is prefetched as what has helped so far warrants.
    Trust,
    /// The next victim is used now, or before it would be gone.
    InUse,
    /// Enough frames are free for all that is needed sooner than the next victim.
    Enough,
    /// What would come instead of the next victim is not needed soon enough to pay for it.
    NotSoonEnough,
    /// As much is under way as may be, so that a fault need not wait long.
    LinkFull,
    /// Something is under way in the other direction.
    OtherDirection,
    /// No frame is free beyond the reserve for faults.
    NoFrame,
    /// The free frames are for blocks that are born sooner.
    FramesForBirths,
    /// The free frames are for fetches that are needed sooner.
    FramesForFetches,
    /// Too far ahead.
    Horizon,
    /// The driver evicts, not this policy.
    DriverEvicts,
    /// Launches use on the host what lies there: exchanging blocks would not make them faster.
    UsedOnHost,
}

impl Stop {
    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Fits => "fits",
            Self::Breaker => "breaker",
            Self::Trust => "trust",
            Self::InUse => "in-use",
            Self::Enough => "enough",
            Self::NotSoonEnough => "not-soon-enough",
            Self::LinkFull => "link-full",
            Self::OtherDirection => "other-direction",
            Self::NoFrame => "no-frame",
            Self::FramesForBirths => "frames-for-births",
            Self::FramesForFetches => "frames-for-fetches",
            Self::Horizon => "horizon",
            Self::DriverEvicts => "driver-evicts",
            Self::UsedOnHost => "used-on-host",
        }
    }

    /// It in words.
    pub fn about(self) -> &'static str {
        match self {
            Self::Nothing => "there was nothing left to do",
            Self::Fits => "everything fits",
            Self::Breaker => "prefetching is off: the circuit breaker judged that it does not help",
            Self::Trust => "as much is prefetched as what has helped so far warrants",
            Self::InUse => "it is used now, or before it would be gone",
            Self::Enough => "enough frames are free for all that is needed sooner",
            Self::NotSoonEnough => {
                "what would come in its place is not needed soon enough to pay for it"
            }
            Self::LinkFull => "as much is under way as may be",
            Self::OtherDirection => "something is under way in the other direction",
            Self::NoFrame => "no frame is free beyond the reserve for faults",
            Self::FramesForBirths => "the free frames are for blocks that are born sooner",
            Self::FramesForFetches => "the free frames are for fetches that are needed sooner",
            Self::Horizon => "it is too far ahead",
            Self::DriverEvicts => "the driver evicts here",
            Self::UsedOnHost => {
                "launches use on the host what lies there, and exchanging would not make them faster"
            }
        }
    }
}

/// What a policy has in mind for a block now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Kept: so many blocks go before it, since they are needed later or nobody knows when;
    /// and the first of them stays for this reason.
    Kept {
        /// Blocks that go before it.
        before: u64,
        /// The one that goes first.
        victim: BlockId,
        /// The launch that is expected to use that one; none known.
        victim_use: Option<u64>,
        /// Why that one stays for now.
        stop: Stop,
    },
    /// Its content is dead; its frame is taken when it is wanted sooner than the block is born
    /// again.
    DeadKept,
    /// It was given back, and its content is dead before it could be moved out: its frame is free
    /// then.
    Dying,
    /// It has no content and no frame; it gets one when it is born.
    Unborn,
    /// It is to be fetched, or given a frame: so many come before it, and the first of them
    /// waits for this reason.
    Waits {
        /// Blocks that come before it.
        before: u64,
        /// Why the first of them waits.
        stop: Stop,
    },
    /// Its dead content on the host is about to be dropped.
    Stale,
    /// A command on it is under way.
    UnderWay,
    /// A command on it had no effect; it is left alone until it is used again.
    LeftAlone,
    /// It is away, and no launch is known to use it.
    NoUseKnown,
    /// The policy does not say, or something changed since it last decided.
    Unsaid,
}

/// Where a block's content lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// Nowhere: it has none.
    Nowhere,
    /// On the host.
    Host,
    /// On the device.
    Device,
    /// On its way to the device.
    Incoming,
    /// On its way to the host.
    Outgoing,
}

/// Why a block is where it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Why {
    /// The block.
    pub block: BlockId,
    /// The oldest launch that is not over.
    pub launch: u64,
    /// Where it is.
    pub place: Place,
    /// Its content is dead.
    pub dead: bool,
    /// The launch that is expected to use it next; none known.
    pub next_use: Option<u64>,
    /// That launch is queued; otherwise it is foretold by the learned cycle.
    pub queued: bool,
    /// What the policy has in mind.
    pub standing: Standing,
    /// What was decided about it, oldest first: as far as remembered, but always the last.
    pub decisions: Vec<Decision>,
}

/// The last decision about a block, in half the room: there is one for each.
#[derive(Clone, Copy, Debug)]
struct Last {
    at: Micros,
    launch: u64,
    next_use: Option<NonZeroU64>,
    rival_use: Option<NonZeroU64>,
    cost_us: u32,
    cycle: Option<NonZeroU32>,
    step: Step,
    breaker: BreakerState,
}

impl Last {
    fn new(decision: &Decision) -> Self {
        let cycle = decision
            .cycle
            .map(|cycle| u32::try_from(cycle).unwrap_or(u32::MAX));
        Self {
            at: decision.at,
            launch: decision.launch,
            next_use: decision.next_use.and_then(NonZeroU64::new),
            rival_use: decision.rival_use.and_then(NonZeroU64::new),
            cost_us: decision.cost_us,
            cycle: cycle.and_then(NonZeroU32::new),
            step: decision.step,
            breaker: decision.breaker,
        }
    }

    fn of(self, block: BlockId) -> Decision {
        Decision {
            at: self.at,
            block,
            step: self.step,
            launch: self.launch,
            next_use: self.next_use.map(NonZeroU64::get),
            rival_use: self.rival_use.map(NonZeroU64::get),
            cost_us: self.cost_us,
            cycle: self.cycle.map(|cycle| u64::from(cycle.get())),
            breaker: self.breaker,
        }
    }
}

/// The record.
#[derive(Debug)]
pub(crate) struct Decisions {
    ring: VecDeque<Decision>,
    limit: usize,
    /// The last one of each block, by slot.
    last: Vec<Option<Last>>,
    /// Decisions made since the session began.
    made: u64,
    /// What goes into every decision.
    pub(crate) breaker: BreakerState,
}

impl Decisions {
    /// Remembers at most so many.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            ring: VecDeque::new(),
            limit,
            last: Vec::new(),
            made: 0,
            breaker: BreakerState::Closed,
        }
    }

    /// Whether anything is written down.
    pub(crate) fn wanted(&self) -> bool {
        self.limit > 0
    }

    pub(crate) fn record(&mut self, slot: u32, decision: Decision) {
        self.made += 1;
        if self.ring.len() == self.limit {
            self.ring.pop_front();
        }
        self.ring.push_back(decision);
        *entry(&mut self.last, slot, None) = Some(Last::new(&decision));
    }

    /// Another block stands in this slot.
    pub(crate) fn forget(&mut self, slot: u32) {
        if let Some(last) = self.last.get_mut(slot as usize) {
            *last = None;
        }
    }

    /// Those from number `from` on that are remembered (the first is 0), oldest first, and
    /// the number of the next.
    pub(crate) fn since(&self, from: u64) -> (impl Iterator<Item = &Decision>, u64) {
        let wanted = self.made.saturating_sub(from);
        let kept = (self.ring.len() as u64).min(wanted) as usize;
        (self.ring.iter().skip(self.ring.len() - kept), self.made)
    }

    /// Those of one block that are remembered, oldest first.
    pub(crate) fn of(&self, slot: u32, block: BlockId) -> Vec<Decision> {
        let mut of: Vec<Decision> = self
            .ring
            .iter()
            .filter(|d| d.block == block)
            .copied()
            .collect();
        let last = self.last.get(slot as usize).copied().flatten();
        if of.is_empty() {
            of.extend(last.map(|last| last.of(block)));
        }
        of
    }

    /// Estimated size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let last = self.last.capacity() * size_of::<Option<Last>>();
        (self.ring.capacity() * size_of::<Decision>() + last) as u64
    }
}

/// The launch of a moment.
pub(crate) fn launch_at(moment: u64) -> u64 {
    moment / TICKS
}
