//! The kernel's records as typed events. Pure: knows the record's layout, not libbpf.
//!
//! The layout is defined in `include/oversub_events.h` and checked here, at compile time,
//! against the type that clang made of it.

use serde::Serialize;
use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{softgpu_skeleton, uvm_skeleton};

/// `struct ovs_event`.
#[derive(Clone, Copy, Default, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct RawEvent {
    pub time_ns: u64,
    pub address: u64,
    pub bytes: u64,
    pub space: u64,
    pub duration_ns: u64,
    pub tgid: u32,
    pub faults: u32,
    pub raw_faults: u32,
    pub batch: u32,
    pub processor: u16,
    pub kind: u8,
    pub cause: u8,
    pub direction: u8,
    pub flags: u8,
    pub source: u8,
    pub reserved: u8,
}

/// Fails to compile where the two types differ in size or in the place of a field.
macro_rules! assert_same_layout {
    ($ours:ty, $theirs:ty; $($field:ident),+ $(,)?) => {
        const _: () = {
            assert!(size_of::<$ours>() == size_of::<$theirs>());
            $(assert!(
                std::mem::offset_of!($ours, $field) == std::mem::offset_of!($theirs, $field)
            );)+
        };
    };
}

assert_same_layout!(RawEvent, softgpu_skeleton::types::ovs_event;
    time_ns, address, bytes, space, duration_ns, tgid, faults, raw_faults, batch, processor,
    kind, cause, direction, flags, source, reserved);
assert_same_layout!(RawEvent, uvm_skeleton::types::ovs_event;
    time_ns, address, bytes, space, duration_ns, tgid, faults, raw_faults, batch, processor,
    kind, cause, direction, flags, source, reserved);
const _: () = assert!(size_of::<RawEvent>() == 64);

/// `enum ovs_kind`: what a record says, and the cookie of the soft GPU's probe points.
pub(crate) mod kind {
    pub const FAULT: u8 = 1;
    pub const BATCH: u8 = 2;
    pub const MIGRATION: u8 = 3;
    pub const POPULATE: u8 = 4;
    pub const EVICTION: u8 = 5;
    pub const SERVICE_BEGIN: u8 = 6;
    pub const SERVICE_END: u8 = 7;
    pub const RANGE: u8 = 8;
    pub const THRASHING: u8 = 9;
    pub const THROTTLE: u8 = 10;
    pub const SPACE_END: u8 = 11;
}

/// `OVS_BY_HOST`.
const BY_HOST: u8 = 1;
/// `OVS_IN_SERVICE`.
const IN_SERVICE: u8 = 2;

/// One thing that the driver did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeEvent {
    /// When, `CLOCK_MONOTONIC` nanoseconds.
    pub time_ns: u64,
    /// For which process, by its number in the initial pid namespace; `None`: not known
    /// (the driver serves faults in a thread of its own).
    pub tgid: Option<u32>,
    /// Which driver.
    pub source: Source,
    /// The driver's address space, an opaque number; 0 on the soft GPU, where the process
    /// is the space.
    pub space: u64,
    /// The driver's number of the device; 0: not known, or the host.
    pub processor: u16,
    /// What it did.
    pub what: What,
}

/// Who reported it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// oversub's soft GPU, in the program.
    SoftGpu,
    /// The nvidia-uvm module.
    Uvm,
}

/// What the driver did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// Faults on one block, in one batch; sent before they are served on the soft GPU, as
    /// soon as all are known on nvidia-uvm.
    Fault {
        /// First faulted byte.
        address: u64,
        /// Faults after the driver's merging of duplicates; 0: not known (scalar mode).
        faults: u32,
        /// And before it.
        raw_faults: u32,
        /// Number of the batch.
        batch: u32,
        /// By the host, not by the device.
        by_host: bool,
    },
    /// A batch of faults was served.
    Batch {
        /// Its number.
        batch: u32,
        /// Faults in it, after merging.
        faults: u32,
        /// From its first fault to the replay, nanoseconds.
        service_ns: u64,
    },
    /// Bytes were moved.
    Migration {
        /// First byte.
        address: u64,
        /// How many; 0: not known (scalar mode), pages of one block.
        bytes: u64,
        /// Which way.
        direction: Direction,
        /// Why.
        cause: Cause,
    },
    /// Pages appeared on the device without a transfer.
    Populate {
        /// First byte.
        address: u64,
        /// How many.
        bytes: u64,
    },
    /// A block lost device memory.
    Eviction {
        /// First byte.
        address: u64,
        /// How many.
        bytes: u64,
        /// What kind of memory it was.
        kind: Eviction,
        /// How long it took, nanoseconds; 0: not known.
        duration_ns: u64,
        /// Who needed the room.
        payer: Payer,
    },
    /// The driver's fault service loop began.
    ServiceBegin,
    /// And ended.
    ServiceEnd {
        /// After that long, nanoseconds.
        duration_ns: u64,
    },
    /// The process made a managed range.
    Range {
        /// First byte.
        address: u64,
        /// How many.
        bytes: u64,
    },
    /// The driver sees processors fight for pages.
    Thrashing {
        /// First byte.
        address: u64,
        /// How many.
        bytes: u64,
    },
    /// The driver makes a processor wait for a page that others fight for.
    Throttle {
        /// First byte of the page.
        address: u64,
    },
    /// The address space is no more.
    SpaceEnd,
}

