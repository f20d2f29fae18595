//! The requests that nvidia-uvm takes from user space, as its headers lay them out
//! (`uvm_ioctl.h`, `uvm_linux_ioctl.h`, `uvm_types.h`).
//!
//! Owns numbers and structures, all checked for their size; making requests is
//! [`super::device`]'s. The numbers are small integers, not the kernel's usual encoding.
//! They are a private interface: what is here is equal from 530 to 595 unless a comment
//! says otherwise, and every answer carries a status that is checked.

/// A request: its number, and the structure that goes with it.
pub(super) trait Request {
    /// The ioctl number.
    const NUMBER: libc::c_ulong;
    /// For messages.
    const NAME: &'static str;
    /// The driver's answer; 0 is success.
    fn status(&self) -> u32;
    /// Puts something there that the driver never answers, to see that it has answered.
    fn set_status(&mut self, status: u32);
}

macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $bytes:literal bytes {
        $($field:ident: $kind:ty),* $(,)?
    })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Default, Debug)]
        pub(super) struct $name { $(pub $field: $kind,)* }
        const _: () = assert!(size_of::<$name>() == $bytes);
        impl Request for $name {
            const NUMBER: libc::c_ulong = $number;
            const NAME: &'static str = stringify!($name);
            fn status(&self) -> u32 { self.status }
            fn set_status(&mut self, status: u32) { self.status = status; }
        }
    )*};
}

requests! {
    /// Makes a descriptor of `/dev/nvidia-uvm` an address space.
    Initialize = 0x3000_0001, 16 bytes { flags: u64, status: u32, padding: u32 }
    /// Ties the caller's memory to an address space; on a second descriptor.
    MmInitialize = 75, 8 bytes { uvm_fd: i32, status: u32 }
    /// Moves a range of managed memory.
    Migrate = 51, 80 bytes {
        base: u64, length: u64, destination: [u8; 16], flags: u32, padding: u32,
        semaphore_address: u64, semaphore_payload: u32, host_node: i32,
        user_space_start: u64, user_space_length: u64, status: u32, tail: u32,
    }
    /// Turns a descriptor of `/dev/nvidia-uvm-tools` into a queue of 64-byte entries. 535
    /// to 550.40, and 565 on.
    InitTracker = 56, 56 bytes {
        queue: u64, entries: u64, control: u64, processor: [u8; 16], all_processors: u32,
        uvm_fd: u32, status: u32, padding: u32,
    }
    /// The same with a version asked for: 550.54 to 555.
    InitTrackerVersioned = 56, 64 bytes {
        queue: u64, entries: u64, control: u64, processor: [u8; 16], all_processors: u32,
        uvm_fd: u32, status: u32, requested: u32, granted: u32, padding: u32,
    }
    /// The same with the version before the status: 560.
    InitTracker560 = 56, 56 bytes {
        queue: u64, entries: u64, control: u64, processor: [u8; 16], all_processors: u32,
        uvm_fd: u32, version: u32, status: u32,
    }
    /// After so many entries the descriptor becomes readable.
    SetThreshold = 57, 8 bytes { threshold: u32, status: u32 }
    /// Which events go into the queue, by bits.
    EnableEvents = 58, 16 bytes { types: u64, status: u32, padding: u32 }
    /// On the address space: what is done shall be in the queues.
    FlushEvents = 67, 4 bytes { status: u32 }
}

/// `NV_OK`.
pub(super) const OK: u32 = 0;
/// `NV_WARN_NOTHING_TO_DO`: the closed flavour ties no memory to address spaces.
pub(super) const NOTHING_TO_DO: u32 = 0x1_0006;
/// Never an answer.
pub(super) const UNANSWERED: u32 = 0xffff_fffe;
