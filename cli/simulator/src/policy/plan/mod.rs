//! What the planners of the future class share: idle periods, budgets over launches, next
//! uses, and the execution of a finished plan. It owns no policy.

mod gaps;
mod promised;
mod script;
mod slots;
mod timing;
mod uses;

pub(super) use gaps::{Gap, Gaps};
pub(super) use promised::{Promised, Store};
pub(super) use script::{Fallback, Script, Scripted, drop_dead, populate_births};
pub(super) use slots::{Excess, Levels, Track};
pub(super) use timing::{
    Timed, Way, by_reuse, hasten, hasten_beside, latest, relieve, script, times,
};
pub(super) use uses::{Furthest, NEVER, Uses};

#[cfg(test)]
mod tests;
