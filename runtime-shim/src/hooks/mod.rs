//! The entry points, by subject. Each gets the driver's own function and decides.

pub mod context;
pub mod copy;
pub mod coverage;
pub mod device;
pub mod export;
pub mod launch;
pub mod memory;
pub mod module;
pub mod pointer;
pub mod pool;
pub mod stream;
