//! The driver's event queue of one process, as the second source of the same typed events.
//! Requests, entries and descriptors are `oversub-uvm`'s; here they become events.

mod entry;
mod reach;
mod tools;

pub use entry::Decoder;
pub use reach::Reach;
pub use tools::{DriverError, ToolsQueue};