/// Which way over the link. Open: a newer program may know more.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Direction(pub u8);

impl Direction {
    /// Host to device.
    pub const IN: Direction = Direction(0);
    /// Device to host.
    pub const OUT: Direction = Direction(1);
    /// Between two devices, or two places of the host.
    pub const ACROSS: Direction = Direction(2);
}

/// Why the driver moved something: `uvm_make_resident_cause_t` (uvm_va_block_types.h,
/// equal from 530 to 595). Open.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cause(pub u8);

impl Cause {
    /// A fault that the driver can replay; going out: the host touched it.
    pub const REPLAYABLE_FAULT: Cause = Cause(0);
    /// A fault that it cannot.
    pub const NON_REPLAYABLE_FAULT: Cause = Cause(1);
    /// The device read host memory often.
    pub const ACCESS_COUNTER: Cause = Cause(2);
    /// The driver's density prefetcher.
    pub const PREFETCH: Cause = Cause(3);
    /// The driver needed the room.
    pub const EVICTION: Cause = Cause(4);
    /// A debugger.
    pub const API_TOOLS: Cause = Cause(5);
    /// A prefetch call.
    pub const API_MIGRATE: Cause = Cause(6);
    /// A range group became migratable.
    pub const API_SET_RANGE_GROUP: Cause = Cause(7);
    /// An advice.
    pub const API_HINT: Cause = Cause(8);
}

/// Who needed the room that an eviction made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Payer {
    /// The faults of this process, where it is known.
    Fault(Option<u32>),
    /// A call of this process: a prefetch, or an allocation that is not managed.
    Call(u32),
    /// Not known.
    Unknown,
}

/// What kind of memory an eviction took. Open.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Eviction(pub u8);

impl Eviction {
    /// Nothing had to be copied; on nvidia-uvm discarded blocks are among these.
    pub const UNUSED: Eviction = Eviction(0);
    /// The content had been discarded.
    pub const DISCARDED: Eviction = Eviction(1);
    /// The content was copied to the host.
    pub const USED: Eviction = Eviction(2);
}

/// A record that is none of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum EventError {
    /// It has another size.
    #[error("probe record of {0} bytes instead of 64")]
    Size(usize),
    /// It says something unknown.
    #[error("probe record of unknown kind {kind} from source {source_number}")]
    Unknown {
        /// `enum ovs_kind`.
        kind: u8,
        /// `enum ovs_source`.
        source_number: u8,
    },
}

