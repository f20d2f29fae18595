//! Why a session's blocks are where they are, as the control socket tells it.
//!
//! Owns the forms of the engine's decisions on the wire; `oversub simulate --explain` prints
//! the same ones. Launches are numbered from 1 in program order.

use oversub_engine::{
    self as engine, BLOCK_BYTES, BlockId, Decision, Engine, Operation, Place, Standing, Step, Stop,
    Why,
};
use serde::{Deserialize, Serialize};

use super::Breaker;

/// Decisions that one answer holds at most.
pub const MOST_DECISIONS: u64 = 4096;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WhyQuestion {
    /// One session; none: all that the asker may see.
    pub session: Option<u64>,
    /// An address in the block; none: no block in particular.
    pub address: Option<u64>,
    /// How many of the newest decisions to tell where no block is named, at most
    /// [`MOST_DECISIONS`].
    pub newest: u64,
}

/// What one session's engine says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionWhy {
    /// Number of the session.
    pub session: u64,
    /// Process.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Name of the process.
    pub command: String,
    /// Policy in force.
    pub policy: String,
    /// Whether prefetching is on.
    pub breaker: Breaker,
    /// Launches of the learned cycle; none while there is none.
    pub cycle_launches: Option<u64>,
    /// Why the policy made no more room when it last decided.
    pub room: Said,
    /// Why it fetched no more.
    pub fetch: Said,
    /// The block that was asked for; none where none was, or it is not this session's.
    pub block: Option<BlockView>,
    /// The newest decisions, oldest first; empty where a block was asked for.
    pub decisions: Vec<DecisionView>,
}

/// A word for machines, and the same for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// The word.
    pub word: String,
    /// In words.
    pub text: String,
}

impl From<Stop> for Said {
    fn from(stop: Stop) -> Self {
        Self {
            word: stop.name().to_owned(),
            text: stop.about().to_owned(),
        }
    }
}

/// [`engine::Why`] on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockView {
    /// First byte of the block.
    pub address: u64,
    /// The oldest launch that is not over.
    pub launch: u64,
    /// `nowhere`, `host`, `device`, `incoming` or `outgoing`.
    pub place: String,
    /// Its content is dead.
    pub dead: bool,
    /// The launch that is expected to use it next; none known.
    pub next_use: Option<u64>,
    /// That launch is queued; otherwise it is foretold by the learned cycle.
    pub queued: bool,
    /// What the policy has in mind.
    pub standing: StandingView,
    /// What was decided about it, oldest first.
    pub decisions: Vec<DecisionView>,
}

/// [`engine::Standing`] on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandingView {
    /// `kept`, `waits` or another word.
    pub word: String,
    /// Blocks that go, or come, before it; none where that is not the question.
    pub before: Option<u64>,
    /// Of a kept block, the one that goes first.
    pub victim: Option<u64>,
    /// The launch that is expected to use that one.
    pub victim_use: Option<u64>,
    /// Why the first of them stays, or waits.
    pub stop: Option<Said>,
}

/// [`engine::Decision`] on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionView {
    /// When, microseconds of the session's clock.
    pub at_us: u64,
    /// First byte of the block.
    pub address: u64,
    /// `prefetch`, `populate`, `evict`, `discard`, `use-on-host`, `let-migrate`, or what came of
    /// one: `useful`, `late`, `wasted`, `refused`.
    pub what: String,
    /// Of a command, why.
    pub reason: Option<Said>,
    /// The oldest launch that was not over then.
    pub launch: u64,
    /// The launch that was expected to use the block next.
    pub next_use: Option<u64>,
    /// The launch for whose sake it was decided.
    pub rival_use: Option<u64>,
    /// Microseconds that the link takes for it.
    pub cost_us: u32,
    /// Launches of the learned cycle by which the next use is foretold.
    pub cycle_launches: Option<u64>,
    /// Whether prefetching was on.
    pub breaker: Breaker,
}

