//! `oversub simulate`: traces through the model, under any policy.

pub mod result;