impl ProbeEvent {
    /// The event in a record of the kernel.
    ///
    /// # Errors
    /// The record is not one that this build knows.
    pub fn decode(record: &[u8]) -> Result<ProbeEvent, EventError> {
        let raw = RawEvent::read_from_bytes(record).map_err(|_| EventError::Size(record.len()))?;
        let RawEvent {
            address,
            bytes,
            faults,
            raw_faults,
            batch,
            duration_ns,
            ..
        } = raw;
        let unknown = EventError::Unknown {
            kind: raw.kind,
            source_number: raw.source,
        };
        let source = match raw.source {
            1 => Source::SoftGpu,
            2 => Source::Uvm,
            _ => return Err(unknown),
        };
        let what = match raw.kind {
            kind::FAULT => {
                let by_host = raw.flags & BY_HOST != 0;
                What::Fault {
                    address,
                    faults,
                    raw_faults,
                    batch,
                    by_host,
                }
            }
            kind::BATCH => What::Batch {
                batch,
                faults,
                service_ns: duration_ns,
            },
            kind::MIGRATION => {
                let (direction, cause) = (Direction(raw.direction), Cause(raw.cause));
                What::Migration {
                    address,
                    bytes,
                    direction,
                    cause,
                }
            }
            kind::POPULATE => What::Populate { address, bytes },
            kind::EVICTION => {
                let kind = Eviction(raw.cause);
                What::Eviction {
                    address,
                    bytes,
                    kind,
                    duration_ns,
                    payer: match (raw.flags & IN_SERVICE != 0, batch) {
                        (true, process) => Payer::Fault((process != 0).then_some(process)),
                        (false, 0) => Payer::Unknown,
                        (false, process) => Payer::Call(process),
                    },
                }
            }
            kind::SERVICE_BEGIN => What::ServiceBegin,
            kind::SERVICE_END => What::ServiceEnd { duration_ns },
            kind::RANGE => What::Range { address, bytes },
            kind::THRASHING => What::Thrashing { address, bytes },
            kind::THROTTLE => What::Throttle { address },
            kind::SPACE_END => What::SpaceEnd,
            _ => return Err(unknown),
        };
        Ok(ProbeEvent {
            time_ns: raw.time_ns,
            tgid: (raw.tgid != 0).then_some(raw.tgid),
            source,
            space: raw.space,
            processor: raw.processor,
            what,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(kind: u8) -> RawEvent {
        RawEvent {
            time_ns: 1,
            address: 0x20_0000,
            bytes: 4096,
            space: 9,
            duration_ns: 77,
            tgid: 5,
            faults: 3,
            raw_faults: 4,
            batch: 6,
            processor: 2,
            kind,
            cause: 4,
            direction: 1,
            flags: BY_HOST,
            source: 2,
            reserved: 0,
        }
    }

    fn what(kind: u8) -> What {
        ProbeEvent::decode(raw(kind).as_bytes()).unwrap().what
    }

    #[test]
    fn each_kind_becomes_its_event() {
        let (address, bytes) = (0x20_0000, 4096);
        assert_eq!(
            what(kind::FAULT),
            What::Fault {
                address,
                faults: 3,
                raw_faults: 4,
                batch: 6,
                by_host: true
            }
        );
        assert_eq!(
            what(kind::BATCH),
            What::Batch {
                batch: 6,
                faults: 3,
                service_ns: 77
            }
        );
        let (direction, cause) = (Direction::OUT, Cause::EVICTION);
        assert_eq!(
            what(kind::MIGRATION),
            What::Migration {
                address,
                bytes,
                direction,
                cause
            }
        );
        assert_eq!(what(kind::POPULATE), What::Populate { address, bytes });
        assert_eq!(
            what(kind::EVICTION),
            What::Eviction {
                address,
                bytes,
                kind: Eviction(4),
                duration_ns: 77,
                payer: Payer::Call(6)
            }
        );
        let in_service = |batch| {
            let raw = RawEvent {
                flags: IN_SERVICE,
                batch,
                ..raw(kind::EVICTION)
            };
            match ProbeEvent::decode(raw.as_bytes()).unwrap().what {
                What::Eviction { payer, .. } => payer,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(in_service(6), Payer::Fault(Some(6)));
        assert_eq!(in_service(0), Payer::Fault(None));
        assert_eq!(what(kind::SERVICE_BEGIN), What::ServiceBegin);
        assert_eq!(
            what(kind::SERVICE_END),
            What::ServiceEnd { duration_ns: 77 }
        );
        assert_eq!(what(kind::RANGE), What::Range { address, bytes });
        assert_eq!(what(kind::THRASHING), What::Thrashing { address, bytes });
        assert_eq!(what(kind::THROTTLE), What::Throttle { address });
        assert_eq!(what(kind::SPACE_END), What::SpaceEnd);
    }

    #[test]
    fn the_frame_around_it_is_kept() {
        let event = ProbeEvent::decode(raw(kind::BATCH).as_bytes()).unwrap();
        assert_eq!((event.time_ns, event.tgid, event.space), (1, Some(5), 9));
        assert_eq!((event.source, event.processor), (Source::Uvm, 2));
        let anonymous = RawEvent {
            tgid: 0,
            source: 1,
            ..raw(kind::BATCH)
        };
        let event = ProbeEvent::decode(anonymous.as_bytes()).unwrap();
        assert_eq!((event.tgid, event.source), (None, Source::SoftGpu));
    }

    #[test]
    fn records_of_another_size_kind_or_source_are_refused() {
        let good = raw(kind::FAULT);
        assert_eq!(
            ProbeEvent::decode(&good.as_bytes()[..63]),
            Err(EventError::Size(63))
        );
        assert_eq!(ProbeEvent::decode(&[0; 65]), Err(EventError::Size(65)));
        for (kind, source) in [(0, 1), (12, 1), (255, 2), (1, 0), (1, 3)] {
            let strange = RawEvent {
                kind,
                source,
                ..good
            };
            let error = EventError::Unknown {
                kind,
                source_number: source,
            };
            assert_eq!(ProbeEvent::decode(strange.as_bytes()), Err(error));
        }
    }
}
