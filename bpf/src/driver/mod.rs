//! The driver's event queue of one process, as the second source of the same typed events.
//! Requests, entries and descriptors are `oversub-uvm`'s; here they become events.

mod entry;
mod tools;

pub use entry::Decoder;
pub use oversub_uvm::tools::is_there as queue_is_there;
pub use tools::{DriverError, ToolsQueue};
