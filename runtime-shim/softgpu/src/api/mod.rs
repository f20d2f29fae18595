//! The entry points.
