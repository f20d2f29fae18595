//! Why a policy's engine moved or kept one block: what it wrote down while it ran.
//!
//! Owns the question and the collecting; the reasons are the engine's own, as of the moment
//! at which the launch began. Launches are the trace's, from 0.

use oversub_engine::{BlockId, Decision, Engine, Standing, Why};

use crate::class::Seq;
use crate::trace::Launch;
use crate::units::{BLOCK_BYTES, Nanos};

/// Decisions on one block that are kept at most, before the moment and behind it.
const MOST: usize = 256;

/// Why is the block there when the launch begins?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// An address in the block.
    pub address: u64,
    /// The launch.
    pub launch: Launch,
}

/// The answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// When the launch began.
    pub at: Nanos,
    /// The block then. Its decisions are those before.
    pub why: Why,
    /// What was decided about it afterwards.
    pub after: Vec<Decision>,
}

/// Collects the answer while the engine runs.
#[derive(Debug)]
pub(crate) struct Watch {
    ask: Ask,
    block: BlockId,
    /// Number of the next decision to look at.
    seen: u64,
    before: Vec<Decision>,
    found: Option<Explanation>,
}

impl Watch {
    pub(crate) fn new(ask: Ask) -> Self {
        Self {
            ask,
            block: BlockId(ask.address / BLOCK_BYTES),
            seen: 0,
            before: Vec::new(),
            found: None,
        }
    }

    /// Takes in what the engine has decided since the last time.
    pub(crate) fn look(&mut self, engine: &Engine) {
        let (new, next) = engine.decisions(self.seen);
        self.seen = next;
        let of_block = new.filter(|decision| decision.block == self.block);
        for &decision in of_block {
            let decision = of_trace(decision);
            match &mut self.found {
                Some(found) if found.after.len() < MOST => found.after.push(decision),
                Some(_) => {}
                None => {
                    if self.before.len() == MOST {
                        self.before.remove(0);
                    }
                    self.before.push(decision);
                }
            }
        }
    }

    /// A launch begins.
    pub(crate) fn started(&mut self, launch: Seq, at: Nanos, engine: &Engine) {
        if launch.0 != self.ask.launch.0 || self.found.is_some() {
            return;
        }
        self.look(engine);
        let Some(why) = engine.why(self.block) else {
            return;
        };
        let decisions = std::mem::take(&mut self.before);
        let standing = match why.standing {
            Standing::Kept {
                before,
                victim,
                victim_use,
                stop,
            } => Standing::Kept {
                before,
                victim,
                victim_use: victim_use.map(launch_of_trace),
                stop,
            },
            other => other,
        };
        let why = Why {
            launch: launch_of_trace(why.launch),
            next_use: why.next_use.map(launch_of_trace),
            standing,
            decisions,
            ..why
        };
        let after = Vec::new();
        self.found = Some(Explanation { at, why, after });
    }

    /// The answer; none where the launch did not begin, or no memory lay there then.
    pub(crate) fn found(&self) -> Option<Explanation> {
        self.found.clone()
    }
}

/// The engine counts launches from 1.
pub(crate) fn launch_of_trace(launch: u64) -> u64 {
    launch.saturating_sub(1)
}

fn of_trace(decision: Decision) -> Decision {
    Decision {
        launch: launch_of_trace(decision.launch),
        next_use: decision.next_use.map(launch_of_trace),
        rival_use: decision.rival_use.map(launch_of_trace),
        ..decision
    }
}
