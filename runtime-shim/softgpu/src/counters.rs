//! What the soft GPU counts.
