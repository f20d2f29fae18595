//! Requests to `/dev/nvidia-uvm` and `/dev/nvidia-uvm-tools`: numbers and layouts.
//!
//! From uvm_ioctl.h and uvm_linux_ioctl.h, equal from 530 to 595 where nothing else is said. The interface is private to the
//! driver, so the guests' build checks every layout against the driver's own headers (see
//! [`LAYOUTS`]), and the status begins with a value that no driver answers.

use crate::Uuid;

/// What the status is before the driver writes it.
pub const UNANSWERED: u32 = u32::MAX;

/// A request whose answer ends in an `NV_STATUS`.
pub trait Request {
    /// The ioctl's number: plain, without direction and size.
    const NUMBER: libc::c_ulong;
    /// The ioctl's name.
    const NAME: &'static str;
    /// Where the driver writes its status.
    fn status(&mut self) -> &mut u32;
}

/// Name, number and layout of a request, for comparison with the driver's headers.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Name of the ioctl; its structure is called so too, with `_PARAMS`.
    pub name: &'static str,
    /// Number.
    pub number: u64,
    /// Names in the driver's structure, and offsets here, bytes.
    pub fields: &'static [(&'static str, usize)],
}

macro_rules! requests {
    ($($(#[$doc:meta])* $type:ident = $name:literal $number:literal {
        $($(#[$field_doc:meta])* $field:ident / $theirs:ident : $kind:ty),* $(,)?
    } $(+ { $($(#[$tail_doc:meta])* $tail:ident / $tail_theirs:ident : $tail_kind:ty),* $(,)? })?)+) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default)]
            pub struct $type {
                $($(#[$field_doc])* pub $field: $kind,)*
                /// Out: the driver's answer.
                pub rm_status: u32,
                $($($(#[$tail_doc])* pub $tail: $tail_kind,)*)?
            }

            impl Request for $type {
                const NUMBER: libc::c_ulong = $number;
                const NAME: &'static str = $name;
                fn status(&mut self) -> &mut u32 {
                    &mut self.rm_status
                }
            }
        )+

        /// All requests.
        pub const LAYOUTS: &[Layout] = &[$(Layout {
            name: $name,
            number: $number,
            fields: &[
                $((stringify!($theirs), std::mem::offset_of!($type, $field)),)*
                ("rmStatus", std::mem::offset_of!($type, rm_status)),
            ],
        }),+];
    };
}

requests! {
    /// Makes the descriptor a VA space.
    Initialize = "UVM_INITIALIZE" 0x3000_0001 {
        /// [`DISABLE_HMM`] or 0.
        flags/flags: u64,
    }
    /// Ties a second descriptor to the process's address space, for the first.
    MmInitialize = "UVM_MM_INITIALIZE" 75 {
        /// The VA space's descriptor.
        uvm_fd/uvmFd: i32,
    }
    /// Makes a GPU known to the VA space.
    RegisterGpu = "UVM_REGISTER_GPU" 37 {
        /// The GPU.
        uuid/gpu_uuid: Uuid,
        /// Out: its memory is a NUMA node.
        numa_enabled/numaEnabled: u8,
        /// Out: which one.
        numa_node/numaNodeId: i32,
        /// RM's control descriptor.
        rm_fd/rmCtrlFd: i32,
        /// RM client.
        client/hClient: u32,
        /// MIG partition.
        partition/hSmcPartRef: u32,
    }
    /// Gives the GPU's address space to the driver.
    RegisterGpuVaSpace = "UVM_REGISTER_GPU_VASPACE" 25 {
        /// The GPU.
        uuid/gpuUuid: Uuid,
        /// RM's control descriptor.
        rm_fd/rmCtrlFd: i32,
        /// RM client.
        client/hClient: u32,
        /// RM address space.
        va_space/hVaSpace: u32,
    }
    /// Lets a channel's faults be served.
    RegisterChannel = "UVM_REGISTER_CHANNEL" 27 {
        /// The GPU.
        uuid/gpuUuid: Uuid,
        /// RM's control descriptor.
        rm_fd/rmCtrlFd: i32,
        /// RM client.
        client/hClient: u32,
        /// RM channel.
        channel/hChannel: u32,
        /// Room for the channel's resources.
        base/base: u64,
        /// Its length.
        length/length: u64,
    }
    /// Moves a range; made resident there when it returns.
    Migrate = "UVM_MIGRATE" 51 {
        /// First byte.
        base/base: u64,
        /// Length.
        length/length: u64,
        /// Where to.
        destination/destinationUuid: Uuid,
        /// `UVM_MIGRATE_FLAG_*`.
        flags/flags: u32,
        /// Semaphore to release, 0 for none.
        semaphore/semaphoreAddress: u64,
        /// What is released.
        payload/semaphorePayload: u32,
        /// NUMA node, for the CPU; -1 for any.
        cpu_node/cpuNumaNode: i32,
        /// Out: part that is not managed.
        user_start/userSpaceStart: u64,
        /// Out: its length.
        user_length/userSpaceLength: u64,
    }
    /// Nowhere in particular.
    UnsetPreferredLocation = "UVM_UNSET_PREFERRED_LOCATION" 43 {
        /// First byte.
        base/requestedBase: u64,
        /// Length.
        length/length: u64,
    }
    /// A processor keeps a mapping of the range wherever it is.
    SetAccessedBy = "UVM_SET_ACCESSED_BY" 46 {
        /// First byte.
        base/requestedBase: u64,
        /// Length.
        length/length: u64,
        /// The processor.
        processor/accessedByUuid: Uuid,
    }
    /// It does not.
    UnsetAccessedBy = "UVM_UNSET_ACCESSED_BY" 47 {
        /// First byte.
        base/requestedBase: u64,
        /// Length.
        length/length: u64,
        /// The processor.
        processor/accessedByUuid: Uuid,
    }
    /// Readers get copies of their own.
    EnableReadDuplication = "UVM_ENABLE_READ_DUPLICATION" 44 {
        /// First byte.
        base/requestedBase: u64,
        /// Length.
        length/length: u64,
    }
    /// They do not.
    DisableReadDuplication = "UVM_DISABLE_READ_DUPLICATION" 45 {
        /// First byte.
        base/requestedBase: u64,
        /// Length.
        length/length: u64,
    }
    /// Attaches an event queue to a VA space.
    ToolsInitEventTracker = "UVM_TOOLS_INIT_EVENT_TRACKER" 56 {
        /// Address of the entries.
        queue/queueBuffer: u64,
        /// Their number, a power of two.
        entries/queueBufferSize: u64,
        /// Address of the control structure.
        control/controlBuffer: u64,
        /// For counters only.
        processor/processor: Uuid,
        /// For counters only.
        all/allProcessors: u32,
        /// The VA space's descriptor.
        uvm_fd/uvmFd: u32,
    } + {
        /// 550.54 to 555: the version of the entries, where others have only the first.
        version/requestedVersion: u32,
        /// Out, of those.
        granted/grantedVersion: u32,
    }
    /// After so many entries the queue's descriptor becomes readable.
    ToolsSetThreshold = "UVM_TOOLS_SET_NOTIFICATION_THRESHOLD" 57 {
        /// Entries.
        threshold/notificationThreshold: u32,
    }
    /// Starts recording.
    ToolsEnableEvents = "UVM_TOOLS_EVENT_QUEUE_ENABLE_EVENTS" 58 {
        /// One bit per event type.
        types/eventTypeFlags: u64,
    }
    /// Writes out what waits for the end of a copy.
    ToolsFlushEvents = "UVM_TOOLS_FLUSH_EVENTS" 67 {}
}

/// Where a range should be. Drivers from 550 on have a NUMA node where older ones have the
/// status; both structures take 40 bytes, so one form serves: what the driver does not write
/// stays as it was, and the old status is as a node "any".
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SetPreferredLocation {
    /// First byte.
    pub base: u64,
    /// Length.
    pub length: u64,
    /// The processor.
    pub processor: Uuid,
    /// Before 550 out, the driver's answer; from then on in, the CPU's node.
    status_or_node: u32,
    /// From 550 on out, the driver's answer.
    late_status: u32,
}

impl SetPreferredLocation {
    /// Of a range, at a processor.
    pub fn new(base: u64, length: u64, processor: Uuid) -> Self {
        Self {
            base,
            length,
            processor,
            status_or_node: UNANSWERED,
            late_status: UNANSWERED,
        }
    }
}

impl Request for SetPreferredLocation {
    const NUMBER: libc::c_ulong = 42;
    const NAME: &'static str = "UVM_SET_PREFERRED_LOCATION";
    fn status(&mut self) -> &mut u32 {
        match self.late_status {
            UNANSWERED => &mut self.status_or_node,
            _ => &mut self.late_status,
        }
    }
}

/// [`SetPreferredLocation`] for comparison, without its status.
pub const PREFERRED: Layout = Layout {
    name: SetPreferredLocation::NAME,
    number: SetPreferredLocation::NUMBER,
    fields: &[
        (
            "requestedBase",
            std::mem::offset_of!(SetPreferredLocation, base),
        ),
        ("length", std::mem::offset_of!(SetPreferredLocation, length)),
        (
            "preferredLocation",
            std::mem::offset_of!(SetPreferredLocation, processor),
        ),
    ],
};

/// Where the status of [`SetPreferredLocation`] may be.
pub const PREFERRED_STATUS: [usize; 2] = [
    std::mem::offset_of!(SetPreferredLocation, status_or_node),
    std::mem::offset_of!(SetPreferredLocation, late_status),
];

/// [`ToolsInitEventTracker`] as 560 has it: the version of the entries before the status.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ToolsInitEventTracker560 {
    /// Address of the entries.
    pub queue: u64,
    /// Their number, a power of two.
    pub entries: u64,
    /// Address of the control structure.
    pub control: u64,
    /// For counters only.
    pub processor: Uuid,
    /// For counters only.
    pub all: u32,
    /// The VA space's descriptor.
    pub uvm_fd: u32,
    /// Version of the entries.
    pub version: u32,
    /// Out: the driver's answer.
    pub rm_status: u32,
}

impl Request for ToolsInitEventTracker560 {
    const NUMBER: libc::c_ulong = ToolsInitEventTracker::NUMBER;
    const NAME: &'static str = ToolsInitEventTracker::NAME;
    fn status(&mut self) -> &mut u32 {
        &mut self.rm_status
    }
}

/// No heterogeneous memory management: system memory is not the driver's.
pub const DISABLE_HMM: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_migration_is_the_eighty_bytes_that_all_drivers_since_535_take() {
        assert_eq!(size_of::<Migrate>(), 80);
    }

    #[test]
    fn a_preferred_location_is_answered_where_the_driver_has_the_status() {
        assert_eq!(size_of::<SetPreferredLocation>(), 40);
        let mut request = SetPreferredLocation::new(0, 1, Uuid::default());
        *request.status() = UNANSWERED;
        assert_eq!(request.status_or_node as i32, -1, "any node");
        request.status_or_node = 0;
        assert_eq!(*request.status(), 0, "as 535 answers");
        let mut request = SetPreferredLocation::new(0, 1, Uuid::default());
        request.late_status = 7;
        assert_eq!(*request.status(), 7, "as 550 does");
    }

    #[test]
    fn no_two_requests_share_a_number() {
        let mut numbers: Vec<_> = LAYOUTS.iter().map(|layout| layout.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), LAYOUTS.len());
    }
}