impl From<&Decision> for DecisionView {
    fn from(decision: &Decision) -> Self {
        let (what, reason) = match decision.step {
            Step::Ordered(operation, reason) => {
                let said = Said {
                    word: reason.name().to_owned(),
                    text: reason.about().to_owned(),
                };
                (operation_name(operation), Some(said))
            }
            Step::Came(fate) => (fate.name(), None),
        };
        Self {
            at_us: decision.at.0,
            address: decision.block.address(),
            what: what.to_owned(),
            reason,
            launch: decision.launch,
            next_use: decision.next_use,
            rival_use: decision.rival_use,
            cost_us: decision.cost_us,
            cycle_launches: decision.cycle,
            breaker: decision.breaker.into(),
        }
    }
}

fn operation_name(operation: Operation) -> &'static str {
    match operation {
        Operation::Prefetch => "prefetch",
        Operation::Evict => "evict",
        Operation::Discard => "discard",
        Operation::Populate => "populate",
        Operation::Touch => "touch",
        Operation::UseOnHost => "use-on-host",
        Operation::LetMigrate => "let-migrate",
    }
}

impl From<Standing> for StandingView {
    fn from(standing: Standing) -> Self {
        let said = |word: &str| Self {
            word: word.to_owned(),
            before: None,
            victim: None,
            victim_use: None,
            stop: None,
        };
        match standing {
            Standing::Kept {
                before,
                victim,
                victim_use,
                stop,
            } => Self {
                before: Some(before),
                victim: Some(victim.address()),
                victim_use,
                stop: Some(stop.into()),
                ..said("kept")
            },
            Standing::Waits { before, stop } => Self {
                before: Some(before),
                stop: Some(stop.into()),
                ..said("waits")
            },
            Standing::DeadKept => said("dead-kept"),
            Standing::Dying => said("dying"),
            Standing::Unborn => said("unborn"),
            Standing::Stale => said("stale"),
            Standing::UnderWay => said("under-way"),
            Standing::LeftAlone => said("left-alone"),
            Standing::NoUseKnown => said("no-use-known"),
            Standing::Unsaid => said("unsaid"),
        }
    }
}

impl From<&Why> for BlockView {
    fn from(why: &Why) -> Self {
        Self {
            address: why.block.address(),
            launch: why.launch,
            place: match why.place {
                Place::Nowhere => "nowhere",
                Place::Host => "host",
                Place::Device => "device",
                Place::Incoming => "incoming",
                Place::Outgoing => "outgoing",
            }
            .to_owned(),
            dead: why.dead,
            next_use: why.next_use,
            queued: why.queued,
            standing: why.standing.into(),
            decisions: why.decisions.iter().map(DecisionView::from).collect(),
        }
    }
}

impl From<engine::BreakerState> for Breaker {
    fn from(state: engine::BreakerState) -> Self {
        match state {
            engine::BreakerState::Closed => Self::Closed,
            engine::BreakerState::HalfOpen => Self::HalfOpen,
            engine::BreakerState::Open => Self::Open,
        }
    }
}

/// What an engine says to a question, without who it steers.
pub(crate) fn answer(engine: &Engine, question: WhyQuestion) -> SessionWhy {
    let block = question
        .address
        .map(|address| BlockId(address / BLOCK_BYTES));
    let newest = match block {
        Some(_) => 0,
        None => question.newest.min(MOST_DECISIONS),
    };
    let (_, made) = engine.decisions(u64::MAX);
    let (decisions, _) = engine.decisions(made.saturating_sub(newest));
    let (snapshot, stops) = (engine.snapshot(), engine.stops());
    SessionWhy {
        session: 0,
        pid: 0,
        uid: 0,
        command: String::new(),
        policy: String::new(),
        breaker: snapshot.breaker.into(),
        cycle_launches: snapshot.cycle_launches,
        room: stops.room.into(),
        fetch: stops.fetch.into(),
        block: block
            .and_then(|block| engine.why(block))
            .map(|why| (&why).into()),
        decisions: decisions.map(DecisionView::from).collect(),
    }
}
