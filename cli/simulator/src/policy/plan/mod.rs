//! What the planners of the future class share: budgets over launches. It owns no policy.

mod slots;

pub(super) use slots::Levels;
