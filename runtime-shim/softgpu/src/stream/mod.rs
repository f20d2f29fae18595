//! Streams and engines.
