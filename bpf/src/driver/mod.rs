//! The driver's own interface, `/dev/nvidia-uvm` and `/dev/nvidia-uvm-tools`: address spaces
//! of our own for the probes' self-test, and those of other processes for the event queue.

mod abi;
mod device;
mod entry;
mod tools;

pub use device::{DEVICE, DriverError, Managed, TOOLS_DEVICE, VaSpace, queue_is_there};
pub use entry::{Decoder, ENTRY_BYTES, Entry};
pub use tools::ToolsQueue;
