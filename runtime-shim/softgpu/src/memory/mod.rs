//! Paged device memory.
