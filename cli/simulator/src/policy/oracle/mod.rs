//! What the oracles share: the exact string of block uses, a planner of which blocks leave
//! between two of their uses, and an executor that carries a plan out.

mod execute;
mod plan;
mod progress;
#[cfg(test)]
mod tests;
mod uses;

pub(super) use execute::{Executor, When};
pub(super) use plan::{Plan, plan};
pub(super) use uses::Uses;
