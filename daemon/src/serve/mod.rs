//! What the daemon answers: programs, the command line, Prometheus.

pub mod control;
pub mod http;
pub mod sessions;
